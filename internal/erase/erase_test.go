package erase_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/erase"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/datafile"
	"github.com/weirlake/weir/internal/maintain"
	"github.com/weirlake/weir/internal/marker"
)

var (
	ident = table.Identifier{"silver", "edits"}

	rowSchema = arrow.NewSchema([]arrow.Field{
		{Name: "user", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "kafka_partition", Type: arrow.PrimitiveTypes.Int32},
		{Name: "kafka_offset", Type: arrow.PrimitiveTypes.Int64},
	}, nil)
	tableSchema = iceberg.NewSchema(0,
		iceberg.NestedField{ID: 1, Name: "user", Type: iceberg.PrimitiveTypes.String},
		iceberg.NestedField{ID: 2, Name: "kafka_partition", Type: iceberg.PrimitiveTypes.Int32, Required: true},
		iceberg.NestedField{ID: 3, Name: "kafka_offset", Type: iceberg.PrimitiveTypes.Int64, Required: true},
	)
	columns = erase.Columns{Partition: "kafka_partition", Offset: "kafka_offset", Fixed: "edits"}
	at0     = batch.TopicPartition{Topic: "edits"}
)

// childDir makes this test binary a process that erases in the table of a folder.
const childDir = "WEIR_ERASE_CHILD_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		f := &fixture{c: catalogOf(dir)}
		if _, err := f.erase("e-1", places(3, 4, 11)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

type fixture struct {
	t *testing.T
	c *lake.Catalog
}

func catalogOf(dir string) *lake.Catalog {
	c, err := lake.Open(context.Background(), lake.Config{URI: filepath.Join(dir, "catalog.db"), Warehouse: filepath.Join(dir, "warehouse")})
	if err != nil {
		panic(err)
	}
	return c
}

// open makes the table with n rows in files of five, offsets from 0.
func open(t *testing.T, dir string, n int64) *fixture {
	t.Helper()
	f := &fixture{t: t, c: catalogOf(dir)}
	t.Cleanup(func() { _ = f.c.Close() })
	if _, err := f.c.EnsureTable(context.Background(), ident, tableSchema, *iceberg.UnpartitionedSpec, nil); err != nil {
		t.Fatal(err)
	}
	for from := int64(0); from < n; from += 5 {
		f.append(from, min(5, n-from))
	}
	return f
}

func (f *fixture) load() *table.Table {
	f.t.Helper()
	t, err := f.c.LoadTable(context.Background(), ident)
	if err != nil {
		f.t.Fatal(err)
	}
	return t
}

func (f *fixture) append(from, n int64) {
	f.t.Helper()
	t := f.load()
	storage, err := lake.DataFSOf(context.Background(), t)
	if err != nil {
		f.t.Fatal(err)
	}
	w, err := datafile.NewWriter(datafile.Spec{Schema: t.Schema(), PartitionSpec: t.Spec(), FormatVersion: 2, Properties: t.Properties(),
		Location: lake.DataLocation(t), FS: storage, Parallel: 1}, "f-"+clock.Nonce()+"-", nil)
	if err != nil {
		f.t.Fatal(err)
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, rowSchema)
	defer b.Release()
	for o := from; o < from+n; o++ {
		b.Field(0).(*array.StringBuilder).Append(fmt.Sprintf("u%d", o%4))
		b.Field(1).(*array.Int32Builder).Append(0)
		b.Field(2).(*array.Int64Builder).Append(o)
	}
	if err := w.Write(b.NewRecordBatch()); err != nil {
		f.t.Fatal(err)
	}
	files, err := w.Close(context.Background())
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.c.Commit(context.Background(), t, lake.Change{Files: []iceberg.DataFile{files[0].DataFile}}); err != nil {
		f.t.Fatal(err)
	}
}

func places(offsets ...int64) marker.Places {
	return marker.PlacesOf(map[batch.TopicPartition][]int64{at0: offsets})
}

func (f *fixture) erase(id string, p marker.Places) (*erase.Erased, error) {
	return erase.Apply(context.Background(), erase.Options{Catalog: f.c, Table: ident, ID: id, Rule: erase.Rule{Columns: columns, Places: p}, Clock: clock.System{}})
}

func (f *fixture) must(id string, p marker.Places) *erase.Erased {
	f.t.Helper()
	done, err := f.erase(id, p)
	if err != nil {
		f.t.Fatal(err)
	}
	return done
}

// offsets reads the table with the library's own scan.
func (f *fixture) offsets(opts ...table.ScanOption) []int64 {
	f.t.Helper()
	rows, err := f.load().Scan(append(opts, table.WithSelectedFields("kafka_offset"))...).ToArrowTable(context.Background())
	if err != nil {
		f.t.Fatal(err)
	}
	defer rows.Release()
	var out []int64
	if rows.NumRows() > 0 {
		for _, c := range rows.Column(0).Data().Chunks() {
			out = append(out, c.(*array.Int64).Int64Values()...)
		}
	}
	slices.Sort(out)
	return out
}

// lacks demands the offsets from 0 to below n but those.
func (f *fixture) lacks(n int64, gone ...int64) {
	f.t.Helper()
	var want []int64
	for o := range n {
		if !slices.Contains(gone, o) {
			want = append(want, o)
		}
	}
	if got := f.offsets(); !slices.Equal(got, want) {
		f.t.Fatalf("the table holds %v, want %v", got, want)
	}
}

// declares demands what the property says of the erasures: exactly those offsets.
func (f *fixture) declares(gone ...int64) {
	f.t.Helper()
	all, err := marker.DeclaredDeletes(f.load().Properties())
	if err != nil {
		f.t.Fatal(err)
	}
	got, err := marker.PlacesIn(all)
	if err != nil || got.Count() != int64(len(gone)) {
		f.t.Fatalf("declared are %v (%v), want %v", got, err, gone)
	}
	for _, o := range gone {
		if !got.Has(at0, o) {
			f.t.Fatalf("offset %d is not declared: %v", o, got)
		}
	}
}

func TestErasedRowsGoInOneCommitThatDeclaresThem(t *testing.T) {
	f := open(t, t.TempDir(), 20)
	before := lake.HeadOf(f.load())
	done := f.must("e-1", places(3, 4, 11, 77))
	if done.Rows != 3 || done.FilesRewritten != 2 || done.Sequence != before.Sequence+1 {
		t.Fatalf("%+v", done)
	}
	f.lacks(20, 3, 4, 11)
	f.declares(3, 4, 11)
	if op := f.load().CurrentSnapshot().Summary.Operation; op != table.OpOverwrite {
		t.Fatalf("readers must not take %q for a compaction", op)
	}
	// Once: the same id changes nothing, another one finds nothing and is seen.
	head := lake.HeadOf(f.load())
	if again := f.must("e-1", places(5)); !again.Found || again.Rows != 3 || again.Sequence != done.Sequence || lake.HeadOf(f.load()) != head {
		t.Fatalf("%+v", again)
	}
	seen := marker.ErasuresOf(f.load().Properties())
	if none := f.must("e-2", places(77)); none.Rows != 0 || lake.HeadOf(f.load()) == head || marker.ErasuresOf(f.load().Properties()) == seen {
		t.Fatalf("an erasure that takes nothing leaves no trace: %+v", none)
	}
	f.lacks(20, 3, 4, 11)
	f.declares(3, 4, 11)
	if got := f.offsets(table.WithSnapshotID(before.ID)); len(got) != 20 {
		t.Fatalf("the snapshot before has %d rows", len(got))
	}
}

func TestAllRowsOfATableCanGo(t *testing.T) {
	f := open(t, t.TempDir(), 7)
	f.must("e", places(0, 1, 2, 3, 4, 5, 6))
	f.lacks(0)
	f.append(7, 1)
	if got := f.offsets(); !slices.Equal(got, []int64{7}) {
		t.Fatalf("%v", got)
	}
}

func TestRowsAreErasedByAConditionToo(t *testing.T) {
	f := open(t, t.TempDir(), 20)
	rule := erase.Rule{Columns: columns, Needs: []string{"user"}, Match: func(rec arrow.RecordBatch) ([]bool, error) {
		users := rec.Column(rec.Schema().FieldIndices("user")[0]).(*array.String)
		out := make([]bool, users.Len())
		for i := range out {
			out[i] = users.Value(i) == "u3"
		}
		return out, nil
	}}
	n, found, err := erase.Count(context.Background(), f.c, ident, rule)
	if err != nil || n != 5 || !slices.Equal(slices.Sorted(slices.Values(found[at0])), []int64{3, 7, 11, 15, 19}) {
		t.Fatalf("%d %v %v", n, found, err)
	}
	if _, err := erase.Apply(context.Background(), erase.Options{Catalog: f.c, Table: ident, ID: "e", Rule: rule, Clock: clock.System{}}); err != nil {
		t.Fatal(err)
	}
	f.lacks(20, 3, 7, 11, 15, 19)
	f.declares(3, 7, 11, 15, 19)
}

func TestAnErasureThatRacesWithAppendsAndCompactionsIsExact(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir, 40)
	tries, next := 0, int64(40)
	racing := &fixture{t: t, c: f.c.WithHooks(lake.CommitHooks{Before: func(ctx context.Context, _ table.Identifier) error {
		tries++
		switch tries {
		case 1, 3: // a batch of a query
			f.append(next, 5)
			next += 5
		case 2: // all small files become one
			_, err := maintain.Compact(ctx, f.c, ident, maintain.Settings{MinFiles: 2})
			return err
		}
		return nil
	}})}
	done, err := racing.erase("e", places(3, 4, 11, 38))
	if err != nil || done.Rows != 4 || tries < 4 {
		t.Fatalf("%+v %v after %d tries", done, err, tries)
	}
	f.lacks(next, 3, 4, 11, 38)
	f.declares(3, 4, 11, 38)
	// A compaction afterwards brings nothing back.
	if _, err := maintain.Compact(context.Background(), f.c, ident, maintain.Settings{MinFiles: 2}); err != nil {
		t.Fatal(err)
	}
	f.lacks(next, 3, 4, 11, 38)
}

func TestAnErasureThatIsKilledAndRepeatedEndsTheSame(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir, 20)
	run := func(crash string) {
		t.Helper()
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), childDir+"="+dir)
		if crash != "" {
			cmd.Env = append(cmd.Env, "WEIR_CRASH_AT="+crash)
		}
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		switch {
		case crash == "" && err != nil:
			t.Fatalf("%v\n%s", err, out)
		case crash != "" && (!errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL || !strings.Contains(string(out), "crash point")):
			t.Fatalf("%s was not reached: %v\n%s", crash, err, out)
		}
	}
	run("erase/" + fault.EraseStaged + ":1")
	f.lacks(20)
	f.declares()
	run("")
	run("")
	f.lacks(20, 3, 4, 11)
	f.declares(3, 4, 11)
}
