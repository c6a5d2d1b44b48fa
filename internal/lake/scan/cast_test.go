package scan

import (
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// TestFilesOfANarrowerTypeAreReadAsTheWiderOne: what Iceberg lets a column become.
func TestFilesOfANarrowerTypeAreReadAsTheWiderOne(t *testing.T) {
	money := func(precision int32) arrow.DataType { return &arrow.Decimal128Type{Precision: precision, Scale: 2} }
	for _, c := range []struct {
		from, to   arrow.DataType
		json, want string
	}{
		{arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64, `[-2147483648, null]`, `[-2147483648,null]`},
		{arrow.PrimitiveTypes.Float32, arrow.PrimitiveTypes.Float64, `[0.25, null]`, `[0.25,null]`},
		{money(9), money(20), `["-9999999.99", null, "0.01"]`, `["-9999999.99",null,"0.01"]`},
		{money(20), money(38), `["999999999999999999.99"]`, `["999999999999999999.99"]`},
	} {
		a, _, err := array.FromJSON(memory.DefaultAllocator, c.from, strings.NewReader(c.json))
		if err != nil {
			t.Fatal(err)
		}
		got, err := Cast(t.Context(), a, c.to)
		if err != nil {
			t.Errorf("%s as %s: %v", c.from, c.to, err)
			continue
		}
		want, _, err := array.FromJSON(memory.DefaultAllocator, c.to, strings.NewReader(c.want))
		if err != nil {
			t.Fatal(err)
		}
		if !array.Equal(got, want) {
			t.Errorf("%s as %s: %s, want %s", c.from, c.to, got, want)
		}
	}
}
