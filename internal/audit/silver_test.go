package audit

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
)

// silverMarker is the summary and property of a silver batch.
func silverMarker(batch, next int64, c counters) (iceberg.Properties, string) {
	m := fmt.Sprintf(`{"format":1,"kind":"stream","query_name":"silver","query_id":"q","batch_id":%d,
		"position":{"table":{"name":"bronze.r","upstream":{"topics":{"t":{"partitions":{"0":{"next_offset":%d}}}}}}},
		"counters":{"read":%d,"emitted":%d,"filtered":%d,"duplicate":%d,"late":%d,"dead_lettered":%d}}`,
		batch, next, c.Read, c.Emitted, c.Filtered, c.Duplicate, c.Late, c.DeadLettered)
	s := reached(next)
	s["weir.marker"] = m
	return s, m
}

// silverFixture is an exact bronze table of 40 rows and a silver one of the
// given rows in one batch with the given counts.
func silverFixture(t *testing.T, c counters, rows ...rowAt) *fixture {
	t.Helper()
	f := newFixture(t, 1)
	f.publish(0, 40)
	f.append(f.create("bronze.r", bronzeSchema), reached(40), span0(0, 0, 40)...)
	summary, marker := silverMarker(0, 40, c)
	tbl := f.append(f.create("silver.e", silverSchema), summary, rows...)
	f.property(tbl, "weir.query.silver", marker)
	return f
}

func (f *fixture) auditSilver() *TableReport {
	f.t.Helper()
	return f.audit(TableConfig{Name: "silver.e", Upstream: "bronze.r"}, TableConfig{Name: "bronze.r", Topic: topic}).Table("silver.e")
}

func TestSilverIsExactWhenIDsAreDistinctAndTheCountsAddUp(t *testing.T) {
	f := silverFixture(t, counters{Read: 40, Emitted: 20, Filtered: 15, Duplicate: 3, Late: 1, DeadLettered: 1}, span0(0, 0, 20)...)
	rep := f.auditSilver()
	expect(t, rep, Exact, nil, nil)
	s := rep.Silver
	if s.DistinctEventIDs != 20 || !s.Balance.Balanced || !s.Balance.Complete || s.Balance.ExpectedInput != 40 {
		t.Errorf("silver %+v, balance %+v", s, s.Balance)
	}
	var b bytes.Buffer
	(&Report{Tables: []*TableReport{rep}}).WriteText(&b)
	if !strings.Contains(b.String(), "read 40 = written 20 + filtered 15 + duplicate 3 + late 1 + dead letters 1") {
		t.Errorf("text form:\n%s", b.String())
	}
}

func TestAnEventIDThatIsThereTwiceIsCountedAndNamed(t *testing.T) {
	rows := span0(0, 0, 20)
	rows[7].id = rows[3].id
	f := silverFixture(t, counters{Read: 40, Emitted: 20, Filtered: 20}, rows...)
	rep := f.auditSilver()
	expect(t, rep, Mismatch, nil, nil)
	if rep.Silver.DoubledEventIDs != 1 || !reflect.DeepEqual(rep.Silver.Examples, []string{rows[3].id}) {
		t.Errorf("silver %+v", rep.Silver)
	}
}

func TestASilverRowWithoutItsBronzeRowIsExtra(t *testing.T) {
	f := silverFixture(t, counters{Read: 40, Emitted: 20, Filtered: 20}, append(span0(0, 0, 19), rowAt{partition: 1, offset: 7, id: "x"})...)
	expect(t, f.auditSilver(), Mismatch, nil, []Range{{1, 7, 8, ReasonNotAbove}, {1, 7, 8, ReasonBeyondEnd}})
}

func TestASilverRowThatWasLostDoesNotBalance(t *testing.T) {
	f := silverFixture(t, counters{Read: 40, Emitted: 20, Filtered: 20}, span0(0, 0, 19)...)
	rep := f.auditSilver()
	if rep.Outcome != Mismatch || !strings.Contains(strings.Join(rep.Reasons, " "), "put out 20 rows, the table holds 19") {
		t.Errorf("%s %v", rep.Outcome, rep.Reasons)
	}
}

func TestBronzeRowsThatSilverNeverReadDoNotBalance(t *testing.T) {
	f := silverFixture(t, counters{Read: 39, Emitted: 20, Filtered: 19}, span0(0, 0, 20)...)
	rep := f.auditSilver()
	if rep.Outcome != Mismatch || !strings.Contains(strings.Join(rep.Reasons, " "), "read 39 rows of bronze.r, which holds 40") {
		t.Errorf("%s %v", rep.Outcome, rep.Reasons)
	}
}

