package prove

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/fault"
)

const (
	groupErase = "erase"
	// eraseDelay is longer than what is published at once takes in event time: no
	// fresh event is late.
	eraseDelay = "10s"
	// eraseName is the erasure's: the same command can be given again.
	eraseName = "prove-1"
	// eraseExtra is how many late events, and how many dead letters, there are of
	// the one whose rows are erased.
	eraseExtra = 5
	// wholeMaxOffsets puts everything that is published at once into one batch.
	wholeMaxOffsets = 5000
)

// eraseTables are the tables that lose rows, in the order in which rows flow.
var eraseTables = []string{bronzeTable, deadLetterTable, silverTable, sessionsTable}

// eraseSteps are the steps that every table goes through.
var eraseSteps = map[string]bool{fault.EraseStaged: true, fault.CommitMetadata: true, fault.EraseCommitted: true}

// eraseState is what a scenario of an erasure knows.
type eraseState struct {
	*workload
	user string
	// gone are the ids of the user's events from before the erasure, goneSent how
	// often they were sent, goneBroken those of them that are dead letters.
	gone                 map[string]bool
	goneSent, goneBroken int64
	live                 *process
	missed               string
}

// erases makes the scenarios of rows that are erased while the queries run.
func erases() []Scenario {
	var out []Scenario
	for _, p := range erasePoints() {
		if !eraseSteps[p.Name] {
			out = append(out, eraseKilled(p, 1, ""))
			continue
		}
		for i, table := range eraseTables {
			out = append(out, eraseKilled(p, i+1, table))
		}
	}
	out = append(out, eraseEveryStep())
	for _, p := range fault.Points() {
		switch p.Name {
		case fault.PlanWritten, fault.ReadDone, fault.StageDone, fault.CommitBefore, fault.CommitSide, fault.CommitMetadata:
			out = append(out, eraseMeets(p, false), eraseMeets(p, true))
		}
	}
	return out
}

// erasePoints are the crash points of an erasure, in the order in which it
// reaches them.
func erasePoints() (out []fault.Point) {
	for _, p := range fault.Points() {
		if p.Step == "erase" {
			out = append(out, p)
		}
		if p.Name == fault.EraseStaged {
			out = append(out, fault.Point{Name: fault.CommitMetadata, Text: "one table's new metadata is written, the catalog not yet swapped"})
		}
	}
	return out
}

const (
	erasePublishes = "publish, among it late events and dead letters of one user, and run to the end"
	eraseBeside    = "erase that user's rows beside the running queries until the step is reached, let the queries commit, and SIGKILL the erasure"
)

// eraseKilled is the scenario of one step, reached for one of the tables.
func eraseKilled(p fault.Point, nth int, table string) Scenario {
	name, where := p.Name, p.Name
	if !strings.HasPrefix(name, "erase.") {
		name = "erase." + name
	}
	if table != "" {
		name, where = name+"-"+table, where+" ("+table+")"
	}
	return eraseScenario(name, &Place{Matrix: "Steps of an erasure", Row: where, Column: "killed"},
		fmt.Sprintf("An erasure killed at %s (%s) beside running queries is finished by the same command", where, p.Text),
		func(ctx context.Context, e *Env) error { return eraseKill(ctx, e, p.Name, nth, true) })
}

// eraseEveryStep kills the erasure at each of its steps, one life after the other.
func eraseEveryStep() Scenario {
	return eraseScenario("erase-every-step", nil,
		"An erasure killed at each of its steps in every table, one life after the other, is finished by the same command",
		func(ctx context.Context, e *Env) error {
			steps := []reached{{fault.ErasePlanned, 1}}
			for i := range eraseTables {
				// A table that is done is only said to be committed again.
				steps = append(steps, reached{fault.EraseStaged, 1}, reached{fault.CommitMetadata, 1}, reached{fault.EraseCommitted, i + 1})
			}
			for i, s := range append(steps, reached{fault.EraseRecorded, 1}, reached{fault.EraseDone, 1}) {
				if err := eraseKill(ctx, e, s.point, s.nth, i == 0); err != nil || e.state.(*eraseState).missed != "" {
					return err
				}
			}
			return nil
		})
}

