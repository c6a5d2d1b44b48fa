package prove

import (
	"context"
	"fmt"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/replay"
)

const (
	groupLate = "late"

	// lateLoops are the loops of the stream: 4 seconds of event time each.
	lateLoops = 8
	// lateDelay lets silver forget an id after two loops.
	lateDelay = "8s"
	// lateScope is the scope of the crash points of a replay of late rows.
	lateScope = "silver.late/"
)

// lateState is what a scenario of late or repeated events knows.
type lateState struct {
	setup  setup
	events []event
	sent   int64
	// edits are those that must be in silver; late and repeated what its batches
	// must have counted.
	edits          map[string]bool
	late, repeated int64
	missed         string
	settle         func()
}

// lates makes the scenarios of events that come again when nobody remembers
// them, or for the first time when it is too late.
func lates() []Scenario {
	var out []Scenario
	for _, point := range []string{fault.StageState, fault.CommitMetadata, fault.CommitSwapped} {
		const strike = "send the first loop and the last again, and SIGKILL at the step"
		out = append(out, Scenario{
			Name: "resend-" + point, Group: groupLate,
			Place: &Place{Matrix: "Events that are sent again after silver forgot their ids", Row: point, Column: "silver"},
			Claim: fmt.Sprintf("Events that are sent again after the dedup state has forgotten them are counted as late, those that it remembers as duplicates, and silver killed over them at %s has every id once.", point),
			Steps: []Step{
				{"make the topic and the pipeline file", latePrepare},
				{"publish loop by loop, and run to the end", lateRun},
				{strike, func(ctx context.Context, e *Env) error { return lateResend(ctx, e, point) }},
				{"start again, and run to the end", func(ctx context.Context, e *Env) error {
					defer e.state.(*lateState).settle()
					return handsOnce(ctx, e)
				}},
				{"count", lateCount},
			},
			GuardAfter: strike, Guard: lateMissed, Expect: lateExpect,
		})
	}
	const replays = "replay them, SIGKILL at three steps, then twice to the end"
	return append(out, Scenario{
		Name: "late-replayed", Group: groupLate,
		Claim: "Late rows that are in bronze only are brought into silver by weir late replay, killed at three steps and then run twice more: each is there once.",
		Steps: []Step{
			{"make the topic and the pipeline file", latePrepare},
			{"publish every loop but the second, and run to the end", func(ctx context.Context, e *Env) error { return lateRunWithout(ctx, e, 1) }},
			{"publish the second loop, which is late, and run to the end", func(ctx context.Context, e *Env) error { return lateLoop(ctx, e, 1) }},
			{replays, lateReplay},
			{"publish the second loop again, run, and replay once more", func(ctx context.Context, e *Env) error {
				return both(func(ctx context.Context, e *Env) error { return lateLoop(ctx, e, 1) }, lateReplayed)(ctx, e)
			}},
			{"count", lateCount},
		},
		GuardAfter: replays, Guard: lateMissed,
		Expect: func(e *Env) []Check {
			return append(lateExpect(e), Check{"late_rows_in_silver_before_the_replay", "late rows that silver held before the replay", int64(0)})
		},
	})
}

func latePrepare(ctx context.Context, e *Env) error {
	st := &lateState{edits: map[string]bool{}, settle: func() {}}
	e.state = st
	s, err := e.newStream(replay.Script{{Kind: replay.SegmentLoops, Count: lateLoops}}, 0)
	if err != nil {
		return err
	}
	if st.events, err = s.events(0, s.frames()); err != nil {
		return err
	}
	if err := e.createTopic(ctx, "events", 1); err != nil {
		return err
	}
	st.setup = setup{Name: "late", Dir: e.dir, Brokers: e.broker.bootstrap, Topic: e.topic("events"), MaxOffsets: crashMaxOffsets, Trigger: e.o.triggerOr(0), Delay: lateDelay}
	return st.setup.write()
}

// send publishes one loop.
func (st *lateState) send(ctx context.Context, e *Env, loop int) error {
	part := st.events[loop*replay.SampleSize : (loop+1)*replay.SampleSize]
	st.sent += int64(len(part))
	return e.produce(ctx, st.setup.Topic, part)
}

// edits of a loop, into silver where they are not there.
func (st *lateState) editsOf(loop int) (n int64) {
	for _, ev := range st.events[loop*replay.SampleSize : (loop+1)*replay.SampleSize] {
		if ev.edit() {
			n++
			st.edits[ev.id] = true
		}
	}
	return n
}

