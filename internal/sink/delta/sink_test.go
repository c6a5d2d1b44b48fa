package delta_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/google/uuid"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/column"
	"github.com/weirlake/weir/internal/delta"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/sink"
	sinkdelta "github.com/weirlake/weir/internal/sink/delta"
)

// run is one process start of a query.
type run struct {
	t      testing.TB
	s      *sinkdelta.Sink
	permit sink.Permit
	cur    *marker.Marker
}

func position(next int64) batch.Position {
	k := &batch.KafkaPosition{ClusterID: "cluster-1"}
	k.Set("events", "topic-id-1", 0, batch.PartitionPosition{NextOffset: next, LastOffset: next - 1, LeaderEpoch: 1, Rows: next})
	return batch.Position{Kafka: k}
}

// begin opens the sink and claims it. change may alter the claim.
func begin(t testing.TB, o sinkdelta.Options, change func(*marker.Marker)) (*run, error) {
	t.Helper()
	s, err := sinkdelta.New(o)
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.Facts(context.Background(), o.Query)
	if err != nil {
		return nil, err
	}
	m := &marker.Marker{Format: marker.Format, Kind: marker.KindStream, QueryName: o.Query, QueryID: uuid.NewString(), BatchID: -1,
		Position: position(0), Watermark: marker.Watermark{Micros: marker.MinTime}, Instance: "test"}
	if f.Marker != nil {
		c := *f.Marker
		m = &c
	}
	m.Claim, m.Attempt, m.Epoch = true, clock.Nonce(), marker.Epoch{Number: m.Epoch.Number + 1, Nonce: clock.Nonce()}
	if change != nil {
		change(m)
	}
	p, moved, err := s.Claim(context.Background(), f, m)
	if err != nil || moved {
		return nil, errors.Join(err, map[bool]error{true: errors.New("moved")}[moved])
	}
	return &run{t: t, s: s, permit: p, cur: m}, nil
}

