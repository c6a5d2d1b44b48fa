package exec

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/apache/arrow-go/v18/arrow/ipc"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/sink/foreachbatch"
	"github.com/weirlake/weir/internal/sink/rowjson"
)

// runner is the function of the sink.
type runner struct{ o Options }

// outcome is how a run of the program ended.
type outcome struct {
	code    int
	again   bool
	reason  string
	stdout  string
	stopped bool
}

// deliver runs the program until it is done, fails for good, or the deadline has
// passed.
func (r *runner) deliver(ctx context.Context, d foreachbatch.Delivery) (int64, error) {
	in, err := r.spool(d)
	if err != nil {
		return 0, err
	}
	defer func() { _ = in.Close() }()
	until := r.o.Clock.Now().Add(r.o.Deadline)
	pause := backoffMin
	for try := 1; ; try++ {
		if _, err := in.Seek(0, io.SeekStart); err != nil {
			return 0, fmt.Errorf("rewind the rows: %w", err)
		}
		out, err := r.once(ctx, d, in, try)
		if err != nil {
			return 0, err
		}
		switch {
		case out.code == 0 && !out.again:
			return r.acknowledged(d, out.stdout)
		case out.stopped:
			return 0, fmt.Errorf("query %s, batch %d: %s was ended because of a stop: %w", d.QueryName, d.BatchID, r.program(), context.Canceled)
		case !out.again:
			return 0, failure.New(failure.Runtime, "query %s, batch %d: %s %s", d.QueryName, d.BatchID, r.program(), out.reason).
				WithHint("exit code %d asks for another try; any other than 0 stops the query. The same batch comes again with the next start", TempFail)
		}
		if r.o.Clock.Now().Add(pause).After(until) {
			return 0, failure.New(failure.Unreachable, "query %s, batch %d: %s was not done in %d tries within %s; at last it %s", d.QueryName, d.BatchID, r.program(), try, r.o.Deadline, out.reason).
				WithHint("the same batch comes again with the next start")
		}
		r.o.Logger.Warn("the program was not done with the batch, it is run again", "query", d.QueryName, "batch_id", d.BatchID, "try", try, "wait", pause, "because", out.reason)
		if err := r.sleep(ctx, pause); err != nil {
			return 0, fmt.Errorf("query %s, batch %d: not tried again, because of a stop (%w); at last %s %s", d.QueryName, d.BatchID, context.Canceled, r.program(), out.reason)
		}
		pause = min(2*pause, backoffMax)
	}
}

// program is the command in messages: its arguments may hold secrets.
func (r *runner) program() string {
	if r.o.Shell {
		return "the shell command"
	}
	return "program " + filepath.Base(r.o.Command[0])
}

// sleep waits, unless the query is stopping.
func (r *runner) sleep(ctx context.Context, wait time.Duration) error {
	ctx, cancel := r.orStopping(ctx)
	defer cancel()
	return r.o.Clock.Sleep(ctx, wait)
}

