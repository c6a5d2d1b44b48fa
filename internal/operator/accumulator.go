package operator

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/zeebo/xxh3"

	"github.com/weirlake/weir/internal/batch"
)

// valueType is how a value of a column is held and compared.
type valueType uint8

const (
	valInt valueType = iota
	valLong
	valFloat
	valDouble
	valBool
	valDate
	valLocal
	valTime
	valDecimal
	valString
	valBinary
)

func valueTypeOf(t arrow.DataType) (valueType, bool) {
	switch t.ID() {
	case arrow.INT32:
		return valInt, true
	case arrow.INT64:
		return valLong, true
	case arrow.FLOAT32:
		return valFloat, true
	case arrow.FLOAT64:
		return valDouble, true
	case arrow.DECIMAL128:
		return valDecimal, true
	case arrow.DATE32:
		return valDate, true
	case arrow.BOOL:
		return valBool, true
	case arrow.TIMESTAMP:
		if arrow.TypeEqual(t, batch.LocalTimestamp) {
			return valLocal, true
		}
		return valTime, arrow.TypeEqual(t, batch.Timestamp)
	case arrow.STRING:
		return valString, true
	case arrow.BINARY:
		return valBinary, true
	}
	return 0, false
}

func (t valueType) String() string {
	return [...]string{"int", "long", "float", "double", "boolean", "date", "timestamp", "timestamptz", "decimal", "string", "binary"}[t]
}

// variable reports whether a value is its bytes: a decimal's are the sixteen of its
// digits, as Arrow holds them.
func (t valueType) variable() bool { return t >= valDecimal }

// inexact reports whether equal values need not be the same value.
func (t valueType) inexact() bool { return t == valFloat || t == valDouble }

// value is one value of a column: its 64 bits (a float is held as a double), or its
// bytes. The bytes belong to the record.
type value struct {
	bits uint64
	text []byte
}

// valueOf reads a value; false where it is null.
func valueOf(a arrow.Array, row int) (value, bool) {
	if a.IsNull(row) {
		return value{}, false
	}
	switch a := a.(type) {
	case *array.String:
		return value{text: stringBytes(a, row)}, true
	case *array.Binary:
		return value{text: a.Value(row)}, true
	case *array.Int32:
		return value{bits: uint64(int64(a.Value(row)))}, true
	case *array.Int64:
		return value{bits: uint64(a.Value(row))}, true
	case *array.Timestamp:
		return value{bits: uint64(a.Value(row))}, true
	case *array.Date32:
		return value{bits: uint64(int64(a.Value(row)))}, true //nolint:gosec // the bits
	case *array.Decimal128:
		return value{text: arrow.Decimal128Traits.CastToBytes(a.Values()[row : row+1])}, true
	case *array.Float32:
		return value{bits: math.Float64bits(float64(a.Value(row)))}, true
	case *array.Float64:
		return value{bits: math.Float64bits(a.Value(row))}, true
	case *array.Boolean:
		if a.Value(row) {
			return value{bits: 1}, true
		}
		return value{}, true
	}
	return value{}, false // not reached: valueTypeOf has refused other types
}

// compare orders two values. Doubles are in the order of Spark: NaN is the
// greatest, and the two zeros are equal.
func (t valueType) compare(a, b value) int {
	switch {
	case t == valDecimal:
		return decimalOf(a).Cmp(decimalOf(b))
	case t.variable():
		return bytes.Compare(a.text, b.text)
	case t.inexact():
		x, y := math.Float64frombits(a.bits), math.Float64frombits(b.bits)
		switch {
		case math.IsNaN(x) && math.IsNaN(y):
			return 0
		case math.IsNaN(x):
			return 1
		case math.IsNaN(y):
			return -1
		}
		return cmp.Compare(x, y)
	}
	return cmp.Compare(int64(a.bits), int64(b.bits))
}

