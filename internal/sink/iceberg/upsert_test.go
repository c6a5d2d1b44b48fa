package iceberg_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	icelib "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/column"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/datafile"
	"github.com/weirlake/weir/internal/sink/iceberg"
	"github.com/weirlake/weir/internal/sink/sinktest"
	"github.com/weirlake/weir/internal/upsert"
)

// The table that is merged into. A row's partition follows from its seq, so that
// updates move rows between partitions.
var (
	changeArrow = arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64},
		{Name: "seq", Type: arrow.PrimitiveTypes.Int64},
		{Name: "value", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "part", Type: arrow.BinaryTypes.String},
	}, nil)
	changeSchema = icelib.NewSchema(0,
		icelib.NestedField{ID: 1, Name: "id", Type: icelib.PrimitiveTypes.Int64, Required: true},
		icelib.NestedField{ID: 2, Name: "seq", Type: icelib.PrimitiveTypes.Int64, Required: true},
		icelib.NestedField{ID: 3, Name: "value", Type: icelib.PrimitiveTypes.String},
		icelib.NestedField{ID: 4, Name: "part", Type: icelib.PrimitiveTypes.String, Required: true},
	)
	byPart = icelib.NewPartitionSpec(icelib.PartitionField{SourceIDs: []int{4}, FieldID: 1000, Name: "part", Transform: icelib.IdentityTransform{}})
	byID   = upsert.Spec{Keys: []string{"id"}, OrderBy: []string{"seq"}, DeleteColumn: "gone", KeepNewer: true}
)

func changeRecord(changes []sinktest.Change, deletes bool) arrow.RecordBatch {
	sc := changeArrow
	if deletes {
		sc = arrow.NewSchema(append(sc.Fields(), arrow.Field{Name: "gone", Type: arrow.FixedWidthTypes.Boolean}), nil)
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, sc)
	defer b.Release()
	for _, c := range changes {
		b.Field(0).(*array.Int64Builder).Append(c.ID)
		b.Field(1).(*array.Int64Builder).Append(c.Seq)
		b.Field(2).(*array.StringBuilder).Append(c.Value)
		b.Field(3).(*array.StringBuilder).Append(fmt.Sprint(c.Seq % 3))
		if deletes {
			b.Field(4).(*array.BooleanBuilder).Append(c.Delete)
		}
	}
	return b.NewRecordBatch()
}

// merged is a table that the sink merges into.
type merged struct{ lakeStore }

func (l merged) open(t *testing.T, query string) sinktest.Opened {
	var (
		mu            sync.Mutex
		before, after func() error
	)
	take := func(f *func() error) error {
		mu.Lock()
		g := *f
		*f = nil
		mu.Unlock()
		if g == nil {
			return nil
		}
		return g()
	}
	c := l.catalog(t).WithHooks(lake.CommitHooks{
		Before: func(context.Context, table.Identifier) error { return take(&before) },
		After:  func(context.Context, table.Identifier) error { return take(&after) },
	})
	s, err := iceberg.New(iceberg.Options{Catalog: c, Table: l.ident(), Query: query, Arrow: changeArrow, Schema: changeSchema, Partition: byPart,
		Clock: clock.System{}, Upsert: &byID})
	if err != nil {
		t.Fatal(err)
	}
	return sinktest.Opened{
		Sink:       s,
		BeforeNext: func(f func() error) { mu.Lock(); before = f; mu.Unlock() },
		AfterNext:  func(f func() error) { mu.Lock(); after = f; mu.Unlock() },
	}
}

func (l merged) changes(t *testing.T) (out []sinktest.Change) {
	rows := l.rows(t)
	defer rows.Release()
	tr := array.NewTableReader(rows, 0)
	defer tr.Release()
	for tr.Next() {
		r := tr.RecordBatch()
		for i := range int(r.NumRows()) {
			c := sinktest.Change{ID: r.Column(0).(*array.Int64).Value(i), Seq: r.Column(1).(*array.Int64).Value(i), Value: strings.Clone(r.Column(2).(*array.String).Value(i))}
			if part := r.Column(3).(*array.String).Value(i); part != fmt.Sprint(c.Seq%3) {
				t.Fatalf("%+v is in partition %s", c, part)
			}
			out = append(out, c)
		}
	}
	return out
}

