package operator

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/marker"
)

// accounts is a query over Debezium's envelopes.
func accounts() Config {
	return Config{
		Columns: []Column{
			{Name: "id", Path: "$.id", Type: "long", Required: true},
			{Name: "name", Path: "$.name", Type: "string"},
			{Name: "lsn", Path: "$.__source.lsn", Type: "long", Required: true},
			{Name: "op", Path: "$.__op", Type: "string"},
			{Name: "at", Path: "$.__ts_ms", Type: "timestamptz", TimeFormat: "epochMillis"},
		},
		DeadLetter: true,
		Changes:    &Changes{Format: FormatDebezium, Keys: []string{"id"}, OrderBy: []string{"lsn"}, RememberDeletes: time.Hour},
	}
}

func envelope(op string, lsn int64, before, after string) record {
	return record{value: fmt.Appendf(nil, `{"before":%s,"after":%s,"source":{"lsn":%d,"table":"accounts"},"op":"%s","ts_ms":1700000000123}`, before, after, lsn, op)}
}

func TestEnvelopesOfDebeziumBecomeChangesOfRows(t *testing.T) {
	r := newRun(t, accounts())
	wrapped := envelope("u", 4, `null`, `{"id": 2, "name": "b\"2"}`)
	wrapped.value = append(append([]byte(`{"schema":{"type":"struct"},"payload":`), wrapped.value...), '}')
	byKey := envelope("d", 5, `null`, `null`)
	byKey.key = []byte(`{"schema":{},"payload":{"id":3}}`)
	plainKey := envelope("d", 6, `null`, `null`)
	plainKey.key = []byte(`{"id":4}`)
	res := r.batchOf([]record{
		envelope("c", 1, `null`, `{"id":1,"name":"a"}`),
		envelope("r", 2, `null`, `{ }`), // lacks the key
		envelope("d", 3, `{"id":1,"name":"a"}`, `null`),
		{key: []byte(`{"id":1}`)}, // tombstone
		wrapped, byKey, plainKey,
		envelope("t", 7, `null`, `null`),
		envelope("d", 8, `null`, `null`), // no key at all
		{value: []byte(`{"id":1,"name":"no envelope"}`)},
		{value: []byte(`{"op":"c","after":{"id":1}`)},
	})
	equalCounts(t, res.Counters, marker.Counters{Read: 11, Emitted: 5, Filtered: 1, DeadLettered: 5})
	want := []string{"1 a 1 c false", "1 a 3 d true", `2 b"2 4 u false`, "3 <nil> 5 d true", "4 <nil> 6 d true"}
	for i, row := range r.main {
		if got := fmt.Sprintf("%v %v %v %v %v", row["id"], row["name"], row["lsn"], row["op"], row[DeletedColumn]); got != want[i] {
			t.Errorf("row %d: %s, want %s", i, got, want[i])
		}
		if row["at"] != "2023-11-14T22:13:20.123000Z" || len(row) != 6 {
			t.Errorf("row %d: %v", i, row)
		}
	}
	// Dead letters keep the record as it came.
	reasons := []string{"missing_required", "missing_required", "missing_required", "missing_required", "invalid_json"}
	for i, d := range r.dead {
		if d["reason"] != reasons[i] {
			t.Errorf("dead letter %d: %v", i, d)
		}
	}
	if got := r.dead[3]["value"]; got != fmt.Sprintf("0x%x", `{"id":1,"name":"no envelope"}`) {
		t.Errorf("the value was changed: %v", got)
	}
	if got := r.dead[0]["value"]; got != fmt.Sprintf("0x%x", envelope("r", 2, `null`, `{ }`).value) {
		t.Errorf("the value was changed: %v", got)
	}
}

func TestRowsThatSayThemselvesThatTheyAreDeleted(t *testing.T) {
	cfg := accounts()
	cfg.Columns = cfg.Columns[:2]
	cfg.Changes = &Changes{Keys: []string{"id"}, DeleteWhen: "name = 'gone'"}
	r := newRun(t, cfg)
	r.batchOf(values(`{"id":1,"name":"here"}`, `{"id":2,"name":"gone"}`, `{"id":3}`))
	for i, want := range []bool{false, true, false} {
		if r.main[i][DeletedColumn] != want {
			t.Errorf("%v", r.main[i])
		}
	}
}

