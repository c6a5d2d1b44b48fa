package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/checkpoint"
	"github.com/weirlake/weir/internal/delta"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/maintain"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/pipeline"
)

// opsCareEvery is how often the tables that nobody's batches look after, those of
// the engine's own rows, are cared for.
const opsCareEvery = 5 * time.Minute

// opsKeepSnapshots is the history of those tables: they are read by time.
const opsKeepSnapshots = 50

// careOf is what a query's settings say of the care for one of its tables.
func (a *App) careOf(q pipeline.Query, name string, side bool) (maintain.Settings, lake.Retention, func(context.Context) (int64, error)) {
	c := q.Care
	s := maintain.Settings{
		NoExpiry: !c.Expiry.Enabled, NoCompaction: !c.Compaction.Enabled, NoManifests: !c.Compaction.Enabled, NoOrphans: !c.Orphans.Enabled,
		TargetBytes: int64(c.Compaction.TargetBytes), MinFiles: c.Compaction.MinInputFiles,
		Grace: c.Orphans.Grace, OrphanAge: c.Orphans.OlderThan,
		Staged: func(ctx context.Context) ([]string, error) { return a.stagedFor(ctx, name) },
	}
	if !side {
		s.Sort = c.Compaction.SortBy
	}
	return s, lake.Retention{Keep: c.Expiry.KeepSnapshots, KeepMax: c.Expiry.KeepForReaders},
		func(ctx context.Context) (int64, error) { return a.oldestReader(ctx, name) }
}

// writersOf are the queries that write to an Iceberg table, and whether it is a
// side table of theirs.
func (a *App) writersOf(name string) (out []pipeline.Query) {
	for _, q := range a.P.Queries {
		if q.To.Iceberg != nil && q.To.Iceberg.Table == name || q.DeadLetter != nil && q.DeadLetter.Format != pipeline.FormatDelta && q.DeadLetter.Table == name {
			out = append(out, q)
		}
	}
	return out
}

// stagedFor are the files that the checkpoints of a table's writers hold staged,
// and those of a rebuild that is to be swapped in.
func (a *App) stagedFor(ctx context.Context, name string) ([]string, error) {
	out, err := a.rebuiltFiles(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("table %s: %w", name+besideSuffix, err)
	}
	for _, q := range a.writersOf(name) {
		store, err := a.openCheckpoint(ctx, CheckpointDir(a.P, q))
		if err != nil {
			return nil, fmt.Errorf("query %s: checkpoint: %w", q.Name, err)
		}
		files, err := checkpoint.Open(store, q.Name).StagedFiles(ctx)
		if err != nil {
			return nil, fmt.Errorf("query %s: checkpoint: %w", q.Name, err)
		}
		out = append(out, files...)
	}
	return out, nil
}

// oldestReader is the sequence number of the oldest snapshot of a table from
// which a query of the pipeline reads on; 0 where none does, or where that
// snapshot is gone already: such a reader goes by offsets.
func (a *App) oldestReader(ctx context.Context, name string) (int64, error) {
	var oldest int64
	var upstream *table.Table
	for _, q := range a.P.Queries {
		if q.From.Table == nil || q.From.Table.Name != name || q.To.Iceberg == nil {
			continue
		}
		if upstream == nil {
			t, err := a.loadNamed(ctx, name)
			if err != nil || t == nil {
				return 0, err
			}
			upstream = t
		}
		t, err := a.loadNamed(ctx, q.To.Iceberg.Table)
		if err != nil {
			return 0, err
		}
		if t == nil {
			continue
		}
		markers, err := marker.FromProperties(t.Properties())
		if err != nil {
			return 0, err
		}
		m := markers[q.Name]
		if m == nil || m.Position.Table == nil {
			continue
		}
		if s := upstream.SnapshotByID(m.Position.Table.SnapshotID); s != nil && (oldest == 0 || s.SequenceNumber < oldest) {
			oldest = s.SequenceNumber
		}
	}
	return oldest, nil
}

// loadNamed loads a table; nil where there is none.
func (a *App) loadNamed(ctx context.Context, name string) (*table.Table, error) {
	ident, err := lake.ParseName(name)
	if err != nil {
		return nil, err
	}
	t, err := a.Catalog.LoadTable(ctx, ident)
	if errors.Is(err, lake.ErrNoTable) {
		return nil, nil
	}
	return t, err
}

// opsTables are the tables of the engine's own rows.
func (a *App) opsTables() (out []string) {
	for _, t := range []string{a.P.Ops.ProgressTable, a.P.Ops.RunsTable, a.P.Ops.ChecksTable, ErasuresTable} {
		if t != "" && !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}

// careForOps looks after those tables while the pipeline runs.
func (a *App) careForOps(ctx context.Context) error {
	tables := a.opsTables()
	if len(tables) == 0 {
		return nil
	}
	cares := map[string]*maintain.Care{}
	for _, name := range tables {
		ident, err := lake.ParseName(name)
		if err != nil {
			return err
		}
		cares[name] = maintain.New(a.Catalog, ident, maintain.Settings{
			Retention: lake.Retention{Keep: opsKeepSnapshots}, Clock: a.opts.Clock, Scope: "ops",
		})
	}
	a.opsCare, a.opsCareFrom = cares, a.opts.Clock.Now()
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for a.opts.Clock.Sleep(run, opsCareEvery) == nil {
			for _, name := range tables {
				if err := cares[name].Step(run); err != nil && !errors.Is(err, lake.ErrNoTable) && run.Err() == nil {
					a.opts.Logger.Warn("table care failed, it is tried again later", "table", name, "error", err)
				}
			}
		}
	}()
	a.closers = append(a.closers, func() error {
		stop()
		<-stopped
		return nil
	})
	return nil
}

