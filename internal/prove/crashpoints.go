package prove

import (
	"context"
	"fmt"
	"slices"

	"github.com/weirlake/weir/internal/fault"
)

// Groups of the crash-point scenarios.
const (
	groupCrash      = "crash-points"
	groupCrashFirst = "crash-points-first"

	crashMaxOffsets = 300
	// everyMaxOffsets makes batches enough for a kill at every step.
	everyMaxOffsets = 100
)

// batchSteps are those of one micro-batch that every kind of query goes through.
var batchSteps = []string{"claim", "plan", "read", "transform", "stage", "commit", "done", "report"}

// ofBatch reports whether a crash point belongs to a micro-batch, and not to
// ingestion, gold, jobs, table care or one kind of store alone.
func ofBatch(p fault.Point) bool { return slices.Contains(batchSteps, p.Step) }

// unreachable are steps that a kind of query does not have.
var unreachable = map[string]map[string]string{
	"bronze": {
		fault.StageState: "bronze keeps no state",
		fault.CommitSide: "bronze has no side table",
	},
}

// sideFirst are the steps that every sink goes through: a query with a side
// table reaches them for that one first, and for its main table second.
var sideFirst = map[string]bool{fault.CommitBefore: true, fault.CommitMetadata: true}

// crashState is what one crash-point scenario knows.
type crashState struct {
	*workload
	query, point string
	nth          int    // at which time of reaching the point
	missed       string // how the armed run ended, where it never got there
	killed       bool
	settle       func()
}

// crashPoints makes a scenario for every step of every kind of query, once
// with batches already behind it and once in its first start ever.
func crashPoints() []Scenario {
	var out []Scenario
	for _, first := range []bool{false, true} {
		for _, query := range []string{"bronze", "silver"} {
			for _, p := range fault.Points() {
				if !ofBatch(p) || unreachable[query][p.Name] != "" {
					continue
				}
				if query == "silver" && sideFirst[p.Name] {
					out = append(out, crashPoint(query, "side-", p, 1, first), crashPoint(query, "", p, 2, first))
					continue
				}
				out = append(out, crashPoint(query, "", p, 1, first))
			}
		}
	}
	return append(out, everyStep("bronze"), everyStep("silver"))
}

// everyStep kills a query at every step it has, one life after the other,
// without a good run in between.
func everyStep(query string) Scenario {
	var points []fault.Point
	for _, p := range fault.Points() {
		if ofBatch(p) && unreachable[query][p.Name] == "" {
			points = append(points, p)
		}
	}
	const prepare, kills = "make the topic and the pipeline file, publish", "SIGKILL at the first step, start again, SIGKILL at the next: to the last"
	return Scenario{
		Name: query + "-every-step", Group: groupCrash,
		Claim: fmt.Sprintf("%s killed at each of its %d steps, one life after the other and never coming to its end, is exact after a restart.", query, len(points)),
		Steps: []Step{
			{prepare, func(ctx context.Context, e *Env) (err error) {
				st := &crashState{query: query, settle: func() {}}
				e.state = st
				if st.workload, err = e.newWorkload(ctx, setup{Name: "crash", MaxOffsets: everyMaxOffsets}); err != nil {
					return err
				}
				return both(crashPublish, crashPublish)(ctx, e)
			}},
			{kills, func(ctx context.Context, e *Env) error {
				for _, p := range points {
					st := e.state.(*crashState)
					st.point, st.nth, st.killed = p.Name, 1, false
					if query == "silver" && sideFirst[p.Name] {
						st.nth = 2
					}
					before := st.settle
					err := crashKill(ctx, e)
					before()
					if err != nil || !st.killed {
						return err
					}
				}
				return nil
			}},
			{"publish more, start again, and run to the end", both(crashPublish, crashRestart)},
			{"count", crashCount},
		},
		GuardAfter: kills, Guard: crashMissed, Expect: crashExpect,
	}
}

// crashPoint makes the scenario of one step; side is "side-" where it is the
// side table's.
func crashPoint(query, side string, p fault.Point, nth int, first bool) Scenario {
	where, of := p.Name, ""
	if side != "" {
		where += " (dead-letter table)"
		of = " of its dead-letter table"
	}
	column := query
	if first {
		column += ", first start"
	}
	s := Scenario{
		Name:  query + "-" + side + p.Name,
		Group: groupCrash,
		Place: &Place{Matrix: "Steps of a micro-batch", Row: where, Column: column},
		Claim: fmt.Sprintf("%s killed at %s (%s) is exact after a restart.", query, p.Name+of, p.Text),
	}
	if first {
		s.Name, s.Group = query+"-first-"+side+p.Name, groupCrashFirst
		s.Claim = fmt.Sprintf("%s killed at %s in its first start (%s) is exact after a restart.", query, p.Name+of, p.Text)
	}
	const prepare, work, more, kill = "make the topic and the pipeline file", "publish, and run to the end", "publish more", "run until the step is reached, and SIGKILL"
	s.Steps = []Step{{prepare, func(ctx context.Context, e *Env) (err error) {
		st := &crashState{query: query, point: p.Name, nth: nth}
		e.state = st
		st.workload, err = e.newWorkload(ctx, setup{Name: "crash", MaxOffsets: crashMaxOffsets})
		return err
	}}}
	if !first {
		s.Steps = append(s.Steps, Step{work, crashFirstRun})
	}
	s.Steps = append(s.Steps,
		Step{more, crashPublish},
		Step{kill, crashKill},
		Step{"start again, and run to the end", crashRestart},
		Step{"count", crashCount})
	s.GuardAfter, s.Guard, s.Expect = kill, crashMissed, crashExpect
	return s
}

// crashMissed is the guard: the query has to have been killed at the step.
func crashMissed(e *Env) string {
	if st := e.state.(*crashState); !st.killed {
		return fmt.Sprintf("%s never reached %s: %s", st.query, st.point, st.missed)
	}
	return ""
}

func crashExpect(e *Env) []Check { return e.state.(*crashState).expect() }

func crashCount(ctx context.Context, e *Env) error { return e.state.(*crashState).count(ctx, e) }

func crashFirstRun(ctx context.Context, e *Env) error {
	if err := crashPublish(ctx, e); err != nil {
		return err
	}
	_, err := e.runOnce(ctx)
	return err
}

func crashPublish(ctx context.Context, e *Env) error { return e.state.(*crashState).publish(ctx, e) }

func crashKill(ctx context.Context, e *Env) error {
	st := e.state.(*crashState)
	p, why, err := e.hold(ctx, st.query+"/"+st.point, st.nth, "run", e.path(queriesFileName), "--once")
	if err != nil || p == nil {
		st.missed = why // the guard says so
		return err
	}
	if st.settle, err = e.kill(ctx, p, e.tableRows(st.table())); err != nil {
		return err
	}
	st.killed = true
	return e.rowsAtCrash(ctx, bronzeTable, silverTable)
}

// rowsAtCrash notes what the tables hold while nothing runs.
func (e *Env) rowsAtCrash(ctx context.Context, tables ...string) error {
	for _, table := range tables {
		n, err := e.rows(ctx, table)
		if err != nil {
			return err
		}
		e.observed[layer(table)+"_rows_at_crash"] = n
	}
	return nil
}

func (st *crashState) table() string {
	if st.query == "silver" {
		return silverTable
	}
	return bronzeTable
}

func crashRestart(ctx context.Context, e *Env) error {
	st := e.state.(*crashState)
	defer st.settle()
	_, err := e.runOnce(ctx)
	return err
}
