// Package cassandra is the sink over a table of a store that speaks Cassandra's
// protocol.
//
// There are no transactions over rows, so the sink is exact by convergence: every
// row is written under a timestamp that belongs to its batch (USING TIMESTAMP), the
// same at every try, so that a batch that comes again writes what is there. Batch
// N's timestamp is its batch time, or one microsecond after batch N-1's: later
// batches win over earlier ones whenever their writes arrive.
//
// The marker is a row of its own (weir_markers), moved by lightweight transactions
// on its version, after the rows of its batch are acknowledged at the write
// consistency. So a reader may see rows of a batch that is not committed yet; it
// never sees a committed batch with rows missing. A claim moves the version: the
// marker of whoever was before it is not written any more. Rows that an older
// process writes later have the timestamp and the contents of the same plan.
//
// Outcomes of a lightweight transaction that are unknown are resolved by reading
// the marker at serial consistency.
package cassandra
