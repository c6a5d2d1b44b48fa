package upsert

import (
	"cmp"
	"encoding/binary"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"github.com/weirlake/weir/internal/failure"
)

// KeyColumns reads the key of rows as bytes: equal bytes are equal keys.
type KeyColumns struct {
	Names []string
	cols  []arrow.Array
	buf   []byte
}

// Bind points the reader at a record.
func (k *KeyColumns) Bind(rec arrow.RecordBatch) error {
	k.cols = k.cols[:0]
	for _, n := range k.Names {
		at := rec.Schema().FieldIndices(n)
		if len(at) != 1 {
			return failure.New(failure.SchemaConflict, "the rows have no key column %q", n)
		}
		switch t := rec.Column(at[0]).DataType(); t.ID() {
		case arrow.STRING, arrow.BINARY, arrow.INT8, arrow.INT16, arrow.INT32, arrow.INT64, arrow.BOOL, arrow.DATE32, arrow.TIMESTAMP, arrow.DECIMAL128:
		default:
			return failure.New(failure.SchemaConflict, "column %q is %s and cannot be a key", n, t)
		}
		k.cols = append(k.cols, rec.Column(at[0]))
	}
	return nil
}

// Key of a row; ok is false where a key column is null. The bytes are valid
// until the next call.
func (k *KeyColumns) Key(row int) (key []byte, ok bool) {
	k.buf = k.buf[:0]
	for _, c := range k.cols {
		if c.IsNull(row) {
			return nil, false
		}
		if n, isNum := integer(c, row); isNum {
			k.buf = binary.LittleEndian.AppendUint64(k.buf, uint64(n))
			continue
		}
		b := raw(c, row)
		k.buf = binary.AppendUvarint(k.buf, uint64(len(b)))
		k.buf = append(k.buf, b...)
	}
	return k.buf, true
}

// integer is the value of columns that are stored as whole numbers.
func integer(a arrow.Array, i int) (int64, bool) {
	switch x := a.(type) {
	case *array.Int64:
		return x.Value(i), true
	case *array.Int32:
		return int64(x.Value(i)), true
	case *array.Int16:
		return int64(x.Value(i)), true
	case *array.Int8:
		return int64(x.Value(i)), true
	case *array.Date32:
		return int64(x.Value(i)), true
	case *array.Timestamp:
		return int64(x.Value(i)), true
	case *array.Boolean:
		if x.Value(i) {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

func raw(a arrow.Array, i int) []byte {
	switch x := a.(type) {
	case *array.String:
		return []byte(x.Value(i))
	case *array.Binary:
		return x.Value(i)
	case *array.Decimal128:
		return ordered(x.Value(i))
	}
	return nil
}

// ordered are sixteen bytes in the order of the decimals.
func ordered(d decimal128.Num) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(d.HighBits())^1<<63) //nolint:gosec // the bits
	return binary.BigEndian.AppendUint64(b, d.LowBits())
}

// Order is the value of the order columns of a row; nil parts are nulls and
// come first.
type Order []any

// OrderColumns reads the declared order of rows.
type OrderColumns struct {
	Names []string
	cols  []arrow.Array
}

// Bind points the reader at a record.
func (o *OrderColumns) Bind(rec arrow.RecordBatch) error {
	o.cols = o.cols[:0]
	for _, n := range o.Names {
		at := rec.Schema().FieldIndices(n)
		if len(at) != 1 {
			return failure.New(failure.SchemaConflict, "the rows have no column %q to order by", n)
		}
		c := rec.Column(at[0])
		switch c.DataType().ID() {
		case arrow.STRING, arrow.BINARY, arrow.INT8, arrow.INT16, arrow.INT32, arrow.INT64, arrow.BOOL, arrow.DATE32, arrow.TIMESTAMP, arrow.DECIMAL128:
		default:
			return failure.New(failure.SchemaConflict, "column %q is %s and cannot be ordered by", n, c.DataType())
		}
		o.cols = append(o.cols, c)
	}
	return nil
}

// At is the order of a row.
func (o *OrderColumns) At(row int) Order {
	out := make(Order, len(o.cols))
	for i, c := range o.cols {
		if c.IsNull(row) {
			continue
		}
		if n, ok := integer(c, row); ok {
			out[i] = n
		} else {
			out[i] = string(raw(c, row))
		}
	}
	return out
}

// Compare orders: negative where a comes first.
func (a Order) Compare(b Order) int {
	for i := range a {
		if c := compareOrder(a[i], b[i]); c != 0 {
			return c
		}
	}
	return 0
}

func compareOrder(a, b any) int {
	switch x := a.(type) {
	case int64:
		if y, ok := b.(int64); ok {
			return cmp.Compare(x, y)
		}
	case string:
		if y, ok := b.(string); ok {
			return cmp.Compare(x, y)
		}
	}
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return -1
	}
	return 1
}
