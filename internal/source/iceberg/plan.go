package iceberg

import (
	"context"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/source"
)

// Plan implements source.Source. The limit counts rows where the upstream has
// counted them, offsets elsewhere. A batch ends where a commit of the upstream
// ended, because there the number of rows is known: at the newest such place
// within the limit, at the next one where even that exceeds it. Only a step
// that is far too large, or one whose places are expired, is cut by offset.
func (s *Source) Plan(ctx context.Context, start batch.Position, limit int64) (source.Planned, error) {
	t, head, err := s.check(ctx, start)
	if err != nil {
		return source.Planned{}, err
	}
	start = start.Clone()
	bounds, err := s.boundaries(t, start.Table.Upstream)
	if err != nil {
		return source.Planned{}, err
	}
	addPartitions(start.Table.Upstream, bounds, head.vector)
	out := source.Planned{Start: start, Latest: s.position(t, head.snapshotID, head.vector.Clone())}
	end := *head
	if limit > 0 && size(start.Table.Upstream, head.vector) > limit {
		end = within(start, bounds, *head, limit)
	}
	out.End = s.position(t, end.snapshotID, carry(start.Table.Upstream, end.vector))
	if out.End.Table.SnapshotID == 0 {
		out.End.Table.SnapshotID = start.Table.SnapshotID // still before everything unread
	}
	if err := s.mark(t, start, &out.End); err != nil {
		return source.Planned{}, err
	}
	s.planned = out.End.Table.WatermarkMicros
	return out, nil
}

// addPartitions adds the partitions of v that start lacks, where the upstream
// first had them: at the recorded beginning where the snapshot that brought
// them is there and had no rows of them yet, else at 0, before everything.
func addPartitions(start *batch.KafkaPosition, bounds []boundary, v *batch.KafkaPosition) {
	v.Each(func(topic, id string, part int32, _ batch.PartitionPosition) {
		if _, ok := start.Get(topic, part); ok {
			return
		}
		p := unread
		for _, b := range bounds {
			if first, ok := b.vector.Get(topic, part); ok {
				if first.Rows == 0 {
					p = first
				}
				break
			}
		}
		start.Set(topic, id, part, p)
	})
}

// carry is the vector v with the partitions that only start has: those handed
// to another query, and those that v does not know yet.
func carry(start, v *batch.KafkaPosition) *batch.KafkaPosition {
	out := v.Clone()
	start.Each(func(topic, id string, part int32, p batch.PartitionPosition) {
		if _, ok := out.Get(topic, part); !ok || p.HandedTo != "" {
			out.Set(topic, id, part, p)
		}
	})
	return out
}

// size is how much lies between two vectors: rows where both count them,
// offsets elsewhere.
func size(start, end *batch.KafkaPosition) int64 {
	var n int64
	end.Each(func(topic, _ string, part int32, e batch.PartitionPosition) {
		st, ok := start.Get(topic, part)
		if !ok {
			st = unread
		}
		n += partitionSize(st, e)
	})
	return n
}

func partitionSize(st, e batch.PartitionPosition) int64 {
	if st.HandedTo != "" || e.NextOffset <= st.NextOffset {
		return 0
	}
	if st.Rows >= 0 && e.Rows >= st.Rows {
		return e.Rows - st.Rows
	}
	return e.NextOffset - st.NextOffset
}

// within is the end of a batch of at most limit.
func within(start batch.Position, bounds []boundary, head boundary, limit int64) boundary {
	from := start.Table.Upstream
	next := head // the first end that is past start
	for i := len(bounds) - 1; i >= 0; i-- {
		if covers(from, bounds[i].vector) {
			break
		}
		next = bounds[i]
		if n := size(from, next.vector); n > 0 && n <= limit {
			return next
		}
	}
	if n := size(from, next.vector); n > 0 && n <= overrunMax*limit {
		return next
	}
	end := cut(from, next.vector, limit)
	// The hint must lie before the first unread row, so not at next itself.
	return boundary{snapshotID: start.Table.SnapshotID, vector: end}
}

// cut advances from towards to by about limit offsets, shared in proportion to
// what each partition has. How many rows that is nobody knows before reading.
func cut(from, to *batch.KafkaPosition, limit int64) *batch.KafkaPosition {
	var total int64
	to.Each(func(topic, _ string, part int32, e batch.PartitionPosition) {
		if st, _ := from.Get(topic, part); st.HandedTo == "" && e.NextOffset > st.NextOffset {
			total += e.NextOffset - st.NextOffset
		}
	})
	out := &batch.KafkaPosition{ClusterID: to.ClusterID}
	to.Each(func(topic, id string, part int32, e batch.PartitionPosition) {
		st, ok := from.Get(topic, part)
		if !ok {
			st = unread
		}
		have := e.NextOffset - st.NextOffset
		if st.HandedTo != "" || have <= 0 {
			out.Set(topic, id, part, st)
			return
		}
		share := max(1, int64(float64(limit)*float64(have)/float64(total)))
		if share >= have {
			out.Set(topic, id, part, e)
			return
		}
		out.Set(topic, id, part, batch.PartitionPosition{NextOffset: st.NextOffset + share, LastOffset: -1, LeaderEpoch: -1, Rows: -1})
	})
	return out
}
