package operator

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

// sampleFile is a file of real events beside the checkout.
var sampleFile = filepath.Join("..", "..", "..", "shared", "samples", "recentchange.jsonl")

func sampleRecords(t testing.TB) []record {
	f, err := os.Open(sampleFile)
	if err != nil {
		t.Skipf("the sample of real events is not at %s: %v", sampleFile, err)
	}
	defer f.Close()
	var out []record
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		out = append(out, record{value: bytes.Clone(sc.Bytes())})
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestRealEventsEndWhereTheyBelong(t *testing.T) {
	recs := sampleRecords(t)
	cfg := edits()
	// The sample is of 2017 to 2026 in file order: one batch, so nothing is late.
	cfg.Watermark.MaxFutureSkew = 365 * 24 * time.Hour
	r := newRun(t, cfg)
	res := r.batchOf(recs)
	equalCounts(t, res.Counters, marker.Counters{Read: 729, Emitted: 445, Filtered: 284})
	byType := map[string]int{}
	for _, row := range r.main {
		byType[row["type"].(string)]++
		if row["type"] == "new" && (row["length_old"] != nil || row["revision_old"] != nil || row["length_new"] == nil) {
			t.Errorf("a new page has no old length: %v", row)
		}
	}
	if byType["edit"] != 428 || byType["new"] != 17 {
		t.Errorf("types %v", byType)
	}
	if first := r.main[0]; first["event_id"] != "82a209ee-669f-11e7-9531-141877613a1c" || first["event_time"] != "2017-07-12T01:14:53.000000Z" ||
		first["length_old"] != int64(6023) || first["revision_new"] != int64(790171601) || first["processed_at"] != at(now) || first["kafka_offset"] != int64(0) {
		t.Errorf("first row: %v", first)
	}
	if keys := r.tr.State()[0].Keys(); keys != 445 {
		t.Errorf("%d keys remembered", keys)
	}
	// The same again is 445 duplicates or late rows, and nothing more.
	res = r.batchOf(recs)
	if c := res.Counters; c.Emitted != 0 || c.Filtered != 284 || c.Duplicate+c.Late != 445 {
		t.Errorf("second time: %+v", c)
	}
}

func TestEveryHostileValueEndsInItsCountedPlace(t *testing.T) {
	whole := `{"meta":{"id":"0b1c2d3e-4f50-4617-8293-a4b5c6d7e8%02d","dt":"%s"},"type":"edit","wiki":"w","minor":false%s}`
	dt := at(now - minutes(1))
	n := 0
	event := func(dt, more string) []byte { n++; return fmt.Appendf(nil, whole, n, dt, more) }
	deep := strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)
	cases := []struct {
		name   string
		value  []byte
		reason string // "" emitted, "filtered", "late"
	}{
		{"good", event(dt, ""), ""},
		{"null value", nil, "null_value"},
		{"empty value", []byte{}, "empty_value"},
		{"no JSON", []byte("hello"), "invalid_json"},
		{"NUL", []byte("\x00"), "invalid_json"},
		{"invalid UTF-8", event(dt, ",\"title\":\"\xff\""), "invalid_utf8"},
		{"lone surrogate", event(dt, `,"title":"\ud800"`), "lone_surrogate"},
		{"escaped NUL is text", event(dt, `,"title":"a\u0000b"`), ""},
		{"duplicate key", event(dt, `,"type":"edit"`), "duplicate_key"},
		{"duplicate key in an undeclared field", event(dt, `,"x":{"a":1,"a":1}`), "duplicate_key"},
		{"10,000 deep", event(dt, `,"x":`+deep), "too_deep"},
		{"2^53+1", event(dt, `,"length":{"old":9007199254740993}`), ""},
		{"2^63-1", event(dt, `,"length":{"new":9223372036854775807}`), ""},
		{"20 digits", event(dt, `,"length":{"new":12345678901234567890}`), "number_out_of_range"},
		{"20 digits in an undeclared field", event(dt, `,"x":12345678901234567890`), ""},
		{"int beyond 32 bits", event(dt, `,"namespace":2147483648`), "number_out_of_range"},
		{"fraction for an int", event(dt, `,"namespace":1.5`), "type_mismatch"},
		{"string for a boolean", event(dt, `,"bot":"yes"`), "type_mismatch"},
		{"object for a string", event(dt, `,"title":{}`), "type_mismatch"},
		{"null in an optional column", event(dt, `,"title":null`), ""},
		{"missing required", []byte(`{"meta":{"id":"a","dt":"` + dt + `"},"type":"edit","wiki":"w"}`), "missing_required"},
		{"null in a required column", []byte(`{"meta":{"id":null,"dt":"` + dt + `"},"type":"edit","wiki":"w","minor":true}`), "missing_required"},
		{"missing filter column", []byte(`{"meta":{"id":"a","dt":"` + dt + `"}}`), "missing_required"},
		{"wrong type of the filter column", []byte(`{"type":5}`), "type_mismatch"},
		{"filtered before its faults are looked at", []byte(`{"type":"log","namespace":"x"}`), "filtered"},
		{"not a time", event("yesterday", ""), "bad_timestamp"},
		{"time as a number", []byte(`{"meta":{"id":"a","dt":5},"type":"edit","wiki":"w","minor":true}`), "type_mismatch"},
		{"1969", event("1969-07-20T20:17:40Z", ""), "late"},
		{"9999", event("9999-12-31T23:59:59Z", ""), "future_event"},
		{"next week", event(at(now+minutes(7*24*60)), ""), "future_event"},
		{"within the skew", event(at(now+minutes(5)), ""), ""},
		{"beyond the skew", event(at(now+minutes(5)+1), ""), "future_event"},
		{"leap second", event("2016-12-31T23:59:60Z", ""), "late"},
		{"no leap second", event("2026-05-04T11:59:60Z", ""), "bad_timestamp"},
		{"offset with zone", event("2026-05-04T17:29:00+05:30", ""), ""},
		{"1 MiB", event(dt, `,"comment":"`+strings.Repeat("x", 1<<20)+`"`), ""},
		{"20 MiB", event(dt, `,"comment":"`+strings.Repeat("é", 10<<20)+`"`), ""},
	}
	r := newRun(t, edits())
	r.mark.Micros = now - minutes(15)
	var recs []record
	want := map[string]int{}
	for _, c := range cases {
		recs = append(recs, record{value: c.value})
		want[c.reason]++
	}
	res := r.batchOf(recs)
	dead := len(cases) - want[""] - want["filtered"] - want["late"]
	equalCounts(t, res.Counters, marker.Counters{Read: int64(len(cases)), Emitted: int64(want[""]), Filtered: int64(want["filtered"]),
		Late: int64(want["late"]), DeadLettered: int64(dead)})
	d, m := 0, 0
	for i, c := range cases {
		switch c.reason {
		case "filtered", "late":
		case "":
			if m >= len(r.main) || r.main[m]["kafka_offset"] != int64(i) {
				t.Fatalf("%s: not emitted in its place", c.name)
			}
			m++
		default:
			if d >= len(r.dead) || r.dead[d]["kafka_offset"] != int64(i) || r.dead[d]["reason"] != c.reason {
				t.Fatalf("%s: dead letter %d is %v", c.name, d, r.dead[min(d, len(r.dead)-1)])
			}
			if raw := r.dead[d]["value"]; (raw == nil) != (c.value == nil) || raw != nil && raw != fmt.Sprintf("0x%x", c.value) {
				t.Errorf("%s: the raw value was changed", c.name)
			}
			if r.dead[d]["detail"] == "" || len(r.dead[d]["detail"].(string)) > 300 {
				t.Errorf("%s: detail %q", c.name, r.dead[d]["detail"])
			}
			d++
		}
	}
	if got := r.mark.MaxEventMicros[""]; got != now+minutes(5) {
		t.Errorf("greatest event time %s: a future event moved it", at(got))
	}
	if len(r.main[len(r.main)-1]["comment"].(string)) != 20<<20 {
		t.Error("the long comment was cut")
	}
}

