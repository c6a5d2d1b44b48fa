package operator

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/event"
	"github.com/weirlake/weir/internal/failure"
)

// Functions of an aggregate.
const (
	Count               = "count"
	Sum                 = "sum"
	Avg                 = "avg"
	Min                 = "min"
	Max                 = "max"
	First               = "first"
	Last                = "last"
	CollectSet          = "collectSet"
	ApproxCountDistinct = "approxCountDistinct"
)

// Bounds of an aggregation.
const (
	// MaxStages bounds the aggregations of one query.
	MaxStages = 4
	// MaxAggregates bounds the columns of one aggregation.
	MaxAggregates = 100
	// MaxWindowsPerRow bounds duration / slide.
	MaxWindowsPerRow = 1_000
	// DistinctExact is how many distinct values are counted exactly; beyond it
	// the count is an estimate, with a standard error of about 3 %.
	DistinctExact = 1024
	// CollectDefault and CollectMax bound the values that collectSet keeps.
	CollectDefault = 100
	CollectMax     = 10_000
)

// Aggregation is one stage: rows are grouped by keys and by a window of event
// time, and a group is emitted, once, when the watermark has passed its end.
type Aggregation struct {
	// Session and Window exclude each other.
	Session *SessionWindow
	Window  *TimeWindow
	Keys    []string
	Columns []Aggregate
}

// SessionWindow groups rows of a key whose event times follow each other within
// Gap: a session is [first event, last event + Gap], and an event at its very
// end still belongs to it, as with Spark's session_window.
type SessionWindow struct{ Gap time.Duration }

// TimeWindow groups rows by [start, start + Duration), with starts at the
// multiples of Slide since 1970 UTC, as Spark's window does. Slide 0 is
// Duration: windows that do not overlap.
type TimeWindow struct{ Duration, Slide time.Duration }

// Aggregate is one column of the result. Nulls are ignored by every function;
// count without a column counts rows.
//
// No result depends on the order in which rows came: first and last are by
// event time, the smaller (greater) value where times are equal; collectSet
// keeps the smallest distinct values; sums are exact, and null beyond 64 bits, or
// beyond the digits of a sum of decimals.
type Aggregate struct {
	Name, Function, Column string
	// Limit is how many values collectSet keeps; 0 is CollectDefault.
	Limit int
}

// Names of the columns that say when a group was.
func (a Aggregation) bounds() (start, end string) {
	if a.Session != nil {
		return "session_start", "session_end"
	}
	return "window_start", "window_end"
}

func (a Aggregation) kind() string {
	if a.Session != nil {
		return "session"
	}
	return "window"
}

// aggregate is a compiled Aggregation.
type aggregate struct {
	Aggregation
	name     string
	in       *arrow.Schema
	timeCol  int
	keys     []int
	specs    []accSpec
	out      *arrow.Schema
	gap      int64 // of a session
	duration int64 // of a window
	slide    int64
	// shift is how much earlier than the time column's value a row is: a stage
	// over an emitted group takes it at the last microsecond before its end, as
	// Spark's window_time does.
	shift int64
}

// accSpec is a compiled Aggregate.
type accSpec struct {
	Aggregate
	col   int // -1 for count of rows
	typ   valueType
	limit int
	sum   event.DecimalType // of a sum of decimals
}

// compileAggregation checks a stage against the rows that it gets.
func compileAggregation(i int, a Aggregation, in *arrow.Schema, timeColumn string) (*aggregate, []error) {
	g := &aggregate{Aggregation: a, in: in, timeCol: -1, name: fmt.Sprintf("%s-%d", a.kind(), i+1)}
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("aggregate %d: %s", i+1, fmt.Sprintf(format, args...)))
	}
	if at := in.FieldIndices(timeColumn); len(at) != 1 || in.Field(at[0]).Type.ID() != arrow.TIMESTAMP {
		fault("the event time %q is no timestamptz column", timeColumn)
	} else {
		g.timeCol = at[0]
	}
	for _, f := range g.compileWindow() {
		fault("%s", f)
	}
	taken := map[string]bool{}
	var fields []arrow.Field
	add := func(name string, t arrow.DataType, nullable bool) {
		if folded := strings.ToLower(name); taken[folded] {
			fault("the result has two columns %q", name)
		} else {
			taken[folded] = true
		}
		fields = append(fields, arrow.Field{Name: name, Type: t, Nullable: nullable})
	}
	for _, k := range a.Keys {
		at := in.FieldIndices(k)
		if len(at) != 1 {
			fault("key: there is no column %q", k)
			continue
		}
		f := in.Field(at[0])
		if t, ok := valueTypeOf(f.Type); !ok || t.inexact() {
			fault("key: column %q is %s, which has no exact equality", k, f.Type)
		}
		g.keys = append(g.keys, at[0])
		add(k, f.Type, f.Nullable)
	}
	start, end := a.bounds()
	add(start, batch.Timestamp, false)
	add(end, batch.Timestamp, false)
	if len(a.Columns) > MaxAggregates {
		fault("%d columns, at most %d are supported", len(a.Columns), MaxAggregates)
	}
	for _, c := range a.Columns {
		spec, t, nullable, err := compileAggregate(c, in)
		if err != nil {
			fault("column %q: %v", c.Name, err)
			continue
		}
		g.specs = append(g.specs, spec)
		add(c.Name, t, nullable)
	}
	g.out = arrow.NewSchema(fields, nil)
	return g, faults
}

