package tests

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/weirlake/weir/internal/kafkatest"
)

const sinkTopic = "edits.clean"

// toKafka lets a lab's silver query write to a topic of another cluster, a real
// Apache Kafka.
func toKafka(t *testing.T, records int) (*lab, *kafkatest.Broker) {
	t.Helper()
	realStores(t)
	l, b := newLab(t, records), kafkatest.Start(t)
	l.edit(`iceberg: {table: silver.edits, partitionBy: ["day(event_time)"]}`,
		fmt.Sprintf("kafka: {topic: %s, bootstrapServers: [%q], partitions: 3, key: event_id, headers: [kind]}", sinkTopic, b.Bootstrap()))
	return l, b
}

// exactInKafka: a read_committed reader gets every id once, under its key and
// header.
func (l *lab) exactInKafka(b *kafkatest.Broker) {
	l.t.Helper()
	got := map[string]int{}
	for _, r := range consumeAll(l.t, b.Bootstrap(), sinkTopic) {
		var value struct {
			ID   string `json:"event_id"`
			Kind string `json:"kind"`
		}
		if err := json.Unmarshal(r.Value, &value); err != nil {
			l.t.Fatal(err)
		}
		if string(r.Key) != value.ID || len(r.Headers) != 1 || r.Headers[0].Key != "kind" || string(r.Headers[0].Value) != "edit" {
			l.t.Fatalf("record %s %s %v", r.Key, r.Value, r.Headers)
		}
		got[value.ID]++
	}
	want := l.wantIDs()
	if len(got) != len(want) {
		l.t.Fatalf("%d ids, want %d", len(got), len(want))
	}
	for id := range want {
		if n := got[fmt.Sprintf("e-%d", id)]; n != 1 {
			l.t.Fatalf("id e-%d is there %d times", id, n)
		}
	}
}

func TestStoreKafkaKilledAtEveryStepIsExactForAReadCommittedReader(t *testing.T) {
	l, b := toKafka(t, 1000)
	for _, point := range []string{
		"silver/claim.before:1", "silver/claim.done:1", "silver/stage.done:1", "silver/commit.before:1", "silver/commit.side:1",
		"silver/commit.prepared:2", "silver/commit.metadata:1", "silver/commit.metadata:2", "silver/commit.swapped:1", "silver/done.written:2",
	} {
		l.produce(300)
		l.crash(point)
	}
	l.run(exitOK)
	l.exactInKafka(b)
}

func TestStoreKafkaThatIsKilledWhileAPipelineWritesLosesAndDoublesNothing(t *testing.T) {
	l, b := toKafka(t, 1000)
	p := start(t, nil, "run", l.file)
	for range 2 {
		before := l.committed("silver")
		l.produce(1000)
		waitFor(t, "a batch", func() bool { return l.committed("silver") > before })
		b.Kill9()
		l.produce(500)
		b.Restart()
	}
	waitFor(t, "the end", func() bool { return l.committed("silver") == l.sent })
	p.stop(exitOK)
	l.exactInKafka(b)
}
