package operator

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/event"
	"github.com/weirlake/weir/internal/marker"
)

func TestNumbersThatDoNotFitTheirTypeAreDeadLettersAndTheOthersAreExact(t *testing.T) {
	r := newRun(t, Config{Columns: []Column{
		{Name: "price", Path: "$.price", Type: "decimal(9,2)", Required: true},
		{Name: "wide", Path: "$.wide", Type: "decimal(38,18)"},
		{Name: "ratio", Path: "$.ratio", Type: "float"},
		{Name: "day", Path: "$.day", Type: "date"},
		{Name: "local", Path: "$.local", Type: "timestamp"},
	}, DeadLetter: true})
	res := r.batchOf(values(
		`{"price":19.90,"wide":12345678901234567890.123456789012345678,"ratio":0.1,"day":"2024-02-29","local":"1969-12-31T23:59:59.999999"}`,
		`{"price":"-0.05","wide":"-1\u0032345678901234567890.5"}`,
		`{"price":1e-2,"wide":0}`,
		`{"price":0.001}`,
		`{"price":10000000}`,
		`{"price":true}`,
		`{"price":1,"ratio":1e39}`,
		`{"price":1,"day":"2023-02-29"}`,
		`{"price":1,"local":"2023-02-28T00:00:00Z"}`,
		`{"price":null}`,
	))
	equalCounts(t, res.Counters, marker.Counters{Read: 10, Emitted: 3, DeadLettered: 7})
	for i, want := range []map[string]any{
		{"price": "19.90", "wide": "12345678901234567890.123456789012345678", "ratio": float32(0.1), "day": "2024-02-29", "local": "1969-12-31T23:59:59.999999"},
		{"price": "-0.05", "wide": "-12345678901234567890.500000000000000000", "ratio": nil, "day": nil, "local": nil},
		{"price": "0.01", "wide": "0.000000000000000000", "ratio": nil},
	} {
		for _, k := range sortedKeys(want) {
			if r.main[i][k] != want[k] {
				t.Errorf("row %d, %s: %v, want %v", i, k, r.main[i][k], want[k])
			}
		}
	}
	if got := r.reasons(); got["number_out_of_range"] != 3 || got["type_mismatch"] != 1 || got["bad_timestamp"] != 2 || got["missing_required"] != 1 {
		t.Errorf("reasons %v", got)
	}
	if detail := fmt.Sprint(r.dead[0]["detail"]); !strings.Contains(detail, "number 0.001 where a decimal(9,2) was expected") {
		t.Errorf("detail of the first dead letter: %s", detail)
	}
}

func TestTypesThatCannotBeDeclaredAreNamed(t *testing.T) {
	for typ, part := range map[string]string{
		"decimal":       "decimal(P,S)",
		"decimal(10)":   "decimal(P,S)",
		"decimal(39,2)": "precision that is not between 1 and 38",
		"decimal(0,0)":  "precision",
		"decimal(5,6)":  "scale that is not between 0 and its precision, 5",
		"uuid":          "is not one of",
	} {
		_, err := New(Config{Columns: []Column{{Name: "c", Path: "$.c", Type: typ}}})
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, want it to say %q", typ, err, part)
		}
	}
}

// TestADecimalIsComparedByValue compares with rationals of any size.
func TestADecimalIsComparedByValue(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	literals := []string{"0", "-0.5", "3", "0.05", "-7.005", "12345678901234567.89", "1e20", "-1e20"}
	for _, literal := range literals {
		want, _ := new(big.Rat).SetString(literal)
		for _, op := range []string{"<", "<=", "=", "<>", ">=", ">"} {
			run := newRun(t, Config{Columns: []Column{{Name: "m", Path: "$.m", Type: "decimal(20,2)"}}, Filter: fmt.Sprintf("m %s %s", op, literal)})
			var docs []string
			kept := int64(0)
			for range 40 {
				text := literals[r.IntN(len(literals)-2)]
				if r.IntN(2) == 0 || text == "-7.005" {
					text = fmt.Sprintf("%d.%02d", r.IntN(20)-10, r.IntN(100))
				}
				docs = append(docs, `{"m":`+text+`}`)
				m, _ := new(big.Rat).SetString(text)
				if verdicts[op][m.Cmp(want)+1] == yes {
					kept++
				}
			}
			if got := run.batchOf(values(docs...)).Counters; got.Emitted != kept || got.Emitted+got.Filtered != 40 {
				t.Fatalf("seed %d: m %s %s kept %+v, want %d of %v", seed, op, literal, got, kept, docs)
			}
		}
	}
}

