// Package catalogserve is a small, read-only Iceberg REST catalog over the
// catalog of a pipeline: Spark, Trino, DuckDB and PyIceberg attach to a local
// lakehouse with one URL, and need neither its database nor its name.
//
// What is answered: config, namespaces, tables, load table, and the HEAD of
// each. Everything that would change something is refused with 405 and a reason.
// The files themselves are not served: a client reads the locations that the
// metadata names, so it needs the same disk, or the bucket's keys.
//
// Nothing is kept in memory: each answer is what the catalog says now.
package catalogserve