func (r *runner) orStopping(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	if r.o.Stopping != nil {
		go func() {
			select {
			case <-r.o.Stopping:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	return ctx, cancel
}

// acknowledged is how many rows the program says that it has dealt with.
func (r *runner) acknowledged(d foreachbatch.Delivery, stdout string) (int64, error) {
	if !r.o.AckRows {
		return d.Rows, nil
	}
	text := strings.TrimSpace(stdout)
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		text = strings.TrimSpace(text[i+1:])
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, failure.New(failure.Mismatch, "query %s, batch %d: the last line that %s wrote to standard output is %q, not a number of rows", d.QueryName, d.BatchID, r.program(), clip(text, 80)).
			WithHint("with ackRows the program prints how many rows it has dealt with; the batch has %d", d.Rows)
	}
	return n, nil
}

// spool writes the rows to a file without a name: the program can read it to its
// end whatever becomes of weir, and nothing has to be removed.
func (r *runner) spool(d foreachbatch.Delivery) (*os.File, error) {
	f, err := os.CreateTemp("", "weir-exec-*")
	if err != nil {
		return nil, failure.Wrap(failure.Runtime, err, "query %s, batch %d: make a file for the rows in %s", d.QueryName, d.BatchID, os.TempDir())
	}
	err = os.Remove(f.Name())
	if err == nil {
		err = r.write(f, d)
	}
	if err != nil {
		_ = f.Close()
		return nil, failure.Wrap(failure.ClassOf(err), err, "query %s, batch %d: write the rows for %s", d.QueryName, d.BatchID, r.program())
	}
	return f, nil
}

func (r *runner) write(f *os.File, d foreachbatch.Delivery) error {
	w := bufio.NewWriterSize(f, 1<<20)
	if r.o.Format == Arrow {
		aw := ipc.NewWriter(w, ipc.WithSchema(r.o.Shape))
		for _, rec := range d.Records {
			if err := aw.Write(rec); err != nil {
				return err
			}
		}
		if err := aw.Close(); err != nil {
			return err
		}
		return w.Flush()
	}
	enc, err := rowjson.New(r.o.Shape, r.o.Key, d.Position.Vector())
	if err != nil {
		return err
	}
	var line []byte
	for _, rec := range d.Records {
		for i := range int(rec.NumRows()) {
			line = append(enc.AppendRow(line[:0], rec, i), '\n')
			if _, err := w.Write(line); err != nil {
				return err
			}
		}
	}
	return w.Flush()
}

// environ is the program's environment.
func (r *runner) environ(d foreachbatch.Delivery, attempt string, try int) []string {
	var out []string
	for _, v := range os.Environ() {
		// Our crash points are for us, should the program be a weir.
		if !strings.HasPrefix(v, "WEIR_CRASH_") {
			out = append(out, v)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(r.o.Env)) {
		out = append(out, k+"="+r.o.Env[k])
	}
	out = append(out,
		"WEIR_QUERY_NAME="+d.QueryName, "WEIR_QUERY_ID="+d.QueryID, "WEIR_BATCH_ID="+strconv.FormatInt(d.BatchID, 10),
		"WEIR_BATCH_KEY="+d.QueryID+"-"+strconv.FormatInt(d.BatchID, 10), "WEIR_EPOCH="+strconv.FormatInt(d.Epoch.Number, 10),
		"WEIR_ATTEMPT="+attempt, "WEIR_REDELIVERED="+strconv.FormatBool(d.Redelivered || try > 1),
		"WEIR_ROWS="+strconv.FormatInt(d.Rows, 10), "WEIR_FORMAT="+r.o.Format,
	)
	if pos, err := json.Marshal(d.Position); err == nil && len(pos) <= positionMax {
		out = append(out, "WEIR_POSITION="+string(pos))
	}
	return out
}

// once runs the program once.
func (r *runner) once(ctx context.Context, d foreachbatch.Delivery, in *os.File, try int) (outcome, error) {
	args := r.o.Command
	if r.o.Shell {
		args = []string{"/bin/sh", "-c", r.o.Command[0]}
	}
	attempt := d.Attempt
	if try > 1 {
		attempt += "-" + strconv.Itoa(try)
	}
	cmd := exec.Command(args[0], args[1:]...) //nolint:gosec,noctx // the user's program is the point; its group is ended below
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.SysProcAttr = r.o.Dir, r.environ(d, attempt, try), in, childAttr()
	stdout, stderr := &tail{max: stdoutMax}, &logged{r: r, d: d, last: tail{max: tailMax}}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.WaitDelay = r.o.Grace // a grandchild that keeps the pipes open does not hold the batch

	done := make(chan error, 1)
	begun := make(chan error, 1)
	go func() {
		// The signal on our death is bound to the thread that began the program.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		begun <- err
		if err == nil {
			done <- cmd.Wait()
		}
	}()
	if err := <-begun; err != nil {
		class := failure.Runtime
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, exec.ErrNotFound) || errors.Is(err, syscall.ENOEXEC) {
			class = failure.Config
		}
		return outcome{}, failure.Wrap(class, err, "query %s: start %s", d.QueryName, r.program()).
			WithHint("command is a program and its arguments; a line for a shell needs shell: true")
	}
	timed, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	var err error
	ended := false
	select {
	case err = <-done:
	case <-timed.Done():
		ended = true
		err = r.end(cmd.Process.Pid, done)
	}
	stderr.flush()
	return r.judge(ctx, err, ended, stdout.String(), stderr.last.String()), nil
}

// end ends the program's process group: asks, waits, kills.
func (r *runner) end(pid int, done <-chan error) error {
	_ = syscall.Kill(-pid, syscall.SIGTERM)
	t := time.NewTimer(r.o.Grace)
	defer t.Stop()
	select {
	case err := <-done:
		_ = syscall.Kill(-pid, syscall.SIGKILL) // whoever of the group has not heard
		return err
	case <-t.C:
	}
	_ = syscall.Kill(-pid, syscall.SIGKILL)
	return <-done
}

func (r *runner) judge(ctx context.Context, err error, ended bool, stdout, stderr string) outcome {
	out := outcome{stdout: stdout}
	said := ""
	if s := strings.TrimSpace(stderr); s != "" {
		said = ", and said: " + s
	}
	var exit *exec.ExitError
	switch {
	case ended && ctx.Err() != nil:
		out.stopped, out.again = true, true
	case ended:
		out.again, out.reason = true, fmt.Sprintf("took longer than %s%s", r.o.Timeout, said)
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		// ErrWaitDelay: it is done; a child of its own holds the pipes still.
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		out.code = exit.ExitCode()
		out.again = out.code == TempFail
		out.reason = fmt.Sprintf("ended with code %d%s", out.code, said)
	default:
		out.code, out.reason = -1, fmt.Sprintf("was ended (%v)%s", err, said)
	}
	return out
}

// tail keeps the last max bytes of what is written.
type tail struct {
	max int
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if len(t.buf) > 2*t.max {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-t.max:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	return strings.ToValidUTF8(string(t.buf[max(0, len(t.buf)-t.max):]), "?")
}

// logged writes standard error to the log, line by line, up to linesMax.
type logged struct {
	r     *runner
	d     foreachbatch.Delivery
	last  tail
	line  []byte
	lines int
}

func (l *logged) Write(p []byte) (int, error) {
	_, _ = l.last.Write(p)
	for _, b := range p {
		if b == '\n' {
			l.flush()
		} else if len(l.line) < lineMax {
			l.line = append(l.line, b)
		}
	}
	return len(p), nil
}

func (l *logged) flush() {
	text := strings.TrimSpace(strings.ToValidUTF8(string(l.line), "?"))
	l.line = l.line[:0]
	if text == "" {
		return
	}
	l.lines++
	switch {
	case l.lines <= linesMax:
		l.r.o.Logger.Info("program: "+text, "query", l.d.QueryName, "batch_id", l.d.BatchID)
	case l.lines == linesMax+1:
		l.r.o.Logger.Warn("program: more lines on standard error are not logged for this run", "query", l.d.QueryName, "batch_id", l.d.BatchID)
	}
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "…"
}
