package delta

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/weirlake/weir/internal/failure"
)

// ScanOptions of Scan.
type ScanOptions struct {
	// Columns in their order; nil means all.
	Columns []string
	// Keep drops files before they are read; nil reads all.
	Keep func(*Add) bool
}

// readRows is how many rows a record of a scan has at most.
const readRows = 64 << 10

// Scan reads the rows of a snapshot, file by file. emit takes the records over.
func (t *Table) Scan(ctx context.Context, s *Snapshot, o ScanOptions, emit func(arrow.RecordBatch) error) error {
	for _, a := range s.Files() {
		if o.Keep != nil && !o.Keep(a) {
			continue
		}
		if err := t.readFile(ctx, s, a, o.Columns, emit); err != nil {
			return err
		}
	}
	return nil
}

// project is the schema of some columns of a table.
func (s *Snapshot) project(columns []string) (*arrow.Schema, error) {
	if columns == nil {
		return s.Schema, nil
	}
	fields := make([]arrow.Field, len(columns))
	for i, c := range columns {
		at := s.Schema.FieldIndices(c)
		if len(at) == 0 {
			return nil, failure.New(failure.SchemaConflict, "the table has no column %q", c)
		}
		fields[i] = s.Schema.Field(at[0])
	}
	return arrow.NewSchema(fields, nil), nil
}

// readFile reads one data file in the shape of the table: columns that it lacks
// are null, partition columns come from the log.
func (t *Table) readFile(ctx context.Context, s *Snapshot, a *Add, columns []string, emit func(arrow.RecordBatch) error) (err error) {
	defer func() {
		if p := recover(); p != nil { // a damaged file makes the library panic in places
			err = fmt.Errorf("%v", p)
		}
		if err != nil {
			err = fmt.Errorf("data file %s of Delta table %s: %w", a.Path, t.Location(), err)
		}
	}()
	want, err := s.project(columns)
	if err != nil {
		return err
	}
	key, err := a.Key()
	if err != nil {
		return failure.Wrap(failure.SchemaConflict, err, "shallow clones are not supported")
	}
	in, err := t.storage.Open(ctx, key)
	if err != nil {
		return err
	}
	defer in.Close()
	pf, err := file.NewParquetReader(in)
	if err != nil {
		return err
	}
	fr, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{BatchSize: readRows}, memory.DefaultAllocator)
	if err != nil {
		return err
	}
	var cols []int
	sc := pf.MetaData().Schema
	for i := range sc.NumColumns() {
		name := sc.Column(i).ColumnPath()[0]
		if len(want.FieldIndices(name)) > 0 && !slices.Contains(s.Metadata.PartitionColumns, name) {
			cols = append(cols, i)
		}
	}
	if len(cols) == 0 {
		return emitRows(want, s, a, nil, pf.NumRows(), emit)
	}
	rr, err := fr.GetRecordReader(ctx, cols, nil)
	if err != nil {
		return err
	}
	defer rr.Release()
	for rr.Next() {
		rec := rr.RecordBatch()
		if err := emitRows(want, s, a, rec, rec.NumRows(), emit); err != nil {
			return err
		}
	}
	return rr.Err()
}

// emitRows gives what was read the table's shape.
func emitRows(want *arrow.Schema, s *Snapshot, a *Add, rec arrow.RecordBatch, rows int64, emit func(arrow.RecordBatch) error) error {
	cols := make([]arrow.Array, want.NumFields())
	defer func() {
		for _, c := range cols {
			if c != nil {
				c.Release()
			}
		}
	}()
	for i, f := range want.Fields() {
		var err error
		if cols[i], err = column(f, s, a, rec, int(rows)); err != nil {
			return fmt.Errorf("column %q: %w", f.Name, err)
		}
	}
	return emit(array.NewRecordBatch(want, cols, rows))
}

func column(f arrow.Field, s *Snapshot, a *Add, rec arrow.RecordBatch, rows int) (arrow.Array, error) {
	if slices.Contains(s.Metadata.PartitionColumns, f.Name) {
		return constant(f.Type, a.PartitionValues[f.Name], rows)
	}
	if rec != nil {
		if at := rec.Schema().FieldIndices(f.Name); len(at) > 0 {
			got := rec.Column(at[0])
			if arrow.TypeEqual(got.DataType(), f.Type) {
				got.Retain()
				return got, nil
			}
			return recast(got, f.Type)
		}
	}
	if !f.Nullable {
		return nil, failure.New(failure.SchemaConflict, "the file lacks the column, which may not be null")
	}
	return array.MakeArrayOfNull(memory.DefaultAllocator, f.Type, rows), nil
}

// recast gives the same values under a type that differs in names, nullability
// or time zone only.
func recast(a arrow.Array, to arrow.DataType) (arrow.Array, error) {
	if !sameShape(a.DataType(), to) && !sameTime(a.DataType(), to) {
		return nil, failure.New(failure.SchemaConflict, "it is %s in the file and %s in the table", a.DataType(), to)
	}
	d := retype(a.Data(), to)
	defer d.Release()
	return array.MakeFromData(d), nil
}

func sameTime(a, b arrow.DataType) bool {
	x, ok1 := a.(*arrow.TimestampType)
	y, ok2 := b.(*arrow.TimestampType)
	return ok1 && ok2 && x.Unit == y.Unit && x.TimeZone != "" && y.TimeZone != ""
}

func retype(d arrow.ArrayData, to arrow.DataType) arrow.ArrayData {
	var kids []arrow.ArrayData
	switch t := to.(type) {
	case *arrow.ListType:
		kids = []arrow.ArrayData{retype(d.Children()[0], t.Elem())}
	case *arrow.MapType:
		kids = []arrow.ArrayData{retype(d.Children()[0], t.Elem())}
	case *arrow.StructType:
		for i, k := range d.Children() {
			kids = append(kids, retype(k, t.Field(i).Type))
		}
	}
	out := array.NewData(to, d.Len(), d.Buffers(), kids, d.NullN(), d.Offset())
	for _, k := range kids {
		k.Release()
	}
	return out
}

// constant is a partition value as a column.
func constant(t arrow.DataType, v *string, rows int) (arrow.Array, error) {
	if v == nil || *v == "" {
		return array.MakeArrayOfNull(memory.DefaultAllocator, t, rows), nil
	}
	b := array.NewBuilder(memory.DefaultAllocator, t)
	defer b.Release()
	b.Reserve(rows)
	var num int64
	switch t.ID() {
	case arrow.INT8, arrow.INT16, arrow.INT32, arrow.INT64:
		var err error
		if num, err = strconv.ParseInt(*v, 10, 64); err != nil {
			return nil, fmt.Errorf("partition value: %w", err)
		}
	}
	for range rows {
		switch x := b.(type) {
		case *array.StringBuilder:
			x.Append(*v)
		case *array.Int8Builder:
			x.Append(int8(num))
		case *array.Int16Builder:
			x.Append(int16(num))
		case *array.Int32Builder:
			x.Append(int32(num))
		case *array.Int64Builder:
			x.Append(num)
		default:
			if err := b.AppendValueFromString(*v); err != nil {
				return nil, fmt.Errorf("partition value: %w", err)
			}
		}
	}
	return b.NewArray(), nil
}