func TestDeadLettersCarryTheEventIDWhereItIsKnown(t *testing.T) {
	r := newRun(t, edits())
	r.batchOf([]record{
		{key: []byte("k"), value: []byte(`{"meta":{"id":"e\u00e9-1","dt":"x"},"type":"edit","wiki":"w","minor":true}`), topic: "wiki", partition: 3, timestamp: 42},
		{value: []byte(`{"meta":{"id":"lost"`)},
		{value: []byte(`{"meta":{"id":7},"type":"edit"}`)},
	})
	equalStrings(t, "event ids", column1(r.dead, "event_id"), "eé-1", "<nil>", "<nil>")
	equalStrings(t, "keys", column1(r.dead, "key"), "0x6b", "<nil>", "<nil>")
	if d := r.dead[0]; d["kafka_topic"] != "wiki" || d["kafka_partition"] != int64(3) || d["kafka_timestamp"] != at(42) || d["processed_at"] != at(now) ||
		d["detail"] != `column event_time ($.meta.dt): string "x" where a timestamptz was expected` {
		t.Errorf("dead letter %v", d)
	}
}

func TestWithoutADeadLetterOutputRowsAreStillCounted(t *testing.T) {
	cfg := small()
	cfg.DeadLetter = false
	r := newRun(t, cfg)
	if len(r.tr.Outputs()) != 1 {
		t.Error("there is a dead-letter output")
	}
	res := r.batchOf(values("x", ev("a", -1)))
	equalCounts(t, res.Counters, marker.Counters{Read: 2, Emitted: 1, DeadLettered: 1})
}

