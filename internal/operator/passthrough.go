package operator

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

// passthrough emits what it is given.
type passthrough struct {
	schema  *arrow.Schema
	timeCol int // the Kafka timestamp's column, -1 without one
	env     Env
	rows    int64
	sample  sample
}

// NewPassthrough is the chain of a raw table: every record is emitted as it
// is. Freshness is measured by the column "timestamp", where there is one.
func NewPassthrough(schema *arrow.Schema) Transform {
	p := &passthrough{schema: schema, timeCol: -1}
	for i, f := range schema.Fields() {
		if f.Name == "timestamp" && f.Type.ID() == arrow.TIMESTAMP {
			p.timeCol = i
		}
	}
	return p
}

// Outputs implements Transform.
func (p *passthrough) Outputs() map[string]*arrow.Schema {
	return map[string]*arrow.Schema{Main: p.schema}
}

// Fingerprint implements Transform.
func (p *passthrough) Fingerprint() string {
	return marker.Hash(fmt.Appendf(nil, "passthrough %d %s", codeVersion, p.schema))
}

// Begin implements Transform.
func (p *passthrough) Begin(env Env) error {
	p.env, p.rows = env, 0
	p.sample.reset(0, env.BatchID)
	return nil
}

// Process implements Transform.
func (p *passthrough) Process(rec arrow.RecordBatch, emit Emit) error {
	if got := int(rec.NumCols()); got != p.schema.NumFields() {
		rec.Release()
		return failure.New(failure.Runtime, "the transform was given a record of %d columns, its schema has %d", got, p.schema.NumFields())
	}
	if rec.NumRows() == 0 {
		rec.Release()
		return nil
	}
	p.rows += rec.NumRows()
	if p.timeCol >= 0 {
		if ts, ok := rec.Column(p.timeCol).(*array.Timestamp); ok {
			for i := range ts.Len() {
				if ts.IsValid(i) {
					p.sample.add(int64(ts.Value(i)))
				}
			}
		}
	}
	return emit(Main, rec)
}

// Finish implements Transform. The watermark is nothing that a raw table has.
func (p *passthrough) Finish(Emit) (Result, error) {
	return Result{
		Counters:    marker.Counters{Read: p.rows, Emitted: p.rows},
		Watermark:   p.env.Watermark,
		EventMicros: p.sample.values(),
	}, nil
}

// Rollback implements Transform.
func (p *passthrough) Rollback() { p.rows = 0 }

// State implements Transform.
func (p *passthrough) State() []Stateful { return nil }
