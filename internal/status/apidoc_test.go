package status

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/api.md anew")

const apiDocs = "../../docs/api.md"

// apiHead is the part of docs/api.md that is written by hand.
const apiHead = `# The status page's JSON

Everything that the page shows, for programs. Generated from the Go types:
` + "`go test ./internal/status -run Docs -update`" + ` writes it anew.

| request | answer |
|---|---|
| ` + "`GET /api/status`" + ` | a [Model](#model) |
| ` + "`GET /api/batches?query=NAME&limit=N`" + ` | ` + "`{\"batches\": […]}`" + `: [Batch](#batch), newest first; 100 without a limit, of all queries without a name; 404 for a query that there is not, 400 for a limit that is no number above 0 |
| ` + "`GET /api/jobs`" + ` | a [Jobs](#jobs); ` + "`{}`" + ` where the pipeline has none |
| ` + "`GET /livez`, `GET /readyz`" + ` | 200 or 503 with ` + "`{\"ok\": bool, \"reasons\": […]}`" + `: [Reason](#reason). Without the token, the code alone |
| ` + "`GET /events`" + ` | server-sent events ` + "`patch`" + ` (HTML of the page's parts, for the page only) and ` + "`bye`" + ` |

Who may ask is in [operations.md](operations.md#who-may-see-it). Times are RFC 3339
in UTC. Fields may be added at any time; a field keeps its name and meaning. A
field that is marked *optional* is left out where it has no value.

`

// apiTypes are the types of the answers, in the order of the page.
var apiTypes = []any{
	Model{}, Health{}, Reason{}, Ingest{}, IngestStats{}, IngestRates{}, Topic{}, Query{}, Totals{}, Rates{}, Freshness{}, Batch{}, Series{},
	Table{}, Care{}, DeadLetter{}, SetAside{}, Jobs{}, Job{}, Mart{}, Check{}, Lineage{}, Proof{}, ProofGroup{}, ProofCase{}, Alert{},
}

func TestDocsOfTheJSONAreThoseOfTheTypes(t *testing.T) {
	want := apiHead + apiTables(t)
	if *update {
		if err := os.WriteFile(apiDocs, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(apiDocs)
	if err != nil || string(got) != want {
		t.Errorf("docs/api.md is not what the types say (%v): go test ./internal/status -run Docs -update", err)
	}
}

// apiTables renders every type, and fails where one is used and not listed.
func apiTables(t *testing.T) string {
	t.Helper()
	comments := commentsOf(t, "model.go", "jobs.go", "series.go")
	listed := map[reflect.Type]bool{}
	for _, v := range apiTypes {
		listed[reflect.TypeOf(v)] = true
	}
	var b strings.Builder
	for i, v := range apiTypes {
		typ := reflect.TypeOf(v)
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "## %s\n\n%s\n\n| field | type | |\n|---|---|---|\n", typ.Name(), comments[typ.Name()])
		for f := range typ.Fields() {
			name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "-" {
				continue
			}
			of := f.Type
			for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice || of.Kind() == reflect.Map {
				of = of.Elem()
			}
			if of.Kind() == reflect.Struct && of.PkgPath() == typ.PkgPath() && !listed[of] {
				t.Errorf("%s.%s is a %s, which is not in apiTypes", typ.Name(), f.Name, of.Name())
			}
			words := comments[typ.Name()+"."+f.Name]
			if strings.Contains(rest, "omitempty") {
				words = strings.TrimSpace("*optional* " + words)
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, jsonType(f.Type), words)
		}
	}
	return b.String()
}

// jsonType is how a Go type comes out in JSON.
func jsonType(t reflect.Type) string {
	switch {
	case t.Kind() == reflect.Pointer:
		return jsonType(t.Elem())
	case t.Name() == "Time":
		return "time"
	case t.Name() == "Values":
		return "list of number or null"
	case t.Kind() == reflect.Slice, t.Kind() == reflect.Array:
		return "list of " + jsonType(t.Elem())
	case t.Kind() == reflect.Map:
		return "object of " + jsonType(t.Elem())
	case t.Kind() == reflect.Struct:
		return "[" + t.Name() + "](#" + strings.ToLower(t.Name()) + ")"
	case t.Kind() == reflect.String:
		return "text"
	case t.Kind() == reflect.Bool:
		return "boolean"
	case t.Kind() == reflect.Float64:
		return "number"
	}
	return "integer"
}

// commentsOf are the comments of types, by name, and of their fields, by
// Type.Field, each on one line.
func commentsOf(t *testing.T, files ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	line := func(groups ...*ast.CommentGroup) string {
		var parts []string
		for _, g := range groups {
			parts = append(parts, strings.Join(strings.Fields(strings.ReplaceAll(g.Text(), "|", `\|`)), " "))
		}
		return strings.TrimSpace(strings.Join(parts, " "))
	}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, s := range g.Specs {
				typ, ok := s.(*ast.TypeSpec)
				if !ok {
					continue
				}
				out[typ.Name.Name] = line(g.Doc)
				st, ok := typ.Type.(*ast.StructType)
				if !ok {
					continue
				}
				for _, field := range st.Fields.List {
					for _, n := range field.Names {
						out[typ.Name.Name+"."+n.Name] = line(field.Doc, field.Comment)
					}
				}
			}
		}
	}
	return out
}
