// Package catalogtest is the conformance suite of catalogs: what every one that
// lake.Open gives must do with races, lost answers, killed servers and tables
// that are dropped and made again. It also starts the servers that the suite
// needs, by the project's own scripts, and the lines with faults before them.
package catalogtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/conformance"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
)

// Harness is one catalog, empty or with a namespace of its own for each test.
type Harness struct {
	// Open opens the catalog as another process would; it is closed with the
	// test.
	Open func(t *testing.T) *lake.Catalog
	// Namespace is one that no other test uses.
	Namespace string
	// Faulty opens the catalog over a line that can be cut; nil where there is
	// no line: a database in a file.
	Faulty func(t *testing.T) (*lake.Catalog, Faults)
	// Kill and Restart hurt the server; nil where there is none.
	Kill, Restart func()
	// NotKilled is why there is none, Unconditional why the catalog cannot be
	// raced, Flat why it has no namespaces within others; empty where it can and has.
	NotKilled, Unconditional, Flat string
}

// Faults are those of a line.
type Faults interface {
	// LoseRequest: the next commit does not reach the server.
	LoseRequest()
	// LoseAnswer: the next commit is made, its answer does not come back.
	LoseAnswer()
}

// Schema is the one of the suite's tables.
var Schema = iceberg.NewSchema(0,
	iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64, Required: true},
	iceberg.NestedField{ID: 2, Name: "ts", Type: iceberg.PrimitiveTypes.TimestampTz, Required: true},
)

// Spec partitions them by day.
func Spec() iceberg.PartitionSpec {
	return iceberg.NewPartitionSpec(iceberg.PartitionField{
		SourceIDs: []int{2}, FieldID: 1000, Name: "ts_day", Transform: iceberg.DayTransform{},
	})
}

// Run runs the suite on the implementation that is called of; fresh gives a
// harness for each test.
func Run(t *testing.T, of string, fresh func(t *testing.T) Harness) {
	var cases []conformance.Case
	for _, c := range []struct {
		name string
		run  func(t *testing.T, h Harness)
	}{
		{"TableIsMadeWithItsNamespacesAndSeenByOthers", created},
		{"TableWithinNestedNamespacesIsMadeOrRefusedWithAReason", nested},
		{"MissingTableAndMissingNamespaceAreErrNoTable", missing},
		{"RacingCreationsMakeOneTable", createRace},
		{"CommitIsOneSnapshotWithItsProperty", committed},
		{"StaleCommitIsAConflict", stale},
		{"RacingWritersLoseNothingAndDoubleNothing", race},
		{"PropertyOfAnotherWriterIsNotLost", foreignProperty},
		{"CommitToADroppedTableIsAConflict", dropped},
		{"CommitToATableMadeAgainIsAConflict", recreated},
		{"ExpiryKeepsTheHead", expiry},
		{"TablesAndNamespacesAreListed", listed},
		{"CommitWhoseRequestWasLostIsNotMade", lostRequest},
		{"CommitWhoseAnswerWasLostIsUnknownAndMade", lostAnswer},
		{"CreationWhoseAnswerWasLostIsMadeOnce", lostCreation},
		{"KilledServerLosesNoCommitThatItConfirmed", killedBetween},
		{"EveryCommitUnderAKilledServerIsAccountedFor", killedWithin},
	} {
		cases = append(cases, conformance.Case{Name: c.name, Run: func(t *testing.T) { c.run(t, fresh(t)) }})
	}
	conformance.Run(t, "catalog", of, cases)
}

func (h Harness) ident() table.Identifier { return table.Identifier{h.Namespace, "events"} }

// commitTimeout bounds one commit of the suite.
const commitTimeout = 90 * time.Second

func ctxOf(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	t.Cleanup(cancel)
	return ctx
}

