package file

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/sink"
)

const lineage = "0b6a0f6e-7c0e-4d0a-9f55-2f2d0c7a1b11"

// run is a claimed sink.
type run struct {
	t      *testing.T
	s      *Sink
	permit sink.Permit
	cur    *marker.Marker
}

func at(n int64) batch.Position {
	k := &batch.KafkaPosition{ClusterID: "c"}
	k.Set("t", "id", 0, batch.PartitionPosition{NextOffset: n, LastOffset: n - 1})
	return batch.Position{Kafka: k}
}

func start(t *testing.T, o Options) *run {
	t.Helper()
	o.Query, o.Clock = "q", &testClock{now: noon}
	if o.Shape == nil {
		o.Shape = shape
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.Facts(t.Context(), "q")
	if err != nil || f.Rewound != "" {
		t.Fatal(f.Rewound, err)
	}
	m := &marker.Marker{Format: marker.Format, Kind: marker.KindStream, QueryName: "q", QueryID: lineage, BatchID: -1, Position: at(0)}
	if f.Marker != nil {
		m = f.Marker
	}
	m.Claim, m.Attempt, m.Epoch = true, clock.Nonce(), marker.Epoch{Number: m.Epoch.Number + 1, Nonce: clock.Nonce()}
	p, moved, err := s.Claim(t.Context(), f, m)
	if err != nil || moved {
		t.Fatal(moved, err)
	}
	return &run{t: t, s: s, permit: p, cur: m}
}

// stage makes the next batch of the given records.
func (r *run) stage(records ...arrow.RecordBatch) (sink.Staged, *marker.Marker) {
	r.t.Helper()
	m := *r.cur
	m.Claim, m.BatchID, m.Attempt, m.Epoch = false, m.BatchID+1, clock.Nonce(), r.permit.Epoch()
	var n int64
	for _, rec := range records {
		n += rec.NumRows()
	}
	m.Position = at(r.cur.Position.Kafka.Topics["t"].Partitions[0].NextOffset + n)
	m.PlanHash = marker.Hash([]byte(m.Position.String()))
	st, err := r.s.Stage(r.t.Context(), m.BatchID, m.Attempt)
	for _, rec := range records {
		if err == nil {
			err = st.Write(rec)
		}
	}
	if err != nil {
		r.t.Fatal(err)
	}
	staged, err := st.Close(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return staged, &m
}

func (r *run) commit(records ...arrow.RecordBatch) {
	r.t.Helper()
	staged, m := r.stage(records...)
	c, err := r.s.Commit(r.t.Context(), r.permit, r.cur, staged, m)
	if err != nil {
		r.t.Fatal(err)
	}
	r.cur = c.Marker
}

func keys(t *testing.T, store objstore.Store) (out []string) {
	t.Helper()
	list, err := store.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		if !strings.HasPrefix(i.Key, metaFolder+"/") {
			out = append(out, i.Key)
		}
	}
	return out
}

func memoryStore() *objstore.Memory { return objstore.NewMemory(&testClock{now: noon}) }

func TestABatchIsFilesWithNamesOfItsOwnAndAManifest(t *testing.T) {
	store := memoryStore()
	r := start(t, Options{Store: store, FileBytes: 1})
	r.commit(recordOf([]int64{1, 2}), recordOf([]int64{3}))
	r.commit()
	r.commit(recordOf([]int64{4}))
	l := marker.Hash([]byte(lineage))[:8]
	want := []string{
		"q-0000000000-" + l + "-0000.ndjson", "q-0000000000-" + l + "-0001.ndjson", "q-0000000000-" + l + ".manifest.json",
		"q-0000000002-" + l + "-0000.ndjson", "q-0000000002-" + l + ".manifest.json",
	}
	if got := keys(t, store); !slices.Equal(got, want) {
		t.Fatalf("%v", got)
	}
	m := Manifest{}
	decode(t, store, want[2], &m)
	if m.Rows != 3 || m.QueryID != lineage || m.BatchID != 0 || !m.Position.SameOffsets(at(3)) || len(m.Files) != 2 || m.Files[0].Rows != 2 || m.Files[0].Staged != "" {
		t.Fatalf("%+v", m)
	}
	staged, err := store.List(t.Context(), metaFolder+"/q/staged/")
	if err != nil || len(staged) != 0 {
		t.Fatalf("%v are still staged, %v", staged, err)
	}
}

// failing is a store that dies at a key.
type failing struct {
	objstore.Store
	at func(key string) bool
}

func (f *failing) CreateOnce(ctx context.Context, key string, data []byte) (bool, []byte, error) {
	if f.at(key) {
		return false, nil, failure.New(failure.Config, "the process dies here")
	}
	return f.Store.CreateOnce(ctx, key, data)
}

func TestABatchThatDiedHalfVisibleIsMadeWholeByTheNextStartWithTheSameBytes(t *testing.T) {
	for _, dies := range []string{"-0000.ndjson", "-0001.ndjson", ManifestSuffix} {
		store := memoryStore()
		f := &failing{Store: store, at: func(string) bool { return false }}
		r := start(t, Options{Store: f, FileBytes: 1})
		r.commit(recordOf([]int64{0}))
		staged, m := r.stage(recordOf([]int64{1}), recordOf([]int64{2}))
		f.at = func(key string) bool { return strings.HasSuffix(key, dies) }
		if _, err := r.s.Commit(t.Context(), r.permit, r.cur, staged, m); err == nil {
			t.Fatal("it did not die")
		}
		next := start(t, Options{Store: store, FileBytes: 1})
		if next.cur.BatchID != 1 {
			t.Fatalf("the next start stands at batch %d", next.cur.BatchID)
		}
		if ids, _ := visible(t, store); !slices.Equal(ids, []int64{0, 1, 2}) {
			t.Fatalf("died at %s: %v", dies, ids)
		}
		next.commit(recordOf([]int64{3}))
		if ids, _ := visible(t, store); !slices.Equal(ids, []int64{0, 1, 2, 3}) {
			t.Fatalf("died at %s: %v", dies, ids)
		}
	}
}

func TestNothingOfABatchIsVisibleBeforeItIsCommitted(t *testing.T) {
	store := memoryStore()
	r := start(t, Options{Store: store})
	r.stage(recordOf([]int64{1}))
	if got := keys(t, store); len(got) != 0 {
		t.Fatalf("%v", got)
	}
	// A lost checkpoint is adopted; the next plan of batch 0 ends elsewhere.
	next := start(t, Options{Store: store})
	next.commit(recordOf([]int64{1, 2}))
	if ids, n := visible(t, store); !slices.Equal(ids, []int64{1, 2}) || n != 1 {
		t.Fatalf("%v in %d files", ids, n)
	}
}

func TestAFileOfAnothersUnderTheNameIsNotOverwritten(t *testing.T) {
	store := memoryStore()
	r := start(t, Options{Store: store})
	name := base(&marker.Marker{QueryName: "q", QueryID: lineage}) + "-0000.ndjson"
	if err := store.Put(t.Context(), name, []byte("mine")); err != nil {
		t.Fatal(err)
	}
	staged, m := r.stage(recordOf([]int64{1}))
	_, err := r.s.Commit(t.Context(), r.permit, r.cur, staged, m)
	if !failure.Is(err, failure.Checkpoint) || !strings.Contains(err.Error(), "not overwritten") {
		t.Fatal(err)
	}
	if data, _ := store.Get(t.Context(), name); string(data) != "mine" {
		t.Fatalf("%s", data)
	}
}

func TestAFolderWithFilesOfTheQueryAndWithoutItsLogIsRewound(t *testing.T) {
	store := memoryStore()
	start(t, Options{Store: store}).commit(recordOf([]int64{1}))
	list, err := store.List(t.Context(), metaFolder+"/")
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		if err := store.Delete(t.Context(), i.Key); err != nil {
			t.Fatal(err)
		}
	}
	s, err := New(Options{Query: "q", Store: store, Shape: shape, Clock: clock.System{}})
	if err != nil {
		t.Fatal(err)
	}
	if f, err := s.Facts(t.Context(), "q"); err != nil || !strings.Contains(f.Rewound, "no log") {
		t.Fatalf("%+v %v", f, err)
	}
	// Another query's files are not in the way.
	s, _ = New(Options{Query: "q-0", Store: store, Shape: shape, Clock: clock.System{}})
	if f, err := s.Facts(t.Context(), "q-0"); err != nil || f.Rewound != "" {
		t.Fatalf("%+v %v", f, err)
	}
}

