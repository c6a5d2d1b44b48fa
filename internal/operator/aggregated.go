package operator

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

// aggregated is a chain with aggregations behind it. The rows that the chain
// emits go into the first stage, and what a stage emits into the next.
//
// A group is emitted in the batch whose end the watermark passes it with: the
// plan says which rows the batch has and how far the watermark is after them,
// so no further batch without rows is needed, and a batch that is run again
// emits the same groups.
//
// No stage drops what another one emits as late. A batch has one watermark when
// it begins, w, and one when it ends, w'. The chain drops rows before w. Each
// stage takes in what the one before it emits, and then closes what w' passes;
// what it emits itself ended after w, or it would have been closed before, so
// the next stage, whose watermark was w until now, gets it in time.
type aggregated struct {
	inner   Transform
	stages  []*groups
	print   string
	outputs map[string]*arrow.Schema
	env     Env
	sample  sample
	seed    uint64
}

// NewAggregated puts aggregations behind a chain. timeColumn is the event time
// of the rows that the chain emits.
func NewAggregated(inner Transform, timeColumn string, stages []Aggregation) (Transform, error) {
	compiled, err := compileStages(inner.Outputs()[Main], timeColumn, stages)
	if err != nil {
		return nil, err
	}
	t := &aggregated{inner: inner, outputs: maps.Clone(inner.Outputs())}
	for _, g := range compiled {
		t.stages = append(t.stages, newGroups(g))
	}
	t.outputs[Main] = compiled[len(compiled)-1].out
	b, err := json.Marshal(struct {
		Code   int
		Inner  string
		Stages []Aggregation
	}{codeVersion, inner.Fingerprint(), stages})
	if err != nil {
		return nil, fmt.Errorf("fingerprint of the aggregation: %w", err)
	}
	t.print = marker.Hash(b)
	return t, nil
}

// Outputs implements Transform.
func (t *aggregated) Outputs() map[string]*arrow.Schema { return maps.Clone(t.outputs) }

// Fingerprint implements Transform.
func (t *aggregated) Fingerprint() string { return t.print }

// State implements Transform.
func (t *aggregated) State() []Stateful {
	out := t.inner.State()
	for _, s := range t.stages {
		out = append(out, s)
	}
	return out
}

// Definitions implements Definer.
func (t *aggregated) Definitions() []Definition {
	var out []Definition
	if d, ok := t.inner.(Definer); ok {
		out = d.Definitions()
	}
	for _, s := range t.stages {
		out = append(out, s.g.definition())
	}
	return out
}

// Begin implements Transform.
func (t *aggregated) Begin(env Env) error {
	t.env = env
	t.sample.reset(t.seed, env.BatchID)
	for _, s := range t.stages {
		if err := s.begin(); err != nil {
			return err
		}
	}
	return t.inner.Begin(env)
}

// Rollback implements Transform.
func (t *aggregated) Rollback() {
	t.inner.Rollback()
	for _, s := range t.stages {
		s.rollback()
	}
}

// into is the emit of the chain: rows go into the first stage.
func (t *aggregated) into(emit Emit) Emit {
	return func(output string, rec arrow.RecordBatch) error {
		if output != Main {
			return emit(output, rec)
		}
		defer rec.Release()
		return t.stages[0].add(rec)
	}
}

// Process implements Transform.
func (t *aggregated) Process(rec arrow.RecordBatch, emit Emit) error {
	return t.inner.Process(rec, t.into(emit))
}

// Finish implements Transform.
func (t *aggregated) Finish(emit Emit) (Result, error) {
	res, err := t.inner.Finish(t.into(emit))
	if err != nil {
		return res, err
	}
	rows, err := t.close(res.Watermark.Micros, func(rec arrow.RecordBatch) error { return emit(Main, rec) })
	if err != nil {
		return res, err
	}
	c := &res.Counters
	c.Aggregated, c.Emitted, c.Results = c.Emitted, rows, rows
	if !c.Balanced() {
		return res, failure.New(failure.Runtime, "batch %d: the counts of the aggregation do not add up: %+v", t.env.BatchID, *c)
	}
	res.EventMicros = t.sample.values()
	return res, nil
}

// close passes the watermark through the stages. It returns how many groups
// the last one emitted.
func (t *aggregated) close(w int64, emit func(arrow.RecordBatch) error) (rows int64, err error) {
	for i, s := range t.stages {
		list, err := s.close(w)
		if err != nil {
			return rows, err
		}
		last := i == len(t.stages)-1
		err = s.records(memory.DefaultAllocator, list, func(rec arrow.RecordBatch) error {
			if !last {
				defer rec.Release()
				return t.stages[i+1].add(rec)
			}
			return emit(rec)
		})
		if err != nil {
			return rows, err
		}
		if last {
			rows = int64(len(list))
			for j := range list {
				t.sample.add(s.g.end(list[j].start, list[j].last))
			}
		}
		w = s.g.outWatermark(w)
	}
	return rows, nil
}

// Releases implements Releaser.
func (t *aggregated) Releases(w int64) bool {
	for _, s := range t.stages {
		if s.dueAt(w) {
			return true
		}
		w = s.g.outWatermark(w)
	}
	return false
}

// NextWatermark implements InheritsWatermark.
func (t *aggregated) NextWatermark(w marker.Watermark, upstream *int64) marker.Watermark {
	if in, ok := t.inner.(InheritsWatermark); ok {
		return in.NextWatermark(w, upstream)
	}
	return w
}

// CanRebuild implements InputRebuilder.
func (t *aggregated) CanRebuild() bool {
	_, typed := t.inner.(*tableRows)
	return typed
}

// RebuildInput implements InputRebuilder.
func (t *aggregated) RebuildInput() (columns []string, timeColumn string) {
	g := t.stages[0]
	return g.RebuildColumns(), g.g.in.Field(g.g.timeCol).Name
}

// RebuildBegin implements InputRebuilder. With several stages everything is
// read: what an open group of a later one consists of is not told by time.
func (t *aggregated) RebuildBegin(w marker.Watermark, from *int64) int64 {
	for _, s := range t.stages {
		s.Reset()
	}
	switch {
	case from != nil:
		return *from
	case len(t.stages) > 1:
		return marker.MinTime
	}
	return t.stages[0].RebuildFrom(w)
}

// RebuildAdd implements InputRebuilder.
func (t *aggregated) RebuildAdd(rec arrow.RecordBatch) error {
	defer rec.Release()
	return t.stages[0].Rebuild(rec)
}

// RebuildEnd implements InputRebuilder.
func (t *aggregated) RebuildEnd(w marker.Watermark, from int64) (further int64, again bool, err error) {
	if further, again = t.stages[0].RebuildFurther(from, w); again {
		return further, true, nil
	}
	t.sample.reset(t.seed, 0)
	_, err = t.close(w.Micros, func(rec arrow.RecordBatch) error {
		rec.Release()
		return nil
	})
	for _, s := range t.stages {
		err = errors.Join(err, s.settleUnnamed())
	}
	return from, false, err
}
