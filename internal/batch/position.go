// Package batch holds what flows through a micro-batch and what names its
// place in the source: positions with identity, offset ranges, and the
// columnar rows' schema. It is a leaf: it imports nothing of the project.
package batch

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
)

// Position is a place in a source, with the identity of the source. Exactly
// one of Kafka and Table is set. It says what comes next: everything before it
// has been delivered, nothing at or after it has.
type Position struct {
	Kafka *KafkaPosition `json:"kafka,omitempty"`
	Table *TablePosition `json:"table,omitempty"`
}

// KafkaPosition is an offset vector in one cluster.
type KafkaPosition struct {
	ClusterID string                   `json:"cluster_id"`
	Topics    map[string]TopicPosition `json:"topics"` // by topic name
}

// TopicPosition is the part of an offset vector that is one topic. ID is the
// broker's topic id (a UUID), empty where the broker gives none: a topic that
// was deleted and created again has another id.
type TopicPosition struct {
	ID         string                      `json:"id,omitempty"`
	Partitions map[int32]PartitionPosition `json:"partitions"`
}

// PartitionPosition is the place in one partition.
type PartitionPosition struct {
	// NextOffset is the first offset that is not delivered yet.
	NextOffset int64 `json:"next_offset"`
	// LastOffset is the last record that was delivered, -1 before the first.
	// It is smaller than NextOffset-1 where transaction markers or compaction
	// left holes.
	LastOffset int64 `json:"last_offset"`
	// LeaderEpoch is the leader epoch of the record at LastOffset, -1 if unknown.
	LeaderEpoch int32 `json:"leader_epoch"`
	// Rows counts the records delivered since the query began, or -1 where a
	// plan cannot know it before reading.
	Rows int64 `json:"rows"`
	// HandedTo names the query that took the partition over at NextOffset: a
	// tombstone. Empty on a partition that is still this query's.
	HandedTo string `json:"handed_to,omitempty"`
}

// TablePosition is a place in a table that a Kafka query feeds: the Kafka
// offset vector reached is the position, the snapshot id only a fast path to
// it.
type TablePosition struct {
	Name       string         `json:"name"`
	UUID       string         `json:"uuid"`
	SnapshotID int64          `json:"snapshot_id"`
	Upstream   *KafkaPosition `json:"upstream,omitempty"`
	// WatermarkMicros is the table's own watermark here: no row after this place
	// has an earlier event time. Nil where the table has none that is known.
	WatermarkMicros *int64 `json:"watermark_micros,omitempty"`
	// Rebuilt is the newest rebuild of the table's rows when the position was
	// reached, empty for none: after another one it is a position in other rows.
	Rebuilt string `json:"rebuilt,omitempty"`
	// Erasures names the erasures of the table that the query's state knows of.
	Erasures string `json:"erasures,omitempty"`
}

// TopicPartition names a partition by topic name.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// String is topic-partition as Kafka's own tools print it.
func (tp TopicPartition) String() string { return fmt.Sprintf("%s-%d", tp.Topic, tp.Partition) }

// Range is a half-open run of offsets of one partition, [From, To).
type Range struct {
	Topic     string `json:"topic,omitempty"`
	Partition int32  `json:"partition"`
	From      int64  `json:"from"`
	To        int64  `json:"to"`
}

// Vector is the offset vector that the position stands on: its own for Kafka,
// the upstream's for a table; nil where there is none.
func (p Position) Vector() *KafkaPosition {
	switch {
	case p.Kafka != nil:
		return p.Kafka
	case p.Table != nil:
		return p.Table.Upstream
	}
	return nil
}

// Clone copies the position deeply.
func (p Position) Clone() Position {
	out := Position{Kafka: p.Kafka.Clone()}
	if p.Table != nil {
		t := *p.Table
		t.Upstream = t.Upstream.Clone()
		out.Table = &t
	}
	return out
}

// Clone copies the vector deeply; nil stays nil.
func (k *KafkaPosition) Clone() *KafkaPosition {
	if k == nil {
		return nil
	}
	out := &KafkaPosition{ClusterID: k.ClusterID, Topics: make(map[string]TopicPosition, len(k.Topics))}
	for name, t := range k.Topics {
		out.Topics[name] = TopicPosition{ID: t.ID, Partitions: maps.Clone(t.Partitions)}
	}
	return out
}

// Get is the position of one partition.
func (k *KafkaPosition) Get(topic string, partition int32) (PartitionPosition, bool) {
	if k == nil {
		return PartitionPosition{}, false
	}
	p, ok := k.Topics[topic].Partitions[partition]
	return p, ok
}

