package checkpoint

import (
	"encoding/json"
	"slices"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/marker"
)

// The canonical form of a plan: everything that decides the batch's rows, in
// one order. Left out on purpose: the epoch (a later run reruns the same
// batch), and what reading fills in (last offsets, leader epochs, row counts),
// so that a plan can be compared with one rebuilt from markers.
type canonicalPlan struct {
	QueryID   string
	BatchID   int64
	Start     canonicalPosition
	End       canonicalPosition
	BatchTime int64 // microseconds
	Watermark marker.Watermark
	Transform string
}

type canonicalPosition struct {
	ClusterID  string
	TableUUID  string
	SnapshotID int64 // only where there is no offset vector: else it is a hint
	// Watermark is the source table's at the end, which decides what a batch
	// releases; left out where there is none, as in the plans before it existed.
	Watermark  *int64 `json:",omitempty"`
	Partitions []canonicalPartition
}

type canonicalPartition struct {
	Topic      string
	TopicID    string
	Partition  int32
	NextOffset int64
	HandedTo   string
}

// PlanHash names a plan by what decides its rows: query id, batch id, start
// and end with their identities, batch time, watermark, transform.
func PlanHash(p Plan) string {
	w := p.Watermark
	w.Idle = slices.Sorted(slices.Values(w.Idle))
	if len(w.MaxEventMicros) == 0 {
		w.MaxEventMicros = nil
	}
	end := canonical(p.End)
	if p.End.Table != nil {
		end.Watermark = p.End.Table.WatermarkMicros
	}
	b, err := json.Marshal(canonicalPlan{
		QueryID:   p.QueryID,
		BatchID:   p.BatchID,
		Start:     canonical(p.Start),
		End:       end,
		BatchTime: p.BatchTime.UnixMicro(),
		Watermark: w, // its map is written in key order
		Transform: p.Transform,
	})
	if err != nil {
		panic(err) // strings and integers only: cannot fail
	}
	return marker.Hash(b)
}

func canonical(p batch.Position) canonicalPosition {
	var out canonicalPosition
	v := p.Vector()
	if p.Table != nil {
		out.TableUUID = p.Table.UUID
		if v == nil {
			out.SnapshotID = p.Table.SnapshotID
		}
	}
	if v == nil {
		return out
	}
	out.ClusterID = v.ClusterID
	v.Each(func(topic, id string, part int32, pp batch.PartitionPosition) {
		out.Partitions = append(out.Partitions, canonicalPartition{topic, id, part, pp.NextOffset, pp.HandedTo})
	})
	return out
}

// samePlace reports whether both positions cover the same partitions at the
// same next offsets with the same identities.
func samePlace(a, b batch.Position) bool {
	if a.Vector() == nil && b.Vector() == nil {
		return a.SameOffsets(b) && canonical(a).SnapshotID == canonical(b).SnapshotID
	}
	return a.SameOffsets(b) && b.SameOffsets(a)
}

// startsAt reports whether a plan that starts at start continues a marker at
// pos: equal on every partition that is still the query's. Partitions that
// only the plan has were added since.
func startsAt(start, pos batch.Position) bool {
	if pos.Vector() == nil {
		return samePlace(start, pos)
	}
	ours := pos.Clone()
	handed := false
	for _, t := range ours.Vector().Topics {
		for part, pp := range t.Partitions {
			if pp.HandedTo != "" {
				delete(t.Partitions, part)
				handed = true
			}
		}
	}
	if !start.SameOffsets(ours) {
		return false
	}
	if !handed {
		return true
	}
	// A partition that another query took over must not be planned.
	ok := true
	pos.Vector().Each(func(topic, _ string, part int32, pp batch.PartitionPosition) {
		if sp, planned := start.Vector().Get(topic, part); pp.HandedTo != "" && planned && sp.HandedTo == "" {
			ok = false
		}
	})
	return ok
}

// skipped reports whether claim m moved the query's place forward from "from"
// past records that had expired: same identities, no partition earlier.
func skipped(from batch.Position, m *marker.Marker) bool {
	fv, mv := from.Vector(), m.Position.Vector()
	if !m.Claim || fv == nil || mv == nil || fv.ClusterID != mv.ClusterID {
		return false
	}
	ok, further := true, false
	mv.Each(func(topic, id string, part int32, p batch.PartitionPosition) {
		at, there := fv.Get(topic, part)
		if p.HandedTo != "" {
			return
		}
		ok = ok && there && fv.Topics[topic].ID == id && at.NextOffset <= p.NextOffset
		further = further || at.NextOffset < p.NextOffset
	})
	return ok && further
}
