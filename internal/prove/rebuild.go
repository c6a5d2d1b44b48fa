package prove

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
)

const (
	groupRebuild = "rebuild"
	// filterMore lets more rows through than silver's usual filter.
	filterMore = "type IN ('edit','new','log')"
	// shortGap is another gap than that of sessionsYAML.
	shortGap      = "250ms"
	shortGapMicro = 250_000
	// besideSuffix ends the names of the tables that stand beside the live ones.
	besideSuffix = "__rebuild"

	rowsOld = "the old rows"
	rowsNew = "the new rows"
)

// rebuildState is what a scenario of a rebuild knows.
type rebuildState struct {
	*workload
	query  string
	more   map[string]bool // ids that filterMore lets through
	live   *process
	missed string
	// held is, by step, what the table held after the kill there.
	held []string
	// refused counts the kills after which the query must not run, and did not.
	refused int64
}

// rebuildKill is a step at which a rebuild is killed.
type rebuildKill struct {
	reached
	scope string
	// table is the one whose exchange the step is of, where there are several.
	table string
	// exchanging says that batch id and epoch of the exchange are written down,
	// swapped that the main table is exchanged.
	exchanging, swapped bool
}

// rebuildKills are the steps of a rebuild, in the order in which it reaches them;
// the dead-letter table of silver is exchanged first.
func rebuildKills(query string) []rebuildKill {
	step := func(point string) rebuildKill {
		return rebuildKill{reached: reached{point, 1}, scope: groupRebuild, exchanging: true}
	}
	out := []rebuildKill{step(fault.RebuildBegun), step(fault.RebuildBuilt), step(fault.RebuildSwapping)}
	out[0].exchanging, out[1].exchanging = false, false
	kept, metadata := step(fault.RebuildKept), step(fault.CommitMetadata)
	if query == "silver" {
		kept.table, metadata.table = deadLetterTable, deadLetterTable
		out = append(out, kept, metadata, step(fault.RebuildSide))
		kept.table, metadata.table, kept.nth, metadata.nth = silverTable, silverTable, 2, 2
	}
	out = append(out, kept, metadata, step(fault.RebuildSwapped), step(fault.RebuildAdopted), step(fault.RebuildDone))
	for i := len(out) - 3; i < len(out); i++ {
		out[i].swapped = true
	}
	return out
}

// rebuilds makes the scenarios of tables that are made anew.
func rebuilds() []Scenario {
	var out []Scenario
	for _, query := range []string{"silver", sessionsQuery} {
		kills := rebuildKills(query)
		for _, k := range kills {
			out = append(out, rebuildKilled(query, k))
		}
		for i := range kills {
			kills[i].nth = 1 // a table that was exchanged in an earlier life is only looked at
		}
		out = append(out, rebuildScenario("rebuild-"+query+"-every-step", query, fmt.Sprintf("each of its %d steps, one life after the other", len(kills)), kills...))
	}
	for _, p := range fault.Points() {
		if !ofBatch(p) {
			continue
		}
		k := rebuildKill{reached: reached{p.Name, 2}, scope: "silver", table: silverTable + besideSuffix}
		if p.Step == "claim" {
			k.nth = 1
		}
		out = append(out, rebuildKilled("silver", k))
	}
	return out
}

func rebuildKilled(query string, k rebuildKill) Scenario {
	name, where := "rebuild-"+query+"-"+strings.TrimPrefix(k.point, "rebuild."), k.point
	if k.table != "" {
		name, where = name+"-"+k.table, where+" ("+k.table+")"
	}
	text := "the exchange is in a new metadata file, the catalog not yet swapped"
	for _, p := range fault.Points() {
		if p.Name == k.point && (k.point != fault.CommitMetadata || k.scope != groupRebuild) {
			text = p.Text
		}
	}
	s := rebuildScenario(name, query, fmt.Sprintf("%s (%s)", where, text), k)
	s.Place = &Place{Matrix: "Steps of a rebuild", Row: where, Column: query}
	return s
}