// Set stores the position of one partition, making the topic where needed.
func (k *KafkaPosition) Set(topic, topicID string, partition int32, p PartitionPosition) {
	if k.Topics == nil {
		k.Topics = map[string]TopicPosition{}
	}
	t, ok := k.Topics[topic]
	if !ok || t.Partitions == nil {
		t = TopicPosition{ID: topicID, Partitions: map[int32]PartitionPosition{}}
	}
	if topicID != "" {
		t.ID = topicID
	}
	t.Partitions[partition] = p
	k.Topics[topic] = t
}

// Each calls f for every partition, topics and partitions in order.
func (k *KafkaPosition) Each(f func(topic, topicID string, partition int32, p PartitionPosition)) {
	if k == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(k.Topics)) {
		t := k.Topics[name]
		for _, part := range slices.Sorted(maps.Keys(t.Partitions)) {
			f(name, t.ID, part, t.Partitions[part])
		}
	}
}

// Merge raises k to hold the greater next offset of each partition of k and o.
// Topics are matched by name and id; another id under the same name is an error,
// because the two vectors then speak of different topics.
func (k *KafkaPosition) Merge(o *KafkaPosition) error {
	if o == nil {
		return nil
	}
	if k.ClusterID != "" && o.ClusterID != "" && k.ClusterID != o.ClusterID {
		return fmt.Errorf("positions of two clusters, %s and %s", k.ClusterID, o.ClusterID)
	}
	if k.ClusterID == "" {
		k.ClusterID = o.ClusterID
	}
	for name, ot := range o.Topics {
		if t, ok := k.Topics[name]; ok && t.ID != "" && ot.ID != "" && t.ID != ot.ID {
			return fmt.Errorf("topic %s has two ids, %s and %s", name, t.ID, ot.ID)
		}
		for part, op := range ot.Partitions {
			if op.HandedTo != "" {
				continue
			}
			if cur, ok := k.Get(name, part); !ok || cur.NextOffset < op.NextOffset {
				k.Set(name, ot.ID, part, op)
			}
		}
	}
	return nil
}

// SameOffsets reports whether p covers every partition of q at the same next
// offset with the same identities. Partitions that only p has are allowed:
// they were added later.
func (p Position) SameOffsets(q Position) bool {
	if (p.Kafka == nil) != (q.Kafka == nil) || (p.Table == nil) != (q.Table == nil) {
		return false
	}
	if p.Table != nil && p.Table.UUID != q.Table.UUID {
		return false
	}
	pv, qv := p.Vector(), q.Vector()
	if qv == nil {
		return true
	}
	if pv == nil || pv.ClusterID != qv.ClusterID {
		return false
	}
	same := true
	qv.Each(func(topic, id string, part int32, qp PartitionPosition) {
		pp, ok := pv.Get(topic, part)
		if !ok || pv.Topics[topic].ID != id || pp.NextOffset != qp.NextOffset {
			same = false
		}
	})
	return same
}

// Ranges lists what lies between p (start) and end, partition by partition;
// empty ranges are left out. A partition that only end has starts at its own
// recorded start, which a plan always writes into the start position.
func (p Position) Ranges(end Position) []Range {
	var out []Range
	sv := p.Vector()
	end.Vector().Each(func(topic, _ string, part int32, ep PartitionPosition) {
		from := int64(0)
		if sp, ok := sv.Get(topic, part); ok {
			from = sp.NextOffset
		}
		if from < ep.NextOffset {
			out = append(out, Range{Topic: topic, Partition: part, From: from, To: ep.NextOffset})
		}
	})
	return out
}

// Offsets is the number of offsets between p and end, holes included.
func (p Position) Offsets(end Position) int64 {
	var n int64
	for _, r := range p.Ranges(end) {
		n += r.To - r.From
	}
	return n
}

// String is a short form for logs: topic[0:12 1:40].
func (p Position) String() string {
	v := p.Vector()
	if v == nil {
		return "(none)"
	}
	var topics []string
	for name, t := range v.Topics {
		var parts []string
		for _, part := range slices.Sorted(maps.Keys(t.Partitions)) {
			parts = append(parts, fmt.Sprintf("%d:%d", part, t.Partitions[part].NextOffset))
		}
		topics = append(topics, name+"["+strings.Join(parts, " ")+"]")
	}
	sort.Strings(topics)
	return strings.Join(topics, " ")
}