func eraseScenario(name string, place *Place, claim string, kill func(context.Context, *Env) error) Scenario {
	return Scenario{
		Name: name, Group: groupErase, Place: place,
		Claim: claim + ": the rows are in no table and do not come back by a replay or a rebuild, every other row is there once, no query stops.",
		Steps: []Step{
			{"make the topic and the pipeline file", func(ctx context.Context, e *Env) error { return erasePrepare(ctx, e, crashMaxOffsets) }},
			{erasePublishes, both(erasePublish, handsOnce, eraseSpecial, handsOnce)},
			{"run on, and publish more", both(eraseLive, erasePublish, eraseCaughtUp)},
			{eraseBeside, both(eraseBegin, kill)},
			{"erase again beside them, publish more, stop the queries", both(eraseAgain, erasePublish, eraseCaughtUp, eraseStop)},
			{"audit", eraseAudit},
			{"replay what came late, and make silver and the sessions anew", eraseComeBack},
			{"publish new events of that user as well, and run to the end", both(erasePublishAll, handsOnce)},
			{"count", eraseCount},
		},
		GuardAfter: eraseBeside, Guard: eraseMissed,
		Expect: func(e *Env) []Check {
			return append(e.state.(*eraseState).expect(),
				Check{"running_queries_stopped", "running queries that the erasure stopped", int64(0)},
				Check{"audit_after_the_erasure", "audit before anything is made anew", audit.Exact},
				Check{"rows_replayed", "late rows that a replay brings back", "0 of 0"})
		},
	}
}

// eraseMeets is the scenario of an erasure that is carried out while silver stands
// in a batch with the rows in its hands.
func eraseMeets(p fault.Point, killed bool) Scenario {
	name, column, then := "erase-meets-"+p.Name, "woken", "and then goes on"
	if killed {
		name, column, then = name+"-killed", "killed", "and is then killed and started again"
	}
	const meet = "publish events of that user, run until silver stands in its batch, and erase"
	return Scenario{
		Name: name, Group: groupErase,
		Place: &Place{Matrix: "Erased while silver stands in a batch with the rows", Row: p.Name, Column: column},
		Claim: fmt.Sprintf("Silver that stands at %s (%s) with rows in its hands while they are erased, %s, does not bring them: they are in no table, every other row is there once.", p.Name, p.Text, then),
		Steps: []Step{
			{"make the topic and the pipeline file", func(ctx context.Context, e *Env) error { return erasePrepare(ctx, e, wholeMaxOffsets) }},
			{erasePublishes, both(erasePublish, handsOnce, eraseSpecial, handsOnce)},
			{meet, func(ctx context.Context, e *Env) error { return eraseMeet(ctx, e, p.Name, killed) }},
			{"publish new events of that user as well, and run to the end", both(erasePublishAll, handsOnce)},
			{"count", eraseCount},
		},
		GuardAfter: meet, Guard: eraseMissed,
		Expect: func(e *Env) []Check {
			return e.state.(*eraseState).expect()
		},
	}
}

func eraseMissed(e *Env) string { return e.state.(*eraseState).missed }

func erasePrepare(ctx context.Context, e *Env, maxOffsets int64) (err error) {
	st := &eraseState{gone: map[string]bool{}}
	e.state = st
	st.workload, err = e.newWorkload(ctx, setup{Name: "erase", MaxOffsets: maxOffsets, Extra: sessionsYAML, Delay: eraseDelay})
	return err
}

func erasePublish(ctx context.Context, e *Env) error { return e.state.(*eraseState).publish(ctx, e) }

// userOf is who made an event, empty where it does not say.
func userOf(ev event) string {
	var doc struct{ User string }
	if json.Unmarshal(ev.payload, &doc) != nil {
		return ""
	}
	return doc.User
}

// eraseSpecial picks the user with the most edits and sends events of theirs that
// come too late for silver, and such that it cannot read.
func eraseSpecial(ctx context.Context, e *Env) error {
	st := e.state.(*eraseState)
	edits, most := map[string]int{}, 0
	var model event
	for _, ev := range st.earlier {
		if u := userOf(ev); u != "" && ev.edit() {
			if edits[u]++; edits[u] > most {
				most, st.user, model = edits[u], u, ev
			}
		}
	}
	var events []event
	for i := range eraseExtra {
		late, err := remade(model, st.user, fmt.Sprintf("late-%d", i), e.o.Clock.Now().Add(-24*time.Hour).UTC().Format(time.RFC3339))
		if err != nil {
			return err
		}
		dead, err := remade(model, st.user, fmt.Sprintf("dead-%d", i), "never")
		if err != nil {
			return err
		}
		events = append(events, late, dead)
	}
	st.broken += eraseExtra
	st.goneBroken = eraseExtra
	return st.send(ctx, e, events)
}

