package prove

import (
	"context"
	"fmt"
	"time"

	"github.com/weirlake/weir/internal/audit"
)

// The reference scenario's figures.
const (
	referenceLoops      = 50
	referenceEvents     = referenceLoops*sampleEvents + sampleEvents // loop 0 is sent twice
	referenceViolations = 25
	referenceLate       = 100
	referenceMaxOffsets = 500
	referenceTrigger    = 2 * time.Second
	referenceKillAfter  = 12 * time.Second
	referenceLateBy     = 30 * time.Minute
	referencePartitions = 4
	// referenceDone bounds the work after the restart.
	referenceDone = 10 * time.Minute
)

// Moments of the reference scenario's kill. Only the middle one shows
// anything; the others are there to show that the guard says so.
const (
	KillMid               = "mid"
	KillBeforeFirstCommit = "before-first-commit"
	KillAfterLast         = "after-last"
)

// referenceState is what the scenario knows of its own events.
type referenceState struct {
	setup    setup
	events   []event
	late     []event
	expected map[string]bool
	lateIDs  map[string]bool
	run      *process
	settle   func()
	killed   bool
	rowsThen int64
}

func reference() Scenario {
	return Scenario{
		Name:  "reference",
		Group: "reference",
		Claim: "A pipeline that is killed with SIGKILL in mid-stream and started again holds every Kafka record once in bronze and every on-time edit once in silver.",
		Steps: []Step{
			{"make topics and pipeline files", referencePrepare},
			{fmt.Sprintf("publish %d events and %d contract violations", referenceEvents, referenceViolations), referencePublish},
			{"run the pipeline and SIGKILL it in mid-stream", referenceKill},
			{"count what is there at the crash", referenceCrashCount},
			{"start again on the same checkpoint, until everything has arrived", referenceRestart},
			{fmt.Sprintf("publish %d events that are 30 minutes late, and run to the end", referenceLate), referenceLateRun},
			{"count", referenceCount},
		},
		GuardAfter: "count what is there at the crash",
		Guard:      referenceGuard,
		Expect:     referenceExpect,
	}
}

func referencePrepare(ctx context.Context, e *Env) error {
	st := &referenceState{expected: map[string]bool{}, lateIDs: map[string]bool{}}
	e.state = st
	st.setup = setup{
		Name: "reference", Dir: e.dir, Brokers: e.broker.bootstrap, Topic: e.topic("recentchange"), DLQ: e.topic("recentchange.dlq"),
		MaxOffsets: referenceMaxOffsets, Trigger: e.o.triggerOr(referenceTrigger), IngestName: "recentchange",
	}
	base := e.o.Clock.Now().Add(-2 * time.Minute)
	var first []event
	for loop := range referenceLoops {
		events := sample(e.rng, base)
		if loop == 0 {
			first = events
		}
		st.events = append(st.events, events...)
	}
	for _, ev := range st.events {
		if ev.counted() {
			st.expected[ev.id] = true
		}
	}
	st.events = append(st.events, first...)
	for _, ev := range sample(e.rng, base.Add(-referenceLateBy))[:referenceLate] {
		st.late = append(st.late, ev)
		st.lateIDs[ev.id] = true
	}
	if err := e.createTopic(ctx, "recentchange", referencePartitions); err != nil {
		return err
	}
	if err := e.createTopic(ctx, "recentchange.dlq", 1); err != nil {
		return err
	}
	return st.setup.write(e.path("pipeline.yaml"))
}

func referencePublish(ctx context.Context, e *Env) error {
	st := e.state.(*referenceState)
	bad := violations(e.rng, referenceViolations, st.events[0].at)
	if e.o.Direct {
		e.observed["published_by"] = "prove"
		if err := e.produce(ctx, st.setup.DLQ, bad); err != nil {
			return err
		}
		return e.produce(ctx, st.setup.Topic, st.events)
	}
	e.observed["published_by"] = "weir ingest"
	// The violations stand among the good events, one every 800 or so.
	var mixed []event
	every := len(st.events) / len(bad)
	for i, ev := range st.events {
		if i%every == 0 && i/every < len(bad) {
			mixed = append(mixed, bad[i/every])
		}
		mixed = append(mixed, ev)
	}
	return e.ingest(ctx, st.setup, mixed, referenceEvents, referenceViolations)
}

