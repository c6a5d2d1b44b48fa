package prove

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

const (
	// reachedMax bounds the wait for an armed step. A step that is not reached
	// mostly ends the process earlier, because it runs out of work.
	reachedMax = 60 * time.Second
	// runOnceMax bounds a run that works off what is there.
	runOnceMax = 2 * time.Minute
)

// hold runs the binary with a crash point armed, until the process reports that
// it stands there, the n-th time; point is qualified by query or "ingest".
// Where it never does, there is no process and why says how it ended.
func (e *Env) hold(ctx context.Context, point string, n int, args ...string) (p *process, why string, err error) {
	return e.standsAt(ctx, "hold", point, n, args...)
}

// suspendTries bounds how often a process is suspended anew because it held the
// catalog's lock.
const suspendTries = 8

// suspend is hold with a process that suspends itself (SIGSTOP) at the point: it
// goes on there when it is sent SIGCONT. All of it is suspended, so that another
// part of it, which writes a row of its runs, may have the write lock of a
// catalog on SQLite in its hands: nobody else could work until it is woken. Such
// a process is killed, and another one suspended.
func (e *Env) suspend(ctx context.Context, point string, n int, args ...string) (p *process, why string, err error) {
	for try := range suspendTries {
		if try > 0 {
			n = 1 // what led to the point is durable: the next life stands there first
		}
		p, why, err = e.standsAt(ctx, "stop", point, n, args...)
		if err != nil || p == nil || e.catalogFile == "" {
			return p, why, err
		}
		if unlock, err := e.lock(ctx); err == nil {
			unlock()
			return p, "", nil
		}
		p.abandon()
	}
	return nil, fmt.Sprintf("it held the catalog's lock each of %d times", suspendTries), nil
}

func (e *Env) standsAt(ctx context.Context, how, point string, n int, args ...string) (p *process, why string, err error) {
	report := e.path("crash-report")
	if err := os.Remove(report); err != nil && !os.IsNotExist(err) {
		return nil, "", err
	}
	env := []string{fmt.Sprintf("WEIR_CRASH_AT=%s:%d:%s", point, n, how), "WEIR_CRASH_REPORT=" + report}
	p, err = e.start("weir "+args[0]+" until "+point, env, args...)
	if err != nil {
		return nil, "", err
	}
	deadline := e.o.Clock.Now().Add(reachedMax)
	for p.running() && e.o.Clock.Now().Before(deadline) {
		if b, err := os.ReadFile(report); err == nil {
			if said := strings.TrimSpace(string(b)); !strings.Contains(said, point+" reached") {
				return nil, "", fmt.Errorf("the process reports %q, not %q", said, point)
			}
			return p, "", nil
		}
		if err := e.o.Clock.Sleep(ctx, pollEvery); err != nil {
			return nil, "", err
		}
	}
	why = fmt.Sprintf("the armed run was still running after %s", reachedMax)
	if !p.running() {
		why = "the armed run ended with " + p.ending()
	}
	why += "\n" + p.tail()
	p.abandon()
	return nil, why, nil
}

// selfKill runs the binary with a crash point armed at which it kills itself
// with SIGKILL: nothing that is in flight has time to settle, as it has while a
// held process waits for the signal.
func (e *Env) selfKill(ctx context.Context, point string, n int, grown probe, args ...string) (settle func(), why string, err error) {
	env := []string{fmt.Sprintf("WEIR_CRASH_AT=%s:%d", point, n)}
	p, err := e.start("weir "+args[0]+", armed at "+point, env, args...)
	if err != nil {
		return nil, "", err
	}
	settle, reached, err := e.dies(ctx, p, reachedMax, grown)
	if err == nil && !reached {
		why = fmt.Sprintf("the armed run ended with %s\n%s", p.ending(), p.tail())
	}
	return settle, why, err
}

// runOnce works off what is there and must end with exit code 0.
func (e *Env) runOnce(ctx context.Context, more ...string) (*process, error) {
	args := append([]string{"run", e.path(queriesFileName), "--once"}, more...)
	p, err := e.start("weir run --once", nil, args...)
	if err != nil {
		return nil, err
	}
	return p, p.wait(ctx, runOnceMax)
}
