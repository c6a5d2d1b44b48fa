package event

import (
	"math"
	"testing"
	"time"
)

// scanOne scans doc for $.v.
func scanOne(t *testing.T, doc string) (Value, []byte) {
	t.Helper()
	out := make([]Value, 1)
	if err := newScanner(t, []string{"$.v"}, 0).Scan([]byte(doc), out); err != nil {
		t.Fatal(err)
	}
	return out[0], []byte(doc)
}

func TestIntegersAreExact(t *testing.T) {
	for raw, want := range map[string]struct {
		n int64
		r Reason
	}{
		"0":                       {0, OK},
		"-0":                      {0, OK},
		"9007199254740993":        {1<<53 + 1, OK},
		"-9007199254740993":       {-(1<<53 + 1), OK},
		"999999999999999999":      {999999999999999999, OK},
		"9223372036854775807":     {math.MaxInt64, OK},
		"-9223372036854775808":    {math.MinInt64, OK},
		"9223372036854775808":     {0, NumberOutOfRange},
		"-9223372036854775809":    {0, NumberOutOfRange},
		"12345678901234567890":    {0, NumberOutOfRange},
		"1e19":                    {0, NumberOutOfRange},
		"1e999999999999999999999": {0, NumberOutOfRange},
		"9223372036854775807.0":   {math.MaxInt64, OK},
		"9.223372036854775807e18": {math.MaxInt64, OK},
		"1.0":                     {1, OK},
		"1.5":                     {0, TypeMismatch},
		"15e-1":                   {0, TypeMismatch},
		"150e-1":                  {15, OK},
		"0e-999999999999999999":   {0, OK},
		"1e-999999999999999999":   {0, TypeMismatch},
		`"1"`:                     {0, TypeMismatch},
		"true":                    {0, TypeMismatch},
		"null":                    {0, TypeMismatch},
		"{}":                      {0, TypeMismatch},
	} {
		v, doc := scanOne(t, `{"v":`+raw+`}`)
		n, r := v.Int64(doc)
		if r != want.r || (r == OK && n != want.n) {
			t.Errorf("%s: %d %q, want %d %q", raw, n, r, want.n, want.r)
		}
	}
	v, doc := scanOne(t, `{"v":2147483648}`)
	if _, r := v.Int32(doc); r != NumberOutOfRange {
		t.Errorf("2^31 as int: %q", r)
	}
}

func TestDoublesBeyondTheRangeAreRefusedAndTinyOnesAreZero(t *testing.T) {
	for raw, want := range map[string]Reason{"1e308": OK, "1e309": NumberOutOfRange, "-1e400": NumberOutOfRange, "1e-400": OK, `"1"`: TypeMismatch} {
		v, doc := scanOne(t, `{"v":`+raw+`}`)
		if _, r := v.Float64(doc); r != want {
			t.Errorf("%s: %q, want %q", raw, r, want)
		}
	}
}

