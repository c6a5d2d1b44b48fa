package pipeline

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirlake/weir/internal/event"
)

// Aggregation is one stage of Query.Aggregate: rows are grouped by keys and by a
// window of event time, and a group is put out, once, when the watermark has
// passed its end.
type Aggregation struct {
	// Session and Window exclude each other.
	Session *SessionWindow `yaml:"session"`
	Window  *TimeWindow    `yaml:"window"`
	Keys    []string       `yaml:"keys" weir:"min=1"`
	Columns []Aggregate    `yaml:"columns" weir:"required,min=1"`
}

// SessionWindow is a run of rows of a key that follow each other within the gap.
type SessionWindow struct {
	Gap time.Duration `yaml:"gap" weir:"required,min=1ms"`
}

// TimeWindow is a stretch of time of a fixed length.
type TimeWindow struct {
	Duration time.Duration `yaml:"duration" weir:"required,min=1ms"`
	// Slide is the distance between two starts; 0 is Duration.
	Slide time.Duration `yaml:"slide" weir:"min=0s"`
}

// Aggregate is one column that is computed of a group.
type Aggregate struct {
	Name     string `yaml:"name" weir:"required,column"`
	Function string `yaml:"function" weir:"required,enum=count|sum|avg|min|max|first|last|collectSet|approxCountDistinct"`
	Column   string `yaml:"column"`
	// Limit is how many values collectSet keeps; 0 is its default.
	Limit int `yaml:"limit" weir:"min=0,max=10000"`
	// RenamedFrom is the name that the table's column had before.
	RenamedFrom string `yaml:"renamedFrom" weir:"column"`
}

func init() {
	for k, v := range map[string]string{
		"Query.aggregate": "Group the rows by windows of event time, one stage after the other; a group is put out once, when the watermark has passed its end. Needs `watermark`. See [sessions and windows](aggregate.md).",

		"Aggregation.session": "A session: rows of the same keys, each within the gap of the one before. Exactly one of this and `window`. Adds the columns `session_start` and `session_end`.",
		"Aggregation.window":  "Windows of a fixed length. Adds the columns `window_start` and `window_end`.",
		"Aggregation.keys":    "Columns to group by. Null is a value of its own. Default: one group for all rows of a window.",
		"Aggregation.columns": "What to compute of each group.",

		"SessionWindow.gap": "A row further than this behind the last one begins another session. The session ends this long after its last row.",

		"TimeWindow.duration": "Length of a window.",
		"TimeWindow.slide":    "Distance between the starts of two windows, at most the duration. Default: the duration, so that windows do not overlap.",

		"Aggregate.name":     "Name of the column.",
		"Aggregate.function": "What to compute. Nulls are left out; `count` without a column counts rows. `first` and `last` are by event time; `sum` takes int, long and decimals, of which it makes `decimal(P+10,S)` (at most 38 digits; null beyond), `avg` int and long; `approxCountDistinct` is exact up to 1,023 values.",
		"Aggregate.column":   "Column to compute it of.",
		"Aggregate.limit":    "`collectSet`: how many values to keep, the smallest ones. Default: 100.",
	} {
		descriptions[k] = v
	}
}

// bounds are the names of the columns that say when a group was.
func (a Aggregation) bounds() (start, end string) {
	if a.Window != nil {
		return "window_start", "window_end"
	}
	return "session_start", "session_end"
}

// TypeList is the type of collectSet's column.
const TypeList = "list"

// results are the columns that the stage puts out, of those that it gets.
func (a Aggregation) results(in []Column) []Column {
	var out []Column
	for _, k := range a.Keys {
		if c, ok := columnOf(in, k); ok {
			out = append(out, Column{Name: c.Name, Type: c.Type, Required: c.Required})
		}
	}
	start, end := a.bounds()
	out = append(out, Column{Name: start, Type: TypeTimestamptz, Required: true}, Column{Name: end, Type: TypeTimestamptz, Required: true})
	for _, c := range a.Columns {
		r := Column{Name: c.Name, Type: TypeLong, RenamedFrom: c.RenamedFrom}
		switch of, _ := columnOf(in, c.Column); c.Function {
		case "count", "approxCountDistinct":
			r.Required = true
		case "sum":
			if d, err := event.ParseDecimalType(of.Type); err == nil {
				r.Type = d.Sum().String()
			}
		case "avg":
			r.Type = TypeDouble
		case "min", "max", "first", "last":
			r.Type = of.Type
		case "collectSet":
			r.Type, r.Required = TypeList, true
		}
		out = append(out, r)
	}
	return out
}

