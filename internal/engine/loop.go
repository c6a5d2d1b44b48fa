package engine

import (
	"context"
	"errors"
	"time"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/checkpoint"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/sink"
)

// Run starts the query and runs batches until its trigger is done or ctx ends.
// A stop through ctx is clean: it returns nil. Every other end is a classified
// error.
func (q *Query) Run(ctx context.Context) error {
	if err := q.Validate(); err != nil {
		return err
	}
	q.defaults()
	unlock, err := q.lock()
	if err != nil {
		return err
	}
	defer unlock()
	defer q.release()
	r, pending, err := q.start(ctx)
	if err != nil {
		return stopped(ctx, err)
	}
	caring, end := context.WithCancel(ctx)
	defer end()
	r.caring = caring
	if err = r.loop(ctx, pending); err != nil {
		end() // what table care has begun comes to nothing
	}
	r.settleCare(true) // nothing goes on when Run has returned
	return stopped(ctx, err)
}

// release lets go of the folder of the operators' state, for whoever runs the query
// next.
func (q *Query) release() {
	if err := operator.Release(q.Transform); err != nil {
		q.Logger.Warn("the folder of the state was not closed cleanly", "query", q.Name, "error", err)
	}
}

// stopped turns the error of a stop that was asked for into a clean end.
func stopped(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && (errors.Is(err, context.Canceled) || failure.Is(err, failure.Unreachable)) {
		return nil
	}
	return err
}

// loop plans batches as the trigger says. pending, if any, is finished first.
func (r *run) loop(ctx context.Context, pending *checkpoint.Plan) error {
	if pending != nil {
		if _, err := r.runBatch(ctx, pending); err != nil {
			return err
		}
	}
	switch t := r.q.Options.Trigger; {
	case t.Once, t.AvailableNow:
		return r.untilCaughtUp(ctx)
	default:
		return r.onInterval(ctx, t.ProcessingTime)
	}
}

// untilCaughtUp reads what is there now and stops. What arrives meanwhile may
// ride along in a batch; it never makes the run longer by itself.
func (r *run) untilCaughtUp(ctx context.Context) error {
	planned, err := r.q.Source.Plan(ctx, r.pos, 0)
	if err != nil {
		return err
	}
	target := planned.Latest
	for r.limit != nil || !covers(r.pos, target) || r.releases(planned.End) {
		did, err := r.runBatch(ctx, nil)
		if err != nil {
			return err
		}
		if !did {
			return nil
		}
		if err := r.care(ctx); err != nil {
			return err
		}
	}
	return nil
}

// covers reports whether pos has reached target in every partition.
func covers(pos, target batch.Position) bool {
	return pos.Offsets(target) == 0
}

// onInterval runs a batch at most once a trigger and waits for news in between:
// a trigger that found nothing is made use of when something comes. A batch that
// takes longer than the interval is followed by the next at once; the triggers that
// it missed are not made up for, as in Spark. When the query is told to drain, it
// works off what is there and ends.
func (r *run) onInterval(ctx context.Context, every time.Duration) error {
	idle, wake := context.WithCancel(ctx)
	defer wake()
	if r.q.Drain != nil {
		go func() {
			select {
			case <-r.q.Drain:
				wake()
			case <-idle.Done():
			}
		}()
	}
	turns := &r.q.turns
	turns.change(func() { turns.every = every })
	defer turns.change(func() { turns.every = 0 })
	for at, waited := trigger(r.q.Clock.Now(), every), false; ; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if idle.Err() != nil {
			return r.untilCaughtUp(ctx)
		}
		did, err := r.runBatch(ctx, nil)
		if err != nil {
			return err
		}
		turns.finish(at)
		if did {
			if err := r.care(ctx); err != nil {
				return err
			}
		} else if err := r.await(idle); err != nil && idle.Err() == nil {
			return err
		}
		if now := r.q.Clock.Now(); did || waited || every == 0 {
			// A clock that was set back must not hold the query up.
			if err := r.q.Clock.Sleep(idle, min(max(0, at.Add(every).Sub(now)), every)); err != nil && idle.Err() == nil {
				return err
			}
			at, waited = trigger(r.q.Clock.Now(), every), false
			if every > 0 {
				follow(idle, r.q.Clock, r.q.Upstream, at, every)
			}
		} else {
			at, waited = trigger(now, every), true
		}
	}
}

