package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirlake/weir/internal/clock"
)

// upstreamOn is a query on an interval that has worked off the trigger of at.
func upstreamOn(every time.Duration, at time.Time) *Query {
	q := &Query{}
	q.turns.change(func() { q.turns.every = every })
	q.turns.finish(at)
	return q
}

func TestATriggerComesAfterThatOfTheQueryUpstream(t *testing.T) {
	const every = 10 * time.Second
	for name, c := range map[string]struct {
		upstream time.Duration
		then     func(q *Query, at time.Time)
		after    time.Duration
	}{
		"its batch": {every, func(q *Query, at time.Time) { q.turns.finish(at) }, time.Second},
		"an earlier batch, then this one's": {every, func(q *Query, at time.Time) {
			q.turns.finish(at.Add(-every))
			time.Sleep(time.Second)
			q.turns.finish(at)
		}, 2 * time.Second},
		"it has nothing to read":       {every, func(q *Query, _ time.Time) { q.turns.change(func() { q.turns.idle = true }) }, time.Second},
		"it ends":                      {every, func(q *Query, _ time.Time) { q.turns.change(func() { q.turns.every = 0 }) }, time.Second},
		"it hangs":                     {every, func(*Query, time.Time) {}, every},
		"it has a trigger each minute": {time.Minute, func(*Query, time.Time) {}, 0},
		"it has no trigger":            {0, func(*Query, time.Time) {}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				at := time.Date(2026, 11, 30, 12, 0, 20, 0, time.UTC)
				q := upstreamOn(c.upstream, at.Add(-every))
				go func() {
					time.Sleep(time.Second)
					c.then(q, at)
				}()
				began := time.Now()
				follow(t.Context(), clock.System{}, []*Query{q}, at, every)
				if took := time.Since(began); took != c.after {
					t.Errorf("the trigger came after %v, want %v", took, c.after)
				}
				synctest.Wait()
				time.Sleep(time.Minute) // the other goroutine ends
			})
		})
	}
}
