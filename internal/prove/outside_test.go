package prove

import "testing"

func TestRowsOfAStoreAreComparedWithTheTopicRecordByRecord(t *testing.T) {
	want := map[place]landed{}
	var all []landed
	for i := range int64(4) {
		r := landed{Partition: 1, Offset: i, ID: "e", Title: "é"}
		want[place{1, i}] = r
		all = append(all, r)
	}
	if got := compare(want, all); got != (comparison{rows: 4, offsets: 4, keys: 1}) {
		t.Errorf("all of them: %+v", got)
	}
	other := all[2]
	other.Title = "another"
	rows := []landed{all[0], all[0], other, {Partition: 2, ID: "nobody's"}}
	if got := compare(want, rows); got != (comparison{rows: 4, offsets: 3, keys: 1, missing: 3, unexpected: 2}) {
		t.Errorf("one twice, one changed, one too many: %+v", got)
	}
}

func TestAReceiverThatKeysOnIDsKeepsTheFirstDeliveryAndOtherRowsAreFoundOut(t *testing.T) {
	e := &Env{observed: map[string]any{}}
	a, b := landed{Offset: 1, batch: "x"}, landed{Offset: 2, batch: "x"}
	again := func(r landed, take int) landed { r.take = take; return r }
	rows := e.firstTakes([]landed{a, b, again(a, 1), again(b, 1), {Offset: 3, batch: "y"}})
	if len(rows) != 3 || e.observed["deliveries_again"] != int64(1) || e.observed["ids_with_other_rows"] != int64(0) {
		t.Errorf("%d rows, %v", len(rows), e.observed)
	}
	for name, second := range map[string][]landed{
		"fewer rows": {again(a, 1)}, "another order": {again(b, 1), again(a, 1)}, "more rows": {again(a, 1), again(b, 1), again(b, 1)},
	} {
		if e.firstTakes(append([]landed{a, b}, second...)); e.observed["ids_with_other_rows"] != int64(1) {
			t.Errorf("%s under the same id: %v", name, e.observed)
		}
	}
}

func TestEveryStoreOutsideIsKilledAtTheStepsThatAreItsOwn(t *testing.T) {
	names := map[string]bool{}
	for _, s := range outside() {
		names[s.Name] = true
	}
	for _, want := range []string{
		"outside-postgres-commit.prepared", "outside-kafka-commit.prepared", "outside-cassandra-commit.prepared", "outside-http-deliver.chunk",
		"outside-file-publish.file", "outside-exec-commit.swapped", "outside-exec-reset", "outside-http-faults",
	} {
		if !names[want] {
			t.Errorf("there is no scenario %s", want)
		}
	}
	if names["outside-http-commit.prepared"] || names["outside-exec-ingest.acked"] {
		t.Error("a store is killed at a step that it does not have")
	}
}
