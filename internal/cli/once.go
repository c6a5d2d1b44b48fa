package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
)

// onceSummary is the last line of `weir run --once --output json`: what an
// orchestrator needs to know of a run that is over. It has no query_name, by
// which it is told from the batches' lines.
type onceSummary struct {
	// Completed says that all that was there at the start was worked off.
	Completed bool `json:"completed"`
	ExitCode  int  `json:"exit_code"`
	// Failure is the class of the error, "stopped" for a signal, empty for none.
	Failure string `json:"failure,omitempty"`
	// Retry says that starting the same command again is safe and may help.
	Retry          bool        `json:"retry"`
	Queries        []onceQuery `json:"queries"`
	ElapsedSeconds float64     `json:"elapsed_seconds"`
}

// onceQuery sums up the batches of one query; read = output + the other four.
type onceQuery struct {
	QueryName              string    `json:"query_name"`
	QueryID                string    `json:"query_id"`
	Batches                int64     `json:"batches"`
	LastBatchID            int64     `json:"last_batch_id"`
	LastCommittedAt        time.Time `json:"last_committed_at"`
	InputRows              int64     `json:"input_rows"`
	OutputRows             int64     `json:"output_rows"`
	RowsFiltered           int64     `json:"rows_filtered"`
	RowsDuplicate          int64     `json:"rows_duplicate"`
	RowsDroppedByWatermark int64     `json:"rows_dropped_by_watermark"`
	RowsDeadLettered       int64     `json:"rows_dead_lettered"`
}

// onceRun counts the batches of a run while it goes on.
type onceRun struct {
	clk   clock.Clock
	began time.Time
	mu    sync.Mutex
	order []string
	sums  map[string]*onceQuery
}

func newOnceRun(clk clock.Clock) *onceRun {
	return &onceRun{clk: clk, began: clk.Now(), sums: map[string]*onceQuery{}}
}

// batch may be called by several queries at the same time.
func (o *onceRun) batch(p engine.Progress) {
	o.mu.Lock()
	defer o.mu.Unlock()
	q := o.sums[p.QueryName]
	if q == nil {
		q = &onceQuery{QueryName: p.QueryName, QueryID: p.QueryID}
		o.sums[p.QueryName] = q
		o.order = append(o.order, p.QueryName)
	}
	q.Batches++
	q.LastBatchID, q.LastCommittedAt = p.BatchID, p.CommittedAt
	q.InputRows += p.InputRows
	q.OutputRows += p.OutputRows
	q.RowsFiltered += p.RowsFiltered
	q.RowsDuplicate += p.RowsDuplicate
	q.RowsDroppedByWatermark += p.RowsDroppedByWatermark
	q.RowsDeadLettered += p.RowsDeadLettered
}

// summary is how the run ended: err is its error, ctx the one it ran under.
func (o *onceRun) summary(ctx context.Context, err error) onceSummary {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := onceSummary{Completed: err == nil, Queries: make([]onceQuery, 0, len(o.order))}
	var by signalled
	switch {
	case err == nil:
	case errors.Is(err, context.Canceled) && errors.As(context.Cause(ctx), &by):
		s.Failure, s.ExitCode, s.Retry = "stopped", 128+int(by), true
	default:
		class := failure.ClassOf(err)
		s.Failure, s.ExitCode, s.Retry = class.String(), int(class), class.Retry()
	}
	for _, name := range o.order {
		s.Queries = append(s.Queries, *o.sums[name])
	}
	s.ElapsedSeconds = o.clk.Now().Sub(o.began).Seconds()
	return s
}

// finish turns the end of a run into its summary and its error. A run that was
// stopped has not worked off what was there: it is no success, whatever its
// queries say of their clean stops.
func (g *globals) finish(ctx context.Context, o *onceRun, err error) error {
	if err == nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	s := o.summary(ctx, err)
	if g.json() {
		if perr := g.print(s, nil); perr != nil && err == nil {
			return perr
		}
		return err
	}
	o.said(g.stderr, s)
	return err
}

func (o *onceRun) said(w io.Writer, s onceSummary) {
	switch {
	case s.Completed && len(s.Queries) == 0:
		fmt.Fprintln(w, "weir: nothing new: every query is at the end of its source")
	case s.Failure == "stopped":
		fmt.Fprintln(w, "weir: stopped before everything was worked off; the same command goes on")
	}
}
