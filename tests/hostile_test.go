package tests

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// hostilePartitions is how many partitions the records are spread over.
const hostilePartitions = 4

// place is where a record is: all that bronze, silver and dead letters share.
type place struct{ partition, offset int64 }

// produceHostile publishes the records, each to partition number mod 4, and
// says where they are.
func produceHostile(t *testing.T, r *rig, cases []hostile) map[place]hostile {
	t.Helper()
	at := map[place]hostile{}
	r.withBroker(func(bootstrap string) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		cl, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner()),
			kgo.ProducerBatchMaxBytes(64<<20), kgo.MaxBufferedBytes(128<<20))
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		size := fmt.Sprint(64 << 20)
		made, err := kadm.NewClient(cl).CreateTopic(ctx, hostilePartitions, 1, map[string]*string{"max.message.bytes": &size}, "wiki.recentchange")
		if err != nil && !strings.Contains(err.Error(), "TOPIC_ALREADY_EXISTS") {
			t.Fatal(err, made)
		}
		for i, c := range cases {
			rec := &kgo.Record{Topic: "wiki.recentchange", Partition: int32(i % hostilePartitions), Key: c.key, Value: c.value, Headers: c.headers, Timestamp: c.stamp}
			if strings.Contains(c.name, "again") || strings.Contains(c.name, "second time") {
				rec.Partition = partitionOfTwin(at, c)
			}
			if err := cl.ProduceSync(ctx, rec).FirstErr(); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if c.stamp.IsZero() {
				c.stamp = rec.Timestamp
			}
			at[place{int64(rec.Partition), rec.Offset}] = c
		}
	})
	return at
}

// partitionOfTwin is the partition of the record with the same id, so that the
// order of the two is certain.
func partitionOfTwin(at map[place]hostile, c hostile) int32 {
	id := func(v []byte) string { return string(v[:min(len(v), 60)]) }
	for p, other := range at {
		if id(other.value) == id(c.value) && other.place == silver {
			return int32(p.partition)
		}
	}
	return 0
}

func TestHostileRecordsInKafkaEndInACountedPlace(t *testing.T) {
	r := newRig(t)
	now := time.Now()
	at := produceHostile(t, r, hostileRecords(now))
	batches := r.once()
	if len(batches) != 3 {
		t.Errorf("%d batches, one each was expected", len(batches))
	}
	checkHostile(t, r, at, false)

	// What comes a batch later finds a watermark and remembered ids.
	late := []hostile{
		{name: "1969, after the watermark", value: edit(8001, "1969-07-20T20:17:40Z", ""), place: "late"},
		{name: "an hour ago, after the watermark", value: edit(8002, now.Add(-time.Hour).UTC().Format(time.RFC3339), ""), place: "late"},
		{name: "now", value: edit(8003, now.UTC().Format(time.RFC3339), ""), place: "late"}, // one event was half an hour ahead
		{name: "as far ahead as the first", value: edit(8004, now.Add(30*time.Minute).UTC().Format(time.RFC3339), ""), place: silver},
		{name: "9999, and it did not move the watermark", value: edit(8005, "9999-12-31T23:59:59Z", ""), place: dead + "future_event"},
	}
	for p, c := range produceHostile(t, r, late) {
		at[p] = c
	}
	r.once()
	checkHostile(t, r, at, false)
}

// TestHostileRecordsKilledAtEveryTurnEndInTheSamePlaces works the same records
// off in batches of five, the process killed in the middle of one after another.
func TestHostileRecordsKilledAtEveryTurnEndInTheSamePlaces(t *testing.T) {
	r := newRig(t, "WEIR_MAX_OFFSETS=5")
	at := produceHostile(t, r, hostileRecords(time.Now()))
	for _, point := range []string{
		"bronze/plan.written:2", "bronze/stage.file:2", "bronze/commit.metadata:3", "bronze/commit.swapped:2",
		"silver/transform.done:1", "silver/stage.state:2", "silver/commit.side:2", "silver/commit.metadata:2",
		"silver/commit.swapped:2", "silver/done.written:2", "silver/commit.side:1",
	} {
		p := start(t, append(r.env, "WEIR_CRASH_AT="+point+":hold"), "run", r.file, "--once")
		reached := "crash point " + strings.TrimSuffix(point, point[strings.Index(point, ":"):]) + " reached"
		for deadline := time.Now().Add(patience); !strings.Contains(p.errs.String(), reached); time.Sleep(2 * time.Millisecond) {
			if !p.running() || time.Now().After(deadline) {
				t.Fatalf("%s was never reached\n%s", point, tail(p.errs.String()))
			}
		}
		p.kill9()
	}
	r.once()
	checkHostile(t, r, at, true)
}