func (g *aggregate) compileWindow() (faults []string) {
	switch {
	case (g.Session == nil) == (g.Window == nil):
		return []string{"one of session and window is needed"}
	case g.Session != nil:
		if g.gap = g.Session.Gap.Microseconds(); g.gap < 1 {
			faults = append(faults, "the gap of a session has to be positive")
		}
	default:
		g.duration, g.slide = g.Window.Duration.Microseconds(), g.Window.Slide.Microseconds()
		if g.slide == 0 {
			g.slide = g.duration
		}
		switch {
		case g.duration < 1 || g.slide < 1:
			faults = append(faults, "duration and slide of a window have to be positive")
		case g.slide > g.duration:
			faults = append(faults, "slide is longer than duration: rows between two windows would be in none")
		case g.duration/g.slide > MaxWindowsPerRow:
			faults = append(faults, fmt.Sprintf("a row would be in %d windows, at most %d are supported", g.duration/g.slide, MaxWindowsPerRow))
		}
	}
	return faults
}

func compileAggregate(c Aggregate, in *arrow.Schema) (accSpec, arrow.DataType, bool, error) {
	s := accSpec{Aggregate: c, col: -1}
	fail := func(format string, args ...any) (accSpec, arrow.DataType, bool, error) {
		return s, nil, false, fmt.Errorf(format, args...)
	}
	if c.Name == "" {
		return fail("the name is missing")
	}
	if c.Column == "" {
		if c.Function != Count {
			return fail("%s needs a column", c.Function)
		}
		return s, arrow.PrimitiveTypes.Int64, false, nil
	}
	at := in.FieldIndices(c.Column)
	if len(at) != 1 {
		return fail("there is no column %q", c.Column)
	}
	f := in.Field(at[0])
	t, ok := valueTypeOf(f.Type)
	if !ok {
		return fail("%s of %q, which is %s", c.Function, c.Column, f.Type)
	}
	s.col, s.typ = at[0], t
	if s.limit = c.Limit; s.limit == 0 {
		s.limit = CollectDefault
	}
	if c.Limit != 0 && c.Function != CollectSet {
		return fail("limit is for collectSet")
	}
	switch c.Function {
	case Count, ApproxCountDistinct:
		return s, arrow.PrimitiveTypes.Int64, false, nil
	case Sum, Avg:
		if d, ok := f.Type.(*arrow.Decimal128Type); ok && c.Function == Sum {
			s.sum = event.DecimalType{Precision: int(d.Precision), Scale: int(d.Scale)}.Sum()
			return s, typeDecimal.arrow(s.sum), true, nil
		}
		if t != valInt && t != valLong {
			return fail("%s of %q, which is %s: only int, long and the sum of decimals come to the same whatever the order of rows", c.Function, c.Column, f.Type)
		}
		if c.Function == Avg {
			return s, arrow.PrimitiveTypes.Float64, true, nil
		}
		return s, arrow.PrimitiveTypes.Int64, true, nil
	case Min, Max, First, Last:
		return s, f.Type, true, nil
	case CollectSet:
		if t != valString {
			return fail("collectSet is for strings, %q is %s", c.Column, f.Type)
		}
		if s.limit < 1 || s.limit > CollectMax {
			return fail("limit %d is not between 1 and %d", s.limit, CollectMax)
		}
		return s, arrow.ListOfField(arrow.Field{Name: "element", Type: arrow.BinaryTypes.String}), false, nil
	}
	return fail("function %q is not one of %s", c.Function, strings.Join(Functions(), ", "))
}

