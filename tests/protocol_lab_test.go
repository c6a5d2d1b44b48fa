package tests

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	_ "modernc.org/sqlite" // the catalog's pointer is set back as a person would

	"github.com/weirlake/weir/internal/broker"
)

// Exit codes of the contract that the protocol's stops end with.
const (
	exitOK            = 0
	exitConfig        = 2
	exitSourceChanged = 3
	exitMismatch      = 4
	exitFenced        = 5
	exitCheckpoint    = 7
)

const (
	labTopic  = "edits"
	labBronze = "bronze.events"
	labSilver = "silver.edits"
	labDead   = "silver.dead"
	// labBatch is how many offsets a batch of bronze takes at most.
	labBatch = 200
)

// lab is a pipeline of bronze and silver over a broker in a process of its own.
type lab struct {
	t          *testing.T
	dir        string
	file       string
	broker     *broker.Child
	client     *kgo.Client
	sent       int64
	partitions int64
}

const labFile = `name: lab
catalog: {type: sql, name: weir, uri: "sqlite:%[1]s/catalog.db"}
warehouse: "%[1]s/warehouse"
checkpointLocation: "%[1]s/checkpoints"
kafka:
  bootstrapServers: [%[2]q]
queries:
  - name: bronze
    from:
      kafka: {topics: [edits], startingOffsets: earliest, maxOffsetsPerTrigger: %[3]d}
    trigger: {processingTime: 20ms}
    to:
      iceberg: {table: bronze.events, partitionBy: ["day(timestamp)"]}
  - name: silver
    from:
      table: {name: bronze.events, maxOffsetsPerTrigger: %[3]d}
    trigger: {processingTime: 20ms}
    parse:
      format: json
      columns:
        - {name: event_id, path: $.id, type: string, required: true}
        - {name: event_time, path: $.dt, type: timestamptz, required: true}
        - {name: kind, path: $.kind, type: string}
        - {name: kafka_partition, source: partition, type: int}
        - {name: kafka_offset, source: offset, type: long}
        - {name: processed_at, source: batchTime, type: timestamptz}
    filter: "kind = 'edit'"
    watermark: {column: event_time, delay: 10m, maxFutureSkew: 1h}
    dropDuplicatesWithinWatermark: [event_id]
    deadLetter: {table: silver.dead}
    to:
      iceberg: {table: silver.edits, partitionBy: ["day(event_time)"]}
ops: {progressTable: ops.stream_progress, flushInterval: 200ms}
status: {listen: none}
`

// newLab starts a broker with two partitions and records.
func newLab(t *testing.T, records int) *lab {
	t.Helper()
	l := &lab{t: t, dir: t.TempDir(), partitions: 2}
	l.startBroker(0)
	l.file = filepath.Join(l.dir, "pipeline.yaml")
	l.write(labBatch)
	l.produce(records)
	return l
}

func (l *lab) write(batch int) {
	l.t.Helper()
	if err := os.WriteFile(l.file, fmt.Appendf(nil, labFile, l.dir, l.broker.Bootstrap(), batch), 0o644); err != nil {
		l.t.Fatal(err)
	}
}

// edit changes the pipeline file.
func (l *lab) edit(old, new string) {
	l.t.Helper()
	b, err := os.ReadFile(l.file)
	if err != nil || !strings.Contains(string(b), old) {
		l.t.Fatalf("%q is not in the pipeline file: %v", old, err)
	}
	if err := os.WriteFile(l.file, []byte(strings.ReplaceAll(string(b), old, new)), 0o644); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) startBroker(port int) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	child, err := broker.Spawn(ctx, weirBin(l.t), broker.EmbeddedConfig{
		DataDir: filepath.Join(l.dir, "kafka"), Port: port, Topics: []broker.Topic{{Name: labTopic, Partitions: 2}},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(child.Kill9)
	l.broker = child
	l.connect()
}

// connect makes a client that knows nothing of the topic's past.
func (l *lab) connect() {
	l.t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(l.broker.Bootstrap()), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(c.Close)
	l.client = c
}

// produce sends n records to the two partitions in turn: edits, every eleventh
// of another kind, every seventh repeats an id, every thirteenth is not JSON.
func (l *lab) produce(n int) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	now := time.Now().UTC()
	records := make([]*kgo.Record, 0, n)
	partitions := l.partitions
	for range n {
		i := l.sent
		l.sent++
		id, kind := i, "edit"
		if i%7 == 6 {
			id--
		}
		if i%11 == 10 {
			kind = "log"
		}
		value := fmt.Sprintf(`{"id":"e-%d","kind":%q,"dt":%q,"comment":%q}`, id, kind,
			now.Add(time.Duration(i)*time.Millisecond).Format(time.RFC3339Nano), strings.Repeat("x", 200))
		if i%13 == 12 {
			value = "{ not JSON"
		}
		records = append(records, &kgo.Record{Topic: labTopic, Partition: int32(i % partitions), Value: []byte(value)})
	}
	if err := l.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) admin() *kadm.Client { return kadm.NewClient(l.client) }

