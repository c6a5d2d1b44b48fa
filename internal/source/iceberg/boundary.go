package iceberg

import (
	"slices"
	"sync"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/scan"
	"github.com/weirlake/weir/internal/marker"
)

// boundary is a snapshot with the offset vector that it records: everything
// before the vector is in it, nothing at or after.
type boundary struct {
	snapshotID int64
	vector     *batch.KafkaPosition // nil where the table records none
}

// vectorCache keeps the decoded vectors of the snapshots of the last load.
// Snapshots are immutable, so an entry never goes stale.
type vectorCache struct {
	mu  sync.Mutex
	byt map[int64]*batch.KafkaPosition
}

// of decodes the vector of a snapshot, nil where it records none.
func (c *vectorCache) of(s *table.Snapshot) (*batch.KafkaPosition, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v, ok := c.byt[s.SnapshotID]; ok {
		return v, nil
	}
	v, err := scan.Offsets(s)
	if err != nil {
		return nil, failure.Wrap(failure.Checkpoint, err, "read the table's history")
	}
	if c.byt == nil {
		c.byt = map[int64]*batch.KafkaPosition{}
	}
	c.byt[s.SnapshotID] = v
	return v, nil
}

// keep forgets the snapshots that t no longer has.
func (c *vectorCache) keep(t *table.Table) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.byt {
		if t.SnapshotByID(id) == nil {
			delete(c.byt, id)
		}
	}
}

// head is how far the table's current snapshot is: the vector in its summary,
// or in that of the newest snapshot below it that has one (compactions and
// other people's commits have none). Where expiry has taken those, the markers
// in the properties of the same metadata document say it, unless the head is
// older than they are: a property is not rolled back with the table.
func (s *Source) head(t *table.Table) (*boundary, error) {
	s.seen.keep(t)
	out := &boundary{}
	var err error
	end := lake.Walk(t, func(snap *table.Snapshot) bool {
		out.snapshotID = snap.SnapshotID
		out.vector, err = s.seen.of(snap)
		return err == nil && out.vector == nil
	})
	if err != nil {
		return nil, err
	}
	if out.vector != nil {
		return out, nil
	}
	out.snapshotID = 0
	markers, err := marker.FromProperties(t.Properties())
	if err != nil {
		return nil, failure.Wrap(failure.Checkpoint, err, "read the markers of table %s", s.cfg.Name)
	}
	v := &batch.KafkaPosition{Topics: map[string]batch.TopicPosition{}}
	found := false
	for _, m := range markers {
		if m.Kind != marker.KindStream || s.cfg.Rows == nil && m.Position.Kafka == nil {
			continue
		}
		// The marker's own snapshot has a greater number than the one that it
		// was built on. A whole chain without it means the same.
		if head := lake.HeadOf(t); head.Sequence <= m.BaseSequence || end == lake.AtFirst {
			return nil, failure.New(failure.Checkpoint, "table %s was rewound: its head has the sequence number %d, the commit of query %s was built on %d",
				s.cfg.Name, head.Sequence, m.QueryName, m.BaseSequence).
				WithHint("roll the table forward again, or let its query adopt the state: weir checkpoint adopt")
		}
		if err := v.Merge(m.Position.Vector()); err != nil {
			return nil, failure.Wrap(failure.Checkpoint, err, "merge the markers of table %s", s.cfg.Name)
		}
		found = true
	}
	if found {
		out.vector = v
	}
	return out, nil
}

// beginning is where a query that reads everything starts: the vector of the
// upstream's first claim. Where that snapshot is expired, offset 0 of every
// partition says the same, since the table holds nothing before it began.
func (s *Source) beginning(t *table.Table, head *batch.KafkaPosition) (int64, *batch.KafkaPosition, error) {
	var first *table.Snapshot
	lake.Walk(t, func(snap *table.Snapshot) bool {
		if lake.SummaryValue(snap, marker.KeyOffsets) != "" {
			first = snap
		}
		return true
	})
	if first != nil && lake.SummaryValue(first, marker.KeyBatchID) == "-1" {
		v, err := s.seen.of(first)
		if err != nil {
			return 0, nil, err
		}
		return first.SnapshotID, v.Clone(), nil
	}
	zero := &batch.KafkaPosition{ClusterID: head.ClusterID}
	head.Each(func(topic, id string, part int32, _ batch.PartitionPosition) { zero.Set(topic, id, part, unread) })
	return 0, zero, nil
}

// unread is the position in a partition of which nothing was read.
var unread = batch.PartitionPosition{LastOffset: -1, LeaderEpoch: -1}

// boundaries lists the snapshots of the main chain that record a vector past
// start, oldest first, as far as expiry has left them and their rows were not
// exchanged.
func (s *Source) boundaries(t *table.Table, start *batch.KafkaPosition) (out []boundary, err error) {
	lake.Walk(t, func(snap *table.Snapshot) bool {
		var v *batch.KafkaPosition
		if v, err = s.seen.of(snap); err != nil {
			return false
		}
		if v == nil {
			return true
		}
		if !covers(v, start) || covers(start, v) {
			return false
		}
		out = append(out, boundary{snap.SnapshotID, v})
		return !exchanged(snap)
	})
	slices.Reverse(out)
	return out, err
}

// covers reports whether v has reached every offset that w has.
func covers(v, w *batch.KafkaPosition) bool {
	ok := true
	w.Each(func(topic, _ string, part int32, p batch.PartitionPosition) {
		vp, _ := v.Get(topic, part)
		if vp.NextOffset < p.NextOffset {
			ok = false
		}
	})
	return ok
}