func (h Harness) ensure(t *testing.T, c *lake.Catalog) *table.Table {
	t.Helper()
	tbl, err := c.EnsureTable(ctxOf(t), h.ident(), Schema, Spec(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return tbl
}

func load(t *testing.T, c *lake.Catalog, ident table.Identifier) *table.Table {
	t.Helper()
	tbl, err := c.LoadTable(ctxOf(t), ident)
	if err != nil {
		t.Fatal(err)
	}
	return tbl
}

func change(n any) lake.Change {
	return lake.Change{
		Properties: map[string]string{"weir.test": fmt.Sprint(n)},
		Summary:    map[string]string{"weir.n": fmt.Sprint(n)},
	}
}

func bump(t *testing.T, c *lake.Catalog, base *table.Table, n any) *table.Table {
	t.Helper()
	after, err := c.Commit(ctxOf(t), base, change(n))
	if err != nil {
		t.Fatal(err)
	}
	return after
}

// history is the snapshots' numbers from the head down.
func history(tbl *table.Table) []string {
	var out []string
	lake.Walk(tbl, func(s *table.Snapshot) bool {
		out = append(out, lake.SummaryValue(s, "weir.n"))
		return true
	})
	return out
}

func created(t *testing.T, h Harness) {
	ident := table.Identifier{h.Namespace, "inner", "events"}
	if h.Flat != "" {
		ident = h.ident()
	}
	c := h.Open(t)
	tbl, err := c.EnsureTable(ctxOf(t), ident, Schema, Spec(), map[string]string{"x": "y"})
	if err != nil {
		t.Fatal(err)
	}
	other := load(t, h.Open(t), ident)
	if other.Metadata().TableUUID() != tbl.Metadata().TableUUID() || other.MetadataLocation() != tbl.MetadataLocation() {
		t.Fatal("another process sees another table")
	}
	if other.Properties()["x"] != "y" || other.Properties()[table.MetadataDeleteAfterCommitEnabledKey] != "true" {
		t.Fatalf("properties %v", other.Properties())
	}
	if other.Spec().IsUnpartitioned() {
		t.Fatal("the partition spec is lost")
	}
	loc, err := c.MetadataLocation(ctxOf(t), ident)
	if err != nil || loc != tbl.MetadataLocation() {
		t.Fatalf("metadata location %q, %v", loc, err)
	}
}

func nested(t *testing.T, h Harness) {
	ident := table.Identifier{h.Namespace, "inner", "deeper", "events"}
	c := h.Open(t)
	_, err := c.EnsureTable(ctxOf(t), ident, Schema, Spec(), nil)
	if h.Flat != "" {
		if !failure.Is(err, failure.Config) {
			t.Fatalf("want a refusal, got %v", err)
		}
		if ok, err := c.NamespaceExists(ctxOf(t), table.Identifier{h.Namespace}); err != nil || ok {
			t.Fatalf("half of it was made: %v, %v", ok, err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	under, err := c.ListNamespaces(ctxOf(t), table.Identifier{h.Namespace})
	if err != nil || len(under) != 1 || lake.Name(under[0]) != h.Namespace+".inner" {
		t.Fatalf("%v, %v", under, err)
	}
}

func missing(t *testing.T, h Harness) {
	c := h.Open(t)
	check := func(what string) {
		t.Helper()
		if _, err := c.LoadTable(ctxOf(t), h.ident()); !errors.Is(err, lake.ErrNoTable) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := c.MetadataLocation(ctxOf(t), h.ident()); !errors.Is(err, lake.ErrNoTable) {
			t.Errorf("%s, location: %v", what, err)
		}
		if err := c.DropTable(ctxOf(t), h.ident()); !errors.Is(err, lake.ErrNoTable) {
			t.Errorf("%s, drop: %v", what, err)
		}
	}
	check("no namespace")
	if _, err := c.EnsureTable(ctxOf(t), table.Identifier{h.Namespace, "another"}, Schema, Spec(), nil); err != nil {
		t.Fatal(err)
	}
	check("no table")
}

func createRace(t *testing.T, h Harness) {
	const openers = 4
	ids := make([]string, openers)
	var wg sync.WaitGroup
	for i := range openers {
		wg.Add(1)
		c := h.Open(t)
		go func() {
			defer wg.Done()
			tbl, err := c.EnsureTable(ctxOf(t), h.ident(), Schema, Spec(), nil)
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = tbl.Metadata().TableUUID().String()
		}()
	}
	wg.Wait()
	slices.Sort(ids)
	if ids[0] == "" || ids[0] != ids[openers-1] {
		t.Fatalf("several tables were made: %v", ids)
	}
}

func committed(t *testing.T, h Harness) {
	c := h.Open(t)
	tbl := h.ensure(t, c)
	after := bump(t, c, tbl, 1)
	fresh := load(t, h.Open(t), h.ident())
	if lake.HeadOf(fresh).ID == 0 || lake.HeadOf(fresh) != lake.HeadOf(after) {
		t.Fatalf("head %v, the commit returned %v", lake.HeadOf(fresh), lake.HeadOf(after))
	}
	if fresh.Properties()["weir.test"] != "1" || !slices.Equal(history(fresh), []string{"1"}) {
		t.Fatalf("properties %v, history %v", fresh.Properties(), history(fresh))
	}
	// The returned table is one to go on from.
	bump(t, c, after, 2)
	if got := history(load(t, c, h.ident())); !slices.Equal(got, []string{"2", "1"}) {
		t.Fatalf("history %v", got)
	}
}

func stale(t *testing.T, h Harness) {
	c := h.Open(t)
	base := h.ensure(t, c)
	for n := range 2 { // on an empty table, then on one with a head
		bump(t, h.Open(t), base, fmt.Sprint("theirs ", n))
		_, err := c.Commit(ctxOf(t), base, change("ours"))
		if !errors.Is(err, lake.ErrConflict) || errors.Is(err, lake.ErrUnknown) {
			t.Fatalf("want a conflict, got %v", err)
		}
		fresh := load(t, c, h.ident())
		if len(history(fresh)) != n+1 || fresh.Properties()["weir.test"] == "ours" {
			t.Fatalf("the stale commit changed the table: %v %v", history(fresh), fresh.Properties())
		}
		base = fresh
	}
}

func race(t *testing.T, h Harness) {
	if h.Unconditional != "" {
		conformance.Skip(t, h.Unconditional)
	}
	const writers, each, tries = 3, 8, 400
	h.ensure(t, h.Open(t))
	var wg sync.WaitGroup
	for w := range writers {
		c := h.Open(t)
		wg.Add(1)
		go func() {
			defer wg.Done()
			done := 0
			for n := 0; n < tries && done < each; n++ {
				cur, err := c.LoadTable(ctxOf(t), h.ident())
				if err != nil {
					t.Error(err)
					return
				}
				switch _, err = c.Commit(ctxOf(t), cur, change(fmt.Sprintf("%d-%d", w, done))); {
				case err == nil:
					done++
				case errors.Is(err, lake.ErrUnknown) && slices.Contains(history(load(t, c, h.ident())), fmt.Sprintf("%d-%d", w, done)):
					done++
				case !lake.IsConflict(err) && !errors.Is(err, lake.ErrUnknown):
					t.Error(err)
					return
				}
			}
			if done < each {
				t.Errorf("writer %d made %d of %d commits in %d tries", w, done, each, tries)
			}
		}()
	}
	wg.Wait()
	fresh := load(t, h.Open(t), h.ident())
	got := history(fresh)
	slices.Sort(got)
	if len(got) != writers*each || len(slices.Compact(got)) != writers*each || lake.HeadOf(fresh).Sequence != writers*each {
		t.Fatalf("%d commits, head %v: %v", len(got), lake.HeadOf(fresh), got)
	}
}

// foreignProperty: a writer that changes only a property does not move the
// head. Whether the catalog takes that for a conflict is its own affair.
func foreignProperty(t *testing.T, h Harness) {
	c := h.Open(t)
	base := bump(t, c, h.ensure(t, c), 1)
	txn := load(t, h.Open(t), h.ident()).NewTransaction()
	if err := txn.SetProperties(iceberg.Properties{"theirs": "set"}); err != nil {
		t.Fatal(err)
	}
	if _, err := txn.Commit(ctxOf(t)); err != nil {
		t.Fatal(err)
	}
	want := []string{"2", "1"}
	if _, err := c.Commit(ctxOf(t), base, change(2)); err != nil {
		if !lake.IsConflict(err) {
			t.Fatal(err)
		}
		want = []string{"1"}
	}
	fresh := load(t, c, h.ident())
	if fresh.Properties()["theirs"] != "set" || !slices.Equal(history(fresh), want) {
		t.Fatalf("history %v, properties %v", history(fresh), fresh.Properties())
	}
}

func dropped(t *testing.T, h Harness) {
	c := h.Open(t)
	base := bump(t, c, h.ensure(t, c), 1)
	if err := h.Open(t).DropTable(ctxOf(t), h.ident()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Commit(ctxOf(t), base, change(2)); !errors.Is(err, lake.ErrConflict) {
		t.Fatalf("dropped: %v", err)
	}
	if _, err := c.LoadTable(ctxOf(t), h.ident()); !errors.Is(err, lake.ErrNoTable) {
		t.Fatalf("the commit brought the table back: %v", err)
	}
}

func recreated(t *testing.T, h Harness) {
	c := h.Open(t)
	empty := h.ensure(t, c)
	other := h.Open(t)
	if err := other.DropTable(ctxOf(t), h.ident()); err != nil {
		t.Fatal(err)
	}
	again := h.ensure(t, other)
	if again.Metadata().TableUUID() == empty.Metadata().TableUUID() {
		t.Fatal("a table made again has the same UUID")
	}
	// Neither has a head: only the UUID tells them apart.
	if _, err := c.Commit(ctxOf(t), empty, change(1)); !errors.Is(err, lake.ErrConflict) {
		t.Fatalf("made again: %v", err)
	}
	if got := load(t, c, h.ident()); lake.HeadOf(got).ID != 0 {
		t.Fatal("the commit to the old table is in the new one")
	}
}

func expiry(t *testing.T, h Harness) {
	c := h.Open(t)
	cur := h.ensure(t, c)
	for n := range 6 {
		cur = bump(t, c, cur, n)
	}
	gone, err := c.Expire(ctxOf(t), cur, lake.Retention{Keep: 2})
	if err != nil {
		t.Fatal(err)
	}
	fresh := load(t, h.Open(t), h.ident())
	if len(gone.Snapshots) != 4 || len(fresh.Metadata().Snapshots()) != 2 || lake.HeadOf(fresh) != lake.HeadOf(cur) {
		t.Fatalf("%d expired, %d left, head %v of %v", len(gone.Snapshots), len(fresh.Metadata().Snapshots()), lake.HeadOf(fresh), lake.HeadOf(cur))
	}
	if fresh.Properties()["weir.test"] != "5" {
		t.Fatal("the property is gone")
	}
	bump(t, c, fresh, 6)
}

func listed(t *testing.T, h Harness) {
	c := h.Open(t)
	h.ensure(t, c)
	tables, err := c.ListTables(ctxOf(t), table.Identifier{h.Namespace})
	if err != nil || len(tables) != 1 || lake.Name(tables[0]) != lake.Name(h.ident()) {
		t.Fatalf("%v, %v", tables, err)
	}
	tables, err = c.ListTables(ctxOf(t), table.Identifier{h.Namespace + "x"})
	if err != nil || len(tables) != 0 {
		t.Fatalf("a namespace that is not there: %v, %v", tables, err)
	}
	namespaces, err := c.ListNamespaces(ctxOf(t), nil)
	if err != nil || !slices.ContainsFunc(namespaces, func(n table.Identifier) bool { return lake.Name(n) == h.Namespace }) {
		t.Fatalf("%v, %v", namespaces, err)
	}
	if ok, err := c.NamespaceExists(ctxOf(t), table.Identifier{h.Namespace}); err != nil || !ok {
		t.Fatalf("%v, %v", ok, err)
	}
	if ok, err := c.NamespaceExists(ctxOf(t), table.Identifier{h.Namespace + "x"}); err != nil || ok {
		t.Fatalf("%v, %v", ok, err)
	}
}

func (h Harness) faulty(t *testing.T) (*lake.Catalog, Faults) {
	t.Helper()
	if h.Faulty == nil {
		conformance.Skip(t, "this catalog has no line that could be cut")
	}
	return h.Faulty(t)
}

func lostRequest(t *testing.T, h Harness) {
	c, faults := h.faulty(t)
	base := bump(t, c, h.ensure(t, c), 1)
	faults.LoseRequest()
	_, err := c.Commit(ctxOf(t), base, change(2))
	if err == nil || errors.Is(err, lake.ErrConflict) {
		t.Fatalf("a commit that was lost: %v", err)
	}
	if got := history(load(t, h.Open(t), h.ident())); !slices.Equal(got, []string{"1"}) {
		t.Fatalf("history %v", got)
	}
	// The same catalog goes on, and the same commit can be made.
	bump(t, c, load(t, c, h.ident()), 2)
}

func lostAnswer(t *testing.T, h Harness) {
	c, faults := h.faulty(t)
	base := bump(t, c, h.ensure(t, c), 1)
	faults.LoseAnswer()
	_, err := c.Commit(ctxOf(t), base, change(2))
	if !errors.Is(err, lake.ErrUnknown) || errors.Is(err, lake.ErrConflict) {
		t.Fatalf("a commit whose answer was lost: %v", err)
	}
	if got := history(load(t, c, h.ident())); !slices.Equal(got, []string{"2", "1"}) {
		t.Fatalf("history %v", got)
	}
}

func lostCreation(t *testing.T, h Harness) {
	c, faults := h.faulty(t)
	// The namespace is there, so that the creation is what gets lost.
	if _, err := c.EnsureTable(ctxOf(t), table.Identifier{h.Namespace, "another"}, Schema, Spec(), nil); err != nil {
		t.Fatal(err)
	}
	faults.LoseAnswer()
	tbl, err := c.EnsureTable(ctxOf(t), h.ident(), Schema, Spec(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if again := h.ensure(t, h.Open(t)); again.Metadata().TableUUID() != tbl.Metadata().TableUUID() {
		t.Fatal("two tables were made")
	}
}

func killedBetween(t *testing.T, h Harness) {
	if h.Kill == nil {
		conformance.Skip(t, cmp.Or(h.NotKilled, "this catalog has no server that could be killed"))
	}
	c := h.Open(t)
	cur := h.ensure(t, c)
	for n := range 3 {
		cur = bump(t, c, cur, n)
	}
	h.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	_, err := c.Commit(ctx, cur, change("down"))
	cancel()
	if err == nil || errors.Is(err, lake.ErrConflict) || errors.Is(err, lake.ErrNoTable) || failure.Is(err, failure.Config) {
		t.Errorf("a commit to a dead server: %v", err)
	}
	_, err = c.LoadTable(ctxOf(t), h.ident())
	if err == nil || errors.Is(err, lake.ErrNoTable) {
		t.Errorf("a load from a dead server: %v", err)
	}
	h.Restart()
	fresh := load(t, c, h.ident())
	if got := history(fresh); !slices.Equal(got, []string{"2", "1", "0"}) {
		t.Fatalf("history %v", got)
	}
	bump(t, c, fresh, 3)
}

// killedWithin commits while the server is killed and started again. Whatever
// the commit said must agree with the table: made, not made, or unknown.
func killedWithin(t *testing.T, h Harness) {
	if h.Kill == nil {
		conformance.Skip(t, cmp.Or(h.NotKilled, "this catalog has no server that could be killed"))
	}
	c := h.Open(t)
	h.ensure(t, c)
	const kills = 3
	said := map[string]string{}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			cur, err := c.LoadTable(ctxOf(t), h.ident())
			if err != nil {
				if errors.Is(err, lake.ErrNoTable) {
					t.Error(err)
					return
				}
				_ = clock.System{}.Sleep(context.Background(), 10*time.Millisecond)
				continue
			}
			id := fmt.Sprint(n)
			_, err = c.Commit(ctxOf(t), cur, change(id))
			switch {
			case err == nil:
				said[id] = "made"
			case errors.Is(err, lake.ErrUnknown):
				said[id] = "unknown"
			default:
				said[id] = "not made: " + err.Error()
			}
		}
	}()
	for range kills {
		_ = clock.System{}.Sleep(context.Background(), 300*time.Millisecond)
		h.Kill()
		h.Restart()
	}
	_ = clock.System{}.Sleep(context.Background(), 300*time.Millisecond)
	close(stop)
	<-done
	counts := map[string]int{}
	got := history(load(t, h.Open(t), h.ident()))
	for id, what := range said {
		n := 0
		for _, g := range got {
			if g == id {
				n++
			}
		}
		word, _, _ := strings.Cut(what, ":")
		counts[word]++
		switch {
		case n > 1, word == "made" && n != 1, word == "not made" && n != 0:
			t.Errorf("commit %s was reported as %s and stands in the table %d times", id, what, n)
		}
	}
	if len(got) < kills {
		t.Errorf("only %d commits", len(got))
	}
	t.Logf("%d commits in the table; reported: %v", len(got), counts)
}
