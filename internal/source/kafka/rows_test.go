package kafka

import (
	"bytes"
	"reflect"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/batch"
)

func TestALargeValueIsNotCopiedAndKeepsItsPlaceAmongTheOthers(t *testing.T) {
	large := bytes.Repeat([]byte("l"), lentBytes)
	larger := bytes.Repeat([]byte("m"), 3*lentBytes)
	in := []*kgo.Record{
		{Value: []byte("a")}, {Value: nil, Key: []byte("k")},
		{Value: large, Key: []byte("l"), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("v")}}}, {Value: larger},
		{Value: large[:lentBytes-1]}, {Value: []byte{}}, {Value: large},
	}
	for i, r := range in {
		r.Offset, r.Timestamp = int64(i), time.UnixMilli(int64(1000+i))
	}
	var rows []row
	var sizes, lent []int
	w := newRowWriter(42, int64(len(in)), 0, func(rec arrow.RecordBatch) error {
		defer rec.Release()
		values := rec.Column(batch.ColValue).(*array.Binary)
		for i := range int(rec.NumRows()) {
			at := int(rec.Column(batch.ColOffset).(*array.Int64).Value(i))
			if v := values.Value(i); len(v) > 0 && &v[0] == &in[at].Value[0] {
				lent = append(lent, at)
			}
		}
		sizes = append(sizes, int(rec.NumRows()))
		rows = append(rows, rowsOf(rec)...)
		return nil
	})
	defer w.release()
	p := &partition{tp: batch.TopicPartition{Topic: topic, Partition: 3}, end: int64(len(in))}
	if err := p.give(in, w); err != nil {
		t.Fatal(err)
	}
	if err := w.flush(); err != nil {
		t.Fatal(err)
	}
	if want := []int{2, 1, 1, 2, 1}; !reflect.DeepEqual(sizes, want) {
		t.Errorf("record batches of %v rows, want %v", sizes, want)
	}
	if want := []int{2, 3, 6}; !reflect.DeepEqual(lent, want) {
		t.Errorf("not copied were the values at %v, want those at %v", lent, want)
	}
	str := func(b []byte) *string {
		if b == nil {
			return nil
		}
		s := string(b)
		return &s
	}
	want := make([]row, len(in))
	for i, r := range in {
		want[i] = row{topic: topic, partition: 3, offset: int64(i), micros: r.Timestamp.UnixMicro(), made: 42, key: str(r.Key), value: str(r.Value)}
		for _, h := range r.Headers {
			want[i].headers = append(want[i].headers, header{h.Key, str(h.Value)})
		}
	}
	for i := range want {
		if i >= len(rows) || !reflect.DeepEqual(rows[i], want[i]) {
			t.Fatalf("row %d differs from its record", i)
		}
	}
	if len(rows) != len(want) || w.total != int64(len(in)) {
		t.Fatalf("%d rows, %d counted, want %d", len(rows), w.total, len(in))
	}
}
