package tests

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/fault"
)

type rebuilds struct {
	Rebuilds []struct {
		Query      string
		Swapped    bool
		Beside     string
		Resumed    bool
		Rows       int64
		RowsBefore int64 `json:"rows_before"`
		Tag        string
		Downstream []string
	}
}

func (l *lab) rebuild(args ...string) (r rebuilds) {
	l.t.Helper()
	mustJSON(l.t, &r, append([]string{"rebuild", l.file}, args...)...)
	return r
}

// TestARebuildIsSwappedInWholeThroughKillsAndTheQueryGoesOnBehindIt: 20 edits and
// 5 records of another kind that the filter lets through only later, a copy, a dead
// letter, a late row.
func TestARebuildIsSwappedInWholeThroughKillsAndTheQueryGoesOnBehindIt(t *testing.T) {
	l := erasable(t)
	now := time.Now()
	for i := range 20 {
		l.sendValues(did("joe", fmt.Sprintf("joe-%d", i), "edit", now))
		if i%4 == 0 {
			l.sendValues(did("ann", fmt.Sprintf("ann-%d", i), "log", now))
		}
	}
	l.sendValues(did("joe", "joe-3", "edit", now), `{"id":"d","user":"joe","kind":"edit","dt":"never"}`)
	l.run(exitOK)
	l.sendValues(did("joe", "joe-late", "edit", now.Add(-time.Hour)))
	l.run(exitOK)
	l.silverRows(20)

	// Beside the running queries, which keep it from being swapped in.
	l.edit(`filter: "kind = 'edit'"`, `filter: "kind IN ('edit', 'log')"`)
	l.crashes("rebuild/"+fault.RebuildBegun+":1", "rebuild", l.file, "silver")
	l.crashes("silver/"+fault.CommitSwapped+":1", "rebuild", l.file, "silver")
	before := l.committed("silver")
	p := start(t, nil, "run", l.file)
	l.sendValues(did("joe", "joe-beside", "edit", now))
	waitFor(t, "silver to read on", func() bool { return l.committed("silver") > before })
	_, errs, code := weir(t, nil, "rebuild", l.file, "silver")
	if code != exitFenced || !strings.Contains(errs, "stop the query") {
		t.Fatalf("beside a running query: exit %d\n%s", code, tail(errs))
	}
	_ = p.cmd.Process.Signal(os.Interrupt)
	if code := p.wait(); code != exitOK {
		t.Fatalf("the live queries ended with %d\n%s", code, tail(p.errs.String()))
	}
	l.run(exitOK)
	l.silverRows(21)

	if r := l.rebuild("silver", "--no-swap").Rebuilds; len(r) != 1 || r[0].Swapped || r[0].Beside != labSilver+"__rebuild" {
		t.Fatalf("%+v", r)
	}
	l.silverRows(21)

	for _, point := range []string{fault.RebuildBuilt, fault.RebuildSwapping, fault.RebuildSide, fault.RebuildSwapped} {
		l.crashes("rebuild/"+point+":1", "rebuild", l.file, "silver")
		if point == fault.RebuildBuilt {
			l.silverRows(21) // the live table, as it was
			continue
		}
		if _, errs := l.run(exitCheckpoint, "--query", "silver"); !strings.Contains(errs, "weir rebuild") {
			t.Fatalf("a query runs while its tables are exchanged, killed at %s:\n%s", point, tail(errs))
		}
	}
	l.crashes("rebuild/"+fault.RebuildAdopted+":1", "rebuild", l.file, "silver")
	r := l.rebuild("silver").Rebuilds
	// The records of the other kind are in. So is the row that came late: the rebuild
	// reads in larger batches, and no row is late because of another one of its batch.
	if len(r) != 1 || !r[0].Swapped || !r[0].Resumed || r[0].Rows != 27 || r[0].RowsBefore != 21 || r[0].Tag == "" || len(r[0].Downstream) != 1 {
		t.Fatalf("%+v", r)
	}

	// What was made of the old rows says so, and is made anew.
	if _, errs := l.run(exitSourceChanged, "--query", "sessions"); !strings.Contains(errs, "were exchanged") {
		t.Fatalf("a query goes on in exchanged rows:\n%s", tail(errs))
	}
	l.rebuild("sessions")
	l.silverRows(27)
	if found, brought := l.replay("late", "replay"); found+brought != 0 {
		t.Fatalf("%d late rows, %d brought", found, brought)
	}

	// The live query goes on behind the exchange: copies of what the rebuild has
	// read are copies.
	l.sendValues(did("joe", "joe-5", "edit", now), did("joe", "joe-next", "edit", now.Add(50*time.Minute)))
	l.run(exitOK)
	l.silverRows(28)
	l.rebuild("silver", "--no-swap")
	if _, errs, code := weir(t, nil, "erase", l.file, "--table", labSilver, "--where", "user = 'joe'"); code != exitConfig || !strings.Contains(errs, "is being rebuilt") {
		t.Fatalf("an erasure beside an unfinished rebuild: exit %d\n%s", code, tail(errs))
	}
	l.rebuild("silver", "--abort")
	l.silverRows(28)
	l.edit("{name: kind, path: $.kind, type: string}", "{name: kind, path: $.kind, type: string}\n        - {name: more, path: $.more, type: string}")
	if _, errs, code := weir(t, nil, "rebuild", l.file, "silver"); code != exitSchema || !strings.Contains(errs, "run it once with the new file") {
		t.Fatalf("other columns than the table's: exit %d\n%s", code, tail(errs))
	}
	var dropped struct{ Dropped []struct{ Tags []string } }
	mustJSON(t, &dropped, "rebuild", l.file, "silver", "--drop-old")
	if len(dropped.Dropped) != 2 {
		t.Fatalf("%+v", dropped)
	}
}
