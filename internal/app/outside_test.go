package app

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/source"
)

// away is a sink whose store fails its first look, each time anew.
type away struct {
	sink.Sink
	errs  []error
	calls int
}

func (*away) Name() string { return "away" }

func (s *away) Facts(context.Context, string) (sink.Facts, error) {
	err := s.errs[min(s.calls, len(s.errs)-1)]
	s.calls++
	return sink.Facts{}, err
}

type noSource struct{ source.Source }

// leap is a clock in which a pause takes no time.
type leap struct {
	now    time.Time
	paused []time.Duration
}

func (c *leap) Now() time.Time { return c.now }

func (c *leap) Sleep(ctx context.Context, d time.Duration) error {
	c.now, c.paused = c.now.Add(d), append(c.paused, d)
	return ctx.Err()
}

func TestAQueryWhoseStoreIsAwayStartsAgainAndOneThatCannotWorkStopsThePipeline(t *testing.T) {
	gone := failure.New(failure.Unreachable, "the store is away")
	unknown := failure.New(failure.CommitUnknown, "no answer")
	config := failure.New(failure.Config, "no such database")
	run := func(outside bool, drained chan struct{}, errs ...error) (s *away, c *leap, alerts []string, held *heldErrors, err error) {
		c, s, held = &leap{now: time.Unix(0, 0)}, &away{errs: errs}, &heldErrors{}
		q := pipeline.Query{Name: "q"}
		if outside {
			q.To.Postgres = &pipeline.PostgresSink{}
		}
		a := &App{P: &pipeline.Pipeline{Queries: []pipeline.Query{q}}, opts: Options{Clock: c, OnAlert: func(_, text string) { alerts = append(alerts, text) }}}
		a.fillOptions()
		err = a.runQuery(context.Background(), &node{query: &engine.Query{
			Name: "q", Source: noSource{}, Transform: operator.NewPassthrough(batch.KafkaSchema), Clock: c,
			Outputs: []engine.Output{{Name: operator.Main, Sink: s}}, Checkpoint: objstore.NewMemory(c),
		}}, drained, held)
		return s, c, alerts, held, err
	}
	open := make(chan struct{})
	s, c, alerts, held, err := run(true, open, gone, gone, unknown, config)
	if !errors.Is(err, config) || s.calls != 4 || len(c.paused) != 3 || c.paused[2] != 4*againMin || len(alerts) != 3 || held.first != nil {
		t.Fatalf("%v after %d starts, pauses %v, alerts %q", err, s.calls, c.paused, alerts)
	}
	if !strings.Contains(alerts[0], "the store is away") {
		t.Fatalf("alert %q", alerts[0])
	}
	if s, _, _, _, err = run(false, open, gone, config); !errors.Is(err, gone) || s.calls != 1 {
		t.Fatalf("a query over a table of the lakehouse: %v after %d starts", err, s.calls)
	}
	// A run that ends by itself waits for nothing, and stops nobody.
	done := make(chan struct{})
	close(done)
	for _, e := range []error{gone, config} {
		if s, _, _, held, err = run(true, done, e); err != nil || !errors.Is(held.first, e) || s.calls != 1 {
			t.Fatalf("%v: %v, held %v, %d starts", e, err, held.first, s.calls)
		}
	}
}
