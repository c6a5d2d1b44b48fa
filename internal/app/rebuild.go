package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/checkpoint"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/maintain"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/pipeline"
)

// A rebuild runs a query again from the first row of its source, with the
// definition that the file has now, into tables beside its own, from a checkpoint
// of its own; then one commit exchanges the rows of the live table for the new ones
// (ADR 18). The steps, each durable and found again by the same command:
//
//	begun    the plan is written down, under the live query's id
//	built    the new tables have caught up; the live query may run all the time
//	locked   the live query is stopped: its checkpoint is locked, the rest is read
//	swapping the batch id and epoch of the exchange are written down; from here on
//	         weir run refuses the query until the rebuild is finished
//	kept     the rows from before are under a tag; once for each table
//	side     the dead-letter table holds the new rows
//	swapped  the table holds the new rows, the old ones are under that tag
//	adopted  the live checkpoint goes on from there
//	done     what stood beside is removed

// rebuildsFolder, below the checkpoint location, holds the plans of rebuilds that
// are not finished, and their checkpoints.
const rebuildsFolder = "_rebuilds"

// besideSuffix ends the names of the tables that stand beside the live ones.
const besideSuffix = "__rebuild"

// rebuildScope is under which the crash points are reached.
const rebuildScope = "rebuild"

// RebuildRequest says what is rebuilt.
type RebuildRequest struct {
	Queries []string
	// NoSwap leaves the new table beside the live one, to be looked at. Abort
	// removes what is there beside.
	NoSwap, Abort bool
}

// RebuildReport says what a rebuild has come to.
type RebuildReport struct {
	Query string `json:"query"`
	ID    string `json:"id,omitempty"`
	Table string `json:"table"`
	// Beside is the new table until it is swapped in.
	Beside  string `json:"beside,omitempty"`
	Swapped bool   `json:"swapped"`
	Aborted bool   `json:"aborted,omitempty"`
	Resumed bool   `json:"resumed,omitempty"`
	// Rows are those of the new table, RowsBefore those of the one it replaced.
	Rows       int64 `json:"rows"`
	RowsBefore int64 `json:"rows_before"`
	// Counters add up all batches of the rebuild.
	Counters marker.Counters `json:"counters"`
	// Tag names the snapshot with the rows from before.
	Tag            string `json:"tag,omitempty"`
	SnapshotBefore int64  `json:"snapshot_before,omitempty"`
	// Downstream are the queries that read the table: they stop until they are
	// rebuilt as well.
	Downstream []string `json:"downstream,omitempty"`
}

// rebuildPlan is the file of a rebuild that is not finished.
type rebuildPlan struct {
	Format  int       `json:"format"`
	ID      string    `json:"id"`
	Query   string    `json:"query"`
	QueryID string    `json:"query_id"`
	BegunAt time.Time `json:"begun_at"`
	// Source names the erasures and the rebuild that the source had seen: rows
	// that were read before another one are not swapped in.
	Source string `json:"source"`
}

// swapPlan is the file of an exchange under way.
type swapPlan struct {
	ID      string       `json:"id"`
	BatchID int64        `json:"batch_id"`
	Epoch   marker.Epoch `json:"epoch"`
	// Erasures are, by table, those that the live tables had seen.
	Erasures map[string]string `json:"erasures"`
}

// errOutdated says that the rows beside were read before an erasure or a rebuild
// of their source.
var errOutdated = errors.New("rows of the source were erased or exchanged since the rebuild began")

// rebuilding is one rebuild under way.
type rebuilding struct {
	a      *App
	q      pipeline.Query
	store  objstore.Store // of the plans
	plan   rebuildPlan
	report *RebuildReport
}

