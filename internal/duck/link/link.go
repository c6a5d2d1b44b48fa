//go:build cgo && !noduckdb

// Package link puts DuckDB into the program: the main package imports it for
// that effect. It is apart from everything that uses DuckDB, which asks
// database/sql for the driver by name, so that no other package's tests link
// sixty megabytes, and a build without DuckDB (without cgo, or with the tag
// noduckdb) says what it lacks where it is asked for.
package link

import _ "github.com/duckdb/duckdb-go/v2" // registers itself as "duckdb"
