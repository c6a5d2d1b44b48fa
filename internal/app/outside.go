package app

import (
	"context"
	"sync"
	"time"

	"github.com/weirlake/weir/internal/failure"
)

// The pause before a query over a store outside is started again, doubling.
const (
	againMin = time.Second
	againMax = time.Minute
)

// heldErrors are the ends of queries that did not stop the others.
type heldErrors struct {
	mu    sync.Mutex
	first error
}

func (h *heldErrors) add(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.first == nil {
		h.first = err
	}
}

// runQuery runs a query to its end. The error that it returns stops the pipeline.
//
// A store outside has outages of its own, which are no reason to stop what does
// not depend on it: a query that writes there and stops because the store is out
// of reach, or did not answer to a commit, is started again, with the decision of a
// new start, while the others go on. In a run that ends by itself it is not waited
// for: its error is held until the others have ended, whatever it is.
func (a *App) runQuery(ctx context.Context, n *node, drained <-chan struct{}, held *heldErrors) error {
	q, err := QueryByName(a.P, n.query.Name)
	outside := false
	if err == nil {
		_, e := q.To.External()
		outside = e != nil
	}
	for pause := againMin; ; pause = min(2*pause, againMax) {
		began := a.opts.Clock.Now()
		err := n.query.Run(ctx)
		if err == nil || !outside || ctx.Err() != nil {
			return a.watch.ended(n.query.Name, err)
		}
		if isClosed(drained) {
			held.add(err)
			_ = a.watch.ended(n.query.Name, err)
			return nil
		}
		if c := failure.ClassOf(err); c != failure.Unreachable && c != failure.CommitUnknown {
			return a.watch.ended(n.query.Name, err)
		}
		if a.opts.Clock.Now().Sub(began) > againMax {
			pause = againMin // it had worked for a while
		}
		a.watch.retrying(n.query.Name, err)
		a.alert(n.query.Name, "the sink does not answer; the query starts again in "+pause.String()+", the others go on: "+err.Error())
		n.query.Transform.Rollback()
		if a.opts.Clock.Sleep(ctx, pause) != nil {
			return a.watch.ended(n.query.Name, nil)
		}
	}
}

func (a *App) alert(query, text string) {
	a.opts.Logger.Warn(text, "query", query)
	a.watch.alert(query, text)
	if a.opts.OnAlert != nil {
		a.opts.OnAlert(query, text)
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
