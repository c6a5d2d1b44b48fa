package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/kafkatest"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
)

// writer drives one sink: claim, then batches.
type writer struct {
	s      *Sink
	permit sink.Permit
	cur    *marker.Marker
}

func at(next int64) batch.Position {
	k := &batch.KafkaPosition{ClusterID: "c", Topics: map[string]batch.TopicPosition{}}
	k.Set("events", "t1", 0, batch.PartitionPosition{NextOffset: next, LastOffset: next - 1})
	return batch.Position{Kafka: k}
}

func claim(t *testing.T, s *Sink) *writer {
	t.Helper()
	ctx := context.Background()
	f, err := s.Facts(ctx, s.opts.Query)
	if err != nil {
		t.Fatal(err)
	}
	m := &marker.Marker{Format: marker.Format, Kind: marker.KindStream, QueryName: s.opts.Query, QueryID: "lineage", BatchID: -1, Position: at(0)}
	if f.Marker != nil {
		c := *f.Marker
		m = &c
	}
	m.Claim, m.Attempt = true, clock.Nonce()
	m.Epoch = marker.Epoch{Number: m.Epoch.Number + 1, Nonce: clock.Nonce()}
	p, moved, err := s.Claim(ctx, f, m)
	if err != nil || moved {
		t.Fatalf("moved %v, %v", moved, err)
	}
	return &writer{s: s, permit: p, cur: m}
}

