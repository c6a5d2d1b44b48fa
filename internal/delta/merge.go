package delta

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

// mergeTries bounds how often a merge is done again because others changed rows
// that it had read.
const mergeTries = 50

// MergeOptions of Merge.
type MergeOptions struct {
	// Keys are the columns that name a row.
	Keys []string
	// OrderBy reduces the source to the last row of each key by these columns;
	// of rows that are equal in them the later one in the source counts. Empty
	// means the order of the source.
	OrderBy []string
	// DeleteColumn is a boolean column of the source that is not a column of the
	// table: where it is true the row's key is deleted.
	DeleteColumn string
	// Delete makes every source row delete its key; only key columns (and
	// OrderBy) are then needed.
	Delete bool
	// IgnoreOlder leaves a row of the table alone where it comes after the
	// source's by OrderBy, so that batches may arrive in any order.
	IgnoreOlder bool
	// TxnAppID, TxnVersion, Lineage, OnReusedAppID: see AppendOptions.
	TxnAppID      string
	TxnVersion    int64
	Lineage       string
	OnReusedAppID ReusedPolicy
	// Create makes a missing table for the source's columns.
	Create *CreateOptions
	Files  FileOptions
	Limits Limits
}

// MergeResult says what a merge did.
type MergeResult struct {
	Version int64
	// Skipped is true where the table remembered the transaction.
	Skipped bool
	Rebound bool
	// Inserted, Updated and Deleted count rows of the table; Ignored counts keys
	// whose row in the table is newer (IgnoreOlder).
	Inserted, Updated, Deleted, Ignored int64
	// FilesRewritten were replaced; RowsCopied stood in them and did not change.
	FilesRewritten int
	RowsCopied     int64
}

// Merge brings a table's rows up to the source's by key: a key that is there is
// replaced, one that is not is inserted, one that the source deletes goes. Files
// that hold no key of the source are not touched; the others are written again
// without the replaced rows.
//
// Merging the same source again changes no row, and neither does merging it
// after later sources if IgnoreOlder is set or the transaction is remembered.
func Merge(ctx context.Context, t *Table, source []arrow.RecordBatch, o MergeOptions) (MergeResult, error) {
	if len(o.Keys) == 0 {
		return MergeResult{}, failure.New(failure.Config, "merge into Delta table %s: no key columns", t.Location())
	}
	if o.IgnoreOlder && len(o.OrderBy) == 0 {
		return MergeResult{}, failure.New(failure.Config, "merge into Delta table %s: older rows can only be told by an order", t.Location())
	}
	src, err := reduce(source, o)
	if err != nil {
		return MergeResult{}, fmt.Errorf("merge into Delta table %s: %w", t.Location(), err)
	}
	defer src.release()
	var last error
	for n := 1; n <= mergeTries && t.pause(ctx, n-1, clock.Nonce()) == nil; n++ {
		m := &merging{t: t, o: o, src: src, txn: Transaction{AppID: o.TxnAppID, Version: o.TxnVersion, Lineage: o.Lineage, OnReused: o.OnReusedAppID}}
		out, err := m.once(ctx)
		if !errors.Is(err, ErrConflict) {
			return out, err
		}
		last = err
	}
	if err := ctx.Err(); err != nil {
		return MergeResult{}, err
	}
	return MergeResult{}, failure.Wrap(failure.Runtime, last, "merge into Delta table %s: others changed what it had read, %d times", t.Location(), mergeTries).
		WithHint("let fewer writers change the same rows at once")
}

// Delete removes the rows whose keys are given; see Merge.
func Delete(ctx context.Context, t *Table, keys []arrow.RecordBatch, o MergeOptions) (MergeResult, error) {
	o.Delete = true
	return Merge(ctx, t, keys, o)
}

// reduced is a source with one row a key.
type reduced struct {
	o    MergeOptions
	recs []arrow.RecordBatch // without the delete column
	rows map[string]*sourceRow
	// ranges bound the keys.
	ranges []keyRange
}

type sourceRow struct {
	rec, row int
	order    order
	delete   bool
}

func (r *reduced) release() {
	for _, rec := range r.recs {
		rec.Release()
	}
}

func reduce(source []arrow.RecordBatch, o MergeOptions) (*reduced, error) {
	out := &reduced{o: o, rows: map[string]*sourceRow{}}
	keys, orders := keyColumns{names: o.Keys}, orderColumns{names: o.OrderBy}
	for n, rec := range source {
		if err := keys.bind(rec); err != nil {
			return nil, err
		}
		if err := orders.bind(rec); err != nil {
			return nil, err
		}
		stripped, deletes, err := splitDeletes(rec, o.DeleteColumn)
		if err != nil {
			return nil, err
		}
		out.recs = append(out.recs, stripped)
		for i := range int(rec.NumRows()) {
			k, ok := keys.key(i)
			if !ok {
				out.release()
				return nil, failure.New(failure.SchemaConflict, "row %d of the source has a null in its key (%v)", i, o.Keys)
			}
			row := &sourceRow{rec: n, row: i, order: orders.at(i), delete: o.Delete || (deletes != nil && deletes.IsValid(i) && deletes.Value(i))}
			if had := out.rows[string(k)]; had == nil || row.order.compare(had.order) >= 0 {
				out.rows[string(k)] = row
			}
		}
	}
	if len(source) > 0 {
		for _, k := range o.Keys {
			out.ranges = append(out.ranges, rangeOf(k, source))
		}
	}
	return out, nil
}

