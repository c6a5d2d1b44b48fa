package gold

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"golang.org/x/sync/errgroup"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/duck"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/datafile"
)

const (
	// publishTries bounds the tries of one commit.
	publishTries = 8
	// fileBytes is the size at which a data file is closed.
	fileBytes = "256MB"
	// keepSnapshots is the history of a gold table.
	keepSnapshots = 50
)

// publishAll stages and commits every model that was built.
func (r *run) publishAll(ctx context.Context, order []*Model) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(publishParallel)
	for _, m := range order {
		j := r.jobs[m.Name]
		if j.err != nil || (j.plan.what != planFull && j.plan.what != planIncremental) {
			continue
		}
		g.Go(func() error {
			began := r.Clock.Now()
			j.err = r.publish(gctx, j)
			j.result.Seconds += r.Clock.Now().Sub(began).Seconds()
			return gctx.Err()
		})
	}
	return g.Wait()
}

// staged are the files of one try, and what they replace.
type staged struct {
	files   []datafile.File
	remove  []iceberg.DataFile
	deletes []iceberg.DataFile
	columns *iceberg.Schema
	rows    int64
}

// publish writes a model's rows as data files and commits them. A head that
// moved while the record stayed (compaction) is built upon again; a record that
// changed is another run's, which has the last word.
func (r *run) publish(ctx context.Context, j *job) error {
	rec := Record{
		Model: j.m.Name, RunID: r.id, Attempt: clock.Nonce(), Fingerprint: j.m.fingerprint, Mode: j.result.Mode, Inputs: r.refs(j.m),
	}
	base, err := r.ensure(ctx, j)
	if err != nil {
		return err
	}
	var last error
	for range publishTries {
		s, err := r.stage(ctx, j, base, rec.Attempt)
		if err != nil {
			return err
		}
		fault.Reach(faultScope, fault.GoldStaged)
		after, err := r.commit(ctx, base, s, rec)
		if err == nil {
			j.published(after, s)
			r.expire(ctx, after)
			fault.Reach(faultScope, fault.GoldPublished)
			return nil
		}
		last = err
		if base, err = r.again(ctx, j, rec); err != nil {
			return errors.Join(err, last)
		}
		if now, err := RecordOf(base, j.m.Name); err == nil && now != nil && now.Attempt == rec.Attempt {
			j.published(base, s)
			return nil
		}
	}
	return failure.Wrap(failure.CommitUnknown, last, "publish table %s: %d tries", j.result.Table, publishTries)
}

func (j *job) published(after *table.Table, s *staged) {
	j.result.State, j.result.SnapshotID = StatePublished, lake.HeadOf(after).ID
	j.result.Files = len(s.files)
	_, _ = fmt.Sscan(lake.SummaryValue(after.CurrentSnapshot(), "total-records"), &j.result.Rows)
}

// again loads the table after a commit that failed, and refuses to go on where
// another run has published in between.
func (r *run) again(ctx context.Context, j *job, rec Record) (*table.Table, error) {
	t, err := r.Catalog.LoadTablePatiently(ctx, j.target.ident, r.Clock)
	if err != nil {
		return nil, err
	}
	now, err := RecordOf(t, j.m.Name)
	if err != nil {
		return nil, err
	}
	was := ""
	if j.target.record != nil {
		was = j.target.record.Attempt
	}
	if now != nil && now.Attempt != was && now.Attempt != rec.Attempt {
		return nil, failure.New(failure.Runtime, "another run of gold (%s) has published table %s in the meantime", now.RunID, j.result.Table).
			WithHint("run gold again: what is up to date is skipped")
	}
	return t, nil
}

// ensure is the table that the model goes to, made if need be.
func (r *run) ensure(ctx context.Context, j *job) (*table.Table, error) {
	if j.target.table != nil {
		return j.target.table, nil
	}
	want, _, err := r.columns(ctx, "FROM "+duck.Relation(r.g.Schema, j.m.Name), nil)
	if err != nil {
		return nil, err
	}
	return r.Catalog.EnsureTable(ctx, j.target.ident, want.schema, *iceberg.UnpartitionedSpec, nil)
}

// shape is how the columns of a query are kept.
type shape struct {
	schema *iceberg.Schema
	casts  map[string]string // by column, where the type has to change
}

// columns says how a query's columns are kept, and whether a table with the
// schema have takes them as they are.
func (r *run) columns(ctx context.Context, query string, have *iceberg.Schema) (shape, bool, error) {
	cols, err := r.session.Columns(ctx, query)
	if err != nil {
		return shape{}, false, err
	}
	out := shape{casts: map[string]string{}}
	n := 0
	next := func() int { n++; return n }
	var fields []iceberg.NestedField
	seen := map[string]bool{}
	same := have != nil && len(have.Fields()) == len(cols)
	for _, c := range cols {
		if low := strings.ToLower(c.Name); seen[low] {
			return out, false, failure.New(failure.Config, "two columns are called %s", c.Name)
		} else {
			seen[low] = true
		}
		id := next()
		t, cast, err := duck.Stored(c.Type, next)
		if err != nil {
			return out, false, failure.Wrap(failure.Config, err, "column %s", c.Name)
		}
		out.casts[c.Name] = cast
		fields = append(fields, iceberg.NestedField{ID: id, Name: c.Name, Type: t})
		if have != nil {
			f, ok := have.FindFieldByName(c.Name)
			same = same && ok && f.Type.String() == t.String()
		}
	}
	out.schema = iceberg.NewSchema(0, fields...)
	return out, same, nil
}

