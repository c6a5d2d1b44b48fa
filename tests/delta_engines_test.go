package tests

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	goapi "github.com/weirlake/weir"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/delta"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/s3test"
)

// The environment of a process of this test binary that appends to a table.
const (
	raceTable  = "WEIR_TEST_RACE_TABLE"
	raceWriter = "WEIR_TEST_RACE_WRITER"
	raceWrites = "WEIR_TEST_RACE_WRITES"
)

// raceRows is how many rows each append of a racing writer has.
const raceRows = 3

func TestMain(m *testing.M) {
	if os.Getenv(raceTable) == "" {
		os.Exit(m.Run())
	}
	if err := race(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// race appends as one of several writer processes. It begins from its first
// append whenever it is started: those that are in the table are skipped.
func race() error {
	ctx := context.Background()
	writer, err := strconv.ParseInt(os.Getenv(raceWriter), 10, 64)
	if err != nil {
		return err
	}
	writes, err := strconv.ParseInt(os.Getenv(raceWrites), 10, 64)
	if err != nil {
		return err
	}
	table, err := goapi.OpenDelta(ctx, os.Getenv(raceTable))
	if err != nil {
		return err
	}
	for n := range writes {
		rec := eventRows(writer, n*raceRows, raceRows)
		_, err := table.AppendRecords(ctx, []arrow.RecordBatch{rec}, goapi.Txn{AppID: fmt.Sprintf("writer-%d", writer), Version: n})
		rec.Release()
		if err != nil {
			return fmt.Errorf("writer %d, append %d: %w", writer, n, err)
		}
		fmt.Println(n)
	}
	return nil
}

// eventRows are rows (partition, offset, event_id) that no other call has.
func eventRows(partition, from, n int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{
		{Name: "partition", Type: arrow.PrimitiveTypes.Int64},
		{Name: "offset", Type: arrow.PrimitiveTypes.Int64},
		{Name: "event_id", Type: arrow.BinaryTypes.String, Nullable: true},
	}, nil))
	defer b.Release()
	for i := from; i < from+n; i++ {
		b.Field(0).(*array.Int64Builder).Append(partition)
		b.Field(1).(*array.Int64Builder).Append(i)
		b.Field(2).(*array.StringBuilder).Append(fmt.Sprintf("%d/%d", partition, i))
	}
	return b.NewRecordBatch()
}

