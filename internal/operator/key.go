package operator

import (
	"encoding/binary"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/zeebo/xxh3"
)

// rowKey is the key of a row. start and end are the id's place in the worker's
// ids; a UUID has none.
type rowKey struct {
	key
	start, end uint32
	uuid       bool
}

// hexDigits maps lower-case hexadecimal digits to their value, all else to 0xff.
var hexDigits = func() (t [256]byte) {
	for i := range t {
		t[i] = 0xff
	}
	for i, c := range []byte("0123456789abcdef") {
		t[c] = byte(i)
	}
	return t
}()

// parseUUID reads a UUID in its canonical form. Other spellings of the same
// UUID are other texts, and so other ids.
func parseUUID(b []byte) (key, bool) {
	if len(b) != 36 || b[8] != '-' || b[13] != '-' || b[18] != '-' || b[23] != '-' {
		return key{}, false
	}
	var half [2]uint64
	var bad byte
	for n, part := range [2][16]uint8{
		{0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 14, 15, 16, 17},
		{19, 20, 21, 22, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35},
	} {
		var v uint64
		for _, at := range part {
			d := hexDigits[b[at]]
			bad |= d
			v = v<<4 | uint64(d&15)
		}
		half[n] = v
	}
	return key{half[0], half[1]}, bad < 16
}

// hashID is the 128-bit hash of an id. It is never stored: state files hold
// the id itself.
func hashID(id []byte) key {
	h := xxh3.Hash128(id)
	return key{h.Hi, h.Lo}
}

// makeKey computes the key of the current row.
func (w *worker) makeKey() {
	cols := w.c.k.keys
	k := &w.keys[w.at]
	if len(cols) == 1 && w.c.k.columns[cols[0]].typ == typeString {
		text, _ := w.textOf(cols[0])
		if u, ok := parseUUID(text); ok {
			*k = rowKey{key: u, uuid: true}
			return
		}
		*k = rowKey{key: hashID(text), start: uint32(len(w.ids))}
		w.ids = append(w.ids, text...)
		k.end = uint32(len(w.ids))
		return
	}
	start := len(w.ids)
	for _, i := range cols {
		switch typ := w.c.k.columns[i].typ; {
		case typ.variable():
			b, _ := w.textOf(i)
			w.ids = appendPart(w.ids, b)
		case typ == typeDecimal:
			d, _ := w.decimalOf(i)
			w.ids = appendDecimal(w.ids, d)
		default:
			w.ids = binary.LittleEndian.AppendUint64(w.ids, w.cells[i][w.at].bits)
		}
	}
	*k = rowKey{key: hashID(w.ids[start:]), start: uint32(start), end: uint32(len(w.ids))}
}

// appendPart appends one variable part of a key of several columns; the length
// before it keeps ("ab", "c") apart from ("a", "bc").
func appendPart(dst, part []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(part))), part...)
}

func appendDecimal(dst []byte, d decimal128.Num) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, d.LowBits())
	return binary.LittleEndian.AppendUint64(dst, uint64(d.HighBits())) //nolint:gosec // the bits
}

// keyColumn reads a key column of the main table, as any reader returns it.
type keyColumn struct {
	name   string
	single bool
	array  arrow.Array
}

// append appends the part of a row's key that makeKey would have written.
func (c keyColumn) append(dst []byte, row int) ([]byte, error) {
	if c.array.IsNull(row) {
		return dst, fmt.Errorf("column %s is null in a row of the table", c.name)
	}
	var part []byte
	switch a := c.array.(type) {
	case interface{ Value(int) string }:
		part = []byte(a.Value(row))
	case interface{ Value(int) []byte }:
		part = a.Value(row)
	case *array.Int32:
		return binary.LittleEndian.AppendUint64(dst, uint64(int64(a.Value(row)))), nil
	case *array.Int64:
		return binary.LittleEndian.AppendUint64(dst, uint64(a.Value(row))), nil
	case *array.Timestamp:
		return binary.LittleEndian.AppendUint64(dst, uint64(a.Value(row))), nil
	case *array.Date32:
		return binary.LittleEndian.AppendUint64(dst, uint64(int64(a.Value(row)))), nil
	case *array.Decimal128:
		return appendDecimal(dst, a.Value(row)), nil
	case *array.Boolean:
		v := uint64(0)
		if a.Value(row) {
			v = 1
		}
		return binary.LittleEndian.AppendUint64(dst, v), nil
	default:
		return dst, fmt.Errorf("column %s is read as %s, which no key is", c.name, c.array.DataType())
	}
	if c.single {
		return append(dst, part...), nil
	}
	return appendPart(dst, part), nil
}