// await waits for news.
func (r *run) await(ctx context.Context) error {
	if r.q.OnIdle != nil {
		r.q.OnIdle()
	}
	r.q.turns.change(func() { r.q.turns.idle = true })
	defer r.q.turns.change(func() { r.q.turns.idle = false })
	return r.q.Source.Wait(ctx, r.pos)
}

// BatchesToCare is after how many more batches a query that runs, and whose last
// batch is batchID, looks after its tables.
func (q *Query) BatchesToCare(batchID int64) int64 {
	return max(1, q.careDue.Load()-(batchID+1))
}

// recallCare finds out when an earlier run looked after the tables last. Where
// that is not recorded, it was at the multiple of maintainEvery before the last batch.
func (r *run) recallCare(ctx context.Context) {
	e, err := r.log.Care(ctx)
	if err != nil {
		r.q.Logger.Debug("when the tables were looked after last is not readable", "query", r.q.Name, "error", err)
	}
	done := r.main().head.BatchID
	if e == nil || e.Done > done+1 || e.Begun > done+1 {
		last := max(0, done-done%maintainEvery)
		e = &checkpoint.CareEntry{Done: last, Begun: last}
	}
	r.noteCare(*e)
}

// noteCare sets when the tables are looked after next: maintainEvery batches
// after the last time, whichever process that was. A round that a kill cut short is
// due again soon, but not at once: it may be what the process dies of.
func (r *run) noteCare(e checkpoint.CareEntry) {
	r.lastCare = e
	due := e.Done + maintainEvery
	if e.Begun > e.Done {
		due = max(due, e.Begun+maintainAgain)
	}
	r.q.careDue.Store(due)
}

// recordCare makes it known to the next process.
func (r *run) recordCare(ctx context.Context, e checkpoint.CareEntry) {
	r.noteCare(e)
	if err := r.log.WriteCare(ctx, e); err != nil {
		r.q.Logger.Warn("not recorded that the tables are looked after", "query", r.q.Name, "error", err)
	}
}

// care is what is done between two batches every so often: table care by the
// sinks, and letting go of checkpoint files that nothing needs any more.
func (r *run) care(ctx context.Context) error {
	r.settleCare(false)
	if r.next < r.q.careDue.Load() {
		return nil
	}
	r.recordCare(ctx, checkpoint.CareEntry{Done: r.lastCare.Done, Begun: r.next})
	if err := r.lookAfter(ctx); err != nil {
		return err
	}
	r.recordCare(ctx, checkpoint.CareEntry{Done: r.next, Begun: r.next})
	return nil
}

// lookAfter is one round of care.
func (r *run) lookAfter(ctx context.Context) error {
	for _, s := range r.sinks {
		if m, ok := s.Sink.(Maintainer); ok {
			r.cared(s.Sink, m.Maintain(r.caring))
		}
	}
	keep := r.next - retainBatches
	if r.q.Progress != nil {
		recorded, err := r.q.Progress.Recorded(ctx, r.q.Name, r.id.queryID)
		if err != nil {
			r.q.Logger.Warn("progress table not readable, the commit log is kept whole", "query", r.q.Name, "error", err)
			return nil
		}
		// commits/N carries the progress row until the table shows it.
		keep = min(keep, recorded)
	}
	if keep <= 0 {
		return nil
	}
	if err := r.log.Purge(ctx, keep); err != nil {
		r.q.Logger.Warn("old checkpoint entries not removed", "query", r.q.Name, "error", err)
	}
	for _, f := range r.stateT {
		if err := r.state.Purge(ctx, f); err != nil {
			r.q.Logger.Warn("old state files not removed", "query", r.q.Name, "operator", f.Operator, "error", err)
		}
	}
	return nil
}

// settleCare commits what the table care has written beside the batches, where it is
// ready or where it is waited for.
func (r *run) settleCare(wait bool) {
	for _, s := range r.sinks {
		if m, ok := s.Sink.(Maintainer); ok {
			r.cared(s.Sink, m.Settle(r.caring, wait))
		}
	}
}

func (r *run) cared(s sink.Sink, err error) {
	if err != nil {
		r.q.Logger.Warn("table care failed, it is tried again later", "query", r.q.Name, "table", s.Name(), "error", err)
	}
}

// Claim starts the query as Run does, decides and claims, and runs no batch:
// what `weir checkpoint` needs to settle a query by hand.
func (q *Query) Claim(ctx context.Context) error {
	if err := q.Validate(); err != nil {
		return err
	}
	q.defaults()
	unlock, err := q.lock()
	if err != nil {
		return err
	}
	defer unlock()
	defer q.release()
	_, _, err = q.start(ctx)
	return err
}
