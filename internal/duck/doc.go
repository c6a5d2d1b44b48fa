// Package duck links DuckDB into the program and registers it with database/sql
// under DriverName. The program's main package imports it for that effect alone:
// everything else asks for the driver by name, so that no other package's tests
// link sixty megabytes, and a build without DuckDB (without cgo, or with the tag
// noduckdb) says what it lacks where it is asked for.
package duck

// DriverName is the name under which DuckDB is registered with database/sql.
const DriverName = "duckdb"
