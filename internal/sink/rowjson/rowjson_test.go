package rowjson

import (
	"encoding/json"
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
)

func TestEveryTypeOfColumnIsWrittenAsJSONThatReadsBack(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{
		{Name: "b", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
		{Name: "i", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
		{Name: `l"q`, Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "d", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
		{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "x", Type: arrow.BinaryTypes.Binary, Nullable: true},
		{Name: "t", Type: batch.Timestamp, Nullable: true},
		batch.KafkaSchema.Field(batch.ColHeaders),
		{Name: "f", Type: arrow.PrimitiveTypes.Float32, Nullable: true},
		{Name: "m", Type: &arrow.Decimal128Type{Precision: 38, Scale: 4}, Nullable: true},
		{Name: "day", Type: arrow.FixedWidthTypes.Date32, Nullable: true},
		{Name: "local", Type: batch.LocalTimestamp, Nullable: true},
	}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	b.Field(0).(*array.BooleanBuilder).AppendValues([]bool{true, false}, nil)
	b.Field(1).(*array.Int32Builder).AppendValues([]int32{-7, 0}, nil)
	b.Field(2).(*array.Int64Builder).AppendValues([]int64{math.MaxInt64, math.MinInt64}, nil)
	b.Field(3).(*array.Float64Builder).AppendValues([]float64{1e300, math.NaN()}, nil)
	b.Field(4).(*array.StringBuilder).AppendValues([]string{"a\x00\"\\\n\u2028é\xff", ""}, nil)
	b.Field(5).(*array.BinaryBuilder).AppendValues([][]byte{{0, 1, 255}, {}}, nil)
	b.Field(6).(*array.TimestampBuilder).AppendValues([]arrow.Timestamp{1767355200000001, -1}, nil)
	h := b.Field(7).(*array.ListBuilder)
	h.Append(true)
	st := h.ValueBuilder().(*array.StructBuilder)
	st.Append(true)
	st.FieldBuilder(0).(*array.StringBuilder).Append("k")
	st.FieldBuilder(1).(*array.BinaryBuilder).AppendNull()
	h.AppendNull()
	b.Field(8).(*array.Float32Builder).AppendValues([]float32{0.1, -1e30}, nil)
	most, _ := new(big.Int).SetString(strings.Repeat("9", 38), 10)
	b.Field(9).(*array.Decimal128Builder).AppendValues([]decimal128.Num{decimal128.FromI64(-5), decimal128.FromBigInt(most)}, nil)
	b.Field(10).(*array.Date32Builder).AppendValues([]arrow.Date32{19782, -1}, nil)
	b.Field(11).(*array.TimestampBuilder).AppendValues([]arrow.Timestamp{1767355200000001, -1}, nil)
	rec := b.NewRecordBatch()
	defer rec.Release()
	e, err := New(s, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`{"b":true,"i":-7,"l\"q":9223372036854775807,"d":1e+300,"s":"a\u0000\"\\\n` + "\u2028é\ufffd" + `","x":"AAH/","t":"2026-01-02T12:00:00.000001Z","headers":[{"key":"k","value":null}],"f":0.1,"m":-0.0005,"day":"2024-02-29","local":"2026-01-02T12:00:00.000001"}`,
		`{"b":false,"i":0,"l\"q":-9223372036854775808,"d":"NaN","s":"","x":"","t":"1969-12-31T23:59:59.999999Z","headers":null,"f":-1e+30,"m":9999999999999999999999999999999999.9999,"day":"1969-12-31","local":"1969-12-31T23:59:59.999999"}`,
	}
	for i, w := range want {
		got := e.AppendRow(nil, rec, i)
		if string(got) != w || !json.Valid(got) {
			t.Errorf("row %d\n got %s\nwant %s", i, got, w)
		}
	}
}

func kafkaRows(topics []string, parts []int32, offsets []int64) arrow.RecordBatch {
	s := arrow.NewSchema([]arrow.Field{
		{Name: "topic", Type: arrow.BinaryTypes.String}, {Name: "p", Type: arrow.PrimitiveTypes.Int32}, {Name: "o", Type: arrow.PrimitiveTypes.Int64},
	}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	b.Field(0).(*array.StringBuilder).AppendValues(topics, nil)
	b.Field(1).(*array.Int32Builder).AppendValues(parts, nil)
	b.Field(2).(*array.Int64Builder).AppendValues(offsets, nil)
	return b.NewRecordBatch()
}

func TestRowsCarryTheirPlaceInKafkaAsAKey(t *testing.T) {
	rec := kafkaRows([]string{"t", "u"}, []int32{0, 3}, []int64{5, 7})
	k := &batch.KafkaPosition{ClusterID: "c"}
	k.Set("t", "id-t", 0, batch.PartitionPosition{})
	e, err := New(rec.Schema(), &Key{Partition: "p", Offset: "o", Field: "key"}, k)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(e.AppendRow(nil, rec, 0)); got != `{"topic":"t","p":0,"o":5,"key":"c/id-t/0/5"}` {
		t.Fatal(got)
	}
	k.Set("u", "id-u", 3, batch.PartitionPosition{})
	if _, err := New(rec.Schema(), &Key{Partition: "p", Offset: "o", Field: "key"}, k); !failure.Is(err, failure.Config) {
		t.Fatalf("two topics and no topic column: %v", err)
	}
	e, err = New(rec.Schema(), &Key{Topic: "topic", Partition: "p", Offset: "o", Field: "key"}, k)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(e.AppendRow(nil, rec, 1)); !strings.Contains(got, `"c/id-u/3/7"`) {
		t.Fatal(got)
	}
}

func TestAKeyOfColumnsThatAreNotThereIsRefused(t *testing.T) {
	s := kafkaRows(nil, nil, nil).Schema()
	for _, k := range []Key{{Partition: "x", Offset: "o"}, {Partition: "p", Offset: "p"}, {Partition: "p", Offset: "o", Topic: "o"}, {Partition: "p", Offset: "o", Field: "p"}} {
		if err := k.Check(s); !failure.Is(err, failure.Config) {
			t.Errorf("%+v: %v", k, err)
		}
	}
}
