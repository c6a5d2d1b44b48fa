package sinktest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
)

// External is a Harness of a store outside: one that is not a table of ours, may
// be down, may refuse a row, and may have taken what it did not acknowledge.
type External struct {
	Harness
	// OpenWith opens the sink under a policy for refused rows.
	OpenWith func(t *testing.T, query string, policy sink.OnRejected) Opened
	// Refused makes a record like Record, in which the rows of the ids in bad are
	// such that the store refuses them. Nil where a store refuses nothing.
	Refused func(ids, bad []int64) arrow.RecordBatch
	// Calls counts the calls that carried rows to the store since the harness was
	// made, failed ones included; nil where they cannot be counted.
	Calls func(t *testing.T) int
	// Repeats is set where the store has no memory that the sink could ask or key
	// on, so that a lost acknowledgement may repeat rows: then it must never lose
	// them.
	Repeats bool
	// Piecewise is set where a batch is delivered in parts that cannot be taken
	// back: a batch that fails may be there in part until it comes again.
	Piecewise bool
}

// RunExternal runs Run, and what stores outside make possible.
func RunExternal(t *testing.T, fresh func(t *testing.T) External) {
	Run(t, func(t *testing.T) Harness { return fresh(t).Harness })
	for _, c := range []struct {
		name string
		run  func(t *testing.T, h External)
	}{
		{"KilledBetweenWriteAndAcknowledgementTheSameBatchIsThereOnce", killedUnacknowledged},
		{"KilledBeforeTheWriteTheSameBatchIsThereOnce", killedUnwritten},
		{"OlderBatchAfterANewerOneIsNotApplied", olderAfterNewer},
		{"BatchIDsThatStartAgainNeverDropOrDoubleRows", reusedIDs},
		{"RestartedLineageRepeatsRowsUnderHigherIDs", restarted},
		{"ZombieCannotFinishAfterATakeOver", takenOver},
		{"EmptyBatchMakesNoCall", emptyBatch},
		{"RefusedRowFailsTheWholeBatch", refusedFails},
		{"RefusedRowsAreSetAsideAndTheRestIsThereOnce", refusedSetAside},
		{"RefusedRowsOfARerunAreThoseOfTheFirstRun", refusedDecided},
		{"DiscardedBatchLeavesNothing", discarded},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, fresh(t)) })
	}
}

// wantOnce is wantIDs, where the store may repeat rows only that none is missing
// and none is strange.
func (h External) wantOnce(t *testing.T, rows map[int32]int64) {
	t.Helper()
	if !h.Repeats {
		wantIDs(t, h.Harness, rows)
		return
	}
	got := h.IDs(t)
	slices.Sort(got)
	distinct := h.Harness
	distinct.IDs = func(*testing.T) []int64 { return slices.Compact(got) }
	wantIDs(t, distinct, rows)
}

func killedUnacknowledged(t *testing.T, h External) {
	w := start(t, h.Harness, "q", 0)
	w.commit(t, 10)
	before := w.cur
	staged, m := w.next(t, 10)
	// The store has taken the batch; the process dies before it hears of it.
	died, cancel := context.WithCancel(context.Background())
	w.o.AfterNext(func() error { cancel(); return errors.New("killed") })
	_, _ = w.o.Sink.Commit(died, w.permit, w.cur, staged, m)
	again := start(t, h.Harness, "q", 0)
	if f := again.facts(t); f.Marker.BatchID == m.BatchID {
		again.commit(t, 10) // AlreadyCommitted: the engine goes on
		h.wantOnce(t, map[int32]int64{0: 30})
		return
	}
	// A record of deliveries does not know: the same batch comes again.
	again.rerun(t, before, m, 10)
	again.commit(t, 10)
	h.wantOnce(t, map[int32]int64{0: 30})
}

// rerun commits the batch of m once more, as a start does that finds its plan.
func (w *writer) rerun(t *testing.T, before, m *marker.Marker, n int) {
	t.Helper()
	claimed := *before
	claimed.Epoch, claimed.Claim = w.permit.Epoch(), true
	w.cur = &claimed
	staged, again := w.next(t, n)
	again.PlanHash = m.PlanHash
	c, err := w.try(staged, again)
	if err != nil {
		t.Fatal(err)
	}
	w.cur = c.Marker
}

