package prove

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/fault"
)

// Groups of the crash-point scenarios.
const (
	groupCrash      = "crash-points"
	groupCrashFirst = "crash-points-first"
)

const (
	crashLoops      = 2 // of the sample, before and again after the first run
	crashDuplicates = 50
	crashBroken     = 10
	crashMaxOffsets = 300
	crashPartitions = 2
	// crashReached bounds the wait for the armed step. A step that is not
	// reached ends the process earlier, because it runs out of work.
	crashReached = 60 * time.Second
	crashRun     = 2 * time.Minute
)

// unreachable are steps that a kind of query does not have.
var unreachable = map[string]map[string]string{
	"bronze": {
		fault.StageState: "bronze keeps no state",
		fault.CommitSide: "bronze has no side table",
	},
}

// crashState is what one crash-point scenario knows.
type crashState struct {
	query, point string
	first        bool
	setup        setup
	base         time.Time
	expected     map[string]bool
	sent         int64
	broken       int64
	sentBefore   []event
	reached      string
	ended        string // how the armed run ended, where it never got there
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
				if p.Step == "ingest" || unreachable[query][p.Name] != "" {
					continue
				}
				out = append(out, crashPoint(query, p, first))
			}
		}
	}
	return out
}

func crashPoint(query string, p fault.Point, first bool) Scenario {
	s := Scenario{
		Name:  query + "-" + p.Name,
		Group: groupCrash,
		Claim: fmt.Sprintf("%s killed at %s (%s) is exact after a restart.", query, p.Name, p.Text),
	}
	if first {
		s.Name, s.Group = query+"-first-"+p.Name, groupCrashFirst
		s.Claim = fmt.Sprintf("%s killed at %s of its first start (%s) is exact after a restart.", query, p.Name, p.Text)
	}
	s.Steps = []Step{{"make the topic and the pipeline file", func(ctx context.Context, e *Env) error {
		return crashPrepare(ctx, e, query, p.Name, first)
	}}}
	if !first {
		s.Steps = append(s.Steps, Step{"publish, and run to the end", crashFirstRun})
	}
	s.Steps = append(s.Steps,
		Step{"publish more", crashPublish},
		Step{"run until the step is reached, and SIGKILL", crashKill},
		Step{"start again, and run to the end", crashRestart},
		Step{"count", crashCount})
	s.GuardAfter = "run until the step is reached, and SIGKILL"
	s.Guard = func(e *Env) string {
		st := e.state.(*crashState)
		switch {
		case st.reached == "":
			return fmt.Sprintf("%s never reached %s: the armed run %s", query, p.Name, st.ended)
		case !st.killed:
			return "the process was not killed"
		}
		return ""
	}
	s.Expect = crashExpect
	return s
}

func crashPrepare(ctx context.Context, e *Env, query, point string, first bool) error {
	st := &crashState{query: query, point: point, first: first, expected: map[string]bool{}, base: e.o.Clock.Now().Add(-3 * time.Minute)}
	e.state = st
	st.setup = setup{Name: "crash", Dir: e.dir, Brokers: e.broker.bootstrap, Topic: e.topic("events"), MaxOffsets: crashMaxOffsets,
		Trigger: e.o.triggerOr(0)}
	if err := e.createTopic(ctx, "events", crashPartitions); err != nil {
		return err
	}
	return st.setup.write(e.path("pipeline.yaml"))
}

// crashSend publishes two loops of the sample, some events of earlier ones
// again, and some values that no parser accepts.
func crashSend(ctx context.Context, e *Env) error {
	st := e.state.(*crashState)
	var events []event
	for range crashLoops {
		events = append(events, sample(e.rng, st.base)...)
	}
	again := append([]event{}, st.sentBefore...)
	again = append(again, events...)
	for range crashDuplicates {
		events = append(events, again[e.rng.IntN(len(again))])
	}
	for i := range crashBroken {
		events = append(events, event{id: fmt.Sprintf("broken-%d", i), kind: "broken", payload: []byte(`{"meta":{"id":`)})
	}
	for _, ev := range events {
		if ev.counted() {
			st.expected[ev.id] = true
		}
	}
	st.sentBefore = again
	st.sent += int64(len(events))
	st.broken += crashBroken
	return e.produce(ctx, st.setup.Topic, events)
}