// splitDeletes takes the delete column out of a record.
func splitDeletes(rec arrow.RecordBatch, column string) (arrow.RecordBatch, *array.Boolean, error) {
	if column == "" {
		rec.Retain()
		return rec, nil, nil
	}
	var fields []arrow.Field
	var cols []arrow.Array
	var deletes *array.Boolean
	for i, f := range rec.Schema().Fields() {
		if f.Name != column {
			fields, cols = append(fields, f), append(cols, rec.Column(i))
			continue
		}
		var ok bool
		if deletes, ok = rec.Column(i).(*array.Boolean); !ok {
			return nil, nil, failure.New(failure.SchemaConflict, "column %q is %s; a delete column must be boolean", column, f.Type)
		}
	}
	if deletes == nil {
		return nil, nil, failure.New(failure.SchemaConflict, "the rows have no column %q that says what is deleted", column)
	}
	return array.NewRecordBatch(arrow.NewSchema(fields, nil), cols, rec.NumRows()), deletes, nil
}

// mayHold reports whether a file may hold a key of the source.
func (r *reduced) mayHold(a *Add) bool {
	if len(r.rows) == 0 {
		return false
	}
	s, _ := a.ParseStats()
	for _, k := range r.ranges {
		if !k.mayHold(a, s) {
			return false
		}
	}
	return true
}

// merging is one try of a merge.
type merging struct {
	t   *Table
	o   MergeOptions
	src *reduced
	txn Transaction

	shaped *Snapshot
	// stale are keys that the table has a newer row of; matched counts the
	// table's rows of every other key.
	stale   map[string]bool
	matched map[string]int64
	touched []*Add
	out     MergeResult
}

func (m *merging) once(ctx context.Context) (MergeResult, error) {
	base, err := m.t.refresh(ctx)
	if err != nil {
		return MergeResult{}, err
	}
	if _, _, err := m.txn.actions(m.t, base); errors.Is(err, errSkip) {
		return MergeResult{Version: base.Version, Skipped: true}, nil
	} else if err != nil {
		return MergeResult{}, err
	}
	var shape []Action
	if m.shaped, shape, err = m.shape(base); err != nil {
		return MergeResult{}, err
	}
	if err := m.find(ctx, base); err != nil {
		return MergeResult{}, err
	}
	adds, err := m.rewrite(ctx, base)
	if err != nil {
		return MergeResult{}, err
	}
	actions := shape
	for _, a := range m.touched {
		actions = append(actions, removeOf(a, m.t.nowMillis(), true))
	}
	for _, a := range adds {
		actions = append(actions, Action{Add: a})
	}
	return m.commit(ctx, base, actions)
}

func (m *merging) shape(s *Snapshot) (*Snapshot, []Action, error) {
	var sc *arrow.Schema
	if len(m.src.recs) > 0 && !m.o.Delete {
		sc = m.src.recs[0].Schema()
	}
	return appendShape(m.t, s, sc, AppendOptions{Create: m.o.Create})
}

func (m *merging) commit(ctx context.Context, base *Snapshot, actions []Action) (MergeResult, error) {
	paths := map[string]bool{}
	for _, a := range m.touched {
		paths[a.Path] = true
	}
	r, err := Commit(ctx, m.t, func(_ context.Context, s *Snapshot) ([]Action, error) {
		mark, rebound, err := m.txn.actions(m.t, s)
		if err != nil {
			return nil, err
		}
		if base.Version == NoVersion && s.Version != NoVersion {
			return nil, ErrConflict
		}
		m.out.Rebound = rebound
		all := append(append([]Action{}, actions...), mark...)
		if len(all) == 0 {
			return nil, errSkip
		}
		return all, nil
	}, CommitOptions{Operation: "MERGE", Parameters: map[string]any{"matchedPredicates": "[]", "keys": fmt.Sprint(m.o.Keys)},
		Metrics: m.metrics(), Limits: m.o.Limits, Reads: Reads{Base: base.Version, Files: paths, Added: m.src.mayHold, Shape: true}})
	if errors.Is(err, errSkip) {
		m.out.Version = base.Version
		m.out.Skipped = m.o.TxnAppID != ""
		if m.out.Skipped {
			return MergeResult{Version: base.Version, Skipped: true}, nil
		}
		return m.out, nil
	}
	m.out.Version = r.Version
	return m.out, err
}

