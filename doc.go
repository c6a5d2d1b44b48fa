// Package weir builds streaming queries that land Kafka topics in Iceberg and
// Delta tables exactly once, or hand their batches to a function of yours.
//
//	q := weir.NewQuery("orders").
//		From(weir.Kafka{BootstrapServers: "localhost:9092", Topics: []string{"orders"}}).
//		Trigger(weir.AvailableNow()).
//		Checkpoint("checkpoints/orders").
//		To(weir.Delta{Path: "lake/orders"})
//	err := q.Run(ctx)
//
// # A table is the simpler way
//
// A query with To writes each batch and what it has to remember of it in one
// commit of the table. It survives crashes at any step, a lost checkpoint, and
// other engines' maintenance of the table; nothing is lost or doubled. Reach for
// ForeachBatch only where the rows have to go where no table is.
//
// # foreachBatch is at least once
//
// A handler is called again for a batch whose end nobody has written down: after
// a crash, an error, a lost connection. Query id, batch id and rows are the same
// then. So a handler must write such that the second time changes nothing:
//
//   - Delta: DeltaTable.Append and DeltaTable.Merge keep (app id, batch id) in the
//     commit itself;
//   - a database: rows and Batch.Key in one transaction, the key unique;
//   - an API: Batch.Key as idempotency key;
//   - files: names made of Batch.Key.
//
// docs/foreachbatch.md has the traps one by one. What the package does about
// them:
//
//   - a batch without rows is never handed over;
//   - the handler says how many rows it has dealt with, and a wrong number fails
//     the batch: an error that was swallowed is found;
//   - batch ids go on above every one that is known, and an app id that belongs to
//     another lineage is refused: the reset trap, in which a table drops new rows
//     as old, is shut;
//   - a lost checkpoint stops the query, because the batch under way cannot be
//     handed over again as it was;
//   - continuous mode is refused.
//
// # Several sinks
//
// One query has one sink and one commit position. For several sinks run several
// queries over the same topics, each with its own checkpoint: they advance, fail
// and are retried each on its own.
//
// # Running
//
// Run returns when the trigger is done or ctx ends. ExitCode gives the exit code
// that tells an orchestrator whether to try again; with AvailableNow a program is
// safe to be run by cron, Airflow or Dagster as often as they like.
package weir