// TableCare is what care by hand did to one table.
type TableCare struct {
	Table     string                 `json:"table"`
	Format    string                 `json:"format"`
	Compacted *maintain.Compacted    `json:"compacted,omitempty"`
	Delta     *DeltaOptimized        `json:"delta,omitempty"`
	Expired   *int                   `json:"expired_snapshots,omitempty"`
	Left      *int                   `json:"snapshots,omitempty"`
	Orphans   *maintain.OrphanReport `json:"orphans,omitempty"`
}

// CareByHand says what is to be done.
type CareByHand struct {
	Compact     bool
	TargetBytes int64
	Sort        []string
	Expire      bool
	Keep        int
	Orphans     *maintain.OrphanOptions
}

// Care does it to the named tables, or to all that the pipeline writes. Queries
// may run meanwhile.
func Care(ctx context.Context, p *pipeline.Pipeline, tables []string, o CareByHand, opts Options) ([]TableCare, error) {
	a := &App{P: p, opts: opts, notify: map[string]*notifier{}}
	a.fillOptions()
	if err := a.openCatalogToRead(ctx); err != nil {
		return nil, err
	}
	defer a.Close()
	iceberg, deltas := a.cared()
	named := len(tables) > 0
	if !named {
		tables = slices.Clone(iceberg)
		if o.Compact {
			tables = append(tables, deltas...)
		}
	}
	out := []TableCare{}
	for _, name := range tables {
		if o.Compact && slices.Contains(deltas, name) {
			done, err := OptimizeDelta(ctx, p, []string{name}, delta.OptimizeOptions{TargetBytes: o.TargetBytes}, opts)
			if err != nil && !named && errors.Is(err, delta.ErrNoTable) {
				continue
			}
			if err != nil {
				return out, err
			}
			out = append(out, TableCare{Table: name, Format: pipeline.FormatDelta, Delta: &done[0]})
			continue
		}
		if slices.Contains(deltas, name) {
			return out, failure.New(failure.Config, "%s is a Delta table", name).WithHint("weir delta vacuum removes its files")
		}
		done, err := a.careFor(ctx, name, o)
		if errors.Is(err, lake.ErrNoTable) && !named {
			continue
		}
		if errors.Is(err, lake.ErrNoTable) {
			return out, failure.New(failure.Config, "there is no table %q; the pipeline writes %v", name, append(iceberg, deltas...))
		}
		if err != nil {
			return out, fmt.Errorf("table %s: %w", name, err)
		}
		out = append(out, *done)
	}
	return out, nil
}

// cared are the tables that the pipeline writes.
func (a *App) cared() (iceberg, deltas []string) {
	add := func(to *[]string, name string) {
		if name != "" && !slices.Contains(*to, name) {
			*to = append(*to, name)
		}
	}
	for _, q := range a.P.Queries {
		switch {
		case q.To.Iceberg != nil:
			add(&iceberg, q.To.Iceberg.Table)
		case q.To.Delta != nil:
			add(&deltas, q.To.Table())
		}
		if d := q.DeadLetter; d != nil && d.Format == pipeline.FormatDelta {
			add(&deltas, d.Table)
		} else if d != nil {
			add(&iceberg, d.Table)
		}
	}
	for _, t := range a.opsTables() {
		add(&iceberg, t)
	}
	return iceberg, deltas
}

func (a *App) careFor(ctx context.Context, name string, o CareByHand) (*TableCare, error) {
	if a.Catalog == nil {
		return nil, lake.ErrNoTable
	}
	ident, err := lake.ParseName(name)
	if err != nil {
		return nil, err
	}
	if _, err := a.Catalog.LoadTable(ctx, ident); err != nil {
		return nil, err
	}
	s := maintain.Settings{Staged: func(ctx context.Context) ([]string, error) { return a.stagedFor(ctx, name) }}
	if w := a.writersOf(name); len(w) > 0 {
		s, s.Retention, s.OldestReader = a.careOf(w[0], name, w[0].To.Iceberg == nil || w[0].To.Iceberg.Table != name)
	} else if slices.Contains(a.opsTables(), name) {
		s.Retention.Keep = opsKeepSnapshots
	}
	s.Clock, s.Scope = a.opts.Clock, "care"
	out := &TableCare{Table: name, Format: pipeline.FormatIceberg}
	if o.Compact {
		s.TargetBytes, s.MinFiles = o.TargetBytes, 2
		if len(o.Sort) > 0 {
			s.Sort = o.Sort
		}
		done, err := maintain.Compact(ctx, a.Catalog, ident, s)
		if err != nil {
			return nil, err
		}
		out.Compacted = &done
	}
	if o.Expire {
		if o.Keep > 0 {
			s.Retention.Keep = o.Keep
		}
		expired, left, err := maintain.Expire(ctx, a.Catalog, ident, s)
		if err != nil {
			return nil, err
		}
		out.Expired, out.Left = &expired, &left
	}
	if o.Orphans != nil {
		done, err := maintain.Orphans(ctx, a.Catalog, ident, *o.Orphans, s)
		if err != nil {
			return nil, err
		}
		out.Orphans = &done
	}
	return out, nil
}