func killedUnwritten(t *testing.T, h External) {
	w := start(t, h.Harness, "q", 0)
	w.commit(t, 10)
	before := w.cur
	staged, m := w.next(t, 10)
	died, cancel := context.WithCancel(context.Background())
	w.o.BeforeNext(func() error { cancel(); return errors.New("killed") })
	if _, err := w.o.Sink.Commit(died, w.permit, w.cur, staged, m); err == nil {
		t.Fatal("a commit that was killed says that it is made")
	}
	again := start(t, h.Harness, "q", 0)
	again.rerun(t, before, m, 10)
	h.wantOnce(t, map[int32]int64{0: 20})
}

func olderAfterNewer(t *testing.T, h External) {
	w := start(t, h.Harness, "q", 0)
	first := w.cur
	older, m := w.next(t, 10)
	// Two retries in flight: the later one arrives first.
	c, err := w.try(older, m)
	if err != nil {
		t.Fatal(err)
	}
	w.cur = c.Marker
	w.commit(t, 10)
	again, m2 := (&writer{h: h.Harness, o: w.o, query: "q", permit: w.permit, cur: first}).next(t, 10)
	if _, err := w.o.Sink.Commit(context.Background(), w.permit, first, again, m2); err == nil {
		t.Fatal("an older batch was committed after a newer one")
	}
	wantIDs(t, h.Harness, map[int32]int64{0: 20})
	w.commit(t, 5)
	wantIDs(t, h.Harness, map[int32]int64{0: 25})
}

func reusedIDs(t *testing.T, h External) {
	w := start(t, h.Harness, "q", 0)
	w.commit(t, 10)
	w.commit(t, 10)
	// The checkpoint is gone, and whoever starts asks the store nothing: a new
	// lineage, batch ids from 0, at the position where the old one was.
	reset := &writer{h: h.Harness, o: h.Open(t, "q"), query: "q"}
	f := reset.facts(t)
	m := reset.claimMarker(f)
	m.QueryID, m.Predecessor, m.BatchID, m.PlanHash = "22222222-7c0e-4d0a-9f55-2f2d0c7a1b22", "", -1, ""
	m.Position = position(0, 20)
	p, moved, err := reset.o.Sink.Claim(context.Background(), f, m)
	if moved {
		t.Fatal("the claim met another head")
	}
	if err != nil {
		wantClass(t, err, failure.Checkpoint)
		wantIDs(t, h.Harness, map[int32]int64{0: 20})
		w.commit(t, 5) // nothing was claimed
		wantIDs(t, h.Harness, map[int32]int64{0: 25})
		return
	}
	// It was let in: then what it writes is there, once.
	reset.permit, reset.cur = p, m
	reset.commit(t, 10)
	wantIDs(t, h.Harness, map[int32]int64{0: 30})
}

func restarted(t *testing.T, h External) {
	w := start(t, h.Harness, "q", 0)
	w.commit(t, 10)
	again := &writer{h: h.Harness, o: h.Open(t, "q"), query: "q"}
	f := again.facts(t)
	m := again.claimMarker(f)
	m.QueryID, m.Predecessor, m.PlanHash = "33333333-7c0e-4d0a-9f55-2f2d0c7a1b33", m.QueryID, ""
	m.Position = position(0, 0)
	p, moved, err := again.o.Sink.Claim(context.Background(), f, m)
	if err != nil || moved {
		t.Fatalf("moved %v, %v", moved, err)
	}
	again.permit, again.cur = p, m
	if c := again.commit(t, 10); c.Found || c.Marker.BatchID != 1 {
		t.Fatalf("committed %+v", c)
	}
	// An appending store has the rows twice, one that writes by key once; a store
	// that took them for old ones would have them once and lose the next.
	again.commit(t, 3)
	got := h.IDs(t)
	slices.Sort(got)
	if n := len(slices.Compact(slices.Clone(got))); n != 13 || (len(got) != 23 && len(got) != 13) {
		t.Fatalf("%d rows, %d ids: %v", len(got), n, clip(got))
	}
}

