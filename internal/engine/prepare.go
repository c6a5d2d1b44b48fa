package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/sink"
)

// rejecting finds the sink of rejected rows, where the query has one and its
// main sink can say which rows those are.
func (r *run) rejecting() (p sink.Preparer, side *claimed, index int) {
	p, ok := r.main().Sink.(sink.Preparer)
	if !ok {
		return nil, nil, 0
	}
	for i := range r.sinks {
		if r.sinks[i].Name == operator.Rejected {
			return p, &r.sinks[i], i
		}
	}
	return nil, nil, 0
}

// prepare is the first part of step 5 for a main sink outside: only the store
// knows which rows it refuses, so it is asked before any side sink commits. What
// it refused is moved from the emitted rows to the dead-lettered ones, in the
// marker of every sink.
//
// The table of rejected rows commits first of all, and is from then on what the
// batch is run by: a rerun reads the decision back from it instead of asking the
// store again, which might by then take a row that is already in that table.
func (r *run) prepare(ctx context.Context, a *attempt) error {
	p, side, i := r.rejecting()
	main := r.main()
	if p == nil || main.head.BatchID == a.plan.BatchID {
		return nil
	}
	var decided []sink.Rejection
	known := side.head.BatchID == a.plan.BatchID
	if known {
		var err error
		if decided, err = r.readRejections(ctx, a, side); err != nil {
			return err
		}
	}
	m := a.marker
	m.RenewedAt = r.q.Clock.Now()
	got, err := p.Prepare(ctx, main.permit, main.head, a.staged[len(a.staged)-1], &m, decided)
	if err != nil {
		return fmt.Errorf("query %s, batch %d: %w", r.q.Name, a.plan.BatchID, err)
	}
	a.staged[len(a.staged)-1].Rejected = got.Rejected
	n := int64(len(got.Rejected))
	a.result.Counters.Emitted -= n
	a.result.Counters.DeadLettered += n
	a.marker.Counters = a.result.Counters
	if !known {
		a.staged[i], err = r.stageRejected(ctx, a, side, got.Records)
	} else {
		release(got.Records)
	}
	if err == nil {
		err = r.checkDecided(a)
	}
	if err != nil {
		p.Discard()
	}
	return err
}

func release(records []arrow.RecordBatch) {
	for _, rec := range records {
		rec.Release()
	}
}

// stageRejected makes the rejected rows durable, unreferenced.
func (r *run) stageRejected(ctx context.Context, a *attempt, side *claimed, records []arrow.RecordBatch) (sink.Staged, error) {
	st, err := side.Sink.Stage(ctx, a.plan.BatchID, a.nonce)
	if err != nil {
		release(records)
		return sink.Staged{}, fmt.Errorf("query %s: open staging of %s: %w", r.q.Name, side.Sink.Name(), err)
	}
	var rows int64
	for i, rec := range records {
		rows += rec.NumRows()
		if err := st.Write(rec); err != nil {
			release(records[i+1:])
			st.Abort()
			return sink.Staged{}, fmt.Errorf("query %s: stage rejected rows for %s: %w", r.q.Name, side.Sink.Name(), err)
		}
	}
	staged, err := st.Close(ctx)
	if err == nil && staged.Rows != rows {
		err = failure.New(failure.Runtime, "query %s, batch %d: %d rejected rows were written to %s, its files hold %d; nothing was committed",
			r.q.Name, a.plan.BatchID, rows, side.Sink.Name(), staged.Rows)
	}
	return staged, err
}

// checkDecided: a side sink that holds the batch already holds it with the
// counts that this run has come to.
func (r *run) checkDecided(a *attempt) error {
	for _, s := range r.sinks {
		if s.head.BatchID == a.plan.BatchID && s.head.Counters != a.result.Counters {
			return r.otherCounts(a, s)
		}
	}
	return nil
}

func (r *run) otherCounts(a *attempt, s claimed) error {
	return failure.New(failure.Checkpoint, "query %s, batch %d: %s holds the batch with other counts (%+v) than this run computes (%+v)",
		r.q.Name, a.plan.BatchID, s.Sink.Name(), s.head.Counters, a.result.Counters).
		WithHint("the transform can no longer be reproduced; run the version and contract that began the batch")
}

// readRejections reads back which rows of the batch an earlier attempt put into
// the table of rejected rows. It is never nil.
func (r *run) readRejections(ctx context.Context, a *attempt, side *claimed) ([]sink.Rejection, error) {
	out := []sink.Rejection{}
	columns := []string{"query_id", "batch_id", "batch_row", "reason", "detail"}
	err := side.Sink.RebuildScan(ctx, side.head, columns, "processed_at", a.plan.BatchTime.UnixMicro(), func(rec arrow.RecordBatch) error {
		defer rec.Release()
		id, ok1 := named(rec, columns[0]).(*array.String)
		batchID, ok2 := named(rec, columns[1]).(*array.Int64)
		row, ok3 := named(rec, columns[2]).(*array.Int64)
		reason, ok4 := named(rec, columns[3]).(*array.String)
		detail, ok5 := named(rec, columns[4]).(*array.String)
		if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 {
			return fmt.Errorf("its columns are of other types: %s", rec.Schema())
		}
		for i := range int(rec.NumRows()) {
			if id.Value(i) == r.id.queryID && batchID.Value(i) == a.plan.BatchID {
				out = append(out, sink.Rejection{Row: row.Value(i), Reason: reason.Value(i), Detail: detail.Value(i)})
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("query %s, batch %d: read which rows %s holds: %w", r.q.Name, a.plan.BatchID, side.Sink.Name(), err)
	}
	slices.SortFunc(out, func(a, b sink.Rejection) int { return cmp.Compare(a.Row, b.Row) })
	return out, nil
}

// named is a record's column, nil where it has none of that name: a table gives
// its columns in an order of its own.
func named(rec arrow.RecordBatch, column string) arrow.Array {
	if at := rec.Schema().FieldIndices(column); len(at) == 1 {
		return rec.Column(at[0])
	}
	return nil
}