func lateRun(ctx context.Context, e *Env) error { return lateRunWithout(ctx, e, lateLoops) }

// lateRunWithout publishes every loop but one in order, with a run after each.
func lateRunWithout(ctx context.Context, e *Env, without int) error {
	st := e.state.(*lateState)
	for loop := range lateLoops {
		if loop == without {
			continue
		}
		st.editsOf(loop)
		if err := st.send(ctx, e, loop); err != nil {
			return err
		}
		if err := handsOnce(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// lateResend sends what silver has forgotten and what it remembers again.
func lateResend(ctx context.Context, e *Env, point string) error {
	st := e.state.(*lateState)
	st.late, st.repeated = st.editsOf(0), st.editsOf(lateLoops-1)
	for _, loop := range []int{0, lateLoops - 1} {
		if err := st.send(ctx, e, loop); err != nil {
			return err
		}
	}
	p, why, err := e.hold(ctx, "silver/"+point, 2, "run", e.path(queriesFileName), "--once")
	if err != nil || p == nil {
		st.missed = "the step was never reached: " + why
		return err
	}
	if st.settle, err = e.kill(ctx, p, e.tableRows(silverTable)); err != nil {
		return err
	}
	return e.rowsAtCrash(ctx, bronzeTable, silverTable)
}

// lateLoop publishes a loop that is late as a whole.
func lateLoop(ctx context.Context, e *Env, loop int) error {
	st := e.state.(*lateState)
	before, err := e.rows(ctx, silverTable)
	if err != nil {
		return err
	}
	if err := st.send(ctx, e, loop); err != nil {
		return err
	}
	if err := handsOnce(ctx, e); err != nil {
		return err
	}
	after, err := e.rows(ctx, silverTable)
	if err != nil {
		return err
	}
	n, _ := e.observed["late_rows_in_silver_before_the_replay"].(int64)
	e.observed["late_rows_in_silver_before_the_replay"] = n + after - before
	return nil
}

// lateReplay kills replays at three steps and then lets two come to their end.
func lateReplay(ctx context.Context, e *Env) error {
	st := e.state.(*lateState)
	for _, point := range []string{fault.StageFile, fault.CommitMetadata, fault.CommitSwapped} {
		p, why, err := e.hold(ctx, lateScope+point, 1, "late", "replay", e.path(queriesFileName))
		if err != nil || p == nil {
			st.missed = fmt.Sprintf("the replay never reached %s: %s", point, why)
			return err
		}
		if err := e.strike(p, "SIGKILL at "+point); err != nil {
			return err
		}
	}
	st.editsOf(1)
	return both(lateReplayed, lateReplayed)(ctx, e)
}

func lateReplayed(ctx context.Context, e *Env) error {
	p, err := e.start("weir late replay", nil, "late", "replay", e.path(queriesFileName))
	if err != nil {
		return err
	}
	return p.wait(ctx, runOnceMax)
}

func lateMissed(e *Env) string { return e.state.(*lateState).missed }

func lateCount(ctx context.Context, e *Env) error {
	st := e.state.(*lateState)
	if _, err := e.verify(ctx, st.setup.Topic, bronzeTable, silverTable); err != nil {
		return err
	}
	e.gatherTimeline(ctx, bronzeTable, silverTable)
	return e.silverIDs(ctx, st.edits)
}

func lateExpect(e *Env) []Check {
	st := e.state.(*lateState)
	out := []Check{
		{"kafka_messages", "Kafka messages", st.sent},
		{"bronze_rows", "bronze rows", st.sent},
		{"bronze_distinct_offsets", "distinct (partition, offset)", st.sent},
		{"silver_rows", "silver rows", int64(len(st.edits))},
		{"silver_distinct_event_ids", "distinct event ids in silver", int64(len(st.edits))},
		{"silver_ids_missing", "expected ids that silver lacks", int64(0)},
		{"silver_ids_unexpected", "ids in silver that were not expected", int64(0)},
		{"audit", "audit of both tables", audit.Exact},
	}
	if st.late > 0 {
		out = append(out,
			Check{"silver_rows_late", "rows counted as late: those that were forgotten", st.late},
			Check{"silver_rows_duplicate", "rows counted as duplicates: those that were remembered", st.repeated})
	}
	return out
}
