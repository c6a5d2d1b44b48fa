package gold

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/examples"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/duck"
	_ "github.com/weirlake/weir/internal/duck/link" // the tests run models
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/datafile"
)

// world is a catalog with a silver table that tests append to.
type world struct {
	t   *testing.T
	dir string
	c   *lake.Catalog
	n   int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if err := duck.Linked(); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	c, err := lake.Open(context.Background(), lake.Config{URI: filepath.Join(dir, "catalog.db"), Warehouse: filepath.Join(dir, "warehouse")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &world{t: t, dir: dir, c: c}
}

// edits are the columns of silver.edits that the shipped models read.
var edits = iceberg.NewSchema(0,
	iceberg.NestedField{ID: 1, Name: "event_id", Type: iceberg.PrimitiveTypes.String},
	iceberg.NestedField{ID: 2, Name: "event_time", Type: iceberg.PrimitiveTypes.TimestampTz},
	iceberg.NestedField{ID: 3, Name: "type", Type: iceberg.PrimitiveTypes.String},
	iceberg.NestedField{ID: 4, Name: "wiki", Type: iceberg.PrimitiveTypes.String},
	iceberg.NestedField{ID: 5, Name: "title", Type: iceberg.PrimitiveTypes.String},
	iceberg.NestedField{ID: 6, Name: "user", Type: iceberg.PrimitiveTypes.String},
	iceberg.NestedField{ID: 7, Name: "bot", Type: iceberg.PrimitiveTypes.Bool},
	iceberg.NestedField{ID: 8, Name: "length_old", Type: iceberg.PrimitiveTypes.Int64},
	iceberg.NestedField{ID: 9, Name: "length_new", Type: iceberg.PrimitiveTypes.Int64},
	iceberg.NestedField{ID: 10, Name: "processed_at", Type: iceberg.PrimitiveTypes.TimestampTz},
)

func ident(t *testing.T, name string) table.Identifier {
	t.Helper()
	id, err := lake.ParseName(name)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// file makes a data file of the rows of a query.
func (w *world) file(name string, sc *iceberg.Schema, query string) (*table.Table, datafile.File) {
	w.t.Helper()
	ctx := context.Background()
	t, err := w.c.EnsureTable(ctx, ident(w.t, name), sc, *iceberg.UnpartitionedSpec, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	s, err := duck.Open(ctx, duck.Options{Threads: 1, Folder: w.dir})
	if err != nil {
		w.t.Fatal(err)
	}
	defer s.Close()
	w.n++
	folder := filepath.Join(w.dir, fmt.Sprintf("made-%d", w.n))
	sh := shape{casts: map[string]string{}}
	for _, f := range sc.Fields() {
		if sh.casts[f.Name], err = duck.TypeOf(f.Type); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := s.Exec(ctx, copyOut(query, t.Schema(), sh, folder)); err != nil {
		w.t.Fatal(err)
	}
	made, err := filepath.Glob(filepath.Join(folder, "*.parquet"))
	if err != nil || len(made) != 1 {
		w.t.Fatalf("made %v, %v", made, err)
	}
	storage, err := lake.DataFSOf(ctx, t)
	if err != nil {
		w.t.Fatal(err)
	}
	f, err := datafile.Adopt(datafile.Spec{
		Schema: t.Schema(), PartitionSpec: t.Spec(), FormatVersion: t.Metadata().Version(), Location: lake.DataLocation(t), FS: storage,
	}, made[0], fmt.Sprintf("%s/made-%d.parquet", lake.DataLocation(t), w.n))
	if err != nil {
		w.t.Fatal(err)
	}
	return t, f
}

// add appends the rows of a query to a table, made if need be.
func (w *world) add(name string, sc *iceberg.Schema, query string) int64 {
	w.t.Helper()
	t, f := w.file(name, sc, query)
	after, err := w.c.Commit(context.Background(), t, lake.Change{Files: []iceberg.DataFile{f.DataFile}})
	if err != nil {
		w.t.Fatal(err)
	}
	return lake.HeadOf(after).ID
}

// graph compiles the project that ships.
func shipped(t *testing.T) *Graph { return compiled(t, examples.Gold(), nil) }

func compiled(t *testing.T, dir fs.FS, vars map[string]any) *Graph {
	t.Helper()
	p, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	g, err := p.Compile("gold", vars)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// project is a folder of one's own over a table silver.edits.
func project(files map[string]string) fs.FS {
	out := fstest.MapFS{
		"dbt_project.yml":    {Data: []byte("name: p\nvars: {n: 3}\n")},
		"models/sources.yml": {Data: []byte("sources: [{name: silver, tables: [{name: edits}]}]\n")},
	}
	for name, text := range files {
		out[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return out
}

func (w *world) options() Options {
	return Options{Catalog: w.c, Clock: clock.System{}, Logger: slog.New(slog.DiscardHandler), Threads: 2}
}

// run runs and wants it to go well; the states are by model.
func (w *world) run(g *Graph, change func(*Options)) (*Result, map[string]ModelResult) {
	w.t.Helper()
	o := w.options()
	if change != nil {
		change(&o)
	}
	res, err := g.Run(context.Background(), o)
	if err != nil {
		w.t.Fatalf("run: %v", err)
	}
	return res, byName(res)
}

func byName(res *Result) map[string]ModelResult {
	out := map[string]ModelResult{}
	for _, m := range res.Models {
		out[m.Name] = m
	}
	return out
}

// digest is the content of a published table, whatever the order of its rows.
func (w *world) digest(name string, columns ...string) string {
	w.t.Helper()
	ctx := context.Background()
	t, err := w.c.LoadTable(ctx, ident(w.t, name))
	if err != nil {
		w.t.Fatal(err)
	}
	s, err := duck.Open(ctx, duck.Options{Threads: 1, Folder: w.dir})
	if err != nil {
		w.t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Mount(ctx, "x", "t", duck.Head(t)); err != nil {
		w.t.Fatal(err)
	}
	what := "*"
	if len(columns) > 0 {
		what = strings.Join(columns, ", ")
	}
	rows, err := s.Query(ctx, "SELECT "+what+" FROM x.t ORDER BY ALL", duck.JSON)
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	var b strings.Builder
	for {
		row, err := rows.Next()
		if err != nil {
			w.t.Fatal(err)
		}
		if row == nil {
			return b.String()
		}
		b.WriteString(row[0].String + "\n")
	}
}
