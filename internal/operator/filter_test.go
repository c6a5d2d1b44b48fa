package operator

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/marker"
)

// filterColumns is what the filter tests can name.
var filterColumns = []Column{
	{Name: "s", Path: "$.s", Type: "string"},
	{Name: "s2", Path: "$.s2", Type: "string"},
	{Name: "n", Path: "$.n", Type: "long"},
	{Name: "i", Path: "$.i", Type: "int"},
	{Name: "d", Path: "$.d", Type: "double"},
	{Name: "b", Path: "$.b", Type: "boolean"},
	{Name: "t", Path: "$.t", Type: "timestamptz"},
	{Name: "x", Path: "$.x", Type: "binary"},
	{Name: "j", Path: "$.j", Type: "json"},
	{Name: "odd name", Path: "$.o", Type: "string"},
	{Name: "topic", Source: "topic", Type: "string"},
	{Name: "key", Source: "key", Type: "string"},
	{Name: "off", Source: "offset", Type: "long"},
	{Name: "m", Path: "$.m", Type: "decimal(18,2)"},
	{Name: "w", Path: "$.w", Type: "decimal(38,10)"},
	{Name: "f", Path: "$.f", Type: "float"},
	{Name: "day", Path: "$.day", Type: "date"},
	{Name: "local", Path: "$.local", Type: "timestamp"},
}

func TestFilterFollowsThreeValuedLogic(t *testing.T) {
	doc := `{"s":"edit","s2":"a\"\u00e9b","n":9007199254740993,"i":-3,"d":0.5,"b":true,"t":"2026-05-04T12:00:00Z","x":"AA==","j":[1],"o":"y",
		"m":-19.99,"w":"1234567890123456789012345678.0000000001","f":0.1,"day":"2026-05-04","local":"2026-05-04T12:00:00.25"}`
	for filter, kept := range map[string]bool{
		"s = 'edit'":                            true,
		"s == 'edit'":                           true,
		"'edit' = s":                            true,
		"s != 'edit'":                           false,
		"s <> 'log'":                            true,
		"s < 'f' AND s > 'e' AND s >= 'edit'":   true,
		"s = s2":                                false,
		"s2 = s2":                               true,
		"s2 = 'a\"éb'":                          true,
		"s IN ('edit', 'new')":                  true,
		"s IN ('new')":                          false,
		"s NOT IN ('new', 'log')":               true,
		"s NOT IN ('new', 'edit')":              false,
		"s NOT IN ('new', NULL)":                false, // unknown
		"s IN ('edit', NULL)":                   true,
		"n = 9007199254740993":                  true,
		"n = 9007199254740992":                  false,
		"n > 9007199254740992.0":                true, // exact, unlike a cast to double
		"n = 9007199254740992.0":                false,
		"9007199254740992.0 < n":                true,
		"n < 1e300 AND n > -1e300":              true,
		"i = -3 AND i < -2.5 AND i > -3.5":      true,
		"d = 0.5 AND d > 0 AND d < 1 AND 0 < d": true,
		"b":                                     true,
		"NOT b":                                 false,
		"b = TRUE":                              true,
		"b != false":                            true,
		"b > FALSE":                             true,
		"NOT NOT b":                             true,
		"t = '2026-05-04T14:00:00+02:00'":       true,
		"'2026-05-04T11:59:59.9Z' < t":          true,
		"x IS NOT NULL AND j IS NOT NULL":       true,
		"x IS NULL":                             false,
		`"odd name" = 'y' and ` + "`odd name` = 'y'": true,
		"topic = 't' AND off = 0 AND key IS NULL":    true,
		"key = 'k'":                                   false,
		"NOT key = 'k'":                               false, // unknown stays unknown
		"key = 'k' OR s = 'edit'":                     true,
		"s = 'edit' OR key = 'k'":                     true,
		"key = 'k' AND s = 'edit'":                    false,
		"key IS NULL OR key = 'k'":                    true,
		"key = NULL":                                  false,
		"NOT (key = NULL)":                            false,
		"NULL IS NULL AND NOT 1 IS NULL":              true,
		"NULL":                                        false,
		"1 = 1":                                       true,
		"1 < 2 AND 2.5 > 2":                           true,
		"s = 'log' OR s = 'edit' AND i = 0":           false, // AND binds tighter
		"(s = 'edit' OR s = 'log') AND i = -3":        true,
		"not s = 'edit' or i = -3":                    true,
		"s LIKE 'ed%'":                                true,
		"s LIKE '%di%'":                               true,
		"s LIKE '____'":                               true,
		"s LIKE '_____'":                              false,
		"s NOT LIKE 'x%'":                             true,
		"s2 LIKE 'a__b'":                              true, // é is one character
		"s LIKE 'edit' AND s LIKE '%%%t'":             true,
		"s LIKE 'e\\dit' AND s NOT LIKE 'e\\%'":       true,
		"key LIKE '%'":                                false,
		"m = -19.99 AND -19.99 = m":                   true,
		"m = -19.991 OR m > -19.985":                  false,
		"m > -19.991 AND m < -19.989":                 true, // digits that the column has not
		"-19.991 < m AND -19.989 > m":                 true,
		"m < 0 AND m > -20 AND m >= -1e300":           true,
		"m > 1e-400 OR m < -1e300":                    false,
		"m IN (1, -19.990)":                           true,
		"m < n AND m < d AND d > m AND m <= m":        true,
		"w = 1234567890123456789012345678.0000000001": true,
		"w > 1234567890123456789012345678.0":          true, // a double could not tell
		"w > m AND m < w AND w <> m":                  true,
		"w > 1e30":                                    false,
		"f = 0.1":                                     false, // as in Spark: the float next to it
		"f > 0.1 AND f < 0.1000001 AND f < d":         true,
		"m IS NULL OR NOT m = m":                      false,
		"day = '2026-05-04' AND day > '2026-05-03' AND '2026-06-01' > day":   true,
		"local > '2026-05-04 12:00:00' AND local < '2026-05-04T12:00:00.26'": true,
		"s = 'it''s'": false,
	} {
		r := newRun(t, Config{Columns: filterColumns, Filter: filter})
		res := r.batchOf(values(doc))
		if got := res.Counters.Emitted == 1; got != kept || res.Counters.Emitted+res.Counters.Filtered != 1 {
			t.Errorf("%s: kept %t, want %t (%+v)", filter, got, kept, res.Counters)
		}
	}
}

