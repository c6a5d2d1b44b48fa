package pipeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// The errors of this file say only what is wanted, never what was found: the
// caller knows whether the text may be shown.

// units of durations: Go's and Spark's spellings.
var units = map[string]time.Duration{
	"ns": time.Nanosecond, "nanosecond": time.Nanosecond,
	"us": time.Microsecond, "µs": time.Microsecond, "μs": time.Microsecond, "microsecond": time.Microsecond,
	"ms": time.Millisecond, "millisecond": time.Millisecond,
	"s": time.Second, "sec": time.Second, "second": time.Second,
	"m": time.Minute, "min": time.Minute, "minute": time.Minute,
	"h": time.Hour, "hour": time.Hour,
	"d": 24 * time.Hour, "day": 24 * time.Hour,
	"week": 7 * 24 * time.Hour,
}

var durationTerm = regexp.MustCompile(`^\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Zµμ]*)\s*`)

// ParseDuration reads Go's form (1h30m, 500ms) and Spark's (10 minutes, 1 hour
// 30 seconds). A number without a unit is refused, except 0.
func ParseDuration(text string) (time.Duration, error) {
	bad := errors.New("is not a duration: want 500ms, 10s, 1h30m or 10 minutes")
	rest := strings.TrimSpace(text)
	if rest == "0" {
		return 0, nil
	}
	if rest == "" || strings.HasPrefix(rest, "-") {
		return 0, bad
	}
	var total float64
	for rest != "" {
		m := durationTerm.FindStringSubmatch(rest)
		if m == nil {
			return 0, bad
		}
		name := strings.ToLower(m[2])
		if name == "" {
			return 0, errors.New("is a duration without a unit: want 500ms, 10s, 1h30m or 10 minutes")
		}
		unit, ok := units[name]
		if !ok && len(name) > 3 {
			unit, ok = units[strings.TrimSuffix(name, "s")]
		}
		if !ok {
			return 0, errors.New("is not a duration: the units are ms, s, m, h, d or their words")
		}
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return 0, bad
		}
		total += n * float64(unit)
		rest = rest[len(m[0]):]
	}
	if total > math.MaxInt64/2 {
		return 0, errors.New("is longer than 146 years")
	}
	return time.Duration(math.Round(total)), nil
}

var sizeTerm = regexp.MustCompile(`^([0-9]+)\s*([a-zA-Z]*)$`)

// sizeUnits: decimal and binary units; a bare letter is binary, as in Spark.
var sizeUnits = map[string]int64{
	"": 1, "b": 1,
	"k": 1 << 10, "kb": 1000, "kib": 1 << 10,
	"m": 1 << 20, "mb": 1000 * 1000, "mib": 1 << 20,
	"g": 1 << 30, "gb": 1000 * 1000 * 1000, "gib": 1 << 30,
}

// parseSize reads a number of bytes.
func parseSize(text string) (Size, error) {
	bad := errors.New("is not a size: want 65536, 64KiB or 20MB")
	m := sizeTerm.FindStringSubmatch(strings.ReplaceAll(strings.TrimSpace(text), "_", ""))
	if m == nil {
		return 0, bad
	}
	unit, ok := sizeUnits[strings.ToLower(m[2])]
	n, err := strconv.ParseInt(m[1], 10, 64)
	if !ok || err != nil || n > math.MaxInt64/unit {
		return 0, bad
	}
	return Size(n * unit), nil
}

// parseInt reads a whole number; 100_000 is allowed.
func parseInt(text string, bits int) (int64, error) {
	t := strings.TrimSpace(text)
	if strings.HasPrefix(t, "_") || strings.HasSuffix(t, "_") || strings.Contains(t, "__") {
		return 0, errors.New("is not a whole number")
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(t, "_", ""), 10, bits)
	if errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("does not fit into %d bits", bits)
	}
	if err != nil {
		return 0, errors.New("is not a whole number")
	}
	return n, nil
}

// parseInstant reads milliseconds since 1970 or a time with a zone.
func parseInstant(text string) (Millis, error) {
	t := strings.TrimSpace(text)
	if n, err := strconv.ParseInt(t, 10, 64); err == nil && n >= 0 {
		return Millis(n), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02"} {
		if at, err := time.Parse(layout, t); err == nil {
			return Millis(at.UnixMilli()), nil
		}
	}
	return 0, errors.New("is not a point in time: want milliseconds since 1970, 2026-05-01 or 2026-05-01T12:00:00Z")
}

// maxPartition bounds partition numbers, so that a range is never expanded
// into something that does not fit.
const maxPartition = 1_000_000

// parsePartitions reads 0-15,20.
func parsePartitions(text string) (Partitions, error) {
	var out Partitions
	for _, term := range strings.Split(text, ",") {
		a, b, isRange := strings.Cut(strings.TrimSpace(term), "-")
		from, err := strconv.ParseInt(strings.TrimSpace(a), 10, 32)
		to := from
		if err == nil && isRange {
			to, err = strconv.ParseInt(strings.TrimSpace(b), 10, 32)
		}
		if err != nil || from < 0 || from > to || to > maxPartition {
			return nil, errors.New("is not a set of partitions: want 0-15 or 0,3,8-11")
		}
		out = append(out, PartitionRange{int32(from), int32(to)})
	}
	return out.normalise()
}

