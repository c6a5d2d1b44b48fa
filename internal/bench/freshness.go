package bench

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/replay"
)

const (
	// warmUp is how much of the stream's beginning is not counted.
	warmUp = 2 * time.Second
	// playAhead is how long before the first event the stream is set up.
	playAhead = 300 * time.Millisecond
)

// live is a stream that is played while two queries read it.
type live struct {
	// name is that of the measurement, its results are named below it.
	name    string
	rate    int // events a second
	seconds int
	trigger time.Duration
}

// Of the stream that is read at the trigger of the reference pipeline: a row waits
// for the next trigger, and bronze's and silver's must not add up to two of them.
const (
	slowTrigger = 10 * time.Second
	slowRate    = 1000
	// slowLeast is the shortest of them: a trigger that is not full is not counted.
	slowLeast = 25
)

// freshness measures how long rows take until another process can read them,
// at each rate, and at one rate with a slow trigger.
func (b *bench) freshness(ctx context.Context) ([]Result, error) {
	var all []live
	for _, rate := range b.o.Rates {
		all = append(all, live{fmt.Sprintf("freshness/%d", rate), rate, b.o.Seconds, b.o.Trigger})
	}
	all = append(all, live{freshnessSlow, slowRate, max(b.o.Seconds, slowLeast), slowTrigger})
	var out []Result
	for _, l := range all {
		b.say("freshness: %d events/s for %d s, trigger %s", l.rate, l.seconds, l.trigger)
		got, err := b.each(ctx, l.name, func(int) ([]Result, error) { return b.fresh(ctx, l) })
		if err != nil {
			return nil, err
		}
		out = append(out, got...)
	}
	return out, nil
}

// freshnessSlow names the measurement at the slow trigger.
const freshnessSlow = "freshness-10s"

func (b *bench) fresh(ctx context.Context, l live) ([]Result, error) {
	topic, err := b.topic(ctx, Freshness)
	if err != nil {
		return nil, err
	}
	defer b.dropTopic(ctx, topic)
	s := b.setup(topic, true)
	s.Trigger = l.trigger
	defer b.discard(s)
	file, err := s.write()
	if err != nil {
		return nil, err
	}
	c, err := b.start(l.name, "run", file, "--output", "json")
	if err != nil {
		return nil, err
	}
	defer c.abandon()
	for _, table := range []string{bronzeTable, silverTable} {
		if _, err := b.until(ctx, s, c, table, "the claim of "+table, func(at sighting) bool { return len(at.ends) > 0 }); err != nil {
			return nil, err
		}
	}
	m := b.meter()
	start := b.o.Clock.Now().Add(playAhead)
	f, err := b.newFeed(topic, None, true, replay.GeneratorConfig{Start: start, Rate: float64(l.rate), Backward: -1})
	if err != nil {
		return nil, err
	}
	defer f.client.Close()
	seen, err := b.playAndWatch(ctx, s, c, f, l)
	if err != nil {
		return nil, err
	}
	if err := c.stop(ctx); err != nil {
		return nil, err
	}
	_, others := m.read(c.userAndSys)
	events := int64(l.rate) * int64(l.seconds)
	counted := start.Add(warmUp).UnixMilli()
	var out []Result
	for i, name := range []string{Bronze, Silver} {
		var appends, times []float64
		for p := range f.sent {
			a, t := latencies(f.sent[p], f.base[p], seen[i], int32(p), counted)
			appends, times = append(appends, a...), append(times, t...)
		}
		for from, values := range map[string][]float64{"append": appends, "event": times} {
			r := Result{Name: l.name + "/" + name + "/" + from, Rows: int64(len(values)), PeakRSSMB: round(c.peakMB()),
				CPU: round(c.userAndSys.Seconds() / float64(events) * 1e6), Others: others, Commits: len(seen[i]) - 1, Seconds: float64(l.seconds)}
			r.P50, r.P95, r.P99 = quantiles(values)
			out = append(out, r)
		}
	}
	sortResults(out)
	return out, nil
}

