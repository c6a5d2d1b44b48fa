package erase

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/datafile"
	"github.com/weirlake/weir/internal/marker"
)

const (
	// Scope is under which the crash points are reached.
	Scope = "erase"
	// SummaryKey is the summary key of a snapshot that erased rows: the id.
	SummaryKey = "weir.erasure"

	conflictsMax = 500 // how often the head may move under the commit
	errorsMax    = 20  // how often it may fail for another reason
	pauseMin     = 5 * time.Millisecond
	pauseMax     = time.Second
)

// Options say what is erased where.
type Options struct {
	Catalog *lake.Catalog
	Table   table.Identifier
	// ID is the erasure's.
	ID    string
	Rule  Rule
	Clock clock.Clock
}

// Erased is what an erasure has taken of one table.
type Erased struct {
	Rows int64
	// Declared is what the table's property says of it.
	Declared []marker.DeclaredDelete
	// Found is set where it was done before.
	Found bool
	// FilesRewritten are the files that held such rows; 0 where Found.
	FilesRewritten int
	// Sequence is the number of the snapshot, 0 where it is not there any more.
	Sequence   int64
	SnapshotID int64
}

// Apply erases, once: an erasure whose id the table has seen changes nothing. The
// error wraps lake.ErrNoTable where there is no table.
func Apply(ctx context.Context, o Options) (*Erased, error) {
	var last error
	w := &work{o: o}
	for conflicts, faults := 0, 0; conflicts < conflictsMax && faults < errorsMax; {
		done, err := w.try(ctx)
		var classified *failure.Error
		switch {
		case err == nil:
			return done, nil
		case errors.As(err, &classified), errors.Is(err, lake.ErrNoTable), ctx.Err() != nil:
			return nil, err
		case lake.IsConflict(err):
			conflicts++
		default:
			faults++
		}
		last = err
		if n := conflicts + faults; n > 1 {
			if err := o.Clock.Sleep(ctx, min(pauseMin<<min(n-2, 10), pauseMax)); err != nil {
				return nil, errors.Join(err, last)
			}
		}
	}
	class := failure.Unreachable
	if errors.Is(last, lake.ErrUnknown) {
		class = failure.CommitUnknown
	}
	return nil, failure.Wrap(class, last, "erase rows of table %s", lake.Name(o.Table)).
		WithHint("run the same command again: it goes on where it was")
}

// work is what has been found and written for a head, and is kept as long as it
// is true of the next one.
type work struct {
	o Options

	schema, spec int             // of the table that the files were written for
	looked       map[string]bool // files that were read
	removed      []iceberg.DataFile
	added        []iceberg.DataFile
	offsets      map[batch.TopicPartition][]int64
	rows         int64
}

func (w *work) begin(t *table.Table) {
	*w = work{o: w.o, schema: t.Schema().ID, spec: t.Metadata().DefaultPartitionSpec(), looked: map[string]bool{}, offsets: map[batch.TopicPartition][]int64{}}
}

// try makes one commit on the table as it is now.
func (w *work) try(ctx context.Context) (*Erased, error) {
	t, err := w.o.Catalog.LoadTable(ctx, w.o.Table)
	if err != nil {
		return nil, err
	}
	declared, err := marker.DeclaredDeletes(t.Properties())
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "table %s", lake.Name(w.o.Table))
	}
	if done := Of(t, declared, w.o.ID); done != nil {
		return done, nil
	}
	if err := w.find(ctx, t); err != nil {
		return nil, err
	}
	mine := marker.PlacesOf(w.offsets).Declare(w.o.ID)
	var placed int64
	for _, d := range mine {
		placed += d.Rows
	}
	if placed < w.rows || len(mine) == 0 {
		mine = append(mine, marker.DeclaredDelete{Rows: w.rows - placed, Erasure: w.o.ID})
	}
	property, err := json.Marshal(append(declared, mine...))
	if err != nil {
		return nil, err
	}
	fault.Reach(Scope, fault.EraseStaged)
	ctx = lake.WithMetadataHook(ctx, func() { fault.Reach(Scope, fault.CommitMetadata) })
	after, err := w.o.Catalog.Commit(ctx, t, lake.Change{
		Removed: w.removed, Files: w.added,
		Properties: map[string]string{marker.DeclaredDeletesKey: string(property)},
		Summary:    lake.WithOffsets(t, map[string]string{SummaryKey: w.o.ID}),
	})
	if err != nil {
		return nil, err
	}
	head := lake.HeadOf(after)
	return &Erased{Rows: w.rows, Declared: mine, FilesRewritten: len(w.removed), Sequence: head.Sequence, SnapshotID: head.ID}, nil
}

// Of is what a table says of an erasure, nil where it has not seen it.
func Of(t *table.Table, declared []marker.DeclaredDelete, id string) *Erased {
	var out *Erased
	for _, d := range declared {
		if d.Erasure != id {
			continue
		}
		if out == nil {
			out = &Erased{Found: true}
		}
		out.Rows += d.Rows
		out.Declared = append(out.Declared, d)
	}
	if out == nil {
		return nil
	}
	if s := lake.FindSnapshot(t, SummaryKey, id); s != nil {
		out.Sequence, out.SnapshotID = s.SequenceNumber, s.SnapshotID
	}
	return out
}

