//go:build !cgo || noduckdb

// Package link would put DuckDB into the program; this build was asked not to.
package link
