package maintain_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/maintain"
)

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

func TestCareKeepsATableSmallAndItsRowsExact(t *testing.T) {
	f := open(t, t.TempDir())
	care := maintain.New(f.c, ident, f.settings(maintain.Settings{Retention: lake.Retention{Keep: 20}, Grace: 20 * time.Second}))
	for range 8 {
		f.append(20)
		step(t, care)
	}
	f.exact(160)
	h := care.Health()
	if h.Snapshots > 30 || h.DataFiles > 80 || h.Manifests > 60 || h.Compacted.FilesRemoved < 100 || h.Expired < 110 || h.Removed < 250 {
		t.Errorf("health: %+v", h)
	}
	if h.Steps != 8 || h.Failures != 0 || h.Error != "" || h.At.IsZero() || h.SmallFilesMax < 1 || h.SmallFilesMax > h.SmallFiles {
		t.Errorf("health: %+v", h)
	}
	// Without care there would be 160 data files, and twice as many manifests and lists.
	if n := len(f.files(".parquet")); n > 100 {
		t.Errorf("%d data files on disk", n)
	}
	if n := len(f.files(".avro")); n > 200 {
		t.Errorf("%d manifests and lists on disk", n)
	}
	for _, s := range f.load().Metadata().Snapshots() {
		f.ids(table.WithSnapshotID(s.SnapshotID))
	}
}

func TestWhatAStepHasNoTimeForIsWhatTheNextBeginsWith(t *testing.T) {
	f := open(t, t.TempDir())
	slow := func(context.Context) (int64, error) {
		f.clock.pass(time.Second) // as expiry takes on a machine that is busy
		return 0, nil
	}
	care := maintain.New(f.c, ident, f.settings(maintain.Settings{Retention: lake.Retention{Keep: 2}, Grace: time.Second, OldestReader: slow}))
	for range 8 {
		f.append(10)
		step(t, care)
	}
	f.exact(80)
	if h := care.Health(); h.Expired == 0 || h.Compacted.Commits == 0 || h.Removed == 0 {
		t.Errorf("a part was never done: %+v", h)
	}
}

func TestATimeTravelToARetainedSnapshotStillReadsWhatItHad(t *testing.T) {
	f := open(t, t.TempDir())
	f.append(12)
	then := lake.HeadOf(f.load())
	ctx := context.Background()
	_, _, err := f.c.CommitTable(ctx, ident, nil, []table.Update{table.NewSetSnapshotRefUpdate("kept", then.ID, table.TagRef, 0, 0, 0)})
	if err != nil {
		t.Fatal(err)
	}
	reader := int64(0)
	care := maintain.New(f.c, ident, f.settings(maintain.Settings{Retention: lake.Retention{Keep: 2}, Grace: time.Second, OldestReader: func(context.Context) (int64, error) { return reader, nil }}))
	step(t, care)
	f.append(10)
	read := lake.HeadOf(f.load())
	reader = read.Sequence
	for range 6 {
		f.append(10)
		step(t, care)
	}
	f.exact(82)
	f.exact(12, table.WithSnapshotID(then.ID))
	f.exact(22, table.WithSnapshotID(read.ID))
	if h := care.Health(); h.Removed == 0 || h.Compacted.Commits == 0 {
		t.Errorf("nothing was put to the test: %+v", h)
	}
}

func TestAFileStaysForTheGraceAndUntilTheHeadHasMoved(t *testing.T) {
	f := open(t, t.TempDir())
	care := maintain.New(f.c, ident, f.settings(maintain.Settings{NoCompaction: true, Retention: lake.Retention{Keep: 2}, Grace: time.Hour}))
	step(t, care)
	f.append(1)
	list := local(t, f.load().CurrentSnapshot().ManifestList)
	step(t, care)
	f.append(5)
	step(t, care) // expires the first
	step(t, care)
	f.clock.pass(2 * time.Hour)
	step(t, care)
	if !exists(list) {
		t.Fatal("removed although no commit came after it fell out of reach")
	}
	f.append(1)
	step(t, care)
	if exists(list) {
		t.Fatal("still there after the grace and another commit")
	}
	f.exact(7)
}