func TestASumOfDecimalsIsExactAndNullBeyondItsDigits(t *testing.T) {
	sum := func(typ event.DecimalType, texts ...string) string {
		half := [2]accumulator{&decimalSumAcc{typ: typ.Sum()}, &decimalSumAcc{typ: typ.Sum()}}
		for i, text := range texts {
			n, ok := new(big.Int).SetString(text, 10)
			if !ok {
				t.Fatal(text)
			}
			d := decimal128.FromBigInt(n)
			half[i%2].add(value{text: arrow.Decimal128Traits.CastToBytes([]decimal128.Num{d})}, 0)
		}
		rest, ok := half[1].decode(half[1].encode(nil)) // as from a state file
		if !ok || len(rest) > 0 {
			t.Fatalf("a sum is not read as it was written: %v %t", rest, ok)
		}
		half[0].merge(half[1])
		b := array.NewDecimal128Builder(memory.DefaultAllocator, typeDecimal.arrow(typ.Sum()).(*arrow.Decimal128Type))
		half[0].result(b)
		return b.NewArray().ValueStr(0)
	}
	most := strings.Repeat("9", 38)
	for _, c := range []struct {
		typ  event.DecimalType
		in   []string
		want string
	}{
		{event.DecimalType{Precision: 4, Scale: 2}, []string{"1999", "-1", "2"}, "20"},
		{event.DecimalType{Precision: 4, Scale: 2}, []string{"-1999", "-1", "-5"}, "-20.05"},
		{event.DecimalType{Precision: 38, Scale: 2}, []string{most, most, "-" + most, "-" + most, "7"}, "0.07"},
		{event.DecimalType{Precision: 38, Scale: 2}, []string{most, "1"}, "(null)"},
		{event.DecimalType{Precision: 38, Scale: 2}, nil, "(null)"},
	} {
		if got := sum(c.typ, c.in...); got != c.want {
			t.Errorf("the sum of %v is %s, want %s", c.in, got, c.want)
		}
	}
}

func TestADecimalAndADateAreKeysThatAreReadBackFromTheTable(t *testing.T) {
	cfg := small()
	cfg.Columns = append(cfg.Columns, Column{Name: "m", Path: "$.m", Type: "decimal(38,2)", Required: true},
		Column{Name: "day", Path: "$.day", Type: "date", Required: true}, Column{Name: "local", Path: "$.local", Type: "timestamp", Required: true})
	cfg.Dedup = []string{"m", "day", "local"}
	r := newRun(t, cfg)
	doc := func(m, day string) string {
		return fmt.Sprintf(`{"id":"i","at":%q,"m":%s,"day":%q,"local":"%sT12:00:00"}`, at(now), m, day, day)
	}
	docs := values(doc("1.5", "2026-05-04"), doc(`"1.50"`, "2026-05-04"), doc("15e-1", "2026-05-04"), doc("-1.5", "2026-05-04"), doc("1.5", "1969-12-31"),
		doc("123456789012345678901234567890.12", "2026-05-04"), doc("123456789012345678901234567890.13", "2026-05-04"), doc("123456789012345678901234567890.120", "2026-05-04"))
	equalCounts(t, r.batchOf(docs).Counters, marker.Counters{Read: 8, Emitted: 5, Duplicate: 3})
	rebuiltTheSame(t, r, docs)
}