// decimalOf is the number of a decimal's bytes.
func decimalOf(v value) decimal128.Num {
	return decimal128.New(int64(binary.LittleEndian.Uint64(v.text[8:])), binary.LittleEndian.Uint64(v.text)) //nolint:gosec // the bits
}

func (t valueType) appendValue(b []byte, v value) []byte {
	if t.variable() {
		return append(binary.AppendUvarint(b, uint64(len(v.text))), v.text...)
	}
	return binary.LittleEndian.AppendUint64(b, v.bits)
}

// readValue reads what appendValue wrote; the text is a copy.
func (t valueType) readValue(b []byte) (value, []byte, bool) {
	if t.variable() {
		text, rest, ok := cutText(b)
		return value{text: bytes.Clone(text)}, rest, ok
	}
	if len(b) < 8 {
		return value{}, nil, false
	}
	return value{bits: binary.LittleEndian.Uint64(b)}, b[8:], true
}

// cutText reads a length and as many bytes; the text is a part of b.
func cutText(b []byte) (text, rest []byte, ok bool) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return nil, nil, false
	}
	return b[size : size+int(n)], b[size+int(n):], true
}

// accumulator is one aggregate of one group.
type accumulator interface {
	// add takes a value in; it copies what it keeps.
	add(v value, at int64)
	// merge takes another group's in, which is not used afterwards.
	merge(o accumulator)
	encode(b []byte) []byte
	decode(b []byte) (rest []byte, ok bool)
	// result appends to the builder of the column.
	result(b array.Builder)
}

func (s *accSpec) newAccumulator() accumulator {
	switch s.Function {
	case Count:
		return &countAcc{}
	case Sum, Avg:
		if s.typ == valDecimal {
			return &decimalSumAcc{typ: s.sum}
		}
		return &sumAcc{avg: s.Function == Avg}
	case Min, Max:
		return &extremeAcc{typ: s.typ, sign: signOf(s.Function == Max)}
	case First, Last:
		return &edgeAcc{typ: s.typ, sign: signOf(s.Function == Last)}
	case CollectSet:
		return &setAcc{limit: s.limit}
	default:
		return &distinctAcc{typ: s.typ}
	}
}

func signOf(greatest bool) int {
	if greatest {
		return 1
	}
	return -1
}

type countAcc struct{ n int64 }

func (a *countAcc) add(value, int64)       { a.n++ }
func (a *countAcc) merge(o accumulator)    { a.n += o.(*countAcc).n }
func (a *countAcc) encode(b []byte) []byte { return binary.AppendVarint(b, a.n) }
func (a *countAcc) decode(b []byte) ([]byte, bool) {
	var size int
	a.n, size = binary.Varint(b)
	if size <= 0 {
		return nil, false
	}
	return b[size:], true
}
func (a *countAcc) result(b array.Builder) { b.(*array.Int64Builder).Append(a.n) }

// sumAcc adds in 128 bits, so that no order of rows overflows before another.
type sumAcc struct {
	n   int64
	hi  int64
	lo  uint64
	avg bool
}

func (a *sumAcc) add(v value, _ int64) {
	a.n++
	a.plus(int64(v.bits)>>63, v.bits)
}

func (a *sumAcc) plus(hi int64, lo uint64) {
	var carry uint64
	a.lo, carry = bits.Add64(a.lo, lo, 0)
	a.hi += hi + int64(carry)
}

func (a *sumAcc) merge(o accumulator) {
	b := o.(*sumAcc)
	a.n += b.n
	a.plus(b.hi, b.lo)
}

func (a *sumAcc) encode(b []byte) []byte {
	b = binary.AppendVarint(b, a.n)
	b = binary.AppendVarint(b, a.hi)
	return binary.LittleEndian.AppendUint64(b, a.lo)
}

func (a *sumAcc) decode(b []byte) ([]byte, bool) {
	for _, to := range []*int64{&a.n, &a.hi} {
		v, size := binary.Varint(b)
		if size <= 0 {
			return nil, false
		}
		*to, b = v, b[size:]
	}
	if len(b) < 8 {
		return nil, false
	}
	a.lo = binary.LittleEndian.Uint64(b)
	return b[8:], true
}