// remade is an event like another one, of a user, with another id, and another time
// where one is given.
func remade(ev event, user, id, at string) (event, error) {
	var doc map[string]any
	if err := json.Unmarshal(ev.payload, &doc); err != nil {
		return ev, err
	}
	meta, ok := doc["meta"].(map[string]any)
	if !ok {
		return ev, fmt.Errorf("event %s has no meta", ev.id)
	}
	doc["user"], meta["id"] = user, id
	if at != "" {
		meta["dt"] = at
	}
	payload, err := json.Marshal(doc)
	return event{id: id, kind: ev.kind, class: ev.class, payload: payload}, err
}

// startLive starts the queries, which run until they are stopped.
func (e *Env) startLive() (*process, error) {
	return e.start("weir run, which goes on", nil, "run", e.path(queriesFileName))
}

func eraseLive(_ context.Context, e *Env) (err error) {
	e.state.(*eraseState).live, err = e.startLive()
	return err
}

// eraseCaughtUp waits until the running queries have committed all that was sent.
func eraseCaughtUp(ctx context.Context, e *Env) error {
	st := e.state.(*eraseState)
	return e.until(ctx, st.live, runOnceMax, "the commit of what was published", func() (bool, error) { return e.allCaughtUp(ctx, st.setup.Topic) })
}

// eraseBegin settles what is to be erased: all that was sent of the user. From
// here on nothing more of theirs is sent, until erasePublishAll.
func eraseBegin(_ context.Context, e *Env) error {
	st := e.state.(*eraseState)
	theirs := func(ev event) bool { return userOf(ev) == st.user }
	for _, ev := range st.earlier {
		if theirs(ev) {
			st.gone[ev.id] = true
		}
	}
	for i := range eraseExtra {
		for _, kind := range []string{"late", "dead", "fresh"} {
			st.gone[fmt.Sprintf("%s-%d", kind, i)] = true
		}
	}
	for id := range st.gone {
		st.goneSent += st.times[id]
		delete(st.expected, id)
	}
	st.earlier = slices.DeleteFunc(st.earlier, theirs) // a copy that is sent later is a new record
	st.leave = theirs
	return nil
}

func (st *eraseState) command(e *Env) []string {
	return []string{"erase", e.path(queriesFileName), "--table", silverTable, "--where", "user = '" + strings.ReplaceAll(st.user, "'", "''") + "'", "--id", eraseName}
}

// reached is a crash point at which a process is killed, and which time it is there.
type reached struct {
	point string
	nth   int
}

// eraseKill lets the erasure come to a step, where publish is set the queries commit
// more while it stands there, and kills it.
func eraseKill(ctx context.Context, e *Env, point string, nth int, publish bool) error {
	st := e.state.(*eraseState)
	p, why, err := e.hold(ctx, "erase/"+point, nth, st.command(e)...)
	if err != nil || p == nil {
		st.missed = fmt.Sprintf("the erasure never reached %s: %s", point, why)
		return err
	}
	if publish {
		if err := both(erasePublish, eraseCaughtUp)(ctx, e); err != nil {
			return err
		}
	}
	return e.strike(p, "SIGKILL of the erasure at "+point)
}

func eraseAgain(ctx context.Context, e *Env) error {
	p, err := e.start("weir erase", nil, e.state.(*eraseState).command(e)...)
	if err != nil {
		return err
	}
	return p.wait(ctx, runOnceMax)
}

// eraseStop ends the queries, which must have run all the time.
func eraseStop(ctx context.Context, e *Env) error {
	st := e.state.(*eraseState)
	e.observed["running_queries_stopped"] = int64(0)
	if !st.live.running() {
		e.observed["running_queries_stopped"] = int64(1)
		return nil
	}
	return st.live.stop(ctx)
}

// eraseAudit lets the binary audit what the erasure has left, before anything is
// made anew. The counts at the end are the verifier's own.
func eraseAudit(ctx context.Context, e *Env) error {
	rep, err := e.auditPipeline(ctx)
	if err != nil {
		return err
	}
	e.observed["audit_after_the_erasure"] = audit.Exact
	for _, t := range rep.Tables {
		if t.Outcome != audit.Exact {
			e.observed["audit_after_the_erasure"] = t.Table + ": " + findings(t)
		}
	}
	return nil
}

// eraseComeBack does what could bring rows back.
func eraseComeBack(ctx context.Context, e *Env) error {
	var done struct {
		Queries []struct{ Found, Replayed int64 }
	}
	if err := e.answer(ctx, &done, "late", "replay", e.path(queriesFileName)); err != nil {
		return err
	}
	var found, brought int64
	for _, q := range done.Queries {
		found, brought = found+q.Found, brought+q.Replayed
	}
	e.observed["rows_replayed"] = fmt.Sprintf("%d of %d", brought, found)
	p, err := e.start("weir rebuild", nil, "rebuild", e.path(queriesFileName), "silver", sessionsQuery)
	if err != nil {
		return err
	}
	return p.wait(ctx, runOnceMax)
}

