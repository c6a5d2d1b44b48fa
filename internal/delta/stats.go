package delta

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet/metadata"
)

const (
	// statsColumnsMax is how many leading columns get statistics, as in Delta's
	// own default.
	statsColumnsMax = 32
	// statsStringMax is how many characters of a string bound are kept.
	statsStringMax = 32
)

// Stats are the statistics of a data file, the JSON in its add action.
// Bounds may be wider than the values: strings are cut, times are whole
// milliseconds. Floating point columns get none, because Parquet's bounds leave
// NaN out and Delta's order does not; binary, boolean and nested columns neither.
type Stats struct {
	NumRecords int64                      `json:"numRecords"`
	MinValues  map[string]json.RawMessage `json:"minValues"`
	MaxValues  map[string]json.RawMessage `json:"maxValues"`
	NullCount  map[string]json.RawMessage `json:"nullCount"`
}

// ParseStats reads the statistics of an add action; ok is false where there are
// none.
func (a *Add) ParseStats() (s Stats, ok bool) {
	if a.Stats == "" || json.Unmarshal([]byte(a.Stats), &s) != nil {
		return Stats{}, false
	}
	return s, true
}

// statsOf gathers the statistics of a file of schema sc from its footer.
func statsOf(meta *metadata.FileMetaData, sc *arrow.Schema) (string, error) {
	s := Stats{NumRecords: meta.GetNumRows(), MinValues: map[string]json.RawMessage{}, MaxValues: map[string]json.RawMessage{}, NullCount: map[string]json.RawMessage{}}
	types := map[string]arrow.DataType{}
	for i, f := range sc.Fields() {
		if i < statsColumnsMax {
			types[f.Name] = f.Type
		}
	}
	for i := range meta.Schema.NumColumns() {
		path := meta.Schema.Column(i).ColumnPath()
		t, ok := types[path[0]]
		if len(path) != 1 || !ok {
			continue
		}
		b, err := columnBounds(meta, i, t)
		if err != nil {
			return "", fmt.Errorf("statistics of column %q: %w", path[0], err)
		}
		if b.nullsKnown {
			s.NullCount[path[0]] = json.RawMessage(fmt.Sprint(b.nulls))
		}
		if b.min != nil && b.max != nil {
			s.MinValues[path[0]], s.MaxValues[path[0]] = b.min, b.max
		}
	}
	out, err := json.Marshal(s)
	return string(out), err
}

// bounds of one column over all row groups.
type bounds struct {
	nulls      int64
	nullsKnown bool
	min, max   json.RawMessage
}

func columnBounds(meta *metadata.FileMetaData, col int, t arrow.DataType) (bounds, error) {
	b := bounds{nullsKnown: true}
	var ints *intBounds
	var strs *stringBounds
	bounded := true
	for g := range meta.NumRowGroups() {
		cc, err := meta.RowGroup(g).ColumnChunk(col)
		if err != nil {
			return b, err
		}
		st, err := cc.Statistics()
		if err != nil {
			return b, err
		}
		if st == nil || !st.HasNullCount() {
			return bounds{}, nil
		}
		b.nulls += st.NullCount()
		if st.NullCount() == cc.NumValues() {
			continue
		}
		if !st.HasMinMax() {
			bounded = false
			continue
		}
		switch x := st.(type) {
		case *metadata.Int32Statistics:
			ints = ints.with(int64(x.Min()), int64(x.Max()))
		case *metadata.Int64Statistics:
			ints = ints.with(x.Min(), x.Max())
		case *metadata.ByteArrayStatistics:
			strs = strs.with(string(x.Min()), string(x.Max()))
		default:
			bounded = false
		}
	}
	if !bounded {
		return b, nil
	}
	b.min, b.max = boundsJSON(t, ints, strs)
	return b, nil
}

type intBounds struct{ min, max int64 }

func (b *intBounds) with(lo, hi int64) *intBounds {
	if b == nil {
		return &intBounds{lo, hi}
	}
	return &intBounds{min(b.min, lo), max(b.max, hi)}
}

type stringBounds struct{ min, max string }

func (b *stringBounds) with(lo, hi string) *stringBounds {
	if b == nil {
		return &stringBounds{lo, hi}
	}
	return &stringBounds{min(b.min, lo), max(b.max, hi)}
}

// timeLayout is Delta's in statistics: milliseconds, UTC.
const timeLayout = "2006-01-02T15:04:05.000Z"

func boundsJSON(t arrow.DataType, ints *intBounds, strs *stringBounds) (lo, hi json.RawMessage) {
	enc := func(v any) json.RawMessage {
		b, err := json.Marshal(v)
		if err != nil {
			return nil
		}
		return b
	}
	switch {
	case strs != nil && t.ID() == arrow.STRING:
		if !utf8.ValidString(strs.min) || !utf8.ValidString(strs.max) {
			return nil, nil
		}
		return enc(cutMin(strs.min)), enc(cutMax(strs.max))
	case ints == nil:
		return nil, nil
	case t.ID() == arrow.INT8, t.ID() == arrow.INT16, t.ID() == arrow.INT32, t.ID() == arrow.INT64:
		return enc(ints.min), enc(ints.max)
	case t.ID() == arrow.DATE32:
		return enc(arrow.Date32(ints.min).FormattedString()), enc(arrow.Date32(ints.max).FormattedString())
	case t.ID() == arrow.TIMESTAMP:
		low := time.UnixMicro(ints.min).UTC().Truncate(time.Millisecond)
		high := time.UnixMicro(ints.max).UTC()
		if cut := high.Truncate(time.Millisecond); cut.Before(high) {
			high = cut.Add(time.Millisecond)
		}
		if low.Year() < 1 || high.Year() > 9999 {
			return nil, nil
		}
		return enc(low.Format(timeLayout)), enc(high.Format(timeLayout))
	}
	return nil, nil
}

// cutMin cuts a lower bound: a prefix is never greater than the value.
func cutMin(s string) string {
	n := 0
	for i := range s {
		if n == statsStringMax {
			return s[:i]
		}
		n++
	}
	return s
}

// cutMax cuts an upper bound and puts the greatest character in the place of
// what was cut, unless that begins with the greatest one itself.
func cutMax(s string) string {
	cut := cutMin(s)
	if len(cut) == len(s) || strings.HasPrefix(s[len(cut):], string(utf8.MaxRune)) {
		return s
	}
	return cut + string(utf8.MaxRune)
}
