package operator

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/event"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

// codeVersion is part of the fingerprint: it changes whenever the same
// configuration would give other rows.
const codeVersion = 1

// Limits of a transform.
const (
	// DefaultParallelism is how many goroutines parse one record.
	DefaultParallelism = 2
	// MaxParallelism bounds the setting.
	MaxParallelism = 64
	// MaxColumns bounds the declared columns.
	MaxColumns = 1_000
)

// Config describes a chain: records of batch.KafkaSchema in, declared columns
// out. The rows' outcomes are decided in this order, and a row has exactly one:
//
//  1. null or empty value: dead letter (only where a column has a path);
//  2. a value that is not one strict JSON text: dead letter;
//  3. the columns that the filter names are decoded, in declared order; a
//     wrong type or a missing required value: dead letter;
//  4. the filter is false or unknown: filtered. The other columns have not
//     been looked at, so that an event of another kind is not a dead letter
//     for lacking what only the kept kinds have;
//  5. the other columns are decoded, in declared order: dead letter;
//  6. event time beyond batch time + MaxFutureSkew: dead letter. Up to here a
//     row does not move the watermark, from here on it does;
//  7. event time before the plan's watermark: late;
//  8. keys that are remembered: duplicate;
//  9. emitted.
type Config struct {
	Columns []Column
	// Filter is an expression over declared columns, empty for none:
	//
	//	type IN ('edit', 'new') AND NOT bot AND namespace >= 0
	//
	// It knows =, !=, <>, <, <=, >, >=, [NOT] IN, IS [NOT] NULL, [NOT] LIKE,
	// AND, OR, NOT, parentheses, boolean columns, literals ('text', 12, 1.5,
	// TRUE, FALSE, NULL; a quote in a text is doubled), and times as texts in
	// RFC 3339. Names may stand in double quotes or backticks; keywords are of
	// any case. Logic is three-valued, as in SQL.
	Filter string
	// Watermark is nil where the rows have no event time.
	Watermark *Watermark
	// Dedup names the key columns of dropDuplicatesWithinWatermark.
	Dedup []string
	// Changes, where set, make the rows changes by key.
	Changes *Changes `json:",omitempty"`
	// DeadLetter turns the side output on. Without it such rows are counted
	// and not kept (the source still has them).
	DeadLetter bool
	// MaxDepth is the deepest nesting of JSON; 0 is event.DefaultMaxDepth.
	MaxDepth int
	// Format of the value where a decoder turns it into JSON first, empty where
	// it is JSON. It decides rows; the decoder only carries it out.
	Format  string  `json:",omitempty"`
	Decoder Decoder `json:"-"`

	// Parallelism is how many goroutines parse; 0 is DefaultParallelism. It
	// changes no row.
	Parallelism int
	// Seed of the event time sample and of the hash tables. It changes no row.
	Seed uint64
	// Allocator of the emitted records; nil is Arrow's default.
	Allocator memory.Allocator
}

// Column is one declared column. Exactly one of Path and Source is set.
type Column struct {
	Name string
	// Path is a JSON path into the value: $.meta.id.
	Path string
	// Source is a property of the Kafka record (topic, topicId, partition,
	// offset, timestamp, timestampType, key, value, ingestedAt) or batchTime,
	// the plan's clock. Snake case and a leading $ or kafka_ are accepted.
	Source string
	// Type is string, int, long, float, double, decimal(P,S), boolean, date,
	// timestamp (without a zone), timestamptz, binary or json (the JSON text itself,
	// whatever it is, in a string column). A path of type binary holds base64.
	Type string
	// Required sends a row without the value to the dead-letter output, and
	// makes the column not nullable.
	Required bool
	// TimeFormat says how a timestamptz is written in JSON: rfc3339 (default),
	// epochSeconds or epochMillis.
	TimeFormat string
}

// Watermark is the event time of a chain.
type Watermark struct {
	// Column is a required timestamptz column.
	Column string
	// Delay is how far the watermark stays behind the greatest event time,
	// and how long a key is remembered beyond its own.
	Delay time.Duration
	// MaxFutureSkew is how far ahead of the batch time an event may be; with 0
	// none may. There is no default here: the pipeline file's is set there.
	MaxFutureSkew time.Duration
	// PerPartition draws a watermark in each partition and takes the least of
	// those that are not idle; a partition is idle after IdleTimeout without an
	// event, 0 is never.
	PerPartition bool          `json:",omitempty"`
	IdleTimeout  time.Duration `json:",omitempty"`
}

// colType is a declared type.
type colType uint8