// erasePublishAll publishes that user's new events as well: they are not what was
// erased.
func erasePublishAll(ctx context.Context, e *Env) error {
	st := e.state.(*eraseState)
	st.leave = nil
	return st.publish(ctx, e)
}

// eraseMeet suspends silver with the rows in its hands, erases them, and lets it go
// on, or kills it.
func eraseMeet(ctx context.Context, e *Env, point string, killed bool) error {
	st := e.state.(*eraseState)
	if err := both(erasePublish, eraseFresh)(ctx, e); err != nil {
		return err
	}
	// Bronze first, so that all of it is there to be found.
	if _, err := e.runOnce(ctx, "--query", "bronze"); err != nil {
		return err
	}
	nth := 1
	if sideFirst[point] {
		nth = 2 // the dead-letter table's comes first
	}
	p, why, err := e.suspend(ctx, "silver/"+point, nth, "run", e.path(queriesFileName), "--once")
	if err != nil || p == nil {
		st.missed = fmt.Sprintf("silver never reached %s: %s", point, why)
		return err
	}
	if err := eraseBegin(ctx, e); err != nil {
		return err
	}
	if held, err := e.keysIn(ctx, silverTable, "event_id", map[string]bool{"fresh-0": true}); err != nil || held > 0 {
		st.missed = "silver holds the rows that were to be in its hands"
		return err
	}
	if err := eraseAgain(ctx, e); err != nil {
		return err
	}
	if killed {
		return e.strike(p, "SIGKILL of silver at "+point)
	}
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	return p.wait(ctx, runOnceMax)
}

// eraseFresh sends edits of that user which are as new as what was published last.
func eraseFresh(ctx context.Context, e *Env) error {
	st := e.state.(*eraseState)
	edits := slices.DeleteFunc(slices.Clone(st.earlier), func(ev event) bool { return !ev.edit() })
	var events []event
	for i := range eraseExtra {
		ev, err := remade(edits[len(edits)-1], st.user, fmt.Sprintf("fresh-%d", i), "")
		if err != nil {
			return err
		}
		events = append(events, ev)
	}
	return st.send(ctx, e, events)
}

// keysIn counts the rows of a table whose column holds one of the values.
func (e *Env) keysIn(ctx context.Context, table, column string, values map[string]bool) (n int64, err error) {
	err = audit.Strings(ctx, e.catalog, nil, table, column, func(v string) {
		if values[v] {
			n++
		}
	})
	return n, err
}

// eraseCount counts every layer, and looks for what was erased in each.
func eraseCount(ctx context.Context, e *Env) error {
	st := e.state.(*eraseState)
	if _, err := e.verifySessions(ctx, st.setup.Topic); err != nil {
		return err
	}
	if err := e.silverIDs(ctx, st.expected); err != nil {
		return err
	}
	var left int64
	for _, at := range []struct{ table, column string }{{bronzeTable, "key"}, {deadLetterTable, "key"}, {silverTable, "event_id"}} {
		n, err := e.keysIn(ctx, at.table, at.column, st.gone)
		if err != nil {
			return err
		}
		left += n
	}
	e.observed["erased_rows_left"] = left
	var err error
	e.observed["dead_letter_rows"], err = e.rows(ctx, deadLetterTable)
	e.gatherTimeline(ctx, eraseTables...)
	return err
}

// expect is what must have been counted.
func (st *eraseState) expect() []Check {
	kept := st.sent - st.goneSent
	return []Check{
		{"kafka_messages", "Kafka messages", st.sent},
		{"bronze_rows", "bronze rows: the messages without those that were erased", kept},
		{"bronze_distinct_offsets", "distinct (partition, offset)", kept},
		{"erased_rows_left", "rows of bronze, dead letters and silver that were erased", int64(0)},
		{"silver_rows", "silver rows", int64(len(st.expected))},
		{"silver_distinct_event_ids", "distinct event ids in silver", int64(len(st.expected))},
		{"silver_ids_missing", "expected ids that silver lacks", int64(0)},
		{"silver_ids_unexpected", "ids in silver that were not expected", int64(0)},
		{"dead_letter_rows", "rows in the dead-letter table", st.broken - st.goneBroken},
		{"sessions_missing", "complete sessions of what is left that the table lacks", int64(0)},
		{"sessions_extra", "rows of the table that are no complete session of what is left", int64(0)},
		{"audit", "audit of the three tables", audit.Exact},
	}
}
