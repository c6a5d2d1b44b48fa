package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirlake/weir/internal/failure"
)

const (
	// stopMax bounds a clean stop.
	stopMax = time.Minute
	// sampleEvery is how often a child's memory is looked at. The kernel keeps
	// the high-water mark, so only the last moment before the end can be missed.
	sampleEvery = 20 * time.Millisecond
	// tailBytes is how much of a log is quoted when something fails.
	tailBytes = 2000
)

// child is a process under measurement.
type child struct {
	name        string
	cmd         *exec.Cmd
	out, log    string
	exited      chan struct{}
	err         error // of Wait, once exited is closed
	peakRSSKB   atomic.Int64
	startedAt   time.Time
	endedAt     time.Time
	userAndSys  time.Duration // once exited is closed
	interrupted bool
}

// start runs the binary. Standard output and error go to files in the work
// folder.
func (b *bench) start(name string, args ...string) (*child, error) {
	b.children++
	base := filepath.Join(b.dir, fmt.Sprintf("%03d-%s", b.children, strings.ReplaceAll(name, "/", "-")))
	c := &child{name: name, cmd: exec.Command(b.o.Binary, args...), out: base + ".out", log: base + ".log", exited: make(chan struct{})}
	out, err := os.Create(c.out)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer out.Close()
	log, err := os.Create(c.log)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "WEIR_CRASH_") {
			c.cmd.Env = append(c.cmd.Env, kv)
		}
	}
	if b.o.Profile != "" {
		at := filepath.Join(b.o.Profile, filepath.Base(base))
		c.cmd.Env = append(c.cmd.Env, "WEIR_CPUPROFILE="+at+".cpu", "WEIR_MEMPROFILE="+at+".mem")
	}
	c.cmd.Stdout, c.cmd.Stderr = out, log
	// A group of its own: a Ctrl-C reaches the benchmark, which ends the child.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.startedAt = b.o.Clock.Now()
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go c.watch(b)
	b.closers = append(b.closers, c.abandon)
	return c, nil
}

// watch samples the memory until the process ends.
func (c *child) watch(b *bench) {
	ended := make(chan struct{})
	sampled := make(chan struct{})
	go func() {
		defer close(sampled)
		t := time.NewTicker(sampleEvery)
		defer t.Stop()
		for {
			c.sample()
			select {
			case <-t.C:
			case <-ended:
				return
			}
		}
	}()
	c.err = c.cmd.Wait()
	c.endedAt = b.o.Clock.Now()
	close(ended)
	<-sampled
	c.userAndSys = c.cmd.ProcessState.UserTime() + c.cmd.ProcessState.SystemTime()
	close(c.exited)
}

// sample reads VmHWM: the greatest resident set so far, program text included.
// The maximum in rusage is not it: it begins at the parent's size.
func (c *child) sample() {
	if !linux {
		return
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	if err != nil {
		return
	}
	_, rest, ok := bytes.Cut(b, []byte("VmHWM:"))
	if !ok {
		return // a zombie has no memory any more
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(string(line)), "kB")), 10, 64)
	if err == nil && n > c.peakRSSKB.Load() {
		c.peakRSSKB.Store(n)
	}
}

func (c *child) peakMB() float64 { return float64(c.peakRSSKB.Load()) / 1024 }

func (c *child) running() bool {
	select {
	case <-c.exited:
		return false
	default:
		return true
	}
}

// wait waits until the process ends by itself; anything but exit code 0 is an
// error.
func (c *child) wait(ctx context.Context) error {
	select {
	case <-c.exited:
	case <-ctx.Done():
		c.abandon()
		return ctx.Err()
	}
	return c.verdict()
}

func (c *child) verdict() error {
	if c.err != nil && !c.interrupted {
		return failure.New(failure.Runtime, "%s ended with %v\n%s", c.name, c.err, c.tail())
	}
	return nil
}

// stop asks for a clean end and waits for it.
func (c *child) stop(ctx context.Context) error {
	if c.running() {
		_ = c.cmd.Process.Signal(syscall.SIGTERM)
	}
	ctx, cancel := context.WithTimeout(ctx, stopMax)
	defer cancel()
	return c.wait(ctx)
}

// kill9 sends SIGKILL to a process that is alive and checks how it ended.
func (c *child) kill9() error {
	if !c.running() {
		return failure.New(failure.Runtime, "%s had ended before the kill: %v\n%s", c.name, c.err, c.tail())
	}
	c.interrupted = true
	if err := c.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill %s: %w", c.name, err)
	}
	<-c.exited
	var ee *exec.ExitError
	if errors.As(c.err, &ee) {
		if ws, ok := ee.Sys().(syscall.WaitStatus); ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL {
			return nil
		}
	}
	return failure.New(failure.Runtime, "%s did not end by SIGKILL but with %v", c.name, c.err)
}

// abandon ends the process without asking; it is for cleaning up.
func (c *child) abandon() {
	if c.running() {
		_ = c.cmd.Process.Kill()
		<-c.exited
	}
}

func (c *child) tail() string {
	b, err := os.ReadFile(c.log)
	if err != nil {
		return ""
	}
	if len(b) > tailBytes {
		b = b[len(b)-tailBytes:]
	}
	return strings.TrimSpace(string(b))
}

// cpuOf is the CPU time of a process that runs, 0 where it cannot be read.
func cpuOf(pid int) time.Duration {
	if pid == 0 || !linux {
		return 0
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name is in brackets and may hold blanks; utime and stime are the 12th
	// and 13th words after it, in ticks of a hundredth of a second.
	at := bytes.LastIndexByte(b, ')')
	if at < 0 {
		return 0
	}
	words := strings.Fields(string(b[at+1:]))
	if len(words) < 13 {
		return 0
	}
	user, err1 := strconv.ParseInt(words[11], 10, 64)
	sys, err2 := strconv.ParseInt(words[12], 10, 64)
	if err1 != nil || err2 != nil {
		return 0
	}
	return time.Duration(user+sys) * 10 * time.Millisecond
}
