package app

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/checkpoint"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/source"
	sourceiceberg "github.com/weirlake/weir/internal/source/iceberg"
	"github.com/weirlake/weir/internal/source/kafka"
)

// buildQueries makes every query of the pipeline and puts it at its level.
func (a *App) buildQueries(ctx context.Context) error {
	if err := a.refuseUnfinished(ctx); err != nil {
		return err
	}
	level := map[string]int{} // by table written
	writers := map[string][]*engine.Query{}
	left := slices.Clone(a.P.Queries)
	for len(left) > 0 {
		var later []pipeline.Query
		for _, q := range left {
			up, ready := 0, true
			if q.From.Table != nil && a.writes(q.From.Table.Name) {
				l, done := level[q.From.Table.Name]
				up, ready = l+1, done
			}
			if !ready {
				later = append(later, q)
				continue
			}
			level[q.To.Table()] = max(level[q.To.Table()], up)
			if a.opts.Queries != nil && !slices.Contains(a.opts.Queries, q.Name) {
				continue
			}
			built, err := a.buildQuery(ctx, q)
			if err != nil {
				return err
			}
			if q.From.Table != nil {
				built.Upstream = writers[q.From.Table.Name]
			}
			writers[q.To.Table()] = append(writers[q.To.Table()], built)
			a.nodes = append(a.nodes, &node{query: built, level: up})
		}
		if len(later) == len(left) {
			return failure.New(failure.Config, "%s: the queries read each other's tables in a circle", a.P.File)
		}
		left = later
	}
	return nil
}

// writes reports whether one of the pipeline's queries writes the table.
func (a *App) writes(table string) bool {
	return slices.ContainsFunc(a.P.Queries, func(q pipeline.Query) bool { return q.To.Table() == table })
}

// CheckpointDir is the location of a query's checkpoint.
func CheckpointDir(p *pipeline.Pipeline, q pipeline.Query) string {
	if q.CheckpointLocation != "" {
		return q.CheckpointLocation
	}
	return pipeline.JoinLocation(p.CheckpointLocation, q.Name)
}

func (a *App) buildQuery(ctx context.Context, q pipeline.Query) (*engine.Query, error) {
	transform, err := Transform(q)
	if err != nil {
		return nil, err
	}
	src, opts, err := a.buildSource(q)
	if err != nil {
		return nil, err
	}
	a.closers = append(a.closers, src.Close)
	outputs, err := a.buildSinks(ctx, q, transform)
	if err != nil {
		return nil, err
	}
	dir := CheckpointDir(a.P, q)
	store, err := a.openCheckpoint(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("query %s: checkpoint: %w", q.Name, err)
	}
	opts.StatePartBytes = int(q.State.PartBytes)
	opts.Trigger = engine.Trigger{ProcessingTime: q.Trigger.ProcessingTime, AvailableNow: q.Trigger.AvailableNow, Once: q.Trigger.Once}
	opts.OnLostCheckpoint = checkpoint.OnLostCheckpoint(q.OnLostCheckpoint)
	opts.TakeOver = a.opts.TakeOver
	opts.NewState = slices.Contains(a.opts.NewState, q.Name)
	opts.CommitDeadline = commitDeadline(q)
	opts.InstanceID = instanceID(dir, q.Name)
	lock := ""
	if !a.planning || !pipeline.Remote(dir) { // a plan makes no folder
		lock = a.lockDir(dir)
	}
	if q.State.Store == pipeline.StatePebble {
		closeState, err := KeepState(transform, StatePlace{Query: q.Name, Checkpoint: dir, LockDir: lock, Folder: q.State.Folder,
			CacheBytes: int64(q.State.CacheBytes), Logger: a.opts.Logger, Planning: a.planning})
		if err != nil {
			return nil, err
		}
		a.closers = append(a.closers, closeState)
	}
	out := &engine.Query{
		Name: q.Name, Source: src, Transform: transform, Outputs: outputs,
		Checkpoint: store, LockDir: lock, Options: opts, Clock: a.opts.Clock, Logger: a.opts.Logger,
	}
	if a.progress != nil {
		out.Progress = a.progress
	}
	out.Observers = a.observers(q, transform)
	signal := a.notifierOf(q.To.Table())
	out.OnProgress = func(p engine.Progress) {
		signal.signal()
		a.jobsCommitted(p)
		if a.opts.OnProgress != nil {
			a.opts.OnProgress(p)
		}
	}
	if a.opts.OnAlert != nil {
		out.OnAlert = func(text string) { a.opts.OnAlert(q.Name, text) }
	}
	return out, nil
}

