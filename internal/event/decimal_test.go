package event

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestDecimalsAreExactAndNeverRounded(t *testing.T) {
	for _, c := range []struct {
		raw  string
		typ  DecimalType
		want string // empty for one that does not fit
	}{
		{"0", DecimalType{1, 0}, "0"},
		{"-0.00", DecimalType{5, 2}, "0"},
		{"0e99999999999999999999", DecimalType{5, 2}, "0"},
		{"0.1", DecimalType{18, 2}, "10"},
		{"-19.99", DecimalType{4, 2}, "-1999"},
		{"99.99", DecimalType{4, 2}, "9999"},
		{"100", DecimalType{4, 2}, ""},
		{"-100.00", DecimalType{4, 2}, ""},
		{"1.005", DecimalType{18, 2}, ""},
		{"1.0050", DecimalType{18, 3}, "1005"},
		{"1.2300000000000000000000000000000000000000000000", DecimalType{3, 2}, "123"},
		{"0.000000000000000000000000000000000000000000001", DecimalType{38, 38}, ""},
		{"12345678901234567890.123456789012345678", DecimalType{38, 18}, "12345678901234567890123456789012345678"},
		{"-99999999999999999999999999999999999999", DecimalType{38, 0}, "-99999999999999999999999999999999999999"},
		{"99999999999999999999999999999999999999", DecimalType{37, 0}, ""},
		{"100000000000000000000000000000000000000", DecimalType{38, 0}, ""},
		{"0.99999999999999999999999999999999999999", DecimalType{38, 38}, "99999999999999999999999999999999999999"},
		{"1", DecimalType{38, 38}, ""},
		{"1.5e3", DecimalType{6, 2}, "150000"},
		{"15e-1", DecimalType{6, 1}, "15"},
		{"15E-3", DecimalType{6, 2}, ""},
		{"1500e-3", DecimalType{6, 2}, "150"},
		{"1e37", DecimalType{38, 0}, "10000000000000000000000000000000000000"},
		{"1e38", DecimalType{38, 0}, ""},
		{"1e999999999999999999999", DecimalType{38, 0}, ""},
		{"1e-999999999999999999999", DecimalType{38, 38}, ""},
		{`"19.99"`, DecimalType{6, 2}, "1999"},
		{`"-\u0031.5e0"`, DecimalType{6, 2}, "-150"},
	} {
		v, doc := scanOne(t, `{"v":`+c.raw+`}`)
		d, _, r := v.Decimal(doc, c.typ, nil)
		switch {
		case c.want == "" && r != NumberOutOfRange:
			t.Errorf("%s as %s: %s, reason %q, want it out of range", c.raw, c.typ, d.BigInt(), r)
		case c.want != "" && (r != OK || d.BigInt().String() != c.want):
			t.Errorf("%s as %s: %s, reason %q, want %s", c.raw, c.typ, d.BigInt(), r, c.want)
		}
	}
	for _, raw := range []string{"true", "{}", `""`, `"-"`, `"1,5"`, `" 1"`, `"01"`, `"1."`, `".5"`, `"+1"`, `"1e"`, `"NaN"`, `"0x10"`} {
		v, doc := scanOne(t, `{"v":`+raw+`}`)
		if _, _, r := v.Decimal(doc, DecimalType{38, 10}, nil); r != TypeMismatch {
			t.Errorf("%s: %q, want a type mismatch", raw, r)
		}
	}
}

// randomNumber is a JSON number in one of the ways to write it.
func randomNumber(r *rand.Rand) string {
	digits := func(most int) string {
		var b strings.Builder
		for range 1 + r.IntN(most) {
			b.WriteByte("0000123456789"[r.IntN(13)])
		}
		return b.String()
	}
	whole := strings.TrimLeft(digits(40), "0")
	if whole == "" {
		whole = "0"
	}
	s := []string{"", "-"}[r.IntN(2)] + whole
	if r.IntN(3) > 0 {
		s += "." + digits(45)
	}
	if r.IntN(2) == 0 {
		s += fmt.Sprintf("%s%s%d", []string{"e", "E"}[r.IntN(2)], []string{"", "+", "-"}[r.IntN(3)], r.IntN(50))
	}
	return s
}

