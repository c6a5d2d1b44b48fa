// Package gold runs a folder of SQL models, in the shape of a dbt project, over
// pinned snapshots of the catalog's tables, and publishes what comes out as
// Iceberg tables.
//
// A run:
//
//	pin      every source table is loaded once; what the run reads is its
//	         snapshot from here on                                      gold.pinned
//	build    models run in DuckDB, in parallel where the graph allows;
//	         tests (weir gold build) look at what was built              gold.built
//	stage    rows become data files, durable and unreferenced            gold.staged
//	publish  per table one commit that asserts the head it was built on,
//	         with the inputs' snapshots in its summary                   gold.published
//	keep     the DuckDB file, where asked for, written beside and renamed gold.kept
//
// What a table was made from stands in the property weir.gold.<model> (outlives
// expiry and compaction) and in the snapshot's summary. A model whose inputs and
// text are those of the property is skipped. So a run that was killed anywhere is
// repeated by the next one: what it published is either the same (skipped) or
// made again from newer snapshots; files that no commit names are orphans.
//
// An incremental model goes on from its own table only where that equals a
// batch recomputation: the property's text is the model's, the table's head is
// ours (compaction aside), and every input's snapshot chain since then has
// appends only. In every other case it is built from nothing.
//
// No model may depend on anything but its inputs: now() and random() make
// tables that no replay gives again.
package gold
