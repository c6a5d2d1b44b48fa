package release

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestWhatDuckDBCarriesIsInTheNotices(t *testing.T) {
	parts, err := duckdbParts(Module{Path: duckdbModules + "linux-amd64", Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	var notices bytes.Buffer
	if err := WriteNotices(&notices, parts); err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		id := p.Licences[0].ID
		name := strings.TrimPrefix(p.Name, "duckdb/third_party/")
		if !slices.Contains(Allowed, id) && duckdbIDs[name] != id {
			t.Errorf("%s: licence %s", p.Name, id)
		}
		t.Logf("%-16s %s", name, id)
	}
	// Every library of its own that the module carries has a text.
	for _, lib := range []string{"fmt", "re2", "zstd", "miniz", "mbedtls", "fsst", "fastpforlib", "hyperloglog", "skiplist", "utf8proc", "yyjson", "jemalloc", "libpg_query", "icu"} {
		if !strings.Contains(notices.String(), "duckdb/third_party/"+lib+"\n") {
			t.Errorf("the notices have no text of %s", lib)
		}
	}
}

func TestDuckDBsPartsComeWithItsLibrary(t *testing.T) {
	for path, want := range map[string]bool{duckdbModules + "linux-amd64": true, "github.com/duckdb/duckdb-go/v2": false} {
		modules, err := Linked(t.Context(), "../..", "", "./cmd/weir")
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(modules, func(m Module) bool { return m.Path == path })
		if i < 0 {
			t.Skipf("%s is not linked here", path)
		}
		components, err := Components(modules[i:i+1], "")
		if err != nil {
			t.Fatal(err)
		}
		got := slices.ContainsFunc(components, func(c Component) bool { return c.Name == "duckdb/third_party/re2" })
		if got != want {
			t.Errorf("%s brings DuckDB's parts: %v, want %v", path, got, want)
		}
	}
}
