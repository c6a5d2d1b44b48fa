package exec

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/foreachbatch"
	"github.com/weirlake/weir/internal/sink/sinktest"
)

// TestMain is also the program: with EXEC_ROLE set this binary takes a batch.
func TestMain(m *testing.M) {
	if role := os.Getenv("EXEC_ROLE"); role != "" {
		os.Exit(program(role, os.Getenv("EXEC_DIR")))
	}
	os.Exit(m.Run())
}

// program keeps what it takes in a folder, a file per batch key: idempotent.
func program(role, dir string) int {
	rows, err := take(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	note(filepath.Join(dir, "calls"), fmt.Sprintf("%s %s %s %s %d %s\n", os.Getenv("WEIR_BATCH_KEY"), os.Getenv("WEIR_REDELIVERED"), os.Getenv("WEIR_ATTEMPT"), os.Getenv("WEIR_ROWS"), len(rows), os.Getenv("WEIR_POSITION")))
	if role == "busy" && os.Getenv("WEIR_REDELIVERED") == "false" {
		fmt.Fprintln(os.Stderr, "the database is busy")
		return TempFail
	}
	if role == "always-busy" {
		return TempFail
	}
	if role == "hang" {
		note(filepath.Join(dir, "pid"), strconv.Itoa(os.Getpid()))
		select {}
	}
	var b bytes.Buffer
	for _, id := range rows {
		fmt.Fprintln(&b, id)
	}
	out := filepath.Join(dir, "rows-"+os.Getenv("WEIR_BATCH_KEY"))
	if err := os.WriteFile(out+".tmp-"+os.Getenv("WEIR_ATTEMPT"), b.Bytes(), 0o600); err != nil {
		return 1
	}
	if err := os.Rename(out+".tmp-"+os.Getenv("WEIR_ATTEMPT"), out); err != nil {
		return 1
	}
	switch role {
	case "fails":
		fmt.Fprintln(os.Stderr, "wrote it and fell over")
		return 3
	case "noisy":
		for i := range 2 * linesMax {
			fmt.Fprintln(os.Stderr, "line", i, strings.Repeat("x", 2*lineMax))
		}
	case "swallows":
		fmt.Println(len(rows) - 1)
		return 0
	case "mute":
		return 0
	}
	fmt.Println("dealt with the rows\n" + strconv.Itoa(len(rows)))
	return 0
}

func take(in io.Reader) (ids []int64, err error) {
	if os.Getenv("WEIR_FORMAT") == Arrow {
		r, err := ipc.NewReader(in)
		if err != nil {
			return nil, err
		}
		for r.Next() {
			ids = append(ids, r.RecordBatch().Column(0).(*array.Int64).Int64Values()...)
		}
		return ids, r.Err()
	}
	sc := bufio.NewScanner(in)
	for sc.Scan() {
		var row struct{ ID int64 }
		if err := json.Unmarshal(sc.Bytes(), &row); err != nil {
			return nil, err
		}
		ids = append(ids, row.ID)
	}
	return ids, sc.Err()
}

func note(path, text string) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, _ = f.WriteString(text)
		_ = f.Close()
	}
}

func calls(dir string) []string {
	text, _ := os.ReadFile(filepath.Join(dir, "calls"))
	return strings.Fields(strings.ReplaceAll(strings.TrimSpace(string(text)), " ", "|"))
}

func written(t *testing.T, dir string) (ids []int64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "rows-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range strings.Fields(string(text)) {
			n, err := strconv.ParseInt(w, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, n)
		}
	}
	return ids
}

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// testClock moves by what is slept, and takes no time.
type testClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *testClock) Sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	return ctx.Err()
}

var shape = arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil)

func recordOf(ids []int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, shape)
	defer b.Release()
	b.Field(0).(*array.Int64Builder).AppendValues(ids, nil)
	return b.NewRecordBatch()
}

func options(t *testing.T, role, dir string) Options {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Options{Query: "q", Command: []string{exe}, Env: map[string]string{"EXEC_ROLE": role, "EXEC_DIR": dir}, Shape: shape,
		Clock: &testClock{now: noon}, AckRows: true, Logger: slog.New(slog.DiscardHandler)}
}

func deliver(ctx context.Context, t *testing.T, o Options, ids ...int64) (int64, error) {
	t.Helper()
	o.defaults()
	if err := o.validate(); err != nil {
		t.Fatal(err)
	}
	k := &batch.KafkaPosition{ClusterID: "c"}
	k.Set("t", "id", 0, batch.PartitionPosition{NextOffset: 9})
	return (&runner{o: o}).deliver(ctx, foreachbatch.Delivery{QueryID: "id-1", QueryName: "q", BatchID: 7, Epoch: marker.Epoch{Number: 3}, Attempt: "a",
		Position: batch.Position{Kafka: k}, Records: []arrow.RecordBatch{recordOf(ids)}, Rows: int64(len(ids))})
}

