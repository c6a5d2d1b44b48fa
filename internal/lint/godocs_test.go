package lint

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/go.md anew")

const (
	goDocs = "../../docs/go.md"
	goHead = `# The Go package

Everything that the package ` + "`github.com/weirlake/weir`" + ` exports, generated from its source:
` + "`go test ./internal/lint -run Docs -update`" + ` writes this page anew. With examples, and for
one name at a time: ` + "`go doc github.com/weirlake/weir`" + `. For functions of yours see
[foreachbatch.md](foreachbatch.md).

`
)

func TestDocsOfTheGoPackageAreThoseOfItsSource(t *testing.T) {
	want := goHead + goReference(t)
	if *update {
		if err := os.WriteFile(goDocs, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(goDocs)
	if err != nil || string(got) != want {
		t.Errorf("docs/go.md is not what the source says (%v): go test ./internal/lint -run Docs -update", err)
	}
}

// goReference renders the package at the module's root. A name without a
// comment fails the test.
func goReference(t *testing.T) string {
	t.Helper()
	fset := token.NewFileSet()
	parsed, err := parser.ParseDir(fset, "../..", func(f fs.FileInfo) bool { return !strings.HasSuffix(f.Name(), "_test.go") }, parser.ParseComments) //nolint:staticcheck // one package without build tags
	if err != nil {
		t.Fatal(err)
	}
	p := doc.New(parsed["weir"], strings.TrimSuffix(module, "/"), 0)
	var b strings.Builder
	b.Write(p.Markdown(p.Doc))
	code := func(name string, decl ast.Decl, words string) {
		if strings.TrimSpace(words) == "" {
			t.Errorf("%s has no comment", name)
		}
		if f, ok := decl.(*ast.FuncDecl); ok {
			decl = &ast.FuncDecl{Recv: f.Recv, Name: f.Name, Type: f.Type}
		}
		var out bytes.Buffer
		if err := format.Node(&out, fset, decl); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "\n```go\n%s\n```\n\n%s", out.String(), p.Markdown(words))
	}
	values := func(list []*doc.Value) {
		for _, v := range list {
			code(v.Names[0], v.Decl, v.Doc+" ")
		}
	}
	functions := func(of string, list []*doc.Func) {
		for _, f := range list {
			code(of+f.Name, f.Decl, f.Doc)
		}
	}
	values(p.Consts)
	values(p.Vars)
	functions("", p.Funcs)
	for _, typ := range p.Types {
		fmt.Fprintf(&b, "\n## %s\n", typ.Name)
		code(typ.Name, typ.Decl, typ.Doc)
		values(typ.Consts)
		values(typ.Vars)
		functions("", typ.Funcs)
		functions(typ.Name+".", typ.Methods)
	}
	return regexp.MustCompile(` \{#hdr-[^}]*\}`).ReplaceAllString(b.String(), "")
}
