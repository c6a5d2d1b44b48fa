package engine_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/checkpoint"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/source"
)

func TestARerunKeepsIDOffsetsBatchTimeAndWatermarkOfItsPlan(t *testing.T) {
	w := newWorld(t, 30).withDeadLetters()
	w.limit = 20
	w.killedAt("lake.main commit 1", 1)
	planned := w.plan(1)
	// More records and a later clock: a new plan would look otherwise.
	w.kafka.produce(0, 50)
	w.clock.set(func(t time.Time) time.Time { return t.Add(time.Hour) })
	w.must()
	for _, c := range w.commits() {
		if c.BatchID != 1 {
			continue
		}
		m := c.Marker
		if m.PlanHash != checkpoint.PlanHash(*planned) || !m.Position.SameOffsets(planned.End) || !m.BatchTime.Equal(planned.BatchTime) {
			t.Fatalf("batch 1 was committed as %+v, planned as %+v", m, planned)
		}
		if again := w.plan(1); again.Epoch != planned.Epoch || again.Watermark.Micros != planned.Watermark.Micros {
			t.Fatalf("offsets/1 was written again: %+v", again)
		}
		if m.Epoch.Number <= planned.Epoch.Number {
			t.Fatalf("committed under epoch %s, planned under %s", m.Epoch, planned.Epoch)
		}
		return
	}
	t.Fatal("batch 1 has no commit")
}

func TestAStopBeforeTheCommitAbandonsTheBatchAndTheNextStartRunsIt(t *testing.T) {
	w := newWorld(t, 30)
	ctx, stop := context.WithCancel(t.Context())
	if err := w.runCtx(ctx, func(_ *engine.Query, s *fakeSource) { s.onRead = stop }); err != nil {
		t.Fatalf("a stop that was asked for is clean: %v", err)
	}
	if got := w.main.keys(place); len(got) != 0 {
		t.Fatalf("%d rows are visible of an abandoned batch", len(got))
	}
	planned := w.plan(0)
	w.must()
	w.exactRaw()
	if m := w.main.marker(queryName); m.PlanHash != checkpoint.PlanHash(*planned) {
		t.Fatal("the abandoned batch was planned again instead of run again")
	}
	w.completeLog(0)
}

// finishing is a transform with something to do at the end of a batch.
type finishing struct {
	operator.Transform
	f func(*operator.Result)
}

func (f finishing) Finish(emit operator.Emit) (operator.Result, error) {
	res, err := f.Transform.Finish(emit)
	f.f(&res)
	return res, err
}

func TestAStopAtTheLastMomentBeforeTheCommitStillAbandonsTheBatch(t *testing.T) {
	w := newWorld(t, 30)
	ctx, stop := context.WithCancel(t.Context())
	err := w.runCtx(ctx, func(q *engine.Query, _ *fakeSource) {
		q.Transform = finishing{q.Transform, func(*operator.Result) { stop() }}
	})
	if m := w.main.marker(queryName); err != nil || m.BatchID != -1 {
		t.Fatalf("%v, batch %d", err, m.BatchID)
	}
	w.must()
	w.exactRaw()
}

func TestARerunThatComputesOtherCountsThanASideSinkHoldsStops(t *testing.T) {
	w := newWorld(t, 60).withDeadLetters()
	w.limit = 40
	w.killedAt("lake.main commit 1", 1)
	// A transform that is not a function of its input, under one fingerprint.
	err := w.run(func(q *engine.Query, _ *fakeSource) {
		q.Transform = finishing{q.Transform, func(res *operator.Result) {
			res.Counters.Filtered--
			res.Counters.Late++
		}}
	})
	wantClass(t, err, failure.Checkpoint)
	if m := w.main.marker(queryName); m.BatchID != 0 {
		t.Fatalf("main is at batch %d", m.BatchID)
	}
}

// stopAtCommit is a sink that is told to stop when its commit begins.
type stopAtCommit struct {
	*memSink
	stop func()
}

