package app

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/weirlake/weir/internal/engine"
)

// node is a query with its place in the graph of tables.
type node struct {
	query *engine.Query
	// level is 0 for queries over Kafka, 1 + the greatest level of the queries
	// that feed its table otherwise.
	level int
	drain chan struct{}
	done  chan struct{}
}

// levels groups the queries so that each comes after those that feed it.
func levels(nodes []*node) [][]*node {
	var out [][]*node
	for _, n := range nodes {
		for len(out) <= n.level {
			out = append(out, nil)
		}
		out[n.level] = append(out[n.level], n)
	}
	return out
}

// RunOnce works off what is there and returns. The queries run side by side:
// one over a table follows those that feed it batch by batch, instead of reading
// back in the end what they wrote, and ends when they have.
func (a *App) RunOnce(ctx context.Context) error {
	for _, n := range a.nodes {
		n.query.Options.Trigger = engine.Trigger{}
	}
	a.jobsOff = true
	drained := make(chan struct{})
	close(drained)
	return a.Run(ctx, drained)
}

// Run runs every query as its trigger says, at the same time, until ctx ends,
// drained is closed, or one of them fails: a query that stops on an error stops
// the pipeline, with that error's exit code (see runQuery for stores outside that
// are out of reach). When drained is closed, queries
// work off what is there, those upstream first, and Run returns.
func (a *App) Run(ctx context.Context, drained <-chan struct{}) error {
	g, gctx := errgroup.WithContext(ctx)
	held := &heldErrors{}
	defer a.stopping.on(gctx)()
	for _, n := range a.nodes {
		n.drain, n.done = make(chan struct{}), make(chan struct{})
		n.query.Drain = n.drain
		g.Go(func() error {
			defer close(n.done)
			return a.runQuery(gctx, n, drained, held)
		})
	}
	finished := make(chan struct{})
	var waiter sync.WaitGroup
	waiter.Go(func() { a.drainLevels(gctx, drained, finished) })
	jobsCtx, stopJobs := context.WithCancel(ctx)
	if !a.jobsOff {
		waiter.Go(func() { a.runJobs(jobsCtx) })
	}
	err := g.Wait()
	stopJobs()
	close(finished)
	waiter.Wait()
	if err == nil {
		err = held.first
	}
	if flushErr := a.flush(context.WithoutCancel(ctx)); err == nil {
		err = flushErr
	}
	return err
}

// drainLevels tells the queries to end, upstream first: a query over a table is
// told when those that feed the table have returned.
func (a *App) drainLevels(ctx context.Context, drained, finished <-chan struct{}) {
	select {
	case <-drained:
	case <-ctx.Done():
		return
	case <-finished:
		return
	}
	for _, level := range levels(a.nodes) {
		for _, n := range level {
			close(n.drain)
		}
		for _, n := range level {
			select {
			case <-n.done:
			case <-ctx.Done():
				return
			}
		}
	}
}

// flush makes the progress rows visible.
func (a *App) flush(ctx context.Context) error {
	if a.progress == nil {
		return nil
	}
	return a.progress.Flush(ctx)
}