func TestAStagedBatchSurvivesUntilItIsOlderThanAnyThatMayBeCommitted(t *testing.T) {
	f := open(t, t.TempDir())
	f.append(3)
	young, held, orphan := f.stage(1), f.stage(1), f.stage(1)
	age(t, 2*time.Hour, local(t, young[0].FilePath()))
	age(t, 20*24*time.Hour, local(t, held[0].FilePath()), local(t, orphan[0].FilePath()))
	care := maintain.New(f.c, ident, f.settings(maintain.Settings{NoCompaction: true, Grace: time.Second, Staged: func(context.Context) ([]string, error) {
		return []string{held[0].FilePath()}, nil
	}}))
	step(t, care)
	f.clock.pass(time.Minute)
	f.commit(nil)
	step(t, care)
	if !exists(local(t, young[0].FilePath())) || !exists(local(t, held[0].FilePath())) {
		t.Fatal("a staged file is gone")
	}
	if exists(local(t, orphan[0].FilePath())) {
		t.Fatal("the orphan is still there")
	}
	f.commit(young)
	f.commit(held)
	if got := f.ids(); len(got) != 5 {
		t.Fatalf("rows: %v", got)
	}
}

func TestOrphansByHandListsAndRemovesOnlyWhatNothingRefersTo(t *testing.T) {
	f := open(t, t.TempDir())
	f.append(6)
	ctx := context.Background()
	orphan, held, young := f.stage(1), f.stage(1), f.stage(1)
	root := local(t, f.load().Location())
	foreign := filepath.Join(root, "data", "notes.txt")
	outside := filepath.Join(filepath.Dir(root), "other", "data", "x.parquet")
	for _, p := range []string{foreign, outside} {
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	temp := filepath.Join(root, "data", ".weir-0123-f.parquet.tmp")
	if err := os.WriteFile(temp, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	age(t, 30*24*time.Hour, append(f.files(""), foreign, outside, temp)...)
	age(t, time.Hour, local(t, young[0].FilePath()))
	s := f.settings(maintain.Settings{Staged: func(context.Context) ([]string, error) { return []string{held[0].FilePath()}, nil }})
	before := lake.HeadOf(f.load())
	dry, err := maintain.Orphans(ctx, f.c, ident, maintain.OrphanOptions{DryRun: true}, s)
	if err != nil {
		t.Fatal(err)
	}
	if len(dry.Files) != 2 || dry.TooYoung != 1 || dry.Staged != 1 || lake.HeadOf(f.load()) != before || !exists(temp) {
		t.Fatalf("dry run: %+v", dry)
	}
	got, err := maintain.Orphans(ctx, f.c, ident, maintain.OrphanOptions{}, s)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Files) != 2 || lake.HeadOf(f.load()) == before {
		t.Fatalf("removed: %+v", got)
	}
	for p, want := range map[string]bool{local(t, orphan[0].FilePath()): false, temp: false, local(t, held[0].FilePath()): true,
		local(t, young[0].FilePath()): true, foreign: true, outside: true} {
		if exists(p) != want {
			t.Errorf("%s: exists %v", p, !want)
		}
	}
	f.exact(6)
	// A writer that looked before the removal cannot commit any more.
	if _, err := maintain.Orphans(ctx, f.c, ident, maintain.OrphanOptions{OlderThan: time.Minute}, s); !failure.Is(err, failure.Config) {
		t.Errorf("an age of a minute: %v", err)
	}
}

func TestACommitPreparedBeforeOrphansAreRemovedFails(t *testing.T) {
	f := open(t, t.TempDir())
	f.append(2)
	stale := f.load()
	staged := f.stage(1)
	age(t, 30*24*time.Hour, local(t, staged[0].FilePath()))
	got, err := maintain.Orphans(context.Background(), f.c, ident, maintain.OrphanOptions{}, f.settings(maintain.Settings{}))
	if err != nil || len(got.Files) != 1 {
		t.Fatalf("%+v %v", got, err)
	}
	if _, err := f.c.Commit(context.Background(), stale, lake.Change{Files: staged}); !lake.IsConflict(err) {
		t.Fatalf("a writer that was suspended committed a file that is gone: %v", err)
	}
	f.exact(2)
}

func TestCompactionIsAReplaceSnapshotOfTheSameRowsUnderTheSameProperties(t *testing.T) {
	f := open(t, t.TempDir())
	f.append(30)
	before := f.load()
	got, err := maintain.Compact(context.Background(), f.c, ident, f.settings(maintain.Settings{MinFiles: 2}))
	if err != nil || got.FilesRemoved != 30 || got.FilesAdded != 1 || got.Rows != 30 {
		t.Fatalf("%+v %v", got, err)
	}
	f.exact(30)
	after := f.load()
	head := after.CurrentSnapshot()
	for head.Summary.Properties["weir.care"] != "compaction" {
		head = after.SnapshotByID(*head.ParentSnapshotID)
	}
	if head.Summary.Operation != table.OpReplace || head.Summary.Properties["total-records"] != "30" {
		t.Errorf("summary: %+v", head.Summary)
	}
	for k, v := range before.Properties() {
		if after.Properties()[k] != v {
			t.Errorf("property %s: %q became %q", k, v, after.Properties()[k])
		}
	}
	if again, err := maintain.Compact(context.Background(), f.c, ident, f.settings(maintain.Settings{MinFiles: 2})); err != nil || again.FilesRemoved != 0 {
		t.Errorf("again: %+v %v", again, err)
	}
	f.exact(30, table.WithSnapshotID(lake.HeadOf(before).ID))
}

func TestSmallManifestsAreMergedBeforeACommitHasTo(t *testing.T) {
	f := open(t, t.TempDir())
	care := maintain.New(f.c, ident, f.settings(maintain.Settings{NoCompaction: true}))
	for range 3 {
		f.append(20)
		step(t, care)
	}
	list, err := f.load().CurrentSnapshot().Manifests(must(f.load().FS(context.Background())))
	if err != nil {
		t.Fatal(err)
	}
	if len(list) > 20 || care.Health().Merged < 50 {
		t.Fatalf("%d manifests, %+v", len(list), care.Health())
	}
	f.exact(60)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestCompactionSortsWhereAsked(t *testing.T) {
	f := open(t, t.TempDir())
	f.append(40)
	s := f.settings(maintain.Settings{MinFiles: 2, Sort: []string{"title", "id"}})
	if _, err := maintain.Compact(context.Background(), f.c, ident, s); err != nil {
		t.Fatal(err)
	}
	f.exact(40)
	rows, err := f.load().Scan().ToArrowTable(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Release()
	last := ""
	for i, v := range strings.Split(strings.Trim(rows.Column(2).Data().Chunk(0).String(), "[]"), " ") {
		if v == "(null)" {
			v = ""
		}
		if i > 6 && v < last {
			t.Fatalf("row %d: %q after %q", i, v, last)
		}
		last = v
	}
	s.Sort = []string{"nothing"}
	f.append(2)
	if _, err := maintain.Compact(context.Background(), f.c, ident, s); !failure.Is(err, failure.Config) {
		t.Errorf("a column that is not there: %v", err)
	}
}

func TestCareGivesWayToOtherWritersAndLosesNoRow(t *testing.T) {
	f := open(t, t.TempDir())
	f.append(10)
	ctx := context.Background()
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			s := f.settings(maintain.Settings{MinFiles: 2})
			_, err := maintain.Compact(ctx, f.c, ident, s)
			if err == nil {
				_, _, err = maintain.Expire(ctx, f.c, ident, maintain.Settings{Retention: lake.Retention{Keep: 5}})
			}
			if err == nil {
				_, err = maintain.Orphans(ctx, f.c, ident, maintain.OrphanOptions{}, s)
			}
			if err != nil {
				done <- err
				return
			}
		}
	}()
	for range 40 {
		files := f.stage(1)
		for {
			_, err := f.c.Commit(ctx, f.load(), lake.Change{Files: files})
			if err == nil {
				break
			}
			if !lake.IsConflict(err) {
				t.Fatal(err)
			}
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	f.exact(50)
}
