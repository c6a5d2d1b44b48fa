package engine_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/engine"
)

func TestAvailableNowEndsAlthoughDataKeepsComing(t *testing.T) {
	w := newWorld(t, 30)
	w.limit = 20
	w.must(func(_ *engine.Query, s *fakeSource) {
		s.onRead = func() { w.kafka.produce(0, 15) } // faster than it is read
	})
	if got := w.main.marker(queryName).Position.Kafka.Topics[fakeTopic].Partitions; got[0].NextOffset < 30 || got[1].NextOffset < 30 {
		t.Fatalf("what was there at the start was not read: %v", got)
	}
	w.must()
	w.exactRaw()
}

func TestOnceTakesWhatIsThereInOneBatch(t *testing.T) {
	w := newWorld(t, 30)
	w.limit = 20
	w.must(func(q *engine.Query, s *fakeSource) {
		q.Options.Trigger = engine.Trigger{Once: true}
		s.onRead = func() { w.kafka.produce(0, 15) }
	})
	w.completeLog(0)
	if c := w.counters(); c.Read != 60 {
		t.Fatalf("%+v", c)
	}
	w.must()
	w.exactRaw()
}

func TestADrainedQueryWorksOffWhatIsThereAndEnds(t *testing.T) {
	for _, every := range []time.Duration{0, time.Minute} {
		w := newWorld(t, 30)
		w.limit = 20
		drain := make(chan struct{})
		batches := 0
		w.must(func(q *engine.Query, _ *fakeSource) {
			q.Options.Trigger = engine.Trigger{ProcessingTime: every}
			q.Drain = drain
			q.OnProgress = func(engine.Progress) {
				if batches++; batches == 2 {
					w.kafka.produce(1, 70)
					close(drain)
				}
			}
		})
		w.exactRaw()
	}
}

func TestAnIdleQueryWritesNothingAndStopsCleanly(t *testing.T) {
	w := newWorld(t, 30)
	ctx, stop := context.WithCancel(t.Context())
	plans := 0
	err := w.runCtx(ctx, func(q *engine.Query, s *fakeSource) {
		q.Options.Trigger = engine.Trigger{ProcessingTime: time.Second}
		s.onPlan = func() {
			if plans++; plans == 4 {
				stop()
			}
		}
		q.Source = restless{s}
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(w.main.log); n != 2 { // claim and batch 0
		t.Fatalf("an idle query wrote: %v", w.main.log)
	}
	w.completeLog(0)
}

// restless is a source that always says that something may be new.
type restless struct{ *fakeSource }

func (restless) Wait(ctx context.Context, _ batch.Position) error { return ctx.Err() }

func TestABatchThatOverrunsIsFollowedAtOnceAndMissedTriggersAreNotMadeUpFor(t *testing.T) {
	w := newWorld(t, 10)
	var starts []time.Time
	ctx, stop := context.WithCancel(t.Context())
	err := w.runCtx(ctx, func(q *engine.Query, s *fakeSource) {
		q.Options.Trigger = engine.Trigger{ProcessingTime: 10 * time.Second}
		s.onPlan = func() { starts = append(starts, w.clock.Now()) }
		s.onRead = func() {
			w.kafka.produce(0, 1)
			if len(starts) == 2 {
				w.clock.set(func(t time.Time) time.Time { return t.Add(34 * time.Second) }) // overruns three triggers
			}
			if len(starts) == 5 {
				stop()
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	var at []time.Duration
	grid := starts[1].Truncate(10 * time.Second)
	for _, s := range starts[1:] {
		at = append(at, s.Sub(grid).Round(time.Second))
	}
	if want := []time.Duration{0, 34 * time.Second, 40 * time.Second, 50 * time.Second}; !slices.Equal(at, want) {
		t.Fatalf("triggers at %v, want %v", at, want)
	}
}

func TestAnIdleQueryTakesNewsAtOnceButOnceATrigger(t *testing.T) {
	w := newWorld(t, 10)
	var starts []time.Time
	ctx, stop := context.WithCancel(t.Context())
	news := func(after time.Duration) {
		w.clock.set(func(t time.Time) time.Time { return t.Add(after) })
		w.kafka.produce(0, 1)
	}
	err := w.runCtx(ctx, func(q *engine.Query, s *fakeSource) {
		q.Options.Trigger = engine.Trigger{ProcessingTime: 10 * time.Second}
		q.OnIdle = func() { news(3 * time.Second) }
		s.onRead = func() {
			if starts = append(starts, w.clock.Now()); len(starts) == 4 {
				stop()
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	grid := starts[1].Truncate(10 * time.Second)
	for i, s := range starts[1:] {
		if at := s.Sub(grid).Round(time.Second); at != time.Duration(i)*10*time.Second+3*time.Second {
			t.Fatalf("batch %d began %v after the first trigger", i+1, at)
		}
	}
}

func TestAQueryThatIsDescribedWronglyIsRefusedWithEveryFault(t *testing.T) {
	err := (&engine.Query{Options: engine.Options{Trigger: engine.Trigger{Once: true, AvailableNow: true}}}).Run(t.Context())
	for _, want := range []string{"name", "source", "main sink", "once"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("%q is missing in %v", want, err)
		}
	}
}