func (l merged) appendChanges(t *testing.T, changes ...sinktest.Change) {
	t.Helper()
	c := l.catalog(t)
	tbl := l.load(t, c)
	storage, err := lake.DataFSOf(context.Background(), tbl)
	if err != nil {
		t.Fatal(err)
	}
	w, err := datafile.NewWriter(datafile.Spec{Schema: tbl.Schema(), PartitionSpec: tbl.Spec(), FormatVersion: 2,
		Properties: tbl.Properties(), Location: lake.DataLocation(tbl), FS: storage}, "foreign-"+clock.Nonce()+"-", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(changeRecord(changes, false)); err != nil {
		t.Fatal(err)
	}
	files, err := w.Close(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	ch := lake.Change{}
	for _, f := range files {
		ch.Files = append(ch.Files, f.DataFile)
	}
	if _, err := c.Commit(context.Background(), tbl, ch); err != nil {
		t.Fatal(err)
	}
}

func newMerged(t *testing.T) (merged, sinktest.MergeHarness) {
	l := merged{lakeStore{dir: t.TempDir()}}
	return l, sinktest.MergeHarness{
		Open: l.open, Rows: l.changes, ForeignRewrite: l.foreignRewrite,
		Record:        func(c []sinktest.Change) arrow.RecordBatch { return changeRecord(c, true) },
		ForeignAppend: func(t *testing.T, c sinktest.Change) { l.appendChanges(t, c) },
	}
}

func TestMergingRandomChangesGivesWhatAPlainMapGives(t *testing.T) {
	sinktest.RunMerge(t, 4, func(t *testing.T) sinktest.MergeHarness {
		_, h := newMerged(t)
		return h
	})
}

// A batch touches the files that hold its keys, and no other.
func TestOnlyFilesWithKeysOfTheBatchAreWrittenAgain(t *testing.T) {
	l, h := newMerged(t)
	sinktest.MergeOnce(t, h, []sinktest.Change{{ID: 5000, Seq: 3}})
	for from := range int64(10) {
		var changes []sinktest.Change
		for i := range int64(50) {
			changes = append(changes, sinktest.Change{ID: from*50 + i, Seq: 3, Value: "v"})
		}
		l.appendChanges(t, changes...)
	}
	before := l.paths(t)
	sinktest.MergeOnce(t, h, []sinktest.Change{{ID: 101, Seq: 6, Value: "new"}, {ID: 120, Seq: 6, Delete: true}, {ID: 121, Seq: 2, Value: "late"}})
	kept := 0
	for p := range l.paths(t) {
		if before[p] {
			kept++
		}
	}
	if kept != len(before)-1 {
		t.Fatalf("%d of %d files are untouched, want all but one", kept, len(before))
	}
	s := l.load(t, l.catalog(t)).CurrentSnapshot()
	if got := s.Summary.Properties["weir.upsert"]; got != `{"deleted":1,"files_rewritten":1,"ignored":1,"inserted":0,"rows_copied":48,"updated":1}` || s.Summary.Operation != table.OpOverwrite {
		t.Fatalf("%s %s", s.Summary.Operation, got)
	}
	left := 0
	_ = filepath.WalkDir(l.dir, func(p string, _ os.DirEntry, _ error) error {
		if strings.HasSuffix(p, ".arrow") {
			left++
		}
		return nil
	})
	if left > 0 {
		t.Fatalf("%d files of merged changes are left", left)
	}
}

func (l merged) paths(t *testing.T) map[string]bool {
	tasks, err := l.load(t, l.catalog(t)).Scan().PlanFiles(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, task := range tasks {
		out[task.File.FilePath()] = true
	}
	return out
}

// Changes that a process staged before its file was changed are committed by the
// one that runs the new file.
func TestChangesStagedUnderTheOldColumnsAreMergedUnderTheNewOnes(t *testing.T) {
	l := merged{lakeStore{dir: t.TempDir()}}
	open := func(fields []arrow.Field, e *column.Evolution) *iceberg.Sink {
		schema, err := table.ArrowSchemaToIcebergWithFreshIDs(arrow.NewSchema(fields, nil), false)
		if err != nil {
			t.Fatal(err)
		}
		s, err := iceberg.New(iceberg.Options{Catalog: l.catalog(t), Table: l.ident(), Query: "q", Arrow: arrow.NewSchema(fields, nil), Schema: schema,
			Partition: *icelib.UnpartitionedSpec, Clock: clock.System{}, Evolution: e, Upsert: &upsert.Spec{Keys: []string{"id"}, DeleteColumn: "gone"}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	old := []arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "n", Type: arrow.PrimitiveTypes.Int32, Nullable: true}, {Name: "user", Type: arrow.BinaryTypes.String, Nullable: true}}
	r, err := start(open(old, &column.Evolution{}))
	if err != nil {
		t.Fatal(err)
	}
	st, err := r.s.Stage(t.Context(), 0, "first")
	if err != nil {
		t.Fatal(err)
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(append(slices.Clone(old), arrow.Field{Name: "gone", Type: arrow.FixedWidthTypes.Boolean}), nil))
	b.Field(0).(*array.Int64Builder).Append(7)
	b.Field(1).(*array.Int32Builder).Append(11)
	b.Field(2).(*array.StringBuilder).Append("ada")
	b.Field(3).(*array.BooleanBuilder).Append(false)
	if err := st.Write(b.NewRecordBatch()); err != nil {
		t.Fatal(err)
	}
	staged, err := st.Close(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	now := []arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "n", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "editor", Type: arrow.BinaryTypes.String, Nullable: true}, {Name: "note", Type: arrow.BinaryTypes.String, Nullable: true}}
	if r, err = start(open(now, &column.Evolution{Renamed: map[string]string{"editor": "user"}})); err != nil {
		t.Fatal(err)
	}
	m := *r.cur
	m.Claim, m.BatchID, m.Attempt, m.PlanHash, m.Position = false, 0, "first", "plan", kafkaAt(1)
	staged.Handle = nil // another process's
	if _, err := r.s.Commit(t.Context(), r.permit, r.cur, staged, &m); err != nil {
		t.Fatal(err)
	}
	rows := l.rows(t)
	defer rows.Release()
	tr := array.NewTableReader(rows, 0)
	defer tr.Release()
	if !tr.Next() {
		t.Fatal("no row")
	}
	rec := tr.RecordBatch()
	if n, editor := rec.Column(1).(*array.Int64).Value(0), rec.Column(2).(*array.String).Value(0); n != 11 || editor != "ada" || rec.Column(3).NullN() != 1 {
		t.Fatalf("%v", rec)
	}
}