// Functions lists the names of the functions.
func Functions() []string {
	return []string{Count, Sum, Avg, Min, Max, First, Last, CollectSet, ApproxCountDistinct}
}

// compileStages checks the stages. in is what the first one gets.
func compileStages(in *arrow.Schema, timeColumn string, stages []Aggregation) ([]*aggregate, error) {
	if len(stages) == 0 || len(stages) > MaxStages {
		return nil, failure.New(failure.Config, "aggregate: %d stages are not between 1 and %d", len(stages), MaxStages)
	}
	var out []*aggregate
	var faults []error
	for i, a := range stages {
		g, errs := compileAggregation(i, a, in, timeColumn)
		faults = append(faults, errs...)
		if len(errs) > 0 {
			break // what a later stage gets is not known
		}
		g.shift = min(int64(i), 1)
		out = append(out, g)
		in = g.out
		_, timeColumn = a.bounds()
	}
	if len(faults) > 0 {
		return nil, failure.Wrap(failure.Config, errors.Join(faults...), "the query's aggregation is not usable")
	}
	return out, nil
}

// layout names what the bytes of a group's state mean: another layout cannot
// read them. The window is not part of it.
func (g *aggregate) layout() string {
	type col struct{ Name, Type, Function string }
	var cols []col
	for _, k := range g.keys {
		cols = append(cols, col{Name: g.in.Field(k).Name, Type: g.in.Field(k).Type.String()})
	}
	for _, s := range g.specs {
		c := col{Name: s.Name, Function: s.Function}
		if s.col >= 0 {
			c.Type = g.in.Field(s.col).Name + " " + g.in.Field(s.col).Type.String()
		}
		cols = append(cols, c)
	}
	b, err := json.Marshal(struct {
		Kind string
		Cols []col
	}{g.kind(), cols})
	if err != nil {
		panic(err) // strings only
	}
	return string(b)
}

// micros of a duration as people write it.
func durationText(micros int64) string {
	d := (time.Duration(micros) * time.Microsecond).String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(d, zero) {
			d = strings.TrimSuffix(d, zero[1:])
		}
	}
	return d
}

// definition is the readable form of the stage.
func (g *aggregate) definition() Definition {
	d := Definition{Name: g.name, Kind: g.kind(), TimeColumn: g.in.Field(g.timeCol).Name, Settings: map[string]string{}}
	if g.Session != nil {
		d.Settings["gap"] = durationText(g.gap)
	} else {
		d.Settings["duration"], d.Settings["slide"] = durationText(g.duration), durationText(g.slide)
	}
	for _, k := range g.keys {
		d.Keys = append(d.Keys, g.in.Field(k).Name+" "+typeText(g.in.Field(k).Type))
	}
	for _, s := range g.specs {
		text := s.Name + " = " + s.Function + "()"
		if s.col >= 0 {
			text = fmt.Sprintf("%s = %s(%s %s)", s.Name, s.Function, s.Column, typeText(g.in.Field(s.col).Type))
		}
		if s.Function == CollectSet {
			text += fmt.Sprintf(" limit %d", s.limit)
		}
		d.Aggregates = append(d.Aggregates, text)
	}
	return d
}

func typeText(t arrow.DataType) string {
	if v, ok := valueTypeOf(t); ok {
		return v.String()
	}
	return t.String()
}

// windows calls f with the start of each window that holds the time.
func (g *aggregate) windows(at int64, f func(start int64)) {
	start := at / g.slide * g.slide
	if start > at { // division rounds towards zero
		start -= g.slide
	}
	for ; start > at-g.duration; start -= g.slide {
		f(start)
	}
}

// end is the exclusive end of a group's window of time, last its last event.
func (g *aggregate) end(start, last int64) int64 {
	if g.Session != nil {
		return last + g.gap
	}
	return start + g.duration
}

// due is the watermark at which a group is complete. No event before the
// watermark comes any more, one at the watermark may: it would still belong to a
// session that ends there, and not to a window.
func (g *aggregate) due(start, last int64) int64 {
	if g.Session != nil {
		return last + g.gap + 1
	}
	return start + g.duration
}

// outWatermark is what the stage's input watermark means for what it emits: no
// group that is still to come ends so early that its event time, a microsecond
// before its end, is before it.
func (g *aggregate) outWatermark(w int64) int64 {
	if g.Session != nil {
		return w - 1
	}
	return w
}
