package audit

import (
	"context"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

func expect(t *testing.T, rep *TableReport, outcome string, missing, extra []Range) {
	t.Helper()
	if rep.Outcome != outcome {
		t.Errorf("outcome %s (%s), want %s", rep.Outcome, strings.Join(rep.Reasons, "; "), outcome)
	}
	if rep.Exact != (outcome == Exact) {
		t.Errorf("exact = %v with outcome %s", rep.Exact, rep.Outcome)
	}
	if !sameRanges(rep.Missing, missing) {
		t.Errorf("missing %v, want %v", rep.Missing, missing)
	}
	if !sameRanges(rep.Extra, extra) {
		t.Errorf("extra %v, want %v", rep.Extra, extra)
	}
}

func sameRanges(a, b []Range) bool {
	return len(a) == 0 && len(b) == 0 || reflect.DeepEqual(a, b)
}

func TestATableThatHoldsEveryRecordOnceIsExact(t *testing.T) {
	f := newFixture(t, 2)
	f.publish(0, 50)
	f.publish(1, 30)
	tbl := f.create("bronze.r", bronzeSchema)
	tbl = f.append(tbl, reached(20, 0), span0(0, 0, 20)...)
	f.append(tbl, reached(50, 25), append(span0(0, 20, 50), span0(1, 0, 25)...)...)
	rep := f.auditBronze()
	expect(t, rep, Exact, nil, nil)
	if rep.Rows != 75 || rep.DistinctOffsets != 75 || rep.KafkaRecords != 75 || rep.Files != 2 || rep.EndSource != endSnapshot {
		t.Errorf("counts: %+v", rep)
	}
}

func TestARowThatIsNotThereIsReportedByItsOffset(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 40)
	tbl := f.create("bronze.r", bronzeSchema)
	f.append(tbl, reached(40), append(span0(0, 0, 17), span0(0, 18, 40)...)...)
	expect(t, f.auditBronze(), Mismatch, []Range{{Partition: 0, From: 17, To: 18}}, nil)
}

func TestARowThatIsThereTwiceIsReportedByItsOffset(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 40)
	tbl := f.create("bronze.r", bronzeSchema)
	tbl = f.append(tbl, reached(40), span0(0, 0, 40)...)
	f.append(tbl, reached(40), span0(0, 12, 13)...)
	rep := f.auditBronze()
	expect(t, rep, Mismatch, nil, []Range{{0, 12, 13, ReasonDoubled}})
	if rep.Rows != 41 || rep.DistinctOffsets != 40 || rep.DoubledRows != 1 {
		t.Errorf("counts: %+v", rep)
	}
}

func TestAFileThatIsLiveTwiceIsNamed(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 40)
	tbl := f.create("bronze.r", bronzeSchema)
	tbl = f.append(tbl, reached(10), span0(0, 0, 10)...)
	tbl = f.append(tbl, reached(40), span0(0, 10, 40)...)
	ctx := context.Background()
	tasks, err := tbl.Scan().PlanFiles(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var twice iceberg.DataFile
	for _, task := range tasks {
		if task.File.Count() == 10 {
			twice = task.File
		}
	}
	tx := tbl.NewTransaction()
	if err := tx.AddDataFiles(ctx, []iceberg.DataFile{twice}, reached(40), table.WithoutDuplicateCheck(), table.WithoutAutoNameMapping()); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	rep := f.auditBronze()
	expect(t, rep, Mismatch, nil, []Range{{0, 0, 10, ReasonDoubled}})
	if !reflect.DeepEqual(rep.FilesLiveTwice, []string{twice.FilePath()}) {
		t.Errorf("files live twice: %v, want %s", rep.FilesLiveTwice, twice.FilePath())
	}
	if rep.Rows != 50 {
		t.Errorf("rows %d: a file that is live twice is read twice", rep.Rows)
	}
}

func TestALiveFileThatIsGoneIsNamedAndItsRowsAreMissing(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 40)
	tbl := f.create("bronze.r", bronzeSchema)
	tbl = f.append(tbl, reached(10), span0(0, 0, 10)...)
	tasks, err := tbl.Scan().PlanFiles(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	gone := tasks[0].File.FilePath()
	f.append(tbl, reached(40), span0(0, 10, 40)...)
	p, err := localPath(gone)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(p); err != nil {
		t.Fatal(err)
	}
	rep := f.auditBronze()
	expect(t, rep, Mismatch, []Range{{Partition: 0, From: 0, To: 10}}, nil)
	if !reflect.DeepEqual(rep.FilesMissing, []string{gone}) {
		t.Errorf("files missing: %v, want %s", rep.FilesMissing, gone)
	}
}

