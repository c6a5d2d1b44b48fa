package operator

import (
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

// TableRows describes the rows of a table with typed columns, as another query
// of ours has written it.
type TableRows struct {
	Schema *arrow.Schema
	// TimeColumn is the event time, empty for none.
	TimeColumn string
	// Delay is how far the watermark stays behind the one of the table.
	Delay time.Duration
	// Seed of the event time sample. It changes no row.
	Seed uint64
}

// tableRows passes typed rows on. Its watermark is not made of the event times
// that it sees: the query that writes the table has drawn it, every row that is
// still to come is at or after it, and so no row is late here that was on time
// there.
type tableRows struct {
	cfg      TableRows
	timeCol  int
	env      Env
	counters marker.Counters
	sample   sample
}

// NewTableRows checks the configuration and makes the chain.
func NewTableRows(cfg TableRows) (Transform, error) {
	t := &tableRows{cfg: cfg, timeCol: -1}
	if cfg.TimeColumn == "" {
		return t, nil
	}
	at := cfg.Schema.FieldIndices(cfg.TimeColumn)
	if len(at) != 1 || !arrow.TypeEqual(cfg.Schema.Field(at[0]).Type, batch.Timestamp) {
		return nil, failure.New(failure.Config, "watermark: the table has no timestamptz column %q", cfg.TimeColumn)
	}
	if cfg.Delay < 0 {
		return nil, failure.New(failure.Config, "watermark: delay cannot be negative")
	}
	t.timeCol = at[0]
	return t, nil
}

// Outputs implements Transform.
func (t *tableRows) Outputs() map[string]*arrow.Schema {
	return map[string]*arrow.Schema{Main: t.cfg.Schema}
}

// Fingerprint implements Transform.
func (t *tableRows) Fingerprint() string {
	return marker.Hash(fmt.Appendf(nil, "tableRows %d %s %q %d", codeVersion, t.cfg.Schema, t.cfg.TimeColumn, t.cfg.Delay))
}

// State implements Transform.
func (t *tableRows) State() []Stateful { return nil }

// Begin implements Transform.
func (t *tableRows) Begin(env Env) error {
	t.env, t.counters = env, marker.Counters{}
	t.sample.reset(t.cfg.Seed, env.BatchID)
	return nil
}

// Rollback implements Transform.
func (t *tableRows) Rollback() { t.counters = marker.Counters{} }

// Process implements Transform.
func (t *tableRows) Process(rec arrow.RecordBatch, emit Emit) error {
	if got := int(rec.NumCols()); got != t.cfg.Schema.NumFields() {
		rec.Release()
		return failure.New(failure.Runtime, "the transform was given a record of %d columns, its schema has %d", got, t.cfg.Schema.NumFields())
	}
	rows := int(rec.NumRows())
	t.counters.Read += int64(rows)
	if rows == 0 || t.timeCol < 0 {
		t.counters.Emitted += int64(rows)
		return emit(Main, rec)
	}
	times, ok := rec.Column(t.timeCol).(*array.Timestamp)
	if !ok || times.NullN() > 0 {
		rec.Release()
		return failure.New(failure.SchemaConflict, "column %s holds a null: a row without event time is neither late nor on time", t.cfg.TimeColumn)
	}
	// from is the first row of a run that is not late.
	from, lateRows := 0, int64(0)
	for i, at := range times.TimestampValues() {
		if int64(at) >= t.env.Watermark.Micros {
			t.sample.add(int64(at))
			continue
		}
		lateRows++
		if err := t.emitRun(rec, from, i, emit); err != nil {
			rec.Release()
			return err
		}
		from = i + 1
	}
	t.counters.Late += lateRows
	if lateRows == 0 {
		t.counters.Emitted += int64(rows)
		return emit(Main, rec)
	}
	defer rec.Release()
	return t.emitRun(rec, from, rows, emit)
}

func (t *tableRows) emitRun(rec arrow.RecordBatch, from, to int, emit Emit) error {
	if from == to {
		return nil
	}
	t.counters.Emitted += int64(to - from)
	return emit(Main, rec.NewSlice(int64(from), int64(to)))
}

// Finish implements Transform.
func (t *tableRows) Finish(Emit) (Result, error) {
	return Result{Counters: t.counters, Watermark: t.NextWatermark(t.env.Watermark, t.env.Upstream), EventMicros: t.sample.values()}, nil
}

// NextWatermark implements InheritsWatermark.
func (t *tableRows) NextWatermark(w marker.Watermark, upstream *int64) marker.Watermark {
	if upstream != nil {
		w.Micros = max(w.Micros, *upstream-t.cfg.Delay.Microseconds())
	}
	return w
}