// find looks at the files of the head that were not looked at yet and writes those
// again that hold rows to be erased.
func (w *work) find(ctx context.Context, t *table.Table) error {
	var opts []table.ScanOption
	if f := w.o.Rule.filter(); f != nil {
		opts = append(opts, table.WithRowFilter(f))
	}
	var tasks []table.FileScanTask
	if t.CurrentSnapshot() != nil {
		var err error
		if tasks, err = t.Scan(opts...).PlanFiles(ctx); err != nil {
			return fmt.Errorf("plan the files of %s: %w", lake.Name(w.o.Table), err)
		}
	}
	if !w.holds(t, tasks) {
		w.begin(t)
	}
	var out *datafile.Writer
	defer func() {
		if out != nil {
			out.Abort()
		}
	}()
	for _, task := range tasks {
		path := task.File.FilePath()
		if w.looked[path] {
			continue
		}
		w.looked[path] = true
		hit, err := w.look(ctx, t, task)
		if err != nil || !hit {
			if err != nil {
				w.looked = nil // begin again
				return err
			}
			continue
		}
		if out == nil {
			if out, err = w.writer(ctx, t); err != nil {
				return err
			}
		}
		if err := w.rewrite(ctx, t, task, out); err != nil {
			w.looked = nil
			return err
		}
		w.removed = append(w.removed, task.File)
	}
	if out == nil {
		return nil
	}
	files, err := out.Close(ctx)
	out = nil
	if err != nil {
		w.looked = nil
		return fmt.Errorf("write files of %s: %w", lake.Name(w.o.Table), err)
	}
	for _, f := range files {
		w.added = append(w.added, f.DataFile)
	}
	return nil
}

// holds reports whether what was done for another head is true of t's: the files
// to be exchanged are live, under the same columns.
func (w *work) holds(t *table.Table, tasks []table.FileScanTask) bool {
	if w.looked == nil || w.schema != t.Schema().ID || w.spec != t.Metadata().DefaultPartitionSpec() {
		return false
	}
	live := map[string]bool{}
	for _, task := range tasks {
		live[task.File.FilePath()] = true
	}
	for _, f := range w.removed {
		if !live[f.FilePath()] {
			return false
		}
	}
	return true
}

// look reports whether a file holds rows that go.
func (w *work) look(ctx context.Context, t *table.Table, task table.FileScanTask) (hit bool, err error) {
	err = lake.ReadFile(ctx, t, task, w.o.Rule.columns(), func(rec arrow.RecordBatch) error {
		defer rec.Release()
		gone, _, err := w.o.Rule.hits(rec)
		for _, g := range gone {
			hit = hit || g
		}
		return err
	})
	return hit, err
}

// rewrite writes the rows of a file that stay, and notes those that do not.
func (w *work) rewrite(ctx context.Context, t *table.Table, task table.FileScanTask, out *datafile.Writer) error {
	return lake.ReadFile(ctx, t, task, nil, func(rec arrow.RecordBatch) error {
		defer rec.Release()
		gone, placeOf, err := w.o.Rule.hits(rec)
		if err != nil {
			return err
		}
		for from := 0; from < len(gone); {
			if gone[from] {
				w.note(placeOf, from)
				from++
				continue
			}
			to := from
			for to < len(gone) && !gone[to] {
				to++
			}
			if err := out.Write(rec.NewSlice(int64(from), int64(to))); err != nil {
				return err
			}
			from = to
		}
		return nil
	})
}

func (w *work) note(placeOf func(int) (batch.TopicPartition, int64), row int) {
	w.rows++
	if placeOf == nil {
		return
	}
	if tp, offset := placeOf(row); tp.Partition >= 0 {
		tp.Topic = strings.Clone(tp.Topic) // the record's memory goes away
		w.offsets[tp] = append(w.offsets[tp], offset)
	}
}

func (w *work) writer(ctx context.Context, t *table.Table) (*datafile.Writer, error) {
	storage, err := lake.DataFSOf(ctx, t)
	if err != nil {
		return nil, err
	}
	out, err := datafile.NewWriter(datafile.Spec{
		Schema: t.Schema(), PartitionSpec: t.Spec(), FormatVersion: t.Metadata().Version(), Properties: t.Properties(),
		Location: lake.DataLocation(t), FS: storage,
	}, "erased-"+clock.Nonce()+"-", nil)
	if err != nil {
		return nil, fmt.Errorf("write files of %s: %w", lake.Name(w.o.Table), err)
	}
	return out, nil
}

// Count is how many rows of a table's head a rule would take, and where they came
// from; the error wraps lake.ErrNoTable.
func Count(ctx context.Context, catalog *lake.Catalog, ident table.Identifier, rule Rule) (int64, map[batch.TopicPartition][]int64, error) {
	w := &work{o: Options{Catalog: catalog, Table: ident, Rule: rule}}
	t, err := catalog.LoadTable(ctx, ident)
	if err != nil {
		return 0, nil, err
	}
	w.begin(t)
	if t.CurrentSnapshot() == nil {
		return 0, nil, nil
	}
	_, records, err := t.Scan(table.WithSelectedFields(rule.columns()...)).ToArrowRecords(ctx)
	if err != nil {
		return 0, nil, fmt.Errorf("scan table %s: %w", lake.Name(ident), err)
	}
	for rec, err := range records {
		if err != nil {
			return 0, nil, fmt.Errorf("scan table %s: %w", lake.Name(ident), err)
		}
		gone, placeOf, err := rule.hits(rec)
		for i, g := range gone {
			if g {
				w.note(placeOf, i)
			}
		}
		rec.Release()
		if err != nil {
			return 0, nil, err
		}
	}
	return w.rows, w.offsets, nil
}