func TestEveryTypeArrivesAsDeclared(t *testing.T) {
	r := newRun(t, Config{Columns: []Column{
		{Name: "s", Path: "$.s", Type: "string"},
		{Name: "i", Path: "$.i", Type: "int"},
		{Name: "l", Path: "$.l", Type: "long"},
		{Name: "d", Path: "$.d", Type: "double"},
		{Name: "b", Path: "$.b", Type: "boolean"},
		{Name: "t", Path: "$.t", Type: "timestamptz"},
		{Name: "es", Path: "$.es", Type: "timestamptz", TimeFormat: "epochSeconds"},
		{Name: "em", Path: "$.em", Type: "timestamptz", TimeFormat: "epochMillis"},
		{Name: "x", Path: "$.x", Type: "binary"},
		{Name: "j", Path: "$.j", Type: "json"},
		{Name: "topic", Source: "topic", Type: "string"},
		{Name: "topic_id", Source: "topicId", Type: "string"},
		{Name: "part", Source: "kafka_partition", Type: "long"},
		{Name: "key", Source: "key", Type: "string"},
		{Name: "raw", Source: "value", Type: "binary"},
		{Name: "ts", Source: "timestamp", Type: "timestamptz"},
		{Name: "tt", Source: "timestampType", Type: "int"},
		{Name: "ing", Source: "ingested_at", Type: "timestamptz"},
	}, DeadLetter: true})
	doc := `{"s":"a\n\"😀\ud83d\ude00","i":-7,"l":9007199254740993,"d":1e-3,"b":true,"t":"2026-05-04T12:00:00.5Z","es":1777889472,"em":-1,"x":"AAE\/","j":{"k": [1, "\u00e9"]}}`
	res := r.batchOf([]record{
		{key: []byte("ключ"), value: []byte(doc), timestamp: 5},
		{value: []byte(`{}`)},
		{value: []byte(`{"j":null,"s":""}`)},
		{key: []byte("\xff"), value: []byte(`{}`)},
		{value: []byte(`{"x":"AAE"}`)},
	})
	equalCounts(t, res.Counters, marker.Counters{Read: 5, Emitted: 3, DeadLettered: 2})
	want := map[string]any{"s": "a\n\"😀😀", "i": int64(-7), "l": int64(9007199254740993), "d": 0.001, "b": true, "t": "2026-05-04T12:00:00.500000Z",
		"es": "2026-05-04T10:11:12.000000Z", "em": "1969-12-31T23:59:59.999000Z", "x": "0x00013f", "j": `{"k": [1, "\u00e9"]}`, "topic": "t",
		"topic_id": nil, "part": int64(0), "key": "ключ", "raw": fmt.Sprintf("0x%x", doc), "ts": at(5), "tt": int64(0), "ing": at(now)}
	for _, k := range sortedKeys(want) {
		if r.main[0][k] != want[k] {
			t.Errorf("%s: %v, want %v", k, r.main[0][k], want[k])
		}
	}
	for _, k := range []string{"s", "i", "l", "d", "b", "t", "es", "em", "x", "j", "key"} {
		if r.main[1][k] != nil {
			t.Errorf("%s of an empty event: %v", k, r.main[1][k])
		}
	}
	if r.main[2]["s"] != "" || r.main[2]["j"] != nil {
		t.Errorf("empty string and JSON null: %v", r.main[2])
	}
	if got := r.reasons(); got["invalid_utf8"] != 1 || got["type_mismatch"] != 1 {
		t.Errorf("reasons %v", got)
	}
	if res.Watermark.Micros != marker.MinTime || len(r.tr.State()) != 0 {
		t.Error("a chain without watermark has one")
	}
	if len(res.EventMicros) != 3 || res.EventMicros[0] != 5 {
		t.Errorf("freshness goes by the Kafka timestamp here: %v", res.EventMicros)
	}
}

