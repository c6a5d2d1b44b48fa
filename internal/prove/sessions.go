package prove

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/fault"
)

const (
	groupSessions = "sessions"
	sessionsQuery = "sessions"
	sessionsTable = "silver.editor_sessions"
	// sessionsGap and sessionsDelay are short: a scenario's stream is some
	// seconds of event time long, and sessions have to end in it.
	sessionsGap   = "500ms"
	sessionsMicro = 500_000
	sessionsDelay = "2s"
)

// sessionsYAML is the query of editors' sessions as the wikimedia example has it.
const sessionsYAML = `  - name: sessions
    from: {table: {name: silver.edits, maxOffsetsPerTrigger: 300}}
    watermark: {column: event_time}
    aggregate:
      - session: {gap: ` + sessionsGap + `}
        keys: [wiki, user]
        columns:
          - {name: edits, function: count}
          - {name: pages, function: approxCountDistinct, column: title}
          - {name: first_title, function: first, column: title}
          - {name: last_edit, function: max, column: event_time}
    to:
      iceberg: {table: silver.editor_sessions, partitionBy: ["day(session_end)"]}
`

// sessionsConfig says to the audit what the rows of the table must be.
func sessionsConfig(gapMicros int64) audit.TableConfig {
	return audit.TableConfig{Name: sessionsTable, Upstream: silverTable, Groups: &audit.GroupsConfig{
		Keys: []string{"wiki", "user"}, TimeColumn: "event_time", GapMicros: gapMicros,
		CountColumn: "edits", Start: "session_start", End: "session_end",
	}}
}

// sessionState is what a scenario of sessions knows.
type sessionState struct {
	*workload
	point  string
	nth    int
	missed string
	killed bool
	settle func()
}

// sessions makes a scenario for every step of the query of sessions, with
// batches behind it and in its first start, and those in which what it keeps
// between batches is lost with it.
func sessions() []Scenario {
	var out []Scenario
	for _, p := range fault.Points() {
		if !ofBatch(p) || p.Name == fault.CommitSide {
			continue
		}
		out = append(out, sessionsKilled(p, false, nil, ""), sessionsKilled(p, true, nil, ""))
	}
	swapped := fault.Point{Name: fault.CommitSwapped, Text: "the commit has landed, nobody was told"}
	return append(out,
		sessionsKilled(swapped, false, func(e *Env) string { return e.path(filepath.Join("checkpoints", sessionsQuery, "state")) }, "state"),
		sessionsKilled(swapped, false, func(e *Env) string { return e.path(filepath.Join("checkpoints", sessionsQuery)) }, "checkpoint"))
}

// sessionsKilled makes the scenario of one step; lost names a folder that is
// removed after the kill.
func sessionsKilled(p fault.Point, first bool, lost func(*Env) string, what string) Scenario {
	column := "sessions"
	if first {
		column += ", first start"
	}
	s := Scenario{
		Name: "sessions-" + p.Name, Group: groupSessions,
		Place: &Place{Matrix: "Steps of a micro-batch", Row: p.Name, Column: column},
		Claim: fmt.Sprintf("The query of sessions killed at %s (%s) has every complete session once after a restart.", p.Name, p.Text),
	}
	switch {
	case first:
		s.Name = "sessions-first-" + p.Name
	case lost != nil:
		s.Name, s.Place = "sessions-lost-"+what, nil
		s.Claim = fmt.Sprintf("The query of sessions killed in mid-batch whose %s is then removed reads what it needs from silver and has every complete session once.", what)
	}
	const kill = "run until the step is reached, and SIGKILL"
	s.Steps = []Step{{"make the topic and the pipeline file", func(ctx context.Context, e *Env) (err error) {
		st := &sessionState{point: p.Name, nth: 1, settle: func() {}}
		e.state = st
		st.workload, err = e.newWorkload(ctx, setup{Name: "sessions", MaxOffsets: crashMaxOffsets, Extra: sessionsYAML, Delay: sessionsDelay})
		return err
	}}}
	if !first {
		s.Steps = append(s.Steps, Step{"publish, and run to the end", func(ctx context.Context, e *Env) error {
			if err := e.state.(*sessionState).publish(ctx, e); err != nil {
				return err
			}
			_, err := e.runOnce(ctx)
			return err
		}})
	}
	s.Steps = append(s.Steps,
		Step{"publish more", func(ctx context.Context, e *Env) error { return e.state.(*sessionState).publish(ctx, e) }},
		Step{kill, sessionsKill})
	if lost != nil {
		s.Steps = append(s.Steps, Step{"remove its " + what, func(_ context.Context, e *Env) error { return os.RemoveAll(lost(e)) }})
	}
	s.Steps = append(s.Steps, Step{"start again, and run to the end", func(ctx context.Context, e *Env) error {
		st := e.state.(*sessionState)
		defer st.settle()
		_, err := e.runOnce(ctx)
		return err
	}}, Step{"count", sessionsCount})
	s.GuardAfter = kill
	s.Guard = func(e *Env) string {
		if st := e.state.(*sessionState); !st.killed {
			return fmt.Sprintf("sessions never reached %s: %s", p.Name, st.missed)
		}
		return ""
	}
	s.Expect = func(e *Env) []Check {
		st := e.state.(*sessionState)
		return []Check{
			{"bronze_rows", "bronze rows", st.sent},
			{"sessions_missing", "complete sessions that the table lacks", int64(0)},
			{"sessions_extra", "rows of the table that are no complete session", int64(0)},
			{"rows_in_no_session", "rows of silver in no session, complete or open", int64(0)},
			{"audit", "audit of the three tables", audit.Exact},
		}
	}
	return s
}

func sessionsKill(ctx context.Context, e *Env) error {
	st := e.state.(*sessionState)
	p, why, err := e.hold(ctx, sessionsQuery+"/"+st.point, st.nth, "run", e.path(queriesFileName), "--once")
	if err != nil || p == nil {
		st.missed = why // the guard says so
		return err
	}
	if st.settle, err = e.kill(ctx, p, e.tableRows(sessionsTable)); err != nil {
		return err
	}
	st.killed = true
	return nil
}

// sessionsCount lets the audit compute every session again from silver's rows.
func sessionsCount(ctx context.Context, e *Env) error {
	rep, err := e.verifySessions(ctx, e.state.(*sessionState).setup.Topic)
	if err != nil {
		return err
	}
	e.observed["rows_in_no_session"] = rep.Table(silverTable).Rows - rep.Table(sessionsTable).Groups.UpstreamRows
	e.gatherTimeline(ctx, bronzeTable, silverTable, sessionsTable)
	return nil
}

// verifySessions audits the three tables and keeps the figures of the sessions.
func (e *Env) verifySessions(ctx context.Context, topic string) (*audit.Report, error) {
	rep, err := e.verify(ctx, topic, bronzeTable, silverTable, sessionsTable)
	if err != nil {
		return nil, err
	}
	g := rep.Table(sessionsTable).Groups
	if g == nil {
		return nil, violated("the audit did not look at %s", sessionsTable)
	}
	if g.Expected == 0 {
		return nil, violated("no session was complete: the scenario shows nothing")
	}
	e.observed["sessions"], e.observed["sessions_open"] = g.Expected, g.Open
	e.observed["sessions_missing"], e.observed["sessions_extra"] = g.Missing, g.Extra
	return rep, nil
}