func columnOf(in []Column, name string) (Column, bool) {
	i := slices.IndexFunc(in, func(c Column) bool { return c.Name == name })
	if i < 0 {
		return Column{}, false
	}
	return in[i], true
}

// Input are the columns that watermark, filter and aggregate speak of: those
// that parse declares, else those of the table that is read.
func (q Query) Input() []Column {
	switch {
	case q.Parse != nil:
		return q.Parse.Columns
	case q.inherited != nil:
		return q.inherited
	}
	return kafkaColumns
}

// Columns are the columns that the query writes, by name and type.
func (q Query) Columns() []Column {
	out := q.Input()
	for _, a := range q.Aggregate {
		out = a.results(out)
	}
	return out
}

// Typed reports whether the query reads the typed columns of a table that
// another query of the pipeline writes.
func (q Query) Typed() bool { return q.inherited != nil }

// Place are the input's columns that say where in Kafka a row came from; topic
// is empty where no column does.
func (q Query) Place() (topic, partition, offset string) { return placeColumns(q.Input()) }

func placeColumns(in []Column) (topic, partition, offset string) {
	for _, c := range in {
		for source, to := range map[string]*string{SourceTopic: &topic, SourcePartition: &partition, SourceOffset: &offset} {
			if c.Source == source && *to == "" {
				*to = c.Name
			}
		}
	}
	return topic, partition, offset
}

// EventTime is the column of the input that the watermark is drawn from.
func (q Query) EventTime() string {
	if q.Watermark == nil {
		return ""
	}
	return q.Watermark.Column
}

// inherit gives each query that reads a table of typed columns those columns,
// upstream first.
func inherit(p *Pipeline) {
	for range p.Queries {
		for i := range p.Queries {
			q := &p.Queries[i]
			if q.Parse != nil || q.From.Table == nil || q.inherited != nil {
				continue
			}
			for _, j := range p.producers(q.From.Table.Name) {
				up := p.Queries[j]
				if j != i && (up.Parse != nil || up.inherited != nil) {
					q.inherited = up.Columns()
					break
				}
			}
		}
	}
}

// checkTyped says what a query over typed columns cannot have.
func (l *loader) checkTyped(q *Query, key string) {
	if _, partition, offset := q.Place(); partition == "" || offset == "" {
		l.faultKey(key+".from.table.name", "table %q: its rows do not say where in Kafka they came from, so there is no position to read from; "+
			"declare columns with source: partition and source: offset in the query that writes it (aggregated rows have no place)", q.From.Table.Name)
	}
	for name, given := range map[string]bool{"filter": q.Filter != "", "dropDuplicatesWithinWatermark": len(q.DropDuplicatesWithinWatermark) > 0} {
		if given {
			l.faultKey(key+"."+name, "%s: the table's columns are typed already; do it in the query that parses", name)
		}
	}
	if _, given := l.places[key+".watermark.maxFutureSkew"]; given {
		l.faultKey(key+".watermark.maxFutureSkew", "maxFutureSkew: the query that parses has drawn the watermark; set it there")
	}
}

// checkAggregate checks the stages against the rows that each gets.
func (l *loader) checkAggregate(q *Query, key string) {
	if len(q.Aggregate) == 0 {
		return
	}
	switch {
	case q.Parse == nil && !q.Typed():
		if !l.isBroken(key + ".parse") {
			l.faultKey(key+".aggregate", "aggregate works on declared columns: add parse, or read a table that another query has parsed")
		}
		return
	case q.Watermark == nil && !l.isBroken(key+".watermark"):
		l.faultKey(key+".aggregate", "aggregate without watermark would never put anything out; add watermark")
	}
	if len(q.Aggregate) > 4 {
		l.faultKey(key+".aggregate", "aggregate has %d stages; at most 4 are supported", len(q.Aggregate))
	}
	if k := q.From.Kafka; k != nil && len(k.Partitions) > 0 {
		l.faultKey(key+".from.kafka.partitions", "partitions with aggregate: rows of one group can lie in the partitions of several instances; run the query over all partitions")
	}
	in := q.Input()
	for i, a := range q.Aggregate {
		at := fmt.Sprintf("%s.aggregate[%d]", key, i)
		if l.isBroken(key + ".parse") {
			return
		}
		l.checkStage(a, in, at)
		in = a.results(in)
	}
}

