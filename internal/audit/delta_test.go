package audit

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

// deltaLogOf is a Delta table that is written line by line, as its protocol
// says, without anybody's writer.
type deltaLogOf struct {
	t       *testing.T
	dir     string
	version int
	files   int
}

const deltaSchema = `{"type":"struct","fields":[{"name":"topic","type":"string","nullable":true,"metadata":{}},` +
	`{"name":"partition","type":"integer","nullable":false,"metadata":{}},{"name":"offset","type":"long","nullable":false,"metadata":{}}]}`

func newDeltaLog(t *testing.T) *deltaLogOf {
	d := &deltaLogOf{t: t, dir: filepath.Join(t.TempDir(), "table")}
	if err := os.MkdirAll(filepath.Join(d.dir, "_delta_log"), 0o755); err != nil {
		t.Fatal(err)
	}
	d.commit(map[string]any{"protocol": map[string]any{"minReaderVersion": 1, "minWriterVersion": 2}},
		map[string]any{"metaData": map[string]any{"id": "table-id", "schemaString": deltaSchema, "partitionColumns": []string{}, "configuration": map[string]string{}}})
	return d
}

func (d *deltaLogOf) commit(actions ...map[string]any) {
	d.t.Helper()
	var lines []string
	for _, a := range actions {
		b, err := json.Marshal(a)
		if err != nil {
			d.t.Fatal(err)
		}
		lines = append(lines, string(b))
	}
	p := filepath.Join(d.dir, "_delta_log", fmt.Sprintf("%020d.json", d.version))
	if err := os.WriteFile(p, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		d.t.Fatal(err)
	}
	d.version++
}

// file writes a data file and gives its add action. Without a topic column the
// topic is a partition value.
func (d *deltaLogOf) file(topicInFile bool, rows ...rowAt) map[string]any {
	d.t.Helper()
	fields := []arrow.Field{{Name: "partition", Type: arrow.PrimitiveTypes.Int32}, {Name: "offset", Type: arrow.PrimitiveTypes.Int64}}
	if topicInFile {
		fields = append(fields, arrow.Field{Name: "topic", Type: arrow.BinaryTypes.String})
	}
	sc := arrow.NewSchema(fields, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, sc)
	for _, r := range rows {
		b.Field(0).(*array.Int32Builder).Append(r.partition)
		b.Field(1).(*array.Int64Builder).Append(r.offset)
		if topicInFile {
			b.Field(2).(*array.StringBuilder).Append(topic)
		}
	}
	name := fmt.Sprintf("part %d.parquet", d.files) // a blank, which the log escapes
	d.files++
	out, err := os.Create(filepath.Join(d.dir, name))
	if err != nil {
		d.t.Fatal(err)
	}
	w, err := pqarrow.NewFileWriter(sc, out, parquet.NewWriterProperties(), pqarrow.DefaultWriterProps())
	if err != nil {
		d.t.Fatal(err)
	}
	if err := w.Write(b.NewRecordBatch()); err != nil {
		d.t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		d.t.Fatal(err)
	}
	values := map[string]any{}
	if !topicInFile {
		values["topic"] = topic
	}
	return map[string]any{"add": map[string]any{"path": strings.ReplaceAll(name, " ", "%20"), "partitionValues": values, "size": 1,
		"modificationTime": 1, "dataChange": true, "stats": fmt.Sprintf(`{"numRecords":%d}`, len(rows))}}
}

func txn(app string, version int64) map[string]any {
	return map[string]any{"txn": map[string]any{"appId": app, "version": version}}
}

// marked is a commit's txn actions for a query at an offset of partition 0, with
// the marker beside the table.
func (d *deltaLogOf) marked(id string, epoch, batch, next, says int64) []map[string]any {
	d.t.Helper()
	text := fmt.Sprintf(`{"format":1,"kind":"stream","query_name":"q","query_id":%q,"batch_id":%d,"position":{"kafka":{"cluster_id":"","topics":{%q:{"partitions":{"0":{"next_offset":%d}}}}}},"counters":{}}`,
		id, batch, topic, says)
	sum := sha256.Sum256([]byte(text))
	hash := int64(binary.BigEndian.Uint64(sum[:8]))
	if err := os.MkdirAll(filepath.Join(d.dir, "_weir", id), 0o755); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.dir, "_weir", id, fmt.Sprintf("%d-%016x.json", batch, uint64(hash))), []byte(text), 0o644); err != nil {
		d.t.Fatal(err)
	}
	return []map[string]any{txn("weir/"+id, batch), txn("weir/"+id+"/name/q", epoch), txn("weir/"+id+"/marker", hash),
		txn("weir/"+id+"/pos/"+topic+"/0", next)}
}

func (f *fixture) auditDelta(d *deltaLogOf) *TableReport {
	f.t.Helper()
	return f.audit(TableConfig{Name: "bronze.d", Topic: topic, Delta: d.dir}).Tables[0]
}

func TestADeltaTableThatHoldsEveryRecordOnceIsExact(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 50)
	d := newDeltaLog(t)
	d.commit(append(d.marked("id-1", 1, 0, 20, 20), d.file(true, span0(0, 0, 20)...))...)
	d.commit(append(d.marked("id-1", 1, 1, 40, 40), d.file(false, span0(0, 20, 40)...))...)
	rep := f.auditDelta(d)
	expect(t, rep, Exact, nil, nil)
	if rep.Rows != 40 || rep.KafkaRecords != 40 || rep.Files != 2 || rep.EndSource != endProperty || rep.SnapshotID != 2 {
		t.Errorf("%+v", rep)
	}
}

