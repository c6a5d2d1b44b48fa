package maintain_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/maintain"
)

// childDir makes this test binary the writer of the table in a folder.
const childDir = "WEIR_CARE_CHILD_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		if err := child(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// childCommits is how far one life of the writer gets when it is not killed.
const childCommits = 36

// child commits rows one by one, going on from what the table holds, with a step
// of care after every sixth.
func child(dir string) error {
	ctx := context.Background()
	c, err := lake.Open(ctx, lake.Config{URI: filepath.Join(dir, "catalog.db"), Warehouse: filepath.Join(dir, "warehouse")})
	if err != nil {
		return err
	}
	t, err := c.EnsureTable(ctx, ident, tableSchema, hourSpec, nil)
	if err != nil {
		return err
	}
	rows, err := t.Scan().ToArrowTable(ctx)
	if err != nil {
		return err
	}
	next := rows.NumRows()
	rows.Release()
	now := &ticks{now: clock.System{}.Now()}
	care := maintain.New(c, ident, maintain.Settings{Retention: lake.Retention{Keep: 4}, MinFiles: 4, Grace: 5 * time.Second, Clock: now, Scope: "child"})
	for n := 1; n <= childCommits; n++ {
		if t, err = c.LoadTable(ctx, ident); err != nil {
			return err
		}
		files, err := stageRows(t, next, 1)
		if err != nil {
			return err
		}
		if _, err := c.Commit(ctx, t, lake.Change{Files: files}); err != nil {
			return err
		}
		next++
		now.pass(time.Second)
		if n%6 == 0 {
			if err := care.Step(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestAKillAtEveryStepOfTheCareLosesNoRowAndNoSnapshot(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
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
	for _, p := range fault.Points() {
		if p.Step != "care" || p.Name == fault.CareManifests {
			continue
		}
		for _, n := range []int{1, 3} {
			run(fmt.Sprintf("child/%s:%d", p.Name, n))
			f.exact(int64(len(f.ids())))
		}
	}
	run("")
	f.exact(int64(len(f.ids())))
	for _, s := range f.load().Metadata().Snapshots() {
		f.ids(tableAt(s.SnapshotID))
	}
	// What the killed lives left is found, and only that.
	age(t, 30*24*time.Hour, f.files("")...)
	got, err := maintain.Orphans(context.Background(), f.c, ident, maintain.OrphanOptions{}, maintain.Settings{})
	if err != nil || len(got.Files) == 0 {
		t.Fatalf("%+v %v", got, err)
	}
	f.exact(int64(len(f.ids())))
	for _, s := range f.load().Metadata().Snapshots() {
		f.ids(tableAt(s.SnapshotID))
	}
}