func (l *loader) checkStage(a Aggregation, in []Column, at string) {
	switch {
	case l.isBroken(at + ".session"), l.isBroken(at + ".window"):
	case a.Session == nil && a.Window == nil:
		l.faultKey(at, "aggregate needs session or window")
	case a.Session != nil && a.Window != nil:
		l.faultKey(at+".window", "aggregate has both session and window; keep one, or make two stages")
	case a.Window != nil && a.Window.Slide > a.Window.Duration:
		l.faultKey(at+".window.slide", "slide %s is longer than duration %s: rows between two windows would be in none", a.Window.Slide, a.Window.Duration)
	case a.Window != nil && a.Window.Slide > 0 && a.Window.Duration/a.Window.Slide > 1000:
		l.faultKey(at+".window.slide", "each row would be in %d windows; at most 1000 are supported", a.Window.Duration/a.Window.Slide)
	}
	for i, k := range a.Keys {
		c, ok := columnOf(in, k)
		key := at + ".keys"
		if _, own := l.places[fmt.Sprintf("%s[%d]", key, i)]; own {
			key = fmt.Sprintf("%s[%d]", key, i)
		}
		switch {
		case k == "":
		case !ok:
			l.unknownIn(in, key, "keys", k)
		case c.Type == TypeFloat || c.Type == TypeDouble || c.Type == TypeList:
			l.faultKey(key, "keys: %q is a %s, which has no exact equality", k, c.Type)
		}
	}
	taken := map[string]bool{}
	for _, c := range (Aggregation{Keys: a.Keys, Session: a.Session, Window: a.Window}).results(in) {
		taken[strings.ToLower(c.Name)] = true
	}
	for i, c := range a.Columns {
		key := fmt.Sprintf("%s.columns[%d]", at, i)
		if folded := strings.ToLower(c.Name); c.Name != "" {
			if taken[folded] {
				l.faultKey(key+".name", "the result has two columns %q", c.Name)
			}
			taken[folded] = true
		}
		l.checkAggregateColumn(c, in, key)
	}
}

func (l *loader) checkAggregateColumn(c Aggregate, in []Column, key string) {
	of, ok := columnOf(in, c.Column)
	switch {
	case l.isBroken(key + ".function"), l.isBroken(key + ".column"):
	case c.Column == "" && c.Function != "count":
		l.faultKey(key, "%s needs a column", c.Function)
	case c.Column != "" && !ok:
		l.unknownIn(in, key+".column", c.Function, c.Column)
	case c.Column != "" && of.Type == TypeList:
		l.faultKey(key+".column", "%s of %q, which is a list", c.Function, c.Column)
	case c.Function == "sum" && IsDecimal(of.Type):
	case (c.Function == "sum" || c.Function == "avg") && of.Type != TypeInt && of.Type != TypeLong:
		hint := "only int, long and the sum of decimals come to the same whatever the order of rows"
		if IsDecimal(of.Type) {
			hint = "an average of decimals would be rounded; take sum and count"
		}
		l.faultKey(key+".column", "%s of %q, which is a %s: %s", c.Function, c.Column, of.Type, hint)
	case c.Function == "collectSet" && of.Type != TypeString && of.Type != TypeJSON:
		l.faultKey(key+".column", "collectSet is for strings, %q is a %s", c.Column, of.Type)
	case c.Limit > 0 && c.Function != "collectSet":
		l.faultKey(key+".limit", "limit is for collectSet")
	}
}

// unknownIn reports a name that is not among columns.
func (l *loader) unknownIn(in []Column, at, what, name string) {
	msg := fmt.Sprintf("%s: no column %q", what, clip(name))
	var names []string
	for _, c := range in {
		names = append(names, c.Name)
	}
	if s := suggest(name, names); s != "" {
		msg += fmt.Sprintf("; did you mean %q?", s)
	}
	l.faultKey(at, "%s", msg)
}
