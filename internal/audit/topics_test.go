package audit

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// topicOf makes another topic with n records in its partition 0.
func (f *fixture) topicOf(name string, n int) {
	f.t.Helper()
	ctx := context.Background()
	if _, err := kadm.NewClient(f.client).CreateTopic(ctx, 1, 1, nil, name); err != nil {
		f.t.Fatal(err)
	}
	for i := range n {
		if err := f.client.ProduceSync(ctx, &kgo.Record{Topic: name, Value: fmt.Append(nil, i)}).FirstErr(); err != nil {
			f.t.Fatal(err)
		}
	}
}

// positions is a snapshot summary that names several topics.
func positions(next map[string]int64) iceberg.Properties {
	s := ""
	for name, n := range next {
		if s != "" {
			s += ","
		}
		s += fmt.Sprintf(`%q:{"partitions":{"0":{"next_offset":%d}}}`, name, n)
	}
	return iceberg.Properties{"weir.offsets": `{"cluster_id":"","topics":{` + s + `}}`}
}

func on(name string, rows []rowAt) []rowAt {
	rows = slices.Clone(rows)
	for i := range rows {
		rows[i].topic = name
	}
	return rows
}

func TestEachTopicOfATableIsAuditedByItself(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 10)
	f.topicOf("other", 6)
	rows := slices.Concat(on(topic, span0(0, 0, 10)), on("other", span0(0, 0, 4)))
	f.append(f.create("bronze.r", bronzeSchema), positions(map[string]int64{topic: 10, "other": 6}), rows...)
	rep := f.audit(TableConfig{Name: "bronze.r", Topics: []string{topic, "other"}})
	if len(rep.Tables) != 2 {
		t.Fatalf("%d reports, want one for each topic", len(rep.Tables))
	}
	expect(t, rep.Tables[0], Exact, nil, nil)
	expect(t, rep.Tables[1], Mismatch, []Range{{Partition: 0, From: 4, To: 6}}, nil)
	if rep.Tables[0].Topic != topic || rep.Tables[1].Topic != "other" || rep.Tables[1].Rows != 4 {
		t.Errorf("reports %+v, %+v", rep.Tables[0], rep.Tables[1])
	}
}

func TestAPatternFindsTopicsThatCameLaterAndThoseThatAreGone(t *testing.T) {
	f := newFixture(t, 1)
	f.topicOf("events.a", 3)
	f.topicOf("events.new", 5) // no batch has read it yet
	f.topicOf("unrelated", 2)
	rows := slices.Concat(on("events.a", span0(0, 0, 3)), on("events.gone", span0(0, 0, 2)))
	f.append(f.create("bronze.r", bronzeSchema), positions(map[string]int64{"events.a": 3, "events.gone": 2}), rows...)
	rep := f.audit(TableConfig{Name: "bronze.r", TopicPattern: `events\..*`})
	outcomes := map[string]string{}
	for _, r := range rep.Tables {
		outcomes[r.Topic] = r.Outcome
	}
	want := map[string]string{"events.a": Exact, "events.new": Exact, "events.gone": Inconclusive}
	if fmt.Sprint(outcomes) != fmt.Sprint(want) {
		t.Fatalf("outcomes %v, want %v", outcomes, want)
	}
	if len(rep.Tables) != 3 || rep.Mismatched() {
		t.Errorf("%d reports, mismatched %v", len(rep.Tables), rep.Mismatched())
	}
}

