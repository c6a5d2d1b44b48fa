package scan

import (
	"context"
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Cast gives an array the type that the schema of its table has, whatever the
// reader made of it; values are never changed.
func Cast(ctx context.Context, a arrow.Array, to arrow.DataType) (arrow.Array, error) {
	return cast(ctx, a, to)
}

// cast gives the values of a under type to, exactly: a value that does not fit
// is an error. The result has no field ids and offset 0 in nested parts.
func cast(ctx context.Context, a arrow.Array, to arrow.DataType) (arrow.Array, error) {
	switch t := a.(type) {
	case *array.Dictionary:
		flat, err := compute.CastArray(ctx, a, compute.SafeCastOptions(t.Dictionary().DataType()))
		if err != nil {
			return nil, err
		}
		defer flat.Release()
		return cast(ctx, flat, to)
	case array.ExtensionArray:
		return cast(ctx, t.Storage(), to)
	}
	switch want := to.(type) {
	case *arrow.TimestampType:
		if t, ok := a.(*array.Timestamp); ok {
			return castTimestamp(t, want)
		}
		return nil, fmt.Errorf("%s cannot be read as %s", a.DataType(), to)
	case *arrow.ListType:
		return castList(ctx, a, want)
	case *arrow.StructType:
		if s, ok := a.(*array.Struct); ok {
			return castStruct(ctx, s, want)
		}
		return nil, fmt.Errorf("%s cannot be read as %s", a.DataType(), to)
	}
	if arrow.TypeEqual(a.DataType(), to) {
		a.Retain()
		return a, nil
	}
	return compute.CastArray(ctx, a, compute.SafeCastOptions(to))
}

// castTimestamp changes the unit. A time without a zone is taken as UTC, which
// is how Spark's older INT96 timestamps come out of Parquet.
func castTimestamp(a *array.Timestamp, to *arrow.TimestampType) (arrow.Array, error) {
	from := a.DataType().(*arrow.TimestampType)
	if from.Unit == to.Unit {
		d := array.NewData(to, a.Len(), a.Data().Buffers(), nil, a.NullN(), a.Data().Offset())
		defer d.Release()
		return array.MakeFromData(d), nil
	}
	num, den := int64(to.Unit.Multiplier()), int64(from.Unit.Multiplier())
	mul, div := max(1, den/num), max(1, num/den)
	b := array.NewTimestampBuilder(memory.DefaultAllocator, to)
	defer b.Release()
	b.Reserve(a.Len())
	for i := range a.Len() {
		if a.IsNull(i) {
			b.AppendNull()
			continue
		}
		v := int64(a.Value(i))
		if v > math.MaxInt64/mul || v < math.MinInt64/mul {
			return nil, fmt.Errorf("timestamp %d in %s does not fit %s", v, from, to)
		}
		v *= mul
		if v%div < 0 {
			v -= div // round down, also before 1970
		}
		b.Append(arrow.Timestamp(v / div))
	}
	return b.NewArray(), nil
}

func castList(ctx context.Context, a arrow.Array, to *arrow.ListType) (arrow.Array, error) {
	var values arrow.Array
	offsets := make([]int32, 0, a.Len()+1)
	var at func(i int) (int64, int64)
	switch t := a.(type) {
	case *array.List:
		values, at = t.ListValues(), t.ValueOffsets
	case *array.LargeList:
		values, at = t.ListValues(), t.ValueOffsets
	default:
		return nil, fmt.Errorf("%s cannot be read as %s", a.DataType(), to)
	}
	first, last := int64(0), int64(0)
	if a.Len() > 0 {
		first, _ = at(0)
		_, last = at(a.Len() - 1)
	}
	if last-first > math.MaxInt32 {
		return nil, fmt.Errorf("%d list elements in one piece", last-first)
	}
	for i := range a.Len() {
		from, _ := at(i)
		offsets = append(offsets, int32(from-first))
	}
	offsets = append(offsets, int32(last-first))
	part := array.NewSlice(values, first, last)
	defer part.Release()
	elem, err := cast(ctx, part, to.Elem())
	if err != nil {
		return nil, err
	}
	defer elem.Release()
	d := array.NewData(to, a.Len(), []*memory.Buffer{validity(a), memory.NewBufferBytes(arrow.Int32Traits.CastToBytes(offsets))},
		[]arrow.ArrayData{elem.Data()}, a.NullN(), 0)
	defer d.Release()
	return array.MakeFromData(d), nil
}

func castStruct(ctx context.Context, a *array.Struct, to *arrow.StructType) (arrow.Array, error) {
	from := a.DataType().(*arrow.StructType)
	kids := make([]arrow.ArrayData, 0, to.NumFields())
	defer func() {
		for _, k := range kids {
			k.Release()
		}
	}()
	for _, f := range to.Fields() {
		i, ok := from.FieldIdx(f.Name)
		if !ok {
			return nil, fmt.Errorf("field %q is missing in %s", f.Name, from)
		}
		k, err := cast(ctx, a.Field(i), f.Type)
		if err != nil {
			return nil, fmt.Errorf("field %q: %w", f.Name, err)
		}
		k.Data().Retain()
		kids = append(kids, k.Data())
		k.Release()
	}
	d := array.NewData(to, a.Len(), []*memory.Buffer{validity(a)}, kids, a.NullN(), 0)
	defer d.Release()
	return array.MakeFromData(d), nil
}

// validity is the validity bitmap of a, starting at its first value; nil where
// nothing is null.
func validity(a arrow.Array) *memory.Buffer {
	if a.NullN() == 0 {
		return nil
	}
	bits := make([]byte, (a.Len()+7)/8)
	for i := range a.Len() {
		if a.IsValid(i) {
			bits[i/8] |= 1 << (i % 8)
		}
	}
	return memory.NewBufferBytes(bits)
}
