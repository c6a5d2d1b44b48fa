package tests

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// rig is the shipped example, examples/wikimedia.yaml, in a folder of its own.
type rig struct {
	t    *testing.T
	file string
	data string
	env  []string
}

// newRig makes a rig; env is added to what the example's variables get.
func newRig(t *testing.T, env ...string) *rig {
	t.Helper()
	weirBin(t)
	python(t)
	data := t.TempDir()
	return &rig{
		t: t, file: filepath.Join(repo(t), "examples", "wikimedia.yaml"), data: data,
		env: append([]string{"WEIR_DATA=" + data, "WEIR_SSE_SINCE=2000-01-01T00:00:00Z", "WEIR_LISTEN=none"}, env...),
	}
}

// run runs a command that must succeed and returns its standard output.
func (r *rig) run(args ...string) string {
	r.t.Helper()
	out, errs, code := weir(r.t, r.env, args...)
	if code != 0 {
		r.t.Fatalf("weir %s: exit %d\n%s\n%s", strings.Join(args, " "), code, tail(out), tail(errs))
	}
	return out
}

// runJSON runs a command that must succeed and print one JSON document.
func (r *rig) runJSON(into any, args ...string) {
	r.t.Helper()
	out := r.run(append(args, "--output", "json")...)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		r.t.Fatalf("weir %s: %v\n%s", strings.Join(args, " "), err, tail(out))
	}
}

// batchLine is a line that `weir run --output json` prints per batch.
type batchLine struct {
	Query        string          `json:"query_name"`
	BatchID      int64           `json:"batch_id"`
	StartedAt    time.Time       `json:"started_at"`
	Input        int64           `json:"input_rows"`
	Output       int64           `json:"output_rows"`
	Filtered     int64           `json:"rows_filtered"`
	Duplicate    int64           `json:"rows_duplicate"`
	Late         int64           `json:"rows_dropped_by_watermark"`
	DeadLettered int64           `json:"rows_dead_lettered"`
	Position     json.RawMessage `json:"position"`
}

// once runs the queries over what is there and returns their batches.
func (r *rig) once() []batchLine {
	r.t.Helper()
	return batchLines(r.t, r.run("run", r.file, "--once", "--output", "json"))
}

func batchLines(t *testing.T, out string) []batchLine {
	t.Helper()
	var lines []batchLine
	dec := json.NewDecoder(strings.NewReader(out))
	for dec.More() {
		var b batchLine
		if err := dec.Decode(&b); err != nil {
			t.Fatalf("not lines of JSON: %v\n%s", err, tail(out))
		}
		if b.Query != "" { // the last line sums the run up
			lines = append(lines, b)
		}
	}
	return lines
}

// auditIsExact runs the audit, which must find nothing.
func (r *rig) auditIsExact() {
	r.t.Helper()
	var report struct {
		Tables []struct {
			Table string `json:"table"`
			Exact bool   `json:"exact"`
		} `json:"tables"`
	}
	r.runJSON(&report, "audit", r.file)
	if len(report.Tables) != 3 {
		r.t.Errorf("the audit covers %d tables, the pipeline has 3", len(report.Tables))
	}
	for _, table := range report.Tables {
		if !table.Exact {
			r.t.Errorf("audit: %s is not exact", table.Table)
		}
	}
}

// row is a row of a table as PyIceberg reads it: bytes in base64, times in
// microseconds, numbers as they are written.
type row map[string]any

func (r row) text(column string) string {
	s, _ := r[column].(string)
	return s
}

func (r row) int(column string) int64 {
	n, err := r[column].(json.Number).Int64()
	if err != nil {
		panic(column + ": " + err.Error()) // the reader's own numbers
	}
	return n
}