func (s stopAtCommit) Commit(ctx context.Context, p sink.Permit, prev *marker.Marker, st sink.Staged, m *marker.Marker) (sink.Committed, error) {
	s.stop()
	// A permit belongs to the sink that issued it: the claim went to memSink.
	return s.memSink.Commit(ctx, p, prev, st, m)
}

func TestAStopWithinTheCommitFinishesTheBatch(t *testing.T) {
	w := newWorld(t, 30)
	w.limit = 20
	ctx, stop := context.WithCancel(t.Context())
	err := w.runCtx(ctx, func(q *engine.Query, _ *fakeSource) {
		q.Outputs[0].Sink = stopAtCommit{q.Outputs[0].Sink.(*memSink), stop}
	})
	if err != nil {
		t.Fatalf("a stop that was asked for is clean: %v", err)
	}
	if m := w.main.marker(queryName); m.BatchID != 0 {
		t.Fatalf("the sink is at batch %d", m.BatchID)
	}
	w.completeLog(0)
	w.must()
	w.exactRaw()
}

// broken is a transform that loses a row, or says that it emitted one more.
type broken struct {
	operator.Transform
	lose, miscount bool
}

func (b broken) Process(rec arrow.RecordBatch, emit operator.Emit) error {
	if b.lose && rec.NumRows() > 1 {
		whole := rec
		rec = whole.NewSlice(0, whole.NumRows()-1)
		whole.Release()
		return b.Transform.Process(rec, emit)
	}
	return b.Transform.Process(rec, emit)
}

func (b broken) Finish(emit operator.Emit) (operator.Result, error) {
	res, err := b.Transform.Finish(emit)
	if b.miscount {
		res.Counters.Read++
		res.Counters.Emitted++
	} else {
		res.Counters.Read++
	}
	return res, err
}

func TestCountsThatDoNotAddUpStopBeforeAnythingIsVisible(t *testing.T) {
	for name, b := range map[string]broken{
		"a row that is nowhere":          {lose: true},
		"a row that is not in the files": {miscount: true},
	} {
		w := newWorld(t, 30)
		err := w.run(func(q *engine.Query, _ *fakeSource) { b.Transform = q.Transform; q.Transform = b })
		if err == nil || !strings.Contains(err.Error(), "nothing was committed") {
			t.Fatalf("%s: %v", name, err)
		}
		if m := w.main.marker(queryName); len(w.main.keys(place)) != 0 || m.BatchID != -1 {
			t.Fatalf("%s: rows or a marker of batch %d are visible", name, m.BatchID)
		}
		w.must() // the sound version runs the same batch
		w.exactRaw()
	}
}

func TestABatchOfWhichNoRowIsEmittedMovesTheMarkerAllTheSame(t *testing.T) {
	w := newWorld(t, 30).withDeadLetters()
	w.kafka.value = func(p int32, off int64) string {
		return fmt.Sprintf(`{"id":"%d-%d","kind":"log","dt":"2026-05-04T11:00:00Z"}`, p, off)
	}
	w.limit = 20
	w.must()
	for _, table := range []*memTable{w.main, w.side} {
		m := table.marker(queryName)
		if m.BatchID != 2 || len(table.keys(place)) != 0 || m.Position.Kafka.Topics[fakeTopic].Partitions[0].NextOffset != 30 {
			t.Fatalf("%s: %+v", table.name, m)
		}
	}
	w.completeLog(2)
	if c := w.counters(); c.Filtered != 60 || c.Read != 60 {
		t.Fatalf("%+v", c)
	}
}