// emittedLSNs are the lsn of the rows that a batch emitted.
func emittedLSNs(r *run, batch ...record) (out []int64, res Result) {
	res = r.batchOf(batch)
	for _, row := range r.main {
		out = append(out, row["lsn"].(int64))
	}
	return out, res
}

func changeOf(op string, id, lsn int64) record {
	row := fmt.Sprintf(`{"id":%d,"name":"n"}`, id)
	if op == "d" {
		return envelope(op, lsn, row, "null")
	}
	return envelope(op, lsn, "null", row)
}

func TestALateChangeOfADeletedKeyIsDroppedAsLongAsTheDeleteIsRemembered(t *testing.T) {
	r := newRun(t, accounts())
	got, res := emittedLSNs(r, changeOf("c", 1, 10), changeOf("d", 1, 20), changeOf("u", 1, 15), changeOf("u", 2, 5))
	sameLSNs(t, "first batch", got, []int64{10, 20, 5})
	equalCounts(t, res.Counters, marker.Counters{Read: 4, Emitted: 3, Late: 1})
	got, _ = emittedLSNs(r, changeOf("u", 1, 19), changeOf("d", 1, 19), changeOf("d", 1, 20))
	sameLSNs(t, "late ones", got, []int64{20})
	// A newer row takes the key back; what comes before the old delete is then the
	// table's business, which has a row to compare with.
	got, _ = emittedLSNs(r, changeOf("c", 1, 30), changeOf("u", 1, 19))
	sameLSNs(t, "taken back", got, []int64{30, 19})
}

func TestRememberedDeletesOutliveRestartsAndRollbacks(t *testing.T) {
	memory := func(r *run) Stateful { return r.tr.State()[0] }
	r := newRun(t, accounts())
	emittedLSNs(r, changeOf("d", 1, 20), changeOf("d", 2, 20))
	snapshot, err := memory(r).Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	emittedLSNs(r, changeOf("c", 1, 21), changeOf("d", 3, 20))
	delta, err := memory(r).Delta()
	if err != nil {
		t.Fatal(err)
	}
	again := newRun(t, accounts())
	if err := memory(again).LoadSnapshot(snapshot); err != nil {
		t.Fatal(err)
	}
	if err := memory(again).ApplyDelta(delta); err != nil {
		t.Fatal(err)
	}
	got, _ := emittedLSNs(again, changeOf("u", 1, 19), changeOf("u", 2, 19), changeOf("u", 3, 19))
	sameLSNs(t, "after a restart", got, []int64{19})
	for cut := range snapshot {
		if err := memory(newRun(t, accounts())).LoadSnapshot(snapshot[:cut]); err == nil {
			t.Fatalf("a snapshot cut to %d bytes was taken", cut)
		}
	}
	emittedLSNs(again, changeOf("d", 9, 50))
	again.tr.Rollback()
	got, _ = emittedLSNs(again, changeOf("u", 9, 40))
	sameLSNs(t, "after a rollback", got, []int64{40})
}

func TestDeletesAreForgottenAfterTheirHorizon(t *testing.T) {
	cfg := accounts()
	d := newDeletes(newChainOf(t, cfg), *cfg.Changes)
	at := int64(1_700_000_000_000_000)
	d.now = at
	d.note([]byte("k"), []any{int64(5)}, true)
	for _, c := range []struct {
		after time.Duration
		late  bool
	}{{0, true}, {time.Hour, true}, {time.Hour + time.Second, false}} {
		if err := d.Begin(Env{BatchTimeMicros: at + c.after.Microseconds(), Watermark: marker.Watermark{Micros: marker.MinTime}}); err != nil {
			t.Fatal(err)
		}
		if got := d.note([]byte("k"), []any{int64(4)}, false); got != c.late {
			t.Errorf("after %s: late %v", c.after, got)
		}
	}
}

func newChainOf(t *testing.T, cfg Config) *chain {
	t.Helper()
	tr, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tr.(*deletes).chain
}

func sameLSNs(t *testing.T, what string, got, want []int64) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}