func takenOver(t *testing.T, h External) {
	old := start(t, h.Harness, "q", 0)
	old.commit(t, 10)
	staged, m := old.next(t, 10)
	young := start(t, h.Harness, "q", 0)
	young.commit(t, 10)
	_, err := old.try(staged, m)
	wantClass(t, err, failure.Fenced)
	wantIDs(t, h.Harness, map[int32]int64{0: 20})
	young.commit(t, 10)
	wantIDs(t, h.Harness, map[int32]int64{0: 30})
}

func emptyBatch(t *testing.T, h External) {
	calls := need(t, h.Calls, h.Calls == nil, "count its calls")
	w := start(t, h.Harness, "q", 0)
	before := calls(t)
	w.commit(t, 0)
	w.commit(t, 0)
	if n := calls(t) - before; n != 0 {
		t.Fatalf("%d calls for batches without rows", n)
	}
	if f := w.facts(t); f.Marker.BatchID != 1 {
		t.Fatalf("the marker stands at batch %d", f.Marker.BatchID)
	}
	w.commit(t, 3)
	if n := calls(t) - before; n == 0 {
		t.Fatal("no call for a batch with rows")
	}
	wantIDs(t, h.Harness, map[int32]int64{0: 3})
}

// startWith is start under a policy.
func startWith(t *testing.T, h External, policy sink.OnRejected) *writer {
	t.Helper()
	w := &writer{h: h.Harness, o: h.OpenWith(t, "q", policy), query: "q"}
	w.claim(t)
	return w
}

// nextRefused is next with rows that the store refuses.
func (w *writer) nextRefused(t *testing.T, h External, n int, bad ...int64) (sink.Staged, *marker.Marker) {
	t.Helper()
	w.h.Record = func(ids []int64) arrow.RecordBatch { return h.Refused(ids, bad) }
	defer func() { w.h.Record = h.Record }()
	return w.next(t, n)
}

func refusedFails(t *testing.T, h External) {
	need(t, h.Refused, h.Refused == nil, "refuse a row")
	w := startWith(t, h, sink.RejectFail)
	w.commit(t, 10)
	staged, m := w.nextRefused(t, h, 10, 13)
	_, err := w.try(staged, m)
	wantClass(t, err, failure.SchemaConflict)
	if f := w.facts(t); f.Marker.BatchID != 0 {
		t.Fatalf("the marker stands at batch %d after a refused row", f.Marker.BatchID)
	}
	// The batch comes again, with rows that the store takes.
	again := startWith(t, h, sink.RejectFail)
	again.commit(t, 10)
	if h.Repeats { // what was taken before the refused row may be there twice
		h.wantOnce(t, map[int32]int64{0: 20})
		return
	}
	wantIDs(t, h.Harness, map[int32]int64{0: 20})
}

func (w *writer) prepare(t *testing.T, staged *sink.Staged, m *marker.Marker, decided []sink.Rejection) error {
	t.Helper()
	p, ok := w.o.Sink.(sink.Preparer)
	if !ok {
		t.Fatal("the sink has a policy for refused rows and is no sink.Preparer")
	}
	got, err := p.Prepare(context.Background(), w.permit, w.cur, *staged, m, decided)
	if err != nil {
		return err
	}
	var rows int64
	for _, rec := range got.Records {
		if !rec.Schema().Equal(sink.RejectedSchema) {
			t.Errorf("rejected rows have the shape %s", rec.Schema())
		}
		places := rec.Column(rec.Schema().FieldIndices("batch_row")[0]).(*array.Int64)
		for i := range places.Len() {
			if got.Rejected[rows+int64(i)].Row != places.Value(i) {
				t.Errorf("row %d among the records, %d in the list", places.Value(i), got.Rejected[rows+int64(i)].Row)
			}
		}
		rows += rec.NumRows()
		rec.Release()
	}
	if rows != int64(len(got.Rejected)) {
		t.Errorf("%d rejected rows, %d in the records", len(got.Rejected), rows)
	}
	staged.Rejected = got.Rejected
	return nil
}

func rejectedRows(st sink.Staged) (out []int64) {
	for _, r := range st.Rejected {
		out = append(out, r.Row)
	}
	return out
}