func rebuildScenario(name, query, where string, kills ...rebuildKill) Scenario {
	const kill = "rebuild with another definition beside the running queries, which are stopped for the exchange, and SIGKILL the rebuild"
	return Scenario{
		Name: name, Group: groupRebuild,
		Claim: fmt.Sprintf("A rebuild of %s beside running queries killed at %s and given again: the table holds wholly the old or wholly the new rows, is exchanged once, and the query goes on behind them with no row left out and none twice.", query, where),
		Steps: []Step{
			{"make the topic and the pipeline file", func(ctx context.Context, e *Env) error { return rebuildPrepare(ctx, e, query) }},
			{"publish, and run to the end", both(rebuildPublish, handsOnce)},
			{"run on, publish, and change the pipeline file under the running queries", both(rebuildLive, rebuildPublish, rebuildCaughtUp, rebuildChange)},
			{kill, func(ctx context.Context, e *Env) error { return rebuildKillAll(ctx, e, kills) }},
			{"rebuild again, and what is made of the table", func(ctx context.Context, e *Env) error { return rebuildAgain(ctx, e, kills[len(kills)-1]) }},
			{"publish more, and run to the end", both(rebuildPublish, handsOnce)},
			{"count", rebuildCount},
		},
		GuardAfter: kill, Guard: func(e *Env) string { return e.state.(*rebuildState).missed },
		Expect: func(e *Env) []Check { return rebuildExpect(e, kills) },
	}
}

func rebuildPrepare(ctx context.Context, e *Env, query string) (err error) {
	st := &rebuildState{query: query, more: map[string]bool{}}
	e.state = st
	st.workload, err = e.newWorkload(ctx, setup{Name: "rebuild", MaxOffsets: crashMaxOffsets, Extra: sessionsYAML, Delay: eraseDelay})
	return err
}

// rebuildPublish publishes, and notes what the new filter lets through.
func rebuildPublish(ctx context.Context, e *Env) error {
	st := e.state.(*rebuildState)
	if err := st.publish(ctx, e); err != nil {
		return err
	}
	for _, ev := range st.earlier {
		if ev.edit() || ev.kind == "log" {
			st.more[ev.id] = true
		}
	}
	return nil
}

func rebuildLive(_ context.Context, e *Env) (err error) {
	e.state.(*rebuildState).live, err = e.startLive()
	return err
}

func rebuildCaughtUp(ctx context.Context, e *Env) error {
	st := e.state.(*rebuildState)
	return e.until(ctx, st.live, runOnceMax, "the commit of what was published", func() (bool, error) {
		if ok, err := e.allCaughtUp(ctx, st.setup.Topic); !ok || err != nil {
			return false, err
		}
		return e.caughtUp(ctx, sessionsTable, st.setup.Topic)
	})
}

// rebuildChange gives the query that is rebuilt another definition. What runs
// already has read the file.
func rebuildChange(_ context.Context, e *Env) error {
	st := e.state.(*rebuildState)
	s := st.setup
	if st.query == "silver" {
		s.Filter = filterMore
	} else {
		s.Extra = strings.Replace(sessionsYAML, "gap: "+sessionsGap, "gap: "+shortGap, 1)
	}
	return s.write()
}

// rebuildKillAll kills a rebuild at the steps, one life after the other. The queries
// run until it comes to the exchange, from which they have to keep it.
func rebuildKillAll(ctx context.Context, e *Env, kills []rebuildKill) error {
	st := e.state.(*rebuildState)
	beside := int64(0)
	for _, k := range kills {
		if k.exchanging && st.live != nil {
			p, err := e.start("weir rebuild beside the query", nil, "rebuild", e.path(queriesFileName), st.query)
			if err != nil {
				return err
			}
			if e.observed["exit_code_beside_the_query"], err = p.endsBy(ctx, runOnceMax); err != nil {
				return err
			}
			if err := rebuildStopLive(ctx, e); err != nil {
				return err
			}
		}
		p, why, err := e.hold(ctx, k.scope+"/"+k.point, k.nth, "rebuild", e.path(queriesFileName), st.query)
		if err != nil || p == nil {
			st.missed = fmt.Sprintf("the rebuild never reached %s: %s", k.point, why)
			return err
		}
		if st.live != nil && beside == 0 {
			beside++ // once is enough: the queries commit while it stands there
			if err := both(rebuildPublish, rebuildCaughtUp)(ctx, e); err != nil {
				return err
			}
		}
		if err := e.strike(p, "SIGKILL of the rebuild at "+k.point); err != nil {
			return err
		}
		if err := st.look(ctx, e, k); err != nil {
			return err
		}
	}
	e.observed["queries_commit_beside"] = beside
	return rebuildStopLive(ctx, e)
}

