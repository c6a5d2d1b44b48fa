package engine

import (
	"context"
	"fmt"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/source"
)

// rebuildMain fills an operator's state from the main table at the marker's
// snapshot: the table itself holds every id that is still remembered.
func (r *run) rebuildMain(ctx context.Context, op operator.Stateful, m *marker.Marker) error {
	cols := op.RebuildColumns()
	from := op.RebuildFrom(m.Watermark)
	if err := r.main().Sink.RebuildScan(ctx, m, cols, cols[0], from, op.Rebuild); err != nil {
		return fmt.Errorf("query %s: rebuild state of %s from %s: %w", r.q.Name, op.Name(), r.main().Sink.Name(), err)
	}
	op.FinishRebuild(m.Watermark)
	r.q.Logger.Warn("state rebuilt from the table", "query", r.q.Name, "operator", op.Name(), "keys", op.Keys())
	return nil
}

// releasing is the transform's side that keeps rows back, nil where none are.
func (r *run) releasing() operator.InputRebuilder {
	b, _ := r.q.Transform.(operator.InputRebuilder)
	return b
}

// rebuildInput fills the state of all operators from the source: what sessions
// and windows keep is in no table but the one that they read. Rows before the
// marker's position are read from as far back as an open group can begin, and
// groups that the marker's watermark has passed are dropped: they are in the
// main table.
func (r *run) rebuildInput(ctx context.Context, b operator.InputRebuilder, m *marker.Marker) error {
	if !r.q.canRescan() {
		return r.q.cannotRescan()
	}
	src := r.q.Source.(source.Rescanner)
	columns, timeColumn := b.RebuildInput()
	var back *int64
	for {
		from := b.RebuildBegin(m.Watermark, back)
		if err := src.Rescan(ctx, r.since, m.Position, columns, timeColumn, from, b.RebuildAdd); err != nil {
			return fmt.Errorf("query %s: rebuild state from the source: %w", r.q.Name, err)
		}
		further, again, err := b.RebuildEnd(m.Watermark, from)
		if err != nil {
			return fmt.Errorf("query %s: rebuild state: %w", r.q.Name, err)
		}
		if !again {
			break
		}
		back = &further
	}
	for _, op := range r.q.Transform.State() {
		r.q.Logger.Warn("state rebuilt from the source table", "query", r.q.Name, "operator", op.Name(), "keys", op.Keys())
	}
	return nil
}

// forgetErased reads the state of sessions and windows again from the source
// where rows were erased there since the state was made: they must not be put out
// by a group that still remembers them. The name of the erasures goes into the
// marker with the batch, so a crash before that reads again.
func (r *run) forgetErased(ctx context.Context) error {
	src, ok := r.q.Source.(source.Erasable)
	b := r.releasing()
	if !ok || b == nil {
		return nil
	}
	now, err := src.Erasures(ctx)
	if err != nil || now == r.erased {
		return err
	}
	m := r.main().head
	switch {
	case m.BatchID < 0: // nothing is remembered yet
	case !b.CanRebuild():
		r.q.alert("rows were erased from the source, and the open groups cannot be read again without them: they hold them until they are complete")
	default:
		for _, op := range r.q.Transform.State() {
			op.Reset()
		}
		if err := r.rebuildInput(ctx, b, m); err != nil {
			return err
		}
		r.stateT = nil // the next version is a snapshot without a parent
	}
	r.erased = now
	return nil
}

// cannotRescan is the end of a query whose open groups are in no place any more.
func (q *Query) cannotRescan() error {
	return failure.New(failure.Checkpoint, "query %s: the state of its sessions or windows is lost, and its source does not say which rows were in them", q.Name).
		WithHint("restore the checkpoint folder; or start over with: weir checkpoint reset; or give up the open groups with: weir run --new-state %s. "+
			"A query that reads the typed columns of a table, and leaves parsing and dropDuplicatesWithinWatermark to the query before it, can be rebuilt", q.Name)
}

// beginAnew forgets what the operators remember, where the user says so. Ids of
// dropDuplicatesWithinWatermark that are in the main table are read from there
// all the same; groups begin with the rows after the marker's position.
func (r *run) beginAnew(ctx context.Context, m *marker.Marker) error {
	r.q.alert("--new-state: what the query remembered is given up, rows of open groups are in no group")
	b := r.releasing()
	for _, op := range r.q.Transform.State() {
		op.Reset()
		if b == nil {
			if err := r.rebuildMain(ctx, op, m); err != nil {
				return err
			}
		}
	}
	r.stateT = nil
	if b != nil {
		r.since = m.Position.Vector().Clone()
	}
	return nil
}

// releases reports whether the end of a batch without rows is something new all
// the same: the source table's watermark has moved, and a group is complete by
// it.
func (r *run) releases(end batch.Position) bool {
	inherits, ok := r.q.Transform.(operator.InheritsWatermark)
	held, ok2 := r.q.Transform.(operator.Releaser)
	if !ok || !ok2 || end.Table == nil {
		return false
	}
	next := inherits.NextWatermark(r.mark, end.Table.WatermarkMicros)
	return next.Micros > r.mark.Micros && held.Releases(next.Micros)
}

// upstreamWatermark is the source table's at the end of a plan.
func upstreamWatermark(end batch.Position) *int64 {
	if end.Table == nil {
		return nil
	}
	return end.Table.WatermarkMicros
}

// partitionsOf names the partitions of a position that are still the query's.
func partitionsOf(p batch.Position) []string {
	var out []string
	p.Vector().Each(func(topic, _ string, part int32, pp batch.PartitionPosition) {
		if pp.HandedTo == "" {
			out = append(out, batch.TopicPartition{Topic: topic, Partition: part}.String())
		}
	})
	return out
}
