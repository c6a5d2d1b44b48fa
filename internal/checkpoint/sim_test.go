package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
)

// TestEveryCrashAndEveryLostFileEndsWithEachRowOnce runs a small engine on
// Decide and Log against two model tables, kills it at random steps and random
// storage operations, cuts the power, and does to the folder what people do to
// folders. Whatever happens, each offset up to a sink's marker is in it once.
func TestEveryCrashAndEveryLostFileEndsWithEachRowOnce(t *testing.T) {
	seen := map[string]int{}
	seeds := uint64(200)
	if testing.Short() {
		seeds = 60
	}
	for seed := uint64(1); seed <= seeds; seed++ {
		w := newWorld(t, seed)
		for range 14 {
			w.life()
			w.check()
			w.meddle()
			if t.Failed() {
				t.Fatalf("seed %d:\n%s", seed, strings.Join(w.story, "\n"))
			}
		}
		for k, v := range w.seen {
			seen[k] += v
		}
	}
	t.Logf("outcomes: %v", seen)
	for _, k := range []string{"fresh", "resume", "rerun", "already-committed", "adopt", "sides done", "must end", "staged"} {
		if seen[k] == 0 {
			t.Errorf("the simulation never came to %q", k)
		}
	}
}

// table is a sink: rows by partition and offset, with how often they are there
// and which transform made them.
type table struct {
	marker *marker.Marker
	rows   map[string]int
	made   map[string]string
}

type killed struct{}

type world struct {
	t          *testing.T
	rng        *rand.Rand
	disk       *objstore.Memory
	main, side *table
	old        map[string][]byte // a copy of the folder from some time ago
	// excused: commits/N was removed, which may leave two plans without a
	// commit; nothing else may make the folder corrupt.
	excused, oldExcused bool
	transform           int
	fuel                int
	epoch               marker.Epoch
	story               []string
	seen                map[string]int
}

func newWorld(t *testing.T, seed uint64) *world {
	empty := func() *table { return &table{rows: map[string]int{}, made: map[string]string{}} }
	return &world{t: t, rng: rand.New(rand.NewPCG(seed, 7)), disk: objstore.NewMemory(still{}), main: empty(), side: empty(), seen: map[string]int{}}
}

func (w *world) note(format string, args ...any) {
	w.story = append(w.story, fmt.Sprintf(format, args...))
}

// step is a crash point.
func (w *world) step() {
	if w.fuel--; w.fuel <= 0 {
		panic(killed{})
	}
}

// must ends the life when the storage does, and the test on any other error.
func (w *world) must(err error) {
	if errors.Is(err, objstore.ErrCrashed) {
		panic(killed{})
	}
	if err != nil {
		w.t.Errorf("%v", err)
		panic(killed{})
	}
}

func (w *world) fingerprint() string { return fmt.Sprintf("transform-%d", w.transform) }

// life is one process, from its start to its death.
func (w *world) life() {
	defer func() {
		r := recover()
		if _, ok := r.(killed); r != nil && !ok {
			panic(r)
		}
		w.disk.CrashAfter(-1)
		switch w.rng.IntN(3) {
		case 0:
			w.disk.Crash(0)
			w.note("power lost")
		case 1:
			w.disk.Crash(w.rng.Uint64() | 1)
			w.note("power lost, torn")
		default:
			w.disk = w.disk.Reopen()
			w.note("killed")
		}
	}()
	w.fuel = 1 + w.rng.IntN(40)
	if w.rng.IntN(2) == 0 {
		w.disk.CrashAfter(w.rng.IntN(150))
	}
	w.run(w.t.Context())
}

