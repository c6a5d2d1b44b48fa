package delta

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore"
)

func TestFiveHundredCommitsOpenFromTheirCheckpoint(t *testing.T) {
	if testing.Short() {
		t.Skip("500 commits; skipped under -short")
	}
	tbl, dir := localTable(t)
	create(t, tbl, CreateOptions{})
	for i := range int64(500) {
		mustAppend(t, tbl, ids(i*2, 2), AppendOptions{TxnAppID: "q", TxnVersion: i})
	}
	check := func(what string) {
		t.Helper()
		fresh := openDir(t, dir)
		s, err := fresh.Snapshot(context.Background())
		if err != nil {
			t.Fatal(what, err)
		}
		if x, _ := s.Txn("q"); s.Version != 500 || s.NumFiles() != 500 || x.Version != 499 || len(contents(t, fresh)) != 1000 {
			t.Fatalf("%s: version %d, %d files, txn %+v", what, s.Version, s.NumFiles(), x)
		}
		py := deltaRS(t, dir, "id", "q")
		if py.Version != 500 || py.Rows != 1000 || py.Distinct != 1000 || py.Txns["q"] == nil || *py.Txns["q"] != 499 {
			t.Fatalf("%s: delta-rs reads %+v", what, py)
		}
	}
	check("whole log")
	// Without the commits before the last checkpoint it has to be read from it.
	for v := range int64(500) {
		if err := os.Remove(filepath.Join(dir, filepath.FromSlash(commitKey(v)))); err != nil {
			t.Fatal(err)
		}
	}
	check("checkpoint only")
}

