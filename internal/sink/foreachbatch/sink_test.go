package foreachbatch

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/sink"
)

// rig is one query's store with a handler that the test changes.
type rig struct {
	t       *testing.T
	store   objstore.Store
	clock   *testClock
	handler Handler
	got     []Delivery
	stop    chan struct{}
}

func newRig(t *testing.T) *rig {
	clk := &testClock{now: noon}
	r := &rig{t: t, store: objstore.NewMemory(clk), clock: clk, stop: make(chan struct{})}
	r.handler = func(_ context.Context, d Delivery) (int64, error) { return d.Rows, nil }
	return r
}

// run is a process: a claimed sink and the marker that stands in it.
type run struct {
	r      *rig
	s      *Sink
	permit sink.Permit
	cur    *marker.Marker
}

// start opens and claims; from is the commit log's newest marker, nil to take
// the record's.
func (r *rig) start(from *marker.Marker) *run {
	r.t.Helper()
	s, err := New(Options{Query: "q", Record: r.store, Clock: r.clock, Stopping: r.stop, Handler: func(ctx context.Context, d Delivery) (int64, error) {
		r.got = append(r.got, d)
		return r.handler(ctx, d)
	}})
	if err != nil {
		r.t.Fatal(err)
	}
	f, err := s.Facts(r.t.Context(), "q")
	if err != nil {
		r.t.Fatal(err)
	}
	m := marker.Marker{Format: marker.Format, Kind: marker.KindStream, QueryName: "q", QueryID: "id-1", BatchID: -1, Position: at(0)}
	if f.Marker != nil {
		m = *f.Marker
	}
	epoch := m.Epoch.Number + 1
	if from != nil {
		m = *from
	}
	m.Claim, m.Attempt, m.Epoch = true, clock.Nonce(), marker.Epoch{Number: epoch, Nonce: clock.Nonce()}
	p, moved, err := s.Claim(r.t.Context(), f, &m)
	if err != nil || moved {
		r.t.Fatalf("claim: %v %v", moved, err)
	}
	return &run{r: r, s: s, permit: p, cur: &m}
}

func at(n int64) batch.Position {
	k := &batch.KafkaPosition{ClusterID: "c", Topics: map[string]batch.TopicPosition{}}
	k.Set("t", "id", 0, batch.PartitionPosition{NextOffset: n, LastOffset: n - 1})
	return batch.Position{Kafka: k}
}

// batch commits the next batch of n rows.
func (w *run) batch(n int) (sink.Committed, error) {
	w.r.t.Helper()
	ctx := w.r.t.Context()
	m := *w.cur
	m.Claim, m.BatchID, m.Attempt = false, w.cur.BatchID+1, clock.Nonce()
	from := w.cur.Position.Kafka.Topics["t"].Partitions[0].NextOffset
	m.Position = at(from + int64(n))
	m.PlanHash = marker.Hash([]byte(m.Position.String()))
	st, err := w.s.Stage(ctx, m.BatchID, m.Attempt)
	if err != nil {
		w.r.t.Fatal(err)
	}
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = from + int64(i)
	}
	if err := st.Write(recordOf(ids)); err != nil {
		w.r.t.Fatal(err)
	}
	staged, err := st.Close(ctx)
	if err != nil {
		w.r.t.Fatal(err)
	}
	out, err := w.s.Commit(ctx, w.permit, w.cur, staged, &m)
	if err == nil {
		w.cur = out.Marker
	}
	return out, err
}

func wantClass(t *testing.T, err error, c failure.Class, text string) {
	t.Helper()
	if !failure.Is(err, c) || !strings.Contains(err.Error(), text) {
		t.Fatalf("want a failure of class %s with %q, got %v", c, text, err)
	}
}

func TestHandlerGetsTheBatchWithItsIds(t *testing.T) {
	r := newRig(t)
	w := r.start(nil)
	for range 2 {
		if _, err := w.batch(3); err != nil {
			t.Fatal(err)
		}
	}
	d := r.got[1]
	if len(r.got) != 2 || d.QueryID != "id-1" || d.QueryName != "q" || d.BatchID != 1 || d.Epoch != w.permit.Epoch() || d.Attempt == "" || d.Try != 1 || d.Redelivered {
		t.Fatalf("%+v", d)
	}
	if got := idsOf(d.Records); d.Rows != 3 || got[0] != 3 || got[2] != 5 || !d.Position.SameOffsets(at(6)) || !d.Start.SameOffsets(at(3)) {
		t.Fatalf("%+v: %v", d, got)
	}
}