func (w *world) run(ctx context.Context) {
	l := Open(w.disk, query)
	f, err := l.Gather(ctx)
	w.must(err)
	f.HasState = func(marker.StateFile) bool { return true }
	s := self()
	s.Transform = w.fingerprint()
	d := Decide(f, []SinkFacts{mainSink(w.main.marker), sideSink(w.side.marker)}, source(), Adopt, s)
	w.note("%s: batch %d, next %d, done %v, supersede %v (%s)", d.Outcome, d.BatchID, d.NextBatchID, d.SinksDone, d.Supersede, d.Reason)
	w.seen[d.Outcome.String()]++
	if d.Outcome == OutcomeCorrupt {
		w.wayOut(d)
		return
	}
	if err := d.Err(); err != nil {
		w.t.Errorf("stopped: %v", err)
		return
	}
	if len(d.SinksDone) > 0 {
		w.seen["sides done"]++
	}
	w.prepare(ctx, l, d)
	next := d.NextBatchID
	switch {
	case d.Outcome == OutcomeRerun:
		w.batch(ctx, l, *d.Plan, d)
	case d.Outcome == OutcomeAlreadyCommitted:
		w.must(l.WriteCommit(ctx, CommitEntry{QueryID: d.QueryID, BatchID: d.BatchID, Marker: d.Marker}))
	case d.Outcome == OutcomeAdopt && (d.Plan != nil || d.MustEndAt != nil):
		w.batch(ctx, l, w.plan(ctx, l, d, next), d)
		next++
	}
	d.SinksDone, d.UseStaged, d.MustEndAt, d.MustEnd, d.Plan = nil, false, nil, nil, nil
	for {
		w.step()
		w.batch(ctx, l, w.plan(ctx, l, d, next), d)
		next++
	}
}

// wayOut does what the hint of a corrupt checkpoint says.
func (w *world) wayOut(d Decision) {
	if strings.Contains(d.Hint, "start once with the configuration") {
		w.transform--
		return
	}
	if !w.excused {
		w.t.Errorf("a sound folder was found corrupt: %s", d.Reason)
	}
	w.excused = false
	w.disk.Wipe()
	w.disk = w.disk.Reopen()
}

// prepare writes metadata or adopts, and claims both sinks.
func (w *world) prepare(ctx context.Context, l *Log, d Decision) {
	if d.Outcome == OutcomeAdopt {
		w.must(l.Adopt(ctx, d, "instance-1", noon))
	} else {
		_, err := l.CreateMetadata(ctx, Metadata{QueryID: d.QueryID, InstanceID: "instance-1", CreatedAt: noon})
		w.must(err)
	}
	w.epoch = marker.Epoch{Number: d.NextEpoch, Nonce: fmt.Sprint(w.rng.Uint64())}
	claims := []string{"lake.bronze", "lake.dead"}
	w.rng.Shuffle(2, func(i, j int) { claims[i], claims[j] = claims[j], claims[i] })
	for _, name := range claims {
		w.step()
		m := d.Claims[name]
		m.Epoch, m.Attempt, m.Instance, m.RenewedAt = w.epoch, fmt.Sprint(w.rng.Uint64()), "instance-1", noon
		if d.Outcome == OutcomeFresh {
			m.Position = pos(0, 0)
		}
		w.sink(name).marker = m
	}
	w.must(l.RecordClaim(ctx, w.epoch, map[string]string{"lake.bronze": "uuid-main", "lake.dead": "uuid-dead"}))
}

func (w *world) sink(name string) *table {
	if name == "lake.bronze" {
		return w.main
	}
	return w.side
}

// plan proposes a batch of random length, unless the decision fixes it.
func (w *world) plan(ctx context.Context, l *Log, d Decision, n int64) Plan {
	m := w.main.marker
	end := m.Position.Clone()
	m.Position.Kafka.Each(func(topic, id string, part int32, p batch.PartitionPosition) {
		p.NextOffset += w.rng.Int64N(4)
		p.LastOffset = -1
		end.Kafka.Set(topic, id, part, p)
	})
	p := Plan{QueryID: d.QueryID, BatchID: n, Epoch: w.epoch, Start: m.Position, End: end, BatchTime: noon.Add(time.Duration(w.rng.IntN(1000)) * time.Second),
		Watermark: m.Watermark, Transform: w.fingerprint()}
	if d.MustEndAt != nil {
		w.seen["must end"]++
		p.End, p.BatchTime = *d.MustEndAt, d.MustEnd.BatchTime
	}
	if d.Plan != nil {
		p = *d.Plan
		p.Epoch = w.epoch
	}
	got, err := l.WritePlan(ctx, p)
	w.must(err)
	return got.Plan
}

