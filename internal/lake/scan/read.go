package scan

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	iceio "github.com/apache/iceberg-go/io"
	"golang.org/x/sync/errgroup"

	"github.com/weirlake/weir/internal/failure"
)

// fieldIDKey is where pqarrow keeps a Parquet column's field id.
const fieldIDKey = "PARQUET:field_id"

// parquetFile is one open file and what of it is read.
type parquetFile struct {
	path   string
	in     iceio.File
	meta   *metadata.FileMetaData
	leaves []int
	groups []int
	// pending counts the row groups that are not decoded yet.
	pending sync.WaitGroup
}

// readFiles decodes the wanted rows of the files, several row groups at once.
// The runs come in the order of the files whatever finishes first.
func (r *reader) readFiles(ctx context.Context, paths []string) error {
	stopped := ctx
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(r.req.Parallel)
	var mu sync.Mutex
	var slots [][]run
	var opened []*parquetFile
	defer func() {
		for _, f := range opened {
			f.pending.Wait()
			_ = f.in.Close() // read only
		}
		for _, s := range slots {
			r.runs = append(r.runs, s...)
		}
	}()
	for _, p := range paths {
		if ctx.Err() != nil {
			break
		}
		f, err := r.open(p)
		if err != nil {
			_ = g.Wait()
			return err
		}
		opened = append(opened, f)
		for _, group := range f.groups {
			mu.Lock()
			slot := len(slots)
			slots = append(slots, nil)
			mu.Unlock()
			f.pending.Add(1)
			g.Go(func() error {
				defer f.pending.Done()
				runs, err := r.readGroup(ctx, f, group)
				mu.Lock()
				slots[slot] = runs
				mu.Unlock()
				return err
			})
		}
		// Files whose row groups are all submitted are closed as soon as they
		// are decoded, so that a long backlog does not hold every handle.
		if len(opened) > r.req.Parallel {
			opened[0].pending.Wait()
			_ = opened[0].in.Close()
			opened = opened[1:]
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	// A stop that came before a row group was submitted is no error of the
	// group's: without this, the files that were left out would count as empty.
	return stopped.Err()
}

// open reads the footer and chooses columns and row groups.
func (r *reader) open(path string) (_ *parquetFile, err error) {
	in, err := r.fio.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open data file %s: %w", path, err)
	}
	defer func() {
		if p := recover(); p != nil { // the library panics on some broken footers
			err = fmt.Errorf("read the footer of %s: %v", path, p)
		}
		if err != nil {
			_ = in.Close()
		}
	}()
	rd, err := file.NewParquetReader(in)
	if err != nil {
		return nil, fmt.Errorf("read the footer of %s: %w", path, err)
	}
	f := &parquetFile{path: path, in: in, meta: rd.MetaData()}
	leafOf := r.chooseLeaves(f)
	for g := range f.meta.NumRowGroups() {
		s := groupSpan(f.meta.RowGroup(g), leafOf[r.atPartition], leafOf[r.atOffset])
		if r.want.mayHold(s) {
			f.groups = append(f.groups, g)
		} else {
			r.skipped++
		}
	}
	r.files++
	r.groups += len(f.groups)
	return f, nil
}

// chooseLeaves finds the Parquet leaves of the read columns by field id, by
// name in a file that has no ids. It returns the first leaf of each read
// column, -1 where the file lacks it.
func (r *reader) chooseLeaves(f *parquetFile) []int {
	first := make([]int, len(r.cols))
	for i := range first {
		first[i] = -1
	}
	sc := f.meta.Schema
	hasIDs := false
	for leaf := range sc.NumColumns() {
		hasIDs = hasIDs || sc.ColumnRoot(leaf).FieldID() >= 0
	}
	for leaf := range sc.NumColumns() {
		root := sc.ColumnRoot(leaf)
		for i, c := range r.cols {
			match := root.Name() == c.field.Name
			if hasIDs {
				match = c.id > 0 && int(root.FieldID()) == c.id
			}
			if match {
				f.leaves = append(f.leaves, leaf)
				if first[i] < 0 {
					first[i] = leaf
				}
			}
		}
	}
	return first
}

func groupSpan(rg *metadata.RowGroupMetaData, partitionLeaf, offsetLeaf int) span {
	var s span
	s.partitionMin, s.partitionMax = chunkBounds(rg, partitionLeaf)
	s.offsetMin, s.offsetMax = chunkBounds(rg, offsetLeaf)
	return s
}

func chunkBounds(rg *metadata.RowGroupMetaData, leaf int) (*int64, *int64) {
	if leaf < 0 {
		return nil, nil
	}
	cc, err := rg.ColumnChunk(leaf)
	if err != nil {
		return nil, nil
	}
	st, err := cc.Statistics()
	if err != nil || st == nil || !st.HasMinMax() {
		return nil, nil
	}
	switch t := st.(type) {
	case *metadata.Int32Statistics:
		lo, hi := int64(t.Min()), int64(t.Max())
		return &lo, &hi
	case *metadata.Int64Statistics:
		lo, hi := t.Min(), t.Max()
		return &lo, &hi
	}
	return nil, nil
}

// readGroup decodes one row group and cuts the wanted rows out of it.
func (r *reader) readGroup(ctx context.Context, f *parquetFile, group int) (_ []run, err error) {
	defer func() {
		if p := recover(); p != nil { // the library panics on some broken pages
			err = fmt.Errorf("read row group %d of %s: %v", group, f.path, p)
		}
	}()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	rd, err := file.NewParquetReader(f.in, file.WithMetadata(f.meta))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", f.path, err)
	}
	fr, err := pqarrow.NewFileReader(rd, pqarrow.ArrowReadProperties{PreAllocBinaryData: true}, memory.DefaultAllocator)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", f.path, err)
	}
	tbl, err := fr.ReadRowGroups(ctx, f.leaves, []int{group})
	if err != nil {
		return nil, fmt.Errorf("read row group %d of %s: %w", group, f.path, err)
	}
	defer tbl.Release()
	recs, err := r.shape(ctx, tbl.Schema(), func(i int) []arrow.Array { return tbl.Column(i).Data().Chunks() }, tbl.NumRows())
	if err != nil {
		return nil, fmt.Errorf("data file %s: %w", f.path, err)
	}
	var runs []run
	for _, rec := range recs {
		runs = append(runs, r.cut(rec)...)
		rec.Release()
	}
	return runs, nil
}

