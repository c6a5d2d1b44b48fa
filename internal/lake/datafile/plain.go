package datafile

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/parquet/metadata"

	"github.com/weirlake/weir/internal/failure"
)

// PlainSpec describes files that belong to no Iceberg table: no field ids,
// partitioned by the values of columns that are then not stored in the file
// (Delta, Hive).
type PlainSpec struct {
	// Schema is the shape of the rows, partition columns included.
	Schema *arrow.Schema
	// PartitionColumns are strings, whole numbers, booleans or dates.
	PartitionColumns []string
	// Location, FS, Parallel and TargetBytes are those of Spec. All files are
	// made in Location itself.
	Location    string
	FS          FS
	Parallel    int
	TargetBytes int64
}

// PlainFile is one durable file and its footer.
type PlainFile struct {
	Path  string
	Rows  int64
	Bytes int64
	Meta  *metadata.FileMetaData
	// Partition holds the value of each partition column as text, nil for null.
	Partition []*string
}

// PlainWriter writes files of a PlainSpec. Its methods are those of Writer.
type PlainWriter struct{ *Writer }

// NewPlainWriter opens a writer; see NewWriter.
func NewPlainWriter(spec PlainSpec, namePrefix string, onFile func()) (*PlainWriter, error) {
	if spec.Schema == nil || spec.FS == nil {
		return nil, errors.New("datafile: schema and file system are required")
	}
	parts, err := newPlainSplitter(spec.Schema, spec.PartitionColumns)
	if err != nil {
		return nil, err
	}
	w := &PlainWriter{Writer: &Writer{
		spec:   Spec{FS: spec.FS, Location: spec.Location, Parallel: spec.Parallel, TargetBytes: spec.TargetBytes},
		prefix: namePrefix, onFile: onFile, table: spec.Schema, schema: parts.stored, parts: parts,
		describe: func(meta *metadata.FileMetaData, path string, bytes int64, pv partitionValue) (File, error) {
			return File{Path: path, Rows: meta.GetNumRows(), Bytes: bytes, plain: &PlainFile{
				Path: path, Rows: meta.GetNumRows(), Bytes: bytes, Meta: meta, Partition: pv.text,
			}}, nil
		},
	}}
	w.start()
	return w, nil
}

// Close finishes every file, in the order in which they were begun.
func (w *PlainWriter) Close(ctx context.Context) ([]PlainFile, error) {
	files, err := w.Writer.Close(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]PlainFile, len(files))
	for i, f := range files {
		out[i] = *f.plain
	}
	return out, nil
}

// plainSplitter partitions by the values of columns, as they are.
type plainSplitter struct {
	columns []int
	names   []string
	kept    []int
	stored  *arrow.Schema
	combos  map[string]int
	parts   []partitionValue
}

func newPlainSplitter(sc *arrow.Schema, columns []string) (*plainSplitter, error) {
	p := &plainSplitter{names: columns, combos: map[string]int{}}
	for _, name := range columns {
		at := sc.FieldIndices(name)
		if len(at) != 1 {
			return nil, failure.New(failure.SchemaConflict, "partition column %q is not a column of the table", name)
		}
		switch t := sc.Field(at[0]).Type; t.ID() {
		case arrow.STRING, arrow.INT8, arrow.INT16, arrow.INT32, arrow.INT64, arrow.BOOL, arrow.DATE32:
		default:
			return nil, failure.New(failure.Config, "partition column %q is %s: not supported", name, t).
				WithHint("partition by strings, whole numbers, booleans or dates; add a date column to partition by day")
		}
		p.columns = append(p.columns, at[0])
	}
	var fields []arrow.Field
	for i, f := range sc.Fields() {
		if !slices.Contains(p.columns, i) {
			p.kept = append(p.kept, i)
			fields = append(fields, f)
		}
	}
	if len(fields) == 0 {
		return nil, failure.New(failure.Config, "every column is a partition column: the data files would be empty")
	}
	p.stored = arrow.NewSchema(fields, nil)
	return p, nil
}

func (p *plainSplitter) count() int                  { return len(p.parts) }
func (p *plainSplitter) value(id int) partitionValue { return p.parts[id] }

// split implements splitter.
func (p *plainSplitter) split(ctx context.Context, rec arrow.RecordBatch) ([]part, error) {
	n := int(rec.NumRows())
	if n == 0 {
		return nil, nil
	}
	stored := p.store(rec)
	defer stored.Release()
	rows, runs, err := p.assign(rec)
	if err != nil {
		return nil, err
	}
	if runs > 1 {
		return cut(ctx, stored, rows, runs)
	}
	stored.Retain()
	return []part{{rows[0], stored}}, nil
}

// store gives the record without its partition columns.
func (p *plainSplitter) store(rec arrow.RecordBatch) arrow.RecordBatch {
	cols := make([]arrow.Array, len(p.kept))
	for i, at := range p.kept {
		cols[i] = rec.Column(at)
	}
	return array.NewRecordBatch(p.stored, cols, rec.NumRows())
}

func (p *plainSplitter) assign(rec arrow.RecordBatch) (rows []int, runs int, err error) {
	rows = make([]int, rec.NumRows())
	var key []byte
	last := ""
	for r := range rows {
		key = key[:0]
		for _, c := range p.columns {
			a := rec.Column(c)
			if a.IsNull(r) {
				key = append(key, 0)
				continue
			}
			v := plainText(a, r)
			key = binary.AppendUvarint(append(key, 1), uint64(len(v)))
			key = append(key, v...)
		}
		if r > 0 && string(key) == last {
			rows[r] = rows[r-1]
			continue
		}
		runs++
		last = string(key)
		id, ok := p.combos[last]
		if !ok {
			if id, err = p.add(rec, r); err != nil {
				return nil, 0, err
			}
			p.combos[last] = id
		}
		rows[r] = id
	}
	return rows, runs, nil
}

func (p *plainSplitter) add(rec arrow.RecordBatch, row int) (int, error) {
	pv := partitionValue{text: make([]*string, len(p.columns))}
	for i, c := range p.columns {
		a := rec.Column(c)
		if a.IsNull(row) {
			continue
		}
		v := string([]byte(plainText(a, row))) // the array's memory goes away
		if v == "" {
			return 0, failure.New(failure.SchemaConflict, "partition column %q holds an empty string, which the format cannot tell from a null", p.names[i]).
				WithHint("replace empty strings by null, or partition by another column")
		}
		pv.text[i] = &v
	}
	p.parts = append(p.parts, pv)
	return len(p.parts) - 1, nil
}

func plainText(a arrow.Array, i int) string {
	switch t := a.(type) {
	case *array.String:
		return t.Value(i)
	case *array.Int8:
		return strconv.FormatInt(int64(t.Value(i)), 10)
	case *array.Int16:
		return strconv.FormatInt(int64(t.Value(i)), 10)
	case *array.Int32:
		return strconv.FormatInt(int64(t.Value(i)), 10)
	case *array.Int64:
		return strconv.FormatInt(t.Value(i), 10)
	case *array.Boolean:
		return strconv.FormatBool(t.Value(i))
	case *array.Date32:
		return t.Value(i).FormattedString()
	}
	return fmt.Sprint(a.ValueStr(i))
}
