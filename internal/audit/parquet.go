package audit

import (
	"context"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/schema"
)

// readRows is the number of rows that are read from every column at a time.
const readRows = 8192

// column is a run of values of one column, one entry per row.
type column struct {
	// Present is false where a file does not have the column at all (it was
	// added to the table later): then every row is null.
	Present bool
	Null    []bool
	Int     []int64
	Bytes   [][]byte
}

// rowBatch is a run of rows, the columns in the order that was asked for.
type rowBatch struct {
	Rows    int
	Columns []column
}

// wanted names a column by Iceberg field id, or by name in files without ids.
type wanted struct {
	Name  string
	Field int
}

// wantedColumns resolves names in the table's current schema. A name that is
// missing is an error, unless it is in optional, which leaves field id 0.
func wantedColumns(m *metadata, names []string, optional map[string]bool) ([]wanted, error) {
	out := make([]wanted, len(names))
	for i, name := range names {
		f, ok := m.field(name)
		if !ok && !optional[name] {
			return nil, fmt.Errorf("the table has no column %q", name)
		}
		out[i] = wanted{Name: name, Field: f.ID}
	}
	return out, nil
}

// readerAtSeeker turns a File into what the Parquet reader wants.
type readerAtSeeker struct{ *io.SectionReader }

// readParquet calls f for every run of rows of one data file. The batch is
// reused: f copies what it keeps.
func readParquet(ctx context.Context, store Store, location string, want []wanted, f func(*rowBatch) error) (int64, error) {
	src, err := store.Open(ctx, location)
	if err != nil {
		return 0, err
	}
	defer src.Close()
	r, err := file.NewParquetReader(readerAtSeeker{io.NewSectionReader(src, 0, src.Size())})
	if err != nil {
		return 0, err
	}
	defer r.Close()
	leaves := make([]int, len(want))
	for i, w := range want {
		if leaves[i], err = leafOf(r.MetaData().Schema, w); err != nil {
			return 0, err
		}
	}
	for g := 0; g < r.NumRowGroups(); g++ {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if err := readRowGroup(r.RowGroup(g), leaves, f); err != nil {
			return 0, fmt.Errorf("row group %d: %w", g, err)
		}
	}
	return r.NumRows(), nil
}

// leafOf is the index of a column in the file, -1 where it is not there.
func leafOf(s *schema.Schema, w wanted) (int, error) {
	ids := false
	for i := 0; i < s.NumColumns(); i++ {
		c := s.Column(i)
		id := c.SchemaNode().FieldID()
		ids = ids || id > 0
		if w.Field > 0 && int(id) == w.Field {
			return i, flat(c)
		}
	}
	if ids && w.Field > 0 {
		return -1, nil
	}
	for i := 0; i < s.NumColumns(); i++ {
		if s.Column(i).Path() == w.Name {
			return i, flat(s.Column(i))
		}
	}
	return -1, nil
}

func flat(c *schema.Column) error {
	if c.MaxRepetitionLevel() > 0 {
		return fmt.Errorf("column %s repeats within a row and cannot be audited", c.Path())
	}
	return nil
}

func readRowGroup(g *file.RowGroupReader, leaves []int, f func(*rowBatch) error) error {
	readers := make([]file.ColumnChunkReader, len(leaves))
	for i, leaf := range leaves {
		if leaf < 0 {
			continue
		}
		c, err := g.Column(leaf)
		if err != nil {
			return err
		}
		defer c.Close()
		readers[i] = c
	}
	b := &rowBatch{Columns: make([]column, len(leaves))}
	for left := g.NumRows(); left > 0; left -= int64(b.Rows) {
		b.Rows = int(min(left, readRows))
		for i, c := range readers {
			if err := b.Columns[i].read(c, b.Rows); err != nil {
				return err
			}
		}
		if err := f(b); err != nil {
			return err
		}
	}
	return nil
}

// read fills the column with exactly n rows.
func (c *column) read(r file.ColumnChunkReader, n int) error {
	c.Present = r != nil
	c.Null, c.Int, c.Bytes = c.Null[:0], c.Int[:0], c.Bytes[:0]
	if r == nil {
		for range n {
			c.Null = append(c.Null, true)
		}
		return nil
	}
	defs := make([]int16, n)
	for len(c.Null) < n {
		left := n - len(c.Null)
		full := r.Descriptor().MaxDefinitionLevel()
		if full == 0 {
			for i := range defs[:left] {
				defs[i] = 0
			}
		}
		got, err := c.readPage(r, left, defs[:left], full)
		if err != nil {
			return fmt.Errorf("column %s: %w", r.Descriptor().Path(), err)
		}
		if got == 0 {
			return fmt.Errorf("column %s ends %d rows early", r.Descriptor().Path(), left)
		}
	}
	return nil
}

// readPage reads at most n rows, staying within a page: values of byte columns
// point into the page and are copied before the next one is loaded.
func (c *column) readPage(r file.ColumnChunkReader, n int, defs []int16, full int16) (int, error) {
	if !r.HasNext() {
		return 0, r.Err()
	}
	switch r := r.(type) {
	case *file.Int32ColumnChunkReader:
		vals := make([]int32, n)
		total, _, err := r.ReadBatchInPage(int64(n), vals, defs, nil)
		c.spread(int(total), defs, full, func(i int) { c.Int = append(c.Int, int64(vals[i])) },
			func() { c.Int = append(c.Int, 0) })
		return int(total), err
	case *file.Int64ColumnChunkReader:
		vals := make([]int64, n)
		total, _, err := r.ReadBatchInPage(int64(n), vals, defs, nil)
		c.spread(int(total), defs, full, func(i int) { c.Int = append(c.Int, vals[i]) },
			func() { c.Int = append(c.Int, 0) })
		return int(total), err
	case *file.ByteArrayColumnChunkReader:
		vals := make([]parquet.ByteArray, n)
		total, _, err := r.ReadBatchInPage(int64(n), vals, defs, nil)
		c.spread(int(total), defs, full, func(i int) { c.Bytes = append(c.Bytes, append([]byte{}, vals[i]...)) },
			func() { c.Bytes = append(c.Bytes, nil) })
		return int(total), err
	case *file.FixedLenByteArrayColumnChunkReader:
		vals := make([]parquet.FixedLenByteArray, n)
		total, _, err := r.ReadBatchInPage(int64(n), vals, defs, nil)
		c.spread(int(total), defs, full, func(i int) { c.Bytes = append(c.Bytes, append([]byte{}, vals[i]...)) },
			func() { c.Bytes = append(c.Bytes, nil) })
		return int(total), err
	}
	return 0, fmt.Errorf("physical type %s is not one that an audit reads", r.Type())
}

// spread puts values and nulls back in the order of the rows.
func (c *column) spread(rows int, defs []int16, full int16, value func(int), null func()) {
	next := 0
	for i := range rows {
		if defs[i] == full {
			c.Null = append(c.Null, false)
			value(next)
			next++
			continue
		}
		c.Null = append(c.Null, true)
		null()
	}
}