func wantClass(t *testing.T, err error, c failure.Class, text string) {
	t.Helper()
	if !failure.Is(err, c) || !strings.Contains(err.Error(), text) {
		t.Fatalf("want a failure of class %s with %q, got %v", c, text, err)
	}
}

func TestTheProgramGetsTheRowsAndTheIds(t *testing.T) {
	for _, format := range []string{NDJSON, Arrow} {
		dir := t.TempDir()
		o := options(t, "takes", dir)
		o.Format = format
		if n, err := deliver(t.Context(), t, o, 1, 2, 3); err != nil || n != 3 {
			t.Fatal(n, err)
		}
		got := calls(dir)
		if len(got) != 1 || !strings.HasPrefix(got[0], `id-1-7|false|a|3|3|{"kafka":`) || !slices.Equal(written(t, dir), []int64{1, 2, 3}) {
			t.Fatalf("%v", got)
		}
	}
}

func TestExitCode75IsTriedAgainWithAPause(t *testing.T) {
	dir := t.TempDir()
	o := options(t, "busy", dir)
	if n, err := deliver(t.Context(), t, o, 1, 2); err != nil || n != 2 {
		t.Fatal(n, err)
	}
	if got := calls(dir); len(got) != 2 || !strings.HasPrefix(got[1], "id-1-7|true|a-2|2|2|") {
		t.Fatalf("%v", got)
	}
	if !o.Clock.Now().After(noon) {
		t.Fatal("tried again without a pause")
	}
	o = options(t, "always-busy", t.TempDir())
	_, err := deliver(t.Context(), t, o, 1)
	wantClass(t, err, failure.Unreachable, "ended with code 75")
	if o.Clock.Now().Sub(noon) > DefaultDeadline {
		t.Fatalf("tried for %s", o.Clock.Now().Sub(noon))
	}
}

func TestAnyOtherExitCodeStopsWithWhatTheProgramSaid(t *testing.T) {
	dir := t.TempDir()
	_, err := deliver(t.Context(), t, options(t, "fails", dir), 1)
	wantClass(t, err, failure.Runtime, "code 3, and said: wrote it and fell over")
	if len(calls(dir)) != 1 {
		t.Fatal("run again")
	}
}

func TestAcknowledgedRowsHaveToMatch(t *testing.T) {
	// The record of deliveries compares the number; see foreachbatch.
	if n, err := deliver(t.Context(), t, options(t, "swallows", t.TempDir()), 1, 2); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	_, err := deliver(t.Context(), t, options(t, "mute", t.TempDir()), 1, 2)
	wantClass(t, err, failure.Mismatch, "not a number of rows")
	o := options(t, "mute", t.TempDir())
	o.AckRows = false
	if n, err := deliver(t.Context(), t, o, 1, 2); err != nil || n != 2 {
		t.Fatal(n, err)
	}
}

func TestStandardErrorIsLoggedUpToABound(t *testing.T) {
	var text bytes.Buffer
	o := options(t, "noisy", t.TempDir())
	o.Logger = slog.New(slog.NewTextHandler(&text, nil))
	if _, err := deliver(t.Context(), t, o, 1); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	if len(lines) != linesMax+1 || !strings.Contains(lines[linesMax], "not logged") || len(lines[0]) > lineMax+200 {
		t.Fatalf("%d lines, the first of %d bytes", len(lines), len(lines[0]))
	}
}