// batch runs steps 4 to 6 of the protocol on a plan.
func (w *world) batch(ctx context.Context, l *Log, p Plan, d Decision) {
	w.step()
	m := &marker.Marker{Format: 1, Kind: marker.KindStream, QueryName: query, QueryID: p.QueryID, BatchID: p.BatchID, Epoch: w.epoch,
		Attempt: fmt.Sprint(w.rng.Uint64()), PlanHash: PlanHash(p), Position: p.End, Watermark: p.Watermark, BatchTime: p.BatchTime,
		Transform: w.fingerprint(), Instance: "instance-1", RenewedAt: noon}
	if d.UseStaged {
		w.seen["staged"]++
		st, err := l.ReadStaged(ctx, p.BatchID)
		w.must(err)
		m.Transform = st.Transform
	} else {
		w.must(l.WriteStaged(ctx, StagedManifest{QueryID: p.QueryID, BatchID: p.BatchID, Attempt: m.Attempt, Transform: m.Transform, Marker: m}))
	}
	w.step()
	if len(d.SinksDone) == 0 {
		w.commit("lake.dead", p, m)
		w.step()
	}
	w.commit("lake.bronze", p, m)
	w.step()
	w.must(l.WriteCommit(ctx, CommitEntry{QueryID: p.QueryID, BatchID: p.BatchID, Marker: m}))
}

// commit is atomic, as a table's is. It does not defend itself: that nothing is
// committed twice is what the test is about.
func (w *world) commit(name string, p Plan, m *marker.Marker) {
	s := w.sink(name)
	own := *m
	s.marker = &own
	for _, r := range p.Start.Ranges(p.End) {
		for o := r.From; o < r.To; o++ {
			key := fmt.Sprintf("%d:%d", r.Partition, o)
			s.rows[key]++
			s.made[key] = m.Transform
		}
	}
	w.note("  commit %s batch %d up to %s by %s", name, p.BatchID, p.End, m.Transform)
}

// check counts both tables.
func (w *world) check() {
	for name, s := range map[string]*table{"main": w.main, "side": w.side} {
		if s.marker == nil {
			continue
		}
		total := 0
		s.marker.Position.Kafka.Each(func(_, _ string, part int32, p batch.PartitionPosition) {
			for o := int64(0); o < p.NextOffset; o++ {
				total++
				if got := s.rows[fmt.Sprintf("%d:%d", part, o)]; got != 1 {
					w.t.Errorf("%s: partition %d offset %d is there %d times", name, part, o, got)
				}
			}
		})
		if total != len(s.rows) {
			w.t.Errorf("%s: %d rows, the marker says %d", name, len(s.rows), total)
		}
	}
	for key, made := range w.main.made {
		if w.side.made[key] != made {
			w.t.Errorf("row %s: main by %s, side by %q", key, made, w.side.made[key])
		}
	}
}

// meddle does to the folder what people, backups and deployments do.
func (w *world) meddle() {
	ctx := w.t.Context()
	files, err := w.disk.Files(ctx)
	w.must(err)
	what := w.rng.IntN(12)
	switch what {
	case 0:
		w.disk.Wipe()
		files, w.excused = nil, false
		w.note("folder removed")
	case 1:
		delete(files, metadataKey)
		w.note("metadata removed")
	case 2:
		newest := int64(-1)
		for key := range files {
			if n, ok := batchOf(commitsPrefix, key); ok {
				newest = max(newest, n)
			}
		}
		delete(files, CommitsKey(newest))
		w.excused = true
		w.note("commits/%d removed", newest)
	case 3:
		if w.old != nil {
			files, w.excused = maps.Clone(w.old), w.oldExcused
			w.note("old copy restored")
		}
	case 4, 5:
		w.transform++
		w.note("transform changed")
	case 6:
		w.old, w.oldExcused = maps.Clone(files), w.excused
		w.note("copy taken")
	}
	if what < 4 && files != nil {
		w.must(w.disk.SetFiles(ctx, files))
	}
	w.disk = w.disk.Reopen()
}
