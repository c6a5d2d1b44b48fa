package lint

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/weirlake/weir/"

// allowed says, for each package of internal/ (and its subfolders), which
// other packages of the project it may import outside its tests. A package
// that is missing here fails the test: a new package is a decision.
var allowed = map[string][]string{
	// Leaves.
	"clock":   {},
	"failure": {},
	"fault":   {},
	"batch":   {},
	"event":   {},
	"upsert":  {"failure"},
	// The vocabulary of the layers.
	"marker":   {"batch"},
	"objstore": {"clock", "failure", "fault", "conformance"}, // the last for objstoretest
	// S3 for checkpoints and for tables' files alike.
	"objstore/s3":    {"objstore", "clock", "failure"},
	"objstore/cloud": {"objstore", "clock", "failure"}, // the same for Google Cloud Storage and Azure
	"source":         {"batch", "marker", "failure", "clock"},
	"sink":           {"batch", "column", "marker", "failure", "clock"},
	// Operators and the decision do no I/O.
	"operator":          {"batch", "marker", "event", "failure", "upsert"},
	"registry":          {"event", "failure", "clock"},
	"state":             {"marker", "objstore", "operator", "failure", "fault", "clock"},
	"state/pebblestate": {"operator", "failure", "fault"}, // state beyond memory
	"checkpoint":        {"batch", "marker", "objstore", "failure", "clock", "fault"},
	// Tables. How a query's columns and a table's differ is said in one way.
	"column": {"failure"},
	"lake":   {"column", "batch", "marker", "failure", "fault", "clock", "objstore", "objstore/s3", "objstore/cloud"},
	// Delta: the protocol's reader and writer, and its sink.
	"delta":             {"lake", "objstore", "upsert", "lake/datafile", "failure", "clock", "batch", "marker", "fault"},
	"sink/delta":        {"sink", "delta", "column", "upsert", "objstore", "lake/datafile", "batch", "marker", "failure", "fault", "clock"},
	"lake/datafile":     {"failure", "clock", "batch"},
	"lake/catalogtest":  {"freeport", "lake", "failure", "clock", "conformance"},
	"lake/scan":         {"lake", "lake/datafile", "batch", "failure", "marker", "clock"},
	"maintain":          {"lake", "lake/datafile", "failure", "fault", "clock"},
	"broker":            {"failure", "clock"},
	"source/kafka":      {"source", "batch", "marker", "failure", "clock", "broker"},
	"source/iceberg":    {"source", "batch", "marker", "failure", "clock", "lake", "lake/datafile", "lake/scan"},
	"source/sourcetest": {"source", "batch", "marker", "failure", "clock"},
	"sink/iceberg":      {"sink", "column", "upsert", "batch", "marker", "failure", "fault", "clock", "lake", "lake/datafile", "lake/scan", "maintain"},
	"sink/foreachbatch": {"sink", "sink/external", "batch", "marker", "failure", "fault", "clock", "objstore"},
	// What the sinks over stores outside share, and those stores.
	"sink/external":  {"sink", "sink/rowjson", "batch", "marker", "failure"},
	"sink/postgres":  {"sink", "sink/external", "sink/rowjson", "batch", "marker", "failure", "fault", "clock"},
	"sink/kafka":     {"sink", "sink/external", "sink/rowjson", "batch", "marker", "failure", "fault", "clock", "broker"},
	"sink/cassandra": {"sink", "sink/external", "sink/rowjson", "batch", "marker", "failure", "fault", "clock"},
	"sink/rowjson":   {"batch", "failure"},
	"sink/http":      {"sink", "sink/foreachbatch", "sink/rowjson", "batch", "marker", "failure", "fault", "clock", "objstore"},
	"sink/exec":      {"sink", "sink/foreachbatch", "sink/rowjson", "batch", "marker", "failure", "fault", "clock", "objstore"},
	"sink/file":      {"sink", "sink/external", "sink/rowjson", "batch", "marker", "failure", "fault", "clock", "objstore"},
	"sink/progress":  {"failure", "clock", "lake", "lake/datafile", "lake/scan", "marker", "batch", "fault"},
	"sink/sinktest":  {"sink", "batch", "marker", "failure", "clock"},
	// The one package that sees source, sink and checkpoint together.
	"engine": {"source", "sink", "column", "checkpoint", "operator", "state", "marker", "batch", "objstore", "clock", "failure", "fault"},
	// Who is told of batches, in the process's own time.
	"tracing":     {"engine", "operator", "failure", "clock"},
	"openlineage": {"engine", "batch", "failure", "clock"},
	// Edges of the program.
	"pipeline": {"event", "failure", "clock"},
	"bench":    {"*"},
	"ingest":   {"event", "failure", "fault", "clock", "broker"},
	"replay":   {"failure", "clock"},
	"status":   {"failure", "clock"},
	// Other engines' way to the catalog, read-only.
	"catalogserve": {"lake", "failure", "clock"},
	// The verifier counts by a second implementation: nothing of the engine,
	// the sinks, the checkpoint or the shared table code.
	// On Google Cloud Storage and Azure it takes the client that carries the bytes
	// for the SDK that is not there.
	"audit":    {"failure", "clock", "objstore/cloud"},
	"freeport": {"failure"},
	"prove":    {"freeport", "audit", "failure", "fault", "clock", "replay", "pipeline"},
	// Composition: builds queries from a pipeline file, and the commands.
	"app": {"*"},
	"cli": {"*"},
	// SQL: DuckDB is linked by the program's main package alone; the others ask
	// database/sql for it by name.
	"duck/link": {},
	"duck":      {"failure", "clock", "lake"},
	"gold":      {"failure", "fault", "clock", "lake", "lake/datafile", "duck"},
	"opstable":  {"failure", "clock", "lake", "lake/datafile", "batch"},
	// Erasure of rows of a table on purpose.
	"erase":    {"batch", "marker", "failure", "fault", "clock", "lake", "lake/datafile"},
	"schedule": {"failure", "fault", "clock", "lake", "opstable"},
	"check":    {"failure", "clock", "lake", "lake/scan", "opstable", "batch", "marker", "duck", "gold", "pipeline"},
	// Helpers of tests.
	"conformance":              {},
	"kafkatest":                {"failure", "clock", "freeport"},
	"cassandratest":            {"freeport"},
	"s3test":                   {"clock", "freeport"},
	"objstore/cloud/cloudtest": {"clock", "freeport"},
	"lint":                     {},
	// What a release is made of; its test is the licence check.
	"release": {},
	// The engine in a simulated world, and the protocol with one rule broken:
	// tests only.
	"sim":     {},
	"mutants": {},
}

