package iceberg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/datafile"
	"github.com/weirlake/weir/internal/lake/scan"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/upsert"
)

// keyUpsert is the summary key that says what a merge did.
const keyUpsert = "weir.upsert"

// changesFolder, below the table's data, holds the changes of attempts until they
// are merged. What is in it is an orphan for every reader.
const changesFolder = "/weir-changes/"

type aborter interface{ Abort() }

// changeStage is the staging area of a sink that merges: a file of changes, and
// the changes themselves.
type changeStage struct {
	s       *Sink
	path    string
	attempt string
	out     interface {
		Write([]byte) (int, error)
		Close() error
	}
	w *upsert.StageWriter
}

func (s *Sink) stageChanges(ctx context.Context, t *table.Table, batchID int64, attempt string) (sink.Stage, error) {
	storage, err := lake.DataFSOf(ctx, t)
	if err != nil {
		return nil, err
	}
	path := fmt.Sprintf("%s%s%s-%d-%s.arrow", lake.DataLocation(t), changesFolder, fileSafe(s.opts.Query), batchID, fileSafe(attempt))
	out, err := storage.Create(path)
	if err != nil {
		return nil, fmt.Errorf("stage batch %d of table %s: %w", batchID, s.Name(), err)
	}
	return &changeStage{s: s, path: path, attempt: attempt, out: out, w: upsert.NewStageWriter(out, s.changeSchema())}, nil
}

// Write implements sink.Stage.
func (st *changeStage) Write(rec arrow.RecordBatch) error { return st.w.Add(rec) }

// Abort implements sink.Stage.
func (st *changeStage) Abort() {
	if a, ok := st.out.(aborter); ok {
		a.Abort()
	} else {
		_ = st.out.Close() // an orphan
	}
	st.w.Release()
}

// Close implements sink.Stage.
func (st *changeStage) Close(context.Context) (sink.Staged, error) {
	rows, bytes, sha, err := st.w.Finish()
	if err != nil || rows == 0 {
		records := st.w.Records()
		st.Abort()
		for _, r := range records {
			r.Release()
		}
		if err != nil {
			return sink.Staged{}, fmt.Errorf("stage changes for table %s: %w", st.s.Name(), err)
		}
		return sink.Staged{Attempt: st.attempt, Handle: &changes{}}, nil
	}
	if err := st.out.Close(); err != nil {
		st.w.Release()
		return sink.Staged{}, fmt.Errorf("stage changes for table %s: %w", st.s.Name(), err)
	}
	fault.Reach(st.s.opts.Query, fault.StageFile)
	return sink.Staged{Attempt: st.attempt, Rows: rows, Handle: &changes{records: st.w.Records()},
		Files: []sink.StagedFile{{Path: st.path, Rows: rows, Bytes: bytes, Encoded: []byte(strconv.Quote(sha))}}}, nil
}

// changes are staged records, in this process's memory.
type changes struct{ records []arrow.RecordBatch }

// changesOf gives what was staged, by this process or another one.
func (s *Sink) changesOf(ctx context.Context, staged sink.Staged) ([]arrow.RecordBatch, error) {
	if c, ok := staged.Handle.(*changes); ok {
		out := c.records
		c.records = nil
		return out, nil
	}
	files, err := s.remembered().FS(ctx)
	if err != nil {
		return nil, err
	}
	var out []arrow.RecordBatch
	for _, f := range staged.Files {
		in, err := files.Open(f.Path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w: %s is gone", sink.ErrStale, f.Path)
		}
		if err != nil {
			return nil, failure.Wrap(failure.Unreachable, err, "staged changes %s of table %s", f.Path, s.Name())
		}
		sha, err := strconv.Unquote(string(f.Encoded))
		if err != nil {
			return nil, errors.Join(failure.Wrap(failure.Checkpoint, err, "staged changes %s of table %s", f.Path, s.Name()), in.Close())
		}
		records, err := upsert.ReadStage(in, sha)
		if err := errors.Join(err, in.Close()); err != nil {
			return nil, fmt.Errorf("%s of table %s: %w", f.Path, s.Name(), err)
		}
		for _, r := range records {
			now, err := s.underNow(ctx, r)
			r.Release()
			if err != nil {
				return nil, fmt.Errorf("%s of table %s: %w", f.Path, s.Name(), err)
			}
			out = append(out, now)
		}
	}
	return out, nil
}

