package maintain_test

import (
	"context"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/maintain"
)

func settle(t *testing.T, c *maintain.Care, wait bool) {
	t.Helper()
	if err := c.Settle(context.Background(), wait); err != nil {
		t.Fatal(err)
	}
}

func TestARewriteBesideTheBatchesIsCommittedBetweenTwoOfThem(t *testing.T) {
	f := open(t, t.TempDir())
	care := maintain.New(f.c, ident, f.settings(maintain.Settings{Beside: true, NoExpiry: true}))
	settle(t, care, true) // there is none
	f.append(20)
	step(t, care)
	if h := care.Health(); h.Compacted.Commits != 0 {
		t.Fatalf("a step that only begins has committed: %+v", h.Compacted)
	}
	f.append(5) // batches go on
	settle(t, care, true)
	f.exact(25)
	if h := care.Health(); h.Compacted.Commits != 1 || h.Compacted.FilesRemoved != 20 || h.Compacted.Conflicts != 0 || h.Failures != 0 {
		t.Fatalf("health: %+v", h)
	}
	settle(t, care, true) // once
	if h := care.Health(); h.Compacted.Commits != 1 {
		t.Fatalf("health: %+v", h)
	}
}

func TestWhatWasRewrittenOfFilesThatAreGoneIsDropped(t *testing.T) {
	f := open(t, t.TempDir())
	beside := maintain.New(f.c, ident, f.settings(maintain.Settings{Beside: true, NoExpiry: true, NoManifests: true}))
	f.append(20)
	step(t, beside)
	// Another one puts the same files together first.
	if did, err := maintain.Compact(context.Background(), f.c, ident, f.settings(maintain.Settings{})); err != nil || did.Commits == 0 {
		t.Fatalf("%+v %v", did, err)
	}
	head := lake.HeadOf(f.load()).ID
	settle(t, beside, true)
	if now := lake.HeadOf(f.load()).ID; now != head {
		t.Fatalf("the head moved from %d to %d", head, now)
	}
	f.exact(20)
	if h := beside.Health(); h.Compacted.Commits != 0 || h.Compacted.FilesRemoved != 0 || h.Failures != 0 {
		t.Fatalf("health: %+v", h)
	}
}

func TestWhatWasRewrittenLongAgoIsNotCommitted(t *testing.T) {
	f := open(t, t.TempDir())
	care := maintain.New(f.c, ident, f.settings(maintain.Settings{Beside: true, NoExpiry: true, OrphanAge: time.Hour}))
	f.append(20)
	step(t, care)
	f.clock.pass(2 * time.Hour) // the process was suspended; its files may be orphans to somebody
	settle(t, care, true)
	if h := care.Health(); h.Compacted.Commits != 0 {
		t.Fatalf("health: %+v", h)
	}
	step(t, care)
	settle(t, care, true)
	f.exact(20)
	if h := care.Health(); h.Compacted.Commits != 1 {
		t.Fatalf("health: %+v", h)
	}
}

func TestARewriteEndsWithTheRunThatBeganIt(t *testing.T) {
	f := open(t, t.TempDir())
	care := maintain.New(f.c, ident, f.settings(maintain.Settings{Beside: true, NoExpiry: true}))
	f.append(20)
	run, stop := context.WithCancel(context.Background())
	if err := care.Step(run); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := care.Settle(run, true); err != nil {
		t.Fatal(err)
	}
	f.exact(20)
	if h := care.Health(); h.Compacted.Commits != 0 || h.Failures != 0 {
		t.Fatalf("health: %+v", h)
	}
}
