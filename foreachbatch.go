package weir

import (
	"context"

	"github.com/weirlake/weir/internal/sink/foreachbatch"
)

// Handler is a function that takes batches, one at a time and in order.
//
// It returns how many of the batch's rows it has dealt with, and that must be
// Batch.NumRows: a handler that swallows an error half-way is found out by its
// own count, and the batch fails (exit code 4). A handler that reduces the rows
// itself, as a merge does, reports how many it took in.
//
// An error stops the query, and the batch comes again with the next start. An
// error marked by Transient makes it come again at once, a few times, with
// growing pauses. A panic is an error. A batch without rows is not handed over.
//
// A handler is called at least once for a batch. What makes the result exactly
// once is that it writes under the batch's ids: Batch.Key as an idempotency
// key, DeltaTable.Append, a row in the same database transaction.
type Handler func(ctx context.Context, b Batch) (rows int64, err error)

// Transient marks an error that is expected to pass by itself: a time-out, a
// lock, a server that asks for patience. Never mark what will be the same next
// time.
func Transient(err error) error { return foreachbatch.Transient(err) }

// deliver is the handler as the sink knows it.
func (q *Query) deliver(ctx context.Context, d foreachbatch.Delivery) (int64, error) {
	return q.handler(ctx, Batch{
		QueryID: d.QueryID, QueryName: d.QueryName, BatchID: d.BatchID, Epoch: d.Epoch.Number, Attempt: d.Attempt, Try: d.Try,
		Redelivered: d.Redelivered, Position: Position{Start: offsetsOf(d.Start), End: offsetsOf(d.Position)},
		BatchTime: d.BatchTime, Records: d.Records, rows: d.Rows,
	})
}
