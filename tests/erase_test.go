package tests

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/fault"
)

const labSessions = "silver.sessions"

// erasable makes a lab whose rows say who did it, with sessions of each user.
func erasable(t *testing.T) *lab {
	t.Helper()
	l := newLab(t, 0)
	l.withSessions()
	return l
}

// withSessions adds who did it to the rows, and the query of sessions.
func (l *lab) withSessions() {
	l.t.Helper()
	l.edit("        - {name: kind, path: $.kind, type: string}\n",
		"        - {name: kind, path: $.kind, type: string}\n        - {name: user, path: $.user, type: string}\n")
	l.edit("ops: {", `  - name: sessions
    from: {table: {name: silver.edits}}
    trigger: {processingTime: 20ms}
    watermark: {column: event_time}
    aggregate:
      - session: {gap: 30s}
        keys: [user]
        columns: [{name: edits, function: count}]
    to:
      iceberg: {table: silver.sessions}
ops: {`)
}

func did(user, id, kind string, at time.Time) string {
	return fmt.Sprintf(`{"id":%q,"user":%q,"kind":%q,"dt":%q}`, id, user, kind, at.UTC().Format(time.RFC3339Nano))
}

type erasures struct {
	Erasures []struct {
		ID        string
		Resumed   bool
		Repeated  bool
		Records   int64
		Condition string
		Tables    []struct {
			Table   string
			Rows    int64
			Old     int   `json:"old_snapshots"`
			Expired int64 `json:"expired_snapshots"`
		}
	}
}

// rows is what the last erasure took, by table.
func (e erasures) rows() map[string]int64 {
	out := map[string]int64{}
	if len(e.Erasures) > 0 {
		for _, t := range e.Erasures[len(e.Erasures)-1].Tables {
			out[t.Table] = t.Rows
		}
	}
	return out
}

func (l *lab) erase(args ...string) (e erasures) {
	l.t.Helper()
	mustJSON(l.t, &e, append([]string{"erase", l.file, "--table", labSilver, "--where", "user = 'jane'"}, args...)...)
	return e
}

