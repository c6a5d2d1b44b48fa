package engine_test

import (
	"context"
	"slices"
	"testing"

	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/sink"
)

// tended is a sink that is looked after.
type tended struct {
	sink.Sink
	care func()
}

func (t tended) Maintain(context.Context) error     { t.care(); return nil }
func (t tended) Settle(context.Context, bool) error { return nil }

// tend notes at which batch the main table is looked after.
func (w *world) tend(at *[]int64) setup {
	return func(q *engine.Query, _ *fakeSource) {
		for i := range q.Outputs {
			if q.Outputs[i].Name == operator.Main {
				q.Outputs[i].Sink = tended{q.Outputs[i].Sink, func() { *at = append(*at, w.main.marker(queryName).BatchID+1) }}
			}
		}
	}
}

// batches lets n batches of one record run.
func (w *world) batches(n int64, mods ...setup) {
	w.t.Helper()
	w.kafka.produce(0, n)
	w.must(mods...)
}

func TestTableCareIsDueByTheBatchesSinceTheLastWhicheverProcessItWas(t *testing.T) {
	w := newWorld(t, 0)
	w.limit = 1
	var at []int64
	for range 12 { // lives of nine batches: none comes to fifty by itself
		w.batches(9, w.tend(&at))
	}
	if want := []int64{50, 100}; !slices.Equal(at, want) {
		t.Errorf("looked after before batches %v, want %v", at, want)
	}
}

func TestTableCareThatAKillCutShortIsDueAgainSoon(t *testing.T) {
	w := newWorld(t, 0)
	w.limit = 1
	w.batches(49)
	var at []int64
	w.kafka.produce(0, 20)
	// The record of its beginning is there, that of its end is not.
	w.killedAt("checkpoint rename ~temp care", 2, w.tend(&at))
	w.must(w.tend(&at))
	if want := []int64{50, 55}; !slices.Equal(at, want) {
		t.Errorf("looked after before batches %v, want %v", at, want)
	}
	w.exactRaw()
}

func TestTableCareIsNotForgottenWhereTheLastBatchBeforeItIsDoneAgain(t *testing.T) {
	w := newWorld(t, 0)
	w.limit = 1
	w.batches(49)
	var at []int64
	w.kafka.produce(0, 3)
	w.killedAt("lake.main commit 49", 1, w.tend(&at)) // the batch that a start takes up
	w.must(w.tend(&at))
	if want := []int64{51}; !slices.Equal(at, want) {
		t.Errorf("looked after before batches %v, want %v", at, want)
	}
}