func refusedSetAside(t *testing.T, h External) {
	need(t, h.Refused, h.Refused == nil, "refuse a row")
	w := startWith(t, h, sink.RejectDeadLetter)
	staged, m := w.nextRefused(t, h, 10, 0, 4, 9)
	if err := w.prepare(t, &staged, m, nil); err != nil {
		t.Fatal(err)
	}
	if got := rejectedRows(staged); !slices.Equal(got, []int64{0, 4, 9}) {
		t.Fatalf("rejected rows %v", got)
	}
	c, err := w.try(staged, m)
	if err != nil {
		t.Fatal(err)
	}
	w.cur = c.Marker
	want := []int64{1, 2, 3, 5, 6, 7, 8}
	wantIDs(t, h.Harness, nil, want...)
	// A batch of which nothing is left, and one of which nothing is refused.
	staged, m = w.nextRefused(t, h, 2, 10, 11)
	if err := w.prepare(t, &staged, m, nil); err != nil {
		t.Fatal(err)
	}
	if c, err = w.try(staged, m); err != nil {
		t.Fatal(err)
	}
	w.cur = c.Marker
	staged, m = w.next(t, 3)
	if err := w.prepare(t, &staged, m, nil); err != nil {
		t.Fatal(err)
	}
	if len(staged.Rejected) != 0 {
		t.Fatalf("rejected rows %v", staged.Rejected)
	}
	if _, err := w.try(staged, m); err != nil {
		t.Fatal(err)
	}
	wantIDs(t, h.Harness, nil, append(want, 12, 13, 14)...)
}

func refusedDecided(t *testing.T, h External) {
	need(t, h.Refused, h.Refused == nil, "refuse a row")
	w := startWith(t, h, sink.RejectDeadLetter)
	staged, m := w.nextRefused(t, h, 10, 4)
	if err := w.prepare(t, &staged, m, nil); err != nil {
		t.Fatal(err)
	}
	// The rejected rows are committed beside it, and the process dies. By the time
	// of the rerun the store would take the row.
	decided, before := staged.Rejected, w.cur
	w.o.Sink.(sink.Preparer).Discard()
	again := startWith(t, h, sink.RejectDeadLetter)
	again.cur = before
	staged, m2 := again.next(t, 10)
	m2.PlanHash = m.PlanHash
	if err := again.prepare(t, &staged, m2, decided); err != nil {
		t.Fatal(err)
	}
	if got := rejectedRows(staged); !slices.Equal(got, []int64{4}) {
		t.Fatalf("rejected rows %v", got)
	}
	c, err := again.try(staged, m2)
	if err != nil {
		t.Fatal(err)
	}
	again.cur = c.Marker
	want := []int64{0, 1, 2, 3, 5, 6, 7, 8, 9}
	h.wantSome(t, want)
	// Another row cannot join those that are committed.
	staged, m = again.nextRefused(t, h, 10, 12, 15)
	wantClass(t, again.prepare(t, &staged, m, []sink.Rejection{{Row: 2, Reason: "test"}}), failure.SchemaConflict)
	if !h.Piecewise {
		h.wantSome(t, want)
	}
}

// wantSome checks the ids, each at least once where the store may repeat them.
func (h External) wantSome(t *testing.T, ids []int64) {
	t.Helper()
	got := h.IDs(t)
	slices.Sort(got)
	if h.Repeats {
		got = slices.Compact(got)
	}
	if !slices.Equal(got, ids) {
		t.Fatalf("rows %v, want %v", clip(got), clip(ids))
	}
}

func discarded(t *testing.T, h External) {
	if _, ok := h.OpenWith(t, "q", sink.RejectDeadLetter).Sink.(sink.Preparer); !ok || h.Repeats || h.Piecewise {
		t.Skip("nothing can be taken back from this store")
	}
	w := startWith(t, h, sink.RejectDeadLetter)
	staged, m := w.next(t, 10)
	if err := w.prepare(t, &staged, m, nil); err != nil {
		t.Fatal(err)
	}
	w.o.Sink.(sink.Preparer).Discard()
	wantIDs(t, h.Harness, nil)
	// Commit does the whole again.
	m.Attempt = clock.Nonce()
	if _, err := w.try(staged, m); err != nil {
		t.Fatal(err)
	}
	wantIDs(t, h.Harness, map[int32]int64{0: 10})
}