// run works off what is there; it must end with the code.
func (l *lab) run(want int, args ...string) (stdout, stderr string) {
	l.t.Helper()
	return l.runEnv(want, nil, args...)
}

func (l *lab) runEnv(want int, env []string, args ...string) (stdout, stderr string) {
	l.t.Helper()
	stdout, stderr, code := weir(l.t, env, append([]string{"run", l.file, "--once"}, args...)...)
	if code != want {
		l.t.Fatalf("weir run %v: exit %d, want %d\n%s", args, code, want, tail(stderr))
	}
	return stdout, stderr
}

// crash runs until the crash point, where the process kills itself.
func (l *lab) crash(point string, args ...string) {
	l.t.Helper()
	p := start(l.t, []string{"WEIR_CRASH_AT=" + point}, append([]string{"run", l.file, "--once"}, args...)...)
	if code := p.wait(); code != -1 || !strings.Contains(p.errs.String(), "crash point") {
		l.t.Fatalf("%s was not reached: exit %d\n%s", point, code, tail(p.errs.String()))
	}
}

// tableAudit is what this package reads of `weir audit --output json`.
type tableAudit struct {
	Table           string   `json:"table"`
	Exact           bool     `json:"exact"`
	Rows            int64    `json:"rows"`
	DistinctOffsets int64    `json:"distinct_offsets"`
	KafkaRecords    int64    `json:"kafka_records"`
	Erased          int64    `json:"erased_rows"`
	Reasons         []string `json:"reasons"`
	Silver          *struct {
		Rows        int64 `json:"rows"`
		DistinctIDs int64 `json:"distinct_event_ids"`
	} `json:"silver"`
}

// audit runs the audit and checks its exit code.
func (l *lab) audit(want int) map[string]tableAudit {
	l.t.Helper()
	out, errs, code := weir(l.t, nil, "audit", l.file, "--output", "json")
	if code != want {
		l.t.Fatalf("weir audit: exit %d, want %d\n%s\n%s", code, want, out, tail(errs))
	}
	var r struct {
		Tables []tableAudit `json:"tables"`
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		l.t.Fatalf("%v\n%s", err, out)
	}
	byName := map[string]tableAudit{}
	for _, t := range r.Tables {
		byName[t.Table] = t
	}
	return byName
}

// exact is the end of most tests: audit and, where there is a Python, readers
// that are not ours find every record once in bronze and every id once in
// silver.
func (l *lab) exact() {
	l.t.Helper()
	a := l.audit(exitOK)
	if b := a[labBronze]; b.Rows != l.sent || b.DistinctOffsets != l.sent || b.KafkaRecords != l.sent {
		l.t.Fatalf("bronze: %+v, %d records were sent", b, l.sent)
	}
}

// exactByOthers counts with PyIceberg and DuckDB.
func (l *lab) exactByOthers() {
	l.t.Helper()
	python(l.t)
	want := int64(len(l.wantIDs()))
	for _, script := range []string{"count_iceberg.py", "count_duckdb.py"} {
		var b, s counted
		reader(l.t, &b, script, "--catalog", l.catalog(), "--table", labBronze)
		reader(l.t, &s, script, "--catalog", l.catalog(), "--table", labSilver)
		if b.Rows != l.sent || b.DistinctOffsets != l.sent || s.Rows != want || s.DistinctIDs != want {
			l.t.Fatalf("%s: bronze %+v of %d records, silver %+v of %d ids", script, b, l.sent, s, want)
		}
	}
}