func TestAZombieCannotMakeAFileVisible(t *testing.T) {
	store := memoryStore()
	old := start(t, Options{Store: store})
	staged, m := old.stage(recordOf([]int64{1, 2, 3}))
	young := start(t, Options{Store: store})
	for range 2 * logKeep {
		young.commit(recordOf([]int64{1}))
	}
	if _, err := old.s.Commit(t.Context(), old.permit, old.cur, staged, m); !failure.Is(err, failure.Fenced) {
		t.Fatal(err)
	}
	if _, err := old.s.log.append(t.Context(), 1, newEntry(kindBatch, m)); err == nil {
		t.Fatal("it filled a hole of the log")
	}
	if ids, _ := visible(t, store); len(ids) != 2*logKeep {
		t.Fatalf("%v", ids)
	}
	list, err := store.List(t.Context(), metaFolder+"/q/log/")
	if err != nil || len(list) > logKeep+2 {
		t.Fatalf("%d entries are kept, %v", len(list), err)
	}
}

var wide = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "s", Type: arrow.BinaryTypes.String, Nullable: true}, {Name: "t", Type: batch.Timestamp, Nullable: true},
}, nil)

func wideRecord() arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, wide)
	defer b.Release()
	b.Field(0).(*array.Int64Builder).AppendValues([]int64{1, -2}, nil)
	b.Field(1).(*array.StringBuilder).AppendValues([]string{"a,\"b\"\nc", ""}, []bool{true, false})
	b.Field(2).(*array.TimestampBuilder).AppendValues([]arrow.Timestamp{1_000_001, 0}, []bool{true, false})
	return b.NewRecordBatch()
}