func mustBegin(t testing.TB, o sinkdelta.Options) *run {
	t.Helper()
	r, err := begin(t, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *run) try(rec arrow.RecordBatch) error {
	r.t.Helper()
	m := *r.cur
	m.Claim, m.BatchID, m.Epoch, m.Attempt = false, r.cur.BatchID+1, r.permit.Epoch(), clock.Nonce()
	n := r.cur.Position.Kafka.Topics["events"].Partitions[0].NextOffset
	m.Position = position(n + rec.NumRows())
	m.PlanHash = marker.Hash(fmt.Appendf(nil, "%d", m.BatchID))
	st, err := r.s.Stage(context.Background(), m.BatchID, m.Attempt)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := st.Write(rec); err != nil {
		r.t.Fatal(err)
	}
	staged, err := st.Close(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	c, err := r.s.Commit(context.Background(), r.permit, r.cur, staged, &m)
	if err == nil {
		r.cur = c.Marker
	}
	return err
}

// batch commits n rows.
func (r *run) batch(n int64) {
	r.t.Helper()
	from := r.cur.Position.Kafka.Topics["events"].Partitions[0].NextOffset
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = from + int64(i)
	}
	if err := r.try(record(ids)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *run) facts() (sink.Facts, error) { return r.s.Facts(context.Background(), r.cur.QueryName) }

func newFolder(t testing.TB) folder { return folder{dir: filepath.Join(t.TempDir(), "events")} }

func python(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts Python; skipped under -short")
	}
	if p := os.Getenv("WEIR_PYTHON"); p != "" {
		return p
	}
	if p, err := filepath.Abs("../../../.cache/venv/bin/python"); err == nil {
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	t.Skip("no Python with deltalake: set WEIR_PYTHON")
	return ""
}

func foreign(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), python(t), append([]string{"testdata/foreign.py"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

func TestMarkersStandInTheLogAsDocumented(t *testing.T) {
	f := newFolder(t)
	r := mustBegin(t, f.options(t, "edits", f.storage(t)))
	r.batch(10)
	r.batch(5)
	_, s := f.head(t)
	id := "weir/" + r.cur.QueryID
	for app, want := range map[string]int64{id: 1, id + "/epoch": 1, id + "/pos/topic-id-1/0": 15, id + "/watermark": marker.MinTime,
		id + "/name/edits": 1, id + "/commit": s.Version} {
		if x, ok := s.Txn(app); !ok || x.Version != want {
			t.Errorf("%s: %+v, want %d", app, x, want)
		}
	}
	if p := s.Protocol; p.MinReaderVersion != 1 || p.MinWriterVersion != 2 {
		t.Errorf("protocol %+v", p)
	}
}

func TestRestoreByAnotherEngineIsARewoundSinkAndItsUndoIsNot(t *testing.T) {
	f := newFolder(t)
	r := mustBegin(t, f.options(t, "edits", f.storage(t)))
	r.batch(10)
	r.batch(10)
	foreign(t, "restore", f.dir, "1")
	if got, err := r.facts(); err != nil || !strings.Contains(got.Rewound, "restored") {
		t.Fatalf("%+v %v", got, err)
	}
	if err := r.try(record([]int64{99})); !failure.Is(err, failure.Checkpoint) {
		t.Fatalf("%v", err)
	}
	// Back to the version with both batches: nothing is missing.
	f.restore(t, 2, "2")
	if got, err := r.facts(); err != nil || got.Rewound != "" {
		t.Fatalf("%+v %v", got, err)
	}
	r.batch(10)
	f.restore(t, 3, 3) // the restored, broken state
	if got, err := r.facts(); err != nil || got.Rewound == "" {
		t.Fatalf("%+v %v", got, err)
	}
}

func TestOtherEnginesMaintenanceKeepsTheMemory(t *testing.T) {
	f := newFolder(t)
	r := mustBegin(t, f.options(t, "edits", f.storage(t)))
	for range 3 {
		r.batch(10)
	}
	foreign(t, "checkpoint", f.dir)
	foreign(t, "vacuum", f.dir)
	f.expireAll(t) // and the commits are gone as well
	r.batch(10)
	again := mustBegin(t, f.options(t, "edits", f.storage(t)))
	if again.cur.BatchID != 3 || again.cur.QueryID != r.cur.QueryID {
		t.Fatalf("%+v", again.cur)
	}
	again.batch(10)
	if n := foreign(t, "count", f.dir); n != "50" {
		t.Fatalf("delta-rs counts %s rows", n)
	}
}

func TestLostSidecarsAreReadFromTheCommitAndElseRefused(t *testing.T) {
	f := newFolder(t)
	r := mustBegin(t, f.options(t, "edits", f.storage(t)))
	r.batch(10)
	if err := os.RemoveAll(filepath.Join(f.dir, "_weir")); err != nil {
		t.Fatal(err)
	}
	fresh, err := sinkdelta.New(f.options(t, "edits", f.storage(t)))
	if err != nil {
		t.Fatal(err)
	}
	got, err := fresh.Facts(context.Background(), "edits")
	if err != nil || got.Marker == nil || got.Marker.Attempt != r.cur.Attempt || got.Marker.BaseSequence != r.cur.BaseSequence {
		t.Fatalf("%+v %v", got.Marker, err)
	}
	f.expireAll(t)
	fresh, err = sinkdelta.New(f.options(t, "edits", f.storage(t)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fresh.Facts(context.Background(), "edits"); !failure.Is(err, failure.Checkpoint) || !strings.Contains(err.Error(), "_weir") {
		t.Fatalf("%v", err)
	}
}

func TestTxnActionsDecideOverTheWholeMarker(t *testing.T) {
	f := newFolder(t)
	r := mustBegin(t, f.options(t, "edits", f.storage(t)))
	r.batch(10)
	f.commit(t, "WRITE", nil, []delta.Action{{Txn: &delta.Txn{AppID: "weir/" + r.cur.QueryID + "/pos/topic-id-1/0", Version: 3}}})
	if _, err := r.facts(); !failure.Is(err, failure.Checkpoint) || !strings.Contains(err.Error(), "contradicts") {
		t.Fatalf("%v", err)
	}
}

func TestOldSidecarsAreRemoved(t *testing.T) {
	f := newFolder(t)
	r := mustBegin(t, f.options(t, "edits", f.storage(t)))
	for range 40 {
		r.batch(1)
	}
	l, err := filepath.Glob(filepath.Join(f.dir, "_weir", r.cur.QueryID, "*.json"))
	if err != nil || len(l) > 12 {
		t.Fatalf("%d markers are left, %v", len(l), err)
	}
	mustBegin(t, f.options(t, "edits", f.storage(t))).batch(1)
}

func TestUsersAppIDOfAnotherLineageIsRefusedOrRebound(t *testing.T) {
	f := newFolder(t)
	ten := []arrow.RecordBatch{record([]int64{1, 2, 3})}
	tbl := f.table(t)
	for b := range int64(3) {
		if _, err := delta.Append(context.Background(), tbl, ten, delta.AppendOptions{TxnAppID: "orders", TxnVersion: b, Lineage: "old",
			Create: &delta.CreateOptions{PartitionColumns: []string{"day"}}}); err != nil {
			t.Fatal(err)
		}
	}
	o := f.options(t, "edits", f.storage(t))
	o.AppID = "orders"
	if _, err := begin(t, o, nil); !failure.Is(err, failure.Checkpoint) || !strings.Contains(err.Error(), "onReusedAppID") {
		t.Fatalf("%v", err)
	}
	o.OnReusedAppID = delta.RebindReused
	r := mustBegin(t, o)
	r.batch(1)
	_, s := f.head(t)
	if x, _ := s.Txn("orders"); x.Version != 0 || len(f.ids(t)) != 10 {
		t.Fatalf("txn %+v, %d rows", x, len(f.ids(t)))
	}
	if _, err := delta.Append(context.Background(), tbl, ten, delta.AppendOptions{TxnAppID: "orders", TxnVersion: 3, Lineage: "old"}); !failure.Is(err, failure.Fenced) {
		t.Fatalf("the old lineage: %v", err)
	}
	// An explicit restart names its predecessor and keeps the app id.
	o.OnReusedAppID = delta.FailOnReused
	again, err := begin(t, o, func(m *marker.Marker) { m.Predecessor, m.QueryID = m.QueryID, uuid.NewString() })
	if err != nil {
		t.Fatal(err)
	}
	again.batch(1)
	_, s = f.head(t)
	if x, _ := s.Txn("orders"); x.Version != 1 {
		t.Fatalf("txn %+v", x)
	}
}

func TestQueryIDOfAnotherQueryIsRefused(t *testing.T) {
	f := newFolder(t)
	r := mustBegin(t, f.options(t, "first", f.storage(t)))
	_, err := begin(t, f.options(t, "second", f.storage(t)), func(m *marker.Marker) { m.QueryID = r.cur.QueryID })
	if !failure.Is(err, failure.Config) || !strings.Contains(err.Error(), "first") {
		t.Fatalf("%v", err)
	}
}

func TestTableThatForgotTheQueryIsNotFresh(t *testing.T) {
	f := newFolder(t)
	o := f.options(t, "edits", f.storage(t))
	o.Properties = map[string]string{delta.PropTxnRetention: "interval 30 days"}
	r := mustBegin(t, o)
	r.batch(10)
	// A year later another engine has written a checkpoint without our txns.
	tbl := delta.Open(f.storage(t), delta.Options{Clock: later{}})
	s, err := tbl.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := tbl.Checkpoint(context.Background(), s); err != nil {
		t.Fatal(err)
	}
	l, err := filepath.Glob(filepath.Join(f.dir, "_delta_log", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range l {
		if err := os.Remove(p); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := begin(t, o, nil); !failure.Is(err, failure.Checkpoint) || !strings.Contains(err.Error(), "forgotten") {
		t.Fatalf("%v", err)
	}
}

func TestAQueryAddsItsNewColumnsToItsOwnTableAndOnlyWhereToldToAnothers(t *testing.T) {
	f := newFolder(t)
	mustBegin(t, f.options(t, "edits", f.storage(t))).batch(4)
	wider := arrow.NewSchema(append(append([]arrow.Field{}, arrowSchema.Fields()...), arrow.Field{Name: "note", Type: arrow.BinaryTypes.String, Nullable: true}), nil)
	o := f.options(t, "others", f.storage(t))
	o.Arrow = wider
	if _, err := begin(t, o, nil); !failure.Is(err, failure.SchemaConflict) {
		t.Fatalf("a query that has not written to the table: %v", err)
	}
	o = f.options(t, "edits", f.storage(t))
	o.Arrow = wider
	mustBegin(t, o).batch(4) // rows without the new column
	_, s := f.head(t)
	if s.Schema.NumFields() != 4 || len(f.ids(t)) != 8 {
		t.Fatalf("%v", s.Schema)
	}
}

func TestADeltaColumnThatIsNotDeclaredAnyMoreStopsTheClaimUnlessItIsKept(t *testing.T) {
	f := newFolder(t)
	o := f.options(t, "edits", f.storage(t))
	o.Evolution = &column.Evolution{}
	note := arrow.Field{Name: "note", Type: arrow.BinaryTypes.String, Nullable: true}
	o.Arrow = arrow.NewSchema(append(append([]arrow.Field{}, arrowSchema.Fields()...), note), nil)
	mustBegin(t, o).batch(4)
	for _, c := range []struct {
		what   string
		fields []arrow.Field
		want   string
	}{
		{"gone", nil, `"note": the query wrote it (string)`},
		{"another type", []arrow.Field{{Name: "note", Type: arrow.PrimitiveTypes.Int64, Nullable: true}}, "the query writes long, the table has string"},
		{"required", []arrow.Field{note, {Name: "more", Type: arrow.PrimitiveTypes.Int64}}, "required long"},
		{"another case", []arrow.Field{note, {Name: "ID", Type: arrow.PrimitiveTypes.Int64, Nullable: true}}, "does not tell names apart by case"},
	} {
		o := f.options(t, "edits", f.storage(t))
		o.Evolution = &column.Evolution{}
		o.Arrow = arrow.NewSchema(append(append([]arrow.Field{}, arrowSchema.Fields()...), c.fields...), nil)
		if _, err := begin(t, o, nil); !failure.Is(err, failure.SchemaConflict) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	o = f.options(t, "edits", f.storage(t))
	o.Evolution = &column.Evolution{Keep: []string{"note"}}
	mustBegin(t, o).batch(4)
	if _, s := f.head(t); s.Schema.NumFields() != 4 || len(f.ids(t)) != 8 {
		t.Fatalf("%v", s.Schema)
	}
}

func TestRebuildScanReadsTheMarkersVersionFromATime(t *testing.T) {
	f := newFolder(t)
	r := mustBegin(t, f.options(t, "edits", f.storage(t)))
	r.batch(10)
	m := r.cur
	r.batch(10)
	day2 := record([]int64{1}).Column(1).(*array.Timestamp).Value(0)
	for min, want := range map[int64]int{marker.MinTime: 10, int64(day2): 5} {
		var got []int64
		err := r.s.RebuildScan(context.Background(), m, []string{"id"}, "ts", min, func(rec arrow.RecordBatch) error {
			defer rec.Release()
			if rec.NumCols() != 1 {
				t.Fatalf("%d columns", rec.NumCols())
			}
			got = append(got, rec.Column(0).(*array.Int64).Int64Values()...)
			return nil
		})
		if err != nil || len(got) != want {
			t.Fatalf("from %d: %v %v", min, got, err)
		}
	}
}

// Power is lost between any two operations of a start and two batches. What is
// there afterwards is what the marker says.
func TestCrashAtEveryStepLeavesRowsAndMarkerTogether(t *testing.T) {
	ops := 0
	tell := func(store *objstore.Memory, through func(error) bool) {
		o := sinkdelta.Options{Storage: delta.FromStore(store), Query: "edits", Arrow: arrowSchema, PartitionColumns: []string{"day"}, Clock: hasty{}}
		r, err := begin(t, o, nil)
		if err != nil {
			if !through(err) {
				t.Fatal(err)
			}
			return
		}
		for range 2 {
			n := r.cur.Position.Kafka.Topics["events"].Partitions[0].NextOffset
			st, err := r.s.Stage(context.Background(), r.cur.BatchID+1, "attempt")
			if err != nil {
				t.Fatal(err)
			}
			m := *r.cur
			m.Claim, m.BatchID, m.Attempt, m.PlanHash, m.Position = false, r.cur.BatchID+1, clock.Nonce(), marker.Hash(nil), position(n+4)
			if err := st.Write(record([]int64{n, n + 1, n + 2, n + 3})); err != nil {
				t.Fatal(err)
			}
			staged, err := st.Close(context.Background())
			if err == nil {
				var c sink.Committed
				if c, err = r.s.Commit(context.Background(), r.permit, r.cur, staged, &m); err == nil {
					r.cur = c.Marker
				}
			}
			if err != nil {
				if !through(err) {
					t.Fatal(err)
				}
				return
			}
		}
	}
	never := func(error) bool { return false }
	{
		store := objstore.NewMemory(clock.System{})
		store.Trace(func(string) error { ops++; return nil })
		tell(store, never)
	}
	for n := range ops {
		for _, seed := range []uint64{0, uint64(n) + 1} {
			store := objstore.NewMemory(clock.System{})
			store.CrashAfter(n)
			tell(store, func(err error) bool { return errors.Is(err, objstore.ErrCrashed) })
			store.Crash(seed)
			for round := range 2 {
				s, err := sinkdelta.New(sinkdelta.Options{Storage: delta.FromStore(store.Reopen()), Query: "edits", Arrow: arrowSchema, Clock: hasty{}})
				if err != nil {
					t.Fatal(err)
				}
				f, err := s.Facts(context.Background(), "edits")
				if err != nil || f.Rewound != "" {
					t.Fatalf("power lost after %d operations (seed %d): %+v %v", n, seed, f, err)
				}
				want := int64(0)
				if f.Marker != nil {
					want = 4 * (f.Marker.BatchID + 1)
				}
				if got := count(t, store.Reopen()); got != want {
					t.Fatalf("power lost after %d operations (seed %d): %d rows, the marker says %d", n, seed, got, want)
				}
				if round == 0 {
					tell(store.Reopen(), never)
				}
			}
		}
	}
}

func count(t *testing.T, store *objstore.Memory) (n int64) {
	t.Helper()
	tbl := delta.Open(delta.FromStore(store), delta.Options{})
	s, err := tbl.Snapshot(context.Background())
	if errors.Is(err, delta.ErrNoTable) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := tbl.Scan(context.Background(), s, delta.ScanOptions{}, func(r arrow.RecordBatch) error {
		n += r.NumRows()
		r.Release()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return n
}
