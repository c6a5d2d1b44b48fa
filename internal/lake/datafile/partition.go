package datafile

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"

	"github.com/weirlake/weir/internal/failure"
)

// sliceRunMin is the average run length from which a mixed record is cut into
// slices (nothing copied) rather than gathered row by row.
const sliceRunMin = 64

// partitioner finds the partition value of each row. Values get dense ids in
// the order in which they are first seen.
type partitioner struct {
	fields []*partitionField
	sc     *iceberg.Schema
	spec   iceberg.PartitionSpec
	// combos maps the ids of all fields to a partition.
	combos map[string]int
	parts  []partitionValue
}

// partitionValue is one partition: its path below the data folder and its
// values by partition field id, as iceberg types.
type partitionValue struct {
	path   string
	values map[int]any
	text   []*string // PlainSpec: the values as text
}

// partitionField is one field of the spec with the values that it has met.
type partitionField struct {
	field  iceberg.PartitionField
	column int
	result iceberg.Type
	// unit is the length in microseconds within which all values of a time
	// column share a partition value; 1 elsewhere.
	unit    int64
	literal func(raw int64) iceberg.Literal
	ints    map[int64]int32
	strs    map[string]int32
	null    int32
	values  []any
}

func newPartitioner(sc *iceberg.Schema, spec iceberg.PartitionSpec) (*partitioner, error) {
	p := &partitioner{sc: sc, spec: spec, combos: map[string]int{}}
	for _, f := range spec.Fields() {
		if _, void := f.Transform.(iceberg.VoidTransform); void {
			continue
		}
		pf, err := newPartitionField(sc, f)
		if err != nil {
			return nil, err
		}
		p.fields = append(p.fields, pf)
	}
	return p, nil
}

func newPartitionField(sc *iceberg.Schema, f iceberg.PartitionField) (*partitionField, error) {
	src, ok := sc.FindFieldByID(f.SourceID())
	if !ok {
		return nil, failure.New(failure.SchemaConflict, "partition field %q: the table has no column with id %d", f.Name, f.SourceID())
	}
	pf := &partitionField{field: f, column: -1, result: f.Transform.ResultType(src.Type), unit: 1,
		ints: map[int64]int32{}, strs: map[string]int32{}, null: -1}
	for i, top := range sc.Fields() {
		if top.ID == src.ID {
			pf.column = i
		}
	}
	if pf.column < 0 {
		return nil, failure.New(failure.Config, "partition field %q: nested source column %q is not supported", f.Name, src.Name)
	}
	switch src.Type.(type) {
	case iceberg.TimestampTzType, iceberg.TimestampType:
		pf.literal = func(raw int64) iceberg.Literal { return iceberg.NewLiteral(iceberg.Timestamp(raw)) }
		switch f.Transform.(type) {
		case iceberg.HourTransform:
			pf.unit = time.Hour.Microseconds()
		case iceberg.DayTransform, iceberg.MonthTransform, iceberg.YearTransform:
			pf.unit = 24 * time.Hour.Microseconds()
		default:
			pf.literal = nil
		}
	case iceberg.DateType:
		pf.literal = func(raw int64) iceberg.Literal { return iceberg.NewLiteral(iceberg.Date(raw)) }
	case iceberg.Int32Type:
		pf.literal = func(raw int64) iceberg.Literal { return iceberg.NewLiteral(int32(raw)) }
	case iceberg.Int64Type:
		pf.literal = func(raw int64) iceberg.Literal { return iceberg.NewLiteral(raw) }
	case iceberg.StringType:
		pf.literal = func(int64) iceberg.Literal { return nil }
	}
	if pf.literal == nil {
		return nil, failure.New(failure.Config, "partition field %q: %s of a %s column is not supported", f.Name, f.Transform, src.Type).
			WithHint("supported: identity, bucket and truncate of int, long and string; identity and year, month, day, hour of dates and times (hour, day, month, year of timestamps)")
	}
	return pf, nil
}