// rebuildStopLive stops the queries, which must have run until now.
func rebuildStopLive(ctx context.Context, e *Env) error {
	st := e.state.(*rebuildState)
	if st.live == nil {
		return nil
	}
	live := st.live
	st.live = nil
	if !live.running() {
		return violated("%s ended with %s\n%s", live.name, live.ending(), live.tail())
	}
	return live.stop(ctx)
}

// look notes which rows the table holds after a kill, and that the query does not
// run where its tables are being exchanged.
func (st *rebuildState) look(ctx context.Context, e *Env, k rebuildKill) error {
	held, err := st.holds(ctx, e)
	if err != nil {
		return err
	}
	st.held = append(st.held, held)
	if !k.exchanging || k.point == fault.RebuildDone {
		return nil
	}
	p, err := e.start("weir run --once, which must stop", nil, "run", e.path(queriesFileName), "--once", "--query", st.query)
	if err != nil {
		return err
	}
	code, err := p.endsBy(ctx, runOnceMax)
	if code == int64(failure.Checkpoint) {
		st.refused++
	}
	return err
}

// holds says whether the table holds wholly the old rows, or wholly the new ones, of
// all that the queries have read.
func (st *rebuildState) holds(ctx context.Context, e *Env) (string, error) {
	if st.query == "silver" {
		rows, ids := int64(0), map[string]bool{}
		err := audit.Strings(ctx, e.catalog, nil, silverTable, "event_id", func(id string) { rows++; ids[id] = true })
		if err != nil {
			return "", err
		}
		for name, want := range map[string]map[string]bool{rowsOld: st.expected, rowsNew: st.more} {
			if rows == int64(len(want)) && len(ids) == len(want) && within(ids, want) {
				return name, nil
			}
		}
		return fmt.Sprintf("%d rows, %d ids of %d old and %d new", rows, len(ids), len(st.expected), len(st.more)), nil
	}
	said := []string{}
	for _, c := range []struct {
		name string
		gap  int64
	}{{rowsOld, sessionsMicro}, {rowsNew, shortGapMicro}} {
		rep, err := audit.Groups(ctx, e.catalog, nil, sessionsConfig(c.gap), st.setup.Topic)
		if err != nil {
			return "", err
		}
		if rep.Outcome == audit.Exact && rep.Groups.Missing+rep.Groups.Extra == 0 && rep.Groups.Expected > 0 {
			said = append(said, c.name)
		} else {
			said = append(said, fmt.Sprintf("not %s (%d missing, %d extra)", c.name, rep.Groups.Missing, rep.Groups.Extra))
		}
	}
	for i, name := range []string{rowsOld, rowsNew} {
		if said[i] == name && said[1-i] != rowsOld && said[1-i] != rowsNew {
			return name, nil
		}
	}
	return strings.Join(said, ", "), nil
}

// within reports whether every id is wanted.
func within(ids, want map[string]bool) bool {
	for id := range ids {
		if !want[id] {
			return false
		}
	}
	return true
}

// rebuildAgain gives the command again, and rebuilds what was made of the table.
func rebuildAgain(ctx context.Context, e *Env, last rebuildKill) error {
	st := e.state.(*rebuildState)
	queries := []string{sessionsQuery}
	if st.query == sessionsQuery {
		queries, e.sessionsGapMicros = nil, shortGapMicro
	}
	if last.point != fault.RebuildDone {
		queries = append([]string{st.query}, queries...)
	}
	for _, q := range queries {
		p, err := e.start("weir rebuild "+q, nil, "rebuild", e.path(queriesFileName), q)
		if err != nil {
			return err
		}
		if err := p.wait(ctx, runOnceMax); err != nil {
			return err
		}
	}
	held, err := st.holds(ctx, e)
	e.observed["rows_after_the_rebuild"] = held
	return err
}