func (w *writer) stage(t *testing.T, rec arrow.RecordBatch) (sink.Staged, *marker.Marker) {
	t.Helper()
	m := *w.cur
	m.Claim, m.Attempt, m.Epoch, m.PlanHash = false, clock.Nonce(), w.permit.Epoch(), "plan"
	m.BatchID++
	m.Position = at(w.cur.Position.Kafka.Topics["events"].Partitions[0].NextOffset + rec.NumRows())
	st, err := w.s.Stage(context.Background(), m.BatchID, m.Attempt)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Write(rec); err != nil {
		t.Fatal(err)
	}
	staged, err := st.Close(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return staged, &m
}

func (w *writer) put(t *testing.T, rec arrow.RecordBatch) error {
	t.Helper()
	staged, m := w.stage(t, rec)
	c, err := w.s.Commit(context.Background(), w.permit, w.cur, staged, m)
	if err == nil {
		w.cur = c.Marker
	}
	return err
}

func numbers(from, to int64) (out []int64) {
	for i := from; i < to; i++ {
		out = append(out, i)
	}
	return out
}

func TestABrokerThatIsKilledAroundACommitLosesAndDoublesNothing(t *testing.T) {
	b := kafkatest.Start(t)
	c := cluster{b.Bootstrap(), "rows"}
	w := claim(t, c.open(t, "q", nil))
	errLost := errors.New("the connection was lost")
	kill := func() error {
		b.Kill9()
		b.Restart()
		return errLost
	}
	if err := w.put(t, records(numbers(0, 100), nil)); err != nil {
		t.Fatal(err)
	}
	w.s.hooks.before = kill // rows and marker are in the open transaction
	if err := w.put(t, records(numbers(100, 200), nil)); err != nil {
		t.Fatal(err)
	}
	w.s.hooks.after = kill // the broker has committed, and dies before anybody hears of it
	if err := w.put(t, records(numbers(200, 300), nil)); err != nil {
		t.Fatal(err)
	}
	// Rows are in, nothing is committed, and the broker dies.
	staged, m := w.stage(t, records(numbers(300, 400), nil))
	if _, err := w.s.Prepare(context.Background(), w.permit, w.cur, staged, m, nil); err != nil {
		t.Fatal(err)
	}
	_ = kill()
	out, err := w.s.Commit(context.Background(), w.permit, w.cur, staged, m)
	if err != nil {
		t.Fatal(err)
	}
	w.cur = out.Marker
	got := c.ids(t)
	slices.Sort(got)
	if !slices.Equal(got, numbers(0, 400)) {
		t.Fatalf("%d records: %v", len(got), got[:min(len(got), 30)])
	}
	if again := claim(t, c.open(t, "q", nil)); again.cur.BatchID != 3 {
		t.Fatalf("the marker stands at batch %d", again.cur.BatchID)
	}
}

func TestABrokerThatStaysAwayAfterACommitWasSentLeavesTheOutcomeUnknown(t *testing.T) {
	k, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	c := cluster{k.ListenAddrs()[0], "rows"}
	w := claim(t, c.open(t, "q", func(o *Options) { o.Limits.CommitDeadline = 2 * time.Second; o.Limits.Tries = 1 }))
	w.s.hooks.after = func() error { k.Close(); return errors.New("lost") }
	if err := w.put(t, records(numbers(0, 10), nil)); !failure.Is(err, failure.CommitUnknown) {
		t.Fatal(err)
	}
	if err := w.put(t, records(numbers(0, 10), nil)); !failure.Is(err, failure.Unreachable) {
		t.Fatal(err)
	}
}

func TestAStoppedPredecessorsTransactionIsAbortedByTheClaim(t *testing.T) {
	k, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	c := cluster{k.ListenAddrs()[0], "rows"}
	old := claim(t, c.open(t, "q", nil))
	staged, m := old.stage(t, records(numbers(0, 10), nil))
	if _, err := old.s.Prepare(context.Background(), old.permit, old.cur, staged, m, nil); err != nil {
		t.Fatal(err)
	}
	young := claim(t, c.open(t, "q", nil))
	if err := young.put(t, records(numbers(0, 10), nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := old.s.Commit(context.Background(), old.permit, old.cur, staged, m); !failure.Is(err, failure.Fenced) {
		t.Fatal(err)
	}
	// The old one has taken the id back to find that out. The young one goes on.
	if err := young.put(t, records(numbers(10, 20), nil)); err != nil {
		t.Fatal(err)
	}
	got := c.ids(t)
	slices.Sort(got)
	if !slices.Equal(got, numbers(0, 20)) {
		t.Fatal(got)
	}
}

func TestRowsBecomeRecordsAsTheMappingSays(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64},
		{Name: "who", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "raw", Type: arrow.BinaryTypes.Binary, Nullable: true},
		{Name: "at", Type: batch.Timestamp},
		{Name: "headers", Type: batch.KafkaSchema.Field(7).Type, Nullable: true},
	}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for _, row := range []string{
		`{"id": 7, "who": "ü", "raw": "AP8=", "at": "2026-01-02T03:04:05Z", "headers": [{"key": "a", "value": "eA=="}, {"key": "b", "value": null}]}`,
		`{"id": 8, "who": null, "raw": null, "at": "2026-01-02T03:04:05Z", "headers": null}`,
	} {
		if err := b.UnmarshalJSON([]byte(row)); err != nil {
			t.Fatal(err)
		}
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	show := func(o Options, i int) string {
		o.Topic, o.Arrow = "t", schema
		m, err := newMapping(o)
		if err != nil {
			t.Fatal(err)
		}
		r := m.record(rec, i)
		return fmt.Sprintf("%q %q %s", r.Key, r.Value, headersOf(r))
	}
	for _, c := range []struct {
		o    Options
		row  int
		want string
	}{
		{Options{}, 0, `"" "{\"id\":7,\"who\":\"ü\",\"raw\":\"AP8=\",\"at\":\"2026-01-02T03:04:05.000000Z\",\"headers\":[{\"key\":\"a\",\"value\":\"eA==\"},{\"key\":\"b\",\"value\":null}]}" `},
		{Options{Key: "id", Value: "raw", Headers: []string{"who", "headers", "at"}}, 0, `"7" "\x00\xff" who=ü a=x b=nil at=2026-01-02T03:04:05.000000Z `},
		{Options{Key: "who", Value: "raw", Headers: []string{"who", "headers"}}, 1, `"" "" `},
	} {
		if got := show(c.o, c.row); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
	for _, o := range []Options{{Key: "no"}, {Value: "no"}, {Headers: []string{"no"}}} {
		o.Topic, o.Query, o.Arrow, o.Clock = "t", "q", schema, clock.System{}
		if _, err := New(o); !failure.Is(err, failure.Config) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func headersOf(r *kgo.Record) (out string) {
	for _, h := range r.Headers {
		v := "nil"
		if h.Value != nil {
			v = string(h.Value)
		}
		out += h.Key + "=" + v + " "
	}
	return out
}