func TestASilverTableOverSeveralTopicsIsJudgedByIDsAndCounts(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 10)
	f.topicOf("other", 6)
	f.append(f.create("bronze.r", bronzeSchema), positions(map[string]int64{topic: 10, "other": 6}),
		slices.Concat(on(topic, span0(0, 0, 10)), on("other", span0(0, 0, 6)))...)
	marker := `{"format":1,"kind":"stream","query_name":"silver","query_id":"q","batch_id":0,
		"position":{"table":{"name":"bronze.r","upstream":{"topics":{"t":{"partitions":{"0":{"next_offset":10}}},"other":{"partitions":{"0":{"next_offset":6}}}}}}},
		"counters":{"read":16,"emitted":3,"filtered":13,"duplicate":0,"late":0,"dead_lettered":0}}`
	summary := positions(map[string]int64{topic: 10, "other": 6})
	summary["weir.marker"] = marker
	// The same partition and offset of two topics: different rows.
	tbl := f.append(f.create("silver.e", silverSchema), summary, rowAt{partition: 0, offset: 1, id: "a"}, rowAt{partition: 0, offset: 1, id: "b"}, rowAt{partition: 0, offset: 2, id: "c"})
	f.property(tbl, "weir.query.silver", marker)
	tables := []TableConfig{{Name: "silver.e", Upstream: "bronze.r"}, {Name: "bronze.r", Topics: []string{topic, "other"}}}
	rep := f.audit(tables...).Tables[0]
	expect(t, rep, Exact, nil, nil)
	if rep.KafkaRecords != 16 || rep.Silver.DistinctEventIDs != 3 || !rep.Silver.Balance.Balanced {
		t.Errorf("report %+v, silver %+v", rep, rep.Silver)
	}
}

// parsedFixture is a table that a query with parse filled from Kafka itself.
func parsedFixture(t *testing.T, schema *iceberg.Schema, c counters, rows ...rowAt) *TableReport {
	t.Helper()
	f := newFixture(t, 1)
	f.publish(0, 40)
	marker := fmt.Sprintf(`{"format":1,"kind":"stream","query_name":"silver","query_id":"q","batch_id":0,
		"position":{"kafka":{"topics":{"t":{"partitions":{"0":{"next_offset":40}}}}}},
		"counters":{"read":%d,"emitted":%d,"filtered":%d,"duplicate":0,"late":0,"dead_lettered":0}}`, c.Read, c.Emitted, c.Filtered)
	summary := reached(40)
	summary["weir.marker"] = marker
	tbl := f.append(f.create("silver.e", schema), summary, rows...)
	f.property(tbl, "weir.query.silver", marker)
	cfg := TableConfig{Name: "silver.e", Topics: []string{topic}, Parsed: true}
	if schema == silverSchema {
		cfg.Columns = Columns{Partition: "kafka_partition", Offset: "kafka_offset"}
	}
	return f.audit(cfg).Tables[0]
}

func TestAParsedTableWithoutPlacesIsJudgedByTheCountsOfItsBatches(t *testing.T) {
	only := iceberg.NewSchema(0, iceberg.NestedField{ID: 1, Name: "event_id", Type: iceberg.PrimitiveTypes.String})
	rep := parsedFixture(t, only, counters{Read: 40, Emitted: 3, Filtered: 37}, span0(0, 0, 3)...)
	expect(t, rep, Exact, nil, nil)
	if rep.Rows != 3 || rep.KafkaRecords != 40 || len(rep.Notes) == 0 {
		t.Errorf("report %+v", rep)
	}
	// A row that no batch put out, and records that no batch read.
	expect(t, parsedFixture(t, only, counters{Read: 40, Emitted: 2, Filtered: 38}, span0(0, 0, 3)...), Mismatch, nil, nil)
	expect(t, parsedFixture(t, only, counters{Read: 39, Emitted: 3, Filtered: 36}, span0(0, 0, 3)...), Mismatch, nil, nil)
}

func TestAParsedTableWithPlacesIsComparedRowByRow(t *testing.T) {
	c := counters{Read: 40, Emitted: 3, Filtered: 37}
	expect(t, parsedFixture(t, silverSchema, c, span0(0, 5, 8)...), Exact, nil, nil)
	doubled := append(span0(0, 5, 7), span0(0, 6, 7)...)
	expect(t, parsedFixture(t, silverSchema, c, doubled...), Mismatch, nil, []Range{{Partition: 0, From: 6, To: 7, Reason: ReasonDoubled}})
	expect(t, parsedFixture(t, silverSchema, c, span0(0, 38, 41)...), Mismatch, nil, []Range{{Partition: 0, From: 40, To: 41, Reason: ReasonBeyondEnd}})
}
