// Package delta reads and writes Delta tables at the level of their log, with
// protocol version (1, 2) and nothing newer.
//
// # What is durable before what
//
//  1. data files, each whole and fsynced under its name;
//  2. _delta_log/<version>.json, made create-once, fsynced with its directory:
//     the commit. Who makes version v+1 has read v, so two writers that read
//     the same version cannot both commit;
//  3. every checkpointInterval versions a Parquet checkpoint, then
//     _last_checkpoint, which names it. A crash before either leaves readers
//     with more commits to read, nothing else;
//  4. only then the removal of log files older than the retention.
//
// # Retries
//
// Commit takes a function that builds the actions from a snapshot. A writer
// that loses the race reads what was committed meanwhile and calls the function
// again: whatever it checked (transaction markers, schema, files that it
// replaces) is checked again on the snapshot that the next try asserts. A commit
// whose answer was lost is recognised by the nonce in its commitInfo.
//
// # Transactions
//
// txn actions are the table's memory of a stream: (app id, version), the last
// one wins. They are kept in checkpoints for ever, unless the table sets
// delta.setTransactionRetentionDuration; a duration under transactionRetentionMin
// is refused, because a query that stood still for longer would start over.
//
// # What is refused
//
// Tables that need a feature which this package does not know (deletion
// vectors, column mapping, row tracking, …), each by name. Commits are never
// written under a protocol whose duties are not kept.
package delta
