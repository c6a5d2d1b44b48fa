package operator

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/marker"
)

// restColumns are like those of the demo's editor_sessions.
var restColumns = []Aggregate{
	{Name: "edits", Function: Count},
	{Name: "pages", Function: ApproxCountDistinct, Column: "title"},
	{Name: "greatest", Function: Max, Column: "size"},
	{Name: "first_title", Function: First, Column: "title"},
	{Name: "last_title", Function: Last, Column: "title"},
	{Name: "last_edit", Function: Max, Column: "event_time"},
}

// BenchmarkSessionsAtRest adds batches of 1,000 rows to 220,000 open sessions,
// nine rows in ten of a user that has one. It reports what an open session takes
// at rest, and the time of a row, all steps of a batch together.
func BenchmarkSessionsAtRest(b *testing.B) {
	const sessions, batchRows = 220_000, 1_000
	a := newAggregated(b, Aggregation{Session: &SessionWindow{Gap: 30 * time.Minute}, Keys: []string{"wiki", "user"}, Columns: restColumns})
	rng := rand.New(rand.NewPCG(1, 1))
	id, users, cpu := int64(0), 0, time.Duration(0)
	batchOf := func(n int, known float64) {
		rows := make([]edit, n)
		for i := range rows {
			user := users
			if rng.Float64() < known {
				user = rng.IntN(users)
			} else {
				users++
			}
			rows[i] = edit{at: rng.Int64N(600), wiki: "enwiki", user: fmt.Sprint("Some user ", user), title: fmt.Sprint("A page of some length ", rng.IntN(90_000)), size: rng.Int64N(5000)}
		}
		rec := editRecord(rows)
		b.StartTimer()
		start := cpuTime()
		defer func() {
			cpu += cpuTime() - start
			b.StopTimer()
		}()
		id++
		up := int64(0)
		if err := a.Begin(Env{BatchID: id, Watermark: marker.Watermark{Micros: marker.MinTime}, Upstream: &up}); err != nil {
			b.Fatal(err)
		}
		if err := a.Process(rec, nil); err != nil {
			b.Fatal(err)
		}
		if _, err := a.Finish(nil); err != nil {
			b.Fatal(err)
		}
		if _, err := a.stages[0].Delta(); err != nil {
			b.Fatal(err)
		}
	}
	before := heapInUse()
	b.StopTimer()
	for users < sessions {
		batchOf(batchRows, 0)
	}
	for range 50 { // sessions of several rows, and what the changes leave behind
		batchOf(batchRows, 0.9)
	}
	perSession := float64(heapInUse()-before) / float64(a.stages[0].Keys())
	b.ResetTimer()
	b.StopTimer()
	cpu = 0
	for range b.N {
		batchOf(batchRows, 0.9)
	}
	b.ReportMetric(perSession, "bytes/session")
	b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N*batchRows), "cpu-ns/row")
	start := cpuTime()
	runtime.GC()
	b.ReportMetric(float64((cpuTime() - start).Milliseconds()), "cpu-ms/gc")
	runtime.KeepAlive(a)
}

// cpuTime is what the process has used, the collector included.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
