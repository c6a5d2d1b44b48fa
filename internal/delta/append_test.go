package delta

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/failure"
)

func TestBrokenAppendDoublesAndTheIdempotentOneDoesNot(t *testing.T) {
	batch := func() arrow.RecordBatch { return ids(1, 3) }
	broken, _ := localTable(t)
	create(t, broken, CreateOptions{})
	for range 2 { // the batch and its redelivery
		mustAppend(t, broken, batch(), AppendOptions{})
	}
	if n := len(contents(t, broken)); n != 6 {
		t.Fatalf("the broken append left %d rows, it is known to leave 6", n)
	}
	whole, _ := localTable(t)
	create(t, whole, CreateOptions{})
	for i := range 2 {
		r := mustAppend(t, whole, batch(), AppendOptions{TxnAppID: "orders", TxnVersion: 7})
		if r.Skipped != (i == 1) {
			t.Fatalf("delivery %d: skipped %v", i+1, r.Skipped)
		}
	}
	// An older batch is not new either.
	if r := mustAppend(t, whole, batch(), AppendOptions{TxnAppID: "orders", TxnVersion: 6}); !r.Skipped {
		t.Fatal("an older version was appended")
	}
	if n := len(contents(t, whole)); n != 3 {
		t.Fatalf("%d rows, want 3", n)
	}
	if s, _ := whole.Snapshot(context.Background()); s.NumFiles() != 1 {
		t.Fatalf("%d files", s.NumFiles())
	}
}

// nine rows in three batches, then the checkpoint is reset and the tenth row
// comes as batch 0 again.
func nineRows(t *testing.T, lineage string) *Table {
	tbl, _ := localTable(t)
	create(t, tbl, CreateOptions{})
	for b := range int64(3) {
		mustAppend(t, tbl, ids(1+3*b, 3), AppendOptions{TxnAppID: "orders", TxnVersion: b, Lineage: lineage})
	}
	return tbl
}

func TestNaiveWriterLosesTheTenthRowAfterAReset(t *testing.T) {
	tbl := nineRows(t, "")
	r := mustAppend(t, tbl, ids(10, 1), AppendOptions{TxnAppID: "orders", TxnVersion: 0})
	if n := len(contents(t, tbl)); n != 9 || !r.Skipped {
		t.Fatalf("%d rows, %+v: the trap that this shows is gone", n, r)
	}
}

func TestAppIDOfAnotherLineageIsRefusedBeforeARowIsDropped(t *testing.T) {
	for _, first := range []string{"lineage-a", ""} {
		tbl := nineRows(t, first)
		_, err := Append(context.Background(), tbl, one(ids(10, 1)), AppendOptions{TxnAppID: "orders", TxnVersion: 0, Lineage: "lineage-b"})
		if !failure.Is(err, failure.Checkpoint) || !strings.Contains(err.Error(), "rebind") {
			t.Fatalf("first lineage %q: %v", first, err)
		}
		if n := len(contents(t, tbl)); n != 9 {
			t.Fatalf("%d rows", n)
		}
	}
}

func TestAppIDIsReboundAndTheTenthRowArrivesOnce(t *testing.T) {
	tbl := nineRows(t, "lineage-a")
	o := AppendOptions{TxnAppID: "orders", TxnVersion: 0, Lineage: "lineage-b", OnReusedAppID: RebindReused}
	if r := mustAppend(t, tbl, ids(10, 1), o); r.Skipped || !r.Rebound {
		t.Fatalf("%+v", r)
	}
	if r := mustAppend(t, tbl, ids(10, 1), o); !r.Skipped || r.Rebound {
		t.Fatalf("redelivery: %+v", r)
	}
	if n := len(contents(t, tbl)); n != 10 {
		t.Fatalf("%d rows, want 10", n)
	}
	// The old lineage is a zombie now, whatever its policy.
	_, err := Append(context.Background(), tbl, one(ids(99, 1)), AppendOptions{TxnAppID: "orders", TxnVersion: 3, Lineage: "lineage-a", OnReusedAppID: RebindReused})
	if !failure.Is(err, failure.Fenced) {
		t.Fatalf("the old lineage: %v", err)
	}
}

