package kafka

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/sink/rowjson"
)

// mapping makes records of rows.
type mapping struct {
	topic      string
	key, value int // columns, -1 for none
	headers    []header
	enc        *rowjson.Encoder
	limit      int // the largest record that the topic takes
}

// header is a column that becomes headers: one of its name, or, of a list of
// (key, value), those.
type header struct {
	column int
	name   string
	list   bool
}

func newMapping(o Options) (*mapping, error) {
	m := &mapping{topic: o.Topic, key: -1, value: -1}
	for _, c := range []struct {
		what, name string
		into       *int
	}{{"key", o.Key, &m.key}, {"value", o.Value, &m.value}} {
		if c.name == "" {
			continue
		}
		at := o.Arrow.FieldIndices(c.name)
		if len(at) != 1 {
			return nil, fmt.Errorf("%s: the rows have no column %q", c.what, c.name)
		}
		*c.into = at[0]
	}
	for _, name := range o.Headers {
		at := o.Arrow.FieldIndices(name)
		if len(at) != 1 {
			return nil, fmt.Errorf("headers: the rows have no column %q", name)
		}
		m.headers = append(m.headers, header{column: at[0], name: name, list: isHeaderList(o.Arrow.Field(at[0]).Type)})
	}
	var err error
	m.enc, err = rowjson.New(o.Arrow, nil, nil)
	return m, err
}

func isHeaderList(t arrow.DataType) bool {
	l, ok := t.(*arrow.ListType)
	if !ok {
		return false
	}
	s, ok := l.Elem().(*arrow.StructType)
	return ok && s.NumFields() == 2 && s.Field(0).Type.ID() == arrow.STRING && s.Field(1).Type.ID() == arrow.BINARY
}

// record makes the record of a row. A null key is none, a null value column a
// tombstone, a null header is left out.
func (m *mapping) record(rec arrow.RecordBatch, i int) *kgo.Record {
	out := &kgo.Record{Topic: m.topic}
	if m.key >= 0 {
		out.Key = raw(rec.Column(m.key), i)
	}
	if m.value >= 0 {
		out.Value = raw(rec.Column(m.value), i)
	} else {
		out.Value = m.enc.AppendRow(nil, rec, i)
	}
	for _, h := range m.headers {
		a := rec.Column(h.column)
		switch {
		case a.IsNull(i):
		case h.list:
			out.Headers = appendHeaders(out.Headers, a.(*array.List), i)
		default:
			out.Headers = append(out.Headers, kgo.RecordHeader{Key: h.name, Value: raw(a, i)})
		}
	}
	return out
}

func appendHeaders(out []kgo.RecordHeader, l *array.List, i int) []kgo.RecordHeader {
	s := l.ListValues().(*array.Struct)
	keys, values := s.Field(0).(*array.String), s.Field(1).(*array.Binary)
	from, to := l.ValueOffsets(i)
	for j := int(from); j < int(to); j++ {
		out = append(out, kgo.RecordHeader{Key: keys.Value(j), Value: raw(values, j)})
	}
	return out
}

// raw is a value as bytes: text and bytes as they are, anything else as JSON
// writes it. A copy: the producer keeps it beyond the batch's memory.
func raw(a arrow.Array, i int) []byte {
	if a.IsNull(i) {
		return nil
	}
	switch c := a.(type) {
	case *array.String:
		return append([]byte{}, c.Value(i)...)
	case *array.Binary:
		return append([]byte{}, c.Value(i)...)
	case *array.Timestamp:
		b := rowjson.AppendValue(nil, a, i)
		return b[1 : len(b)-1] // without the quotes
	}
	return rowjson.AppendValue(nil, a, i)
}

// sizeOf is the most that a record takes in a batch of its own.
func sizeOf(r *kgo.Record) int {
	n := recordOverhead + len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value) + 16
	}
	return n
}
