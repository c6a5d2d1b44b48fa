package prove

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/weirlake/weir/internal/clock"
)

const (
	// clockAhead and clockBehind are by how much a clock is set wrong. Behind, it
	// stays within silver's maxFutureSkew: events from beyond that are dead
	// letters by contract.
	clockAhead  = 3 * time.Hour
	clockBehind = -40 * time.Minute
	// clockMax bounds the wait for rows under a clock that is wrong.
	clockMax = 2 * time.Minute
)

// clockState is what a scenario of a clock that jumps knows.
type clockState struct {
	*workload
	run    *process
	settle func()
}

// clockJumps makes the scenarios of a machine whose clock is set while the
// pipeline runs.
func clockJumps() []Scenario {
	var out []Scenario
	for _, c := range []struct {
		name, how string
		jumps     []time.Duration
	}{
		{"clock-forwards", fmt.Sprintf("jumps %s forwards", clockAhead), []time.Duration{clockAhead}},
		{"clock-backwards", fmt.Sprintf("jumps %s backwards", -clockBehind), []time.Duration{clockBehind}},
		{"clock-back-and-forth", fmt.Sprintf("jumps %s forwards and then %s behind the true time", clockAhead, -clockBehind), []time.Duration{clockAhead, clockBehind}},
	} {
		steps := []Step{{"make the topic and the pipeline file", func(ctx context.Context, e *Env) (err error) {
			st := &clockState{settle: func() {}}
			e.state = st
			st.workload, err = e.newWorkload(ctx, setup{Name: "clock", MaxOffsets: crashMaxOffsets})
			return err
		}}, {"publish, and start the pipeline by the true time", clockStart}}
		for _, by := range c.jumps {
			steps = append(steps, Step{fmt.Sprintf("set its clock %s, publish, and wait until the rows are there", by),
				func(ctx context.Context, e *Env) error { return clockJump(ctx, e, by) }})
		}
		out = append(out, Scenario{
			Name: c.name, Group: groupLimits, Unaimed: true,
			Claim: fmt.Sprintf("A pipeline whose clock %s while it runs, killed under the wrong clock and started again under the true one, is exact.", c.how),
			Steps: append(steps,
				Step{"publish, and SIGKILL in mid-work", clockKill},
				Step{"start again by the true time, and run to the end", func(ctx context.Context, e *Env) error {
					defer e.state.(*clockState).settle()
					_, err := e.runOnce(ctx)
					return err
				}},
				Step{"count", func(ctx context.Context, e *Env) error { return e.state.(*clockState).count(ctx, e) }}),
			Expect: func(e *Env) []Check { return e.state.(*clockState).expect() },
		})
	}
	return out
}

// setClock says to the pipeline's process what time it is.
func (e *Env) setClock(by time.Duration) error {
	tmp := e.path("clock.new")
	if err := os.WriteFile(tmp, []byte(clock.ShiftMark+by.String()+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, e.path("clock"))
}

func clockStart(ctx context.Context, e *Env) (err error) {
	st := e.state.(*clockState)
	if err := e.setClock(0); err != nil {
		return err
	}
	if err := st.publish(ctx, e); err != nil {
		return err
	}
	if st.run, err = e.start("weir run, under a clock that can be set", []string{clock.ShiftEnv + "=" + e.path("clock")}, "run", e.path(queriesFileName)); err != nil {
		return err
	}
	return st.caughtUp(ctx, e)
}

func (st *clockState) caughtUp(ctx context.Context, e *Env) error {
	return e.until(ctx, st.run, clockMax, "silver at the topic's end", func() (bool, error) { return e.allCaughtUp(ctx, st.setup.Topic) })
}

func clockJump(ctx context.Context, e *Env, by time.Duration) error {
	st := e.state.(*clockState)
	if err := e.setClock(by); err != nil {
		return err
	}
	e.mark("kill", "clock", 0, "set "+by.String())
	if err := st.publish(ctx, e); err != nil {
		return err
	}
	return st.caughtUp(ctx, e)
}

// clockKill kills the pipeline as soon as the first of new rows are in bronze.
func clockKill(ctx context.Context, e *Env) error {
	st := e.state.(*clockState)
	before, err := e.rows(ctx, bronzeTable)
	if err != nil {
		return err
	}
	if err := st.publish(ctx, e); err != nil {
		return err
	}
	if err := e.until(ctx, st.run, clockMax, "the first new rows in bronze", func() (bool, error) {
		n, err := e.rows(ctx, bronzeTable)
		return n > before, err
	}); err != nil {
		return err
	}
	if st.settle, err = e.kill(ctx, st.run, e.tableRows(silverTable)); err != nil {
		return err
	}
	return e.rowsAtCrash(ctx, bronzeTable, silverTable)
}