// public is what the package at the module's root may import: it is a way to
// build a query, and leaves everything else to the packages that do it.
var public = []string{
	"app", "batch", "broker", "checkpoint", "clock", "delta", "engine", "failure", "lake", "marker", "objstore", "operator",
	"pipeline", "sink", "sink/foreachbatch", "source", "source/kafka",
}

func TestThePublicPackageImportsOnlyWhatTheLayoutAllows(t *testing.T) {
	files, err := filepath.Glob("../../*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no Go files at the module's root: %v", err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, p := range importsOf(t, path) {
			if pkg, ok := strings.CutPrefix(p, module+"internal/"); ok && !slices.Contains(public, pkg) {
				t.Errorf("%s imports internal/%s, which the layout does not allow", filepath.Base(path), pkg)
			}
		}
	}
	// Nothing below is built on it but the command that demonstrates it.
	walkGo(t, "..", func(path string) {
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, filepath.Join("..", "cli")) {
			return
		}
		if slices.Contains(importsOf(t, path), strings.TrimSuffix(module, "/")) {
			t.Errorf("%s imports the public package", path)
		}
	})
}

// importsOf are the import paths of a file.
func importsOf(t *testing.T, path string) (out []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	for _, imp := range f.Imports {
		p, err := strconv.Unquote(imp.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

// owner is the longest key of allowed that pkg is or lies below.
func owner(pkg string) (string, bool) {
	for p := pkg; p != "." && p != ""; p = filepath.Dir(p) {
		if _, ok := allowed[p]; ok {
			return p, true
		}
	}
	return "", false
}

func TestPackagesImportOnlyWhatTheLayoutAllows(t *testing.T) {
	seen := map[string]map[string]bool{}
	walkGo(t, "..", func(path string) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		rel, err := filepath.Rel("..", filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range importsOf(t, path) {
			p, ok := strings.CutPrefix(p, module+"internal/")
			if !ok {
				continue
			}
			if seen[rel] == nil {
				seen[rel] = map[string]bool{}
			}
			seen[rel][p] = true
		}
		if seen[rel] == nil {
			seen[rel] = map[string]bool{}
		}
	})
	for pkg, imports := range seen {
		from, ok := owner(pkg)
		if !ok {
			t.Errorf("internal/%s is not in the layout: say in this test what it may import", pkg)
			continue
		}
		var names []string
		for p := range imports {
			names = append(names, p)
		}
		sort.Strings(names)
		for _, p := range names {
			to, _ := owner(p)
			if from == to || permits(from, to) {
				continue
			}
			t.Errorf("internal/%s imports internal/%s, which the layout does not allow", pkg, p)
		}
	}
}

func permits(from, to string) bool {
	for _, a := range allowed[from] {
		if a == "*" || a == to {
			return true
		}
	}
	return false
}

// walkGo calls f for every Go file below root.
func walkGo(t *testing.T, root string, f func(path string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != root) && path != root {
			return filepath.SkipDir
		}
		if !d.IsDir() && strings.HasSuffix(path, ".go") {
			f(path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