func TestADeltaTableIsJudgedByItsLogNotByItsFolder(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 40)
	d := newDeltaLog(t)
	first := d.file(true, span0(0, 0, 20)...)
	d.commit(append(d.marked("id-1", 1, 0, 20, 20), first)...)
	d.file(true, span0(0, 0, 40)...) // an orphan
	// Compaction by somebody else: the same rows in another file.
	d.commit(map[string]any{"remove": map[string]any{"path": first["add"].(map[string]any)["path"], "dataChange": false}}, d.file(true, span0(0, 0, 20)...))
	expect(t, f.auditDelta(d), Exact, nil, nil)
	// The same rows once more, by a writer that forgot that it had been there.
	d.commit(d.file(true, span0(0, 5, 10)...))
	expect(t, f.auditDelta(d), Mismatch, nil, []Range{{Partition: 0, From: 5, To: 10, Reason: ReasonDoubled}})
}

func TestADeltaTableThatLostRowsButNotItsMemoryIsAMismatch(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 40)
	d := newDeltaLog(t)
	gone := d.file(true, span0(0, 10, 20)...)
	d.commit(append(d.marked("id-1", 1, 0, 20, 20), d.file(true, span0(0, 0, 10)...), gone)...)
	// RESTORE takes rows and keeps txn actions.
	d.commit(map[string]any{"remove": map[string]any{"path": gone["add"].(map[string]any)["path"]}})
	expect(t, f.auditDelta(d), Mismatch, []Range{{Partition: 0, From: 10, To: 20}}, nil)
}

func TestAMarkerThatContradictsTheDeltaLogIsAMismatch(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 40)
	d := newDeltaLog(t)
	d.commit(append(d.marked("id-1", 1, 0, 20, 15), d.file(true, span0(0, 0, 15)...))...)
	rep := f.auditDelta(d)
	if rep.Outcome != Mismatch || !strings.Contains(strings.Join(rep.Reasons, ";"), "the log says 20") {
		t.Fatalf("%s: %v", rep.Outcome, rep.Reasons)
	}
}

func TestOfTwoLineagesInADeltaTableTheOneThatClaimedLastCounts(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 40)
	d := newDeltaLog(t)
	d.commit(append(d.marked("id-1", 1, 0, 20, 20), d.file(true, span0(0, 0, 20)...))...)
	d.commit(append(d.marked("id-2", 2, 1, 30, 30), d.file(true, span0(0, 20, 30)...))...)
	rep := f.auditDelta(d)
	expect(t, rep, Exact, nil, nil)
	if rep.End[0] != 30 {
		t.Fatalf("end %v", rep.End)
	}
}

func TestADeltaTableWithDeletionVectorsIsInconclusive(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 20)
	d := newDeltaLog(t)
	add := d.file(true, span0(0, 0, 20)...)
	add["add"].(map[string]any)["deletionVector"] = map[string]any{"storageType": "i"}
	d.commit(add)
	expect(t, f.auditDelta(d), Inconclusive, nil, nil)
}

// TestADeltaTableOfDeltaRSIsReadThroughItsCheckpoint lets another engine write
// the table, partition it and write the checkpoint.
func TestADeltaTableOfDeltaRSIsReadThroughItsCheckpoint(t *testing.T) {
	py := os.Getenv("WEIR_PYTHON")
	if py == "" {
		py = filepath.Join("..", "..", ".cache", "venv", "bin", "python")
	}
	if testing.Short() {
		t.Skip("starts Python: not under -short")
	}
	if _, err := os.Stat(py); err != nil {
		t.Skipf("no Python with deltalake at %s (or set WEIR_PYTHON)", py)
	}
	f := newFixture(t, 2)
	f.publish(0, 60)
	f.publish(1, 10)
	dir := filepath.Join(t.TempDir(), "table")
	script := `
import sys, os, pyarrow as pa
from deltalake import DeltaTable, write_deltalake
for i in range(6):
    rows = [(0, o) for o in range(i * 10, i * 10 + 10)]
    if i == 5: rows += [(1, o) for o in range(10)]
    write_deltalake(sys.argv[1], pa.table({"topic": ["t"] * len(rows), "partition": pa.array([r[0] for r in rows], pa.int32()),
        "offset": pa.array([r[1] for r in rows], pa.int64())}), mode="append", partition_by=["topic", "partition"])
    if i == 3:
        DeltaTable(sys.argv[1]).create_checkpoint()
        for v in range(3): os.remove(f"{sys.argv[1]}/_delta_log/{v:020d}.json")
DeltaTable(sys.argv[1]).optimize.compact()
`
	if out, err := exec.Command(py, "-c", script, dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	rep := f.audit(TableConfig{Name: "foreign", Topic: topic, Delta: dir}).Tables[0]
	expect(t, rep, Exact, nil, nil)
	if rep.Rows != 70 || rep.EndSource != endLog {
		t.Fatalf("%+v", rep)
	}
	h, err := Peek(context.Background(), DeltaCatalog{}, nil, dir)
	if err != nil || h.Rows != 70 {
		t.Fatalf("%+v %v", h, err)
	}
}

func TestADeltaTableThatDoesNotExistIsMissingEverything(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 3)
	rep := f.audit(TableConfig{Name: "none", Topic: topic, Delta: t.TempDir()}).Tables[0]
	expect(t, rep, Mismatch, []Range{{Partition: 0, From: 0, To: 3}}, nil)
}