func TestNewNamesEveryFaultAtOnce(t *testing.T) {
	_, err := New(Config{
		Columns: []Column{
			{Name: "a", Path: "$..x", Type: "string"},
			{Name: "a", Path: "$.y", Source: "key", Type: "text"},
			{Name: "", Type: "int"},
			{Name: "o", Source: "offset", Type: "string"},
			{Name: "z", Source: "nowhere", Type: "string"},
			{Name: "f", Path: "$.f", Type: "long", TimeFormat: "epochSeconds"},
			{Name: "g", Path: "$.g", Type: "timestamptz", TimeFormat: "julian"},
		},
		Filter:      "a = 1 AND",
		Watermark:   &Watermark{Column: "g", Delay: -1},
		Dedup:       []string{"a", "a", "missing"},
		Parallelism: 1000,
	})
	if !failure.Is(err, failure.Config) {
		t.Fatalf("%v", err)
	}
	for _, part := range []string{"$..x", "exclude each other", `type "text"`, "name is taken by column 1", "the name is missing", "one of path and source",
		"offset has type long", "nowhere", "timeFormat is for", "julian", "must be required", "cannot be negative", "named twice", `no column "missing"`,
		"filter, character 3", "parallelism"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not named in:\n%v", part, err)
		}
	}
	for name, cfg := range map[string]Config{
		"no columns":              {},
		"dedup without watermark": {Columns: small().Columns, Dedup: []string{"id"}},
		"watermark on a string":   {Columns: small().Columns, Watermark: &Watermark{Column: "id"}},
		"watermark on nothing":    {Columns: small().Columns, Watermark: &Watermark{Column: "nope"}},
	} {
		if _, err := New(cfg); !failure.Is(err, failure.Config) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFingerprintFollowsWhatDecidesTheRows(t *testing.T) {
	of := func(change func(*Config)) string {
		cfg := edits()
		change(&cfg)
		tr, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return tr.Fingerprint()
	}
	base := of(func(*Config) {})
	if of(func(c *Config) { c.Parallelism, c.Seed, c.Allocator = 1, 99, memory.NewGoAllocator() }) != base {
		t.Error("a setting that changes no row changes the fingerprint")
	}
	for name, change := range map[string]func(*Config){
		"filter":    func(c *Config) { c.Filter = "type = 'edit'" },
		"column":    func(c *Config) { c.Columns[4].Path = "$.title_url" },
		"watermark": func(c *Config) { c.Watermark = &Watermark{Column: "event_time", Delay: time.Minute} },
		"dedup":     func(c *Config) { c.Dedup = []string{"event_id", "wiki"} },
		"output":    func(c *Config) { c.DeadLetter = false },
	} {
		if of(change) == base {
			t.Errorf("%s does not change the fingerprint", name)
		}
	}
}

func TestARecordOfAnotherShapeIsAnErrorAndNotAPanic(t *testing.T) {
	r := newRun(t, small())
	r.begin()
	rec := rows(r.mem, 0, values("{}"))
	defer rec.Release()
	fewer := rec.Schema().Fields()[:3]
	cut := newRecord(rec, fewer, 0, 1, 2)
	if err := r.tr.Process(cut, r.emit); !failure.Is(err, failure.Runtime) {
		t.Errorf("%v", err)
	}
	swapped := newRecord(rec, batch.KafkaSchema.Fields(), 0, 1, 2, 3, 4, 5, 5, 7, 8, 0)
	if err := r.tr.Process(swapped, r.emit); err != nil {
		t.Errorf("same types are accepted: %v", err)
	}
	wrong := newRecord(rec, []arrow.Field{rec.Schema().Field(1), rec.Schema().Field(1), rec.Schema().Field(2), rec.Schema().Field(3),
		rec.Schema().Field(4), rec.Schema().Field(5), rec.Schema().Field(6), rec.Schema().Field(7), rec.Schema().Field(8), rec.Schema().Field(9)}, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	if err := r.tr.Process(wrong, r.emit); !failure.Is(err, failure.Runtime) {
		t.Errorf("%v", err)
	}
}

func TestAFailingSinkLeavesNothingBehind(t *testing.T) {
	r := newRun(t, small())
	r.begin()
	var recs []record
	for i := range 2000 {
		recs = append(recs, values(ev(fmt.Sprint(i), -1))...)
	}
	boom := errors.New("disk full")
	calls := 0
	err := r.tr.Process(rows(r.mem, 0, recs), func(_ string, rec arrow.RecordBatch) error {
		rec.Release()
		calls++
		return boom
	})
	if !errors.Is(err, boom) || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
	r.tr.Rollback()
	if n := r.tr.State()[0].Keys(); n != 0 {
		t.Errorf("%d keys are remembered after a rollback", n)
	}
}

func TestPassthroughEmitsRecordsUnchanged(t *testing.T) {
	mem := memory.NewCheckedAllocator(memory.NewGoAllocator())
	defer mem.AssertSize(t, 0)
	p := NewPassthrough(batch.KafkaSchema)
	mark := marker.Watermark{Micros: 77, MaxEventMicros: map[string]int64{"": 78}}
	if err := p.Begin(Env{BatchID: 3, Watermark: mark}); err != nil {
		t.Fatal(err)
	}
	in := rows(mem, 0, []record{{value: []byte("a"), timestamp: 1}, {value: nil, timestamp: 2}})
	err := p.Process(in, func(output string, rec arrow.RecordBatch) error {
		if rec != in || output != Main {
			t.Error("not the same record")
		}
		rec.Release()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Process(rows(mem, 2, nil), nil); err != nil {
		t.Fatal(err)
	}
	res, err := p.Finish(nil)
	if err != nil || res.Counters != (marker.Counters{Read: 2, Emitted: 2}) || res.Watermark.Micros != 77 || len(res.EventMicros) != 2 || p.State() != nil {
		t.Errorf("%+v %v", res, err)
	}
	if p.Fingerprint() == "" || p.Outputs()[Main] != batch.KafkaSchema {
		t.Error("fingerprint or schema")
	}
}
