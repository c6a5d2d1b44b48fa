package external

import (
	"encoding/base64"
	"fmt"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// AppendRow appends a row as one JSON object, its columns in their order: whole
// numbers exact, times as RFC 3339 in UTC with microseconds, bytes as base64,
// NaN and the infinities as the texts "NaN", "Infinity" and "-Infinity".
func AppendRow(dst []byte, rec arrow.RecordBatch, row int) ([]byte, error) {
	dst = append(dst, '{')
	for i, f := range rec.Schema().Fields() {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(AppendString(dst, f.Name), ':')
		var err error
		if dst, err = appendValue(dst, rec.Column(i), row); err != nil {
			return nil, fmt.Errorf("column %s: %w", f.Name, err)
		}
	}
	return append(dst, '}'), nil
}

func appendValue(dst []byte, a arrow.Array, i int) ([]byte, error) {
	if a.IsNull(i) {
		return append(dst, "null"...), nil
	}
	switch c := a.(type) {
	case *array.String:
		return AppendString(dst, c.Value(i)), nil
	case *array.LargeString:
		return AppendString(dst, c.Value(i)), nil
	case *array.Binary:
		return appendBase64(dst, c.Value(i)), nil
	case *array.LargeBinary:
		return appendBase64(dst, c.Value(i)), nil
	case *array.Boolean:
		return strconv.AppendBool(dst, c.Value(i)), nil
	case *array.Int32:
		return strconv.AppendInt(dst, int64(c.Value(i)), 10), nil
	case *array.Int64:
		return strconv.AppendInt(dst, c.Value(i), 10), nil
	case *array.Float64:
		return appendFloat(dst, c.Value(i)), nil
	case *array.Timestamp:
		return appendTime(dst, c, i), nil
	case *array.List:
		return appendList(dst, c, i)
	case *array.Struct:
		return appendStruct(dst, c, i)
	}
	return nil, fmt.Errorf("no JSON for the type %s", a.DataType())
}

func appendTime(dst []byte, c *array.Timestamp, i int) []byte {
	t := c.Value(i).ToTime(c.DataType().(*arrow.TimestampType).Unit).UTC()
	dst = append(dst, '"')
	dst = t.AppendFormat(dst, "2006-01-02T15:04:05.000000Z")
	return append(dst, '"')
}

func appendFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, `"NaN"`...)
	case math.IsInf(f, 1):
		return append(dst, `"Infinity"`...)
	case math.IsInf(f, -1):
		return append(dst, `"-Infinity"`...)
	}
	return strconv.AppendFloat(dst, f, 'g', -1, 64)
}

func appendBase64(dst, b []byte) []byte {
	dst = append(dst, '"')
	dst = base64.StdEncoding.AppendEncode(dst, b)
	return append(dst, '"')
}

func appendList(dst []byte, c *array.List, i int) ([]byte, error) {
	from, to := c.ValueOffsets(i)
	dst = append(dst, '[')
	for j := from; j < to; j++ {
		if j > from {
			dst = append(dst, ',')
		}
		var err error
		if dst, err = appendValue(dst, c.ListValues(), int(j)); err != nil {
			return nil, err
		}
	}
	return append(dst, ']'), nil
}

func appendStruct(dst []byte, c *array.Struct, i int) ([]byte, error) {
	dst = append(dst, '{')
	for f, field := range c.DataType().(*arrow.StructType).Fields() {
		if f > 0 {
			dst = append(dst, ',')
		}
		dst = append(AppendString(dst, field.Name), ':')
		var err error
		if dst, err = appendValue(dst, c.Field(f), i); err != nil {
			return nil, err
		}
	}
	return append(dst, '}'), nil
}

const hexDigits = "0123456789abcdef"

// AppendString appends a JSON string. What is not UTF-8 becomes U+FFFD.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		b := s[i]
		if b < utf8.RuneSelf {
			if b >= 0x20 && b != '"' && b != '\\' {
				i++
				continue
			}
			dst = append(dst, s[from:i]...)
			switch b {
			case '"', '\\':
				dst = append(dst, '\\', b)
			case '\n':
				dst = append(dst, '\\', 'n')
			case '\r':
				dst = append(dst, '\\', 'r')
			case '\t':
				dst = append(dst, '\\', 't')
			default:
				dst = append(dst, '\\', 'u', '0', '0', hexDigits[b>>4], hexDigits[b&15])
			}
			i++
			from = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 {
			dst = append(append(dst, s[from:i]...), `\ufffd`...)
			i++
			from = i
			continue
		}
		i += size
	}
	return append(append(dst, s[from:]...), '"')
}

// Time is a column's value as a time.
func Time(c *array.Timestamp, i int) time.Time {
	return c.Value(i).ToTime(c.DataType().(*arrow.TimestampType).Unit).UTC()
}
