// Package external is what the sinks over stores outside have in common: how
// rows are held until the commit, when a marker may be followed, and what becomes
// of a row that the store refuses.
//
// # The rule
//
// Positions decide, not batch ids. A store that can be asked remembers the marker
// in the same transaction as the rows; Judge compares it with the batch's:
// another lineage or a newer epoch fences, the same plan is done already, the
// position that the batch begins at lets it through, and anything else stops. A
// store that cannot be asked is behind sink/foreachbatch, whose record says what
// was handed over.
//
// # Batch ids that start again
//
// A new lineage goes on counting where the store's marker stands and names the
// lineage that it replaces; ClaimFollows refuses one that does not. So ids that
// begin again at 0 are never taken for batches that were there before.
//
// # Rejected rows
//
// See sink.Preparer and docs/adr/0012-rejected-rows.md.
package external
