package delta

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/objstore"
)

// story is what a writer does in the crash test: appends, a merge, a compaction
// and a vacuum, with a log checkpoint every three versions. Every step is
// idempotent, so that it can be told again from its beginning after a crash.
func story(tbl *Table, c *movedClock) error {
	ctx := context.Background()
	if _, err := tbl.Create(ctx, rowSchema, CreateOptions{Configuration: map[string]string{PropCheckpointInterval: "3"}}); err != nil {
		return err
	}
	for i := range int64(7) {
		if _, err := Append(ctx, tbl, one(ids(i*2, 2)), AppendOptions{TxnAppID: "a", TxnVersion: i}); err != nil {
			return err
		}
	}
	o := byKey
	o.TxnAppID = "m"
	if _, err := Merge(ctx, tbl, source([]change{{line{0, "merged", 9, ""}, false}, {line{1, "", 9, ""}, true}, {line{100, "new", 9, ""}, false}}), o); err != nil {
		return err
	}
	if _, err := Optimize(ctx, tbl, OptimizeOptions{}); err != nil {
		return err
	}
	c.by += 8 * 24 * time.Hour
	_, err := Vacuum(ctx, tbl, VacuumOptions{})
	return err
}

// checkState makes sure that the table, if there is one, is whole: every file
// that it refers to is there, every row once, and no more than was told.
func checkState(tbl *Table) error {
	got, err := readAll(tbl)
	if errors.Is(err, ErrNoTable) {
		return nil
	}
	if err != nil {
		return err
	}
	s, err := tbl.Snapshot(context.Background())
	if err != nil {
		return err
	}
	want := 0
	if x, ok := s.Txn("a"); ok {
		want = 2 * int(x.Version+1)
	}
	if len(got) != want { // the merge deletes one row and inserts one
		return fmt.Errorf("version %d: %d rows, its transactions say %d", s.Version, len(got), want)
	}
	for i := 1; i < len(got); i++ {
		if got[i].id == got[i-1].id {
			return fmt.Errorf("version %d: row %d is there twice", s.Version, got[i].id)
		}
	}
	return nil
}

// Power is lost between any two operations of the disk, with every unsynced
// write lost (seed 0) or some of them kept and torn.
func TestCrashBetweenAnyTwoDurableStepsLeavesAReadableTable(t *testing.T) {
	ops := 0
	{
		c := &movedClock{}
		store := objstore.NewMemory(c)
		store.Trace(func(string) error { ops++; return nil })
		if err := story(Open(FromStore(store), Options{Clock: c}), c); err != nil {
			t.Fatal(err)
		}
	}
	step := 1
	if testing.Short() {
		step = 7
	}
	t.Logf("%d operations", ops)
	for n := 0; n < ops; n += step {
		for _, seed := range []uint64{0, uint64(n) + 1} {
			c := &movedClock{}
			store := objstore.NewMemory(c)
			store.CrashAfter(n)
			err := story(Open(FromStore(store), Options{Clock: c}), c)
			if err == nil {
				// Log maintenance is allowed to fail; the rest went through.
				err = objstore.ErrCrashed
			}
			if !errors.Is(err, objstore.ErrCrashed) {
				t.Fatalf("after %d operations: %v", n, err)
			}
			store.Crash(seed)
			tbl := Open(FromStore(store.Reopen()), Options{Clock: c})
			if err := checkState(tbl); err != nil {
				t.Fatalf("power lost after %d operations (seed %d): %v\n%s", n, seed, err, store)
			}
			if err := story(tbl, c); err != nil {
				t.Fatalf("again after power was lost after %d operations (seed %d): %v", n, seed, err)
			}
			got, err := readAll(Open(FromStore(store.Reopen()), Options{Clock: c}))
			if err != nil || len(got) != 14 || got[0].name != "merged" || got[1].id != 2 || got[13].name != "new" {
				t.Fatalf("told again after %d operations (seed %d): %v %v", n, seed, got, err)
			}
		}
	}
}

func TestOrderOfDurableWritesIsPinned(t *testing.T) {
	store := objstore.NewMemory(clock.System{})
	var ops []string
	tbl := Open(FromStore(store), Options{})
	if _, err := tbl.Create(context.Background(), rowSchema, CreateOptions{Configuration: map[string]string{PropCheckpointInterval: "1"}}); err != nil {
		t.Fatal(err)
	}
	store.Trace(func(op string) error {
		verb, what, _ := strings.Cut(op, " ")
		if verb == "link" || verb == "rename" || verb == "syncdir" {
			ops = append(ops, verb+" "+what)
		}
		return nil
	})
	if _, err := Append(context.Background(), tbl, one(ids(1, 1)), AppendOptions{Files: FileOptions{Prefix: "f-"}}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"rename ~temp f-00000.parquet", "syncdir .",
		"syncdir _delta_log", // the version that the commit stands on
		"link _delta_log/~temp _delta_log/00000000000000000001.json", "syncdir _delta_log",
		"rename _delta_log/~temp _delta_log/00000000000000000001.checkpoint.parquet", "syncdir _delta_log",
		"rename _delta_log/~temp _delta_log/_last_checkpoint", "syncdir _delta_log",
	}
	if strings.Join(ops, "\n") != strings.Join(want, "\n") {
		t.Fatalf("got\n%s\nwant\n%s", strings.Join(ops, "\n"), strings.Join(want, "\n"))
	}
}

func TestCommitWhoseAnswerWasLostIsFoundByItsNonce(t *testing.T) {
	store := objstore.NewMemory(clock.System{})
	tbl := Open(FromStore(store), Options{})
	create(t, tbl, CreateOptions{})
	for _, applied := range []bool{true, false} {
		lost := false
		store.Fault(func(method, key string, done bool) error {
			if method == "CreateOnce" && done == applied && !lost {
				lost = true
				return errors.New("connection lost")
			}
			return nil
		})
		mustAppend(t, tbl, ids(1, 1), AppendOptions{})
		if !lost {
			t.Fatal("no answer was lost")
		}
	}
	if got := contents(t, tbl); len(got) != 2 {
		t.Fatalf("%v", got)
	}
	// An outcome that cannot be learnt is reported as unknown.
	down := false
	store.Fault(func(method, key string, done bool) error {
		if method == "CreateOnce" && done {
			down = true
		}
		if down {
			return errors.New("the store is away")
		}
		return nil
	})
	_, err := Append(context.Background(), tbl, one(ids(9, 1)), AppendOptions{Limits: Limits{Errors: 3}})
	var gaveUp *GaveUp
	if !errors.As(err, &gaveUp) || !gaveUp.Unknown {
		t.Fatalf("%v", err)
	}
}