func (m *merging) metrics() map[string]any {
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	return map[string]any{
		"numSourceRows": n(int64(len(m.src.rows))), "numTargetRowsInserted": n(m.out.Inserted), "numTargetRowsUpdated": n(m.out.Updated),
		"numTargetRowsDeleted": n(m.out.Deleted), "numTargetRowsCopied": n(m.out.RowsCopied), "numTargetFilesRemoved": n(int64(len(m.touched))),
	}
}

// find looks the source's keys up in the table.
func (m *merging) find(ctx context.Context, s *Snapshot) error {
	m.stale, m.matched = map[string]bool{}, map[string]int64{}
	if s.Version == NoVersion {
		return nil
	}
	columns := append([]string{}, m.o.Keys...)
	if m.o.IgnoreOlder {
		columns = append(columns, m.o.OrderBy...)
	}
	hits := map[string]map[string]int64{} // by path, then key
	for _, a := range s.Files() {
		if !m.src.mayHold(a) {
			continue
		}
		found := map[string]int64{}
		if err := m.t.readFile(ctx, s, a, columns, func(rec arrow.RecordBatch) error {
			defer rec.Release()
			return m.look(rec, found)
		}); err != nil {
			return err
		}
		if len(found) > 0 {
			hits[a.Path] = found
		}
	}
	for _, a := range s.Files() {
		touched := false
		for k, n := range hits[a.Path] {
			if !m.stale[k] {
				touched = true
				m.matched[k] += n
			}
		}
		if touched {
			m.touched = append(m.touched, a)
		}
	}
	m.out.Ignored = int64(len(m.stale))
	m.out.FilesRewritten = len(m.touched)
	return nil
}

func (m *merging) look(rec arrow.RecordBatch, found map[string]int64) error {
	keys, orders := keyColumns{names: m.o.Keys}, orderColumns{names: m.o.OrderBy}
	if err := keys.bind(rec); err != nil {
		return err
	}
	if m.o.IgnoreOlder {
		if err := orders.bind(rec); err != nil {
			return err
		}
	}
	for i := range int(rec.NumRows()) {
		k, ok := keys.key(i)
		if !ok {
			continue
		}
		row := m.src.rows[string(k)]
		if row == nil {
			continue
		}
		found[string(k)]++
		if m.o.IgnoreOlder && orders.at(i).compare(row.order) > 0 {
			m.stale[string(k)] = true
		}
	}
	return nil
}

// rewrite writes the touched files again without the replaced rows, and the
// source's rows.
func (m *merging) rewrite(ctx context.Context, s *Snapshot) ([]*Add, error) {
	o := m.o.Files
	if o.Prefix == "" {
		o.Prefix = "merge-" + clock.Nonce() + "-"
	}
	w, err := m.t.NewFiles(ctx, m.shaped, o)
	if err != nil {
		return nil, err
	}
	for _, a := range m.touched {
		if err := m.t.readFile(ctx, s, a, nil, func(rec arrow.RecordBatch) error { return m.copyRest(w, rec) }); err != nil {
			w.Abort()
			return nil, err
		}
	}
	if err := m.insert(w); err != nil {
		w.Abort()
		return nil, err
	}
	return w.Close(ctx)
}

// copyRest writes the rows whose keys are not replaced.
func (m *merging) copyRest(w *FileWriter, rec arrow.RecordBatch) error {
	defer rec.Release()
	keys := keyColumns{names: m.o.Keys}
	if err := keys.bind(rec); err != nil {
		return err
	}
	return runs(rec, func(i int) bool {
		k, ok := keys.key(i)
		if ok {
			_, replaced := m.matched[string(k)]
			ok = replaced
		}
		return !ok
	}, func(part arrow.RecordBatch) error {
		m.out.RowsCopied += part.NumRows()
		return w.Write(part)
	})
}

// insert writes the source's rows that are neither deletes nor too old.
func (m *merging) insert(w *FileWriter) error {
	write := make([][]bool, len(m.src.recs))
	for i, r := range m.src.recs {
		write[i] = make([]bool, r.NumRows())
	}
	for k, row := range m.src.rows {
		had, known := m.matched[k]
		switch {
		case m.stale[k]:
		case row.delete:
			m.out.Deleted += had
		default:
			write[row.rec][row.row] = true
			if known {
				m.out.Updated++
			} else {
				m.out.Inserted++
			}
		}
	}
	for i, rec := range m.src.recs {
		if err := runs(rec, func(row int) bool { return write[i][row] }, w.Write); err != nil {
			return err
		}
	}
	return nil
}

// runs gives the rows that pass as slices of the record.
func runs(rec arrow.RecordBatch, pass func(int) bool, emit func(arrow.RecordBatch) error) error {
	n := int(rec.NumRows())
	for from := 0; from < n; {
		if !pass(from) {
			from++
			continue
		}
		to := from + 1
		for to < n && pass(to) {
			to++
		}
		if err := emit(rec.NewSlice(int64(from), int64(to))); err != nil {
			return err
		}
		from = to + 1
	}
	return nil
}
