package iceberg_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/iceberg"
)

// run is a claimed sink with the next batch's marker at hand.
type run struct {
	s      *iceberg.Sink
	c      *lake.Catalog
	permit sink.Permit
	cur    *marker.Marker
}

func kafkaAt(next int64) batch.Position {
	k := &batch.KafkaPosition{ClusterID: "c", Topics: map[string]batch.TopicPosition{}}
	k.Set("t", "id", 0, batch.PartitionPosition{NextOffset: next, LastOffset: next - 1})
	return batch.Position{Kafka: k}
}

func claimed(t *testing.T, hooks lake.CommitHooks, o iceberg.Options) *run {
	t.Helper()
	o.Partition = daySpec
	return claimedIn(t, lakeStore{dir: t.TempDir()}, hooks, o)
}

func claimedIn(t *testing.T, l lakeStore, hooks lake.CommitHooks, o iceberg.Options) *run {
	t.Helper()
	c := l.catalog(t)
	o.Catalog, o.Table, o.Query, o.Schema = c.WithHooks(hooks), ident, "q", tableSchema
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	s, err := iceberg.New(o)
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.Facts(context.Background(), "q")
	if err != nil {
		t.Fatal(err)
	}
	m := &marker.Marker{Format: 1, Kind: marker.KindStream, QueryName: "q", QueryID: "id", BatchID: -1, Claim: true,
		Attempt: clock.Nonce(), Epoch: marker.Epoch{Number: 1, Nonce: clock.Nonce()}, Position: kafkaAt(0)}
	p, moved, err := s.Claim(context.Background(), f, m)
	if err != nil || moved {
		t.Fatal(moved, err)
	}
	return &run{s: s, c: c, permit: p, cur: m}
}

func (r *run) next(t *testing.T) (sink.Staged, *marker.Marker) {
	t.Helper()
	m := *r.cur
	m.Claim = false
	m.BatchID++
	m.Attempt = clock.Nonce()
	m.Position = kafkaAt(m.BatchID + 1)
	m.PlanHash = marker.Hash([]byte(m.Position.String()))
	st, err := r.s.Stage(context.Background(), m.BatchID, m.Attempt)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Write(record([]int64{m.BatchID})); err != nil {
		t.Fatal(err)
	}
	staged, err := st.Close(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return staged, &m
}

// quick is a clock that does not wait.
type quick struct{ clock.System }

func (quick) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

func TestCommitThatNeverAnswersEndsAsUnknownAndOneThatIsRefusedDoesNot(t *testing.T) {
	for _, c := range []struct {
		answer error
		want   failure.Class
	}{
		{lake.ErrUnknown, failure.CommitUnknown},
		{errors.New("no route to host"), failure.Unreachable},
	} {
		armed := false
		r := claimed(t, lake.CommitHooks{Before: func(context.Context, table.Identifier) error {
			if armed {
				return c.answer
			}
			return nil
		}}, iceberg.Options{Clock: quick{}})
		staged, m := r.next(t)
		armed = true
		_, err := r.s.Commit(context.Background(), r.permit, r.cur, staged, m)
		if !failure.Is(err, c.want) {
			t.Errorf("%v: %v", c.answer, err)
		}
		// The files are still there: the next start can commit them.
		armed = false
		if done, err := r.s.Commit(context.Background(), r.permit, r.cur, staged, m); err != nil || done.Found {
			t.Errorf("after the catalog came back: %+v %v", done, err)
		}
	}
}

func TestCommitUnderWayIsFinishedWhenTheProcessIsToldToStop(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	first := true
	r := claimed(t, lake.CommitHooks{Before: func(context.Context, table.Identifier) error {
		if ctx.Err() == nil && !first {
			stop()
			return errors.New("the catalog is away")
		}
		first = false
		return nil
	}}, iceberg.Options{})
	staged, m := r.next(t)
	if _, err := r.s.Commit(ctx, r.permit, r.cur, staged, m); err != nil {
		t.Fatal(err)
	}
	r.cur = m
	staged, m2 := r.next(t)
	if _, err := r.s.Commit(ctx, r.permit, m, staged, m2); !errors.Is(err, context.Canceled) {
		t.Fatalf("a commit was begun after the stop: %v", err)
	}
}

func TestMaintainKeepsMetadataFlatAndTheMarkerInPlace(t *testing.T) {
	r := claimed(t, lake.CommitHooks{}, iceberg.Options{Retention: lake.Retention{Keep: 8}})
	for range 40 {
		staged, m := r.next(t)
		done, err := r.s.Commit(context.Background(), r.permit, r.cur, staged, m)
		if err != nil {
			t.Fatal(err)
		}
		r.cur = done.Marker
		if err := errors.Join(r.s.Maintain(context.Background()), r.s.Settle(context.Background(), true)); err != nil {
			t.Fatal(err)
		}
		tbl, err := r.c.LoadTable(context.Background(), ident)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(tbl.Metadata().Snapshots()); n > 10 {
			t.Fatalf("%d snapshots", n)
		}
	}
	f, err := r.s.Facts(context.Background(), "q")
	if err != nil || f.Rewound != "" || f.Marker.BatchID != 39 {
		t.Fatalf("%+v %v", f, err)
	}
	rows := 0
	err = r.s.RebuildScan(context.Background(), r.cur, []string{"id"}, "ts", marker.MinTime, counting(&rows))
	if err != nil || rows != 40 {
		t.Fatalf("%d rows, %v", rows, err)
	}
}

func TestRebuildReadsTheMarkersSnapshotFromAnEventTimeOn(t *testing.T) {
	r := claimed(t, lake.CommitHooks{}, iceberg.Options{})
	var third *marker.Marker
	for i := range 6 {
		staged, m := r.next(t)
		done, err := r.s.Commit(context.Background(), r.permit, r.cur, staged, m)
		if err != nil {
			t.Fatal(err)
		}
		r.cur = done.Marker
		if i == 3 {
			third = done.Marker
		}
	}
	second := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC).UnixMicro()
	for _, c := range []struct {
		m    *marker.Marker
		from int64
		want int
	}{{third, marker.MinTime, 4}, {third, second, 2}, {r.cur, second, 3}, {r.cur, -5, 6}} {
		rows := 0
		if err := r.s.RebuildScan(context.Background(), c.m, []string{"ts", "id"}, "ts", c.from, counting(&rows)); err != nil || rows != c.want {
			t.Errorf("batch %d from %d: %d rows, want %d, %v", c.m.BatchID, c.from, rows, c.want, err)
		}
	}
}

// TestABatchThatBeginsElsewhereThanTheTableStandsIsRefused: the ids would
// follow each other, the offsets do not.
func TestABatchThatBeginsElsewhereThanTheTableStandsIsRefused(t *testing.T) {
	r := claimed(t, lake.CommitHooks{}, iceberg.Options{})
	staged, m := r.next(t)
	elsewhere := *r.cur
	elsewhere.Position = kafkaAt(5)
	if _, err := r.s.Commit(t.Context(), r.permit, &elsewhere, staged, m); !failure.Is(err, failure.Checkpoint) {
		t.Fatalf("a batch from offset 5 on a table that stands at 0: %v", err)
	}
	if _, err := r.s.Commit(t.Context(), r.permit, r.cur, staged, m); err != nil {
		t.Fatalf("the batch that follows: %v", err)
	}
}