// writePlan puts a foreign plan of batch n into the checkpoint, as another run
// that got there first.
func (w *world) writePlan(n int64, e marker.Epoch, end int64) {
	w.t.Helper()
	l := checkpoint.Open(w.disk, queryName)
	if _, err := l.Gather(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	m := w.main.marker(queryName)
	to := m.Position.Clone()
	to.Kafka.Set(fakeTopic, "", 0, batch.PartitionPosition{NextOffset: end, LastOffset: -1, LeaderEpoch: -1, Rows: -1})
	_, err := l.WritePlan(w.t.Context(), checkpoint.Plan{QueryID: m.QueryID, BatchID: n, Epoch: e, Start: m.Position, End: to,
		BatchTime: w.clock.Now(), Watermark: m.Watermark, Transform: w.transform().Fingerprint()})
	if err != nil {
		w.t.Fatal(err)
	}
}

func TestAPlanThatAnOlderRunWroteFirstIsRunAsItIsAndANewerOneFences(t *testing.T) {
	w := newWorld(t, 30)
	w.must() // epoch 1 leaves batch 0 committed
	w.kafka.produce(0, 30)
	once := false
	w.must(func(_ *engine.Query, s *fakeSource) {
		s.onPlan = func() {
			if !once {
				once = true
				w.writePlan(1, marker.Epoch{Number: 1, Nonce: "a zombie"}, 41)
			}
		}
	})
	if got := w.plan(1).End.Kafka.Topics[fakeTopic].Partitions[0].NextOffset; got != 41 {
		t.Fatalf("batch 1 ends at %d", got)
	}
	w.exactRaw()
	w.completeLog(2)

	w.kafka.produce(0, 30)
	before := w.main.marker(queryName)
	once = false
	err := w.run(func(_ *engine.Query, s *fakeSource) {
		s.onPlan = func() {
			if !once {
				once = true
				w.writePlan(3, marker.Epoch{Number: 99, Nonce: "the next one"}, 61)
			}
		}
	})
	wantClass(t, err, failure.Fenced)
	if m := w.main.marker(queryName); m.BatchID != before.BatchID {
		t.Fatalf("the fenced run committed batch %d", m.BatchID)
	}
	w.must()
	w.exactRaw()
}

func TestARunThatWasOvertakenWhileReadingLandsNothing(t *testing.T) {
	for _, wipe := range []bool{false, true} { // the same folder; or gone, and made again
		w := newWorld(t, 30)
		w.limit = 20
		once := false
		err := w.run(func(_ *engine.Query, s *fakeSource) {
			s.onRead = func() {
				if once {
					return
				}
				once = true
				if wipe {
					w.disk.Wipe()
				}
				second := func(q *engine.Query, _ *fakeSource) { q.Checkpoint = w.disk.Reopen() }
				if err := w.query(second).Run(t.Context()); err != nil {
					t.Errorf("the second instance: %v", err)
				}
			}
		})
		wantClass(t, err, failure.Fenced)
		w.exactRaw()
		w.reboot(false)
		w.kafka.produce(0, 10)
		w.must()
		w.exactRaw()
	}
}

func TestACrashBetweenTwoSinksCommitsOnlyTheSinkThatLacksTheBatch(t *testing.T) {
	ref := newWorld(t, 60).withDeadLetters()
	ref.limit = 40
	ref.must()
	w := newWorld(t, 60).withDeadLetters()
	w.limit = 40
	w.killedAt("lake.main commit 1", 1)
	if side, main := w.side.marker(queryName), w.main.marker(queryName); side.BatchID != 1 || main.BatchID != 0 {
		t.Fatalf("side sink at %d, main at %d", side.BatchID, main.BatchID)
	}
	commits := len(w.side.log)
	w.must()
	w.likeUndisturbed(ref)
	for _, line := range w.side.log[commits:] {
		if line == "lake.dead commit 1" {
			t.Fatal("the side sink committed batch 1 twice")
		}
	}
}

// likeUndisturbed compares tables and counts with those of a run without kills.
func (w *world) likeUndisturbed(ref *world) {
	w.t.Helper()
	wantRows(w.t, "main", w.main.keys(place), ref.main.keys(place))
	if w.side != nil {
		wantRows(w.t, "side", w.side.keys(place), ref.side.keys(place))
	}
	n := ref.main.marker(queryName).BatchID
	w.completeLog(n)
	if got, want := w.counters(), ref.counters(); got != want {
		w.t.Fatalf("counts %+v, undisturbed %+v", got, want)
	}
}

func TestTheFakeWorldHasRowsOfEveryFate(t *testing.T) {
	w := newWorld(t, 60).withDeadLetters()
	w.limit = 40
	w.must()
	c := w.counters()
	if c.Emitted == 0 || c.Filtered == 0 || c.Duplicate == 0 || c.Late == 0 || c.DeadLettered == 0 || c.Read != 120 || !c.Balanced() {
		t.Fatalf("%+v", c)
	}
}

func TestStagedFilesAreCommittedAsTheyAreWhenTheTransformHasChanged(t *testing.T) {
	ref := newWorld(t, 60).withDeadLetters()
	ref.limit = 40
	ref.must()
	w := newWorld(t, 60).withDeadLetters()
	w.limit = 40
	w.killedAt("lake.main commit 1", 1)
	// The next version keeps edits of one partition only: batch 1 must not be
	// half of one and half of the other.
	old := w.transform
	w.transform = func() operator.Transform {
		return w.parsing(operator.Config{}, operator.Column{Name: "again", Path: "$.kind", Type: "string"})
	}
	if old().Fingerprint() == w.transform().Fingerprint() {
		t.Fatal("the transform has not changed")
	}
	w.must()
	w.likeUndisturbed(ref)
	for _, c := range w.commits() {
		if c.BatchID == 1 && c.Marker.Transform != old().Fingerprint() {
			t.Fatal("batch 1 was computed by the new transform")
		}
		if c.BatchID == 2 && c.Marker.Transform == old().Fingerprint() {
			t.Fatal("batch 2 was computed by the old transform")
		}
	}
}

func TestAHalfVisibleBatchWhoseStagedFilesAreGoneStopsInsteadOfGuessing(t *testing.T) {
	for _, what := range []string{"manifest", "files"} {
		w := newWorld(t, 60).withDeadLetters()
		w.limit = 40
		w.killedAt("lake.main commit 1", 1)
		w.transform = func() operator.Transform {
			return w.parsing(operator.Config{}, operator.Column{Name: "again", Path: "$.kind", Type: "string"})
		}
		if what == "files" {
			clear(w.main.staged)
		} else if err := w.disk.Delete(t.Context(), checkpoint.StagedKey(1)); err != nil {
			t.Fatal(err)
		}
		err := w.run()
		wantClass(t, err, failure.Checkpoint)
		if m := w.main.marker(queryName); m.BatchID != 0 {
			t.Fatalf("%s: main is at batch %d", what, m.BatchID)
		}
	}
}

func TestBatchTimeNeverGoesBackWhenTheClockDoes(t *testing.T) {
	w := newWorld(t, 30)
	w.limit = 20
	w.must(func(_ *engine.Query, s *fakeSource) {
		s.onPlan = func() { w.clock.set(func(t time.Time) time.Time { return t.Add(-time.Hour) }) }
	})
	w.clock.set(func(t time.Time) time.Time { return t.Add(-24 * time.Hour) })
	w.kafka.produce(0, 30)
	w.must()
	var last time.Time
	for _, c := range w.commits() {
		if c.Marker.BatchTime.Before(last) {
			t.Fatalf("batch %d has the time %s after %s", c.BatchID, c.Marker.BatchTime, last)
		}
		last = c.Marker.BatchTime
	}
	w.exactRaw()
}

func TestAFailingSourceFailsTheRunAndTheNextOneIsExact(t *testing.T) {
	w := newWorld(t, 30)
	w.limit = 20
	reads := 0
	err := w.run(func(q *engine.Query, s *fakeSource) {
		q.Source = failing{s, func() error {
			if reads++; reads == 2 {
				return failure.New(failure.Unreachable, "the broker is away")
			}
			return nil
		}}
	})
	wantClass(t, err, failure.Unreachable)
	w.must()
	w.exactRaw()
	w.completeLog(2)
}

// failing is a source whose reads may fail half-way.
type failing struct {
	source.Source
	fail func() error
}

func (f failing) Read(ctx context.Context, start, end batch.Position, env source.ReadEnv, emit func(arrow.RecordBatch) error) (source.ReadResult, error) {
	res, err := f.Source.Read(ctx, start, end, env, emit)
	if e := f.fail(); e != nil {
		return res, e
	}
	return res, err
}