func TestTransactionMarkersAndAbortedRecordsAreHoles(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 3)            // 0 1 2
	f.transaction(0, 4, false) // 3 4 5 6, marker 7
	f.transaction(0, 2, true)  // 8 9, marker 10
	tbl := f.create("bronze.r", bronzeSchema)
	// Offset 5 was aborted and must not be in the table.
	f.append(tbl, reached(11), append(span0(0, 0, 3), rowAt{partition: 0, offset: 5, id: ""}, rowAt{partition: 0, offset: 8, id: ""}, rowAt{partition: 0, offset: 9, id: ""})...)
	rep := f.auditBronze()
	expect(t, rep, Mismatch, nil, []Range{{0, 5, 6, ReasonNotInKafka}})
	if rep.KafkaRecords != 5 {
		t.Errorf("kafka_records %d, want 5", rep.KafkaRecords)
	}
}

func TestOffsetsBelowTheLogStartAreCheckedForDuplicatesOnly(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 40)
	f.trim(0, 20)
	tbl := f.create("bronze.r", bronzeSchema)
	tbl = f.append(tbl, reached(40), append(span0(0, 0, 10), span0(0, 12, 40)...)...)
	rep := f.auditBronze()
	expect(t, rep, Exact, nil, nil)
	if !sameRanges(rep.Unverifiable, []Range{{Partition: 0, From: 10, To: 12}}) || rep.RowsBelowLogStart != 18 || rep.KafkaRecords != 20 {
		t.Errorf("unverifiable %v, below %d, kafka %d", rep.Unverifiable, rep.RowsBelowLogStart, rep.KafkaRecords)
	}
	f.append(tbl, reached(40), span0(0, 3, 4)...)
	expect(t, f.auditBronze(), Mismatch, nil, []Range{{0, 3, 4, ReasonDoubled}})
}

func TestRowsAtOrAfterTheEndAreExtra(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 40)
	tbl := f.create("bronze.r", bronzeSchema)
	f.append(tbl, reached(30), span0(0, 0, 31)...)
	expect(t, f.auditBronze(), Mismatch, nil, []Range{{0, 30, 31, ReasonBeyondEnd}})
}

func TestATableThatWasRolledBackIsJudgedByWhatItsPropertySays(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 40)
	tbl := f.create("bronze.r", bronzeSchema)
	f.append(tbl, reached(25), span0(0, 0, 25)...)
	tbl, err := f.cat.LoadTable(context.Background(), table.Identifier{"bronze", "r"})
	if err != nil {
		t.Fatal(err)
	}
	f.property(tbl, "weir.query.bronze", `{"kind":"stream","query_name":"bronze","position":{"kafka":{"topics":{"t":{"partitions":{"0":{"next_offset":40}}}}}}}`)
	expect(t, f.auditBronze(), Mismatch, []Range{{Partition: 0, From: 25, To: 40}}, nil)
}

func TestASnapshotWithoutMarkerIsJudgedByItsAncestors(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 40)
	tbl := f.create("bronze.r", bronzeSchema)
	tbl = f.append(tbl, reached(30), span0(0, 0, 20)...)
	f.append(tbl, nil, span0(0, 20, 30)...)
	rep := f.auditBronze()
	expect(t, rep, Exact, nil, nil)
	if rep.End[0] != 30 {
		t.Errorf("end %v", rep.End)
	}
}

func TestATableWithoutMarkersIsJudgedByTheLogsEnd(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 40)
	tbl := f.create("bronze.r", bronzeSchema)
	f.append(tbl, nil, span0(0, 0, 38)...)
	rep := f.auditBronze()
	expect(t, rep, Mismatch, []Range{{Partition: 0, From: 38, To: 40}}, nil)
	if rep.EndSource != endLog {
		t.Errorf("end source %s", rep.EndSource)
	}
}

func TestATableOfAnotherClusterIsInconclusive(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 5)
	tbl := f.create("bronze.r", bronzeSchema)
	f.append(tbl, iceberg.Properties{"weir.offsets": `{"cluster_id":"elsewhere","topics":{"t":{"partitions":{"0":{"next_offset":5}}}}}`}, span0(0, 0, 5)...)
	if rep := f.auditBronze(); rep.Outcome != Inconclusive || !strings.Contains(rep.Reasons[0], "elsewhere") {
		t.Errorf("%s: %v", rep.Outcome, rep.Reasons)
	}
}

func TestATableThatDoesNotExistIsMissingEverything(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 5)
	expect(t, f.auditBronze(), Mismatch, []Range{{Partition: 0, From: 0, To: 5}}, nil)
}

func TestRowsDeletedByADeleteFileMakeTheAuditInconclusive(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 5)
	tbl := f.create("bronze.r", bronzeSchema)
	tbl = f.append(tbl, reached(5), span0(0, 0, 5)...)
	tbl = f.property(tbl, table.WriteDeleteModeKey, table.WriteModeMergeOnRead)
	if _, err := tbl.Delete(context.Background(), iceberg.EqualTo(iceberg.Reference("offset"), int64(3)), reached(5)); err != nil {
		t.Fatal(err)
	}
	if rep := f.auditBronze(); rep.Outcome != Inconclusive || !strings.Contains(rep.Reasons[0], "row-level deletes") {
		t.Errorf("%s: %v", rep.Outcome, rep.Reasons)
	}
}