func TestFilterFaultsNameTheirPlace(t *testing.T) {
	for filter, want := range map[string]struct {
		offset int
		part   string
	}{
		"s =":                                    {3, "the end where a column"},
		"s = 'edit' AND":                         {14, "the end"},
		"s = 'edit' s2":                          {11, "AND, OR or the end"},
		"s = 'edit":                              {4, "not closed"},
		"nope = 1":                               {0, `no column "nope"`},
		"S = 'edit'":                             {0, `no column "S"`},
		"s = 1":                                  {2, "cannot be compared"},
		"n = '1'":                                {2, "cannot be compared"},
		"b = 1":                                  {2, "cannot be compared"},
		"s":                                      {0, "no condition"},
		"'x'":                                    {0, "no condition"},
		"n":                                      {0, "no condition"},
		"x = 'AA=='":                             {0, "can only be asked for NULL"},
		"'1' = j":                                {6, "can only be asked for NULL"},
		"t > 'yesterday'":                        {4, "RFC 3339"},
		"t > 5":                                  {2, "cannot be compared"},
		"day = 'today'":                          {6, "no date"},
		"day = t":                                {4, "cannot be compared"},
		"local = '2026-05-04T12:00:00Z'":         {8, "without a zone"},
		"m = '1'":                                {2, "cannot be compared"},
		"(s = 'a'":                               {8, "the end where ) was expected"},
		"s = 'a')":                               {7, "AND, OR or the end"},
		"s IN 'a'":                               {5, "where ( was expected"},
		"s IN ()":                                {6, "a column or a literal"},
		"s IN ('a' 'b')":                         {10, "where ) was expected"},
		"s IN (s2)":                              {6, "IN wants literals"},
		"s IN (1)":                               {6, "cannot be compared"},
		"s IS 5":                                 {5, "where NULL was expected"},
		"s NOT 5":                                {6, "where IN was expected"},
		"n LIKE '1%'":                            {2, "LIKE is for strings"},
		"s LIKE s2":                              {7, "pattern in single quotes"},
		"s & s2":                                 {2, "'&' is not understood"},
		"n = 12345678901234567890":               {4, "beyond 64 bits"},
		"n = 1x":                                 {4, "no number"},
		"n = 0x10":                               {4, "no number"},
		"d = 1e999":                              {4, "no number in range"},
		"AND = 1":                                {0, "AND where a column"},
		"s = 'é' AND nope = 1":                   {13, "no column"},
		strings.Repeat("(", 300):                 {200, "nested deeper"},
		strings.Repeat("NOT ", 300):              {800, "nested deeper"},
		"s = '\xff'":                             {0, "UTF-8"},
		strings.Repeat(" ", 1<<17):               {-1, ""}, // blank is no filter
		"s='" + strings.Repeat("x", 1<<17) + "'": {0, "at most"},
	} {
		_, err := New(Config{Columns: filterColumns, Filter: filter})
		if want.offset < 0 {
			if err != nil {
				t.Errorf("%v", err)
			}
			continue
		}
		_, _, perr := parseFilter(filter, mustColumns(t))
		var e *FilterError
		if err == nil || !errors.As(perr, &e) || e.Offset != want.offset || !strings.Contains(e.Detail, want.part) {
			t.Errorf("%.60s: %v (%+v), want offset %d and %q", filter, err, e, want.offset, want.part)
		}
	}
	// The message counts characters, not bytes.
	_, _, err := parseFilter("s = 'é' AND nope = 1", mustColumns(t))
	if !strings.Contains(err.Error(), "character 13") {
		t.Error(err)
	}
}