func TestCSVIsQuotedWithAHeaderAndTheSameBytesEachTime(t *testing.T) {
	var first []byte
	for range 2 {
		store := memoryStore()
		start(t, Options{Store: store, Shape: wide, Format: CSV, Gzip: true}).commit(wideRecord())
		name := keys(t, store)[0]
		data, err := store.Get(t.Context(), name)
		if err != nil || !strings.HasSuffix(name, ".csv.gz") {
			t.Fatal(name, err)
		}
		if first == nil {
			first = data
		}
		if !bytes.Equal(first, data) {
			t.Fatal("two times the same rows gave other bytes")
		}
	}
	z, err := gzip.NewReader(bytes.NewReader(first))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil || fmt.Sprint(rows) != "[[id s t] [1 a,\"b\"\nc 1970-01-01T00:00:01.000001Z] [-2  ]]" {
		t.Fatalf("%q %v", rows, err)
	}
}

func TestParquetFilesReadBackAndEndAtTheirSize(t *testing.T) {
	store := memoryStore()
	r := start(t, Options{Store: store, Format: Parquet, FileBytes: 4000})
	var records []arrow.RecordBatch
	for n := range int64(20) {
		ids := make([]int64, 500)
		for i := range ids {
			ids[i] = n*500 + int64(i)*7919%500 // not in order, so that it does not shrink to nothing
		}
		records = append(records, recordOf(ids))
	}
	r.commit(records...)
	var got []int64
	files := 0
	for _, k := range keys(t, store) {
		if !strings.HasSuffix(k, ".parquet") {
			continue
		}
		files++
		data, err := store.Get(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		pr, err := file.NewParquetReader(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		ar, err := pqarrow.NewFileReader(pr, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
		if err != nil {
			t.Fatal(err)
		}
		tbl, err := ar.ReadTable(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range tbl.Column(0).Data().Chunks() {
			got = append(got, c.(*array.Int64).Int64Values()...)
		}
		tbl.Release()
	}
	slices.Sort(got)
	if len(got) != 10_000 || got[0] != 0 || got[9999] != 9999 || files < 2 {
		t.Fatalf("%d rows in %d files", len(got), files)
	}
}

func TestWrongOptionsAreRefused(t *testing.T) {
	for _, o := range []Options{{Format: "xml"}, {Format: Parquet, Gzip: true}} {
		o.Query, o.Store, o.Shape, o.Clock = "q", memoryStore(), shape, clock.System{}
		if _, err := New(o); !failure.Is(err, failure.Config) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
