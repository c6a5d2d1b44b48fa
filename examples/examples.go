// Package examples holds the pipeline files that ship inside the binary.
package examples

import (
	"embed" // the files are the package
	"io/fs"
)

// Wikimedia is the pipeline of weir demo.
//
//go:embed wikimedia.yaml
var Wikimedia string

// Minimal stores one topic of a broker as it is.
//
//go:embed minimal.yaml
var Minimal string

//go:embed all:gold
var gold embed.FS

// Gold is the project of SQL models that goes with Wikimedia.
func Gold() fs.FS {
	sub, err := fs.Sub(gold, "gold")
	if err != nil {
		panic(err) // the folder is embedded
	}
	return sub
}