// underNow gives changes that were staged under an earlier definition of the
// query the names and types of now. Columns that they lack are null when they are
// written; those that are gone since are left out.
func (s *Sink) underNow(ctx context.Context, rec arrow.RecordBatch) (arrow.RecordBatch, error) {
	var fields []arrow.Field
	var cols []arrow.Array
	defer func() {
		for _, c := range cols {
			c.Release()
		}
	}()
	for _, f := range s.changeSchema().Fields() {
		at := rec.Schema().FieldIndices(f.Name)
		if len(at) == 0 && s.opts.Evolution != nil {
			at = rec.Schema().FieldIndices(s.opts.Evolution.Renamed[f.Name])
		}
		if len(at) == 0 {
			continue
		}
		c, err := scan.Cast(ctx, rec.Column(at[0]), f.Type)
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", f.Name, err)
		}
		fields, cols = append(fields, f), append(cols, c)
	}
	return array.NewRecordBatch(arrow.NewSchema(fields, nil), cols, rec.NumRows()), nil
}

// changeSchema is the shape of staged changes.
func (s *Sink) changeSchema() *arrow.Schema {
	c := s.opts.Upsert.DeleteColumn
	if c == "" {
		return s.opts.Arrow
	}
	return arrow.NewSchema(append(s.opts.Arrow.Fields(), arrow.Field{Name: c, Type: arrow.FixedWidthTypes.Boolean}), nil)
}

// dropChanges removes what is merged. What a crash leaves is an orphan as any
// other file of an attempt.
func (s *Sink) dropChanges(ctx context.Context, staged sink.Staged) {
	files, err := s.remembered().FS(ctx)
	if err != nil {
		return
	}
	for _, f := range staged.Files {
		_ = files.Remove(f.Path)
	}
}

// merging is the merge of a commit's changes into whichever head it is tried on.
type merging struct {
	s      *Sink
	src    *upsert.Source
	prefix string

	// What was worked out, for the head of base; nothing before on.
	base    *table.Table
	files   map[string]bool // the data files of base's head
	plan    *upsert.Plan
	removed []iceberg.DataFile
	added   []iceberg.DataFile
	tries   int
}

func (s *Sink) merge(ctx context.Context, staged sink.Staged, m *marker.Marker) (*merging, error) {
	records, err := s.changesOf(ctx, staged)
	if err != nil {
		return nil, err
	}
	src, err := upsert.Reduce(records, *s.opts.Upsert)
	for _, r := range records {
		r.Release()
	}
	if err != nil {
		return nil, fmt.Errorf("merge into table %s: %w", s.Name(), err)
	}
	return &merging{s: s, src: src, prefix: fmt.Sprintf("%s-%d-%s-", fileSafe(s.opts.Query), m.BatchID, fileSafe(m.Attempt))}, nil
}

// on works out what the changes do to the head of t and writes the files that
// replace others. What was worked out for an earlier head is kept where nothing
// has happened since to rows that it looked at.
func (g *merging) on(ctx context.Context, t *table.Table) error {
	tasks, err := g.candidates(ctx, t)
	if err != nil {
		return fmt.Errorf("plan the merge into table %s: %w", g.s.Name(), err)
	}
	if g.holds(t, tasks) {
		return nil
	}
	g.tries++
	g.base, g.files, g.plan, g.removed, g.added = nil, map[string]bool{}, upsert.NewPlan(g.src), nil, nil
	for _, task := range tasks {
		path := task.File.FilePath()
		g.files[path] = true
		err := lake.ReadFile(ctx, t, task, g.src.Columns(), func(rec arrow.RecordBatch) error {
			defer rec.Release()
			return g.plan.Look(path, rec)
		})
		if err != nil {
			return err
		}
	}
	if err := g.rewrite(ctx, t, tasks); err != nil {
		return err
	}
	g.base = t
	return nil
}