// playAndWatch plays the stream while two readers look at the tables, until
// everything is visible in both.
func (b *bench) playAndWatch(ctx context.Context, s setup, c *child, f *feed, l live) ([2][]sighting, error) {
	total := int64(l.rate) * int64(l.seconds)
	var seen [2][]sighting
	g, gctx := errgroup.WithContext(ctx)
	for i, table := range []string{bronzeTable, silverTable} {
		g.Go(func() error {
			_, err := b.until(gctx, s, c, table, fmt.Sprintf("all %d events in %s", total, table), func(at sighting) bool {
				seen[i] = append(seen[i], at)
				return at.total() >= total
			})
			return err
		})
	}
	g.Go(func() error { return f.play(gctx, b, l.rate, l.seconds) })
	return seen, g.Wait()
}

// latencies are the seconds from each record's append, and from its event's
// time, to the first sighting of the table with the record in it. Records
// before counted are left out.
func latencies(sent []stamp, base int64, seen []sighting, partition int32, counted int64) (appends, events []float64) {
	next := int64(0)
	for _, s := range seen {
		at := s.at.UnixMicro()
		for end := s.ends[partition] - base; next < min(end, int64(len(sent))); next++ {
			r := sent[next]
			if r.append < counted {
				continue
			}
			appends = append(appends, float64(at-r.append*1000)/1e6)
			events = append(events, float64(at-r.event*1000)/1e6)
		}
	}
	return appends, events
}

// startup measures from the start of the process to the first visible commit,
// on tables that exist, with some rows waiting.
func (b *bench) startup(ctx context.Context) ([]Result, error) {
	b.say("startup: %d starts with %d events waiting", b.o.Kills, startupRows)
	return b.each(ctx, Startup, func(int) ([]Result, error) {
		topic, err := b.topic(ctx, Startup)
		if err != nil {
			return nil, err
		}
		defer b.dropTopic(ctx, topic)
		s := b.setup(topic, true)
		s.Trigger = b.o.Trigger
		defer b.discard(s)
		return b.starts(ctx, s)
	})
}

// startupRows is how many rows wait at a start.
const startupRows = 1000

func (b *bench) starts(ctx context.Context, s setup) ([]Result, error) {
	file, err := s.write()
	if err != nil {
		return nil, err
	}
	f, err := b.newFeed(s.Topic, None, false, replay.GeneratorConfig{})
	if err != nil {
		return nil, err
	}
	defer f.client.Close()
	var took [2][]float64
	peak := 0.0
	for i := range int64(b.o.Kills) + 1 {
		for n := range int64(startupRows) {
			f.produce(ctx, i*startupRows+n)
		}
		if err := f.flush(ctx); err != nil {
			return nil, err
		}
		c, err := b.start(Startup, "run", file, "--output", "json")
		if err != nil {
			return nil, err
		}
		at, err := b.bothSee(ctx, s, c, [2]int64{(i + 1) * startupRows, (i + 1) * startupRows})
		if err != nil {
			c.abandon()
			return nil, err
		}
		if err := c.stop(ctx); err != nil {
			return nil, err
		}
		if i == 0 {
			continue // made the tables
		}
		for t := range took {
			took[t] = append(took[t], at[t].Sub(c.startedAt).Seconds())
		}
		peak = max(peak, c.peakMB())
	}
	return timings(Startup, took, peak), nil
}

// bothSee waits until bronze and silver reach so many offsets.
func (b *bench) bothSee(ctx context.Context, s setup, c *child, want [2]int64) ([2]time.Time, error) {
	var at [2]time.Time
	g, gctx := errgroup.WithContext(ctx)
	for i, table := range []string{bronzeTable, silverTable} {
		g.Go(func() error {
			seen, err := b.until(gctx, s, c, table, fmt.Sprintf("offset %d in %s", want[i], table), func(x sighting) bool {
				return x.total() >= want[i]
			})
			at[i] = seen.at
			return err
		})
	}
	return at, g.Wait()
}

// timings are the results of starts or kills.
func timings(name string, took [2][]float64, peak float64) []Result {
	var out []Result
	for i, table := range []string{Bronze, Silver} {
		r := Result{Name: name + "/" + table, PeakRSSMB: round(peak), Commits: len(took[i])}
		r.P50, r.P95, r.P99 = quantiles(took[i])
		out = append(out, r)
	}
	return out
}

var errBacklogGone = failure.New(failure.Inconclusive, "the backlog was worked off before the kill").
	WithHint("give more --rows, so that a kill lands in the middle")