// erasedIs audits: exact, with that many rows erased of each table, and every
// session the one that silver's rows make.
func (l *lab) erasedIs(bronze, silver int64) {
	l.t.Helper()
	out, errs, code := weir(l.t, nil, "audit", l.file, "--output", "json")
	var r struct {
		Tables []struct {
			Table  string
			Erased int64 `json:"erased_rows"`
			Groups *struct{ Missing, Extra int64 }
		}
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitOK {
		l.t.Fatalf("weir audit: exit %d %v\n%s\n%s", code, err, out, tail(errs))
	}
	want := map[string]int64{labBronze: bronze, labSilver: silver}
	for _, tbl := range r.Tables {
		if n, judged := want[tbl.Table]; judged && tbl.Erased != n {
			l.t.Fatalf("%s: %d rows erased, want %d\n%s", tbl.Table, tbl.Erased, n, out)
		}
		if tbl.Groups != nil && tbl.Groups.Missing+tbl.Groups.Extra > 0 {
			l.t.Fatalf("%s: %+v", tbl.Table, tbl.Groups)
		}
	}
}

func TestErasedRowsGoFromEveryTableThroughKillsAndNeverComeBack(t *testing.T) {
	l := erasable(t)
	now := time.Now()
	for i := range 8 {
		l.sendValues(did("joe", fmt.Sprintf("joe-%d", i), "edit", now), did("jane", fmt.Sprintf("jane-%d", i), "edit", now))
	}
	// A copy, one of another kind, one that came late, one that is a dead letter,
	// and one that is no JSON and about her all the same.
	l.sendValues(did("jane", "jane-3", "edit", now), did("jane", "x", "log", now), `{"id":"d","user":"jane","kind":"edit","dt":"never"}`)
	l.run(exitOK)
	l.sendValues(did("jane", "jane-late", "edit", now.Add(-time.Hour)), `{ "user":"jane" not JSON`)
	l.run(exitOK)
	l.erasedIs(0, 0)
	if r := l.erase("--dry-run", "--contains", `"user":"jane"`).rows(); r[labBronze] != 13 || r[labSilver] != 8 || r[labDead] != 2 || r[labSessions] != 0 {
		t.Fatalf("a dry run would take %v", r)
	}
	l.erasedIs(0, 0)
	command := []string{"erase", l.file, "--table", labSilver, "--where", "user = 'jane'", "--contains", `"user":"jane"`, "--id", "gdpr-1"}
	for _, point := range []string{fault.ErasePlanned + ":1", fault.EraseStaged + ":1", fault.EraseCommitted + ":1", fault.EraseCommitted + ":3", fault.EraseRecorded + ":1", fault.EraseDone + ":1"} {
		l.crashes("erase/"+point, command...)
	}
	var again erasures
	mustJSON(t, &again, command...)
	if e := again.Erasures; len(e) != 1 || !e[0].Repeated || again.rows()[labBronze] != 13 || again.rows()[labSilver] != 8 || again.rows()[labDead] != 2 {
		t.Fatalf("%+v", again)
	}
	l.erasedIs(13, 8)
	// Nothing brings a row back: late rows, dead letters, a lost checkpoint whose
	// state is read again, the copies that come later than the sessions' end.
	for _, kind := range []string{"late", "dlq"} {
		if found, brought := l.replay(kind, "replay"); found+brought != 0 {
			t.Fatalf("weir %s replay finds %d rows and brings %d", kind, found, brought)
		}
	}
	l.remove(l.checkpoint("silver"))
	l.remove(l.checkpoint("sessions", "state"))
	l.sendValues(did("joe", "joe-later", "edit", now.Add(50*time.Minute)))
	l.run(exitOK)
	l.erasedIs(13, 8)
	if r := l.erase("--dry-run", "--contains", "jane").rows(); r[labBronze]+r[labSilver]+r[labDead]+r[labSessions] != 0 {
		t.Fatalf("the tables still hold %v", r)
	}
	// The record says what and how many, and not who.
	book, _, code := weir(t, nil, "sql", l.file, "SELECT erasure_id, table_name, sum(rows) AS n, max(condition) AS condition FROM ops.erasures GROUP BY ALL ORDER BY 2", "--output", "json")
	if code == exitOK && (strings.Contains(book, "jane") || !strings.Contains(book, "user = ?") || !strings.Contains(book, "13")) {
		t.Fatalf("ops.erasures: %s", book)
	}
}

func TestErasuresBesideRunningQueriesStopNoneAndOpenSessionsForget(t *testing.T) {
	l := erasable(t)
	now := time.Now()
	p := start(t, nil, "run", l.file)
	const rounds = 10
	erased := int64(0)
	for i := range rounds {
		l.sendValues(did("joe", fmt.Sprintf("joe-%d", i), "edit", now), did("jane", fmt.Sprintf("jane-%d", i), "edit", now))
		if i%4 == 3 {
			erased += l.erase().rows()[labBronze]
		}
	}
	// What had not arrived yet is not erased: it is done once.
	waitFor(t, "her last rows to arrive and go", func() bool {
		erased += l.erase("--expire").rows()[labBronze]
		return erased == rounds
	})
	// Sessions were open all the time. Now they are complete.
	l.sendValues(did("joe", "joe-late", "edit", now.Add(50*time.Minute)))
	_ = p.cmd.Process.Signal(os.Interrupt)
	if code := p.wait(); code != exitOK {
		t.Fatalf("the queries ended with %d\n%s", code, tail(p.errs.String()))
	}
	l.run(exitOK)
	a := l.audit(exitOK)
	if a[labSilver].Rows != rounds+1 || a[labBronze].Rows != rounds+1 || a[labSessions].Rows != 1 {
		t.Fatalf("joe has %d edits in one complete session: %+v", rounds+1, a)
	}
	l.erasedIs(rounds, a[labSilver].Erased)
}

func TestABatchThatWasReadBeforeAnErasureDoesNotBringItsRows(t *testing.T) {
	l := erasable(t)
	now := time.Now()
	erased := int64(0)
	for i, point := range []string{fault.StageDone, fault.CommitSide} {
		l.sendValues(did("joe", fmt.Sprintf("joe-%d", i), "edit", now), did("jane", fmt.Sprintf("jane-%d", i), "edit", now), `{"id":"d","user":"jane","kind":"edit","dt":"never"}`)
		p := start(t, []string{"WEIR_CRASH_AT=silver/" + point + ":1:stop"}, "run", l.file, "--once")
		waitFor(t, "the batch to be suspended at "+point, func() bool { return strings.Contains(p.errs.String(), "crash point") })
		command := []string{"--contains", "jane", "--id", "gdpr-" + point}
		l.crashes("erase/"+fault.EraseCommitted+":2", append([]string{"erase", l.file, "--table", labSilver, "--where", "user = 'jane'"}, command...)...)
		done := l.erase(command...)
		if e := done.Erasures; len(e) != 1 || !e[0].Resumed || e[0].ID != "gdpr-"+point {
			t.Fatalf("the command that was killed, given again: %+v", done)
		}
		erased += done.rows()[labBronze]
		if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if code := p.wait(); code != exitOK {
			t.Fatalf("%s: exit %d\n%s", point, code, tail(p.errs.String()))
		}
		a := l.audit(exitOK)
		if want := int64(i + 1); a[labSilver].Rows != want || a[labBronze].Rows != want || erased != 2*want {
			t.Fatalf("%s: joe has %d edits, %d rows were erased: %+v", point, want, erased, a)
		}
		if r := l.erase("--dry-run", "--contains", "jane").rows(); r[labBronze]+r[labSilver]+r[labDead] != 0 {
			t.Fatalf("%s: the tables hold %v", point, r)
		}
	}
}
