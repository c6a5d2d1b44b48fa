package release

import (
	"cmp"
	"embed"
	"fmt"
	"path"
	"strings"
)

// duckdbTexts are the licence files of what DuckDB carries in its sources, by
// the part's name, as they stand in its release 1.5.5 (third_party, and the
// extensions icu and tpch). The Go module that carries the compiled library has
// DuckDB's own licence only.
//
//go:embed texts/duckdb
var duckdbTexts embed.FS

// duckdbModules begin the paths of the modules that carry the compiled library,
// one a platform.
const duckdbModules = "github.com/duckdb/duckdb-go-bindings/lib/"

// duckdbIDs are the licences of parts whose text is none that Classify knows:
// of Mbed TLS's two the one that is taken.
var duckdbIDs = map[string]string{
	"mbedtls":    "Apache-2.0",
	"icu":        "Unicode-DFS-2016",
	"ska_sort":   "BSL-1.0",
	"tpch-dbgen": "LicenseRef-TPC-EULA",
}

// duckdbParts are what is compiled into the library that a module carries. They
// have the module's version: DuckDB's sources do not say their own.
func duckdbParts(m Module) ([]Component, error) {
	files, err := duckdbTexts.ReadDir("texts/duckdb")
	if err != nil {
		return nil, err
	}
	var out []Component
	for _, f := range files {
		text, err := duckdbTexts.ReadFile(path.Join("texts/duckdb", f.Name()))
		if err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(f.Name(), ".txt")
		id := cmp.Or(duckdbIDs[name], Classify(string(text)))
		if id == "" {
			return nil, fmt.Errorf("licence of DuckDB's %s: the text is none that is known", name)
		}
		out = append(out, Component{Name: "duckdb/third_party/" + name, Version: m.Version,
			PURL: "pkg:golang/" + m.Path + "@" + m.Version + "#third_party/" + name, Licences: []Licence{{ID: id, File: "LICENSE", Text: string(text)}}})
	}
	return out, nil
}