// shape turns columns as a file has them into records of r.sc. chunks gives
// the pieces of the file's column i; they are cast, never changed in value.
func (r *reader) shape(ctx context.Context, from *arrow.Schema, chunks func(i int) []arrow.Array, rows int64) ([]arrow.RecordBatch, error) {
	cols := make([]arrow.Column, 0, len(r.cols))
	defer func() {
		for i := range cols {
			cols[i].Release()
		}
	}()
	for _, c := range r.cols {
		var parts []arrow.Array
		at := findColumn(from, c)
		if at < 0 {
			if !c.field.Nullable {
				return nil, failure.New(failure.SchemaConflict, "column %q is missing", c.field.Name)
			}
			parts = []arrow.Array{array.MakeArrayOfNull(memory.DefaultAllocator, c.field.Type, int(rows))}
		} else {
			for _, a := range chunks(at) {
				p, err := cast(ctx, a, c.field.Type)
				if err != nil {
					releaseArrays(parts)
					return nil, failure.Wrap(failure.SchemaConflict, err, "column %q", c.field.Name)
				}
				parts = append(parts, p)
				if !c.field.Nullable && p.NullN() > 0 {
					releaseArrays(parts)
					return nil, failure.New(failure.SchemaConflict, "column %q holds a null", c.field.Name)
				}
			}
		}
		data := arrow.NewChunked(c.field.Type, parts)
		releaseArrays(parts)
		cols = append(cols, *arrow.NewColumn(c.field, data))
		data.Release()
	}
	tbl := array.NewTable(r.sc, cols, rows)
	defer tbl.Release()
	tr := array.NewTableReader(tbl, 0)
	defer tr.Release()
	var out []arrow.RecordBatch
	for tr.Next() {
		rec := tr.RecordBatch()
		rec.Retain()
		out = append(out, rec)
	}
	return out, nil
}

func releaseArrays(as []arrow.Array) {
	for _, a := range as {
		a.Release()
	}
}

// findColumn is the place of a read column among a file's, by field id where
// the file has any.
func findColumn(sc *arrow.Schema, c column) int {
	hasIDs := false
	for i, f := range sc.Fields() {
		if v, ok := f.Metadata.GetValue(fieldIDKey); ok {
			if id, err := strconv.Atoi(v); err == nil && id >= 0 {
				hasIDs = true
				if c.id > 0 && id == c.id {
					return i
				}
			}
		}
	}
	if hasIDs {
		return -1
	}
	if at := sc.FieldIndices(c.field.Name); len(at) > 0 {
		return at[0]
	}
	return -1
}