// checkHostile holds every table against what was produced. With smallBatches
// an event may be late because of one in an earlier batch: silver + late is
// what must not change then.
func checkHostile(t *testing.T, r *rig, at map[place]hostile, smallBatches bool) {
	t.Helper()
	checkHostileBronze(t, r, at)
	where := map[place]string{}
	silverRows := map[place]row{}
	for _, s := range r.rows("silver.edits") {
		p := place{s.int("kafka_partition"), s.int("kafka_offset")}
		if where[p] != "" {
			t.Errorf("%s is in silver twice", at[p].name)
		}
		where[p], silverRows[p] = silver, s
	}
	for _, d := range r.rows("silver.edits_dead_letter", "key", "value") {
		p := place{d.int("kafka_partition"), d.int("kafka_offset")}
		c := at[p]
		if where[p] != "" {
			t.Errorf("%s is a dead letter and %s", c.name, where[p])
		}
		where[p] = dead + d.text("reason")
		sameBytes(t, c.name+", dead letter's value", d["value"], c.value)
		sameBytes(t, c.name+", dead letter's key", d["key"], c.key)
		if d.text("detail") == "" {
			t.Errorf("%s: a dead letter without a detail", c.name)
		}
	}
	want := batchLine{Input: int64(len(at))}
	var nowhereSeen int64
	for p, c := range at {
		switch {
		case c.place == silver && where[p] == "" && smallBatches:
			nowhereSeen++ // late, if the counts say so
		case c.place == filtered || c.place == duplicate || c.place == "late":
			if where[p] != "" {
				t.Errorf("%s: %s, not %s", c.name, where[p], c.place)
			}
		case where[p] != c.place:
			t.Errorf("%s: %q, not %s", c.name, where[p], c.place)
		case c.place == silver:
			for _, f := range expectColumns(silverRows[p], c.want) {
				t.Errorf("%s: %s", c.name, f)
			}
		}
		switch {
		case c.place == silver:
			want.Output++
		case c.place == filtered:
			want.Filtered++
		case c.place == duplicate:
			want.Duplicate++
		case c.place == "late":
			want.Late++
		default:
			want.DeadLettered++
		}
	}
	got := r.progressBalances("silver")
	if smallBatches {
		// A duplicate may have become late as well.
		if got.Output+got.Late+got.Duplicate != want.Output+want.Late+want.Duplicate || got.Late > nowhereSeen+want.Duplicate || got.Output != int64(len(silverRows)) {
			t.Errorf("ops.stream_progress of silver: %+v; want %+v, %d of them late", got, want, nowhereSeen)
		}
		got.Output, got.Late, got.Duplicate = want.Output, want.Late, want.Duplicate
	}
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("ops.stream_progress of silver:\n got %+v\nwant %+v", got, want)
	}
	if b := r.progressBalances("bronze"); b.Input != int64(len(at)) || b.Output != b.Input {
		t.Errorf("ops.stream_progress of bronze: %+v for %d records", b, len(at))
	}
	r.auditIsExact()
}

// checkHostileBronze compares bronze with the records byte by byte.
func checkHostileBronze(t *testing.T, r *rig, at map[place]hostile) {
	t.Helper()
	seen := map[place]bool{}
	for _, b := range r.rows("bronze.recentchange", "key", "value") {
		p := place{b.int("partition"), b.int("offset")}
		c, known := at[p]
		if !known || seen[p] {
			t.Errorf("bronze has %v, unknown or for the second time", p)
			continue
		}
		seen[p] = true
		sameBytes(t, c.name+", value", b["value"], c.value)
		sameBytes(t, c.name+", key", b["key"], c.key)
		if got := b.int("timestamp"); got != c.stamp.UnixMilli()*1000 {
			t.Errorf("%s: timestamp %d, not %d", c.name, got, c.stamp.UnixMilli()*1000)
		}
		// A record without headers has a null list, which PyIceberg 0.12 reads
		// as an empty one (pyarrow reads null from the same file).
		want := []map[string]any{}
		for _, h := range c.headers {
			want = append(want, map[string]any{"key": h.Key, "value": h.Value})
		}
		g, _ := json.Marshal(b["headers"])
		w, _ := json.Marshal(want)
		if string(g) != string(w) {
			t.Errorf("%s: headers %s, not %s", c.name, g, w)
		}
	}
	for p, c := range at {
		if !seen[p] {
			t.Errorf("bronze lacks %v, %s", p, c.name)
		}
	}
}

// sameBytes compares a digest that dump_table.py printed with bytes; nil is
// null, which is not the same as empty.
func sameBytes(t *testing.T, what string, got any, want []byte) {
	t.Helper()
	if got == nil || want == nil {
		if (got == nil) != (want == nil) {
			t.Errorf("%s: null on one side only (%v)", what, got)
		}
		return
	}
	sum := sha256.Sum256(want)
	d, ok := got.(map[string]any)
	if !ok || d["sha256"] != hex.EncodeToString(sum[:]) {
		t.Errorf("%s: %v bytes are not the %d that were produced", what, d["bytes"], len(want))
	}
}