func TestLogIsCleanedUpToTheRetentionAndNotBeyond(t *testing.T) {
	tbl, dir := localTable(t)
	create(t, tbl, CreateOptions{Configuration: map[string]string{PropLogRetention: "interval 2 days"}})
	for i := range int64(25) {
		mustAppend(t, tbl, ids(i, 1), AppendOptions{TxnAppID: "q", TxnVersion: i})
	}
	count := func() int {
		l, err := filepath.Glob(filepath.Join(dir, "_delta_log", "*.json"))
		if err != nil {
			t.Fatal(err)
		}
		return len(l)
	}
	if n := count(); n != 26 {
		t.Fatalf("%d commits within the retention", n)
	}
	files, err := filepath.Glob(filepath.Join(dir, "_delta_log", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		then := time.Now().Add(-3 * 24 * time.Hour)
		if err := os.Chtimes(f, then, then); err != nil {
			t.Fatal(err)
		}
	}
	for i := range int64(10) {
		mustAppend(t, tbl, ids(100+i, 1), AppendOptions{})
	}
	// Versions 0 to 35; the checkpoint that is old enough is 20's.
	if n := count(); n != 16 {
		t.Fatalf("%d commits left", n)
	}
	s, err := openDir(t, dir).Snapshot(context.Background())
	if err != nil || s.NumFiles() != 35 {
		t.Fatalf("%v %v", s, err)
	}
	if x, ok := s.Txn("q"); !ok || x.Version != 24 {
		t.Fatalf("txn %+v", x)
	}
	if _, err := openDir(t, dir).SnapshotAt(context.Background(), 19); err == nil {
		t.Fatal("a version that was cleaned up was read")
	}
	if old, err := openDir(t, dir).SnapshotAt(context.Background(), 22); err != nil || old.NumFiles() != 22 {
		t.Fatalf("%v %v", old, err)
	}
	if py := deltaRS(t, dir, "id", "q"); py.Rows != 35 || *py.Txns["q"] != 24 {
		t.Fatalf("delta-rs reads %+v", py)
	}
}

func TestTablesOfUnknownFeaturesAreRefusedByName(t *testing.T) {
	sc, err := SchemaString(rowSchema)
	if err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]struct {
		p    Protocol
		conf map[string]string
		sc   string
	}{
		"deletionVectors":  {p: Protocol{MinReaderVersion: 3, MinWriterVersion: 7, ReaderFeatures: []string{"deletionVectors"}, WriterFeatures: []string{"deletionVectors"}}},
		"rowTracking":      {p: Protocol{MinReaderVersion: 1, MinWriterVersion: 7, WriterFeatures: []string{"appendOnly", "rowTracking"}}},
		"reader version 9": {p: Protocol{MinReaderVersion: 9, MinWriterVersion: 7}},
		"columnMapping":    {p: Protocol{MinReaderVersion: 2, MinWriterVersion: 5}, conf: map[string]string{"delta.columnMapping.mode": "name"}},
		"changeDataFeed":   {p: Protocol{MinReaderVersion: 1, MinWriterVersion: 4}, conf: map[string]string{"delta.enableChangeDataFeed": "true"}},
		"checkConstraints": {p: Protocol{MinReaderVersion: 1, MinWriterVersion: 3}, conf: map[string]string{"delta.constraints.positive": "id > 0"}},
		"invariants":       {p: Protocol{MinReaderVersion: 1, MinWriterVersion: 2}, sc: strings.Replace(sc, `"metadata":{}`, `"metadata":{"delta.invariants":"{}"}`, 1)},
		"timestamp_ntz":    {p: Protocol{MinReaderVersion: 1, MinWriterVersion: 2}, sc: strings.Replace(sc, `"timestamp"`, `"timestamp_ntz"`, 1)},
	} {
		tbl, dir := localTable(t)
		text := sc
		if c.sc != "" {
			text = c.sc
		}
		body, err := encodeCommit([]Action{{Protocol: &c.p}, {Metadata: &Metadata{ID: "x", Format: Format{Provider: "parquet"}, SchemaString: text, PartitionColumns: []string{}, Configuration: c.conf}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(dir, "_delta_log"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.FromSlash(commitKey(0))), body, 0o644); err != nil {
			t.Fatal(err)
		}
		_, err = tbl.Snapshot(context.Background())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		if want != "timestamp_ntz" && !failure.Is(err, failure.SchemaConflict) {
			t.Errorf("%s: class of %v", want, err)
		}
		if _, err := Append(context.Background(), tbl, one(ids(1, 1)), AppendOptions{}); err == nil {
			t.Errorf("%s: an append went through", want)
		}
	}
}

func TestTooShortTransactionRetentionIsRefused(t *testing.T) {
	tbl, _ := localTable(t)
	_, err := tbl.Create(context.Background(), rowSchema, CreateOptions{Configuration: map[string]string{PropTxnRetention: "interval 7 days"}})
	if !failure.Is(err, failure.Config) || !strings.Contains(err.Error(), PropTxnRetention) {
		t.Fatalf("%v", err)
	}
	create(t, tbl, CreateOptions{Configuration: map[string]string{PropTxnRetention: "interval 30 days"}})
	mustAppend(t, tbl, ids(1, 1), AppendOptions{})
	// Somebody shortens it later.
	s, err := tbl.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	m := *s.Metadata
	m.Configuration = map[string]string{PropTxnRetention: "interval 1 hours"}
	if _, err := Commit(context.Background(), tbl, func(context.Context, *Snapshot) ([]Action, error) { return []Action{{Metadata: &m}}, nil }, CommitOptions{Operation: "SET TBLPROPERTIES"}); err != nil {
		t.Fatal(err)
	}
	if _, err := Append(context.Background(), tbl, one(ids(2, 1)), AppendOptions{}); !failure.Is(err, failure.Config) {
		t.Fatalf("%v", err)
	}
}

func TestOptimizeAndVacuumKeepRowsAndMemory(t *testing.T) {
	c := &movedClock{}
	dir := filepath.Join(t.TempDir(), "table")
	storage, err := OpenLocal(dir, objstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	tbl := Open(storage, Options{Clock: c})
	create(t, tbl, CreateOptions{PartitionColumns: []string{"part"}})
	for i := range int64(12) {
		mustAppend(t, tbl, rows(line{i * 2, "a", i, "p"}, line{i*2 + 1, "b", i, "q"}), AppendOptions{TxnAppID: "app", TxnVersion: i})
	}
	before := contents(t, tbl)
	if err := storage.Put(context.Background(), "_weir/x/1.json", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if err := storage.Put(context.Background(), "orphan.parquet", []byte("PAR1")); err != nil {
		t.Fatal(err)
	}
	r, err := Optimize(context.Background(), tbl, OptimizeOptions{})
	if err != nil || r.FilesRemoved != 24 || r.FilesAdded != 2 || r.Rows != 24 || r.Commits != 1 {
		t.Fatalf("%+v %v", r, err)
	}
	if again, err := Optimize(context.Background(), tbl, OptimizeOptions{}); err != nil || again.Commits != 0 {
		t.Fatalf("%+v %v", again, err)
	}
	if _, err := Vacuum(context.Background(), tbl, VacuumOptions{Retention: time.Hour}); !failure.Is(err, failure.Config) {
		t.Fatalf("a short retention: %v", err)
	}
	if v, err := Vacuum(context.Background(), tbl, VacuumOptions{}); err != nil || len(v.Files) != 0 {
		t.Fatalf("within the retention: %+v %v", v, err)
	}
	c.by = 8 * 24 * time.Hour
	if v, err := Vacuum(context.Background(), tbl, VacuumOptions{DryRun: true}); err != nil || len(v.Files) != 25 {
		t.Fatalf("dry run: %d files, %v", len(v.Files), err)
	}
	v, err := Vacuum(context.Background(), tbl, VacuumOptions{})
	if err != nil || len(v.Files) != 25 {
		t.Fatalf("%d files, %v", len(v.Files), err)
	}
	if got := contents(t, tbl); fmt.Sprint(got) != fmt.Sprint(before) {
		t.Fatalf("rows changed: %v", got)
	}
	if r := mustAppend(t, tbl, ids(0, 1), AppendOptions{TxnAppID: "app", TxnVersion: 11}); !r.Skipped {
		t.Fatal("the memory was lost")
	}
	if _, err := storage.Get(context.Background(), "_weir/x/1.json"); err != nil {
		t.Fatal("vacuum took a hidden file: ", err)
	}
	if py := deltaRS(t, dir, "id", "app"); py.Rows != 24 || py.Files != 2 || *py.Txns["app"] != 11 {
		t.Fatalf("delta-rs reads %+v", py)
	}
}

func TestCompactionDoesNotUndoAConcurrentDelete(t *testing.T) {
	tbl, dir := localTable(t)
	create(t, tbl, CreateOptions{})
	for i := range int64(3) {
		mustAppend(t, tbl, ids(i, 1), AppendOptions{})
	}
	s, err := tbl.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Delete(context.Background(), openDir(t, dir), one(ids(1, 1)), MergeOptions{Keys: []string{"id"}}); err != nil {
		t.Fatal(err)
	}
	// The compaction read the version before the delete.
	var out OptimizeResult
	group := groups(bins(s, compactTargetBytes))
	if err := compact(context.Background(), tbl, s, group[0], OptimizeOptions{TargetBytes: compactTargetBytes}, &out); err == nil {
		t.Fatal("the compaction brought a deleted row back")
	}
	if got := contents(t, tbl); len(got) != 2 {
		t.Fatalf("%v", got)
	}
}

func TestStatisticsBoundEveryValue(t *testing.T) {
	tbl, _ := localTable(t)
	create(t, tbl, CreateOptions{})
	long := strings.Repeat("ü", 40)
	mustAppend(t, tbl, rows(line{-5, long, 7, ""}, line{9, "a", 1, "z"}), AppendOptions{})
	s, err := tbl.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	st, ok := s.Files()[0].ParseStats()
	if !ok || st.NumRecords != 2 {
		t.Fatalf("%+v", st)
	}
	var name string
	if err := json.Unmarshal(st.MaxValues["name"], &name); err != nil || name < long || len(name) > 4*40 {
		t.Fatalf("name up to %q", name)
	}
	for col, want := range map[string][3]string{
		"id": {"-5", "9", "0"}, "part": {`"z"`, `"z"`, "1"}, "seq": {"1", "7", "0"},
		"at": {`"2023-11-14T22:13:20.001Z"`, `"2023-11-14T22:13:20.011Z"`, "0"},
	} {
		got := [3]string{string(st.MinValues[col]), string(st.MaxValues[col]), string(st.NullCount[col])}
		if got != want {
			t.Errorf("%s: %v, want %v", col, got, want)
		}
	}
}

// A writer reads a version, sleeps through the log's retention, and finds the
// next version free again, because it was cleaned up.
func TestWriterThatSleptThroughTheRetentionDoesNotCommitIntoThePast(t *testing.T) {
	c := &movedClock{}
	dir := filepath.Join(t.TempDir(), "table")
	storage, err := OpenLocal(dir, objstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sleeper := Open(&sleepy{Storage: storage, nap: func() {
		awake := openDir(t, dir)
		for i := range int64(25) {
			mustAppend(t, awake, ids(100+i, 1), AppendOptions{})
		}
		for v := int64(0); v < 20; v++ {
			if err := os.Remove(filepath.Join(dir, filepath.FromSlash(commitKey(v)))); err != nil {
				t.Error(err)
			}
		}
		c.by = 40 * 24 * time.Hour
	}}, Options{Clock: c})
	create(t, openDir(t, dir), CreateOptions{})
	mustAppend(t, openDir(t, dir), ids(1, 1), AppendOptions{})
	mustAppend(t, sleeper, ids(2, 1), AppendOptions{})
	if got := contents(t, openDir(t, dir)); len(got) != 27 {
		t.Fatalf("%d rows, want 27", len(got))
	}
	if _, err := os.Stat(filepath.Join(dir, filepath.FromSlash(commitKey(2)))); err == nil {
		t.Fatal("a commit was left in the past")
	}
}

// sleepy naps once, right before a commit is made.
type sleepy struct {
	Storage
	nap func()
}

func (s *sleepy) CreateOnce(ctx context.Context, key string, data []byte) (bool, []byte, error) {
	if nap := s.nap; nap != nil && strings.HasPrefix(key, logFolder) {
		s.nap = nil
		nap()
	}
	return s.Storage.CreateOnce(ctx, key, data)
}

func TestOtherEnginesWriteOursAndWeWriteTheirs(t *testing.T) {
	py := python(t)
	tbl, dir := localTable(t)
	create(t, tbl, CreateOptions{PartitionColumns: []string{"part"}})
	for i := range int64(12) {
		mustAppend(t, tbl, rows(line{i, "ours", i, "a b%/é"}), AppendOptions{TxnAppID: "q", TxnVersion: i})
	}
	other := filepath.Join(t.TempDir(), "theirs")
	script(t, py, "testdata/foreign.py", dir, other)
	// Their append, delete and checkpoint on our table.
	got := contents(t, openDir(t, dir))
	if len(got) != 12-1+2 {
		t.Fatalf("%v", got)
	}
	if r := mustAppend(t, openDir(t, dir), ids(1, 1), AppendOptions{TxnAppID: "q", TxnVersion: 11}); !r.Skipped {
		t.Fatal("the other engine's checkpoint lost our memory")
	}
	mustAppend(t, openDir(t, dir), rows(line{77, "ours again", 1, "c"}), AppendOptions{})
	if r := deltaRS(t, dir, "id", "q"); r.Rows != 14 || *r.Txns["q"] != 11 {
		t.Fatalf("delta-rs reads %+v", r)
	}
	// Our writes on their table, made with every type, nested ones among them.
	theirs := openDir(t, other)
	s, err := theirs.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var recs []arrow.RecordBatch
	if err := theirs.Scan(context.Background(), s, ScanOptions{}, func(r arrow.RecordBatch) error { recs = append(recs, r); return nil }); err != nil {
		t.Fatal(err)
	}
	for range 11 {
		if _, err := Append(context.Background(), theirs, recs, AppendOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Optimize(context.Background(), theirs, OptimizeOptions{}); err != nil {
		t.Fatal(err)
	}
	out := script(t, py, "testdata/same.py", other)
	if string(out) != "36 rows, 3 distinct" {
		t.Fatalf("%s", out)
	}
}