func crashFirstRun(ctx context.Context, e *Env) error {
	if err := crashSend(ctx, e); err != nil {
		return err
	}
	return e.runOnce(ctx)
}

// runOnce works off what is there and must end with exit code 0.
func (e *Env) runOnce(ctx context.Context) error {
	p, err := e.start("weir run --once", nil, "run", e.path("pipeline.yaml"), "--once")
	if err != nil {
		return err
	}
	return p.wait(ctx, crashRun)
}

func crashPublish(ctx context.Context, e *Env) error { return crashSend(ctx, e) }

func crashKill(ctx context.Context, e *Env) error {
	st := e.state.(*crashState)
	report := e.path("crash-report")
	env := []string{
		fmt.Sprintf("WEIR_CRASH_AT=%s/%s:1:hold", st.query, st.point),
		"WEIR_CRASH_REPORT=" + report,
	}
	p, err := e.start("weir run --once, armed", env, "run", e.path("pipeline.yaml"), "--once")
	if err != nil {
		return err
	}
	deadline := e.o.Clock.Now().Add(crashReached)
	for p.running() && e.o.Clock.Now().Before(deadline) {
		if b, err := os.ReadFile(report); err == nil {
			st.reached = strings.TrimSpace(string(b))
			break
		}
		if err := e.o.Clock.Sleep(ctx, pollEvery); err != nil {
			return err
		}
	}
	if st.reached == "" {
		// The guard says that it was never reached.
		st.ended = fmt.Sprintf("was still running after %s", crashReached)
		if !p.running() {
			st.ended = "ended with " + p.ending()
		}
		st.ended += "\n" + p.tail()
		p.abandon()
		return nil
	}
	want := fmt.Sprintf("%s/%s reached", st.query, st.point)
	if !strings.Contains(st.reached, want) {
		return fmt.Errorf("the process reports %q, not %q", st.reached, want)
	}
	if st.settle, err = e.kill(ctx, p, st.table()); err != nil {
		return err
	}
	st.killed = true
	for _, table := range []string{bronzeTable, silverTable} {
		n, err := e.rows(ctx, table)
		if err != nil {
			return err
		}
		e.observed[strings.SplitN(table, ".", 2)[0]+"_rows_at_crash"] = n
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
	return e.runOnce(ctx)
}

func crashCount(ctx context.Context, e *Env) error {
	st := e.state.(*crashState)
	if _, err := e.verify(ctx, st.setup.Topic); err != nil {
		return err
	}
	if err := e.silverIDs(ctx, st.expected); err != nil {
		return err
	}
	dead, err := e.rows(ctx, deadLetterTable)
	if err != nil {
		return err
	}
	e.observed["dead_letter_rows"] = dead
	e.gatherTimeline(ctx, bronzeTable, silverTable)
	return nil
}

func crashExpect(e *Env) []Check {
	st := e.state.(*crashState)
	return []Check{
		{"kafka_messages", "Kafka messages", st.sent},
		{"bronze_rows", "bronze rows", st.sent},
		{"bronze_distinct_offsets", "distinct (partition, offset)", st.sent},
		{"silver_rows", "silver rows", int64(len(st.expected))},
		{"silver_distinct_event_ids", "distinct event ids in silver", int64(len(st.expected))},
		{"silver_ids_missing", "expected ids that silver lacks", int64(0)},
		{"silver_ids_unexpected", "ids in silver that were not expected", int64(0)},
		{"dead_letter_rows", "rows in the dead-letter table", st.broken},
		{"audit", "audit of both tables", audit.Exact},
	}
}
