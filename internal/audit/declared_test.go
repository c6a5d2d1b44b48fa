package audit

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// without are the rows of a partition that are not among gone.
func without(to int64, gone ...int64) (out []rowAt) {
	for o := int64(0); o < to; o++ {
		keep := true
		for _, g := range gone {
			keep = keep && g != o
		}
		if keep {
			out = append(out, span0(0, o, o+1)...)
		}
	}
	return out
}

const erased345 = `[{"topic":"` + topic + `","partition":0,"from":3,"to":12,"rows":3,"offsets":"0+2,6","erasure":"e-1"}]`

func TestErasedRowsAreDeclaredAndUndeclaredOnesAreMissing(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 40)
	tbl := f.append(f.create("bronze.r", bronzeSchema), reached(40), without(40, 3, 4, 11)...)
	expect(t, f.auditBronze(), Mismatch, []Range{{Partition: 0, From: 3, To: 5}, {Partition: 0, From: 11, To: 12}}, nil)
	f.property(tbl, propertyDeletes, erased345)
	rep := f.auditBronze()
	expect(t, rep, Exact, nil, nil)
	if rep.ErasedRows != 3 || !reflect.DeepEqual(rep.Erased, []Range{{Partition: 0, From: 3, To: 5}, {Partition: 0, From: 11, To: 12}}) {
		t.Fatalf("%d %v", rep.ErasedRows, rep.Erased)
	}
	b, err := json.Marshal(rep)
	if err != nil || !strings.Contains(string(b), `"erased_rows":3`) {
		t.Fatalf("%s %v", b, err)
	}
	var text bytes.Buffer
	(&Report{Tables: []*TableReport{rep}}).WriteText(&text)
	if !strings.Contains(text.String(), "erased: partition 0, offsets 3 to 4") {
		t.Fatalf("text form:\n%s", text.String())
	}
}

func TestADeletionThatIsNotDeclaredIsFoundBesideOneThatIs(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 40)
	tbl := f.append(f.create("bronze.r", bronzeSchema), reached(40), without(40, 3, 4, 11, 12)...)
	f.property(tbl, propertyDeletes, erased345)
	expect(t, f.auditBronze(), Mismatch, []Range{{Partition: 0, From: 12, To: 13}}, nil)
}

func TestErasedRowsThatAreThereAgainAreFound(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 40)
	tbl := f.append(f.create("bronze.r", bronzeSchema), reached(40), without(40, 3, 4)...)
	f.property(tbl, propertyDeletes, erased345)
	rep := f.auditBronze()
	expect(t, rep, Mismatch, nil, []Range{{Partition: 0, From: 11, To: 12, Reason: ReasonErased}})
	if !strings.Contains(strings.Join(rep.Reasons, "\n"), "1 rows that were erased are there again") {
		t.Fatal(rep.Reasons)
	}
}

func TestADeletionWithoutItsOffsetsExplainsNothing(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 40)
	tbl := f.append(f.create("bronze.r", bronzeSchema), reached(40), without(40, 3)...)
	f.property(tbl, propertyDeletes, `[{"topic":"`+topic+`","partition":0,"from":0,"to":40,"rows":1}]`)
	expect(t, f.auditBronze(), Mismatch, []Range{{Partition: 0, From: 3, To: 4}}, nil)
}

func TestErasedRowsOfSilverAddUpAndAnErasureThatWasNotFinishedIsNamed(t *testing.T) {
	counts := counters{Read: 40, Emitted: 20, Filtered: 15, Duplicate: 3, Late: 1, DeadLettered: 1}
	f := silverFixture(t, counts, without(20, 3, 4, 11)...)
	if rep := f.auditSilver(); rep.Outcome != Mismatch {
		t.Fatalf("17 rows of 20 are %s", rep.Outcome)
	}
	f.property(f.load("silver.e"), propertyDeletes, erased345)
	rep := f.auditSilver()
	expect(t, rep, Exact, nil, nil)
	if rep.ErasedRows != 3 || !rep.Silver.Balance.Balanced {
		t.Fatalf("%+v %+v", rep, rep.Silver.Balance)
	}
	f = silverFixture(t, counts, without(20)...)
	f.property(f.load("bronze.r"), propertyDeletes, erased345)
	rep = f.auditSilver()
	if rep.Outcome != Mismatch || !strings.Contains(strings.Join(rep.Reasons, "\n"), "3 rows were erased from bronze.r and are still here") {
		t.Fatalf("%s %v", rep.Outcome, rep.Reasons)
	}
}