// wantIDs are the ids that silver must hold, computed from what was sent.
func (l *lab) wantIDs() map[int64]bool {
	ids := map[int64]bool{}
	for i := range l.sent {
		id := i
		if i%7 == 6 {
			id--
		}
		if i%11 != 10 && i%13 != 12 {
			ids[id] = true
		}
	}
	return ids
}

func (l *lab) catalog() string { return filepath.Join(l.dir, "catalog.db") }

func (l *lab) checkpoint(query string, more ...string) string {
	return filepath.Join(append([]string{l.dir, "checkpoints", query}, more...)...)
}

// remove deletes part of a checkpoint.
func (l *lab) remove(path string) {
	l.t.Helper()
	if _, err := os.Stat(path); err != nil {
		l.t.Fatal(err)
	}
	if err := os.RemoveAll(path); err != nil {
		l.t.Fatal(err)
	}
}

// foreignHands lets PyIceberg compact and expire a table.
func (l *lab) foreignHands(table string, args ...string) {
	l.t.Helper()
	var done struct {
		Left int `json:"snapshots_left"`
	}
	reader(l.t, &done, "compact_pyiceberg.py", append([]string{"--catalog", l.catalog(), "--table", table}, args...)...)
	if done.Left != 1 {
		l.t.Fatalf("%s has %d snapshots after the expiry", table, done.Left)
	}
}

// pointer reads a table's metadata location in the catalog.
func (l *lab) pointer(table string) string {
	l.t.Helper()
	var at string
	l.sql(func(db *sql.DB) error {
		return db.QueryRow("SELECT metadata_location FROM iceberg_tables WHERE table_namespace || '.' || table_name = ?", table).Scan(&at)
	})
	return at
}

// setPointer restores a table to an older metadata file.
func (l *lab) setPointer(table, location string) {
	l.t.Helper()
	l.sql(func(db *sql.DB) error {
		_, err := db.Exec("UPDATE iceberg_tables SET metadata_location = ? WHERE table_namespace || '.' || table_name = ?", location, table)
		return err
	})
}

// drop takes a table out of the catalog.
func (l *lab) drop(table string) {
	l.t.Helper()
	l.sql(func(db *sql.DB) error {
		_, err := db.Exec("DELETE FROM iceberg_tables WHERE table_namespace || '.' || table_name = ?", table)
		return err
	})
}

func (l *lab) sql(f func(*sql.DB) error) {
	l.t.Helper()
	db, err := sql.Open("sqlite", l.catalog())
	if err != nil {
		l.t.Fatal(err)
	}
	defer db.Close()
	if err := f(db); err != nil {
		l.t.Fatal(err)
	}
}

// committed is how many records the newest commit of bronze has delivered.
func (l *lab) committed(query string) int64 {
	dir := l.checkpoint(query, "commits")
	b, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(newest(dir))))
	if err != nil {
		return -1
	}
	_, doc, _ := strings.Cut(string(b), "\n") // the first line is the format
	var c struct {
		Marker struct {
			Position json.RawMessage `json:"position"`
		} `json:"marker"`
	}
	if json.Unmarshal([]byte(doc), &c) != nil {
		return -1
	}
	var n int64
	for _, m := range nextOffset.FindAllStringSubmatch(string(c.Marker.Position), -1) {
		var v int64
		fmt.Sscan(m[1], &v)
		n += v
	}
	return n
}

var nextOffset = regexp.MustCompile(`"next_offset":\s*(\d+)`)

// stop asks the process to end as a supervisor does.
func (p *process) stop(want int) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatalf("it had ended before: %v\n%s", err, tail(p.errs.String()))
	}
	if code := p.wait(); code != want {
		p.t.Fatalf("after SIGTERM: exit %d, want %d\n%s", code, want, tail(p.errs.String()))
	}
}

// waitFor polls until cond holds.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("waited in vain for %s", what)
}