func referenceKill(ctx context.Context, e *Env) error {
	st := e.state.(*referenceState)
	p, err := e.start("weir run", nil, "run", e.path("pipeline.yaml"))
	if err != nil {
		return err
	}
	switch e.o.KillAt {
	case KillBeforeFirstCommit:
	case KillAfterLast:
		err = e.until(ctx, p, referenceDone, "the last commit", func() (bool, error) { return e.allCaughtUp(ctx, st.setup.Topic) })
	default:
		if err = e.o.Clock.Sleep(ctx, e.o.killAfterOr(referenceKillAfter)); err == nil {
			// On a slow machine the first commit may not be there yet; a kill
			// before it would show nothing.
			err = e.until(ctx, p, referenceDone, "the first commit", func() (bool, error) {
				n, err := e.rows(ctx, bronzeTable)
				return n > 0, err
			})
		}
	}
	if err != nil {
		return err
	}
	if st.settle, err = e.kill(ctx, p, bronzeTable); err != nil {
		return err
	}
	st.killed = true
	return nil
}

// allCaughtUp reports whether both tables hold the topic to its end.
func (e *Env) allCaughtUp(ctx context.Context, topic string) (bool, error) {
	for _, table := range []string{bronzeTable, silverTable} {
		if ok, err := e.caughtUp(ctx, table, topic); !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

func referenceCrashCount(ctx context.Context, e *Env) error {
	st := e.state.(*referenceState)
	bronze, err := e.peek(ctx, bronzeTable)
	if err != nil {
		return err
	}
	silver, err := e.rows(ctx, silverTable)
	if err != nil {
		return err
	}
	st.rowsThen = bronze.Rows
	e.observed["bronze_rows_at_crash"], e.observed["silver_rows_at_crash"] = bronze.Rows, silver
	return nil
}

// referenceGuard says what makes the kill show nothing.
func referenceGuard(e *Env) string {
	st := e.state.(*referenceState)
	switch {
	case !st.killed:
		return "the pipeline was not killed"
	case st.rowsThen <= 0:
		return "the kill landed before the first commit: bronze was empty"
	case st.rowsThen >= referenceEvents:
		return fmt.Sprintf("the kill landed after the last commit: bronze held all %d rows", st.rowsThen)
	}
	return ""
}

func referenceRestart(ctx context.Context, e *Env) error {
	st := e.state.(*referenceState)
	defer st.settle()
	p, err := e.start("weir run", nil, "run", e.path("pipeline.yaml"))
	if err != nil {
		return err
	}
	if err := e.until(ctx, p, referenceDone, "the last commit", func() (bool, error) { return e.allCaughtUp(ctx, st.setup.Topic) }); err != nil {
		return err
	}
	return p.stop(ctx)
}

func referenceLateRun(ctx context.Context, e *Env) error {
	st := e.state.(*referenceState)
	var err error
	if e.o.Direct {
		err = e.produce(ctx, st.setup.Topic, st.late)
	} else {
		late := st.setup
		late.IngestName = "late"
		err = e.ingest(ctx, late, st.late, referenceEvents+referenceLate, referenceViolations)
	}
	if err != nil {
		return err
	}
	p, err := e.start("weir run --once", nil, "run", e.path("pipeline.yaml"), "--once")
	if err != nil {
		return err
	}
	return p.wait(ctx, referenceDone)
}

func referenceCount(ctx context.Context, e *Env) error {
	st := e.state.(*referenceState)
	if _, err := e.verify(ctx, st.setup.Topic); err != nil {
		return err
	}
	if err := e.silverIDs(ctx, st.expected); err != nil {
		return err
	}
	var late int64
	err := audit.Strings(ctx, e.catalog, nil, silverTable, "event_id", func(id string) {
		if st.lateIDs[id] {
			late++
		}
	})
	if err != nil {
		return err
	}
	e.observed["late_events_in_silver"] = late
	dead, err := e.messages(ctx, st.setup.DLQ)
	if err != nil {
		return err
	}
	e.observed["dead_letter_messages"] = dead
	bronze, err := e.peek(ctx, bronzeTable)
	if err != nil {
		return err
	}
	commits := int64(0)
	for _, c := range bronze.Commits {
		if c.Added > 0 {
			commits++
		}
	}
	e.observed["bronze_commits"] = commits
	e.gatherTimeline(ctx, bronzeTable, silverTable)
	return e.foreign(ctx)
}

func referenceExpect(e *Env) []Check {
	const messages = int64(referenceEvents + referenceLate)
	st := e.state.(*referenceState)
	edits := int64(len(st.expected))
	return append([]Check{
		{"kafka_messages", "Kafka messages", messages},
		{"bronze_rows", "bronze rows", messages},
		{"bronze_distinct_offsets", "distinct (partition, offset)", messages},
		{"silver_rows", "silver rows", edits},
		{"silver_distinct_event_ids", "distinct event ids in silver", edits},
		{"late_events_in_silver", "late events in silver", int64(0)},
		{"dead_letter_messages", "contract violations in the dead-letter topic", int64(referenceViolations)},
		{"silver_ids_missing", "expected ids that silver lacks", int64(0)},
		{"silver_ids_unexpected", "ids in silver that were not expected", int64(0)},
		{"audit", "audit of both tables", audit.Exact},
	}, e.foreignChecks(messages, edits)...)
}
