package upsert

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/weirlake/weir/internal/failure"
)

// Spec says how rows are merged.
type Spec struct {
	// Keys are the columns that name a row.
	Keys []string
	// OrderBy are the columns that say which of two rows of a key is the later
	// one. Empty means the order in which they come.
	OrderBy []string
	// DeleteColumn is a boolean column of the source, and not of the table, that
	// says of a row that its key is deleted. Empty for none.
	DeleteColumn string
	// Delete makes every row of the source a delete.
	Delete bool
	// KeepNewer leaves a row of the table alone that comes after the source's by
	// OrderBy. Without it the source always wins.
	KeepNewer bool
}

// Columns are those that have to be read of a table to find what is replaced.
func (s Spec) Columns() []string {
	out := append([]string{}, s.Keys...)
	if s.KeepNewer {
		out = append(out, s.OrderBy...)
	}
	return out
}

// Row is the last row of a key in the source.
type Row struct {
	Rec, Row int
	Order    Order
	Delete   bool
}

// Source is a source with one row a key.
type Source struct {
	Spec
	// Records are the source's, without the delete column.
	Records []arrow.RecordBatch
	Rows    map[string]*Row
	// Ranges bound the keys, one for each key column.
	Ranges []Range
}

// Release lets go of the records.
func (s *Source) Release() {
	for _, r := range s.Records {
		r.Release()
	}
	s.Records = nil
}

// Reduce keeps the records until Release.
func Reduce(records []arrow.RecordBatch, spec Spec) (_ *Source, err error) {
	out := &Source{Spec: spec, Rows: map[string]*Row{}}
	defer func() {
		if err != nil {
			out.Release()
		}
	}()
	keys, orders := KeyColumns{Names: spec.Keys}, OrderColumns{Names: spec.OrderBy}
	for n, rec := range records {
		if err := keys.Bind(rec); err != nil {
			return nil, err
		}
		if err := orders.Bind(rec); err != nil {
			return nil, err
		}
		stripped, deletes, err := splitDeletes(rec, spec.DeleteColumn)
		if err != nil {
			return nil, err
		}
		out.Records = append(out.Records, stripped)
		for i := range int(rec.NumRows()) {
			k, ok := keys.Key(i)
			if !ok {
				return nil, failure.New(failure.SchemaConflict, "row %d of the source has a null in its key (%v)", i, spec.Keys)
			}
			order := orders.At(i)
			had := out.Rows[string(k)]
			if had != nil && order.Compare(had.Order) < 0 {
				continue
			}
			if had == nil {
				had = &Row{}
				out.Rows[string(k)] = had
			}
			*had = Row{Rec: n, Row: i, Order: order, Delete: spec.Delete || (deletes != nil && deletes.IsValid(i) && deletes.Value(i))}
		}
	}
	for _, k := range spec.Keys {
		out.Ranges = append(out.Ranges, rangeOf(k, records))
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

// WithoutColumn is a schema without one column.
func WithoutColumn(sc *arrow.Schema, column string) *arrow.Schema {
	var fields []arrow.Field
	for _, f := range sc.Fields() {
		if f.Name != column {
			fields = append(fields, f)
		}
	}
	return arrow.NewSchema(fields, nil)
}

// Range is the least and the greatest value of one key column in the source, for
// dropping files by their statistics. A column of another type has neither.
type Range struct {
	Column         string
	Ints, Strings  bool
	MinInt, MaxInt int64
	MinStr, MaxStr string
}

func rangeOf(name string, recs []arrow.RecordBatch) Range {
	r := Range{Column: name}
	for _, rec := range recs {
		c := rec.Column(rec.Schema().FieldIndices(name)[0])
		switch c.(type) {
		case *array.Int64, *array.Int32, *array.Int16, *array.Int8:
			for i := range c.Len() {
				if n, ok := integer(c, i); ok && c.IsValid(i) {
					if !r.Ints {
						r.Ints, r.MinInt, r.MaxInt = true, n, n
					}
					r.MinInt, r.MaxInt = min(r.MinInt, n), max(r.MaxInt, n)
				}
			}
		case *array.String:
			for i := range c.Len() {
				if c.IsValid(i) {
					v := string(raw(c, i))
					if !r.Strings {
						r.Strings, r.MinStr, r.MaxStr = true, v, v
					}
					r.MinStr, r.MaxStr = min(r.MinStr, v), max(r.MaxStr, v)
				}
			}
		}
	}
	return r
}
