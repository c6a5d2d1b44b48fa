package weir

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/twmb/franz-go/pkg/kgo"
)

func kafkaText(v string) *kgo.Record { return &kgo.Record{Topic: "t", Value: []byte(v)} }

// doubled has every row of a record twice.
func doubled(rec arrow.RecordBatch) arrow.RecordBatch {
	cols := make([]arrow.Array, rec.NumCols())
	for i := range cols {
		c, err := array.Concatenate([]arrow.Array{rec.Column(i), rec.Column(i)}, memory.DefaultAllocator)
		if err != nil {
			panic(err)
		}
		cols[i] = c
	}
	return array.NewRecordBatch(rec.Schema(), cols, 2*rec.NumRows())
}

// TestASlowAndAFailingSinkNeitherHoldUpNorDoubleAnother runs three queries over
// one topic: one writer per sink, each with its own commit position.
func TestASlowAndAFailingSinkNeitherHoldUpNorDoubleAnother(t *testing.T) {
	k := newKafka(t, 2)
	k.send(12)
	fast, slow, failing := newKeyed(t), newKeyed(t), newKeyed(t)
	release := make(chan struct{})
	start := func(name string, h Handler) *Running {
		r, err := k.query(name, 3).ForeachBatch(h).Start(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	slowRun := start("slow", func(ctx context.Context, b Batch) (int64, error) {
		n, err := slow.write(ctx, b)
		<-release // the rows are there, the acknowledgement is not
		return n, err
	})
	failingRun := start("failing", func(ctx context.Context, b Batch) (int64, error) {
		n, err := failing.write(ctx, b)
		return n, errors.Join(err, errors.New("the answer was lost"))
	})
	fastRun := start("fast", fast.write)
	// The fast one ends while the slow one holds its first batch and the failing
	// one has stopped on its own.
	if err := fastRun.Wait(); err != nil {
		t.Fatal(err)
	}
	wantCode(t, failingRun.Wait(), 1, "the answer was lost")
	fast.exactly(12)
	select {
	case <-slowRun.Done():
		t.Fatal("the slow sink has ended before it was let go")
	default:
	}
	if slow.called() > 1 || failing.called() != 1 {
		t.Fatalf("%d calls of the slow sink, %d of the failing one", slow.called(), failing.called())
	}
	close(release)
	if err := slowRun.Wait(); err != nil {
		t.Fatal(err)
	}
	slow.exactly(12)
	// The failing one is mended and goes on where it was, alone.
	k.send(3)
	if err := start("failing", failing.write).Wait(); err != nil {
		t.Fatal(err)
	}
	failing.exactly(15)
	if fast.calls != 4 || slow.calls != 4 || failing.calls != 6 {
		t.Fatalf("calls: %d %d %d", fast.calls, slow.calls, failing.calls)
	}
}

// appendTo is a handler over a Delta table; after is what it ends with once its
// rows are there.
func appendTo(d *DeltaTable, w DeltaWrite, after func(Batch) error) Handler {
	return func(ctx context.Context, b Batch) (int64, error) {
		n, err := d.Append(ctx, b, w)
		if err == nil && after != nil {
			err = after(b)
		}
		return n, err
	}
}

func openDelta(t *testing.T, path string) *DeltaTable {
	t.Helper()
	d, err := OpenDelta(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (t *DeltaTable) mustRows(tb testing.TB) int64 {
	tb.Helper()
	n, err := t.Rows(context.Background())
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

func TestABrokenAppendDoublesARedeliveredBatchAndAppendDoesNot(t *testing.T) {
	k := newKafka(t, 1)
	k.send(3)
	broken, good := openDelta(t, k.path("broken")), openDelta(t, k.path("good"))
	lost := func(b Batch) error {
		if !b.Redelivered {
			return Transient(errors.New("the answer was lost"))
		}
		return nil
	}
	mustRun(t, k.query("broken", 3).ForeachBatch(func(ctx context.Context, b Batch) (int64, error) {
		a, err := broken.AppendRecords(ctx, b.Records, Txn{})
		return a.Rows, errors.Join(err, lost(b))
	}))
	mustRun(t, k.query("good", 3).ForeachBatch(appendTo(good, DeltaWrite{}, lost)))
	if b, g := broken.mustRows(t), good.mustRows(t); b != 6 || g != 3 {
		t.Fatalf("the broken append has %d rows, want 6; Append has %d, want 3", b, g)
	}
}

func TestAnAppIDOfAnotherLineageIsRefusedOrTakenOverBeforeARowIsDropped(t *testing.T) {
	k := newKafka(t, 1)
	k.send(9)
	d := openDelta(t, k.path("table"))
	query := func(w DeltaWrite) *Query { return k.query("q", 1).ForeachBatch(appendTo(d, w, nil)) }
	mustRun(t, query(DeltaWrite{AppID: "billing"}))
	if n := d.mustRows(t); n != 9 {
		t.Fatalf("%d rows", n)
	}
	// Checkpoint and record are gone: a new lineage begins at batch 0, as with
	// any engine. It reads only what is new.
	for _, dir := range []string{"q", "q.deliveries"} {
		if err := os.RemoveAll(k.path("checkpoints", dir)); err != nil {
			t.Fatal(err)
		}
	}
	k.send(1)
	reset := func(w DeltaWrite) *Query {
		q := query(w)
		q.source = Kafka{BootstrapServers: k.servers, Topics: []string{"t"}, StartingOffsets: `{"t":{"0":9}}`}
		return q
	}
	err := reset(DeltaWrite{AppID: "billing"}).Run(t.Context())
	wantCode(t, err, 7, "would be dropped in silence")
	if n := d.mustRows(t); n != 9 {
		t.Fatalf("%d rows", n)
	}
	mustRun(t, reset(DeltaWrite{AppID: "billing", RebindAppID: true}))
	if n := d.mustRows(t); n != 10 {
		t.Fatalf("%d rows, the tenth was dropped", n)
	}
}

func TestASecondWriteUnderOneAppIDInOneCallIsRefused(t *testing.T) {
	k := newKafka(t, 1)
	k.send(3)
	d := openDelta(t, k.path("table"))
	twice := func(second DeltaWrite) Handler {
		return func(ctx context.Context, b Batch) (int64, error) {
			if _, err := d.Append(ctx, b, DeltaWrite{}); err != nil {
				return 0, err
			}
			return d.Append(ctx, b, second)
		}
	}
	wantCode(t, k.query("q", 3).ForeachBatch(twice(DeltaWrite{})).Run(t.Context()), 2, "dropped as a repetition")
	mustRun(t, k.query("q", 3).ForeachBatch(twice(DeltaWrite{AppID: "second"})))
	if n := d.mustRows(t); n != 6 {
		t.Fatalf("%d rows", n)
	}
}

func TestMergeConvergesHoweverOftenABatchComes(t *testing.T) {
	k := newKafka(t, 1)
	k.send(4)
	k.sent = 2
	k.send(4) // ids 2 and 3 again, 4 and 5 anew
	d := openDelta(t, k.path("table"))
	n := 0
	mustRun(t, k.query("q", 3).ForeachBatch(func(ctx context.Context, b Batch) (int64, error) {
		rows, err := d.Merge(ctx, b, DeltaMerge{Keys: []string{"id"}, OrderBy: []string{"kafka_offset"}})
		if n++; n%2 == 1 && err == nil {
			err = Transient(errors.New("the answer was lost"))
		}
		return rows, err
	}))
	if got := d.mustRows(t); got != 6 {
		t.Fatalf("%d rows of 6 keys", got)
	}
}

func TestABatchThatIsNoBatchIsRefused(t *testing.T) {
	d := openDelta(t, t.TempDir())
	if _, err := d.Append(t.Context(), Batch{}, DeltaWrite{}); ExitCode(err) != 2 || !strings.Contains(err.Error(), "no query id") {
		t.Fatal(err)
	}
}

func TestUpsertIsRefusedWhereItCannotBeKept(t *testing.T) {
	parse := Parse{Columns: []Column{{Name: "id", Path: "$.id", Type: "long", Required: true}}}
	query := func() *Query {
		return NewQuery("orders").From(Kafka{BootstrapServers: "127.0.0.1:1", Topics: []string{"orders"}}).Checkpoint(t.TempDir()).
			To(Delta{Path: t.TempDir(), Upsert: &Upsert{Keys: []string{"id"}}})
	}
	twice := parse
	twice.DropDuplicatesWithinWatermark = []string{"id"}
	for want, q := range map[string]*Query{
		"Upsert without Parse":                      query(),
		"Upsert with DropDuplicatesWithinWatermark": query().Parse(twice),
		"Upsert with Transform":                     query().Parse(parse).Transform(Transform{}),
		`keys: there is no column "id"`:             query().Parse(Parse{Columns: []Column{{Name: "no", Path: "$.id", Type: "long", Required: true}}}),
	} {
		err := q.Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) || ExitCode(err) != 2 {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}
