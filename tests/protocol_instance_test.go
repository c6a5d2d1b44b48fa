package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/fault"
)

func TestASecondInstanceIsRefusedAndATakeOverFencesTheFirst(t *testing.T) {
	l := newLab(t, 300)
	first := start(t, nil, "run", l.file)
	waitFor(t, "the first instance", func() bool { return l.committed("silver") == 300 })
	_, errs := l.run(exitFenced)
	if !strings.Contains(errs, fmt.Sprintf("process %d", first.cmd.Process.Pid)) || !strings.Contains(errs, "--take-over") {
		t.Errorf("neither the other process nor the way out is named\n%s", tail(errs))
	}
	l.produce(300)
	waitFor(t, "the first instance to go on", func() bool { return l.committed("silver") == 600 })
	l.run(exitOK, "--take-over")
	l.produce(300) // at its next batch the first one finds that it was fenced
	if code := first.wait(); code != exitFenced {
		t.Fatalf("the first instance: exit %d\n%s", code, tail(first.errs.String()))
	}
	l.run(exitOK)
	l.exact()
}

// TestAnInstanceWithAnotherFolderIsSeenInTheTable: no file lock stands between
// the two, only the marker.
func TestAnInstanceWithAnotherFolderIsSeenInTheTable(t *testing.T) {
	l := newLab(t, 300)
	l.run(exitOK)
	l.edit("/checkpoints", "/elsewhere")
	l.produce(300)
	p := start(t, nil, "run", l.file, "--once", "--query", "bronze")
	waitFor(t, "the lease of the first instance", func() bool {
		return strings.Contains(p.errs.String(), "waiting for its lease")
	})
	if code := p.wait(); code != exitOK {
		t.Fatalf("exit %d\n%s", code, tail(p.errs.String()))
	}
	l.run(exitOK, "--take-over") // silver's is taken at once
	l.exact()
}

// TestASuspendedInstanceThatWakesUpLandsNothing suspends the first instance
// while a batch of the query is under way.
func TestASuspendedInstanceThatWakesUpLandsNothing(t *testing.T) {
	for _, query := range []string{"bronze", "silver"} {
		t.Run(query, func(t *testing.T) {
			l := newLab(t, 200)
			l.write(20000)
			l.run(exitOK)
			l.produce(40000)
			first := suspendMidBatch(l, query)
			planned := newest(l.checkpoint(query, "offsets"))
			l.run(exitOK, "--take-over")
			if err := first.cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			l.produce(100)
			if code := first.wait(); code != exitFenced {
				t.Fatalf("the instance that woke up: exit %d\n%s", code, tail(first.errs.String()))
			}
			l.run(exitOK)
			l.exact()
			if n := newest(l.checkpoint(query, "commits")); n < planned {
				t.Fatalf("batch %d was suspended, the log ends at %d", planned, n)
			}
		})
	}
}

// suspendMidBatch starts an instance and stops it (SIGSTOP) when the query has
// a plan without a commit.
func suspendMidBatch(l *lab, query string) *process {
	l.t.Helper()
	p := start(l.t, nil, "run", l.file)
	before := newest(l.checkpoint(query, "offsets"))
	pending := func() bool {
		n := newest(l.checkpoint(query, "offsets"))
		return n > before && n > newest(l.checkpoint(query, "commits"))
	}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if !p.running() {
			l.t.Fatalf("it ended by itself\n%s", tail(p.errs.String()))
		}
		if !pending() {
			time.Sleep(200 * time.Microsecond)
			continue
		}
		if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			l.t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // until every thread has stopped
		if pending() {
			return p
		}
		// The batch was committed between the look and the signal.
		if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			l.t.Fatal(err)
		}
		l.produce(20000)
	}
	l.t.Fatalf("%s never had a batch under way", query)
	return nil
}

func TestSIGTERMAbandonsOrFinishesABatchAndNeverTearsIt(t *testing.T) {
	l := newLab(t, 100)
	l.write(20000)
	l.run(exitOK)
	for i, query := range []string{"bronze", "silver", "bronze"} {
		l.produce(20000)
		p := start(t, nil, "run", l.file)
		before := newest(l.checkpoint(query, "offsets"))
		waitFor(t, "a plan of "+query, func() bool { return newest(l.checkpoint(query, "offsets")) > before })
		time.Sleep(time.Duration(i) * 30 * time.Millisecond)
		p.stop(exitOK)
		for _, q := range []string{"bronze", "silver"} {
			plans, commits := newest(l.checkpoint(q, "offsets")), newest(l.checkpoint(q, "commits"))
			if plans > commits+1 {
				t.Fatalf("%s: planned up to %d, committed up to %d", q, plans, commits)
			}
		}
	}
	l.run(exitOK)
	l.exact()
}