func TestTimesHaveADefinedMeaningOrAReason(t *testing.T) {
	at := func(s string) int64 {
		x, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		return x.UnixMicro()
	}
	good := map[string]int64{
		"2026-05-04T10:11:12Z":                at("2026-05-04T10:11:12Z"),
		"2017-07-12T01:14:53+00:00":           at("2017-07-12T01:14:53Z"),
		"2017-07-12T01:14:53-00:00":           at("2017-07-12T01:14:53Z"),
		"2025-08-12T01:14:53.123Z":            at("2025-08-12T01:14:53.123Z"),
		"2025-08-12t01:14:53.1234567899z":     at("2025-08-12T01:14:53.123456Z"),
		"2025-08-12T01:14:53.1+05:30":         at("2025-08-11T19:44:53.1Z"),
		"2025-01-01T00:00:00-23:59":           at("2025-01-01T23:59:00Z"),
		"1969-12-31T23:59:59.999999Z":         -1,
		"1969-12-31T23:59:59.5Z":              -500_000,
		"1969-07-20T20:17:40Z":                at("1969-07-20T20:17:40Z"),
		"9999-12-31T23:59:59.999999Z":         at("9999-12-31T23:59:59.999999Z"),
		"0000-01-01T00:00:00Z":                at("0000-01-01T00:00:00Z"),
		"2000-02-29T00:00:00Z":                at("2000-02-29T00:00:00Z"),
		"2016-12-31T23:59:60Z":                at("2017-01-01T00:00:00Z"),
		"2016-12-31T23:59:60.25Z":             at("2017-01-01T00:00:00.25Z"),
		"2016-12-31T15:59:60-08:00":           at("2017-01-01T00:00:00Z"),
		"1990-06-30T23:59:60Z":                at("1990-07-01T00:00:00Z"),
		"2025-08-12T01:14:53.00000000000001Z": at("2025-08-12T01:14:53Z"),
	}
	for text, want := range good {
		v, doc := scanOne(t, `{"v":"`+text+`"}`)
		got, _, r := v.Micros(doc, RFC3339, nil)
		if r != OK || got != want {
			t.Errorf("%s: %d %q, want %d", text, got, r, want)
		}
	}
	for _, text := range []string{
		"", "now", "2026-05-04", "2026-05-04T10:11:12", "2026-05-04 10:11:12Z", "2026-05-04T10:11Z", "2026-13-01T00:00:00Z",
		"2026-00-01T00:00:00Z", "2026-02-29T00:00:00Z", "1900-02-29T00:00:00Z", "2026-04-31T00:00:00Z", "2026-05-04T24:00:00Z",
		"2026-05-04T10:60:00Z", "2026-05-04T10:11:61Z", "2026-05-04T10:11:60Z", "2026-05-04T23:59:60Z", "2026-05-31T23:59:60+01:00",
		"2026-05-04T10:11:12.Z", "2026-05-04T10:11:12,5Z", "2026-05-04T10:11:12+0000", "2026-05-04T10:11:12+24:00", "2026-05-04T10:11:12+00:60",
		"10000-01-01T00:00:00Z", "-0001-01-01T00:00:00Z", "9999-12-31T23:59:60Z", "0000-01-01T00:00:00+00:01", "2026-05-04T10:11:12ZZ", "2026-05-0aT10:11:12Z",
		"9999-12-31T23:59:59-00:01",
	} {
		v, doc := scanOne(t, `{"v":"`+text+`"}`)
		if got, _, r := v.Micros(doc, RFC3339, nil); r != BadTimestamp {
			t.Errorf("%q: %d %q, want %q", text, got, r, BadTimestamp)
		}
	}
	v, doc := scanOne(t, `{"v":"2026-05-04T10:11:12\u005a"}`)
	if got, _, r := v.Micros(doc, RFC3339, nil); r != OK || got != good["2026-05-04T10:11:12Z"] {
		t.Errorf("escaped time: %d %q", got, r)
	}
}

func TestEpochTimesAreDecodedByTheDeclaredUnit(t *testing.T) {
	for _, c := range []struct {
		raw  string
		f    TimeFormat
		want int64
		r    Reason
	}{
		{"1777889472", EpochSeconds, 1777889472_000_000, OK},
		{"1777889472345", EpochMillis, 1777889472_345_000, OK},
		{"-1", EpochSeconds, -1_000_000, OK},
		{"253402300799", EpochSeconds, 253402300799_000_000, OK},
		{"253402300800", EpochSeconds, 0, BadTimestamp},
		{"-62167219200", EpochSeconds, -62167219200_000_000, OK},
		{"-62167219201", EpochSeconds, 0, BadTimestamp},
		{"9223372036854775807", EpochMillis, 0, BadTimestamp},
		{"99999999999999999999", EpochSeconds, 0, BadTimestamp},
		{"1.5", EpochSeconds, 0, TypeMismatch},
		{`"1777889472"`, EpochSeconds, 0, TypeMismatch},
		{"1777889472", RFC3339, 0, TypeMismatch},
	} {
		v, doc := scanOne(t, `{"v":`+c.raw+`}`)
		if got, _, r := v.Micros(doc, c.f, nil); r != c.r || got != c.want {
			t.Errorf("%s: %d %q, want %d %q", c.raw, got, r, c.want, c.r)
		}
	}
}

func TestEveryDayOfFourCenturiesAgreesWithTheStandardLibrary(t *testing.T) {
	day := time.Date(1799, 12, 30, 0, 0, 0, 0, time.UTC)
	for range 146_200 {
		y, m, d := day.Date()
		if got, want := int64(daysBefore(y, int(m), d)), day.Unix()/secondsPerDay; got != want {
			t.Fatalf("%s: %d, want %d", day, got, want)
		}
		if firstOfMonth(daysBefore(y, int(m), d)) != (d == 1) {
			t.Fatalf("%s: first of the month is wrong", day)
		}
		day = day.AddDate(0, 0, 1)
	}
}

func TestBinaryIsStrictBase64(t *testing.T) {
	for text, want := range map[string]Reason{"": OK, "AAEC": OK, "AAE=": OK, "AAE": TypeMismatch, "AA-_": TypeMismatch, "AAF=": TypeMismatch, `AA\nEC`: TypeMismatch} {
		v, doc := scanOne(t, `{"v":"`+text+`"}`)
		if _, r := v.AppendBinary(nil, doc); r != want {
			t.Errorf("%q: %q, want %q", text, r, want)
		}
	}
}
