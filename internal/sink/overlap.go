package sink

import (
	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

// CheckOverlap refuses a marker that covers a partition which another live stream
// marker of the table covers: both would deliver its records. A partition that
// the other query handed over (a tombstone that leads to us) is ours.
//
// It is checked on the head that the commit asserts, so that two queries cannot
// both pass the check and then both commit.
func CheckOverlap(tableName string, markers map[string]*marker.Marker, m *marker.Marker) error {
	if m.Kind != marker.KindStream {
		return nil
	}
	var err error
	mine := m.Position.Vector()
	mine.Each(func(topic, id string, part int32, p batch.PartitionPosition) {
		if err != nil || p.HandedTo != "" {
			return
		}
		for name, o := range markers {
			if name == m.QueryName || o.Kind != marker.KindStream {
				continue
			}
			op, ok := covers(o, mine.ClusterID, topic, id, part)
			if !ok || leadsTo(markers, op, m.QueryName, mine.ClusterID, topic, id, part) {
				continue
			}
			err = failure.New(failure.Config, "table %s: partition %s (topic id %s) of query %s is already delivered by query %s",
				tableName, batch.TopicPartition{Topic: topic, Partition: part}, id, m.QueryName, name).
				WithHint("a renamed or split query must take its partitions over from %s; otherwise write to another table", name)
			return
		}
	})
	return err
}

// covers finds a partition in a marker by identity: the topic id where both
// sides know it, else cluster and name.
func covers(o *marker.Marker, cluster, topic, id string, part int32) (batch.PartitionPosition, bool) {
	v := o.Position.Vector()
	if v == nil {
		return batch.PartitionPosition{}, false
	}
	for name, t := range v.Topics {
		same := name == topic && (v.ClusterID == cluster || v.ClusterID == "" || cluster == "")
		if t.ID != "" && id != "" {
			same = t.ID == id
		}
		if !same {
			continue
		}
		if p, ok := t.Partitions[part]; ok {
			return p, true
		}
	}
	return batch.PartitionPosition{}, false
}

// leadsTo follows tombstones from p to the query that has the partition now. A
// heir whose marker does not hold the partition yet has not claimed it: it is
// still the heir's.
func leadsTo(markers map[string]*marker.Marker, p batch.PartitionPosition, us, cluster, topic, id string, part int32) bool {
	for range len(markers) + 1 {
		switch p.HandedTo {
		case "":
			return false
		case us:
			return true
		}
		heir, ok := markers[p.HandedTo]
		if !ok {
			return false
		}
		if p, ok = covers(heir, cluster, topic, id, part); !ok {
			return false
		}
	}
	return false
}