// gone waits until no process has the id any more.
func gone(t *testing.T, pid int) {
	t.Helper()
	for range 6000 {
		if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
			return
		}
		if state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && strings.Contains(string(state), ") Z ") {
			return // dead, and its new parent has not looked yet
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("process %d is still there", pid)
}

// pidIn waits for a whole process id in a file.
func pidIn(t *testing.T, path string) int {
	t.Helper()
	for range 6000 {
		text, err := os.ReadFile(path)
		if pid, perr := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && perr == nil {
			return pid
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("nothing in %s", path)
	return 0
}

func TestAProgramThatTakesTooLongIsEndedWithItsWholeGroup(t *testing.T) {
	dir := t.TempDir()
	o := options(t, "", dir)
	o.Command = []string{`trap '' TERM; sleep 3600 & echo $! > ` + dir + `/tmp; mv ` + dir + `/tmp ` + dir + `/pid; wait; wait`}
	o.Shell, o.Timeout, o.Grace, o.Deadline = true, time.Second, 100*time.Millisecond, time.Millisecond
	_, err := deliver(t.Context(), t, o, 1)
	wantClass(t, err, failure.Unreachable, "took longer than 1s")
	if _, err := os.Stat(dir + "/pid"); err == nil { // on a slow machine it may not have got so far
		gone(t, pidIn(t, dir+"/pid"))
	}
}

func TestAStopEndsTheProgram(t *testing.T) {
	dir := t.TempDir()
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		pidIn(t, dir+"/pid")
		stop()
	}()
	o := options(t, "hang", dir)
	o.Timeout = time.Hour
	_, err := deliver(ctx, t, o, 1)
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	gone(t, pidIn(t, dir+"/pid"))
}

func TestAShellIsOnlyThereWhereAskedFor(t *testing.T) {
	o := options(t, "", t.TempDir())
	o.Command, o.AckRows = []string{"cat >/dev/null; exit 0"}, false
	_, err := deliver(t.Context(), t, o, 1)
	wantClass(t, err, failure.Config, "shell: true")
	o.Shell = true
	if _, err := deliver(t.Context(), t, o, 1); err != nil {
		t.Fatal(err)
	}
}

func TestABackgroundChildThatKeepsThePipesDoesNotHoldTheBatch(t *testing.T) {
	dir := t.TempDir()
	o := options(t, "", dir)
	o.Command, o.Shell, o.Grace, o.AckRows = []string{"sleep 3600 & echo $! > " + dir + "/pid; echo 1"}, true, 50*time.Millisecond, true
	if n, err := deliver(t.Context(), t, o, 1); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	_ = syscall.Kill(pidIn(t, dir+"/pid"), syscall.SIGKILL)
}

func TestWrongOptionsAreNamedAtOnce(t *testing.T) {
	_, err := New(Options{Query: "q", Shape: shape, Clock: clock.System{}, Shell: true, Format: "xml", Env: map[string]string{"WEIR_ROWS": "1"}, Dir: "/nowhere/at/all"})
	for _, text := range []string{"command is missing", "one text", "format is", "WEIR_ROWS", "/nowhere"} {
		wantClass(t, err, failure.Config, text)
	}
}

// hooked is a record's store with faults.
type hooked struct {
	objstore.Store
	mu            sync.Mutex
	before, after func() error
}

func (h *hooked) take(f *func() error) func() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := *f
	*f = nil
	return out
}

func (h *hooked) CreateOnce(ctx context.Context, key string, data []byte) (bool, []byte, error) {
	if f := h.take(&h.before); f != nil {
		if err := f(); err != nil {
			return false, nil, err
		}
	}
	created, existing, err := h.Store.CreateOnce(ctx, key, data)
	var e struct {
		Kind string `json:"kind"`
	}
	if json.Unmarshal(data, &e) != nil || e.Kind == "begun" { // the commit itself is the entry "done"
		return created, existing, err
	}
	if f := h.take(&h.after); f != nil && err == nil {
		if err := f(); err != nil {
			return false, nil, err
		}
	}
	return created, existing, err
}

func TestConformance(t *testing.T) {
	sinktest.RunExternal(t, func(t *testing.T) sinktest.External {
		clk := &testClock{now: noon}
		dir := t.TempDir()
		stores := map[string]objstore.Store{}
		var mu sync.Mutex
		h := sinktest.Harness{
			InMemory: true, Alone: true,
			Open: func(t *testing.T, query string) sinktest.Opened {
				mu.Lock()
				defer mu.Unlock()
				if stores[query] == nil {
					stores[query] = objstore.NewMemory(clk)
				}
				h := &hooked{Store: stores[query]}
				o := options(t, "takes", dir)
				o.Query, o.Record, o.Clock = query, h, clk
				s, err := New(o)
				if err != nil {
					t.Fatal(err)
				}
				return sinktest.Opened{Sink: s,
					BeforeNext: func(f func() error) { h.before = f },
					AfterNext:  func(f func() error) { h.after = f }}
			},
			Record: recordOf,
			IDs:    func(t *testing.T) []int64 { return written(t, dir) },
			// What a table's data files are to it, calls are to a program.
			Files: func(*testing.T) int { return len(calls(dir)) },
		}
		return sinktest.External{Harness: h, Calls: h.Files, Piecewise: true,
			OpenWith: func(t *testing.T, query string, _ sink.OnRejected) sinktest.Opened { return h.Open(t, query) }}
	})
}
