package tests

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// deltaFile is the lab with Delta tables: landing as the records came, and edits
// over Iceberg's bronze, with state and a dead-letter table.
const deltaFile = `  - name: landing
    from:
      kafka: {topics: [edits], startingOffsets: earliest, maxOffsetsPerTrigger: 100}
    trigger: {processingTime: 20ms}
    to:
      delta: {table: landing.events, partitionBy: [partition], appId: my-landing}
  - name: bronze
    from:
      kafka: {topics: [edits], startingOffsets: earliest, maxOffsetsPerTrigger: 100}
    trigger: {processingTime: 20ms}
    to:
      iceberg: {table: bronze.events, partitionBy: ["day(timestamp)"]}
  - name: edits
    from:
      table: {name: bronze.events, maxOffsetsPerTrigger: 100}
    trigger: {processingTime: 20ms}
    parse:
      format: json
      columns:
        - {name: event_id, path: $.id, type: string, required: true}
        - {name: event_time, path: $.dt, type: timestamptz, required: true}
        - {name: kind, path: $.kind, type: string}
        - {name: kafka_partition, source: partition, type: int}
        - {name: kafka_offset, source: offset, type: long}
    filter: "kind = 'edit'"
    watermark: {column: event_time, delay: 10m, maxFutureSkew: 1h}
    dropDuplicatesWithinWatermark: [event_id]
    deadLetter: {table: silver.dead, format: delta}
    to:
      delta: {table: silver.edits}
ops: {progressTable: ops.stream_progress, flushInterval: 200ms}
`

const landing = "landing.events"

// newDeltaLab is a lab whose queries write Delta tables.
func newDeltaLab(t *testing.T, records int) *lab {
	t.Helper()
	l := newLab(t, records)
	l.useDelta()
	return l
}