// Rebuild rebuilds queries, upstream first.
func Rebuild(ctx context.Context, p *pipeline.Pipeline, r RebuildRequest, o Options) ([]*RebuildReport, error) {
	queries, err := rebuildOrder(p, r.Queries)
	if err != nil {
		return nil, err
	}
	var out []*RebuildReport
	for _, q := range queries {
		rep, err := rebuildOne(ctx, p, q, r, o)
		if rep != nil {
			out = append(out, rep)
		}
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

// rebuildOrder are the named queries, each after those that feed it.
func rebuildOrder(p *pipeline.Pipeline, names []string) ([]pipeline.Query, error) {
	var left, out []pipeline.Query
	for _, n := range names {
		q, err := QueryByName(p, n)
		if err != nil {
			return nil, err
		}
		if err := rebuildable(p, q); err != nil {
			return nil, err
		}
		left = append(left, q)
	}
	for len(left) > 0 {
		i := slices.IndexFunc(left, func(q pipeline.Query) bool {
			return !slices.ContainsFunc(left, func(up pipeline.Query) bool { return up.To.Table() == q.From.Table.Name })
		})
		if i < 0 {
			return nil, failure.New(failure.Config, "the queries read each other's tables in a circle")
		}
		out, left = append(out, left[i]), slices.Delete(left, i, i+1)
	}
	return out, nil
}

// rebuildable refuses what cannot be rebuilt, each with the reason.
func rebuildable(p *pipeline.Pipeline, q pipeline.Query) error {
	refuse := func(why string, args ...any) error {
		return failure.New(failure.Config, "query %s cannot be rebuilt: %s", q.Name, fmt.Sprintf(why, args...))
	}
	switch {
	case q.From.Table == nil:
		return refuse("it reads Kafka, which need not have the records any more; a query over a table can be")
	case q.To.Iceberg == nil:
		return refuse("its table is not an Iceberg table of the catalog")
	case q.To.Iceberg.Mode == pipeline.ModeUpsert:
		return refuse("it merges by key; what it remembers of deletes is not made anew yet")
	case q.From.Table.StartingOffsets.Mode == pipeline.Latest:
		return refuse("it began at latest, and where that was is not known any more")
	case q.DeadLetter != nil && q.DeadLetter.Format == pipeline.FormatDelta:
		return refuse("its dead-letter table is a Delta table")
	}
	for _, o := range p.Queries {
		if o.Name != q.Name && o.To.Table() == q.To.Table() {
			return refuse("query %s writes to %s as well", o.Name, q.To.Table())
		}
	}
	return nil
}

func rebuildOne(ctx context.Context, p *pipeline.Pipeline, q pipeline.Query, r RebuildRequest, o Options) (*RebuildReport, error) {
	a := &App{P: p, opts: o, notify: map[string]*notifier{}}
	a.fillOptions()
	if err := a.openCatalog(ctx); err != nil {
		return nil, err
	}
	defer a.Close()
	store, err := a.openCheckpoint(ctx, a.rebuilds())
	if err != nil {
		return nil, err
	}
	b := &rebuilding{a: a, q: q, store: store, report: &RebuildReport{Query: q.Name, Table: q.To.Iceberg.Table}}
	for _, d := range p.Queries {
		if d.From.Table != nil && d.From.Table.Name == q.To.Iceberg.Table {
			b.report.Downstream = append(b.report.Downstream, d.Name)
		}
	}
	if r.Abort {
		return b.report, b.abort(ctx)
	}
	for range rebuildTries {
		err := b.run(ctx, r.NoSwap)
		if !errors.Is(err, errOutdated) {
			return b.report, err
		}
		a.opts.Logger.Warn("rows of the source were erased or exchanged since the rebuild began: it begins again", "query", q.Name)
		if err := b.remove(ctx); err != nil {
			return b.report, err
		}
	}
	return b.report, failure.New(failure.Runtime, "query %s: rows of %s were erased or exchanged during each of %d rebuilds", q.Name, q.From.Table.Name, rebuildTries)
}

// rebuildTries bounds how often a rebuild begins again within one command.
const rebuildTries = 3

// run takes the steps that are left.
func (b *rebuilding) run(ctx context.Context, noSwap bool) error {
	if err := b.begin(ctx); err != nil {
		return err
	}
	fault.Reach(rebuildScope, fault.RebuildBegun)
	swap, err := b.swapping(ctx)
	if err != nil {
		return err
	}
	if swap == nil {
		if err := b.build(ctx); err != nil {
			return err
		}
		fault.Reach(rebuildScope, fault.RebuildBuilt)
		if noSwap {
			b.report.Beside = b.beside(b.q.To.Iceberg.Table)
			return nil
		}
	}
	if err := b.exchange(ctx, swap); err != nil {
		return err
	}
	b.report.Swapped = true
	if err := b.adopt(ctx); err != nil {
		return err
	}
	fault.Reach(rebuildScope, fault.RebuildAdopted)
	if err := b.remove(ctx); err != nil {
		return err
	}
	fault.Reach(rebuildScope, fault.RebuildDone)
	return nil
}

// rebuilds is the folder of all rebuilds; location that of one's checkpoint.
func (a *App) rebuilds() string { return a.aside(rebuildsFolder) }

// aside is a folder for what is under way beside the queries: below the checkpoint
// location, or below the warehouse where every query has a location of its own.
func (a *App) aside(folder string) string {
	if a.P.CheckpointLocation == "" {
		return pipeline.JoinLocation(a.P.Warehouse, folder)
	}
	return pipeline.JoinLocation(a.P.CheckpointLocation, folder)
}

func (b *rebuilding) location() string { return pipeline.JoinLocation(b.a.rebuilds(), b.q.Name) }

func (b *rebuilding) planKey() string { return b.q.Name + ".json" }
func (b *rebuilding) swapKey() string { return b.q.Name + ".swap.json" }

// beside names the new table of a live one.
func (b *rebuilding) beside(name string) string { return name + besideSuffix }

// tables are the query's, the dead-letter table first, as they are committed.
func (b *rebuilding) tables() (out []string) {
	if b.q.DeadLetter != nil {
		out = append(out, b.q.DeadLetter.Table)
	}
	return append(out, b.q.To.Iceberg.Table)
}

// begin writes the plan down, or takes up one that is there.
func (b *rebuilding) begin(ctx context.Context) error {
	live, err := b.liveMarker(ctx, b.q.To.Iceberg.Table)
	if err != nil {
		return err
	}
	source, err := b.sourceState(ctx)
	if err != nil {
		return err
	}
	body, err := json.Marshal(rebuildPlan{Format: 1, ID: "rebuild-" + clock.Nonce(), Query: b.q.Name, QueryID: live.QueryID, BegunAt: b.a.opts.Clock.Now().UTC(), Source: source})
	if err != nil {
		return err
	}
	created, existing, err := b.store.CreateOnce(ctx, b.planKey(), body)
	if err != nil {
		return fmt.Errorf("write down the rebuild in %s: %w", b.store.Location(), err)
	}
	if !created {
		body = existing
	}
	b.plan = rebuildPlan{}
	if err := json.Unmarshal(body, &b.plan); err != nil || b.plan.Format != 1 {
		return failure.New(failure.Checkpoint, "unfinished rebuild %s cannot be read (%v)", b.planKey(), err).WithHint("weir rebuild --abort removes it")
	}
	b.report.ID, b.report.Resumed = b.plan.ID, !created
	return nil
}

// liveMarker is the query's in one of its live tables.
func (b *rebuilding) liveMarker(ctx context.Context, name string) (*marker.Marker, error) {
	t, err := b.a.loadNamed(ctx, name)
	if err != nil {
		return nil, failure.Wrap(failure.Unreachable, err, "read table %s", name)
	}
	if t == nil {
		return nil, failure.New(failure.Config, "query %s has not made its table %s yet: there is nothing to rebuild", b.q.Name, name)
	}
	markers, err := marker.FromProperties(t.Properties())
	if err != nil {
		return nil, failure.Wrap(failure.Checkpoint, err, "table %s", name)
	}
	m := markers[b.q.Name]
	if m == nil || m.Kind != marker.KindStream {
		return nil, failure.New(failure.Checkpoint, "table %s holds no marker of query %s", name, b.q.Name)
	}
	return m, nil
}

// sourceState names what has been taken out of, or exchanged in, the source.
func (b *rebuilding) sourceState(ctx context.Context) (string, error) {
	t, err := b.a.loadNamed(ctx, b.q.From.Table.Name)
	if err != nil {
		return "", failure.Wrap(failure.Unreachable, err, "read table %s", b.q.From.Table.Name)
	}
	if t == nil {
		return "", failure.New(failure.Config, "the source table %s is not there", b.q.From.Table.Name)
	}
	rebuilt, err := marker.RebuiltOf(t.Properties())
	if err != nil {
		return "", failure.Wrap(failure.Checkpoint, err, "table %s", b.q.From.Table.Name)
	}
	state := marker.ErasuresOf(t.Properties())
	if rebuilt != nil {
		state += " " + rebuilt.ID
	}
	return state, nil
}

// upToDate refuses rows that were read before an erasure.
func (b *rebuilding) upToDate(ctx context.Context) error {
	now, err := b.sourceState(ctx)
	if err == nil && now != b.plan.Source {
		err = errOutdated
	}
	return err
}

// build runs the query into the tables beside until it has caught up.
func (b *rebuilding) build(ctx context.Context) error {
	if err := b.upToDate(ctx); err != nil {
		return err
	}
	t, err := Transform(b.q)
	if err != nil {
		return err
	}
	shapes := []*arrow.Schema{t.Outputs()[operator.Main]}
	if b.q.DeadLetter != nil {
		shapes = append([]*arrow.Schema{t.Outputs()[operator.DeadLetter]}, shapes...)
	}
	for i, name := range b.tables() {
		if err := b.makeBeside(ctx, name, shapes[i]); err != nil {
			return err
		}
	}
	q, err := b.query(ctx, t)
	if err != nil {
		return err
	}
	log := checkpoint.Open(q.Checkpoint, q.Name)
	if _, err := log.CreateMetadata(ctx, checkpoint.Metadata{QueryID: b.plan.QueryID, InstanceID: q.Options.InstanceID, CreatedAt: b.plan.BegunAt}); err != nil {
		return err
	}
	if err := q.Run(ctx); err != nil {
		return fmt.Errorf("rebuild beside: %w", err)
	}
	return ctx.Err()
}

// makeBeside makes a table like a live one, whose files lie in the live one's
// folder: they become its files.
func (b *rebuilding) makeBeside(ctx context.Context, name string, shape *arrow.Schema) error {
	live, err := b.a.loadNamed(ctx, name)
	if err != nil || live == nil {
		return failure.Wrap(failure.Unreachable, errors.Join(err, lake.ErrNoTable), "read table %s", name)
	}
	ident, err := lake.ParseName(b.beside(name))
	if err != nil {
		return err
	}
	columns, err := icebergSchema(shape)
	if err != nil {
		return err
	}
	if err := lake.CheckSchema(live.Identifier(), live.Schema(), columns); err != nil {
		return failure.Wrap(failure.SchemaConflict, err, "query %s has other columns than its table", b.q.Name).
			WithHint("run it once with the new file (weir run FILE --once --query %s), which changes the table's columns; then rebuild", b.q.Name)
	}
	props := map[string]string{}
	for k, v := range live.Properties() {
		if !strings.HasPrefix(k, lake.SummaryPrefix) { // markers and what else is ours
			props[k] = v
		}
	}
	props["write.data.path"] = lake.DataLocation(live)
	made, err := b.a.Catalog.EnsureTable(ctx, ident, live.Schema(), live.Spec(), props)
	if err != nil {
		return err
	}
	if !alike(live, made) {
		return failure.New(failure.SchemaConflict, "table %s: its columns or its partitioning were changed since it was made, so that a new table numbers them in another way", name).
			WithHint("give the query another name and table, which starts over")
	}
	return nil
}

// alike reports whether files of one table can be files of the other: by field ids
// and partitioning.
func alike(a, b *table.Table) bool {
	af, aerr := json.Marshal(a.Schema().Fields())
	bf, berr := json.Marshal(b.Schema().Fields())
	spec := a.Spec()
	return aerr == nil && berr == nil && bytes.Equal(af, bf) && spec.Equals(b.Spec())
}

// query is the query as it runs into the tables beside.
func (b *rebuilding) query(ctx context.Context, t operator.Transform) (*engine.Query, error) {
	a, q := b.a, b.q
	src, opts, err := a.buildSource(q)
	if err != nil {
		return nil, err
	}
	a.closers = append(a.closers, src.Close)
	outputs, err := b.sinks(t)
	if err != nil {
		return nil, err
	}
	store, err := a.openCheckpoint(ctx, b.location())
	if err != nil {
		return nil, fmt.Errorf("query %s: checkpoint: %w", q.Name, err)
	}
	opts.Trigger = engine.Trigger{AvailableNow: true}
	opts.CommitDeadline, opts.InstanceID = commitDeadline(q), instanceID(b.location(), q.Name)
	out := &engine.Query{
		Name: q.Name, Source: src, Transform: t, Outputs: outputs, Checkpoint: store, LockDir: b.a.lockDir(b.location()), Options: opts,
		Clock: a.opts.Clock, Logger: a.opts.Logger, OnProgress: a.opts.OnProgress,
	}
	return out, nil
}

// sinks write to the tables beside. Nothing expires there: their history is what
// the counts are added up from.
func (b *rebuilding) sinks(t operator.Transform) ([]engine.Output, error) {
	idle := maintain.Settings{NoExpiry: true, NoCompaction: true, NoManifests: true, NoOrphans: true}
	shapes := t.Outputs()
	spec := SinkSpec{Query: b.q.Name, Table: b.beside(b.q.To.Iceberg.Table), Shape: shapes[operator.Main], PartitionBy: b.q.To.Iceberg.PartitionBy, Clock: b.a.opts.Clock, Care: idle}
	main, err := IcebergSink(b.a.Catalog, spec)
	if err != nil || b.q.DeadLetter == nil {
		return []engine.Output{{Name: operator.Main, Sink: main}}, err
	}
	side, err := IcebergSink(b.a.Catalog, SinkSpec{Query: b.q.Name, Table: b.beside(b.q.DeadLetter.Table), Side: true, Shape: shapes[operator.DeadLetter], Clock: b.a.opts.Clock, Care: idle})
	return []engine.Output{{Name: operator.Main, Sink: main}, {Name: operator.DeadLetter, Sink: side}}, err
}

// swapping is the exchange that was under way, nil where none was.
func (b *rebuilding) swapping(ctx context.Context) (*swapPlan, error) {
	body, err := b.store.Get(ctx, b.swapKey())
	if errors.Is(err, objstore.ErrNotExist) {
		return nil, nil //nolint:nilnil // not yet
	}
	if err != nil {
		return nil, fmt.Errorf("read %s in %s: %w", b.swapKey(), b.store.Location(), err)
	}
	out := &swapPlan{}
	if err := json.Unmarshal(body, out); err != nil {
		return nil, failure.Wrap(failure.Checkpoint, err, "unfinished rebuild %s", b.swapKey())
	}
	if out.ID != b.plan.ID {
		return nil, failure.New(failure.Checkpoint, "%s is of rebuild %s, %s of %s", b.swapKey(), out.ID, b.planKey(), b.plan.ID).WithHint("weir rebuild --abort removes both")
	}
	return out, nil
}

// hold locks the live query's checkpoint: the query must not run on this host. One
// that runs elsewhere is fenced by the epoch of the exchange.
func (b *rebuilding) hold() (release func(), err error) {
	location := CheckpointDir(b.a.P, b.q)
	dir := b.a.lockDir(location)
	if dir == "" {
		return func() {}, nil
	}
	lock, err := checkpoint.Acquire(dir, instanceID(location, b.q.Name), false)
	if failure.Is(err, failure.Fenced) {
		return nil, failure.Wrap(failure.Fenced, err, "query %s is running; the new table is built and waits beside", b.q.Name).
			WithHint("stop the query and run the same command again: it reads the rest and swaps")
	}
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	return func() { _ = lock.Release() }, nil
}

// exchange puts the rows beside into the live tables.
func (b *rebuilding) exchange(ctx context.Context, swap *swapPlan) error {
	release, err := b.hold()
	if err != nil {
		return err
	}
	defer release()
	if swap == nil {
		// What the live query has read since. Nothing moves on after this.
		if err := b.build(ctx); err != nil {
			return err
		}
		if swap, err = b.writeSwap(ctx); err != nil {
			return err
		}
	}
	fault.Reach(rebuildScope, fault.RebuildSwapping)
	if err := b.copyState(ctx); err != nil {
		return err
	}
	for _, name := range b.tables() {
		if err := b.swapTable(ctx, name, swap); err != nil {
			return err
		}
		if name == b.q.To.Iceberg.Table {
			fault.Reach(rebuildScope, fault.RebuildSwapped)
		} else {
			fault.Reach(rebuildScope, fault.RebuildSide)
		}
	}
	return nil
}

// writeSwap fixes batch id and epoch of the exchange: above all that any of the
// tables, the checkpoint, or the state of the rebuild has.
func (b *rebuilding) writeSwap(ctx context.Context) (*swapPlan, error) {
	swap := &swapPlan{ID: b.plan.ID, Erasures: map[string]string{}, Epoch: marker.Epoch{Nonce: clock.Nonce()}}
	raise := func(m *marker.Marker) {
		swap.BatchID, swap.Epoch.Number = max(swap.BatchID, m.BatchID+1), max(swap.Epoch.Number, m.Epoch.Number+1)
	}
	for _, name := range b.tables() {
		t, err := b.a.loadNamed(ctx, name)
		if err != nil || t == nil {
			return nil, failure.Wrap(failure.Unreachable, errors.Join(err, lake.ErrNoTable), "read table %s", name)
		}
		swap.Erasures[name] = marker.ErasuresOf(t.Properties())
		for _, n := range []string{name, b.beside(name)} {
			m, err := b.liveMarker(ctx, n)
			if err != nil {
				return nil, err
			}
			raise(m)
		}
	}
	// The source is looked at after the erasures of the live tables: an erasure
	// comes here later than there, so one that is in neither look is met by the
	// exchange in the live table.
	if err := b.upToDate(ctx); err != nil {
		return nil, err
	}
	facts, err := b.a.checkpointFacts(ctx, b.q)
	if err != nil {
		return nil, err
	}
	if facts.Plan != nil {
		swap.BatchID = max(swap.BatchID, facts.Plan.BatchID+1)
	}
	body, err := json.Marshal(swap)
	if err != nil {
		return nil, err
	}
	if created, _, err := b.store.CreateOnce(ctx, b.swapKey(), body); err != nil || !created {
		return nil, failure.Wrap(failure.Fenced, errors.Join(err, errors.New("somebody else has begun it")), "write down the exchange in %s", b.store.Location())
	}
	return swap, nil
}

// copyState puts the state that the rebuild has come to into the live checkpoint,
// under the names that the marker will give.
func (b *rebuilding) copyState(ctx context.Context) error {
	from, err := b.a.openCheckpoint(ctx, b.location())
	if err != nil {
		return err
	}
	to, err := b.a.openCheckpoint(ctx, CheckpointDir(b.a.P, b.q))
	if err != nil {
		return err
	}
	files, err := from.List(ctx, stateFolder+"/")
	if err != nil {
		return fmt.Errorf("list the state in %s: %w", from.Location(), err)
	}
	for _, f := range files {
		data, err := from.Get(ctx, f.Key)
		if err == nil {
			_, _, err = to.CreateOnce(ctx, f.Key, data)
		}
		if err != nil {
			return fmt.Errorf("copy the state %s to %s: %w", f.Key, to.Location(), err)
		}
	}
	return nil
}

// adopt makes the live checkpoint go on from the exchange.
func (b *rebuilding) adopt(ctx context.Context) error {
	o := b.a.opts
	o.Queries, o.finishing, o.OnProgress = []string{b.q.Name}, true, nil
	a := &App{P: b.a.P, opts: o, notify: map[string]*notifier{}}
	a.fillOptions()
	defer a.Close()
	if _, err := a.putAside(ctx, b.q, true); err != nil {
		return err
	}
	if err := a.openCatalog(ctx); err != nil {
		return err
	}
	if err := a.openProgress(ctx); err != nil {
		return err
	}
	if err := a.buildQueries(ctx); err != nil {
		return err
	}
	for _, q := range a.Queries() {
		q.Options.OnLostCheckpoint = checkpoint.Adopt
		if err := q.Claim(ctx); err != nil {
			return fmt.Errorf("go on after the rebuild: %w", err)
		}
	}
	return nil
}

// abort removes a rebuild that has not begun to exchange tables.
func (b *rebuilding) abort(ctx context.Context) error {
	if _, err := b.store.Get(ctx, b.swapKey()); err == nil {
		return failure.New(failure.Config, "the rebuild of query %s is exchanging its tables: it can only be finished", b.q.Name).WithHint("weir rebuild FILE %s", b.q.Name)
	}
	b.report.Aborted = true
	return b.remove(ctx)
}

// remove takes away what stands beside: the tables, the checkpoint, the plans, in
// this order, so that a crash leaves a plan to go on by.
func (b *rebuilding) remove(ctx context.Context) error {
	for _, name := range b.tables() {
		if err := b.dropBeside(ctx, b.beside(name)); err != nil {
			return err
		}
	}
	at, err := b.a.openCheckpoint(ctx, b.location())
	if err != nil {
		return err
	}
	files, err := at.List(ctx, "")
	if err != nil {
		return fmt.Errorf("list %s: %w", at.Location(), err)
	}
	for _, f := range files {
		if err := at.Delete(ctx, f.Key); err != nil {
			return fmt.Errorf("remove %s from %s: %w", f.Key, at.Location(), err)
		}
	}
	for _, key := range []string{b.swapKey(), b.planKey()} {
		if err := b.store.Delete(ctx, key); err != nil {
			return fmt.Errorf("remove %s: %w", key, err)
		}
	}
	return nil
}

// dropBeside takes a table out of the catalog and removes its metadata files. Its
// data files are the live table's, or orphans in its folder.
func (b *rebuilding) dropBeside(ctx context.Context, name string) error {
	t, err := b.a.loadNamed(ctx, name)
	if err != nil || t == nil {
		return err
	}
	var files []string
	err = lake.Files(ctx, t, lake.MetadataFolder(t), func(f lake.StoredFile) error {
		files = append(files, f.Path)
		return nil
	})
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	if err := b.a.Catalog.DropTable(ctx, t.Identifier()); err != nil {
		return fmt.Errorf("drop table %s: %w", name, err)
	}
	for _, f := range files {
		if err := lake.RemoveFile(ctx, t, f); err != nil {
			b.a.opts.Logger.Warn("a metadata file of the dropped table stays", "file", f, "error", err)
		}
	}
	return nil
}

// unfinished are the queries whose tables are being exchanged.
func (a *App) unfinished(ctx context.Context, suffix string) (map[string]bool, error) {
	out := map[string]bool{}
	location := a.rebuilds()
	if !pipeline.Remote(location) {
		if _, err := os.Stat(filepath.Clean(location)); err != nil {
			return out, nil //nolint:nilerr // none was ever begun
		}
	}
	store, err := a.openCheckpoint(ctx, location)
	if err != nil {
		return nil, err
	}
	for _, q := range a.P.Queries {
		_, err := store.Get(ctx, q.Name+suffix)
		switch {
		case err == nil:
			out[q.Name] = true
		case !errors.Is(err, objstore.ErrNotExist):
			return nil, fmt.Errorf("look for an unfinished rebuild of query %s: %w", q.Name, err)
		}
	}
	return out, nil
}

// refuseUnfinished keeps a query from running while its tables are exchanged.
func (a *App) refuseUnfinished(ctx context.Context) error {
	if a.opts.finishing {
		return nil
	}
	all, err := a.unfinished(ctx, ".swap.json")
	if err != nil {
		return err
	}
	for _, q := range a.P.Queries {
		if all[q.Name] && (a.opts.Queries == nil || slices.Contains(a.opts.Queries, q.Name)) {
			return failure.New(failure.Checkpoint, "a rebuild of query %s was interrupted while its tables were exchanged", q.Name).
				WithHint("finish it: weir rebuild FILE %s", q.Name)
		}
	}
	return nil
}

// rebuiltFiles are the data files that a rebuild of a table's query has written:
// no snapshot of the table has them yet.
func (a *App) rebuiltFiles(ctx context.Context, name string) ([]string, error) {
	t, err := a.loadNamed(ctx, name+besideSuffix)
	if err != nil || t == nil {
		return nil, err
	}
	files, _, err := lake.FilesOf(ctx, t)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, f := range files {
		out = append(out, f.FilePath())
	}
	return out, nil
}