func TestAppIDUsedWithoutALineageIsBoundWhereNothingIsDropped(t *testing.T) {
	tbl := nineRows(t, "")
	o := AppendOptions{TxnAppID: "orders", TxnVersion: 3, Lineage: "lineage-a"}
	if r := mustAppend(t, tbl, ids(10, 1), o); r.Skipped || r.Rebound {
		t.Fatalf("%+v", r)
	}
	_, err := Append(context.Background(), tbl, one(ids(99, 1)), AppendOptions{TxnAppID: "orders", TxnVersion: 4, Lineage: "lineage-b"})
	if !failure.Is(err, failure.Checkpoint) {
		t.Fatalf("another lineage: %v", err)
	}
}

func TestEightRacingWritersLoseNothing(t *testing.T) {
	commits := int64(20)
	if testing.Short() {
		commits = 5
	}
	tbl, dir := localTable(t)
	create(t, tbl, CreateOptions{})
	var wg sync.WaitGroup
	for w := range int64(8) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			mine := openDir(t, dir) // nothing is shared but the folder
			for c := range commits {
				r, err := Append(context.Background(), mine, one(ids(w*1000+c*2, 2)), AppendOptions{TxnAppID: fmt.Sprint("writer-", w), TxnVersion: c})
				if err != nil || r.Skipped {
					t.Errorf("writer %d commit %d: %+v %v", w, c, r, err)
				}
			}
		}()
	}
	wg.Wait()
	n := int(8 * commits * 2)
	got := contents(t, openDir(t, dir))
	seen := map[int64]bool{}
	for _, l := range got {
		seen[l.id] = true
	}
	if len(got) != n || len(seen) != n {
		t.Fatalf("%d rows, %d distinct, want %d", len(got), len(seen), n)
	}
	py := deltaRS(t, dir, "id", "writer-0", "writer-7")
	if py.Rows != int64(n) || py.Distinct != int64(n) || py.Version != 8*commits {
		t.Fatalf("delta-rs reads %+v", py)
	}
	for _, app := range []string{"writer-0", "writer-7"} {
		if v := py.Txns[app]; v == nil || *v != commits-1 {
			t.Fatalf("delta-rs reads txn %s as %v", app, v)
		}
	}
}

func TestRowsOfAnotherShapeAreRefusedOrAddColumns(t *testing.T) {
	tbl, _ := localTable(t)
	narrow := arrow.NewSchema(rowSchema.Fields()[:3], nil)
	if _, err := tbl.Create(context.Background(), narrow, CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := Append(context.Background(), tbl, one(ids(1, 2)), AppendOptions{})
	if !failure.Is(err, failure.SchemaConflict) || !strings.Contains(err.Error(), `"at"`) {
		t.Fatalf("%v", err)
	}
	mustAppend(t, tbl, ids(1, 2), AppendOptions{MergeSchema: true})
	s, err := tbl.AddColumns(context.Background(), rowSchema.Field(4), arrow.Field{Name: "new", Type: arrow.PrimitiveTypes.Float64, Nullable: true})
	if err != nil || s.Schema.NumFields() != 6 {
		t.Fatalf("%v %v", s, err)
	}
	// Rows that lack the new column still go in.
	mustAppend(t, tbl, ids(3, 2), AppendOptions{})
	if got := contents(t, tbl); len(got) != 4 {
		t.Fatalf("%v", got)
	}
	_, err = tbl.AddColumns(context.Background(), arrow.Field{Name: "Name", Type: arrow.PrimitiveTypes.Int32, Nullable: true})
	if !failure.Is(err, failure.SchemaConflict) {
		t.Fatalf("a column under another type: %v", err)
	}
	_, err = tbl.AddColumns(context.Background(), arrow.Field{Name: "must", Type: arrow.PrimitiveTypes.Int32})
	if !failure.Is(err, failure.SchemaConflict) {
		t.Fatalf("a required column: %v", err)
	}
}

func TestPartitionColumnsStandInTheLogAndNotInTheFiles(t *testing.T) {
	tbl, dir := localTable(t)
	create(t, tbl, CreateOptions{PartitionColumns: []string{"part"}})
	want := []line{{1, "a", 1, "x y/z%=é"}, {2, "b", 1, "b"}, {3, "c", 1, ""}, {4, "d", 1, "b"}}
	r := mustAppend(t, tbl, rows(want...), AppendOptions{})
	if r.Files != 3 {
		t.Fatalf("%d files", r.Files)
	}
	got := contents(t, tbl)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("got %v want %v", got, want)
	}
	py := deltaRS(t, dir, "part")
	if py.Rows != 4 || py.Distinct != 3 {
		t.Fatalf("delta-rs reads %+v", py)
	}
}