const (
	typeString colType = iota
	typeInt
	typeLong
	typeFloat
	typeDouble
	typeDecimal
	typeBool
	typeDate
	typeLocal // timestamp without a zone
	typeTime
	typeBinary
	typeJSON
)

var typeNames = map[string]colType{
	"string": typeString, "int": typeInt, "long": typeLong, "float": typeFloat, "double": typeDouble, "decimal": typeDecimal,
	"boolean": typeBool, "date": typeDate, "timestamp": typeLocal, "timestamptz": typeTime, "binary": typeBinary, "json": typeJSON,
}

// parseType reads a declared type; the error says what is wrong with it.
func parseType(text string) (colType, event.DecimalType, error) {
	if name, _, sized := strings.Cut(text, "("); sized || name == "decimal" {
		d, err := event.ParseDecimalType(text)
		return typeDecimal, d, err
	}
	t, ok := typeNames[text]
	if !ok {
		return 0, event.DecimalType{}, errors.New("is not one of string, int, long, float, double, decimal(P,S), boolean, date, timestamp, timestamptz, binary, json")
	}
	return t, event.DecimalType{}, nil
}

// ArrowType is the type of a column that is declared as text, nil where no column
// can be.
func ArrowType(text string) arrow.DataType {
	t, d, err := parseType(text)
	if err != nil {
		return nil
	}
	return t.arrow(d)
}

func (t colType) String() string {
	for name, x := range typeNames {
		if x == t {
			return name
		}
	}
	return "?"
}

// arrow is the type in records; d is a decimal's.
func (t colType) arrow(d event.DecimalType) arrow.DataType {
	switch t {
	case typeInt:
		return arrow.PrimitiveTypes.Int32
	case typeLong:
		return arrow.PrimitiveTypes.Int64
	case typeFloat:
		return arrow.PrimitiveTypes.Float32
	case typeDecimal:
		return &arrow.Decimal128Type{Precision: int32(d.Precision), Scale: int32(d.Scale)} //nolint:gosec // at most event.MaxPrecision
	case typeDate:
		return arrow.FixedWidthTypes.Date32
	case typeLocal:
		return batch.LocalTimestamp
	case typeDouble:
		return arrow.PrimitiveTypes.Float64
	case typeBool:
		return arrow.FixedWidthTypes.Boolean
	case typeTime:
		return batch.Timestamp
	case typeBinary:
		return arrow.BinaryTypes.Binary
	default:
		return arrow.BinaryTypes.String
	}
}

// inexact reports whether equal values need not be the same value.
func (t colType) inexact() bool { return t == typeFloat || t == typeDouble || t == typeJSON }

// variable reports whether values have no fixed width.
func (t colType) variable() bool { return t == typeString || t == typeBinary || t == typeJSON }

// origin is where a column's value comes from.
type origin uint8

const (
	fromJSON origin = iota
	fromTopic
	fromPartition
	fromOffset
	fromTimestamp
	fromTimestampType
	fromKey
	fromValue
	fromIngestedAt
	fromTopicID
	fromBatchTime
)

// sources maps the names of Config (lower case, without separators) to origins
// and the types that each may be declared with.
var sources = map[string]struct {
	origin origin
	types  []colType
}{
	"topic":         {fromTopic, []colType{typeString}},
	"topicid":       {fromTopicID, []colType{typeString}},
	"partition":     {fromPartition, []colType{typeInt, typeLong}},
	"offset":        {fromOffset, []colType{typeLong}},
	"timestamp":     {fromTimestamp, []colType{typeTime}},
	"timestamptype": {fromTimestampType, []colType{typeInt, typeLong}},
	"key":           {fromKey, []colType{typeBinary, typeString}},
	"value":         {fromValue, []colType{typeBinary, typeString}},
	"ingestedat":    {fromIngestedAt, []colType{typeTime}},
	"batchtime":     {fromBatchTime, []colType{typeTime}},
}

func sourceKey(name string) string {
	name = strings.TrimPrefix(strings.ToLower(name), "$")
	name = strings.TrimPrefix(name, "kafka_")
	return strings.ReplaceAll(name, "_", "")
}

var timeFormats = map[string]event.TimeFormat{
	"": event.RFC3339, "rfc3339": event.RFC3339, "epochseconds": event.EpochSeconds, "epochmillis": event.EpochMillis,
}

// column is a compiled Column.
type column struct {
	Column
	typ colType
	// decimal is the type's, where it is one.
	decimal event.DecimalType
	arrow   arrow.DataType
	origin  origin
	format  event.TimeFormat
	// path is the column's output in the scan, -1 where it has none.
	path int
}