// TestEveryCrashPointIsReachedWhereItAppliesAndTheRestartIsExact kills the
// shipped binary at each point of a micro-batch, in the second batch of a
// process where a process has two, one after the other in the same tables: each
// process recovers from the kill of the one before it and is killed itself.
func TestEveryCrashPointIsReachedWhereItAppliesAndTheRestartIsExact(t *testing.T) {
	onlySilver := []string{fault.CommitSide, fault.StageState}
	notOfBatches := []string{"ingest", "gold", "job", "care", "deliver", "erase", "rebuild", "state"}
	l := newLab(t, 0)
	l.write(40)
	l.run(exitOK)
	for _, query := range []string{"bronze", "silver"} {
		for _, point := range fault.Points() {
			if slices.Contains(notOfBatches, point.Step) || (query == "bronze" && slices.Contains(onlySilver, point.Name)) {
				continue
			}
			n := 2
			if point.Step == "claim" {
				n = 1 // a process claims a query once
			}
			l.produce(120)
			var args []string
			if query == "bronze" {
				args = []string{"--query", "bronze"}
			}
			l.crash(fmt.Sprintf("%s/%s:%d", query, point.Name, n), args...)
		}
		l.run(exitOK)
		l.exact()
	}
	l.exactByOthers()
}

func TestADiskThatFillsUpStopsTheRunAndTheNextOneIsExact(t *testing.T) {
	weirBin(t)
	small := t.TempDir()
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=6m"); err != nil {
		t.Skipf("cannot mount a small file system (%v): needs the right to mount a tmpfs", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(small, syscall.MNT_DETACH) })
	l := newLab(t, 200)
	for _, folder := range []string{"/warehouse", "/checkpoints"} {
		l.edit(l.dir+folder, small+folder)
	}
	l.edit(l.dir+"/catalog.db", small+"/catalog.db")
	l.run(exitOK)
	l.edit("maxOffsetsPerTrigger: 200", "maxOffsetsPerTrigger: 20000")
	l.produce(1000)
	filler := filepath.Join(small, "filler")
	fill(t, filler)
	p := start(t, nil, "run", l.file, "--once")
	if code := p.wait(); code == exitOK {
		t.Fatalf("the run ended well on a full disk\n%s", tail(p.errs.String()))
	} else if !strings.Contains(p.errs.String(), "no space left") && !strings.Contains(p.errs.String(), "full") {
		t.Errorf("exit %d, and the cause is not named\n%s", code, tail(p.errs.String()))
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	l.run(exitOK)
	l.exact()
}

// fill takes all that is free but a little.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 16<<10)
	for {
		if _, err := f.Write(block); err != nil {
			break
		}
	}
	fi, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(fi.Size() - 48<<10); err != nil {
		t.Fatal(err)
	}
}

func TestAdoptByHandIsRefusedUnderARunningInstanceUnlessItTakesOver(t *testing.T) {
	l := newLab(t, 300)
	first := start(t, nil, "run", l.file, "--query", "bronze")
	waitFor(t, "the first instance", func() bool { return l.committed("bronze") == 300 })
	if _, errs, code := weir(t, nil, "checkpoint", "adopt", l.file, "bronze"); code != exitFenced {
		t.Fatalf("adopt under a running instance: exit %d\n%s", code, tail(errs))
	}
	l.produce(100)
	waitFor(t, "the first instance to go on", func() bool { return l.committed("bronze") == 400 })
	if _, errs, code := weir(t, nil, "checkpoint", "adopt", l.file, "bronze", "--take-over"); code != exitOK {
		t.Fatalf("adopt --take-over: exit %d\n%s", code, tail(errs))
	}
	l.produce(100)
	if code := first.wait(); code != exitFenced {
		t.Fatalf("the first instance: exit %d\n%s", code, tail(first.errs.String()))
	}
	l.run(exitOK)
	l.exact()
}
