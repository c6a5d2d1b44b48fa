package datafile

import (
	"fmt"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
)

// TestBoundsOfDecimalsHoldEveryValueAlsoNegativeOnes: a reader drops files by them.
// The three precisions are stored in 32 and 64 bits and in bytes.
func TestBoundsOfDecimalsHoldEveryValueAlsoNegativeOnes(t *testing.T) {
	var fields []iceberg.NestedField
	var columns []arrow.Field
	for i, p := range []int{9, 18, 38} {
		name := fmt.Sprintf("p%d", p)
		fields = append(fields, iceberg.NestedField{ID: i + 1, Name: name, Type: iceberg.DecimalTypeOf(p, 2)})
		columns = append(columns, arrow.Field{Name: name, Type: &arrow.Decimal128Type{Precision: int32(p), Scale: 2}, Nullable: true})
	}
	fields = append(fields, iceberg.NestedField{ID: 4, Name: "f", Type: iceberg.PrimitiveTypes.Float32}, iceberg.NestedField{ID: 5, Name: "d", Type: iceberg.PrimitiveTypes.Date})
	columns = append(columns, arrow.Field{Name: "f", Type: arrow.PrimitiveTypes.Float32, Nullable: true}, arrow.Field{Name: "d", Type: arrow.FixedWidthTypes.Date32, Nullable: true})
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(columns, nil))
	defer b.Release()
	for _, row := range []string{
		`{"p9": "1.50", "p18": "1.50", "p38": "1.50", "f": 0.5, "d": "2024-02-29"}`,
		`{"p9": "-2.25", "p18": "-9999999999999999.99", "p38": "-999999999999999999999999999999999999.99", "f": -3.5, "d": "1969-12-31"}`,
		`{"p9": "1000000.00", "p18": "9999999999999999.99", "p38": "999999999999999999999999999999999999.99", "f": 7, "d": "9999-12-31"}`,
		`{"p9": "-0.01"}`,
	} {
		if err := b.UnmarshalJSON([]byte(row)); err != nil {
			t.Fatal(err)
		}
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	files := writeAll(t, Spec{Schema: iceberg.NewSchema(0, fields...), PartitionSpec: *iceberg.UnpartitionedSpec, FormatVersion: 2, Location: "file://" + t.TempDir(), FS: &localFS{}}, rec)
	df := files[0].DataFile
	for i, want := range [][2]string{
		{"-2.25", "1000000.00"}, {"-9999999999999999.99", "9999999999999999.99"},
		{"-999999999999999999999999999999999999.99", "999999999999999999999999999999999999.99"}, {"-3.5", "7"}, {"1969-12-31", "9999-12-31"},
	} {
		var got [2]string
		for side, raw := range [][]byte{df.LowerBoundValues()[i+1], df.UpperBoundValues()[i+1]} {
			lit, err := iceberg.LiteralFromBytes(fields[i].Type, raw)
			if err != nil {
				t.Fatalf("%s: %v", fields[i].Name, err)
			}
			got[side] = lit.String()
		}
		if got != want {
			t.Errorf("%s lies between %v, want %v", fields[i].Name, got, want)
		}
	}
}