// hidden columns are parsed and not emitted.
func (c *column) hidden() bool { return c.Name == DeletedColumn }

// compiled is a checked Config.
type compiled struct {
	columns []column
	byName  map[string]int
	prog    *event.Program
	paths   int
	filter  condition // nil for none
	deletes condition // nil for none; only where changes are set
	changes bool
	unwrap  *unwrapper
	// first are the columns that the filter names, rest the others.
	first, rest []int
	timeCol     int // -1 without a watermark
	delay, skew int64
	// perPartition and idleAfter are those of the watermark.
	perPartition bool
	idleAfter    int64
	keys         []int
	eventID      int // column that dead letters are identified by, -1 for none
	main         *arrow.Schema
}

// New checks the configuration and makes the chain. Its error (class Config)
// names every fault.
func New(cfg Config) (Transform, error) {
	k, faults := compile(cfg)
	if len(faults) > 0 {
		lines := make([]string, len(faults))
		for i, f := range faults {
			lines[i] = f.Error()
		}
		return nil, failure.Wrap(failure.Config, errors.New(strings.Join(lines, "\n  ")), "the query's columns, filter or watermark are not usable")
	}
	print, err := fingerprint(cfg)
	if err != nil {
		return nil, err
	}
	c := newChain(cfg, k, print)
	if ch := cfg.Changes; ch != nil && ch.RememberDeletes > 0 {
		return newDeletes(c, *ch), nil
	}
	return c, nil
}

// fingerprint hashes what decides the rows, and nothing else.
func fingerprint(cfg Config) (string, error) {
	cfg.Parallelism, cfg.Seed, cfg.Allocator = 0, 0, nil
	b, err := json.Marshal(struct {
		Code   int
		Config Config
	}{codeVersion, cfg})
	if err != nil {
		return "", fmt.Errorf("fingerprint of the transform: %w", err)
	}
	return marker.Hash(b), nil
}

func compile(cfg Config) (*compiled, []error) {
	k := &compiled{byName: map[string]int{}, timeCol: -1, eventID: -1}
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	if len(cfg.Columns) == 0 {
		fault("columns: at least one is needed")
	}
	if len(cfg.Columns) > MaxColumns {
		fault("columns: %d are declared, at most %d are supported", len(cfg.Columns), MaxColumns)
	}
	if cfg.Parallelism < 0 || cfg.Parallelism > MaxParallelism {
		fault("parallelism: %d is not between 1 and %d", cfg.Parallelism, MaxParallelism)
	}
	var paths []string
	var fields []arrow.Field
	k.changes = cfg.Changes != nil
	for i, c := range cfg.Changes.expand(cfg.Columns) {
		col, errs := compileColumn(c)
		for _, err := range errs {
			fault("column %d (%s): %w", i+1, c.Name, err)
		}
		if prev, ok := k.byName[c.Name]; ok && c.Name != "" {
			fault("column %d (%s): the name is taken by column %d", i+1, c.Name, prev+1)
		} else {
			k.byName[c.Name] = i
		}
		if col.origin == fromJSON {
			col.path = len(paths)
			paths = append(paths, c.Path)
		}
		k.columns = append(k.columns, col)
		if !col.hidden() {
			fields = append(fields, arrow.Field{Name: c.Name, Type: col.arrow, Nullable: !c.Required})
		}
	}
	if k.changes {
		fields = append(fields, arrow.Field{Name: DeletedColumn, Type: arrow.FixedWidthTypes.Boolean})
	}
	faults = append(faults, k.compileChanges(cfg.Changes)...)
	faults = append(faults, k.compileTime(cfg)...)
	faults = append(faults, k.compileFilter(cfg.Filter)...)
	if cfg.MaxDepth < 0 || cfg.MaxDepth > event.DepthCeiling {
		fault("maxDepth: %d is not between 1 and %d", cfg.MaxDepth, event.DepthCeiling)
	}
	if len(faults) > 0 {
		return nil, faults
	}
	prog, err := event.Compile(paths, event.Options{MaxDepth: cfg.MaxDepth})
	if err != nil {
		return nil, []error{err}
	}
	if k.changes && cfg.Changes.Format == FormatDebezium {
		if k.unwrap, err = newUnwrapper(cfg.MaxDepth); err != nil {
			return nil, []error{err}
		}
	}
	k.prog, k.paths = prog, len(paths)
	k.main = arrow.NewSchema(fields, nil)
	return k, nil
}