// table is the one that is rebuilt.
func (st *rebuildState) table() string {
	if st.query == "silver" {
		return silverTable
	}
	return sessionsTable
}

func rebuildCount(ctx context.Context, e *Env) error {
	st := e.state.(*rebuildState)
	e.observed["rows_after_the_kills"] = strings.Join(st.held, ", ")
	e.observed["starts_refused"] = st.refused
	h, err := e.peek(ctx, st.table())
	if err != nil {
		return err
	}
	exchanges := int64(0)
	for _, c := range h.Commits {
		if c.Operation == "overwrite" && c.BatchID != "" {
			exchanges++
		}
	}
	e.observed["exchanges"] = exchanges
	left := int64(0)
	for _, table := range []string{deadLetterTable, silverTable, sessionsTable} {
		if h, err = e.peek(ctx, table+besideSuffix); err != nil {
			return err
		}
		if h.Exists {
			left++
		}
	}
	plans, err := filepath.Glob(filepath.Join(e.checkpointDir(), "_rebuilds", "*.json"))
	if err != nil {
		return err
	}
	e.observed["left_beside"] = left + int64(len(plans))
	if _, err := e.verifySessions(ctx, st.setup.Topic); err != nil {
		return err
	}
	if err := e.silverIDs(ctx, st.silverNow()); err != nil {
		return err
	}
	e.observed["dead_letter_rows"], err = e.rows(ctx, deadLetterTable)
	e.gatherTimeline(ctx, bronzeTable, silverTable, sessionsTable)
	return err
}

// silverNow are the ids that silver must hold in the end.
func (st *rebuildState) silverNow() map[string]bool {
	if st.query == "silver" {
		return st.more
	}
	return st.expected
}

func rebuildExpect(e *Env, kills []rebuildKill) []Check {
	st := e.state.(*rebuildState)
	var held []string
	var refused, beside int64
	for _, k := range kills {
		if k.swapped {
			held = append(held, rowsNew)
		} else {
			held = append(held, rowsOld)
		}
		if k.exchanging && k.point != fault.RebuildDone {
			refused++
		}
		if !k.exchanging {
			beside = 1
		}
	}
	want := int64(len(st.silverNow()))
	out := []Check{
		{"rows_after_the_kills", "what the table holds after each kill", strings.Join(held, ", ")},
		{"starts_refused", "starts of the query that were refused because its tables are being exchanged", refused},
		{"rows_after_the_rebuild", "what the table holds after the rebuild", rowsNew},
		{"exchanges", "commits that exchange the rows of the table", int64(1)},
		{"left_beside", "tables and plans that are left beside", int64(0)},
		{"queries_commit_beside", "kills before which the running queries committed beside the rebuild", beside},
		{"kafka_messages", "Kafka messages", st.sent},
		{"bronze_rows", "bronze rows", st.sent},
		{"silver_rows", "silver rows", want},
		{"silver_distinct_event_ids", "distinct event ids in silver", want},
		{"silver_ids_missing", "expected ids that silver lacks", int64(0)},
		{"silver_ids_unexpected", "ids in silver that were not expected", int64(0)},
		{"dead_letter_rows", "rows in the dead-letter table", st.broken},
		{"sessions_missing", "complete sessions that the table lacks", int64(0)},
		{"sessions_extra", "rows of the table that are no complete session", int64(0)},
		{"audit", "audit of the three tables", audit.Exact},
	}
	if slices.ContainsFunc(kills, func(k rebuildKill) bool { return k.exchanging }) {
		out = append(out, Check{"exit_code_beside_the_query", "exit code of a rebuild that comes to its exchange beside the running query", int64(failure.Fenced)})
	}
	return out
}