// candidates are the data files of t's head that may hold a key of the changes,
// by partition and statistics.
func (g *merging) candidates(ctx context.Context, t *table.Table) ([]table.FileScanTask, error) {
	if t.CurrentSnapshot() == nil || len(g.src.Rows) == 0 {
		return nil, nil
	}
	var opts []table.ScanOption
	if f := keyFilter(g.src.Ranges); f != nil {
		opts = append(opts, table.WithRowFilter(f))
	}
	return t.Scan(opts...).PlanFiles(ctx)
}

// keyFilter is between the least and the greatest key, column by column.
func keyFilter(ranges []upsert.Range) iceberg.BooleanExpression {
	var all iceberg.BooleanExpression
	and := func(e iceberg.BooleanExpression) {
		if all == nil {
			all = e
		} else {
			all = iceberg.NewAnd(all, e)
		}
	}
	for _, r := range ranges {
		switch ref := iceberg.Reference(r.Column); {
		case r.Ints:
			and(iceberg.GreaterThanEqual(ref, r.MinInt))
			and(iceberg.LessThanEqual(ref, r.MaxInt))
		case r.Strings:
			and(iceberg.GreaterThanEqual(ref, r.MinStr))
			and(iceberg.LessThanEqual(ref, r.MaxStr))
		}
	}
	return all
}

// holds reports whether what was worked out for another head is true of t's.
func (g *merging) holds(t *table.Table, tasks []table.FileScanTask) bool {
	if g.base == nil || g.base.Metadata().TableUUID() != t.Metadata().TableUUID() ||
		g.base.Schema().ID != t.Schema().ID || g.base.Metadata().DefaultPartitionSpec() != t.Metadata().DefaultPartitionSpec() {
		return false
	}
	now := map[string]bool{}
	for _, task := range tasks {
		now[task.File.FilePath()] = true
		if !g.files[task.File.FilePath()] || len(task.DeleteFiles)+len(task.EqualityDeleteFiles)+len(task.DeletionVectorFiles) > 0 {
			return false
		}
	}
	for _, f := range g.removed {
		if !now[f.FilePath()] {
			return false
		}
	}
	return true
}

func (g *merging) rewrite(ctx context.Context, t *table.Table, tasks []table.FileScanTask) error {
	spec, err := g.s.spec(ctx, t)
	if err != nil {
		return err
	}
	w, err := datafile.NewWriter(spec, g.prefix+strconv.Itoa(g.tries)+"-", nil)
	if err != nil {
		return fmt.Errorf("merge into table %s: %w", g.s.Name(), err)
	}
	closed := false
	defer func() {
		if !closed {
			w.Abort()
		}
	}()
	for _, task := range tasks {
		if !g.plan.Touched(task.File.FilePath()) {
			continue
		}
		g.removed = append(g.removed, task.File)
		if err := lake.ReadFile(ctx, t, task, nil, func(rec arrow.RecordBatch) error { return g.plan.Rest(rec, w.Write) }); err != nil {
			return err
		}
	}
	if err := g.plan.Insert(w.Write); err != nil {
		return err
	}
	closed = true
	files, err := w.Close(ctx)
	if err != nil {
		return fmt.Errorf("merge into table %s: %w", g.s.Name(), err)
	}
	for _, f := range files {
		g.added = append(g.added, f.DataFile)
	}
	return nil
}

// apply puts the merge into the commit.
func (g *merging) apply(ch *lake.Change) error {
	c := g.plan.Counts
	b, err := json.Marshal(map[string]int64{"inserted": c.Inserted, "updated": c.Updated, "deleted": c.Deleted, "ignored": c.Ignored,
		"files_rewritten": int64(c.Rewritten), "rows_copied": c.Copied})
	if err != nil {
		return err
	}
	ch.Files, ch.Removed = g.added, g.removed
	ch.Summary[keyUpsert] = string(b)
	return nil
}
