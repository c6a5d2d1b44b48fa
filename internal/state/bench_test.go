package state

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/uuid"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/state/pebblestate"
)

// Sizes of BenchmarkStores.
var (
	benchIDs      = flag.Int("state.ids", 200_000, "ids that dedup remembers in BenchmarkStores")
	benchSessions = flag.Int("state.sessions", 50_000, "sessions that are open in BenchmarkStores")
	benchCache    = flag.Int64("state.cache", 256<<20, "bytes of Pebble's cache in BenchmarkStores")
)

const (
	benchRows    = 10_000
	benchBatches = 50
)

// stateBench is one transform whose state is filled, used, saved and loaded.
type stateBench struct {
	b    *testing.B
	make func() operator.Transform
	// batch gives the rows of a batch of n; new says that every key is new.
	batch func(n int, new bool) arrow.RecordBatch
	fill  int
}

// BenchmarkStores fills state, adds batches of 10,000 rows to it, half of them with
// keys that it has, saves it, and loads it into an empty process; on Pebble also into
// one that finds the folder. Run it with -benchtime 1x: processor and wall time are
// those of one run.
func BenchmarkStores(b *testing.B) {
	for _, store := range []string{"memory", "pebble"} {
		b.Run("dedup/"+store, func(b *testing.B) { dedupBench(b).run(store) })
		b.Run("sessions/"+store, func(b *testing.B) { sessionsBench(b).run(store) })
	}
}

func (s *stateBench) keep(tr operator.Transform, store, dir string) {
	if store == "pebble" {
		operator.KeepIn(tr, pebblestate.New(pebblestate.Options{Dir: dir, Query: "q", CacheBytes: *benchCache}).Store)
	}
}

func (s *stateBench) run(store string) {
	for range s.b.N {
		dir := filepath.Join(s.b.TempDir(), "work")
		objects, err := objstore.OpenLocal(filepath.Join(s.b.TempDir(), "checkpoint"), objstore.LocalOptions{Clock: clock.System{}})
		s.check(err)
		runtime.GC()
		before := resident()
		tr := s.make()
		s.keep(tr, store, dir)
		op, st := tr.State()[0], NewStore(objects, Options{})
		id := int64(0)
		start := cpu()
		for n := s.fill; n > 0; n -= 100_000 {
			id = s.step(tr, id, min(n, 100_000), true)
		}
		s.b.ReportMetric(float64(cpu()-start)/float64(s.fill), "fill-cpu-ns/row")
		runtime.GC()
		s.b.ReportMetric(float64(resident()-before)/1e6, "MB")
		s.b.ReportMetric(float64(op.Keys()), "keys")
		start, wall := cpu(), time.Now() //nolint:forbidigo // a measurement
		for range benchBatches {
			id = s.step(tr, id, benchRows, false)
		}
		s.b.ReportMetric(float64(cpu()-start)/float64(benchBatches*benchRows), "cpu-ns/row")
		s.b.ReportMetric(float64(benchBatches*benchRows)/time.Since(wall).Seconds(), "rows/s") //nolint:forbidigo // a measurement
		start = cpu()
		f, err := st.Save(ctx, queryID, op, id, "a", nil)
		s.check(err)
		s.b.ReportMetric((cpu() - start).Seconds(), "save-cpu-s")
		s.b.ReportMetric(float64(f.Bytes)/1e6, "snapshot-MB")
		id = s.step(tr, id, benchRows, false) // the folder takes in the version that was saved
		s.check(operator.Release(tr))
		tr, op = nil, nil
		runtime.GC()
		s.load(store, filepath.Join(s.b.TempDir(), "empty"), objects, f, "load")
		if store == "pebble" {
			s.load(store, dir, objects, f, "resume")
		}
	}
}

func (s *stateBench) load(store, dir string, objects objstore.Store, f marker.StateFile, name string) {
	tr := s.make()
	s.keep(tr, store, dir)
	start, wall := cpu(), time.Now() //nolint:forbidigo // a measurement
	s.check(NewStore(objects, Options{}).Load(ctx, queryID, tr.State()[0], f))
	s.b.ReportMetric((cpu() - start).Seconds(), name+"-cpu-s")
	s.b.ReportMetric(time.Since(wall).Seconds(), name+"-s") //nolint:forbidigo // a measurement
	if got := tr.State()[0].Keys(); got != f.Keys {
		s.b.Fatalf("%d keys are loaded, %d were saved", got, f.Keys)
	}
	s.check(operator.Release(tr))
}

