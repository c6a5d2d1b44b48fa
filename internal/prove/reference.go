package prove

import (
	"context"
	"fmt"
	"time"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/replay"
)

// The reference scenario's settings. Its events are replay.ReferenceScript's.
const (
	referenceLateEvents = 100 // the last segment of the script
	referenceMaxOffsets = 500
	referenceTrigger    = 2 * time.Second
	referenceKillAfter  = 12 * time.Second
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
	setup  setup
	stream *stream
	// total is what the whole stream holds, before what is published before the
	// late events.
	total, before replay.Counts
	expected      map[string]bool
	lateIDs       map[string]bool
	settle        func()
	killed        bool
	rowsThen      int64
}

// messages is what the topic holds in the end.
func (st *referenceState) messages() int64 { return st.total.Published + st.total.Duplicates }

func reference() Scenario {
	return Scenario{
		Name:  "reference",
		Group: "reference", Unaimed: true,
		Claim: "A pipeline that is killed with SIGKILL in mid-stream and started again holds every Kafka record once in bronze and every on-time edit once in silver.",
		Steps: []Step{
			{"make topics and pipeline files", referencePrepare},
			{"publish the stream: 50 loops of 400 events, loop 0 once more, 25 contract violations", referencePublish},
			{"run the pipeline, and SIGKILL it in mid-stream", referenceKill},
			{"count what is there at the crash", referenceCrashCount},
			{"start again on the same checkpoint, until everything has arrived", referenceRestart},
			{"publish 100 events that are 30 minutes late, and run to the end", referenceLateRun},
			{"count", referenceCount},
		},
		GuardAfter: "count what is there at the crash",
		Guard:      referenceGuard,
		Expect:     referenceExpect,
	}
}

func referencePrepare(ctx context.Context, e *Env) error {
	st := &referenceState{}
	e.state = st
	st.setup = setup{
		Name: "reference", Dir: e.dir, Brokers: e.broker.bootstrap, Topic: e.topic("recentchange"), DLQ: e.topic("recentchange.dlq"),
		MaxOffsets: referenceMaxOffsets, Trigger: e.o.triggerOr(referenceTrigger),
	}
	var err error
	if st.stream, err = e.newStream(replay.ReferenceScript(), 0); err != nil {
		return err
	}
	all, err := st.stream.events(0, st.stream.frames())
	if err != nil {
		return err
	}
	// Two ways to the same expectation: the generator's own count, and the
	// events read one by one.
	st.total = st.stream.gen.Counts(st.stream.frames())
	st.before = st.stream.gen.Counts(st.stream.frames() - referenceLateEvents)
	st.expected = ids(all, replay.Base, event.edit)
	st.lateIDs = ids(all, replay.Late, nil)
	if n := int64(len(st.expected)); n != st.total.EditNew-st.total.Late || int64(len(st.lateIDs)) != st.total.Late || st.before.Late != 0 {
		return fmt.Errorf("the stream holds %d on-time edits, its own count says %d of which %d are late", n, st.total.EditNew, st.total.Late)
	}
	if err := e.createTopic(ctx, "recentchange", referencePartitions); err != nil {
		return err
	}
	if err := e.createTopic(ctx, "recentchange.dlq", 1); err != nil {
		return err
	}
	if err := st.setup.write(); err != nil {
		return err
	}
	if e.o.Direct {
		return nil
	}
	if err := e.serve(ctx, st.stream); err != nil {
		return err
	}
	withIngest := st.setup
	withIngest.Ingest = st.stream.server.URL
	return withIngest.write()
}

func referencePublish(ctx context.Context, e *Env) error {
	st := e.state.(*referenceState)
	frames := st.stream.frames() - referenceLateEvents
	if e.o.Direct {
		return referenceDirect(ctx, e, 0, frames)
	}
	e.observed["published_by"] = "weir ingest"
	st.stream.server.Server.SetLimit(frames)
	return e.ingestUntil(ctx, st.setup, st.before.Published+st.before.Duplicates, st.before.Violations)
}

// referenceDirect publishes frames as ingestion would, without it.
func referenceDirect(ctx context.Context, e *Env, from, to int64) error {
	st := e.state.(*referenceState)
	e.observed["published_by"] = "weir prove"
	events, err := st.stream.events(from, to)
	if err != nil {
		return err
	}
	var good, bad []event
	for _, ev := range events {
		if ev.class == replay.ContractViolation {
			bad = append(bad, ev)
		} else {
			good = append(good, ev)
		}
	}
	if err := e.produce(ctx, st.setup.DLQ, bad); err != nil {
		return err
	}
	return e.produce(ctx, st.setup.Topic, good)
}

func referenceKill(ctx context.Context, e *Env) error {
	st := e.state.(*referenceState)
	p, err := e.start("weir run", nil, "run", e.path(queriesFileName))
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
	if st.settle, err = e.kill(ctx, p, e.tableRows(bronzeTable)); err != nil {
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
	case st.rowsThen >= st.before.Published+st.before.Duplicates:
		return fmt.Sprintf("the kill landed after the last commit: bronze held all %d rows", st.rowsThen)
	}
	return ""
}

func referenceRestart(ctx context.Context, e *Env) error {
	st := e.state.(*referenceState)
	defer st.settle()
	p, err := e.start("weir run", nil, "run", e.path(queriesFileName))
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
		err = referenceDirect(ctx, e, st.stream.frames()-referenceLateEvents, st.stream.frames())
	} else {
		// The same ingestion goes on from its saved position: the server sends
		// the overlap again, which ingestion drops, and then the late events.
		st.stream.server.Server.SetLimit(st.stream.frames())
		err = e.ingestToTheEnd(ctx)
	}
	if err != nil {
		return err
	}
	p, err := e.start("weir run --once", nil, "run", e.path(queriesFileName), "--once")
	if err != nil {
		return err
	}
	return p.wait(ctx, referenceDone)
}

func referenceCount(ctx context.Context, e *Env) error {
	st := e.state.(*referenceState)
	if _, err := e.verify(ctx, st.setup.Topic, bronzeTable, silverTable); err != nil {
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
	return e.foreignCount(ctx)
}

func referenceExpect(e *Env) []Check {
	st := e.state.(*referenceState)
	messages, edits := st.messages(), int64(len(st.expected))
	return append([]Check{
		{"kafka_messages", "Kafka messages", messages},
		{"bronze_rows", "bronze rows", messages},
		{"bronze_distinct_offsets", "distinct (partition, offset)", messages},
		{"silver_rows", "silver rows", edits},
		{"silver_distinct_event_ids", "distinct event ids in silver", edits},
		{"late_events_in_silver", "late events in silver", int64(0)},
		{"dead_letter_messages", "contract violations in the dead-letter topic", st.total.Violations},
		{"silver_ids_missing", "expected ids that silver lacks", int64(0)},
		{"silver_ids_unexpected", "ids in silver that were not expected", int64(0)},
		{"silver_rows_late", "late rows that silver counted and left out", st.total.Late},
		{"silver_rows_duplicate", "resent edits that silver counted and dropped", int64(replay.SampleEditNew)},
		{"audit", "audit of both tables", audit.Exact},
	}, e.foreignChecks(messages, edits)...)
}