// useDelta puts the Delta queries in the place of the lab's own.
func (l *lab) useDelta() {
	t := l.t
	t.Helper()
	b, err := os.ReadFile(l.file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(b), "  - name: bronze")
	_, tail, ok := strings.Cut(rest, "ops: {progressTable: ops.stream_progress, flushInterval: 200ms}\n")
	if !ok {
		t.Fatal("the lab's pipeline file has changed")
	}
	if err := os.WriteFile(l.file, []byte(head+deltaFile+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}

// deltaExact lets audit and delta-rs count both tables.
func (l *lab) deltaExact() {
	l.t.Helper()
	a := l.audit(exitOK)
	if b := a[landing]; !b.Exact || b.Rows != l.sent || b.DistinctOffsets != l.sent || b.KafkaRecords != l.sent {
		l.t.Fatalf("landing: %+v, %d records were sent", b, l.sent)
	}
	l.deltaRSCounts(filepath.Join(l.dir, "warehouse"))
}

// deltaRSCounts lets delta-rs count both tables below a warehouse.
func (l *lab) deltaRSCounts(warehouse string, options ...string) {
	l.t.Helper()
	var b, s counted
	reader(l.t, &b, "count_delta.py", append([]string{"--table", warehouse + "/landing/events"}, options...)...)
	reader(l.t, &s, "count_delta.py", append([]string{"--table", warehouse + "/silver/edits"}, options...)...)
	if want := int64(len(l.wantIDs())); b.Rows != l.sent || b.DistinctOffsets != l.sent || s.Rows != want || s.DistinctIDs != want {
		l.t.Fatalf("delta-rs: landing %+v of %d records, edits %+v of %d ids", b, l.sent, s, want)
	}
}

// TestDeltaTablesKilledAtEveryStepAreExactForDeltaRSAndTheAudit kills both
// queries at steps before, in and after the commit, again and again on the same
// tables.
func TestDeltaTablesKilledAtEveryStepAreExactForDeltaRSAndTheAudit(t *testing.T) {
	python(t)
	l := newDeltaLab(t, 1500)
	for _, point := range []string{
		"landing/claim.before:1", "landing/stage.file:2", "landing/commit.metadata:1", "landing/commit.swapped:2", "landing/done.written:1",
		"edits/stage.state:1", "edits/commit.side:1", "edits/commit.metadata:2", "edits/commit.swapped:1", "edits/claim.done:1",
	} {
		l.produce(300)
		l.crash(point)
	}
	l.run(exitOK)
	l.deltaExact()
	// The side table says the same as the counters.
	var dead counted
	reader(t, &dead, "count_delta.py", "--table", filepath.Join(l.dir, "warehouse", "silver", "dead"))
	if want := l.sent / 13; dead.Rows != want {
		t.Fatalf("%d dead letters, want %d", dead.Rows, want)
	}
}

func TestALostCheckpointIsAdoptedFromADeltaTable(t *testing.T) {
	python(t)
	l := newDeltaLab(t, 1200)
	l.run(exitOK)
	l.remove(l.checkpoint("landing"))
	l.remove(l.checkpoint("edits"))
	l.produce(500)
	_, errs := l.run(exitOK)
	if !strings.Contains(errs, "ALERT landing") || !strings.Contains(errs, "ALERT edits") {
		t.Fatalf("nobody was told\n%s", tail(errs))
	}
	l.deltaExact()
}

func TestADeltaTableThatWasRestoredStopsItsQuery(t *testing.T) {
	py := python(t)
	l := newDeltaLab(t, 600)
	l.run(exitOK)
	l.produce(300)
	l.run(exitOK)
	const back = `import sys; from deltalake import DeltaTable; DeltaTable(sys.argv[1]).restore(3)`
	if out, err := exec.Command(py, "-c", back, filepath.Join(l.dir, "warehouse", "landing", "events")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	l.produce(100)
	_, errs := l.run(exitCheckpoint)
	if !strings.Contains(errs, "restored") {
		t.Fatalf("%s", tail(errs))
	}
}

func TestADeltaTableRestoredOnPurposeIsAccepted(t *testing.T) {
	py := python(t)
	for how, back := range map[string]string{
		"to a version": `import sys; from deltalake import DeltaTable; DeltaTable(sys.argv[1]).restore(int(sys.argv[2]))`,
		"to a time": `import sys, datetime; from deltalake import DeltaTable; t = DeltaTable(sys.argv[1])
ms = [h["timestamp"] for h in t.history() if h["version"] == int(sys.argv[2])][0]
t.restore(datetime.datetime.fromtimestamp(ms / 1000, datetime.timezone.utc))`,
	} {
		t.Run(how, func(t *testing.T) {
			l := newDeltaLab(t, 600)
			l.run(exitOK)
			l.produce(300)
			l.run(exitOK)
			dir := filepath.Join(l.dir, "warehouse", "landing", "events")
			if out, err := exec.Command(py, "-c", back, dir, "4").CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if left := countDelta(t, dir); left.Rows == 0 || left.Rows >= l.sent {
				t.Fatalf("%+v of %d rows are left", left, l.sent)
			}
			l.run(exitCheckpoint)
			if _, errs, code := weir(t, nil, "checkpoint", "adopt", l.file, "landing", "--from-snapshot"); code != exitOK {
				t.Fatalf("exit %d\n%s", code, tail(errs))
			}
			l.produce(100)
			l.run(exitOK)
			l.deltaExact()
		})
	}
}

func TestDeltaTablesAreOptimizedAndVacuumedUnderARunningQuery(t *testing.T) {
	python(t)
	l := newDeltaLab(t, 1500)
	l.run(exitOK)
	running := start(t, nil, "run", l.file)
	l.produce(500)
	var o struct {
		Tables []struct {
			Table        string
			FilesRemoved int `json:"files_removed"`
			FilesAdded   int `json:"files_added"`
		}
	}
	mustJSON(t, &o, "delta", "optimize", l.file, landing)
	if len(o.Tables) != 1 || o.Tables[0].FilesRemoved < 10 || o.Tables[0].FilesAdded < 1 {
		t.Fatalf("%+v", o)
	}
	type vacuumed struct {
		Tables []struct {
			Table  string
			DryRun bool `json:"dry_run"`
			Files  []string
		}
	}
	var listed, removed vacuumed
	if _, errs, code := weir(t, nil, "delta", "vacuum", l.file, "--retention", "1h"); code != exitConfig || !strings.Contains(errs, "force") {
		t.Fatalf("exit %d\n%s", code, tail(errs))
	}
	if _, _, code := weir(t, nil, "delta", "vacuum", l.file, "no.table"); code != exitConfig {
		t.Fatalf("exit %d", code)
	}
	mustJSON(t, &listed, "delta", "vacuum", l.file, "--dry-run")
	if len(listed.Tables) != 3 || len(listed.Tables[0].Files) != 0 || !listed.Tables[0].DryRun {
		t.Fatalf("nothing is older than a week: %+v", listed)
	}
	running.kill9()
	l.run(exitOK)
	mustJSON(t, &removed, "delta", "vacuum", l.file, landing, "--retention", "1ns", "--force")
	if len(removed.Tables) != 1 || len(removed.Tables[0].Files) < o.Tables[0].FilesRemoved {
		t.Fatalf("%d files were replaced, %+v", o.Tables[0].FilesRemoved, removed)
	}
	// Nothing is lost and the memory is kept, also without the checkpoint.
	l.deltaExact()
	l.remove(l.checkpoint("landing"))
	l.produce(100)
	l.run(exitOK)
	l.deltaExact()
}

func TestStatusOfADeltaTableIsReadFromItsLog(t *testing.T) {
	l := newDeltaLab(t, 600)
	l.run(exitOK)
	var s struct {
		Queries []struct {
			Name, Table string
			BatchID     int64 `json:"batch_id"`
			Rows        int64
			Snapshots   int
			Notes       []string
		}
	}
	mustJSON(t, &s, "status", l.file)
	for _, q := range s.Queries {
		if q.Name == "landing" && (q.Table != landing || q.Rows != 600 || q.BatchID < 5 || q.Snapshots < 7 || len(q.Notes) > 0) {
			t.Fatalf("%+v", q)
		}
	}
	out, _, code := weir(t, nil, "checkpoint", "show", l.file, "landing", "--output", "json")
	var shown struct {
		Markers map[string]json.RawMessage
	}
	if err := json.Unmarshal([]byte(out), &shown); code != 0 || err != nil || len(shown.Markers[landing]) == 0 {
		t.Fatalf("exit %d, %v, %v", code, err, shown.Markers)
	}
}

func TestDeltaTablesOnS3KilledAtTheCommitAreExact(t *testing.T) {
	python(t)
	l, srv := newLabOnS3(t, 1000)
	l.useDelta()
	for _, point := range []string{"landing/commit.metadata:2", "landing/commit.swapped:1", "edits/commit.side:1", "edits/commit.swapped:2"} {
		l.produce(200)
		l.crash(point)
	}
	l.run(exitOK)
	a := l.audit(exitOK)
	if b := a[landing]; !b.Exact || b.Rows != l.sent {
		t.Fatalf("landing: %+v, %d records were sent", b, l.sent)
	}
	l.deltaRSCounts("s3://"+s3Bucket+"/warehouse", s3Options(srv)...)
}
