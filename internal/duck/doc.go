// Package duck is DuckDB over the catalog's tables: each is a view of the data
// files that one pinned snapshot lists.
//
// The files are planned with the Iceberg library and read by DuckDB's own
// Parquet reader, columns found by field id, so that renamed and added columns
// come out as the schema says. DuckDB's Iceberg extension is not used: it is not
// in the static library, and it would pin each table for itself. Files to which
// deletes apply are read by the Iceberg library first, files in buckets are
// fetched first; both into the session's own folder, which Close removes.
//
// The driver is not imported here: see package link.
package duck
