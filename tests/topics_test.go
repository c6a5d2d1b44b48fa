package tests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// sendTo sends n records to each of a topic's partitions in turn.
func (l *lab) sendTo(topic string, partitions int32, n int) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	records := make([]*kgo.Record, 0, n)
	for i := range n {
		records = append(records, &kgo.Record{
			Topic: topic, Partition: int32(i) % partitions,
			Value: fmt.Appendf(nil, `{"id":"%s-%d","dt":"2026-05-01T00:00:00Z","kind":"edit"}`, topic, i),
		})
	}
	if err := l.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) createTopic(name string, partitions int32) {
	l.t.Helper()
	made, err := kadm.NewClient(l.client).CreateTopic(context.Background(), partitions, 1, nil, name)
	if err == nil {
		err = made.Err
	}
	if err != nil {
		l.t.Fatalf("create %s: %v", name, err)
	}
}

func (l *lab) addPartitions(topic string, n int) {
	l.t.Helper()
	rs, err := kadm.NewClient(l.client).UpdatePartitions(context.Background(), n, topic)
	if err == nil {
		err = rs.Error()
	}
	if err != nil {
		l.t.Fatalf("add partitions to %s: %v", topic, err)
	}
}

// auditedTables is what an audit reports, by table and topic.
func (l *lab) auditedTables() map[string]string {
	l.t.Helper()
	var report struct {
		Tables []struct {
			Table, Topic, Outcome string
			Rows                  int64
			KafkaRecords          int64 `json:"kafka_records"`
		}
	}
	mustJSON(l.t, &report, "audit", l.file)
	out := map[string]string{}
	for _, r := range report.Tables {
		out[r.Table+" "+r.Topic] = fmt.Sprintf("%s %d of %d", r.Outcome, r.Rows, r.KafkaRecords)
	}
	return out
}

func (l *lab) wantAudit(want map[string]string) {
	l.t.Helper()
	if got := l.auditedTables(); fmt.Sprint(got) != fmt.Sprint(want) {
		l.t.Errorf("the audit says %v, want %v", got, want)
	}
}

func TestTopicsThatJoinUnderAPatternAndPartitionsThatAreAddedArriveExactlyOnce(t *testing.T) {
	l := newLab(t, 0)
	l.edit("topics: [edits]", `topicPattern: "events\\..*"`)
	l.edit("{processingTime: 20ms}", "{availableNow: true}")
	l.createTopic("events.a", 1)
	l.createTopic("unrelated", 1)
	l.sendTo("events.a", 1, 100)
	l.sendTo("unrelated", 1, 10)
	l.run(exitOK)
	l.wantAudit(map[string]string{
		"bronze.events events.a": "exact 100 of 100",
		"silver.edits events.a":  "exact 100 of 100",
	})
	l.createTopic("events.b", 2)
	l.sendTo("events.b", 2, 60)
	l.addPartitions("events.a", 3)
	l.connect() // a client that knows the new partitions
	l.sendTo("events.a", 3, 90)
	l.crash("bronze/commit.swapped:1")
	l.run(exitOK)
	l.wantAudit(map[string]string{
		"bronze.events events.a":         "exact 190 of 190",
		"bronze.events events.b":         "exact 60 of 60",
		"silver.edits events.a,events.b": "exact 160 of 250",
	})
}

func TestAQueryThatParsesSeveralTopicsItselfIsAudited(t *testing.T) {
	l := newLab(t, 0)
	l.file = filepath.Join(l.dir, "direct.yaml")
	text := fmt.Sprintf(`name: direct
catalog: {type: sql, name: weir, uri: "sqlite:%[1]s/catalog.db"}
warehouse: "%[1]s/warehouse"
checkpointLocation: "%[1]s/checkpoints"
kafka: {bootstrapServers: [%[2]q]}
queries:
  - name: direct
    from: {kafka: {topics: [edits, more]}}
    trigger: {availableNow: true}
    parse:
      columns:
        - {name: event_id, path: $.id, type: string, required: true}
        - {name: kind, path: $.kind, type: string}
    filter: "event_id <> 'edits-3'"
    deadLetter: {table: silver.dead}
    to: {iceberg: {table: silver.direct}}
status: {listen: none}
`, l.dir, l.broker.Bootstrap())
	if err := os.WriteFile(l.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l.createTopic("more", 1)
	l.sendTo(labTopic, 2, 40)
	l.sendTo("more", 1, 20)
	l.run(exitOK)
	l.wantAudit(map[string]string{"silver.direct edits,more": "exact 59 of 60"})
}