// stage writes the rows that go to the table and makes them durable.
func (r *run) stage(ctx context.Context, j *job, base *table.Table, attempt string) (*staged, error) {
	s := &staged{}
	query := "FROM " + duck.Relation(r.g.Schema, j.m.Name)
	var err error
	if j.plan.what == planIncremental {
		if s.remove, query, err = r.replaced(ctx, j, duck.Head(base)); err != nil {
			return nil, err
		}
	} else if s.remove, s.deletes, err = lake.FilesOf(ctx, base); err != nil {
		return nil, err
	}
	sh, _, err := r.columns(ctx, query, nil)
	if err != nil {
		return nil, err
	}
	schema, changed, err := r.Catalog.ColumnsAfter(base, sh.schema)
	if err != nil {
		return nil, err
	}
	if changed {
		s.columns = sh.schema
	}
	folder := filepath.Join(r.session.Folder(), "stage-"+clock.Nonce())
	if err := r.session.Exec(ctx, copyOut(query, schema, sh, folder)); err != nil {
		return nil, err
	}
	written, err := filepath.Glob(filepath.Join(folder, "*.parquet"))
	if err != nil {
		return nil, err
	}
	slices.Sort(written)
	storage, err := lake.DataFSOf(ctx, base)
	if err != nil {
		return nil, err
	}
	spec := datafile.Spec{
		Schema: schema, PartitionSpec: base.Spec(), FormatVersion: base.Metadata().Version(), Properties: base.Properties(),
		Location: lake.DataLocation(base), FS: storage,
	}
	for i, from := range written {
		f, err := datafile.Adopt(spec, from, fmt.Sprintf("%s/gold-%s-%s-%05d.parquet", spec.Location, attempt, clock.Nonce(), i))
		if err != nil {
			return nil, err
		}
		if f.Rows > 0 {
			s.files = append(s.files, f)
			s.rows += f.Rows
		}
	}
	return s, nil
}

// copyOut is the COPY that writes a query's rows under the table's field ids.
func copyOut(query string, schema *iceberg.Schema, sh shape, folder string) string {
	var cols, ids []string
	for _, f := range schema.Fields() {
		col := duck.Ident(f.Name)
		if cast := sh.casts[f.Name]; cast != "" {
			col = "CAST(" + col + " AS " + cast + ") AS " + col
		}
		cols = append(cols, col)
		ids = append(ids, duck.Ident(f.Name)+": "+fieldID(f.ID, f.Type))
	}
	return "COPY (SELECT " + strings.Join(cols, ", ") + " FROM (" + query + "\n)) TO " + duck.Quote(folder) +
		" (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, FILE_SIZE_BYTES '" + fileBytes + "', FIELD_IDS {" + strings.Join(ids, ", ") + "})"
}

// fieldID is one entry of COPY's FIELD_IDS.
func fieldID(id int, t iceberg.Type) string {
	children := func(parts ...string) string {
		return fmt.Sprintf("{__duckdb_field_id: %d, %s}", id, strings.Join(parts, ", "))
	}
	switch x := t.(type) {
	case *iceberg.ListType:
		return children("element: " + fieldID(x.ElementID, x.Element))
	case *iceberg.MapType:
		return children("key: "+fieldID(x.KeyID, x.KeyType), "value: "+fieldID(x.ValueID, x.ValueType))
	case *iceberg.StructType:
		parts := make([]string, len(x.FieldList))
		for i, f := range x.FieldList {
			parts[i] = duck.Ident(f.Name) + ": " + fieldID(f.ID, f.Type)
		}
		return children(parts...)
	}
	return fmt.Sprint(id)
}

// commit is the one atomic step: rows, columns, record and summary together.
func (r *run) commit(ctx context.Context, base *table.Table, s *staged, rec Record) (*table.Table, error) {
	ch := lake.Change{
		Properties: map[string]string{PropertyPrefix + rec.Model: encoded(rec)},
		Summary: map[string]string{
			KeyModel: rec.Model, KeyRun: rec.RunID, KeyAttempt: rec.Attempt, KeyFingerprint: rec.Fingerprint, KeyInputs: encoded(rec.snapshots()),
		},
	}
	for _, f := range s.files {
		ch.Files = append(ch.Files, f.DataFile)
	}
	return r.Catalog.Replace(ctx, base, lake.Replacement{Change: ch, Remove: s.remove, Deletes: s.deletes, Columns: s.columns})
}

// snapshots are the inputs' snapshot ids by table.
func (r Record) snapshots() map[string]int64 {
	out := map[string]int64{}
	for name, in := range r.Inputs {
		out[name] = in.SnapshotID
	}
	return out
}

// expire keeps the table's history short. It may fail: the next run tries again.
func (r *run) expire(ctx context.Context, t *table.Table) {
	ret := lake.Retention{Keep: keepSnapshots}
	if ret.Due(t) {
		if _, err := r.Catalog.Expire(ctx, t, ret); err != nil {
			r.Logger.Warn("old snapshots stay for now", "table", lake.Name(t.Identifier()), "error", err)
		}
	}
}