func TestEmptyBatchCallsNoHandlerAndMovesTheRecord(t *testing.T) {
	r := newRig(t)
	w := r.start(nil)
	if _, err := w.batch(0); err != nil || len(r.got) != 0 {
		t.Fatalf("%v, %d calls", err, len(r.got))
	}
	f, err := w.s.Facts(t.Context(), "q")
	if err != nil || f.Marker.BatchID != 0 || f.Begun != nil {
		t.Fatalf("%+v %v", f, err)
	}
}

func TestAnErrorLeavesTheBatchBegunAndTheSameRowsComeAgain(t *testing.T) {
	r := newRig(t)
	w := r.start(nil)
	wrong := errors.New("the database says no")
	r.handler = func(context.Context, Delivery) (int64, error) { return 0, wrong }
	_, err := w.batch(3)
	wantClass(t, err, failure.Runtime, "batch 0")
	if !errors.Is(err, wrong) || len(r.got) != 1 {
		t.Fatalf("%v after %d calls", err, len(r.got))
	}
	f, err := w.s.Facts(t.Context(), "q")
	if err != nil || f.Marker.BatchID != -1 || f.Begun == nil || f.Begun.BatchID != 0 || !f.Unreadable {
		t.Fatalf("%+v %v", f, err)
	}
	r.handler = func(_ context.Context, d Delivery) (int64, error) { return d.Rows, nil }
	if _, err := r.start(nil).batch(3); err != nil {
		t.Fatal(err)
	}
	first, second := r.got[0], r.got[1]
	if second.BatchID != first.BatchID || second.QueryID != first.QueryID || !second.Redelivered || second.Attempt == first.Attempt ||
		second.Epoch.Number != first.Epoch.Number+1 || len(idsOf(second.Records)) != 3 {
		t.Fatalf("%+v", second)
	}
}

func TestATransientErrorIsTriedAgainAFewTimes(t *testing.T) {
	r := newRig(t)
	w := r.start(nil)
	r.handler = func(_ context.Context, d Delivery) (int64, error) {
		if d.Try < 3 {
			return 0, Transient(errors.New("busy"))
		}
		return d.Rows, nil
	}
	if _, err := w.batch(3); err != nil || len(r.got) != 3 || r.got[0].Redelivered || !r.got[2].Redelivered || r.got[0].Attempt == r.got[1].Attempt {
		t.Fatalf("%v, %+v", err, r.got)
	}
	if waited := r.clock.Now().Sub(noon); waited <= 0 {
		t.Fatal("tried again without a pause")
	}
	r.got = nil
	r.handler = func(context.Context, Delivery) (int64, error) { return 0, Transient(errors.New("busy")) }
	_, err := w.batch(3)
	wantClass(t, err, failure.Runtime, "busy")
	if len(r.got) != DefaultLimits().Tries {
		t.Fatalf("%d calls", len(r.got))
	}
}

func TestAStopEndsTheWaitForAnotherTry(t *testing.T) {
	r := newRig(t)
	w := r.start(nil)
	w.s.opts.Clock = clock.System{} // a pause that only the stop can end in time
	w.s.opts.Limits.BackoffMin, w.s.opts.Limits.BackoffMax = 1<<40, 1<<40
	r.handler = func(context.Context, Delivery) (int64, error) {
		close(r.stop)
		return 0, Transient(errors.New("busy"))
	}
	if _, err := w.batch(3); !errors.Is(err, context.Canceled) || len(r.got) != 1 {
		t.Fatalf("%v after %d calls", err, len(r.got))
	}
}

func TestARowCountThatDoesNotMatchFailsTheBatch(t *testing.T) {
	for _, rows := range []int64{0, 2, 4} {
		r := newRig(t)
		w := r.start(nil)
		r.handler = func(context.Context, Delivery) (int64, error) { return rows, nil }
		_, err := w.batch(3)
		wantClass(t, err, failure.Mismatch, "the batch has 3")
		if f, _ := w.s.Facts(t.Context(), "q"); f.Marker.BatchID != -1 {
			t.Fatalf("%+v", f.Marker)
		}
	}
}

func TestAPanicIsAnErrorOfTheBatch(t *testing.T) {
	r := newRig(t)
	w := r.start(nil)
	r.handler = func(context.Context, Delivery) (int64, error) { panic("index out of range") }
	_, err := w.batch(3)
	wantClass(t, err, failure.Runtime, "index out of range")
}

