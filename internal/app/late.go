package app

import (
	"context"
	"errors"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/scan"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/pipeline"
)

// LateQueries are the queries whose late rows can be replayed: those that parse
// what another query's table holds.
func LateQueries(p *pipeline.Pipeline) (out []string) {
	for _, q := range p.Queries {
		if q.From.Table != nil && q.Parse != nil && q.To.Iceberg != nil && len(q.Aggregate) == 0 {
			out = append(out, q.Name)
		}
	}
	return out
}

// Late finds the rows of a query's upstream table that passed its rules and are
// not in its own table because they came after the watermark, and with replay
// brings them. show is how many of them are reported as they are.
func Late(ctx context.Context, p *pipeline.Pipeline, name string, replay bool, show int, o Options) (*ReplayReport, error) {
	q, err := QueryByName(p, name)
	if err != nil {
		return nil, err
	}
	switch from := q.From.Table; {
	case from == nil:
		return nil, failure.New(failure.Config, "query %s reads Kafka: late rows are brought from a table that holds what it read", q.Name)
	case from.StartingOffsets.Mode != pipeline.Earliest:
		return nil, failure.New(failure.Config, "query %s starts at %s of %s: rows before its start cannot be told from late ones", q.Name, from.StartingOffsets.Mode, from.Name)
	}
	r, err := openReplay(ctx, p, q, marker.KindLateReplay, "late", o)
	if err != nil {
		return nil, err
	}
	defer r.a.Close()
	dead, err := r.deadPlaces(ctx)
	if err != nil {
		return nil, err
	}
	up, err := r.upstream(ctx)
	if err != nil {
		return nil, err
	}
	found := &pending{}
	defer found.release()
	keep := found
	if !replay {
		keep = nil
	}
	for _, w := range windows(r.live.Position.Vector().Clone(), nil) {
		if err := r.late(ctx, up, w, dead, keep, show); err != nil {
			return nil, err
		}
		if len(found.ids) >= replayRowsMax {
			if err := r.bring(ctx, found); err != nil {
				return nil, err
			}
		}
	}
	return &r.report, r.bring(ctx, found)
}

// deadPlaces are the records that the query has dead-lettered: `weir dlq replay`
// is for them.
func (r *replaying) deadPlaces(ctx context.Context) (map[batch.TopicPartition]map[int64]bool, error) {
	out := map[batch.TopicPartition]map[int64]bool{}
	if r.q.DeadLetter.Format == pipeline.FormatDelta {
		return nil, failure.New(failure.Config, "query %s: its dead-letter table is a Delta table, which is not read here", r.q.Name)
	}
	err := r.a.eachDead(ctx, r.q, []string{"kafka_topic", "kafka_partition", "kafka_offset"}, func(rec arrow.RecordBatch, c deadColumns) error {
		for i := range int(rec.NumRows()) {
			at := batch.TopicPartition{Topic: c.topic.Value(i), Partition: c.partition.Value(i)}
			if out[at] == nil {
				at.Topic = string([]byte(at.Topic)) // the record's memory goes away
				out[at] = map[int64]bool{}
			}
			out[at][c.offset.Value(i)] = true
		}
		return nil
	})
	return out, err
}

func (r *replaying) upstream(ctx context.Context) (*table.Table, error) {
	ident, err := lake.ParseName(r.q.From.Table.Name)
	if err != nil {
		return nil, err
	}
	t, err := r.a.Catalog.LoadTablePatiently(ctx, ident, r.a.opts.Clock)
	switch {
	case errors.Is(err, lake.ErrNoTable), err == nil && t.CurrentSnapshot() == nil:
		return nil, failure.New(failure.Config, "query %s: its upstream table %s is not there", r.q.Name, r.q.From.Table.Name)
	case err != nil:
		return nil, failure.Wrap(failure.Unreachable, err, "read table %s", r.q.From.Table.Name)
	}
	return t, nil
}

// late looks at one window of the upstream table.
func (r *replaying) late(ctx context.Context, up *table.Table, w batch.Range, dead map[batch.TopicPartition]map[int64]bool, keep *pending, show int) error {
	gone := dead[batch.TopicPartition{Topic: w.Topic, Partition: w.Partition}]
	feed := func(process func(arrow.RecordBatch) error) error {
		_, err := scan.Range(ctx, scan.Request{Table: up, SnapshotID: up.CurrentSnapshot().SnapshotID, Want: []batch.Range{w}}, func(rec arrow.RecordBatch) error {
			defer rec.Release()
			return without(rec, gone, process)
		})
		return err
	}
	return r.pass(feed, func(output string, rec arrow.RecordBatch) error {
		defer rec.Release()
		if output != operator.Main {
			return nil // it would be a dead letter now, and was not then: weir rebuild
		}
		return r.choose(rec, keep, show)
	})
}

// without calls f with the runs of rows whose offsets are not among gone.
func without(rec arrow.RecordBatch, gone map[int64]bool, f func(arrow.RecordBatch) error) error {
	offsets := rec.Column(batch.ColOffset).(*array.Int64)
	from := int64(0)
	cut := func(to int64) error {
		if to <= from {
			return nil
		}
		return f(rec.NewSlice(from, to))
	}
	for i := range rec.NumRows() {
		if gone[offsets.Value(int(i))] {
			if err := cut(i); err != nil {
				return err
			}
			from = i + 1
		}
	}
	return cut(rec.NumRows())
}
