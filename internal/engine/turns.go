package engine

import (
	"context"
	"sync"
	"time"

	"github.com/weirlake/weir/internal/clock"
)

// turns says how far a query on an interval is with its triggers. The queries over
// the table that it writes begin theirs after it: otherwise a row waits for one
// trigger in each query of a chain, since the commit that brings it comes a moment
// after all of them have looked.
type turns struct {
	mu    sync.Mutex
	every time.Duration // 0: not on an interval, nobody waits
	done  time.Time     // the last trigger that was worked off
	idle  bool          // nothing is there to read, it waits for news
	moved chan struct{} // closed at the next change
}

// trigger is the time of the trigger that now falls under. Triggers lie at whole
// multiples of the interval by the clock, as Spark's, so that those of different
// queries and of a query before and after a restart fall together.
func trigger(now time.Time, every time.Duration) time.Time { return now.Truncate(every) }

func (t *turns) change(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
	if t.moved != nil {
		close(t.moved)
		t.moved = nil
	}
}

// finish records that the trigger of at is worked off.
func (t *turns) finish(at time.Time) { t.change(func() { t.done = at }) }

// pending reports whether the trigger of at is still to be worked off, and gives a
// channel that is closed when that may have changed.
func (t *turns) pending(at time.Time) (bool, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.every == 0 || t.idle || !t.done.Before(trigger(at, t.every)) {
		return false, nil
	}
	if t.moved == nil {
		t.moved = make(chan struct{})
	}
	return true, t.moved
}

// follow waits until the queries upstream have worked off the trigger of at, for
// most at the longest: where one of them hangs, what it has committed before is
// read all the same.
func follow(ctx context.Context, c clock.Clock, upstream []*Query, at time.Time, most time.Duration) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	bounded := false
	for i := 0; i < len(upstream); {
		pending, moved := upstream[i].turns.pending(at)
		if !pending {
			i++
			continue
		}
		if !bounded {
			bounded = true
			go func() {
				_ = c.Sleep(ctx, most)
				end()
			}()
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
	}
}