func TestADeliveryThatIsDoneIsNotHandedOverAgainAfterACrashBeforeTheCommitLog(t *testing.T) {
	r := newRig(t)
	w := r.start(nil)
	before := *w.cur
	if _, err := w.batch(3); err != nil {
		t.Fatal(err)
	}
	// The commit log does not have batch 0: the next start claims what it has.
	again := r.start(&before)
	f, err := again.s.Facts(t.Context(), "q")
	if err != nil || f.Begun == nil || f.Begun.BatchID != 0 {
		t.Fatalf("the claim has forgotten batch 0: %+v, %v", f, err)
	}
	got, err := again.batch(3)
	if err != nil || !got.Found || got.Marker.BatchID != 0 || got.Marker.Epoch != again.permit.Epoch() || len(r.got) != 1 {
		t.Fatalf("%+v %v, %d calls", got, err, len(r.got))
	}
	if _, err := again.batch(2); err != nil || len(r.got) != 2 {
		t.Fatalf("%v, %d calls", err, len(r.got))
	}
}

func TestAWriterThatStoodStillDoesNotFillAHoleInTheRecord(t *testing.T) {
	r := newRig(t)
	old := r.start(nil)
	young := r.start(nil)
	for range 2 * recordKeep {
		if _, err := young.batch(1); err != nil {
			t.Fatal(err)
		}
	}
	// Its next number was used and removed long ago.
	if _, err := old.s.record.append(t.Context(), 1, newEntry(kindDone, old.cur)); !errors.Is(err, errMoved) {
		t.Fatalf("append below the head: %v", err)
	}
	if _, err := old.batch(1); !failure.Is(err, failure.Fenced) {
		t.Fatal(err)
	}
	list, err := r.store.List(t.Context(), "")
	if err != nil || len(list) > recordKeep+2 {
		t.Fatalf("%d entries are kept, %v", len(list), err)
	}
	if _, err := young.batch(1); err != nil {
		t.Fatal(err)
	}
}

func TestABatchThatIsTooLargeForMemoryIsRefusedWithTheWayOut(t *testing.T) {
	r := newRig(t)
	w := r.start(nil)
	w.s.opts.Limits.BatchBytes = 64
	st, err := w.s.Stage(t.Context(), 0, "a")
	if err != nil {
		t.Fatal(err)
	}
	wantClass(t, st.Write(recordOf(make([]int64, 100))), failure.Config, "MaxBatchBytes")
}

func TestARecordOfAnotherQueryIsRefused(t *testing.T) {
	r := newRig(t)
	r.start(nil)
	s, err := New(Options{Query: "other", Record: r.store, Clock: r.clock, Handler: r.handler})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Facts(t.Context(), "other")
	wantClass(t, err, failure.Config, "belongs to query q")
}

func TestANoteAboutABatchComesBackWithItsRedeliveryOnly(t *testing.T) {
	r := newRig(t)
	w := r.start(nil)
	w.s.opts.Note = []byte(`{"cut":3}`)
	r.handler = func(ctx context.Context, d Delivery) (int64, error) {
		if string(d.Note) != `{"cut":3}` {
			t.Errorf("the first note is %s", d.Note)
		}
		if err := d.Keep(ctx, []byte(`{"cut":1}`)); err != nil {
			t.Error(err)
		}
		return 0, errors.New("no")
	}
	if _, err := w.batch(3); err == nil {
		t.Fatal("no error")
	}
	// A start claims in between, with other settings.
	again := r.start(nil)
	again.s.opts.Note = []byte(`{"cut":9}`)
	var got []string
	r.handler = func(_ context.Context, d Delivery) (int64, error) {
		got = append(got, string(d.Note))
		return d.Rows, nil
	}
	for range 2 {
		if _, err := again.batch(3); err != nil {
			t.Fatal(err)
		}
	}
	if len(got) != 2 || got[0] != `{"cut":1}` || got[1] != `{"cut":9}` {
		t.Fatalf("notes %v", got)
	}
}

func TestANoteOfARunThatWasOvertakenIsRefused(t *testing.T) {
	r := newRig(t)
	w := r.start(nil)
	r.handler = func(ctx context.Context, d Delivery) (int64, error) {
		r.start(nil)
		return 0, d.Keep(ctx, []byte(`{}`))
	}
	_, err := w.batch(3)
	wantClass(t, err, failure.Fenced, "another run")
}
