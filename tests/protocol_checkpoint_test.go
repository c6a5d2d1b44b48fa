package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestALostPartOfTheCheckpointLosesAndRepeatsNoRow(t *testing.T) {
	for name, harm := range map[string]func(l *lab, query string){
		"the last commit": func(l *lab, q string) {
			l.remove(l.checkpoint(q, "commits", fmt.Sprint(newest(l.checkpoint(q, "commits")))))
		},
		"only metadata":  func(l *lab, q string) { l.remove(l.checkpoint(q, "metadata")) },
		"only the state": func(l *lab, _ string) { l.remove(l.checkpoint("silver", "state")) },
		"everything":     func(l *lab, q string) { l.remove(l.checkpoint(q)) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 900)
			l.run(exitOK)
			harm(l, "bronze")
			if name != "only the state" {
				harm(l, "silver")
			}
			l.produce(350)
			_, errs := l.run(exitOK)
			if alerted := strings.Contains(errs, "ALERT"); alerted != (name != "the last commit") {
				t.Errorf("alerted: %v\n%s", alerted, tail(errs))
			}
			l.exact()
			if name == "everything" {
				l.exactByOthers()
			}
		})
	}
}

func TestACheckpointRestoredFromFiveBatchesAgoLosesAndRepeatsNoRow(t *testing.T) {
	l := newLab(t, 300)
	l.run(exitOK)
	old := filepath.Join(l.dir, "copy")
	if err := os.CopyFS(old, os.DirFS(l.checkpoint(""))); err != nil {
		t.Fatal(err)
	}
	before := newest(l.checkpoint("bronze", "commits"))
	l.produce(1000)
	l.run(exitOK)
	if n := newest(l.checkpoint("bronze", "commits")); n < before+5 {
		t.Fatalf("%d batches since the copy, want five", n-before)
	}
	l.remove(l.checkpoint(""))
	if err := os.CopyFS(l.checkpoint(""), os.DirFS(old)); err != nil {
		t.Fatal(err)
	}
	l.produce(350)
	_, errs := l.run(exitOK)
	for _, q := range []string{"bronze", "silver"} {
		if !strings.Contains(errs, "ALERT "+q+": query "+q+": the checkpoint is older than sink") {
			t.Errorf("no alert of %s\n%s", q, tail(errs))
		}
	}
	l.exact()
	l.exactByOthers()
}

func TestAdoptSettlesACorruptCheckpointAndResetRepeatsRowsWithAnAlert(t *testing.T) {
	l := newLab(t, 500)
	l.run(exitOK)
	for _, q := range []string{"bronze", "silver"} {
		l.remove(l.checkpoint(q, "commits")) // two plans without a commit: a contradiction
		_, errs := l.run(exitCheckpoint, "--query", q)
		if !strings.Contains(errs, "corrupt") || !strings.Contains(errs, "hint:") {
			t.Errorf("the way out is not named\n%s", tail(errs))
		}
		if _, errs, code := weir(t, nil, "checkpoint", "adopt", l.file, q); code != exitOK {
			t.Fatalf("adopt %s: exit %d\n%s", q, code, tail(errs))
		}
	}
	l.produce(250)
	if _, errs := l.run(exitOK); strings.Contains(errs, "ALERT") {
		t.Errorf("an alert after the adoption by hand\n%s", tail(errs))
	}
	l.exact()
	l.exactByOthers()

	// The boundary: a reset is the one thing that delivers rows again.
	if _, _, code := weir(t, nil, "checkpoint", "reset", l.file, "bronze"); code != exitConfig {
		t.Errorf("reset without --yes: exit %d", code)
	}
	_, errs, code := weir(t, nil, "checkpoint", "reset", l.file, "bronze", "--yes")
	if code != exitOK || !strings.Contains(errs, "delivered again") {
		t.Fatalf("reset: exit %d\n%s", code, tail(errs))
	}
	l.run(exitOK, "--query", "bronze")
	a := l.audit(exitMismatch)
	if b := a[labBronze]; b.Rows != 2*l.sent || b.DistinctOffsets != l.sent {
		t.Errorf("after a reset bronze is %+v, %d records were sent", b, l.sent)
	}
}

