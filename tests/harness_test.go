package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait for another process; it is a safety net, not an
// assertion about speed.
const patience = 3 * time.Minute

// weirBin is the binary under test.
func weirBin(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts real processes: not under -short")
	}
	bin := os.Getenv("WEIR_BIN")
	if bin == "" {
		bin = filepath.Join(repo(t), "bin", "weir")
	}
	if _, err := os.Stat(bin); err != nil {
		t.Skipf("no binary at %s: run `make build` (or set WEIR_BIN)", bin)
	}
	return bin
}

// python is an interpreter with PyIceberg and DuckDB.
func python(t *testing.T) string {
	t.Helper()
	py := os.Getenv("WEIR_PYTHON")
	if py == "" {
		py = filepath.Join(repo(t), ".cache", "venv", "bin", "python")
	}
	if _, err := os.Stat(py); err != nil {
		t.Skipf("no Python with PyIceberg at %s: run scripts/venv.sh (or set WEIR_PYTHON)", py)
	}
	return py
}

func repo(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// process is a weir process under test.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	out    lockedBuffer
	errs   lockedBuffer
	exited chan struct{}
	err    error
}

// lockedBuffer can be read while a process writes to it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start runs weir with args; env is added to the environment.
func start(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(weirBin(t), args...), exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.errs
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.exited
	})
	return p
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

// kill9 kills the process itself (not its children) and checks how it ended.
func (p *process) kill9() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		p.t.Fatalf("the process had ended before the kill: %v\n%s", err, p.errs.String())
	}
	<-p.exited
	var ee *exec.ExitError
	if !errors.As(p.err, &ee) || ee.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		p.t.Fatalf("the process did not end by SIGKILL: %v", p.err)
	}
}

// wait waits for the end and returns the exit code.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(patience):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT)
		time.Sleep(time.Second)
		p.t.Fatalf("still running after %s\n%s", patience, tail(p.errs.String()))
	}
	return p.cmd.ProcessState.ExitCode()
}

// weir runs a command to its end and returns standard output and exit code.
func weir(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	p := start(t, env, args...)
	code = p.wait()
	return p.out.String(), p.errs.String(), code
}

// mustJSON runs a command that must succeed and decodes its JSON.
func mustJSON(t *testing.T, into any, args ...string) {
	t.Helper()
	out, errs, code := weir(t, nil, append(args, "--output", "json")...)
	if code != 0 {
		t.Fatalf("weir %s: exit %d\n%s\n%s", strings.Join(args, " "), code, out, tail(errs))
	}
	if err := json.Unmarshal([]byte(out), into); err != nil {
		t.Fatalf("weir %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// reader runs one of the Python readers and decodes what it prints.
func reader(t *testing.T, into any, script string, args ...string) {
	t.Helper()
	readerOf(t, python(t), into, script, args...)
}

// readerOf is reader with another Python.
func readerOf(t *testing.T, python string, into any, script string, args ...string) {
	t.Helper()
	readerWithin(t, patience, python, into, script, args...)
}

// readerWithin is readerOf with another patience.
func readerWithin(t *testing.T, patience time.Duration, python string, into any, script string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, append([]string{filepath.Join(repo(t), "tests", "readers", script)}, args...)...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", script, args, err, errs.String())
	}
	if err := json.Unmarshal(out, into); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

func tail(s string) string {
	if len(s) > 4000 {
		return "…" + s[len(s)-4000:]
	}
	return s
}

// logNumber reads the newest N of a checkpoint log (offsets or commits), -1 if
// there is none.
func newest(dir string) int64 {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return -1
	}
	n := int64(-1)
	for _, e := range entries {
		if digits.MatchString(e.Name()) {
			v, err := strconv.ParseInt(e.Name(), 10, 64)
			if err == nil && v > n {
				n = v
			}
		}
	}
	return n
}

var digits = regexp.MustCompile(`^[0-9]+$`)

// inFlight reports whether a query has a plan without its commit.
func inFlight(data, query string) bool {
	dir := filepath.Join(data, "checkpoints", query)
	return newest(filepath.Join(dir, "offsets")) > newest(filepath.Join(dir, "commits"))
}
