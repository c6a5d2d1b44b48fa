package broker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weirlake/weir/internal/failure"
)

// Subcommand is the hidden command of the binary that runs RunChild.
const Subcommand = "__broker"

// spawnMax bounds the start of a child, waiting for a predecessor included.
const spawnMax = lockWaitMax + 30*time.Second

// Args are the arguments of the hidden command for cfg, Subcommand first.
func Args(cfg EmbeddedConfig) []string {
	args := []string{Subcommand, "--data-dir", cfg.DataDir, "--port", strconv.Itoa(cfg.Port)}
	for _, t := range cfg.Topics {
		args = append(args, "--topic", fmt.Sprintf("%s:%d", t.Name, t.Partitions))
	}
	if cfg.SyncWrites {
		args = append(args, "--sync-writes")
	}
	return args
}

// ParseArgs reads what Args wrote, without Subcommand.
func ParseArgs(args []string) (EmbeddedConfig, error) {
	var cfg EmbeddedConfig
	fs := flag.NewFlagSet(Subcommand, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&cfg.DataDir, "data-dir", "", "data directory")
	fs.IntVar(&cfg.Port, "port", 0, "port on the loopback interface")
	fs.BoolVar(&cfg.SyncWrites, "sync-writes", false, "sync every write")
	fs.Func("topic", "name:partitions", func(v string) error {
		name, n, ok := strings.Cut(v, ":")
		parts, err := strconv.ParseInt(n, 10, 32)
		if !ok || name == "" || err != nil || parts < 1 {
			return fmt.Errorf("%q is not name:partitions", v)
		}
		cfg.Topics = append(cfg.Topics, Topic{Name: name, Partitions: int32(parts)})
		return nil
	})
	if err := fs.Parse(args); err != nil {
		return cfg, failure.Wrap(failure.Config, err, "arguments of %s", Subcommand)
	}
	return cfg, nil
}

// Child is an embedded broker in a process of its own.
type Child struct {
	// Ready is what the child said when it began to serve.
	Ready Ready

	cmd   *exec.Cmd
	stdin io.Closer
	done  chan struct{}
	err   error // of Wait; valid after done
}

// Spawn starts exe (normally os.Executable) with the hidden command and waits
// until it serves. The child goes when the parent does: its standard input
// ends, and where the system can it is also signalled.
func Spawn(ctx context.Context, exe string, cfg EmbeddedConfig) (*Child, error) {
	if err := os.MkdirAll(cfg.DataDir, 0o755); err != nil {
		return nil, fmt.Errorf("create the embedded broker's data directory: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(cfg.DataDir, logFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the embedded broker's log: %w", err)
	}
	defer log.Close()
	c := &Child{cmd: exec.Command(exe, Args(cfg)...), done: make(chan struct{})}
	c.cmd.Stderr = log
	c.cmd.SysProcAttr = childAttr()
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("pipe to the embedded broker: %w", err)
	}
	c.stdin = stdin
	// Not StdoutPipe: Wait closes that one and may take the line away.
	out, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe from the embedded broker: %w", err)
	}
	defer out.Close()
	c.cmd.Stdout = w
	if err := c.start(); err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("start the embedded broker: %w", err)
	}
	_ = w.Close()
	if err := c.awaitReady(ctx, out); err != nil {
		return nil, err
	}
	return c, nil
}

// start runs the process from a thread of its own that lives as long as the
// child: the parent-death signal is sent when the THREAD that started the
// child ends, and the runtime ends idle threads as it likes.
func (c *Child) start() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := c.cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		c.err = c.cmd.Wait()
		close(c.done)
	}()
	return <-started
}

func (c *Child) awaitReady(ctx context.Context, out *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, spawnMax)
	defer cancel()
	line := make(chan error, 1)
	go func() {
		b, err := bufio.NewReader(out).ReadBytes('\n')
		if err == nil {
			err = json.Unmarshal(b, &c.Ready)
		}
		line <- err
	}()
	var err error
	select {
	case err = <-line:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err == nil && c.Ready.Error == "" {
		return nil
	}
	c.Kill9()
	switch {
	case c.Ready.Error != "":
		return failure.New(failure.Runtime, "the embedded broker did not start: %s", c.Ready.Error)
	case errors.Is(err, io.EOF):
		return failure.New(failure.Runtime, "the embedded broker ended before it served").
			WithHint("its log is %s in its data directory", logFile)
	default:
		return failure.Wrap(failure.Runtime, err, "wait for the embedded broker")
	}
}

// Bootstrap is the child's address.
func (c *Child) Bootstrap() string { return c.Ready.Bootstrap }

// PID is the child's process id.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Done is closed when the child has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// Stop asks the child to end and waits for it; after ctx or a bound of its own
// it is killed, which loses nothing acknowledged.
func (c *Child) Stop(ctx context.Context) error {
	_ = c.stdin.Close()
	ctx, cancel := context.WithTimeout(ctx, closeMax+time.Second)
	defer cancel()
	select {
	case <-c.done:
	case <-ctx.Done():
		c.Kill9()
	}
	if c.err != nil {
		return fmt.Errorf("stop the embedded broker: %w", c.err)
	}
	return nil
}

// Kill9 ends the child as kill -9 does, and waits until it is gone.
func (c *Child) Kill9() {
	_ = c.cmd.Process.Signal(syscall.SIGKILL)
	<-c.done
	_ = c.stdin.Close()
}
