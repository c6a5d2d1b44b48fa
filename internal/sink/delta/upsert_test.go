package delta_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/delta"
	sinkdelta "github.com/weirlake/weir/internal/sink/delta"
	"github.com/weirlake/weir/internal/sink/sinktest"
	"github.com/weirlake/weir/internal/upsert"
)

// changeSchema is a table that is merged into. A row's partition follows from its
// seq, so that updates move rows between partitions.
var changeSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "seq", Type: arrow.PrimitiveTypes.Int64},
	{Name: "value", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "part", Type: arrow.BinaryTypes.String},
}, nil)

var byID = upsert.Spec{Keys: []string{"id"}, OrderBy: []string{"seq"}, DeleteColumn: "gone", KeepNewer: true}

func changeRecord(changes []sinktest.Change, deletes bool) arrow.RecordBatch {
	sc := changeSchema
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
type merged struct{ folder }

func (f merged) open(t *testing.T, query string) sinktest.Opened {
	h := &hooked{Storage: f.storage(t)}
	s, err := sinkdelta.New(sinkdelta.Options{Storage: h, Query: query, Arrow: changeSchema, PartitionColumns: []string{"part"}, Clock: clock.System{},
		Upsert: &byID, Warn: func(err error) { t.Error("warned:", err) }})
	if err != nil {
		t.Fatal(err)
	}
	return sinktest.Opened{
		Sink:       s,
		BeforeNext: func(g func() error) { h.mu.Lock(); h.before = g; h.mu.Unlock() },
		AfterNext:  func(g func() error) { h.mu.Lock(); h.after = g; h.mu.Unlock() },
	}
}

func (f merged) rows(t *testing.T) (out []sinktest.Change) {
	for _, r := range f.records(t) {
		for i := range int(r.NumRows()) {
			c := sinktest.Change{ID: r.Column(0).(*array.Int64).Value(i), Seq: r.Column(1).(*array.Int64).Value(i), Value: r.Column(2).(*array.String).Value(i)}
			if part := r.Column(3).(*array.String).Value(i); part != fmt.Sprint(c.Seq%3) {
				t.Fatalf("%+v is in partition %s", c, part)
			}
			out = append(out, c)
		}
	}
	return out
}

func TestMergingRandomChangesGivesWhatAPlainMapGives(t *testing.T) {
	sinktest.RunMerge(t, 12, func(t *testing.T) sinktest.MergeHarness {
		f := merged{newFolder(t)}
		return sinktest.MergeHarness{
			Open: f.open, Rows: f.rows, ForeignRewrite: f.foreignRewrite,
			Record: func(c []sinktest.Change) arrow.RecordBatch { return changeRecord(c, true) },
			ForeignAppend: func(t *testing.T, c sinktest.Change) {
				if _, err := delta.Append(context.Background(), f.table(t), []arrow.RecordBatch{changeRecord([]sinktest.Change{c}, false)}, delta.AppendOptions{}); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

// A batch touches the files that hold its keys, and no other.
func TestOnlyFilesWithKeysOfTheBatchAreWrittenAgain(t *testing.T) {
	f := merged{newFolder(t)}
	for from := range int64(20) {
		var changes []sinktest.Change
		for i := range int64(50) {
			changes = append(changes, sinktest.Change{ID: from*50 + i, Seq: 3, Value: "v"})
		}
		if _, err := delta.Append(context.Background(), f.table(t), []arrow.RecordBatch{changeRecord(changes, false)}, delta.AppendOptions{Create: &delta.CreateOptions{}}); err != nil {
			t.Fatal(err)
		}
	}
	_, before := f.head(t)
	r, err := delta.Merge(context.Background(), f.table(t), []arrow.RecordBatch{changeRecord([]sinktest.Change{{ID: 101, Seq: 4}, {ID: 120, Seq: 5}}, false)},
		delta.MergeOptions{Keys: []string{"id"}})
	if err != nil || r.FilesRewritten != 1 || r.RowsCopied != 48 || r.Updated != 2 {
		t.Fatalf("%+v %v", r, err)
	}
	_, after := f.head(t)
	kept := 0
	for _, a := range before.Files() {
		if _, ok := after.File(a.Path); ok {
			kept++
		}
	}
	if kept != 19 {
		t.Fatalf("%d of 20 files are untouched, want 19", kept)
	}
}

func TestChangesThatAreMergedLeaveNoFilesBehind(t *testing.T) {
	f := merged{newFolder(t)}
	h := sinktest.MergeHarness{Open: f.open, Rows: f.rows, Record: func(c []sinktest.Change) arrow.RecordBatch { return changeRecord(c, true) }}
	sinktest.MergeOnce(t, h, []sinktest.Change{{ID: 1, Seq: 1, Value: "a"}, {ID: 2, Seq: 1, Value: "b"}, {ID: 1, Seq: 2, Delete: true}})
	if rows := f.rows(t); len(rows) != 1 || rows[0].ID != 2 {
		t.Fatalf("%+v", rows)
	}
	if left, _ := filepath.Glob(filepath.Join(f.dir, "_weir", "changes", "*")); len(left) > 0 {
		t.Fatalf("%v", left)
	}
}
