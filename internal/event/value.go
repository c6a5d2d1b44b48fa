package event

import (
	"bytes"
	"encoding/base64"
	"errors"
	"math"
	"strconv"
	"unsafe"
)

// Raw is the value's JSON text in the document that was scanned.
func (v Value) Raw(doc []byte) []byte { return doc[v.Start:v.End] }

// AppendString appends the decoded text of a string value.
func (v Value) AppendString(dst, doc []byte) []byte {
	b := doc[v.Start+1 : v.End-1]
	if v.Escaped {
		return unescape(dst, b)
	}
	return append(dst, b...)
}

// Text is the decoded text of a string value: a part of the document where
// nothing is escaped, else it is decoded into scratch, which is returned grown.
func (v Value) Text(doc, scratch []byte) (text, grown []byte) {
	if !v.Escaped {
		return doc[v.Start+1 : v.End-1], scratch
	}
	scratch = unescape(scratch[:0], doc[v.Start+1:v.End-1])
	return scratch, scratch
}

// Bool decodes a boolean.
func (v Value) Bool() (bool, Reason) {
	switch v.Kind {
	case True:
		return true, OK
	case False:
		return false, OK
	}
	return false, TypeMismatch
}

// Int64 decodes an integer exactly, without passing through a float. A number
// that is written with a fraction or an exponent is an integer where its value
// is one (1.0, 12e3), as in JSON Schema.
func (v Value) Int64(doc []byte) (int64, Reason) {
	if v.Kind != Number {
		return 0, TypeMismatch
	}
	b := doc[v.Start:v.End]
	text := b
	neg := b[0] == '-'
	if neg {
		b = b[1:]
	}
	if len(b) > 18 {
		return parseNumber(text).int64()
	}
	var n int64
	for _, c := range b {
		if c -= '0'; c > 9 {
			return parseNumber(text).int64()
		} else {
			n = n*10 + int64(c)
		}
	}
	if neg {
		n = -n
	}
	return n, OK
}

// Int32 decodes an integer of 32 bits.
func (v Value) Int32(doc []byte) (int32, Reason) {
	n, r := v.Int64(doc)
	if r == OK && int64(int32(n)) != n {
		r = NumberOutOfRange
	}
	return int32(n), r
}

// Float64 decodes a number to the nearest double. One beyond the largest is
// out of range; one below the smallest is zero.
func (v Value) Float64(doc []byte) (float64, Reason) { return v.float(doc, 64) }

// Float32 decodes a number to the nearest float, in one step: rounding to a double
// first would round twice. Its ends are those of Float64.
func (v Value) Float32(doc []byte) (float32, Reason) {
	f, r := v.float(doc, 32)
	return float32(f), r
}

func (v Value) float(doc []byte, bitSize int) (float64, Reason) {
	if v.Kind != Number {
		return 0, TypeMismatch
	}
	b := doc[v.Start:v.End]
	f, err := strconv.ParseFloat(unsafe.String(&b[0], len(b)), bitSize)
	if err != nil {
		if errors.Is(err, strconv.ErrRange) && math.IsInf(f, 0) {
			return 0, NumberOutOfRange
		}
		if !errors.Is(err, strconv.ErrRange) {
			return 0, TypeMismatch
		}
	}
	return f, OK
}

// AppendBinary appends the bytes of a string in standard base64, with padding.
func (v Value) AppendBinary(dst, doc []byte) ([]byte, Reason) {
	if v.Kind != String {
		return dst, TypeMismatch
	}
	text, _ := v.Text(doc, nil)
	out, err := base64.StdEncoding.Strict().AppendDecode(dst, text)
	// The decoder skips line ends; a value with them is no canonical base64.
	if err != nil || bytes.ContainsAny(text, "\r\n") {
		return dst, TypeMismatch
	}
	return out, OK
}

// AppendUnescaped appends the decoded form of the inside of a string (without
// its quotes) that a scan has accepted.
func AppendUnescaped(dst, inside []byte) []byte { return unescape(dst, inside) }