// progressSchema is what the sums need of ops.stream_progress.
var progressSchema = iceberg.NewSchema(0,
	iceberg.NestedField{ID: 1, Name: "query_name", Type: iceberg.PrimitiveTypes.String},
	iceberg.NestedField{ID: 2, Name: "query_id", Type: iceberg.PrimitiveTypes.String},
	iceberg.NestedField{ID: 3, Name: "batch_id", Type: iceberg.PrimitiveTypes.Int64},
	iceberg.NestedField{ID: 4, Name: "input_rows", Type: iceberg.PrimitiveTypes.Int64},
	iceberg.NestedField{ID: 5, Name: "output_rows", Type: iceberg.PrimitiveTypes.Int64},
	iceberg.NestedField{ID: 6, Name: "rows_filtered", Type: iceberg.PrimitiveTypes.Int64},
	iceberg.NestedField{ID: 7, Name: "rows_duplicate", Type: iceberg.PrimitiveTypes.Int64},
	iceberg.NestedField{ID: 8, Name: "rows_dropped_by_watermark", Type: iceberg.PrimitiveTypes.Int64},
	iceberg.NestedField{ID: 9, Name: "rows_dead_lettered", Type: iceberg.PrimitiveTypes.Int64},
)

func TestBatchesThatOnlyTheProgressTableRemembersAreCounted(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 40)
	f.append(f.create("bronze.r", bronzeSchema), reached(40), span0(0, 0, 40)...)
	// Batch 0's snapshot carries no marker (another engine rewrote it); batch 1's does.
	summary, marker := silverMarker(1, 40, counters{Read: 20, Emitted: 10, Filtered: 10})
	tbl := f.append(f.create("silver.e", silverSchema), nil, span0(0, 0, 10)...)
	tbl = f.append(tbl, summary, span0(0, 10, 20)...)
	f.property(tbl, "weir.query.silver", marker)

	if rep := f.auditSilver(); rep.Outcome != Exact || rep.Silver.Balance.Complete {
		t.Errorf("without progress: %s %v, balance %+v", rep.Outcome, rep.Reasons, rep.Silver.Balance)
	}
	ops := f.create("ops.stream_progress", progressSchema)
	ops = f.appendProgress(ops, "silver", 0, counters{Read: 20, Emitted: 10, Filtered: 10})
	rep := f.auditSilver()
	expect(t, rep, Exact, nil, nil)
	if b := rep.Silver.Balance; !b.Complete || b.Batches != 2 || b.Input != 40 {
		t.Errorf("balance %+v", b)
	}
	f.appendProgress(ops, "silver", 0, counters{Read: 20, Emitted: 10, Filtered: 10})
	if rep := f.auditSilver(); rep.Outcome != Mismatch || !strings.Contains(rep.Reasons[0], "more than once") {
		t.Errorf("doubled progress: %s %v", rep.Outcome, rep.Reasons)
	}
}

// interpreter is a Python with PyIceberg; the test is skipped without one.
func interpreter(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts Python: not under -short")
	}
	py := os.Getenv("WEIR_PYTHON")
	if py == "" {
		py = filepath.Join("..", "..", ".cache", "venv", "bin", "python")
	}
	if _, err := os.Stat(py); err != nil {
		t.Skipf("no Python with PyIceberg at %s: run scripts/venv.sh (or set WEIR_PYTHON)", py)
	}
	return py
}

func TestATableWrittenByPyIcebergWithLargeTypesAndDictionariesIsRead(t *testing.T) {
	py := interpreter(t)
	f := newFixture(t, 2)
	f.publish(0, 30)
	f.publish(1, 30)
	script := `
import sys, pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
cat = SqlCatalog("weir", uri="sqlite:///" + sys.argv[1], warehouse="file://" + sys.argv[2])
rows = [(p, o) for p in (0, 1) for o in range(30) if (p, o) != (1, 13)] + [(0, 5)]
data = pa.table({
    "topic": pa.array(["t"] * len(rows)).dictionary_encode().cast(pa.large_string()),
    "partition": pa.array([p for p, _ in rows], pa.int32()),
    "offset": pa.array([o for _, o in rows], pa.int64()),
    "value": pa.array([b"x"] * len(rows), pa.large_binary()),
})
tbl = cat.create_table("bronze.r", schema=data.schema)
tbl.append(data)
`
	cmd := exec.Command(py, "-c", script, filepath.Join(f.dir, "catalog.db"), filepath.Join(f.dir, "warehouse"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("PyIceberg: %v\n%s", err, out)
	}
	rep := f.auditBronze()
	expect(t, rep, Mismatch, []Range{{Partition: 1, From: 13, To: 14}}, []Range{{0, 5, 6, ReasonDoubled}})
	if rep.Rows != 60 {
		t.Errorf("rows %d", rep.Rows)
	}
}

func TestBatchesFromBeforeARebuildDoNotCount(t *testing.T) {
	f := silverFixture(t, counters{Read: 40, Emitted: 30, Filtered: 10}, span0(0, 0, 20)...)
	summary, marker := silverMarker(1, 40, counters{Read: 40, Emitted: 20, Filtered: 20})
	f.append(f.load("silver.e"), summary)
	f.property(f.load("silver.e"), "weir.query.silver", marker)
	if rep := f.auditSilver(); rep.Outcome != Mismatch {
		t.Fatalf("80 rows read of 40 are %s", rep.Outcome)
	}
	f.property(f.load("silver.e"), "weir.rebuilt", `{"id":"r","since":{"silver":1}}`)
	rep := f.auditSilver()
	expect(t, rep, Exact, nil, nil)
	if b := rep.Silver.Balance; b.Batches != 1 || b.Output != 20 {
		t.Fatalf("%+v", b)
	}
}
