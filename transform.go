package weir

import (
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/operator"
)

// Parse declares the columns of a query, and what happens to rows on the way.
type Parse struct {
	Columns []Column
	// Filter is a condition on the columns: "type IN ('edit', 'new') AND NOT bot".
	Filter string
	// Watermark bounds how late an event may be; nil for none.
	Watermark *Watermark
	// DropDuplicatesWithinWatermark names the required columns that identify an
	// event.
	DropDuplicatesWithinWatermark []string
}

// Column is one declared column: exactly one of Path and Source is set.
type Column struct {
	Name string
	// Path is a JSON path into the record's value: $.meta.id.
	Path string
	// Source is a property of the record or the batch: topic, topicId, partition,
	// offset, timestamp, timestampType, key, value, ingestedAt, batchTime.
	Source string
	// Type is string, int, long, float, double, decimal(P,S), boolean, date, timestamp,
	// timestamptz, binary or json.
	Type string
	// Required sends a row without the value to the dead letters.
	Required bool
	// TimeFormat of a timestamptz with a path: rfc3339 (where empty),
	// epochSeconds or epochMillis.
	TimeFormat string
}

// Watermark is the greatest event time seen so far, less a delay.
type Watermark struct {
	// Column is a required timestamptz.
	Column string
	Delay  time.Duration
	// MaxFutureSkew sends events further ahead than this to the dead letters; 1
	// hour where 0.
	MaxFutureSkew time.Duration
}

// Transform is a function over the rows. It must give the same rows for the same
// rows, whenever it is called, and never more than it was given.
type Transform struct {
	// Version names the function's behaviour. Change it with the code: a batch
	// that was begun by another version is told apart by it.
	Version string
	// Schema is the shape of the rows that Apply gives; nil for that of its input.
	Schema *arrow.Schema
	// Apply gives the rows that go on. It keeps rec, which is released after it.
	Apply func(rec arrow.RecordBatch) (arrow.RecordBatch, error)
}

// defaultFutureSkew is the pipeline file's.
const defaultFutureSkew = time.Hour

// transformFaults are what is wrong with Transform.
func (q *Query) transformFaults() (out []string) {
	t := q.transform
	if t == nil {
		return nil
	}
	if t.Apply == nil || t.Version == "" {
		out = append(out, "Transform needs Apply and a Version")
	}
	if q.parse == nil || t.Schema == nil {
		return out
	}
	need := append([]string{}, q.parse.DropDuplicatesWithinWatermark...)
	if w := q.parse.Watermark; w != nil && len(need) > 0 {
		need = append(need, w.Column)
	}
	for _, c := range need {
		if !t.Schema.HasField(c) {
			out = append(out, fmt.Sprintf("Transform drops column %q, from which what DropDuplicatesWithinWatermark remembers is rebuilt", c))
		}
	}
	return out
}

// operators makes the chain.
func (q *Query) operators(in *arrow.Schema) (operator.Transform, error) {
	chain := operator.NewPassthrough(in)
	if p := q.parse; p != nil {
		cfg := operator.Config{Filter: p.Filter, Dedup: p.DropDuplicatesWithinWatermark, DeadLetter: q.dead != nil}
		for _, c := range p.Columns {
			cfg.Columns = append(cfg.Columns, operator.Column(c))
		}
		cfg.Changes = q.changes()
		if w := p.Watermark; w != nil {
			cfg.Watermark = &operator.Watermark{Column: w.Column, Delay: w.Delay, MaxFutureSkew: w.MaxFutureSkew}
			if w.MaxFutureSkew == 0 {
				cfg.Watermark.MaxFutureSkew = defaultFutureSkew
			}
		}
		var err error
		if chain, err = operator.New(cfg); err != nil {
			return nil, fmt.Errorf("query %s: %w", q.name, err)
		}
	}
	if q.transform == nil {
		return chain, nil
	}
	return &applied{Transform: chain, query: q.name, user: *q.transform}, nil
}

// applied is a chain with the user's function behind its main output.
type applied struct {
	operator.Transform
	query   string
	user    Transform
	dropped int64
}

func (a *applied) schema() *arrow.Schema {
	if a.user.Schema != nil {
		return a.user.Schema
	}
	return a.Transform.Outputs()[operator.Main]
}

// Outputs implements operator.Transform.
func (a *applied) Outputs() map[string]*arrow.Schema {
	out := map[string]*arrow.Schema{}
	for name, s := range a.Transform.Outputs() {
		out[name] = s
	}
	out[operator.Main] = a.schema()
	return out
}

// Fingerprint implements operator.Transform.
func (a *applied) Fingerprint() string {
	return marker.Hash(fmt.Appendf(nil, "%s\x00%s\x00%s", a.Transform.Fingerprint(), a.user.Version, a.schema()))
}

// Begin implements operator.Transform.
func (a *applied) Begin(env operator.Env) error {
	a.dropped = 0
	return a.Transform.Begin(env)
}

// Process implements operator.Transform.
func (a *applied) Process(rec arrow.RecordBatch, emit operator.Emit) error {
	return a.Transform.Process(rec, a.through(emit))
}

// Finish implements operator.Transform: rows that the function left out count as
// filtered.
func (a *applied) Finish(emit operator.Emit) (operator.Result, error) {
	r, err := a.Transform.Finish(a.through(emit))
	r.Counters.Emitted -= a.dropped
	r.Counters.Filtered += a.dropped
	return r, err
}

func (a *applied) through(emit operator.Emit) operator.Emit {
	return func(output string, rec arrow.RecordBatch) error {
		if output != operator.Main {
			return emit(output, rec)
		}
		defer rec.Release()
		out, err := a.call(rec)
		if err != nil {
			return err
		}
		more := out.NumRows() - rec.NumRows()
		switch {
		case !out.Schema().Equal(a.schema()):
			out.Release()
			return failure.New(failure.SchemaConflict, "query %s: Transform gave rows of another shape than its Schema: %s", a.query, out.Schema())
		case more > 0:
			out.Release()
			return failure.New(failure.Runtime, "query %s: Transform made %d rows of %d; it may leave rows out, not add some", a.query, out.NumRows(), rec.NumRows())
		case out.NumRows() == 0:
			out.Release()
			a.dropped -= more
			return nil
		}
		a.dropped -= more
		return emit(output, out)
	}
}

// call calls the function; a panic is an error.
func (a *applied) call(rec arrow.RecordBatch) (out arrow.RecordBatch, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = failure.New(failure.Runtime, "query %s: Transform panicked: %v", a.query, p)
		}
	}()
	out, err = a.user.Apply(rec)
	if err == nil && out == nil {
		err = failure.New(failure.Runtime, "query %s: Transform gave no rows and no error", a.query)
	}
	if err == nil && out == rec {
		rec.Retain()
	}
	return out, err
}
