package engine_test

import (
	"context"
	"testing"

	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/sink"
)

// watched is a sink after whose facts were read something happens.
type watched struct {
	sink.Sink
	reads *int
	then  func()
}

func (s watched) Facts(ctx context.Context, query string) (sink.Facts, error) {
	f, err := s.Sink.Facts(ctx, query)
	*s.reads++
	s.then()
	return f, err
}

// watchSide runs then after each read of the side sink's marker, which comes
// before the main sink's.
func watchSide(reads *int, then func()) setup {
	return func(q *engine.Query, _ *fakeSource) {
		for i := range q.Outputs {
			if q.Outputs[i].Name == operator.DeadLetter {
				q.Outputs[i].Sink = watched{q.Outputs[i].Sink, reads, then}
			}
		}
	}
}

// A start that is held up between the sinks' markers sees the side sink as it
// was and the main sink as another instance has left it: that is no loss.
func TestMarkersThatAnotherInstanceMovesMeanwhileAreLookedAtAgain(t *testing.T) {
	w := newWorld(t, 20).withDeadLetters()
	w.must()
	w.kafka.produce(0, 20)
	reads := 0
	w.must(watchSide(&reads, func() {
		if reads == 1 {
			w.must()
		}
	}))
	if reads < 2 {
		t.Fatalf("the markers were read %d times", reads)
	}
	if got := w.main.marker(queryName).BatchID; got != 1 {
		t.Errorf("the query is at batch %d", got)
	}
}

func TestMarkersThatContradictEachOtherAndStayStopAStart(t *testing.T) {
	w := newWorld(t, 20).withDeadLetters()
	w.must()
	before := copyOf(w.side.marker(queryName))
	w.kafka.produce(0, 20)
	w.must()
	w.side.markers[queryName] = before // somebody has put an old table back
	reads := 0
	wantClass(t, w.run(watchSide(&reads, func() {})), failure.Checkpoint)
	if reads != 2 {
		t.Errorf("the markers were read %d times before the query was given up, want 2", reads)
	}
}
