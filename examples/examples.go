// Package examples holds the pipeline files that ship inside the binary.
package examples

import _ "embed" // the files are the package

// Wikimedia is the pipeline of weir demo.
//
//go:embed wikimedia.yaml
var Wikimedia string

// Minimal stores one topic of a broker as it is.
//
//go:embed minimal.yaml
var Minimal string