func (r row) bytes(t *testing.T, column string) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(r.text(column))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// rows reads a whole table with PyIceberg.
func (r *rig) rows(table string, digest ...string) []row {
	r.t.Helper()
	args := []string{filepath.Join(repo(r.t), "tests", "readers", "dump_table.py"),
		"--catalog", filepath.Join(r.data, "catalog.db"), "--table", table}
	for _, d := range digest {
		args = append(args, "--digest", d)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, python(r.t), args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		r.t.Fatalf("dump %s: %v\n%s", table, err, tail(errs.String()))
	}
	var rows []row
	dec := json.NewDecoder(bytes.NewReader(out))
	dec.UseNumber()
	for dec.More() {
		var one row
		if err := dec.Decode(&one); err != nil {
			r.t.Fatalf("dump %s: %v", table, err)
		}
		rows = append(rows, one)
	}
	return rows
}

// progressBalances checks every row of ops.stream_progress: what a batch read
// went to exactly one place; what sessions put out are none of those rows. It
// returns the sums of a query.
func (r *rig) progressBalances(query string) (sum batchLine) {
	r.t.Helper()
	seen := map[int64]bool{}
	for _, p := range r.rows("ops.stream_progress") {
		in := p.int("input_rows")
		places := p.int("output_rows") + p.int("rows_filtered") + p.int("rows_duplicate") +
			p.int("rows_dropped_by_watermark") + p.int("rows_dead_lettered")
		if in != places && p.text("query_name") != "sessions" {
			r.t.Errorf("%s batch %d: %d rows read, %d accounted for", p.text("query_name"), p.int("batch_id"), in, places)
		}
		if p.text("query_name") != query {
			continue
		}
		if seen[p.int("batch_id")] {
			r.t.Errorf("%s batch %d stands twice in ops.stream_progress", query, p.int("batch_id"))
		}
		seen[p.int("batch_id")] = true
		sum.Input += in
		sum.Output += p.int("output_rows")
		sum.Filtered += p.int("rows_filtered")
		sum.Duplicate += p.int("rows_duplicate")
		sum.Late += p.int("rows_dropped_by_watermark")
		sum.DeadLettered += p.int("rows_dead_lettered")
	}
	return sum
}

// withBroker runs f while the rig's embedded broker is up on its own, as no
// other process of the rig may run at that time.
func (r *rig) withBroker(f func(bootstrap string)) {
	r.t.Helper()
	bootstrap, stop := embeddedBroker(r.t, filepath.Join(r.data, "kafka"))
	defer stop()
	f(bootstrap)
}

// embeddedBroker starts the broker that is in the binary; topics are
// name:partitions.
func embeddedBroker(t *testing.T, dir string, topics ...string) (bootstrap string, stop func()) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{"__broker", "--data-dir", dir, "--port", "0"}
	for _, topic := range topics {
		args = append(args, "--topic", topic)
	}
	cmd := exec.Command(weirBin(t), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// It ends with its standard input.
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	stop = func() {
		once.Do(func() {
			_ = stdin.Close()
			if err := cmd.Wait(); err != nil {
				t.Errorf("the broker did not end cleanly: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	var ready struct {
		Bootstrap string `json:"bootstrap"`
	}
	if err == nil {
		err = json.Unmarshal(line, &ready)
	}
	if err != nil || ready.Bootstrap == "" {
		t.Fatalf("the broker did not start: %v %s", err, line)
	}
	return ready.Bootstrap, stop
}

// topic reads all records of a topic, as a read_committed reader gets them.
func (r *rig) topic(name string) []*kgo.Record {
	r.t.Helper()
	var records []*kgo.Record
	r.withBroker(func(bootstrap string) { records = consumeAll(r.t, bootstrap, name) })
	return records
}

// sseServer starts the server that is not ours and returns its address.
func sseServer(t *testing.T, files ...string) string {
	t.Helper()
	port := filepath.Join(t.TempDir(), "port")
	cmd := exec.Command(python(t), append([]string{filepath.Join("testdata", "sse_server.py"), port}, files...)...)
	var errs lockedBuffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if b, err := os.ReadFile(port); err == nil {
			return "http://127.0.0.1:" + string(b) + "/v2/stream/recentchange"
		}
	}
	t.Fatalf("the server does not start: %s", errs.String())
	return ""
}
