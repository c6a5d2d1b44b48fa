package bench

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/weirlake/weir/internal/audit"
)

// killWithin is how long after a commit the process is killed at most: about
// one batch, so that the kills fall on every step of it.
const killWithin = 400 * time.Millisecond

// recovery kills the process in the middle of a backlog, starts it again at
// once, and measures from the kill to the first commit that is new to another
// reader.
func (b *bench) recovery(ctx context.Context) ([]Result, error) {
	b.say("recovery: %d kills in a backlog of %d events", b.o.Kills, b.o.Rows)
	topic, err := b.topic(ctx, Recovery)
	if err != nil {
		return nil, err
	}
	defer b.dropTopic(ctx, topic)
	if err := b.preload(ctx, topic, None, b.o.Rows); err != nil {
		return nil, err
	}
	return b.each(ctx, Recovery, func(run int) ([]Result, error) {
		k := kills{topic: topic, rows: b.o.Rows, rng: rand.New(rand.NewPCG(b.o.Seed, uint64(run)))}
		for tries := 0; len(k.took[0]) < b.o.Kills; tries++ {
			if tries > 3*b.o.Kills {
				return nil, errBacklogGone
			}
			s := b.setup(topic, true)
			err := b.killAndRecover(ctx, s, &k, [2]int64{1, 1})
			b.discard(s)
			if err != nil {
				return nil, err
			}
		}
		return timings(Recovery, k.took, k.peak), nil
	})
}

// kills are the times of one measurement.
type kills struct {
	topic string
	rows  int64
	rng   *rand.Rand
	took  [2][]float64
	peak  float64
}

// killAndRecover kills one pipeline, from when its tables have reached first on,
// until its backlog runs out.
func (b *bench) killAndRecover(ctx context.Context, s setup, k *kills, first [2]int64) error {
	file, err := s.write()
	if err != nil {
		return err
	}
	c, err := b.start(Recovery, "run", file, "--output", "json")
	if err != nil {
		return err
	}
	defer func() { c.abandon() }()
	if _, err := b.bothSee(ctx, s, c, first); err != nil {
		return err
	}
	for len(k.took[0]) < b.o.Kills {
		if err := b.o.Clock.Sleep(ctx, time.Duration(k.rng.Int64N(int64(killWithin)))); err != nil {
			return err
		}
		from := b.o.Clock.Now()
		if err := c.kill9(); err != nil {
			return err
		}
		k.peak = max(k.peak, c.peakMB())
		var want [2]int64
		for i, table := range []string{bronzeTable, silverTable} {
			h, err := audit.Glance(ctx, s.catalog(), nil, table)
			if err != nil {
				return err
			}
			ends, err := h.Offsets(k.topic)
			if err != nil {
				return err
			}
			want[i] = sighting{ends: ends}.total() + 1
		}
		if want[0] > k.rows-b.o.MaxOffsets {
			return nil // too little left for a batch of the usual size
		}
		if c, err = b.start(Recovery, "run", file, "--output", "json"); err != nil {
			return err
		}
		at, err := b.bothSee(ctx, s, c, want)
		if err != nil {
			return err
		}
		for i := range at {
			k.took[i] = append(k.took[i], at[i].Sub(from).Seconds())
		}
	}
	return nil
}

// sortResults orders by name.
func sortResults(rs []Result) {
	slices.SortStableFunc(rs, func(a, b Result) int { return strings.Compare(a.Name, b.Name) })
}
