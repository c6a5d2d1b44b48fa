// Package rowjson writes Arrow rows as JSON text: one object a row, the columns
// in the schema's order. The same row always gives the same bytes, because a
// redelivered batch must be the batch that was delivered.
//
// int64 is written as a number with all its digits; timestamps as RFC 3339 with
// microseconds, in UTC (those without a zone without Z); dates as YYYY-MM-DD; binary as base64; decimals as
// numbers; a double that JSON has no number for as "NaN", "Infinity" or
// "-Infinity". A null is written as null.
package rowjson

import (
	"encoding/base64"
	"fmt"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
)

// DefaultKeyField is the field that a record key is written to.
const DefaultKeyField = "weir_key"

// Key says which columns are a row's place in Kafka. With it every row carries
// cluster/topic id/partition/offset, which is the same however the row is
// delivered: a receiver that can compare keys is exact whatever else happens.
type Key struct {
	// Topic may be empty where the position has one topic.
	Topic, Partition, Offset string
	// Field is the name of the field that is added.
	Field string
}

// Check refuses a key whose columns the shape does not have.
func (k *Key) Check(s *arrow.Schema) error {
	if k == nil {
		return nil
	}
	for _, c := range []struct {
		name  string
		types []arrow.Type
	}{{k.Topic, []arrow.Type{arrow.STRING}}, {k.Partition, []arrow.Type{arrow.INT32, arrow.INT64}}, {k.Offset, []arrow.Type{arrow.INT64}}} {
		if c.name == "" && c.types[0] == arrow.STRING {
			continue
		}
		at := s.FieldIndices(c.name)
		ok := false
		for _, t := range c.types {
			ok = ok || (len(at) == 1 && s.Field(at[0]).Type.ID() == t)
		}
		if !ok {
			return failure.New(failure.Config, "a record key needs a column %q of type %s", c.name, c.types[0])
		}
	}
	if s.HasField(k.Field) {
		return failure.New(failure.Config, "a record key is to be written to field %q, and the rows have a column of that name", k.Field)
	}
	return nil
}

// Encoder writes the rows of records of one shape.
type Encoder struct {
	names []string // encoded, with the colon
	key   *Key
	at    [3]int // columns of the key: topic (-1 for none), partition, offset
	where *batch.KafkaPosition
	only  string // the one topic, where the key has no topic column
}

// New makes an encoder; key may be nil. where is the position that the batch
// ends at: it knows the cluster's and the topics' ids.
func New(s *arrow.Schema, key *Key, where *batch.KafkaPosition) (*Encoder, error) {
	e := &Encoder{key: key, where: where}
	for i, f := range s.Fields() {
		if !supported(f.Type) {
			return nil, failure.New(failure.Config, "column %s: a value of type %s cannot be written as JSON", f.Name, f.Type)
		}
		sep := ","
		if i == 0 {
			sep = "{"
		}
		e.names = append(e.names, sep+string(AppendString(nil, f.Name))+":")
	}
	if key == nil {
		return e, nil
	}
	if err := key.Check(s); err != nil {
		return nil, err
	}
	e.at = [3]int{-1, s.FieldIndices(key.Partition)[0], s.FieldIndices(key.Offset)[0]}
	if key.Topic != "" {
		e.at[0] = s.FieldIndices(key.Topic)[0]
		return e, nil
	}
	if where == nil || len(where.Topics) != 1 {
		return nil, failure.New(failure.Config, "a record key needs the topic's column, because the query reads more than one topic")
	}
	for e.only = range where.Topics {
	}
	return e, nil
}

// AppendRow appends row i of rec as one JSON object, without a line end.
func (e *Encoder) AppendRow(dst []byte, rec arrow.RecordBatch, i int) []byte {
	for c, name := range e.names {
		dst = append(dst, name...)
		dst = appendValue(dst, rec.Column(c), i)
	}
	if len(e.names) == 0 {
		dst = append(dst, '{')
	}
	if e.key != nil {
		dst = append(dst, ',')
		dst = AppendString(dst, e.key.Field)
		dst = append(dst, ':')
		dst = AppendString(dst, e.keyOf(rec, i))
	}
	return append(dst, '}')
}

// AppendValue appends the value of column c in row i of rec.
func (e *Encoder) AppendValue(dst []byte, rec arrow.RecordBatch, c, i int) []byte {
	return appendValue(dst, rec.Column(c), i)
}

func (e *Encoder) keyOf(rec arrow.RecordBatch, i int) string {
	topic := e.only
	if e.at[0] >= 0 {
		topic = rec.Column(e.at[0]).(*array.String).Value(i)
	}
	cluster, id := "", topic
	if e.where != nil {
		cluster = e.where.ClusterID
		if t, ok := e.where.Topics[topic]; ok && t.ID != "" {
			id = t.ID
		}
	}
	return cluster + "/" + id + "/" + number(rec.Column(e.at[1]), i) + "/" + number(rec.Column(e.at[2]), i)
}