// ids fills out with the value id of each row.
func (f *partitionField) ids(a arrow.Array, out []int32) error {
	if s, ok := a.(*array.String); ok {
		for i := range out {
			out[i] = f.stringID(s, i)
		}
		return nil
	}
	raw, err := rawInts(a)
	if err != nil {
		return fmt.Errorf("partition field %q: %w", f.field.Name, err)
	}
	lastUnit, lastID := int64(0), int32(-1)
	for i := range out {
		if a.IsNull(i) {
			out[i] = f.nullID()
			continue
		}
		u := raw(i)
		if f.unit > 1 {
			u = floorDiv(u, f.unit)
		}
		if lastID < 0 || u != lastUnit {
			lastUnit, lastID = u, f.intID(u)
		}
		out[i] = lastID
	}
	return nil
}

func rawInts(a arrow.Array) (func(int) int64, error) {
	switch t := a.(type) {
	case *array.Timestamp:
		v := t.TimestampValues()
		return func(i int) int64 { return int64(v[i]) }, nil
	case *array.Int64:
		v := t.Int64Values()
		return func(i int) int64 { return v[i] }, nil
	case *array.Int32:
		v := t.Int32Values()
		return func(i int) int64 { return int64(v[i]) }, nil
	case *array.Date32:
		v := t.Date32Values()
		return func(i int) int64 { return int64(v[i]) }, nil
	}
	return nil, fmt.Errorf("cannot partition by a column of arrow type %s", a.DataType())
}

func (f *partitionField) nullID() int32 {
	if f.null < 0 {
		f.null = int32(len(f.values))
		f.values = append(f.values, nil)
	}
	return f.null
}

func (f *partitionField) intID(u int64) int32 {
	id, ok := f.ints[u]
	if !ok {
		id = f.add(f.literal(u * f.unit))
		f.ints[u] = id
	}
	return id
}

func (f *partitionField) stringID(a *array.String, i int) int32 {
	if a.IsNull(i) {
		return f.nullID()
	}
	s := a.Value(i)
	id, ok := f.strs[s]
	if !ok {
		s = string(append([]byte(nil), s...)) // the array's memory goes away
		id = f.add(iceberg.NewLiteral(s))
		f.strs[s] = id
	}
	return id
}

