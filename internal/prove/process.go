package prove

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/weirlake/weir/internal/clock"
)

const (
	// stopMax bounds a clean stop before the process is killed.
	stopMax = 60 * time.Second
	// tailBytes is how much of a log is quoted when something fails.
	tailBytes = 2000
)

// process is a child under test. Its output goes to a file.
type process struct {
	name   string
	cmd    *exec.Cmd
	log    string
	from   int64 // where its output begins in the log
	exited chan struct{}
	err    error // of Wait, once exited is closed
}

// spawn starts the binary with args; env is added to an environment that is
// cleared of what arms crash points and shifts clocks.
func spawn(binary string, args, env []string, log, name string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	fmt.Fprintf(out, "--- %s: %s\n", name, strings.Join(args, " "))
	at, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	p := &process{name: name, cmd: exec.Command(binary, args...), log: log, from: at, exited: make(chan struct{})}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "WEIR_CRASH_") && !strings.HasPrefix(kv, clock.ShiftEnv) {
			p.cmd.Env = append(p.cmd.Env, kv)
		}
	}
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	// A group of its own, so that a Ctrl-C in the terminal reaches the harness
	// only, which then stops its children.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// running reports whether the process has not ended.
func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// kill9 sends SIGKILL to a process that is alive and checks how it ended.
func (p *process) kill9() error {
	if !p.running() {
		return fmt.Errorf("%s had ended before the kill (%s)\n%s", p.name, p.ending(), p.tail())
	}
	if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		return fmt.Errorf("%s had ended before the kill: %w", p.name, err)
	}
	if !p.killed() {
		return fmt.Errorf("%s did not end by SIGKILL but by %s", p.name, p.ending())
	}
	return nil
}

// killed reports, of a process that is ending, whether SIGKILL ended it.
func (p *process) killed() bool {
	<-p.exited
	var ee *exec.ExitError
	if !errors.As(p.err, &ee) {
		return false
	}
	ws, ok := ee.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
}

// ending describes how the process ended.
func (p *process) ending() string {
	<-p.exited
	if p.err == nil {
		return "exit 0"
	}
	return p.err.Error()
}

// wait waits for the end by itself; the exit code must be 0.
func (p *process) wait(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-p.exited:
	case <-ctx.Done():
		p.abandon()
		return violated("%s was still running after %s\n%s", p.name, limit, p.tail())
	}
	if p.err != nil {
		return violated("%s ended with %s\n%s", p.name, p.ending(), p.tail())
	}
	return nil
}

// stop asks for a clean end and waits for it.
func (p *process) stop(ctx context.Context) error {
	if p.running() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	}
	ctx, cancel := context.WithTimeout(ctx, stopMax)
	defer cancel()
	select {
	case <-p.exited:
	case <-ctx.Done():
		p.abandon()
		return violated("%s did not stop within %s of SIGTERM\n%s", p.name, stopMax, p.tail())
	}
	if p.err != nil {
		return violated("%s ended with %s after SIGTERM\n%s", p.name, p.ending(), p.tail())
	}
	return nil
}

// abandon ends the process without asking; it is for cleaning up.
func (p *process) abandon() {
	if p != nil && p.running() {
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

// output is what the process wrote. Only one process of a scenario runs at a
// time, so it is what stands in the log from its start on.
func (p *process) output() string {
	b, err := os.ReadFile(p.log)
	if err != nil || int64(len(b)) < p.from {
		return ""
	}
	return string(b[p.from:])
}

// alerts are the lines by which the process called for a person's attention,
// of one query.
func (p *process) alerts(query string) []string {
	var out []string
	for _, line := range strings.Split(p.output(), "\n") {
		if text, ok := strings.CutPrefix(line, "weir: ALERT "+query+": "); ok {
			out = append(out, text)
		}
	}
	return out
}

// tail is the end of the process's output.
func (p *process) tail() string {
	s := p.output()
	if len(s) > tailBytes {
		s = s[len(s)-tailBytes:]
	}
	return strings.TrimSpace(s)
}
