package prove

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

const (
	// memoryKills is how often the run is killed for its memory: at memoryFrom
	// per cent of what a process has at its first plan, and by memoryStep per
	// cent more each time.
	memoryKills = 8
	memoryFrom  = 88
	memoryStep  = 2
	// memoryTries bounds how many limits of the address space are tried, each by
	// addressStep smaller; memoryFailed of them must have ended the run.
	memoryTries  = 24
	memoryFailed = 3
	// memoryPoll is how often the memory of the run is looked at: as the kernel
	// does, only faster than it can grow much.
	memoryPoll = time.Millisecond
)

// memoryState is what a scenario of too little memory knows.
type memoryState struct {
	*workload
	failed int // runs that their memory has ended
	missed string
}

// memoryLimits makes the scenarios of a process that does not get the memory
// that it asks for.
func memoryLimits() []Scenario {
	scenario := func(name, claim, step string, strike func(context.Context, *Env) error) Scenario {
		return Scenario{
			Name: name, Group: groupLimits, Claim: claim, Unaimed: true,
			Steps: []Step{
				{"make the topic and the pipeline file", func(ctx context.Context, e *Env) (err error) {
					st := &memoryState{}
					e.state = st
					st.workload, err = e.newWorkload(ctx, setup{Name: "memory", MaxOffsets: crashMaxOffsets})
					return err
				}},
				{"publish, and run to the end", both(memoryPublish, handsOnce)},
				{step, strike},
				{"run to the end with enough", handsOnce},
				{"count", func(ctx context.Context, e *Env) error { return e.state.(*memoryState).count(ctx, e) }},
			},
			Guard:  func(e *Env) string { return e.state.(*memoryState).missed },
			Expect: func(e *Env) []Check { return e.state.(*memoryState).expect() },
		}
	}
	return []Scenario{
		scenario("memory-killer", fmt.Sprintf("A run that is killed with SIGKILL as soon as its memory passes a limit, as the kernel does it, %d times at growing limits, loses and doubles nothing.", memoryKills),
			"publish, and run under a limit of memory, again and again", both(memoryPublish, memoryKiller)),
		scenario("memory-allocation", "A run whose address space is too small, so that the system refuses it memory at one moment or another, ends, and loses and doubles nothing.",
			"publish, and run under smaller and smaller limits of the address space", both(memoryPublish, memoryRefused)),
	}
}

func memoryPublish(ctx context.Context, e *Env) error { return e.state.(*memoryState).publish(ctx, e) }

// memoryKiller runs the pipeline and kills it when its resident memory passes a
// limit. The first limit is what it has when it stands at its first plan.
func memoryKiller(ctx context.Context, e *Env) error {
	st := e.state.(*memoryState)
	p, why, err := e.hold(ctx, "bronze/plan.written", 1, "run", e.path(queriesFileName), "--once")
	if err != nil || p == nil {
		st.missed = "bronze planned no batch: " + why
		return err
	}
	idle, err := residentKB(p.cmd.Process.Pid)
	if err != nil {
		return err
	}
	if err := p.kill9(); err != nil {
		return err
	}
	e.kills++
	e.observed["memory_at_the_first_plan_mb"] = idle / 1024
	for i := range int64(memoryKills) {
		if err := st.killAbove(ctx, e, idle*(memoryFrom+i*memoryStep)/100); err != nil {
			return err
		}
	}
	e.observed["runs_ended_by_their_memory"] = int64(st.failed)
	if st.failed < memoryFailed {
		st.missed = fmt.Sprintf("only %d of %d runs passed their limit", st.failed, memoryKills)
	}
	return nil
}

func (st *memoryState) killAbove(ctx context.Context, e *Env, limitKB int64) error {
	p, err := e.start(fmt.Sprintf("weir run --once, killed above %d KB", limitKB), nil, "run", e.path(queriesFileName), "--once")
	if err != nil {
		return err
	}
	for p.running() {
		if kb, err := residentKB(p.cmd.Process.Pid); err == nil && kb > limitKB {
			if err := p.kill9(); err != nil {
				return nil //nolint:nilerr // it has ended just now
			}
			st.failed++
			e.kills++
			e.mark("kill", "process", 0, fmt.Sprintf("SIGKILL at %d MB", kb/1024))
			return nil
		}
		if err := e.o.Clock.Sleep(ctx, memoryPoll); err != nil {
			return err
		}
	}
	return nil
}

// residentKB is the memory that a process has now.
func residentKB(pid int) (int64, error) { return statusKB(pid, "VmRSS:") }

func statusKB(pid int, key string) (int64, error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, err
	}
	for _, line := range bytes.Split(b, []byte("\n")) {
		if f := bytes.Fields(line); len(f) == 3 && string(f[0]) == key {
			return strconv.ParseInt(string(f[1]), 10, 64)
		}
	}
	return 0, fmt.Errorf("%s is not in the status of process %d", key, pid)
}

// memoryRefused runs the pipeline under limits of its address space between what
// it has at its first plan and much less.
func memoryRefused(ctx context.Context, e *Env) error {
	st := e.state.(*memoryState)
	p, why, err := e.hold(ctx, "bronze/plan.written", 1, "run", e.path(queriesFileName), "--once")
	if err != nil || p == nil {
		st.missed = "bronze planned no batch: " + why
		return err
	}
	idle, err := statusKB(p.cmd.Process.Pid, "VmSize:")
	if err != nil {
		return err
	}
	if err := p.kill9(); err != nil {
		return err
	}
	e.kills++
	for i := range int64(memoryTries) {
		limit := idle - idle*i/(memoryTries+4)
		p, err := spawn("sh", []string{"-c", fmt.Sprintf(`ulimit -v %d; exec "$0" "$@"`, limit), e.o.Binary, "run", e.path(queriesFileName), "--once"},
			nil, e.path("weir.log"), fmt.Sprintf("weir run --once in %d KB", limit))
		if err != nil {
			return err
		}
		e.children = append(e.children, p)
		e.starts.Add(1)
		code, err := p.endsBy(ctx, runOnceMax)
		if err != nil {
			return err
		}
		if code != 0 {
			st.failed++
		}
		if st.failed == memoryFailed {
			break
		}
	}
	e.observed["runs_ended_by_their_memory"] = int64(st.failed)
	if st.failed < memoryFailed {
		st.missed = fmt.Sprintf("only %d of %d runs failed", st.failed, memoryTries)
	}
	return nil
}
