package checkpoint

import (
	"fmt"
	"maps"
	"slices"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/marker"
)

// Overlapping is a partition that another query already feeds into a table.
type Overlapping struct {
	Query     string // the other query, or the one that it handed the partition to
	Topic     string
	Partition int32
	// NextOffset is how far the other query got.
	NextOffset int64
}

// String names it for messages.
func (o Overlapping) String() string {
	return fmt.Sprintf("%s-%d by query %s (up to offset %d)", o.Topic, o.Partition, o.Query, o.NextOffset)
}

// Overlap lists the partitions of assigned that stream markers of other queries
// in the same table cover. Partitions are the same when cluster and topic id
// are; where one side has no id, when the name is. A tombstone that hands a
// partition to queryName is no overlap; one that hands it to a third query is.
//
// It is used for a fresh start, for a sink that joins, and for every partition
// that a later plan adds, on the head that the commit asserts.
func Overlap(others map[string]*marker.Marker, assigned *batch.KafkaPosition, queryName string) []Overlapping {
	var out []Overlapping
	eachShared(others, assigned, queryName, func(name, topic string, part int32, p batch.PartitionPosition) {
		if p.HandedTo == queryName {
			return
		}
		if p.HandedTo != "" {
			name = p.HandedTo
		}
		out = append(out, Overlapping{Query: name, Topic: topic, Partition: part, NextOffset: p.NextOffset})
	})
	return out
}

// handedOver collects the assigned partitions that tombstones hand to
// queryName, at the offset where the other query stopped.
func handedOver(into *batch.KafkaPosition, others map[string]*marker.Marker, assigned *batch.KafkaPosition, queryName string) *batch.KafkaPosition {
	eachShared(others, assigned, queryName, func(_, topic string, part int32, p batch.PartitionPosition) {
		if p.HandedTo != queryName {
			return
		}
		if into == nil {
			into = &batch.KafkaPosition{ClusterID: assigned.ClusterID}
		}
		if cur, ok := into.Get(topic, part); ok && cur.NextOffset >= p.NextOffset {
			return
		}
		p.HandedTo, p.Rows = "", 0
		into.Set(topic, assigned.Topics[topic].ID, part, p)
	})
	return into
}

func eachShared(others map[string]*marker.Marker, assigned *batch.KafkaPosition, queryName string,
	f func(query, topic string, part int32, p batch.PartitionPosition)) {
	if assigned == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(others)) {
		m := others[name]
		if m == nil || name == queryName || m.Kind != marker.KindStream {
			continue
		}
		v := m.Position.Vector()
		if v == nil || (v.ClusterID != "" && assigned.ClusterID != "" && v.ClusterID != assigned.ClusterID) {
			continue
		}
		v.Each(func(topic, id string, part int32, p batch.PartitionPosition) {
			if at, ok := sharedTopic(assigned, topic, id); ok {
				if _, taken := assigned.Get(at, part); taken {
					f(name, at, part, p)
				}
			}
		})
	}
}

// sharedTopic finds the topic of assigned that is (topic, id).
func sharedTopic(assigned *batch.KafkaPosition, topic, id string) (string, bool) {
	if id != "" {
		for name, t := range assigned.Topics {
			if t.ID == id {
				return name, true
			}
		}
	}
	t, ok := assigned.Topics[topic]
	return topic, ok && (t.ID == "" || id == "")
}
