package engine_test

import (
	"testing"

	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/operator"
)

// witness keeps what it is told.
type witness struct{ started, ended []engine.BatchRun }

func (w *witness) BatchStarted(b engine.BatchRun) { w.started = append(w.started, b) }
func (w *witness) BatchEnded(b engine.BatchRun)   { w.ended = append(w.ended, b) }

func stepNames(b engine.BatchRun) (out []string) {
	for _, s := range b.Steps {
		out = append(out, s.Name)
	}
	return out
}

func TestObserversAreToldOfEveryBatchWithItsStepsAndOutputs(t *testing.T) {
	w := newWorld(t, 25)
	seen := &witness{}
	w.must(func(q *engine.Query, _ *fakeSource) {
		q.Observers, q.Options.MaxOffsetsPerTrigger = []engine.Observer{seen}, 10
	})
	if len(seen.started) != len(seen.ended) || len(seen.ended) != len(w.commits()) || len(seen.ended) < 3 {
		t.Fatalf("%d started, %d ended, %d commits", len(seen.started), len(seen.ended), len(w.commits()))
	}
	var rows int64
	for i, b := range seen.ended {
		if s := seen.started[i]; s.BatchID != b.BatchID || s.Epoch != b.Epoch || s.QueryID != b.QueryID || s.Steps != nil {
			t.Errorf("started %+v, ended %+v", s, b)
		}
		if b.BatchID != int64(i) || b.Err != nil || b.Rerun || b.From.Offsets(b.To) != b.Counters.Read || b.Attempt == "" {
			t.Errorf("batch %d: %+v", i, b)
		}
		if got := stepNames(b); len(got) != 6 || got[0] != "plan" || got[1] != "read" || got[2] != "transform" || got[3] != "stage" || got[4] != "commit" || got[5] != "done" {
			t.Errorf("steps %v", got)
		}
		for _, s := range b.Steps {
			if s.End.Before(s.Start) || s.Start.Before(b.Started) || s.End.After(b.Ended) || s.Failed {
				t.Errorf("step %+v of %s to %s", s, b.Started, b.Ended)
			}
		}
		if len(b.Outputs) != 1 || b.Outputs[0].Output != operator.Main || b.Outputs[0].Rows != b.Counters.Emitted {
			t.Errorf("outputs %+v", b.Outputs)
		}
		rows += b.Counters.Emitted
	}
	if want := w.counters().Emitted; rows != want || rows == 0 {
		t.Errorf("%d rows, the table has %d", rows, want)
	}
}

func TestObserversAreToldWhichStepFailed(t *testing.T) {
	w := newWorld(t, 25)
	seen := &witness{}
	err := w.run(func(q *engine.Query, _ *fakeSource) {
		q.Observers = []engine.Observer{seen}
		q.Transform = broken{Transform: q.Transform}
	})
	wantClass(t, err, failure.Runtime)
	if len(seen.ended) != 1 || seen.ended[0].Err == nil || seen.ended[0].Stopped || len(seen.ended[0].Outputs) != 0 {
		t.Fatalf("%+v", seen.ended)
	}
	last := seen.ended[0].Steps[len(seen.ended[0].Steps)-1]
	if !last.Failed || last.Name != "stage" {
		t.Errorf("%+v", last)
	}
}
