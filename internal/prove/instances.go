package prove

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/weirlake/weir/internal/fault"
)

const (
	groupInstances = "instances"

	// exitFenced is the exit code of an instance that another one has overtaken.
	exitFenced = 5
	// leaseWait is longer than a lease.
	leaseWait = 15 * time.Second
)

// instanceState is what a scenario of two instances knows.
type instanceState struct {
	*workload
	first  *process
	missed string
	codes  map[string]int64
}

// exitCode of a process that has ended by itself, -1 where a signal ended it.
func (p *process) exitCode() int64 {
	<-p.exited
	if p.cmd.ProcessState == nil {
		return -1
	}
	return int64(p.cmd.ProcessState.ExitCode())
}

// endsBy waits for the end, whatever the code.
func (p *process) endsBy(ctx context.Context, limit time.Duration) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-p.exited:
		return p.exitCode(), nil
	case <-ctx.Done():
		p.abandon()
		return -1, violated("%s was still running after %s\n%s", p.name, limit, p.tail())
	}
}

// instances makes the scenarios in which two instances hold the same query.
func instances() []Scenario {
	prepare := Step{"make the topic and the pipeline file", func(ctx context.Context, e *Env) (err error) {
		st := &instanceState{codes: map[string]int64{}}
		e.state = st
		st.workload, err = e.newWorkload(ctx, setup{Name: "instances", MaxOffsets: crashMaxOffsets})
		return err
	}}
	publish := Step{"publish", func(ctx context.Context, e *Env) error { return e.state.(*instanceState).publish(ctx, e) }}
	count := Step{"count", func(ctx context.Context, e *Env) error { return e.state.(*instanceState).count(ctx, e) }}
	missed := func(e *Env) string {
		if st := e.state.(*instanceState); st.missed != "" {
			return "the first instance never stood at its step: " + st.missed
		}
		return ""
	}
	var out []Scenario
	for _, query := range []string{"bronze", "silver"} {
		for _, point := range []string{fault.PlanWritten, fault.StageDone, fault.CommitBefore, fault.CommitMetadata, fault.CommitSwapped, fault.DoneWritten} {
			out = append(out, Scenario{
				Name: "zombie-" + query + "-" + point, Group: groupInstances,
				Place: &Place{Matrix: "A suspended instance that wakes up", Row: point, Column: query},
				Claim: fmt.Sprintf("An instance that is suspended (SIGSTOP) in %s at %s, overtaken by a second one and woken (SIGCONT), lands nothing and ends with exit code %d.", query, point, exitFenced),
				Steps: []Step{prepare, publish,
					{"start an instance, and suspend it at the step", suspendAt(query, point)},
					{"start a second one that takes over, and run to the end", takeOver},
					{"wake the first", wake},
					publish,
					{"run to the end", instanceRest},
					count},
				Guard:      missed,
				GuardAfter: "start an instance, and suspend it at the step",
				Expect: func(e *Env) []Check {
					st := e.state.(*instanceState)
					return append(st.expect(), Check{"exit_code_of_the_first", "exit code of the instance that woke up", int64(exitFenced)})
				},
			})
		}
	}
	return append(out, Scenario{
		Name: "two-instances-race", Group: groupInstances, Unaimed: true,
		Claim: "Two instances of the same pipeline with checkpoint folders of their own, started at once and again and again, end with exact tables: one holds the query, the other is refused.",
		Steps: []Step{prepare, publish,
			// Two fresh starts at once would be two lineages: the second is refused
			// for good, with exit code 7.
			{"run to the end", instanceRest}, publish,
			{"start two instances at once, five times", raceInstances},
			publish,
			{"wait out the lease, and run to the end", func(ctx context.Context, e *Env) error {
				if err := e.o.Clock.Sleep(ctx, leaseWait); err != nil {
					return err
				}
				return instanceRest(ctx, e)
			}},
			count},
		Expect: func(e *Env) []Check { return e.state.(*instanceState).expect() },
	})
}

func suspendAt(query, point string) func(context.Context, *Env) error {
	return func(ctx context.Context, e *Env) error {
		st := e.state.(*instanceState)
		p, why, err := e.suspend(ctx, query+"/"+point, 1, "run", e.path(queriesFileName))
		if err != nil || p == nil {
			st.missed = why
			return err
		}
		st.first = p
		return nil
	}
}

func takeOver(ctx context.Context, e *Env) error {
	_, err := e.runOnce(ctx, "--take-over")
	return err
}

func wake(ctx context.Context, e *Env) error {
	st := e.state.(*instanceState)
	if err := st.first.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	// What it meets next may be the next batch only: there must be one.
	if err := st.publish(ctx, e); err != nil {
		return err
	}
	code, err := st.first.endsBy(ctx, runOnceMax)
	e.observed["exit_code_of_the_first"] = code
	return err
}

func instanceRest(ctx context.Context, e *Env) error {
	_, err := e.runOnce(ctx)
	return err
}

// raceInstances starts pairs of instances, the second of each pair with other
// checkpoint folders, and lets them fight for a moment.
func raceInstances(ctx context.Context, e *Env) error {
	st := e.state.(*instanceState)
	other := st.setup
	other.Dir, other.Checkpoints, other.File = e.dir, e.path("checkpoints-other"), "other.yaml"
	if err := other.write(); err != nil {
		return err
	}
	refused := int64(0)
	for range 5 {
		a, err := e.start("weir run, first folder", nil, "run", e.path(queriesFileName))
		if err != nil {
			return err
		}
		b, err := e.start("weir run, second folder", nil, "run", e.path(other.File))
		if err != nil {
			return err
		}
		if err := e.o.Clock.Sleep(ctx, 2*time.Second+time.Duration(e.rng.IntN(12000))*time.Millisecond); err != nil {
			return err
		}
		for _, p := range []*process{a, b} {
			if p.running() {
				if err := p.kill9(); err != nil {
					return err
				}
				e.kills++
				e.mark("kill", "process", 0, "SIGKILL")
			} else {
				refused++
			}
		}
	}
	e.observed["instances_refused"] = refused
	return nil
}