// normalise sorts the ranges and refuses a partition named twice.
func (ps Partitions) normalise() (Partitions, error) {
	out := append(Partitions(nil), ps...)
	for i := 1; i < len(out); i++ {
		for j := i; j > 0 && out[j].From < out[j-1].From; j-- {
			out[j], out[j-1] = out[j-1], out[j]
		}
	}
	for i := 1; i < len(out); i++ {
		if out[i].From <= out[i-1].To {
			return nil, fmt.Errorf("names partition %d twice", out[i].From)
		}
	}
	return out, nil
}

// overlap gives a partition that both sets hold; an empty set holds all.
func (ps Partitions) overlap(qs Partitions) (int32, bool) {
	all := Partitions{{0, maxPartition}}
	if len(ps) == 0 {
		ps = all
	}
	if len(qs) == 0 {
		qs = all
	}
	for _, p := range ps {
		for _, q := range qs {
			if from := max(p.From, q.From); from <= min(p.To, q.To) {
				return from, true
			}
		}
	}
	return 0, false
}

// String is the form that the file uses.
func (ps Partitions) String() string {
	var terms []string
	for _, r := range ps {
		if r.From == r.To {
			terms = append(terms, strconv.Itoa(int(r.From)))
		} else {
			terms = append(terms, fmt.Sprintf("%d-%d", r.From, r.To))
		}
	}
	return strings.Join(terms, ",")
}

// parseOffsetsJSON reads Spark's {"topic":{"0":23,"1":-2}}.
func parseOffsetsJSON(text string) (map[string]map[int32]int64, error) {
	bad := errors.New(`is not JSON of the form {"topic":{"0":23,"1":-2}}`)
	var byText map[string]map[string]int64
	if err := json.Unmarshal([]byte(text), &byText); err != nil || len(byText) == 0 {
		return nil, bad
	}
	out := make(map[string]map[int32]int64, len(byText))
	for topic, parts := range byText {
		out[topic] = map[int32]int64{}
		for part, offset := range parts {
			p, err := strconv.ParseInt(part, 10, 32)
			if err != nil || p < 0 || p > maxPartition {
				return nil, bad
			}
			out[topic][int32(p)] = offset
		}
	}
	return out, nil
}

// checkJSONPath accepts $, .name, ['name'], ["name"] and [0].
func checkJSONPath(path string) error {
	rest, ok := strings.CutPrefix(path, "$")
	if !ok {
		return errors.New("is not a JSON path: it begins with $, as in $.meta.id")
	}
	if rest == "" {
		return errors.New("is the whole value; a JSON path names a field, as in $.meta.id")
	}
	for rest != "" {
		m := pathStep.FindString(rest)
		if m == "" {
			return fmt.Errorf("is not a JSON path at %q: want .name, ['name'] or [0]", clip(rest))
		}
		rest = rest[len(m):]
	}
	return nil
}

var pathStep = regexp.MustCompile(`^(?:\.[\p{L}_$][\p{L}\p{N}_$-]*|\[[0-9]{1,9}\]|\['[^']+'\]|\["[^"]+"\])`)

// identifier is a column, a namespace or a table name that every engine takes
// without quotes.
var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

var partitionTerm = regexp.MustCompile(`^\s*([a-zA-Z]+)\s*\(\s*(.*?)\s*\)\s*$`)

// ParsePartitionField reads day(timestamp), bucket(16, key), wiki.
func ParsePartitionField(text string) (PartitionField, error) {
	t := strings.TrimSpace(text)
	if identifier.MatchString(t) {
		return PartitionField{Transform: "identity", Column: t}, nil
	}
	bad := errors.New("is not a partition field: want column, day(column), bucket(16, column) or truncate(8, column)")
	m := partitionTerm.FindStringSubmatch(t)
	if m == nil {
		return PartitionField{}, bad
	}
	f := PartitionField{Transform: strings.ToLower(m[1])}
	args := strings.Split(m[2], ",")
	switch f.Transform {
	// Spark's plural spellings are the same transforms.
	case "years", "months", "days", "hours":
		f.Transform = strings.TrimSuffix(f.Transform, "s")
	case "identity", "year", "month", "day", "hour":
	case "bucket", "truncate":
		if len(args) != 2 {
			return PartitionField{}, bad
		}
		// Iceberg's own DDL puts the number first, some tools put it last.
		num, col := strings.TrimSpace(args[0]), strings.TrimSpace(args[1])
		if identifier.MatchString(num) {
			num, col = col, num
		}
		n, err := strconv.Atoi(num)
		if err != nil || n < 1 {
			return PartitionField{}, bad
		}
		f.Param, args = n, []string{col}
	default:
		return PartitionField{}, errors.New("is not a partition field: the transforms are identity, year, month, day, hour, bucket, truncate")
	}
	if len(args) != 1 || !identifier.MatchString(strings.TrimSpace(args[0])) {
		return PartitionField{}, bad
	}
	f.Column = strings.TrimSpace(args[0])
	return f, nil
}

// String is the form that the file uses.
func (f PartitionField) String() string {
	switch {
	case f.Transform == "identity":
		return f.Column
	case f.Param > 0:
		return fmt.Sprintf("%s(%d, %s)", f.Transform, f.Param, f.Column)
	}
	return fmt.Sprintf("%s(%s)", f.Transform, f.Column)
}