// add transforms the literal and gives its value's id; two source values with
// one transformed value share it.
func (f *partitionField) add(lit iceberg.Literal) int32 {
	out := f.field.Transform.Apply(iceberg.Optional[iceberg.Literal]{Valid: true, Val: lit})
	if !out.Valid {
		return f.nullID()
	}
	v := out.Val.Any()
	if _, date := f.result.(iceberg.DateType); date {
		if n, ok := v.(int32); ok {
			v = iceberg.Date(n) // the day transform yields a date, its literal is an int
		}
	}
	for id, known := range f.values {
		if known == v {
			return int32(id)
		}
	}
	f.values = append(f.values, v)
	return int32(len(f.values) - 1)
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// part is a piece of a record that belongs to one partition.
type part struct {
	id  int
	rec arrow.RecordBatch
}

func (p *partitioner) count() int                  { return len(p.parts) }
func (p *partitioner) value(id int) partitionValue { return p.parts[id] }

// split cuts rec by partition; the pieces keep the rows' order and are
// released by the caller. A record within one partition comes back whole.
func (p *partitioner) split(ctx context.Context, rec arrow.RecordBatch) ([]part, error) {
	n := int(rec.NumRows())
	if n == 0 {
		return nil, nil
	}
	rows, runs, err := p.assign(rec)
	if err != nil {
		return nil, err
	}
	if runs == 1 {
		rec.Retain()
		return []part{{rows[0], rec}}, nil
	}
	return cut(ctx, rec, rows, runs)
}

// cut gives the pieces of a record whose rows belong to more than one partition.
func cut(ctx context.Context, rec arrow.RecordBatch, rows []int, runs int) ([]part, error) {
	n := len(rows)
	if n/runs >= sliceRunMin {
		var out []part
		for from := 0; from < n; {
			to := from + 1
			for to < n && rows[to] == rows[from] {
				to++
			}
			out = append(out, part{rows[from], rec.NewSlice(int64(from), int64(to))})
			from = to
		}
		return out, nil
	}
	return gather(ctx, rec, rows)
}

// assign gives each row's partition and the number of runs of equal ones.
func (p *partitioner) assign(rec arrow.RecordBatch) ([]int, int, error) {
	n := int(rec.NumRows())
	ids := make([][]int32, len(p.fields))
	for i, f := range p.fields {
		ids[i] = make([]int32, n)
		if err := f.ids(rec.Column(f.column), ids[i]); err != nil {
			return nil, 0, err
		}
	}
	rows := make([]int, n)
	runs := 0
	key := make([]byte, 4*len(p.fields))
	for r := range n {
		same := r > 0
		for i := range ids {
			same = same && ids[i][r] == ids[i][r-1]
		}
		if same {
			rows[r] = rows[r-1]
			continue
		}
		runs++
		for i := range ids {
			binary.LittleEndian.PutUint32(key[4*i:], uint32(ids[i][r]))
		}
		id, ok := p.combos[string(key)]
		if !ok {
			id = p.add(ids, r)
			p.combos[string(key)] = id
		}
		rows[r] = id
	}
	return rows, runs, nil
}

func (p *partitioner) add(ids [][]int32, row int) int {
	pv := partitionValue{values: map[int]any{}}
	tuple := make(partitionTuple, 0, p.spec.NumFields())
	at := 0
	for _, sf := range p.spec.Fields() {
		var v any
		if at < len(p.fields) && p.fields[at].field.FieldID == sf.FieldID {
			v = p.fields[at].values[ids[at][row]]
			at++
		}
		pv.values[sf.FieldID] = v
		tuple = append(tuple, v)
	}
	if len(tuple) > 0 {
		pv.path = p.spec.PartitionToPath(tuple, p.sc)
	}
	p.parts = append(p.parts, pv)
	return len(p.parts) - 1
}

// gather copies the rows of each partition together.
func gather(ctx context.Context, rec arrow.RecordBatch, rows []int) (out []part, err error) {
	builders := map[int]*array.Int64Builder{}
	var order []int
	for r, id := range rows {
		b, ok := builders[id]
		if !ok {
			b = array.NewInt64Builder(memory.DefaultAllocator)
			builders[id] = b
			order = append(order, id)
		}
		b.Append(int64(r))
	}
	defer func() {
		for _, b := range builders {
			b.Release()
		}
		if err != nil {
			for _, pt := range out {
				pt.rec.Release()
			}
			out = nil
		}
	}()
	for _, id := range order {
		taken, err := take(ctx, rec, builders[id].NewInt64Array())
		if err != nil {
			return out, fmt.Errorf("split rows by partition: %w", err)
		}
		out = append(out, part{id, taken})
	}
	return out, nil
}

// take gathers rows by index and releases idx.
func take(ctx context.Context, rec arrow.RecordBatch, idx *array.Int64) (arrow.RecordBatch, error) {
	defer idx.Release()
	cols := make([]arrow.Array, rec.NumCols())
	defer func() {
		for _, c := range cols {
			if c != nil {
				c.Release()
			}
		}
	}()
	for i := range cols {
		col, err := compute.TakeArray(ctx, rec.Column(i), idx)
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", rec.ColumnName(i), err)
		}
		// The kernel may lose the metadata of nested types (field ids).
		data := retype(col.Data(), rec.Schema().Field(i).Type)
		cols[i] = array.MakeFromData(data)
		data.Release()
		col.Release()
	}
	return array.NewRecordBatch(rec.Schema(), cols, int64(idx.Len())), nil
}

// partitionTuple is a row of partition values.
type partitionTuple []any

func (t partitionTuple) Size() int            { return len(t) }
func (t partitionTuple) Get(pos int) any      { return t[pos] }
func (t partitionTuple) Set(pos int, val any) { t[pos] = val }
