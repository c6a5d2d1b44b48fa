//go:build cgo && !noduckdb

package duck

import _ "github.com/duckdb/duckdb-go/v2" // registers itself
