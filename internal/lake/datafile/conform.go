package datafile

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/failure"
)

// tableSchema is the arrow schema of the table's files: the iceberg schema's
// types, with its field ids in the metadata that pqarrow writes to Parquet.
func tableSchema(sc *iceberg.Schema) (*arrow.Schema, error) {
	out, err := table.SchemaToArrowSchema(sc, nil, true, false)
	if err != nil {
		return nil, fmt.Errorf("map the table's schema to arrow: %w", err)
	}
	return out, nil
}

// conformer turns the records of one schema into records of the table's.
type conformer struct {
	to *arrow.Schema
	// from[i] is the record's column for the table's column i, -1 for a column
	// that the record lacks (written as nulls).
	from []int
	src  *arrow.Schema
}

// newConformer checks that records of src can be stored as to: every column of
// the table is there under its name and with its type, or may be null; nothing
// is left over. It never converts values: a difference is an error that names
// both types.
func newConformer(src, to *arrow.Schema) (*conformer, error) {
	c := &conformer{to: to, src: src, from: make([]int, to.NumFields())}
	known := map[string]bool{}
	for i, want := range to.Fields() {
		known[want.Name] = true
		at := src.FieldIndices(want.Name)
		switch {
		case len(at) > 1:
			return nil, failure.New(failure.SchemaConflict, "column %q occurs %d times in the rows", want.Name, len(at))
		case len(at) == 0 && !want.Nullable:
			return nil, failure.New(failure.SchemaConflict, "the rows lack column %q, which the table requires", want.Name)
		case len(at) == 0:
			c.from[i] = -1
			continue
		}
		got := src.Field(at[0])
		if !sameType(got.Type, want.Type) {
			return nil, failure.New(failure.SchemaConflict, "column %q is %s in the rows and %s in the table", want.Name, got.Type, want.Type)
		}
		c.from[i] = at[0]
	}
	for _, f := range src.Fields() {
		if !known[f.Name] {
			return nil, failure.New(failure.SchemaConflict, "the table has no column %q", f.Name).
				WithHint("add the column to the table, or leave it out of the query")
		}
	}
	return c, nil
}

// sameType compares types without their metadata (field ids) and without the
// nullability of nested fields, which is checked on the values.
func sameType(a, b arrow.DataType) bool {
	switch at := a.(type) {
	case *arrow.ListType:
		bt, ok := b.(*arrow.ListType)
		return ok && sameType(at.Elem(), bt.Elem())
	case *arrow.StructType:
		bt, ok := b.(*arrow.StructType)
		if !ok || at.NumFields() != bt.NumFields() {
			return false
		}
		for i := range at.NumFields() {
			if at.Field(i).Name != bt.Field(i).Name || !sameType(at.Field(i).Type, bt.Field(i).Type) {
				return false
			}
		}
		return true
	case *arrow.MapType:
		bt, ok := b.(*arrow.MapType)
		return ok && sameType(at.KeyType(), bt.KeyType()) && sameType(at.ItemType(), bt.ItemType())
	}
	return arrow.TypeEqual(a, b)
}

// record gives rec under the table's schema; buffers are shared. The caller
// keeps rec.
func (c *conformer) record(rec arrow.RecordBatch) (arrow.RecordBatch, error) {
	cols := make([]arrow.Array, len(c.from))
	defer func() {
		for _, col := range cols {
			if col != nil {
				col.Release()
			}
		}
	}()
	for i, at := range c.from {
		f := c.to.Field(i)
		if at < 0 {
			cols[i] = array.MakeArrayOfNull(memory.DefaultAllocator, f.Type, int(rec.NumRows()))
			continue
		}
		data := retype(rec.Column(at).Data(), f.Type)
		cols[i] = array.MakeFromData(data)
		data.Release()
		if path := forbiddenNull(cols[i], f, f.Name); path != "" {
			return nil, failure.New(failure.SchemaConflict, "column %q holds a null, but the table requires a value", path)
		}
	}
	return array.NewRecordBatch(c.to, cols, rec.NumRows()), nil
}

// retype gives the same values under another, equally shaped type.
func retype(d arrow.ArrayData, to arrow.DataType) arrow.ArrayData {
	var kids []arrow.ArrayData
	switch dt := to.(type) {
	case *arrow.ListType:
		kids = []arrow.ArrayData{retype(d.Children()[0], dt.Elem())}
	case *arrow.StructType:
		for i, k := range d.Children() {
			kids = append(kids, retype(k, dt.Field(i).Type))
		}
	case *arrow.MapType:
		kids = []arrow.ArrayData{retype(d.Children()[0], dt.Elem())}
	}
	out := array.NewData(to, d.Len(), d.Buffers(), kids, d.NullN(), d.Offset())
	for _, k := range kids {
		k.Release()
	}
	return out
}

// forbiddenNull names a required field that holds a null, "" where there is
// none. Nested fields are only looked at where something is null at all.
func forbiddenNull(a arrow.Array, f arrow.Field, path string) string {
	if !f.Nullable && a.NullN() > 0 {
		return path
	}
	switch t := a.(type) {
	case *array.List:
		from, to := int64(0), int64(0)
		if t.Len() > 0 {
			from, _ = t.ValueOffsets(0)
			_, to = t.ValueOffsets(t.Len() - 1)
		}
		elem := array.NewSlice(t.ListValues(), from, to)
		defer elem.Release()
		ef := t.DataType().(*arrow.ListType).ElemField()
		return forbiddenNull(elem, ef, path+"."+ef.Name)
	case *array.Struct:
		if t.NullN() > 0 {
			return "" // a field of a null struct may be anything
		}
		st := t.DataType().(*arrow.StructType)
		for i := range st.NumFields() {
			if p := forbiddenNull(t.Field(i), st.Field(i), path+"."+st.Field(i).Name); p != "" {
				return p
			}
		}
	}
	return ""
}