func number(a arrow.Array, i int) string {
	if v, ok := a.(*array.Int32); ok {
		return strconv.FormatInt(int64(v.Value(i)), 10)
	}
	return strconv.FormatInt(a.(*array.Int64).Value(i), 10)
}

// supported reports whether appendValue knows the type.
func supported(t arrow.DataType) bool {
	switch x := t.(type) {
	case arrow.ListLikeType:
		_, isMap := t.(*arrow.MapType)
		return !isMap && supported(x.Elem())
	case *arrow.StructType:
		for _, f := range x.Fields() {
			if !supported(f.Type) {
				return false
			}
		}
		return true
	}
	switch t.ID() {
	case arrow.BOOL, arrow.INT32, arrow.INT64, arrow.FLOAT32, arrow.FLOAT64, arrow.STRING, arrow.BINARY, arrow.TIMESTAMP, arrow.DATE32, arrow.DECIMAL128:
		return true
	}
	return false
}

const (
	microTime      = "2006-01-02T15:04:05.000000Z"
	localMicroTime = "2006-01-02T15:04:05.000000"
)

// AppendValue appends one value of a column, as AppendRow writes it.
func AppendValue(dst []byte, a arrow.Array, i int) []byte { return appendValue(dst, a, i) }

func appendValue(dst []byte, a arrow.Array, i int) []byte {
	if a.IsNull(i) {
		return append(dst, "null"...)
	}
	switch v := a.(type) {
	case *array.Boolean:
		return strconv.AppendBool(dst, v.Value(i))
	case *array.Int32:
		return strconv.AppendInt(dst, int64(v.Value(i)), 10)
	case *array.Int64:
		return strconv.AppendInt(dst, v.Value(i), 10)
	case *array.Float32:
		return appendFloat(dst, float64(v.Value(i)), 32)
	case *array.Float64:
		return appendFloat(dst, v.Value(i), 64)
	case *array.String:
		return AppendString(dst, v.Value(i))
	case *array.Binary:
		dst = append(dst, '"')
		dst = base64.StdEncoding.AppendEncode(dst, v.Value(i))
		return append(dst, '"')
	case *array.Timestamp:
		form := microTime
		if v.DataType().(*arrow.TimestampType).TimeZone == "" {
			form = localMicroTime
		}
		return append(append(append(dst, '"'), timeOf(v, i).Format(form)...), '"')
	case *array.Date32:
		return append(append(append(dst, '"'), v.Value(i).ToTime().UTC().Format(time.DateOnly)...), '"')
	case *array.Decimal128:
		return append(dst, v.Value(i).ToString(v.DataType().(*arrow.Decimal128Type).Scale)...)
	case *array.Struct:
		return appendStruct(dst, v, i)
	case array.ListLike:
		from, to := v.ValueOffsets(i)
		dst = append(dst, '[')
		for j := from; j < to; j++ {
			if j > from {
				dst = append(dst, ',')
			}
			dst = appendValue(dst, v.ListValues(), int(j))
		}
		return append(dst, ']')
	}
	panic(fmt.Sprintf("rowjson: type %s passed the check of the schema", a.DataType()))
}

func timeOf(v *array.Timestamp, i int) time.Time {
	unit := v.DataType().(*arrow.TimestampType).Unit
	return v.Value(i).ToTime(unit).UTC()
}

func appendStruct(dst []byte, v *array.Struct, i int) []byte {
	dst = append(dst, '{')
	for f, field := range v.DataType().(*arrow.StructType).Fields() {
		if f > 0 {
			dst = append(dst, ',')
		}
		dst = append(AppendString(dst, field.Name), ':')
		dst = appendValue(dst, v.Field(f), i)
	}
	return append(dst, '}')
}

func appendFloat(dst []byte, f float64, bits int) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, `"NaN"`...)
	case math.IsInf(f, 1):
		return append(dst, `"Infinity"`...)
	case math.IsInf(f, -1):
		return append(dst, `"-Infinity"`...)
	}
	return strconv.AppendFloat(dst, f, 'g', -1, bits)
}

const hexDigits = "0123456789abcdef"

// AppendString appends s as a JSON string. Bytes that are not UTF-8 become the
// replacement character.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= 0x20 && c != '"' && c != '\\' {
				i++
				continue
			}
			dst = append(dst, s[start:i]...)
			dst = appendEscape(dst, c)
			i++
			start = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			dst = append(append(dst, s[start:i]...), "\ufffd"...)
			i++
			start = i
			continue
		}
		i += n
	}
	return append(append(dst, s[start:]...), '"')
}

func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
}
