package pipeline

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

var update = flag.Bool("update", false, "write golden files and the generated parts of docs/")

const (
	schemaFile = "../../docs/pipeline.schema.json"
	docsFile   = "../../docs/pipeline.md"
	keysBegin  = "-update -->\n"
	keysEnd    = "<!-- end of keys -->"
)

// eachKey walks every key of every struct, as Type.key.
func eachKey(t reflect.Type, seen map[reflect.Type]bool, visit func(owner string, f field)) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || seen[t] {
		return
	}
	seen[t] = true
	for _, f := range fieldsOf(t) {
		visit(t.Name(), f)
		eachKey(f.typ, seen, visit)
	}
}

func TestEveryKeyHasADescriptionAndNoneIsLeftOver(t *testing.T) {
	left := map[string]bool{}
	for k := range descriptions {
		left[k] = true
	}
	eachKey(reflect.TypeFor[Pipeline](), map[reflect.Type]bool{}, func(owner string, f field) {
		if descriptions[owner+"."+f.key] == "" {
			t.Errorf("no description of %s.%s", owner, f.key)
		}
		delete(left, owner+"."+f.key)
	})
	for k := range left {
		t.Errorf("description of %s, which is not a key", k)
	}
}

func TestDocsAndSchemaAreThoseOfTheStructs(t *testing.T) {
	want, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	docs, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	i, j := bytes.Index(docs, []byte(keysBegin)), bytes.Index(docs, []byte(keysEnd))
	if i < 0 || j < i {
		t.Fatalf("%s has lost the marks around its key tables", docsFile)
	}
	wantDocs := string(docs[:i]) + keysBegin + "\n" + Reference() + string(docs[j:])
	if *update {
		for file, text := range map[string][]byte{schemaFile: want, docsFile: []byte(wantDocs)} {
			if err := os.WriteFile(file, text, 0o644); err != nil { //nolint:gosec // documentation is public
				t.Fatal(err)
			}
		}
		return
	}
	have, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Errorf("%s is out of date: go test ./internal/pipeline -run Docs -update", schemaFile)
	}
	if string(docs) != wantDocs {
		t.Errorf("the key tables of %s are out of date: go test ./internal/pipeline -run Docs -update", docsFile)
	}
}

func TestDocsNameEveryKey(t *testing.T) {
	docs, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	eachKey(reflect.TypeFor[Pipeline](), map[reflect.Type]bool{}, func(owner string, f field) {
		if !strings.Contains(string(docs), "| `"+f.key+"` |") {
			t.Errorf("%s does not name %s.%s", docsFile, owner, f.key)
		}
	})
}

func compiledSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(schemaID, doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(schemaID)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// instance turns YAML into what a JSON Schema validator takes.
func instance(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	out, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestSchemaAcceptsEveryExampleAndEveryValidFile(t *testing.T) {
	s := compiledSchema(t)
	texts := map[string]string{}
	for _, kind := range Examples() {
		texts[kind] = Example(kind)
	}
	files, err := filepath.Glob("testdata/valid/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no valid files", err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		texts[f] = string(b)
	}
	for name, text := range texts {
		if err := s.Validate(instance(t, text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSchemaRefusesUnknownKeysWrongTypesAndMissingKeys(t *testing.T) {
	s := compiledSchema(t)
	good := Example(ExampleMinimal)
	for name, change := range map[string][2]string{
		"unknown key":  {"name: minimal", "name: minimal\nnmae: x"},
		"wrong type":   {"maxOffsetsPerTrigger: 100000", "maxOffsetsPerTrigger: lots"},
		"missing key":  {"warehouse: ./data/warehouse", ""},
		"unknown word": {"type: sql", "type: hive"},
	} {
		bad := strings.Replace(good, change[0], change[1], 1)
		if bad == good {
			t.Fatalf("%s: nothing was changed", name)
		}
		if s.Validate(instance(t, bad)) == nil {
			t.Errorf("the schema accepts a file with an %s", name)
		}
	}
}

func TestEveryKeyIsInTheSchema(t *testing.T) {
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Properties map[string]any `json:"properties"`
		Defs       map[string]struct {
			Properties map[string]any `json:"properties"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	eachKey(reflect.TypeFor[Pipeline](), map[reflect.Type]bool{}, func(owner string, f field) {
		props := doc.Defs[owner].Properties
		if owner == "Pipeline" {
			props = doc.Properties
		}
		if props[f.key] == nil {
			t.Errorf("the schema does not know %s.%s", owner, f.key)
		}
	})
}