// Transform is the operator chain of a query: declared columns, or the Kafka
// rows as they are.
func Transform(q pipeline.Query) (operator.Transform, error) {
	switch {
	case q.Typed():
		rows, err := tableRows(q)
		if err != nil {
			return nil, err
		}
		return aggregated(q, rows)
	case q.Parse == nil:
		return operator.NewPassthrough(batch.KafkaSchema), nil
	}
	cfg := operator.Config{Filter: q.Filter, Dedup: q.DropDuplicatesWithinWatermark, DeadLetter: q.DeadLetter != nil}
	for _, c := range q.Parse.Columns {
		cfg.Columns = append(cfg.Columns, operator.Column{Name: c.Name, Path: c.Path, Source: c.Source, Type: c.Type, Required: c.Required, TimeFormat: c.TimeFormat})
	}
	cfg.Changes = changesOf(q.To.Upsert())
	if w := q.Watermark; w != nil {
		cfg.Watermark = &operator.Watermark{Column: w.Column, Delay: w.Delay, MaxFutureSkew: w.MaxFutureSkew, PerPartition: w.PerPartition}
		if w.PerPartition {
			cfg.Watermark.IdleTimeout = w.IdleTimeout
		}
	}
	decoder, err := registryOf(q.Parse)
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", q.Name, err)
	}
	if decoder != nil {
		cfg.Format, cfg.Decoder = q.Parse.Format, decoder
	}
	t, err := operator.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", q.Name, err)
	}
	return aggregated(q, t)
}

func (a *App) buildSource(q pipeline.Query) (source.Source, engine.Options, error) {
	if t := q.From.Table; t != nil {
		ident, err := lake.ParseName(t.Name)
		if err != nil {
			return nil, engine.Options{}, err
		}
		rows, err := typedRows(q)
		if err != nil {
			return nil, engine.Options{}, err
		}
		var wait time.Duration // the source's default
		if a.planning {
			wait = time.Nanosecond
		}
		src, err := sourceiceberg.New(sourceiceberg.Config{
			InitialWait: wait, Name: t.Name, Rows: rows, StartingOffsets: t.StartingOffsets.Mode, Clock: a.opts.Clock,
			Load: func(ctx context.Context) (*table.Table, error) {
				return a.Catalog.LoadTablePatiently(ctx, ident, a.opts.Clock)
			},
			Pointer: func(ctx context.Context) (string, error) { return a.Catalog.MetadataLocation(ctx, ident) },
			Notify:  a.notifierOf(t.Name).subscribe(),
		})
		return src, engine.Options{MaxOffsetsPerTrigger: t.MaxOffsetsPerTrigger, FailOnDataLoss: t.FailOnDataLoss}, err
	}
	k := q.From.Kafka
	cfg := kafka.Config{
		Client: a.Kafka, Topics: k.Topics, TopicPattern: k.TopicPattern, Partitions: k.Partitions.String(),
		TolerateDataLoss: !k.FailOnDataLoss, GroupID: k.GroupID,
	}
	switch {
	case k.StartingTimestamp != nil:
		cfg.StartingTimestamp = strconv.FormatInt(int64(*k.StartingTimestamp), 10)
	case k.StartingOffsetsByTimestamp != nil:
		cfg.StartingOffsetsByTimestamp = encodeOffsets(k.StartingOffsetsByTimestamp)
	case k.StartingOffsets.Mode == pipeline.Specific:
		cfg.StartingOffsets = encodeOffsets(k.StartingOffsets.Offsets)
	default:
		cfg.StartingOffsets = k.StartingOffsets.Mode
	}
	src, err := kafka.New(cfg, a.opts.Clock, a.opts.Logger)
	return src, engine.Options{MaxOffsetsPerTrigger: k.MaxOffsetsPerTrigger, FailOnDataLoss: k.FailOnDataLoss}, err
}

func encodeOffsets(m map[string]map[int32]int64) string {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // maps of numbers
	}
	return string(b)
}