// raceOn lets 8 processes append at once, kills two of them under way and starts
// these again.
func raceOn(t *testing.T, table string, writes int, env ...string) {
	t.Helper()
	const writers = 8
	run := func(writer int) (*exec.Cmd, *bytes.Buffer) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		t.Cleanup(cancel)
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), append(env, raceTable+"="+table, raceWriter+"="+strconv.Itoa(writer), raceWrites+"="+strconv.Itoa(writes))...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		return cmd, &out
	}
	type racer struct {
		cmd *exec.Cmd
		out *bytes.Buffer
	}
	var running []racer
	for w := range writers - 2 {
		cmd, out := run(w)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		running = append(running, racer{cmd, out})
	}
	for w := writers - 2; w < writers; w++ {
		cmd, _ := run(w)
		cmd.Stdout = nil
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Killed while the append after its second one is under way.
		for lines := 0; lines < 2; {
			b := make([]byte, 64)
			n, err := pipe.Read(b)
			if lines += bytes.Count(b[:n], []byte("\n")); err != nil {
				break
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		again, out := run(w)
		if err := again.Start(); err != nil {
			t.Fatal(err)
		}
		running = append(running, racer{again, out})
	}
	for w, r := range running {
		if err := r.cmd.Wait(); err != nil {
			t.Errorf("writer %d: %v\n%s", w, err, tail(r.out.String()))
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// countDelta is the table as delta-rs counts it.
func countDelta(t *testing.T, table string, options ...string) (c struct {
	Rows            int64
	DistinctOffsets int64 `json:"distinct_offsets"`
	DistinctIDs     int64 `json:"distinct_event_ids"`
	Version         int64
}) {
	t.Helper()
	reader(t, &c, "count_delta.py", append([]string{"--table", table}, options...)...)
	return c
}

func raced(t *testing.T, table string, writes int64, options ...string) {
	t.Helper()
	c := countDelta(t, table, options...)
	if want := 8 * writes * raceRows; c.Rows != want || c.DistinctOffsets != want || c.DistinctIDs != want || c.Version != 8*writes-1 {
		t.Fatalf("delta-rs: %+v; want %d rows in %d versions", c, want, 8*writes)
	}
}

func TestEightRacingWriterProcessesLoseNothing(t *testing.T) {
	weirBin(t)
	python(t)
	table := filepath.Join(t.TempDir(), "raced")
	raceOn(t, table, 12)
	raced(t, table, 12)
}

func TestEightRacingWriterProcessesOnS3LoseNothing(t *testing.T) {
	weirBin(t)
	python(t)
	srv := s3test.Start(t)
	srv.Bucket(s3Bucket)
	table := "s3://" + s3Bucket + "/raced"
	raceOn(t, table, 6, s3Env(srv)...)
	raced(t, table, 6, s3Options(srv)...)
}

// s3Env lets a process find the server by the SDK's own variables.
func s3Env(srv *s3test.Server) []string {
	return []string{"AWS_ENDPOINT_URL=" + srv.Endpoint(), "AWS_REGION=" + s3test.Region, "AWS_ACCESS_KEY_ID=" + s3test.AccessKeyID,
		"AWS_SECRET_ACCESS_KEY=" + s3test.SecretAccessKey, "AWS_ALLOW_HTTP=true"}
}

// s3Options are the same for delta-rs.
func s3Options(srv *s3test.Server) (out []string) {
	for _, e := range s3Env(srv) {
		out = append(out, "--property", e)
	}
	return out
}

// longTable makes a table of 500 commits. The log before the newest checkpoint
// has outlived its retention and is cleaned up by the last commits.
func longTable(t *testing.T, dir string) {
	t.Helper()
	ctx := context.Background()
	store, err := delta.OpenLocal(dir, objstore.LocalOptions{Clock: clock.System{}})
	if err != nil {
		t.Fatal(err)
	}
	table := delta.Open(store, delta.Options{Clock: clock.System{}, Engine: "weir", Warn: func(err error) { t.Error(err) }})
	for n := range int64(500) {
		if n == 485 {
			age(t, dir)
		}
		rec := eventRows(0, n, 1)
		_, err := delta.Append(ctx, table, []arrow.RecordBatch{rec}, delta.AppendOptions{TxnAppID: "long", TxnVersion: n, Create: &delta.CreateOptions{}})
		rec.Release()
		if err != nil {
			t.Fatal(err)
		}
	}
	left, _ := filepath.Glob(filepath.Join(dir, "_delta_log", "*.json"))
	if len(left) == 0 || len(left) > 30 || strings.HasSuffix(left[0], "00000000000000000000.json") {
		t.Fatalf("%d commits are left of the log, the first is %v", len(left), left[:min(1, len(left))])
	}
	if _, err := os.Stat(filepath.Join(dir, "_delta_log", "_last_checkpoint")); err != nil {
		t.Fatal(err)
	}
}

func TestATableOf500CommitsIsReadFromItsCheckpointByDeltaRS(t *testing.T) {
	weirBin(t)
	python(t)
	dir := filepath.Join(t.TempDir(), "long")
	longTable(t, dir)
	if c := countDelta(t, dir); c.Rows != 500 || c.DistinctOffsets != 500 || c.Version != 499 {
		t.Fatalf("delta-rs: %+v", c)
	}
}

// digest is what a reader of whole tables prints of each.
type digest struct {
	Rows    int64
	Digest  string
	Version int64
}

// spark is the Python and the jars that read Delta tables with Spark.
func spark(t *testing.T) (python, jars string) {
	t.Helper()
	given := strings.Fields(os.Getenv("WEIR_SPARK_DELTA"))
	if len(given) != 2 {
		t.Skip("WEIR_SPARK_DELTA is not set: run `make delta-spark`, which fetches Spark and delta-spark (0.5 GB)")
	}
	return given[0], given[1]
}

// sameForSpark compares what delta-rs and Spark read of every table.
func sameForSpark(t *testing.T, python, jars string, tables map[string]string) {
	t.Helper()
	var args []string
	for _, dir := range tables {
		args = append(args, "--table", dir)
	}
	rs, sp := map[string]digest{}, map[string]digest{}
	reader(t, &rs, "digest_delta.py", args...)
	readerWithin(t, 5*patience, python, &sp, "digest_delta_spark.py", append([]string{"--jars", jars}, args...)...)
	for name, dir := range tables {
		if rs[dir] != sp[dir] || rs[dir].Rows == 0 {
			t.Errorf("%s: delta-rs reads %+v, Spark %+v", name, rs[dir], sp[dir])
		}
	}
}

func TestDeltaRSAndSparkReadTheSameRowsOfEveryTable(t *testing.T) {
	py, jars := spark(t)
	root := t.TempDir()
	long, races := filepath.Join(root, "long"), filepath.Join(root, "raced")
	longTable(t, long)
	raceOn(t, races, 12)
	raced(t, races, 12)

	l := newDeltaLab(t, 1000)
	for _, point := range deltaCrashPoints() {
		l.produce(100)
		l.crash(point)
	}
	l.run(exitOK)
	l.deltaExact()
	warehouse := filepath.Join(l.dir, "warehouse")
	merged := mergedTables(t)
	sameForSpark(t, py, jars, map[string]string{
		"merged": filepath.Join(merged, "accounts_delta"), "dead letters of the merge": filepath.Join(merged, "..", "ops", "dead_delta"),
		"500 commits": long, "raced": races,
		"landing": filepath.Join(warehouse, "landing", "events"), "edits": filepath.Join(warehouse, "silver", "edits"),
		"dead letters": filepath.Join(warehouse, "silver", "dead"),
	})
}

// mergedTables gives the folder of a table that a change stream is merged into,
// killed at every step, optimized and vacuumed in between, and whose log before
// the newest checkpoint has been cleaned up.
func mergedTables(t *testing.T) string {
	t.Helper()
	b := newBank(t, 23)
	b.changes(300)
	dir := filepath.Join(b.dir, "warehouse", "bank")
	kills := func(steps ...string) {
		for _, step := range steps {
			b.crash("delta/"+step, "--query", "delta")
			b.changes(80)
		}
		b.run(exitOK, "--query", "delta")
	}
	care := func(args ...string) {
		if out, errs, code := weir(t, nil, append([]string{"delta"}, args...)...); code != exitOK || strings.Contains(out, ": 0 files") {
			t.Fatalf("weir delta %v: exit %d, %s\n%s", args, code, out, tail(errs))
		}
	}
	// inserts are of so many keys that a batch of them leaves all files as they are.
	inserts := func() {
		hot := b.keys
		b.keys = 1_000_000
		for range 3 {
			b.changes(80)
			b.run(exitOK, "--query", "delta")
		}
		b.keys = hot
	}
	kills("claim.before:1", "claim.done:1", "stage.file:1", "stage.state:1", "commit.side:1", "commit.before:2")
	inserts()
	care("optimize", b.file, "bank.accounts_delta")
	b.changes(200)
	kills("commit.metadata:2")
	// Nobody reads an older version: what was replaced may go at once.
	care("vacuum", b.file, "bank.accounts_delta", "--retention", "1ns", "--force")
	age(t, filepath.Join(dir, "accounts_delta"))
	b.changes(200)
	kills("commit.swapped:1", "done.written:1", "plan.written:1", "report.done:1")
	for range 12 { // versions, up to the next checkpoint of the log
		b.changes(20)
		b.run(exitOK, "--query", "delta")
	}
	if _, err := os.Stat(filepath.Join(dir, "accounts_delta", "_delta_log", "00000000000000000000.json")); err == nil {
		t.Fatal("the log from before its checkpoint is still there")
	}
	inserts()
	care("optimize", b.file, "bank.accounts_delta")
	b.changes(50)
	b.run(exitOK)
	b.exact()
	return dir
}

// age lets everything in a table's log outlive its retention.
func age(t *testing.T, dir string) {
	t.Helper()
	months := time.Now().Add(-40 * 24 * time.Hour)
	logs, err := filepath.Glob(filepath.Join(dir, "_delta_log", "*"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("no log in %s: %v", dir, err)
	}
	for _, name := range logs {
		if err := os.Chtimes(name, months, months); err != nil {
			t.Fatal(err)
		}
	}
}

// deltaCrashPoints are all steps that each of the two queries over Delta tables
// takes.
func deltaCrashPoints() (out []string) {
	steps := []string{"claim.before", "claim.done", "plan.written", "read.done", "transform.done", "stage.file", "stage.done",
		"commit.before", "commit.metadata", "commit.swapped", "done.written", "report.done"}
	for _, s := range steps {
		out = append(out, "landing/"+s+":1", "edits/"+s+":1")
	}
	return append(out, "edits/stage.state:1", "edits/commit.side:1")
}
