package app

import (
	"context"
	"fmt"

	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/sink/progress"
)

// progressSink appends the engine's rows to ops.stream_progress.
type progressSink struct{ *progress.Appender }

var _ engine.ProgressSink = (*progressSink)(nil)

// Add implements engine.ProgressSink.
func (p *progressSink) Add(row engine.Progress) { p.Appender.Add(progress.Row(row)) }

// Recorded implements engine.ProgressSink. Batch ids never start again, so the
// query's name is enough.
func (p *progressSink) Recorded(ctx context.Context, queryName, _ string) (int64, error) {
	return p.Appender.Recorded(ctx, queryName)
}

// openProgress starts the appender where the pipeline has a progress table.
func (a *App) openProgress(ctx context.Context) error {
	ops := a.P.Ops
	if ops.ProgressTable == "" {
		return nil
	}
	ident, err := lake.ParseName(ops.ProgressTable)
	if err != nil {
		return err
	}
	ap, err := progress.New(progress.Options{
		Catalog: a.Catalog, Table: ident, Clock: a.opts.Clock, Interval: ops.FlushInterval, Mirror: ops.JSONL,
		OnError: func(err error) {
			a.opts.Logger.Warn("progress rows not written yet, they are kept and tried again", "table", ops.ProgressTable, "error", err)
		},
	})
	if err != nil {
		return fmt.Errorf("progress table %s: %w", ops.ProgressTable, err)
	}
	a.progress = &progressSink{ap}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		ap.Run(run)
	}()
	a.closers = append(a.closers, func() error {
		stop()
		<-stopped
		return nil
	})
	return nil
}
