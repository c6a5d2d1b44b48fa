package checkpoint

import (
	"strings"
	"testing"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

func TestARenamedQueryIsNotFresh(t *testing.T) {
	old := &marker.Marker{Kind: marker.KindStream, QueryName: "old", Position: at(7)}
	table := mainSink(nil)
	table.Others = map[string]*marker.Marker{"old": old}
	d := decideWith(Facts{}, table)
	wantOutcome(t, d, OutcomeOverlap)
	for _, word := range []string{"old", "wiki", "lake.bronze", "80"} {
		if !strings.Contains(d.Reason, word) {
			t.Errorf("%q does not name %s", d.Reason, word)
		}
	}
	if !failure.Is(d.Err(), failure.Config) {
		t.Fatal(d.Err())
	}
	// Other work on the same partitions, or another topic of that name, is none.
	for name, change := range map[string]func(*marker.Marker){
		"late replay": func(m *marker.Marker) { m.Kind = marker.KindLateReplay },
		"topic recreated": func(m *marker.Marker) {
			t := m.Position.Kafka.Topics["wiki"]
			t.ID = "other"
			m.Position.Kafka.Topics["wiki"] = t
		},
		"another cluster": func(m *marker.Marker) { m.Position.Kafka.ClusterID = "cluster-2" },
		"other partition": func(m *marker.Marker) {
			m.Position = batch.Position{Kafka: &batch.KafkaPosition{}}
			m.Position.Kafka.Set("wiki", topicID, 7, batch.PartitionPosition{})
		},
	} {
		m := &marker.Marker{Kind: marker.KindStream, QueryName: "old", Position: at(7)}
		change(m)
		table.Others = map[string]*marker.Marker{"old": m}
		if d := decideWith(Facts{}, table); d.Outcome != OutcomeFresh {
			t.Errorf("%s: %s (%s)", name, d.Outcome, d.Reason)
		}
	}
}

func TestATopicRenamedInPlaceStillOverlapsByItsID(t *testing.T) {
	old := &marker.Marker{Kind: marker.KindStream, QueryName: "old", Position: batch.Position{Kafka: &batch.KafkaPosition{ClusterID: "cluster-1"}}}
	old.Position.Kafka.Set("mirror.wiki", topicID, 0, batch.PartitionPosition{NextOffset: 5})
	if got := Overlap(map[string]*marker.Marker{"old": old}, pos(0, 0).Kafka, query); len(got) != 1 {
		t.Fatalf("%v", got)
	}
}

func TestAPartitionHandedOverStartsWhereTheOtherQueryStopped(t *testing.T) {
	old := &marker.Marker{Kind: marker.KindStream, QueryName: "old", Position: pos(80, 81)}
	for part, to := range map[int32]string{0: query, 1: query} {
		p, _ := old.Position.Kafka.Get("wiki", part)
		p.HandedTo = to
		old.Position.Kafka.Set("wiki", topicID, part, p)
	}
	table := mainSink(nil)
	table.Others = map[string]*marker.Marker{"old": old}
	d := decideWith(Facts{}, table)
	wantOutcome(t, d, OutcomeFresh)
	if p, ok := d.HandedOver.Get("wiki", 1); !ok || p.NextOffset != 81 || p.HandedTo != "" {
		t.Fatalf("handed over: %+v", d.HandedOver)
	}
	// To a third query: not ours.
	p, _ := old.Position.Kafka.Get("wiki", 1)
	p.HandedTo = "third"
	old.Position.Kafka.Set("wiki", topicID, 1, p)
	d = decideWith(Facts{}, table)
	wantOutcome(t, d, OutcomeOverlap)
	if !strings.Contains(d.Reason, "third") {
		t.Fatal(d.Reason)
	}
}