func (a *sumAcc) result(b array.Builder) {
	fits := a.hi == int64(a.lo)>>63
	switch {
	case a.n == 0, !a.avg && !fits:
		b.AppendNull()
	case a.avg && fits:
		b.(*array.Float64Builder).Append(float64(int64(a.lo)) / float64(a.n))
	case a.avg:
		b.(*array.Float64Builder).Append((float64(a.hi)*math.Ldexp(1, 64) + float64(a.lo)) / float64(a.n))
	default:
		b.(*array.Int64Builder).Append(int64(a.lo))
	}
}

// extremeAcc is min (sign -1) or max (sign 1).
type extremeAcc struct {
	typ  valueType
	sign int
	seen bool
	v    value
}

func (a *extremeAcc) add(v value, _ int64) {
	if a.seen && a.typ.compare(v, a.v)*a.sign <= 0 {
		return
	}
	a.seen, a.v.bits, a.v.text = true, v.bits, append(a.v.text[:0], v.text...)
}

func (a *extremeAcc) merge(o accumulator) {
	if b := o.(*extremeAcc); b.seen {
		a.add(b.v, 0)
	}
}

func (a *extremeAcc) encode(b []byte) []byte {
	if !a.seen {
		return append(b, 0)
	}
	return a.typ.appendValue(append(b, 1), a.v)
}

func (a *extremeAcc) decode(b []byte) (rest []byte, ok bool) {
	if len(b) == 0 || b[0] > 1 {
		return nil, false
	}
	if a.seen = b[0] == 1; !a.seen {
		return b[1:], true
	}
	a.v, rest, ok = a.typ.readValue(b[1:])
	return rest, ok
}

func (a *extremeAcc) result(b array.Builder) { appendResult(b, a.v, a.seen) }

// edgeAcc is first (sign -1) or last (sign 1) by event time.
type edgeAcc struct {
	typ  valueType
	sign int
	seen bool
	at   int64
	v    value
}

func (a *edgeAcc) add(v value, at int64) {
	if a.seen {
		if c := cmp.Or(cmp.Compare(at, a.at), a.typ.compare(v, a.v)) * a.sign; c <= 0 {
			return
		}
	}
	a.seen, a.at, a.v.bits, a.v.text = true, at, v.bits, append(a.v.text[:0], v.text...)
}

func (a *edgeAcc) merge(o accumulator) {
	if b := o.(*edgeAcc); b.seen {
		a.add(b.v, b.at)
	}
}

func (a *edgeAcc) encode(b []byte) []byte {
	if !a.seen {
		return append(b, 0)
	}
	return a.typ.appendValue(binary.AppendVarint(append(b, 1), a.at), a.v)
}

func (a *edgeAcc) decode(b []byte) (rest []byte, ok bool) {
	if len(b) == 0 || b[0] > 1 {
		return nil, false
	}
	if a.seen = b[0] == 1; !a.seen {
		return b[1:], true
	}
	at, size := binary.Varint(b[1:])
	if size <= 0 {
		return nil, false
	}
	a.at = at
	a.v, rest, ok = a.typ.readValue(b[1+size:])
	return rest, ok
}

func (a *edgeAcc) result(b array.Builder) { appendResult(b, a.v, a.seen) }

// setAcc keeps the smallest distinct strings, sorted.
type setAcc struct {
	limit int
	kept  []string
}

func (a *setAcc) add(v value, _ int64) { a.put(v.text) }

func (a *setAcc) put(text []byte) {
	at, found := slices.BinarySearchFunc(a.kept, text, func(s string, t []byte) int { return strings.Compare(s, string(t)) })
	if found || at == a.limit {
		return
	}
	a.kept = slices.Insert(a.kept, at, string(text))
	if len(a.kept) > a.limit {
		a.kept = a.kept[:a.limit]
	}
}