func mustColumns(t *testing.T) []column {
	var out []column
	for _, c := range filterColumns {
		col, errs := compileColumn(c)
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		out = append(out, col)
	}
	return out
}

func FuzzFilterParserNeverPanics(f *testing.F) {
	for _, s := range []string{"s = 'a' AND (n < 5 OR NOT b)", "t >= '2026-01-01T00:00:00Z'", "s NOT IN ('a', NULL) OR x IS NOT NULL", "s LIKE '%_\\'", "((((", "-.5e+3 < d"} {
		f.Add(s)
	}
	var cols []column
	for _, c := range filterColumns {
		col, _ := compileColumn(c)
		cols = append(cols, col)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, _, err := parseFilter(text, cols)
		var e *FilterError
		if err != nil && (!errors.As(err, &e) || e.Offset < 0 || e.Offset > len(text)) {
			t.Fatalf("%q: %v", text, err)
		}
	})
}

func TestFilteredRowsDoNotMoveTheWatermark(t *testing.T) {
	cfg := small()
	cfg.Filter = "n = 1"
	r := newRun(t, cfg)
	res := r.batchOf(values(
		`{"id":"a","at":"`+at(now-minutes(30))+`","n":1}`,
		`{"id":"b","at":"`+at(now)+`","n":2}`,
	))
	equalCounts(t, res.Counters, marker.Counters{Read: 2, Emitted: 1, Filtered: 1})
	if want := now - minutes(40); res.Watermark.Micros != want {
		t.Errorf("watermark %s, want %s", at(res.Watermark.Micros), at(want))
	}
}

func TestAFilterOnTheEventTimeAndTheBatchTimeIsPossible(t *testing.T) {
	cfg := small()
	cfg.Columns = append(cfg.Columns, Column{Name: "now", Source: "batchTime", Type: "timestamptz"})
	cfg.Filter = "at <= now"
	cfg.Watermark.MaxFutureSkew = time.Hour
	res := newRun(t, cfg).batchOf(values(ev("a", -1), ev("b", 1)))
	equalCounts(t, res.Counters, marker.Counters{Read: 2, Emitted: 1, Filtered: 1})
}
