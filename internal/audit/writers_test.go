package audit

import (
	"slices"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
)

func TestTheMarksOfOtherEnginesAreReadFromTheHistory(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 8)
	tbl := f.create("bronze.r", bronzeSchema)
	at := func(offsets ...int64) (out []rowAt) {
		for _, o := range offsets {
			out = append(out, rowAt{partition: 0, offset: o})
		}
		return out
	}
	spark := func(query, epoch string) iceberg.Properties {
		return iceberg.Properties{sparkQueryID: query, sparkEpochID: epoch}
	}
	tbl = f.append(tbl, spark("q1", "0"), at(0)...)
	tbl = f.append(tbl, spark("q1", "1"), at(1)...)
	tbl = f.append(tbl, spark("q1", "1"), at(2)...) // the same epoch once more
	tbl = f.append(tbl, iceberg.Properties{flinkJobID: "job", flinkOperatorID: "op", flinkCheckpoint: "7"}, at(3)...)
	tbl = f.append(tbl, iceberg.Properties{connectOffsets + "control.group": `{"0":12}`, connectCommitID: "c-1"}, at(4)...)
	tbl = f.append(tbl, iceberg.Properties{weirQueryID: "w", weirBatchID: "3"}, at(5)...)
	tbl = f.append(tbl, spark("q2", "0"), at(6)...) // its checkpoint was reset
	_ = f.append(tbl, iceberg.Properties{}, at(7)...)

	rep := f.auditBronze()
	if !rep.Exact {
		t.Fatalf("%s: %v", rep.Outcome, rep.Reasons)
	}
	var got []string
	for _, w := range rep.Writers {
		got = append(got, w.Engine+" "+w.ID+" "+w.First+".."+w.Last)
	}
	want := []string{"spark q1 0..1", "flink job/op 7..7", "kafka-connect control.group c-1..c-1", "weir w 3..3", "spark q2 0..0"}
	slices.Sort(got) // commits of one millisecond have no order
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("writers %q, want %q", got, want)
	}
	notes := strings.Join(rep.Notes, "\n")
	for _, text := range []string{"spark q1 committed rows more than once under 1", "2 lineages of spark wrote to this table"} {
		if !strings.Contains(notes, text) {
			t.Errorf("%q is not noted:\n%s", text, notes)
		}
	}
	var out strings.Builder
	(&Report{Tables: []*TableReport{rep}}).WriteText(&out)
	if !strings.Contains(out.String(), "written by flink job/op: 1 commits, 7 to 7") {
		t.Errorf("the text does not name the writers:\n%s", out.String())
	}
}