func TestDecimalsAgreeWithRationalsOfAnySize(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	fits := 0
	for range 50_000 {
		text := randomNumber(r)
		p := 1 + r.IntN(MaxPrecision)
		typ := DecimalType{p, r.IntN(p + 1)}
		want, ok := new(big.Rat).SetString(text)
		if !ok {
			t.Fatalf("%s is no number", text)
		}
		want.Mul(want, new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(typ.Scale)), nil)))
		limit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(p)), nil)
		has := want.IsInt() && want.Num().CmpAbs(limit) < 0
		v, doc := scanOne(t, `{"v":`+text+`}`)
		d, _, reason := v.Decimal(doc, typ, nil)
		if has != (reason == OK) || has && d.BigInt().Cmp(want.Num()) != 0 {
			t.Fatalf("seed %d: %s as %s: %s, reason %q, want %s (fits: %t)", seed, text, typ, d.BigInt(), reason, want, has)
		}
		if n, reason := v.Int64(doc); true {
			whole, _ := new(big.Rat).SetString(text)
			if in := whole.IsInt() && whole.Num().IsInt64(); in != (reason == OK) || in && n != whole.Num().Int64() {
				t.Fatalf("seed %d: %s as a long: %d, reason %q", seed, text, n, reason)
			}
		}
		if has {
			fits++
		}
	}
	if fits < 1000 {
		t.Errorf("only %d of the numbers fit their type: the test looks at too few", fits)
	}
}

func TestFloatsAreRoundedOnceAndRefusedBeyondTheirRange(t *testing.T) {
	for raw, want := range map[string]float32{
		"0.1": 0.1, "16777217": 16777216, "-3.4028235e38": -math.MaxFloat32, "1e-50": 0,
		// Half way between two floats but for its last digit, which a double loses.
		"1.00000017881393432617187500001": 1.0000002,
	} {
		v, doc := scanOne(t, `{"v":`+raw+`}`)
		if f, r := v.Float32(doc); r != OK || f != want {
			t.Errorf("%s: %v %q, want %v", raw, f, r, want)
		}
	}
	for raw, want := range map[string]Reason{"3.5e38": NumberOutOfRange, "-1e39": NumberOutOfRange, "1e400": NumberOutOfRange, `"1"`: TypeMismatch} {
		v, doc := scanOne(t, `{"v":`+raw+`}`)
		if _, r := v.Float32(doc); r != want {
			t.Errorf("%s: %q, want %q", raw, r, want)
		}
	}
}

func TestDatesAndTimesWithoutAZoneAreThoseOfTheCalendar(t *testing.T) {
	for raw, want := range map[string]int32{`"1970-01-01"`: 0, `"1969-12-31"`: -1, `"2024-02-29"`: 19782, `"9999-12-31"`: 2932896, `"0000-01-01"`: -719528} {
		v, doc := scanOne(t, `{"v":`+raw+`}`)
		if n, _, r := v.Days(doc, nil); r != OK || n != want {
			t.Errorf("%s: %d %q, want %d", raw, n, r, want)
		}
	}
	for raw, want := range map[string]int64{
		`"1970-01-01T00:00:01"`: 1_000_000, `"1970-01-01 00:00:00.0000019"`: 1, `"1969-12-31T23:59:59.5"`: -500_000,
	} {
		v, doc := scanOne(t, `{"v":`+raw+`}`)
		if n, _, r := v.LocalMicros(doc, nil); r != OK || n != want {
			t.Errorf("%s: %d %q, want %d", raw, n, r, want)
		}
	}
	for _, raw := range []string{`"2023-02-29"`, `"2023-2-9"`, `"20230209"`, `"2023-02-09T00:00:00"`, `""`} {
		v, doc := scanOne(t, `{"v":`+raw+`}`)
		if _, _, r := v.Days(doc, nil); r != BadTimestamp {
			t.Errorf("%s as a date: %q", raw, r)
		}
	}
	for _, raw := range []string{`"2023-02-09"`, `"2023-02-09T00:00:00Z"`, `"2023-02-09T00:00:00+01:00"`, `"2016-12-31T23:59:60"`, `"2023-02-09T24:00:00"`, `"2023-02-09T00:00"`} {
		v, doc := scanOne(t, `{"v":`+raw+`}`)
		if _, _, r := v.LocalMicros(doc, nil); r != BadTimestamp {
			t.Errorf("%s as a time without a zone: %q", raw, r)
		}
	}
	v, doc := scanOne(t, `{"v":20230209}`)
	if _, _, r := v.Days(doc, nil); r != TypeMismatch {
		t.Errorf("a number as a date: %q", r)
	}
}