func (a *setAcc) merge(o accumulator) {
	for _, s := range o.(*setAcc).kept {
		a.put([]byte(s))
	}
}

func (a *setAcc) encode(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(a.kept)))
	for _, s := range a.kept {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	return b
}

func (a *setAcc) decode(b []byte) ([]byte, bool) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)) {
		return nil, false
	}
	b = b[size:]
	a.kept = make([]string, 0, n)
	for range n {
		v, rest, ok := valString.readValue(b)
		if !ok {
			return nil, false
		}
		a.kept, b = append(a.kept, string(v.text)), rest
	}
	return b, true
}

func (a *setAcc) result(b array.Builder) {
	l := b.(*array.ListBuilder)
	l.Append(true)
	for _, s := range a.kept {
		l.ValueBuilder().(*array.StringBuilder).Append(s)
	}
}

// distinctAcc keeps the smallest hashes of the distinct values: all of them up
// to DistinctExact; beyond, the greatest that is kept tells how dense they lie.
type distinctAcc struct {
	typ  valueType
	kept []uint64
}

func (a *distinctAcc) add(v value, _ int64) {
	if a.typ.variable() {
		a.put(xxh3.Hash(v.text))
		return
	}
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v.bits)
	a.put(xxh3.Hash(b[:]))
}

func (a *distinctAcc) put(h uint64) {
	at, found := slices.BinarySearch(a.kept, h)
	if found || at == DistinctExact {
		return
	}
	a.kept = slices.Insert(a.kept, at, h)
	if len(a.kept) > DistinctExact {
		a.kept = a.kept[:DistinctExact]
	}
}

func (a *distinctAcc) merge(o accumulator) {
	for _, h := range o.(*distinctAcc).kept {
		a.put(h)
	}
}

func (a *distinctAcc) encode(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(a.kept)))
	last := uint64(0)
	for _, h := range a.kept {
		b = binary.AppendUvarint(b, h-last)
		last = h
	}
	return b
}

func (a *distinctAcc) decode(b []byte) ([]byte, bool) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > DistinctExact {
		return nil, false
	}
	b = b[size:]
	a.kept = make([]uint64, 0, n)
	last := uint64(0)
	for range n {
		d, size := binary.Uvarint(b)
		if size <= 0 {
			return nil, false
		}
		last += d
		a.kept, b = append(a.kept, last), b[size:]
	}
	return b, true
}

func (a *distinctAcc) result(b array.Builder) { b.(*array.Int64Builder).Append(a.estimate()) }

func (a *distinctAcc) estimate() int64 {
	if len(a.kept) < DistinctExact {
		return int64(len(a.kept))
	}
	greatest := float64(a.kept[DistinctExact-1]) / math.Ldexp(1, 64)
	return int64(math.Round((DistinctExact - 1) / greatest))
}

// appendResult appends a value to the builder of its column.
func appendResult(b array.Builder, v value, ok bool) {
	if !ok {
		b.AppendNull()
		return
	}
	switch b := b.(type) {
	case *array.StringBuilder:
		b.BinaryBuilder.Append(v.text)
	case *array.BinaryBuilder:
		b.Append(v.text)
	case *array.Int32Builder:
		b.Append(int32(v.bits))
	case *array.Int64Builder:
		b.Append(int64(v.bits))
	case *array.TimestampBuilder:
		b.Append(arrow.Timestamp(v.bits))
	case *array.Date32Builder:
		b.Append(arrow.Date32(v.bits)) //nolint:gosec // the bits
	case *array.Decimal128Builder:
		b.Append(decimalOf(v))
	case *array.Float32Builder:
		b.Append(float32(math.Float64frombits(v.bits)))
	case *array.Float64Builder:
		b.Append(math.Float64frombits(v.bits))
	case *array.BooleanBuilder:
		b.Append(v.bits != 0)
	}
}
