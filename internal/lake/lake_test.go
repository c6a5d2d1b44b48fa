package lake

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/failure"
)

var testSchema = iceberg.NewSchema(0,
	iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64, Required: true},
	iceberg.NestedField{ID: 2, Name: "ts", Type: iceberg.PrimitiveTypes.TimestampTz, Required: true},
	iceberg.NestedField{ID: 3, Name: "tags", Type: &iceberg.ListType{ElementID: 4, Element: iceberg.PrimitiveTypes.String, ElementRequired: true}},
)

func daySpec() iceberg.PartitionSpec {
	return iceberg.NewPartitionSpec(iceberg.PartitionField{
		SourceIDs: []int{2}, FieldID: 1000, Name: "ts_day", Transform: iceberg.DayTransform{},
	})
}

func openTest(t *testing.T, dir string) *Catalog {
	t.Helper()
	c, err := Open(context.Background(), Config{URI: filepath.Join(dir, "catalog.db"), Warehouse: filepath.Join(dir, "warehouse")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func ensure(t *testing.T, c *Catalog, name string) *table.Table {
	t.Helper()
	ident, err := ParseName(name)
	if err != nil {
		t.Fatal(err)
	}
	tbl, err := c.EnsureTable(context.Background(), ident, testSchema, daySpec(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return tbl
}

// bump commits a zero-file snapshot.
func bump(t *testing.T, c *Catalog, base *table.Table, n int) *table.Table {
	t.Helper()
	after, err := c.Commit(context.Background(), base, Change{
		Properties: map[string]string{"weir.query.q": fmt.Sprintf("{\"n\":%d}", n)},
		Summary:    map[string]string{"weir.n": fmt.Sprint(n)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return after
}

func TestZeroFileCommitMovesTheHeadAndSetsThePropertyInOneStep(t *testing.T) {
	c := openTest(t, t.TempDir())
	tbl := ensure(t, c, "a.b")
	after := bump(t, c, tbl, 1)
	fresh, err := c.LoadTable(context.Background(), tbl.Identifier())
	if err != nil {
		t.Fatal(err)
	}
	if HeadOf(fresh).ID == 0 || HeadOf(fresh) != HeadOf(after) {
		t.Fatalf("head %v, commit returned %v", HeadOf(fresh), HeadOf(after))
	}
	if got := fresh.Properties()["weir.query.q"]; got != `{"n":1}` {
		t.Fatalf("property %q", got)
	}
	if got := SummaryValue(fresh.CurrentSnapshot(), "weir.n"); got != "1" {
		t.Fatalf("summary %q", got)
	}
	if got := SummaryValue(fresh.CurrentSnapshot(), "total-data-files"); got != "0" {
		t.Fatalf("total-data-files %q", got)
	}
	var data int
	f := NewFileIO()
	err = f.WalkDir(DataLocation(fresh), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			data++
		}
		return nil
	})
	if data != 0 || (err != nil && !errors.Is(err, fs.ErrNotExist)) {
		t.Fatalf("%d data files, %v", data, err)
	}
}

func TestCommitFromAStaleTableIsAConflictEvenWithLibraryRetriesOn(t *testing.T) {
	c := openTest(t, t.TempDir())
	ident := table.Identifier{"a", "b"}
	stale, err := c.EnsureTable(context.Background(), ident, testSchema, daySpec(),
		iceberg.Properties{table.CommitNumRetriesKey: "5", table.CommitMinRetryWaitMsKey: "1"})
	if err != nil {
		t.Fatal(err)
	}
	bump(t, c, stale, 1)
	_, err = c.Commit(context.Background(), stale, Change{Properties: map[string]string{"weir.query.q": "stale"}})
	if !errors.Is(err, ErrConflict) || errors.Is(err, ErrUnknown) {
		t.Fatalf("want a conflict, got %v", err)
	}
	fresh, _ := c.LoadTable(context.Background(), ident)
	if fresh.Properties()["weir.query.q"] != `{"n":1}` || len(fresh.Metadata().Snapshots()) != 1 {
		t.Fatalf("the stale commit changed the table: %v", fresh.Properties())
	}
}

func TestCommitToATableThatWasDroppedAndMadeAgainIsAConflict(t *testing.T) {
	c := openTest(t, t.TempDir())
	tbl := ensure(t, c, "a.b")
	if err := c.DropTable(context.Background(), tbl.Identifier()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Commit(context.Background(), tbl, Change{}); !errors.Is(err, ErrConflict) {
		t.Fatalf("dropped: %v", err)
	}
	ensure(t, c, "a.b")
	if _, err := c.Commit(context.Background(), tbl, Change{}); !errors.Is(err, ErrConflict) {
		t.Fatalf("made again: %v", err)
	}
}

func TestHooksGiveAnUnknownOutcomeForACommitThatWasMade(t *testing.T) {
	c := openTest(t, t.TempDir())
	tbl := ensure(t, c, "a.b")
	lost := errors.New("connection lost")
	hooked := c.WithHooks(CommitHooks{After: func(context.Context, table.Identifier) error { return lost }})
	_, err := hooked.Commit(context.Background(), tbl, Change{})
	if !errors.Is(err, ErrUnknown) || !errors.Is(err, lost) {
		t.Fatalf("got %v", err)
	}
	fresh, _ := c.LoadTable(context.Background(), tbl.Identifier())
	if HeadOf(fresh).ID == 0 {
		t.Fatal("the commit was not made")
	}
}

func TestMetadataHookRunsBetweenMetadataAndSwap(t *testing.T) {
	c := openTest(t, t.TempDir())
	tbl := ensure(t, c, "a.b")
	files := func() int {
		m, _ := filepath.Glob(filepath.Join(strings.TrimPrefix(tbl.Location(), "file://"), "metadata", "*.metadata.json"))
		return len(m)
	}
	before, called := files(), false
	ctx := WithMetadataHook(context.Background(), func() {
		called = true
		if files() != before+1 {
			t.Errorf("%d metadata files, want %d", files(), before+1)
		}
		fresh, err := c.LoadTable(context.Background(), tbl.Identifier())
		if err != nil || HeadOf(fresh).ID != 0 {
			t.Errorf("the commit is visible before the swap: %v %v", HeadOf(fresh), err)
		}
	})
	if _, err := c.Commit(ctx, tbl, Change{}); err != nil {
		t.Fatal(err)
	}
	if !called {
		t.Fatal("the hook was not called")
	}
}

func TestRacingCommitsOfTwoCatalogsLoseNothingAndDoubleNothing(t *testing.T) {
	dir := t.TempDir()
	first := openTest(t, dir)
	tbl := ensure(t, first, "a.b")
	const writers, each = 3, 20
	var wg sync.WaitGroup
	for w := range writers {
		c := openTest(t, dir)
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := 0; i < each; {
				cur, err := c.LoadTable(context.Background(), tbl.Identifier())
				if err != nil {
					t.Error(err)
					return
				}
				_, err = c.Commit(context.Background(), cur, Change{Summary: map[string]string{"weir.n": fmt.Sprintf("%d-%d", w, i)}})
				switch {
				case err == nil:
					i++
				case !IsConflict(err):
					t.Error(err)
					return
				}
			}
		}()
	}
	wg.Wait()
	fresh, _ := first.LoadTable(context.Background(), tbl.Identifier())
	seen := map[string]int{}
	Walk(fresh, func(s *table.Snapshot) bool { seen[SummaryValue(s, "weir.n")]++; return true })
	if len(seen) != writers*each || HeadOf(fresh).Sequence != writers*each {
		t.Fatalf("%d commits, head %v", len(seen), HeadOf(fresh))
	}
}

func TestEnsureTableIsIdempotentUnderRace(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	ids := make([]string, 4)
	for i := range ids {
		wg.Add(1)
		go func() {
			defer wg.Done()
			c, err := Open(context.Background(), Config{URI: filepath.Join(dir, "catalog.db"), Warehouse: filepath.Join(dir, "warehouse")})
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			tbl, err := c.EnsureTable(context.Background(), table.Identifier{"a", "b"}, testSchema, daySpec(), nil)
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = tbl.Metadata().TableUUID().String()
		}()
	}
	wg.Wait()
	slices.Sort(ids)
	if ids[0] == "" || ids[0] != ids[len(ids)-1] {
		t.Fatalf("several tables were made: %v", ids)
	}
}

func TestIncompatibleSchemaNamesTheColumn(t *testing.T) {
	c := openTest(t, t.TempDir())
	ensure(t, c, "a.b")
	cases := map[string]*iceberg.Schema{
		"id": iceberg.NewSchema(0, iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.String, Required: true}),
		"ts": iceberg.NewSchema(0,
			iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64, Required: true},
			iceberg.NestedField{ID: 2, Name: "ts", Type: iceberg.PrimitiveTypes.TimestampTz}),
		"extra": iceberg.NewSchema(0, append(slices.Clone(testSchema.Fields()),
			iceberg.NestedField{ID: 9, Name: "extra", Type: iceberg.PrimitiveTypes.String})...),
		"tags": iceberg.NewSchema(0, testSchema.Field(0), testSchema.Field(1),
			iceberg.NestedField{ID: 3, Name: "tags", Type: &iceberg.ListType{ElementID: 4, Element: iceberg.PrimitiveTypes.Int32, ElementRequired: true}}),
	}
	for column, schema := range cases {
		_, err := c.EnsureTable(context.Background(), table.Identifier{"a", "b"}, schema, *iceberg.UnpartitionedSpec, nil)
		if !failure.Is(err, failure.SchemaConflict) || !strings.Contains(err.Error(), fmt.Sprintf("%q", column)) {
			t.Errorf("column %s: %v", column, err)
		}
	}
	// A query that writes fewer, compatible columns is fine.
	less := iceberg.NewSchema(0, testSchema.Field(1), testSchema.Field(0))
	if _, err := c.EnsureTable(context.Background(), table.Identifier{"a", "b"}, less, *iceberg.UnpartitionedSpec, nil); err != nil {
		t.Error(err)
	}
}

func TestExpiryKeepsTheNewestAndTheMarkersAndTheProperty(t *testing.T) {
	c := openTest(t, t.TempDir())
	tbl := ensure(t, c, "a.b")
	slow, err := c.Commit(context.Background(), tbl, Change{
		Properties: map[string]string{"weir.query.slow": `{"format":1,"query_name":"slow","attempt":"aaaa"}`},
		Summary:    map[string]string{"weir.attempt": "aaaa"},
	})
	if err != nil {
		t.Fatal(err)
	}
	cur := slow
	for i := range 30 {
		cur, err = c.Commit(context.Background(), cur, Change{Summary: map[string]string{"weir.n": fmt.Sprint(i)}})
		if err != nil {
			t.Fatal(err)
		}
		if i == 20 {
			if r := (Retention{Keep: 5}); r.Due(cur) {
				if _, err := c.Expire(context.Background(), cur, r); err != nil {
					t.Fatal(err)
				}
				cur, _ = c.LoadTable(context.Background(), cur.Identifier())
			} else {
				t.Fatal("expiry is not due with 22 snapshots for 5")
			}
		}
	}
	head := HeadOf(cur)
	stale := cur
	if _, err := c.Expire(context.Background(), cur, Retention{Keep: 5, OldestReader: head.Sequence - 7}); err != nil {
		t.Fatal(err)
	}
	cur, _ = c.LoadTable(context.Background(), cur.Identifier())
	if HeadOf(cur) != head {
		t.Fatalf("expiry moved the head: %v", HeadOf(cur))
	}
	if n := len(cur.Metadata().Snapshots()); n != 9 { // 8 from the reader on, and the slow query's
		t.Fatalf("%d snapshots left", n)
	}
	if cur.SnapshotByID(HeadOf(slow).ID) == nil || cur.Properties()["weir.query.slow"] == "" {
		t.Fatal("the slow query's marker is gone")
	}
	if Walk(cur, func(*table.Snapshot) bool { return true }) != BrokenBy {
		t.Fatal("a chain cut by expiry does not look like one")
	}
	bump(t, c, cur, 99)
	if _, err := c.Expire(context.Background(), stale, Retention{Keep: 1}); !errors.Is(err, ErrConflict) {
		t.Fatalf("expiry of a stale head: %v", err)
	}
}

func TestWhatIsKeptParsedIsWhatStandsInTheFile(t *testing.T) {
	dir := t.TempDir()
	c, other := openTest(t, dir), openTest(t, dir)
	cur := ensure(t, c, "a.b")
	for i := range 5 {
		bump(t, c, cur, i)
		kept, err := c.LoadTable(context.Background(), cur.Identifier())
		if err != nil {
			t.Fatal(err)
		}
		read, err := table.NewFromLocation(context.Background(), cur.Identifier(), kept.MetadataLocation(), kept.FS, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !read.Metadata().Equals(kept.Metadata()) {
			t.Fatalf("commit %d: the kept metadata differs from the file", i)
		}
		// The other process's commit is seen at once.
		theirs, err := other.LoadTable(context.Background(), cur.Identifier())
		if err != nil {
			t.Fatal(err)
		}
		theirs = bump(t, other, theirs, 100+i)
		if cur, err = c.LoadTable(context.Background(), cur.Identifier()); err != nil || HeadOf(cur) != HeadOf(theirs) {
			t.Fatalf("head %v, the other process committed %v, %v", HeadOf(cur), HeadOf(theirs), err)
		}
	}
}

func TestMetadataFilesStayFew(t *testing.T) {
	c := openTest(t, t.TempDir())
	cur := ensure(t, c, "a.b")
	for i := range 25 {
		cur = bump(t, c, cur, i)
	}
	m, _ := filepath.Glob(filepath.Join(strings.TrimPrefix(cur.Location(), "file://"), "metadata", "*.metadata.json"))
	if len(m) > 11 {
		t.Fatalf("%d metadata files", len(m))
	}
}

func TestWarehouseThatOtherEnginesWouldMisreadIsRefused(t *testing.T) {
	for _, w := range []string{"", "/tmp/my data", "/tmp/50%", "hdfs://bucket/x", "/tmp/a#b"} {
		if _, err := WarehouseURI(w); !failure.Is(err, failure.Config) {
			t.Errorf("%q: %v", w, err)
		}
	}
	wd, _ := os.Getwd()
	for in, want := range map[string]string{"/a/b/": "file:///a/b", "file:///a/b": "file:///a/b", "x": "file://" + filepath.Join(wd, "x")} {
		if got, err := WarehouseURI(in); err != nil || got != want {
			t.Errorf("%q: %q %v", in, got, err)
		}
	}
}

func TestSQLiteAddressesOfPyIcebergAreUnderstood(t *testing.T) {
	wd, _ := os.Getwd()
	for in, want := range map[string]string{
		"sqlite:////a/c.db": "/a/c.db", "sqlite:///c.db": filepath.Join(wd, "c.db"), "/a/c.db": "/a/c.db",
		"c.db": filepath.Join(wd, "c.db"), "sqlite:c.db": filepath.Join(wd, "c.db"), "file:///a/c.db": "/a/c.db",
	} {
		if got, err := sqlitePath(in); err != nil || got != want {
			t.Errorf("%q: %q %v", in, got, err)
		}
	}
}