// step runs one batch of n rows.
func (s *stateBench) step(tr operator.Transform, id int64, n int, fresh bool) int64 {
	up := int64(0)
	drop := func(_ string, rec arrow.RecordBatch) error { rec.Release(); return nil }
	s.check(tr.Begin(operator.Env{BatchID: id, BatchTimeMicros: benchTime, Watermark: marker.Watermark{Micros: marker.MinTime}, Upstream: &up}))
	s.check(tr.Process(s.batch(n, fresh), drop))
	_, err := tr.Finish(drop)
	s.check(err)
	return id + 1
}

func (s *stateBench) check(err error) {
	s.b.Helper()
	if err != nil {
		s.b.Fatal(err)
	}
}

const benchTime = 1_777_000_000_000_000

func dedupBench(b *testing.B) *stateBench {
	rng := rand.New(rand.NewPCG(1, 1))
	at := time.UnixMicro(benchTime).UTC().Format(time.RFC3339Nano)
	var seen []string
	docs := func(n int, fresh bool) arrow.RecordBatch {
		list := make([]string, n)
		for i := range list {
			if !fresh && i%2 == 0 {
				list[i] = seen[rng.IntN(len(seen))]
				continue
			}
			var u uuid.UUID
			for j := range u {
				u[j] = byte(rng.Uint32())
			}
			list[i] = `{"id":"` + u.String() + `","at":"` + at + `"}`
			if len(seen) < 100_000 {
				seen = append(seen, list[i])
			}
		}
		return kafkaRecord(list)
	}
	return &stateBench{b: b, make: func() operator.Transform { return newTransform(b) }, batch: docs, fill: *benchIDs}
}

func sessionsBench(b *testing.B) *stateBench {
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "event_time", Type: batch.Timestamp}, {Name: "user", Type: arrow.BinaryTypes.String}, {Name: "title", Type: arrow.BinaryTypes.String},
	}, nil)
	rng := rand.New(rand.NewPCG(1, 1))
	users := 0
	make := func() operator.Transform {
		rows, err := operator.NewTableRows(operator.TableRows{Schema: schema, TimeColumn: "event_time"})
		if err != nil {
			b.Fatal(err)
		}
		tr, err := operator.NewAggregated(rows, "event_time", []operator.Aggregation{{
			Session: &operator.SessionWindow{Gap: 30 * time.Minute}, Keys: []string{"user"}, Columns: []operator.Aggregate{
				{Name: "edits", Function: operator.Count}, {Name: "pages", Function: operator.ApproxCountDistinct, Column: "title"},
				{Name: "first_title", Function: operator.First, Column: "title"}, {Name: "last_title", Function: operator.Last, Column: "title"},
				{Name: "last_edit", Function: operator.Max, Column: "event_time"},
			}}})
		if err != nil {
			b.Fatal(err)
		}
		return tr
	}
	rows := func(n int, fresh bool) arrow.RecordBatch {
		r := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		defer r.Release()
		for i := range n {
			user := users
			if !fresh && i%2 == 0 {
				user = rng.IntN(users)
			} else {
				users++
			}
			r.Field(0).(*array.TimestampBuilder).Append(arrow.Timestamp(benchTime + rng.Int64N(600_000_000)))
			r.Field(1).(*array.StringBuilder).Append("Some user " + strconv.Itoa(user))
			r.Field(2).(*array.StringBuilder).Append(fmt.Sprint("A page of some length ", rng.IntN(90_000)))
		}
		return r.NewRecordBatch()
	}
	return &stateBench{b: b, make: make, batch: rows, fill: *benchSessions}
}

func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// resident is the process's memory, 0 where the system does not say.
func resident() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kb, _ := strconv.ParseInt(strings.Fields(rest + " 0")[0], 10, 64)
	return kb << 10
}