func TestForeignHandsBetweenCrashAndRestartLoseAndRepeatNoRow(t *testing.T) {
	python(t)
	for point, args := range map[string][]string{
		"bronze/commit.metadata:2": {"--expire"},
		"bronze/commit.swapped:2":  {"--expire"},
		"silver/commit.side:2":     {"--expire"},
		"silver/commit.swapped:2":  {"--expire", "--no-rewrite"},
	} {
		t.Run(point, func(t *testing.T) {
			l := newLab(t, 900)
			l.crash(point)
			l.foreignHands(labBronze, args...)
			if strings.HasPrefix(point, "silver") {
				l.foreignHands(labSilver, args...)
			}
			l.run(exitOK)
			l.exact()
			// And on a query that was stopped cleanly.
			l.foreignHands(labBronze, args...)
			l.foreignHands(labSilver, args...)
			l.produce(350)
			l.run(exitOK)
			l.exact()
			if point == "silver/commit.side:2" {
				l.exactByOthers()
			}
		})
	}
}

func TestARolledBackTableStopsAndAdoptFromSnapshotHealsIt(t *testing.T) {
	l := newLab(t, 500)
	l.run(exitOK)
	old := map[string]string{labBronze: l.pointer(labBronze), labSilver: l.pointer(labSilver), labDead: l.pointer(labDead)}
	l.produce(500)
	l.run(exitOK)
	for _, table := range []string{labSilver, labDead} {
		l.setPointer(table, old[table])
	}
	l.run(exitCheckpoint, "--query", "silver")
	if _, errs, code := weir(t, nil, "checkpoint", "adopt", l.file, "silver", "--from-snapshot"); code != exitOK {
		t.Fatalf("adopt --from-snapshot: exit %d\n%s", code, tail(errs))
	}
	l.run(exitOK)
	l.exact()

	l.produce(500)
	l.run(exitOK)
	l.setPointer(labBronze, old[labBronze])
	l.run(exitCheckpoint, "--query", "bronze")
	l.run(exitSourceChanged, "--query", "silver") // its upstream is behind it
	if _, errs, code := weir(t, nil, "checkpoint", "adopt", l.file, "bronze", "--from-snapshot"); code != exitOK {
		t.Fatalf("adopt --from-snapshot: exit %d\n%s", code, tail(errs))
	}
	// Bronze reads again what was rolled back before silver may look at it.
	l.run(exitOK, "--query", "bronze")
	l.run(exitOK)
	l.exact()
	l.exactByOthers()
}

func TestARollbackByAnotherEngineStopsAndAdoptFromSnapshotHealsIt(t *testing.T) {
	python(t)
	l := newLab(t, 500)
	l.run(exitOK, "--query", "bronze")
	var at struct {
		To int64 `json:"rolled_back_to"`
	}
	reader(t, &at, "roll_back_pyiceberg.py", "--catalog", l.catalog(), "--table", labBronze, "--by", "2")
	l.run(exitCheckpoint, "--query", "bronze")
	if _, errs, code := weir(t, nil, "checkpoint", "adopt", l.file, "bronze", "--from-snapshot"); code != exitOK {
		t.Fatalf("adopt --from-snapshot: exit %d\n%s", code, tail(errs))
	}
	l.produce(100)
	l.run(exitOK)
	l.exact()
}

func TestADroppedTableIsNotQuietlyStartedAgain(t *testing.T) {
	for _, table := range []string{labBronze, labSilver, labDead} {
		t.Run(table, func(t *testing.T) {
			l := newLab(t, 300)
			l.run(exitOK)
			l.drop(table)
			query := strings.Split(table, ".")[0]
			_, errs := l.run(exitCheckpoint, "--query", query)
			if !strings.Contains(errs, table) || !strings.Contains(errs, "hint:") {
				t.Errorf("the table or the way out is not named\n%s", tail(errs))
			}
		})
	}
}

func TestARenamedQueryIsRefusedInsteadOfDoublingItsRows(t *testing.T) {
	l := newLab(t, 300)
	l.run(exitOK)
	l.edit("name: bronze\n", "name: bronze2\n")
	_, errs := l.run(exitConfig, "--query", "bronze2")
	if !strings.Contains(errs, "already fed") {
		t.Errorf("the overlap is not named\n%s", tail(errs))
	}
	l.edit("name: bronze2\n", "name: bronze\n")
	l.produce(100)
	l.run(exitOK)
	l.exact()
}