func compileColumn(c Column) (column, []error) {
	col := column{Column: c, path: -1}
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Name == "" {
		fault("the name is missing")
	}
	typ, decimal, err := parseType(c.Type)
	if err != nil {
		fault("type %q %w", c.Type, err)
	}
	col.typ, col.decimal, col.arrow = typ, decimal, typ.arrow(decimal)
	if format, known := timeFormats[strings.ToLower(c.TimeFormat)]; !known {
		fault("timeFormat %q is not one of rfc3339, epochSeconds, epochMillis", c.TimeFormat)
	} else if col.format = format; c.TimeFormat != "" && (typ != typeTime || c.Path == "") {
		fault("timeFormat is for a timestamptz with a path")
	}
	switch {
	case c.Path == "" && c.Source == "":
		fault("one of path and source is needed")
	case c.Path != "" && c.Source != "":
		fault("path and source exclude each other")
	case c.Path != "":
		if err := event.CheckPath(c.Path); err != nil {
			fault("%w", err)
		}
	default:
		src, known := sources[sourceKey(c.Source)]
		if !known {
			fault("source %q is not one of topic, topicId, partition, offset, timestamp, timestampType, key, value, ingestedAt, batchTime", c.Source)
			break
		}
		col.origin = src.origin
		allowed, fits := make([]string, len(src.types)), false
		for i, t := range src.types {
			allowed[i] = t.String()
			fits = fits || t == typ
		}
		if err == nil && !fits {
			fault("source %s has type %s, not %s", c.Source, strings.Join(allowed, " or "), c.Type)
		}
	}
	return col, errs
}

// compileTime checks watermark and dedup.
func (k *compiled) compileTime(cfg Config) []error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if w := cfg.Watermark; w != nil {
		i, ok := k.byName[w.Column]
		switch {
		case !ok:
			fault("watermark: there is no column %q", w.Column)
		case k.columns[i].typ != typeTime:
			fault("watermark: column %s is %s, an event time is timestamptz", w.Column, k.columns[i].typ)
		case !k.columns[i].Required:
			fault("watermark: column %s must be required: a row without event time can be neither late nor on time", w.Column)
		default:
			k.timeCol = i
		}
		if w.Delay < 0 || w.MaxFutureSkew < 0 {
			fault("watermark: delay and maxFutureSkew cannot be negative")
		}
		if w.IdleTimeout < 0 || w.IdleTimeout > 0 && !w.PerPartition {
			fault("watermark: idleTimeout is for perPartition, and cannot be negative")
		}
		k.perPartition, k.idleAfter = w.PerPartition, w.IdleTimeout.Microseconds()
		k.delay, k.skew = w.Delay.Microseconds(), w.MaxFutureSkew.Microseconds()
	} else if len(cfg.Dedup) > 0 {
		fault("dropDuplicatesWithinWatermark: a watermark is needed, or the keys would be remembered for ever")
	}
	seen := map[string]bool{}
	for _, name := range cfg.Dedup {
		i, ok := k.byName[name]
		switch {
		case !ok:
			fault("dropDuplicatesWithinWatermark: there is no column %q", name)
		case seen[name]:
			fault("dropDuplicatesWithinWatermark: column %s is named twice", name)
		case k.columns[i].typ.inexact():
			fault("dropDuplicatesWithinWatermark: column %s is %s, which has no exact equality", name, k.columns[i].typ)
		case k.columns[i].origin == fromBatchTime:
			fault("dropDuplicatesWithinWatermark: column %s is the batch's clock, no key of a row", name)
		case !k.columns[i].Required:
			fault("dropDuplicatesWithinWatermark: column %s must be required", name)
		default:
			k.keys = append(k.keys, i)
		}
		seen[name] = true
	}
	k.eventID = k.findEventID()
	return faults
}

// findEventID is the column whose text identifies a dead letter: the first key
// of dedup, else a column event_id.
func (k *compiled) findEventID() int {
	i, ok := k.byName["event_id"]
	if len(k.keys) > 0 {
		i, ok = k.keys[0], true
	}
	if ok && k.columns[i].typ == typeString && k.columns[i].origin == fromJSON {
		return i
	}
	return -1
}

func (k *compiled) compileFilter(text string) []error {
	used := map[int]bool{}
	if strings.TrimSpace(text) != "" {
		cond, names, err := parseFilter(text, k.columns)
		if err != nil {
			return []error{err}
		}
		k.filter = cond
		for _, i := range names {
			used[i] = true
		}
	}
	for i := range k.columns {
		if used[i] {
			k.first = append(k.first, i)
		} else {
			k.rest = append(k.rest, i)
		}
	}
	return nil
}
