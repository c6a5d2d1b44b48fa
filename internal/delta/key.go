package delta

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/weirlake/weir/internal/failure"
)

// keyColumns reads the key of rows as bytes: equal bytes are equal keys.
type keyColumns struct {
	names []string
	cols  []arrow.Array
	buf   []byte
}

// bind points the reader at a record.
func (k *keyColumns) bind(rec arrow.RecordBatch) error {
	k.cols = k.cols[:0]
	for _, n := range k.names {
		at := rec.Schema().FieldIndices(n)
		if len(at) != 1 {
			return failure.New(failure.SchemaConflict, "the rows have no key column %q", n)
		}
		switch t := rec.Column(at[0]).DataType(); t.ID() {
		case arrow.STRING, arrow.BINARY, arrow.INT8, arrow.INT16, arrow.INT32, arrow.INT64, arrow.BOOL, arrow.DATE32, arrow.TIMESTAMP:
		default:
			return failure.New(failure.SchemaConflict, "column %q is %s and cannot be a key", n, t)
		}
		k.cols = append(k.cols, rec.Column(at[0]))
	}
	return nil
}

// key of a row; ok is false where a key column is null. The bytes are valid
// until the next call.
func (k *keyColumns) key(row int) (key []byte, ok bool) {
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
	}
	return nil
}

// order is the value of the order columns of a row; nil parts are nulls and
// come first.
type order []any

// orderColumns reads the declared order of rows.
type orderColumns struct {
	names []string
	cols  []arrow.Array
}

func (o *orderColumns) bind(rec arrow.RecordBatch) error {
	o.cols = o.cols[:0]
	for _, n := range o.names {
		at := rec.Schema().FieldIndices(n)
		if len(at) != 1 {
			return failure.New(failure.SchemaConflict, "the rows have no column %q to order by", n)
		}
		c := rec.Column(at[0])
		switch c.DataType().ID() {
		case arrow.STRING, arrow.BINARY, arrow.INT8, arrow.INT16, arrow.INT32, arrow.INT64, arrow.BOOL, arrow.DATE32, arrow.TIMESTAMP:
		default:
			return failure.New(failure.SchemaConflict, "column %q is %s and cannot be ordered by", n, c.DataType())
		}
		o.cols = append(o.cols, c)
	}
	return nil
}

func (o *orderColumns) at(row int) order {
	out := make(order, len(o.cols))
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

func (a order) compare(b order) int {
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

// keyRange is the least and the greatest value of one key column in the source,
// for dropping files by their statistics.
type keyRange struct {
	column string
	ints   *intBounds
	strs   *stringBounds
}

func rangeOf(name string, recs []arrow.RecordBatch) keyRange {
	r := keyRange{column: name}
	for _, rec := range recs {
		c := rec.Column(rec.Schema().FieldIndices(name)[0])
		switch c.(type) {
		case *array.Int64, *array.Int32, *array.Int16, *array.Int8:
			for i := range c.Len() {
				if c.IsValid(i) {
					n, _ := integer(c, i)
					r.ints = r.ints.with(n, n)
				}
			}
		case *array.String:
			for i := range c.Len() {
				if c.IsValid(i) {
					v := string(raw(c, i))
					r.strs = r.strs.with(v, v)
				}
			}
		}
	}
	return r
}

// mayHold reports whether a file may hold a key of the range.
func (r keyRange) mayHold(a *Add, s Stats) bool {
	if v, ok := a.PartitionValues[r.column]; ok {
		return r.holdsText(v)
	}
	lo, hi := s.MinValues[r.column], s.MaxValues[r.column]
	if lo == nil || hi == nil {
		return true
	}
	switch {
	case r.ints != nil:
		from, err1 := strconv.ParseInt(string(bytes.TrimSpace(lo)), 10, 64)
		to, err2 := strconv.ParseInt(string(bytes.TrimSpace(hi)), 10, 64)
		return err1 != nil || err2 != nil || (from <= r.ints.max && to >= r.ints.min)
	case r.strs != nil:
		var from, to string
		if json.Unmarshal(lo, &from) != nil || json.Unmarshal(hi, &to) != nil {
			return true
		}
		// Other engines cut the upper bound in ways of their own.
		return from <= r.strs.max && (to >= r.strs.min || len(to) >= statsStringMax)
	}
	return true
}

func (r keyRange) holdsText(v *string) bool {
	switch {
	case v == nil:
		return false // a key is never null
	case r.ints != nil:
		n, err := strconv.ParseInt(*v, 10, 64)
		return err != nil || (n >= r.ints.min && n <= r.ints.max)
	case r.strs != nil:
		return *v >= r.strs.min && *v <= r.strs.max
	}
	return true
}
