package iceberg_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/catalogtest"
	"github.com/weirlake/weir/internal/objstore/s3"
	"github.com/weirlake/weir/internal/sink/sinktest"
)

func TestConformanceOverPostgres(t *testing.T) {
	pg := catalogtest.StartPostgres(t)
	sinktest.Run(t, func(t *testing.T) sinktest.Harness {
		dir := t.TempDir()
		l := lakeStore{dir: dir, config: &lake.Config{URI: pg.URI(pg.Addr(), pg.NewDatabase()), Warehouse: filepath.Join(dir, "warehouse")}}
		return l.harness()
	})
}

func TestConformanceOverREST(t *testing.T) {
	const credential = "weir:a-secret"
	srv := catalogtest.StartREST(t, credential)
	n := 0
	sinktest.Run(t, func(t *testing.T) sinktest.Harness {
		n++
		ns := fmt.Sprintf("bronze%d", n)
		l := lakeStore{
			objects: filepath.Join(srv.Warehouse(), ns), table: table.Identifier{ns, "events"},
			config: &lake.Config{Type: lake.TypeREST, URI: "http://" + srv.Addr(), REST: lake.REST{Credential: credential}},
		}
		return l.harness()
	})
}

// The catalog is moto's Glue, an emulation, behind a proxy that looks at the
// version of an update as AWS does; the files are local.
func TestConformanceOverGlueByMoto(t *testing.T) {
	line := catalogtest.NewGlueLine(t, catalogtest.StartMoto(t))
	n := 0
	sinktest.Run(t, func(t *testing.T) sinktest.Harness {
		n++
		dir := t.TempDir()
		l := lakeStore{
			objects: filepath.Join(dir, "warehouse"), table: table.Identifier{fmt.Sprintf("bronze%d", n), "events"},
			config: &lake.Config{Type: lake.TypeGlue, Warehouse: filepath.Join(dir, "warehouse"), Glue: lake.Glue{AWS: s3.Config{
				Region: "us-east-1", Endpoint: line.URL(), Credentials: s3.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}}}},
		}
		return l.harness()
	})
}

// A change of columns goes through the servers' own code: what Java's catalog and
// a database make of it is read back by another client.
func TestColumnsChangeOverRESTAndPostgres(t *testing.T) {
	check := func(t *testing.T, l lakeStore) {
		evolve(t, l)
		tbl := l.load(t, l.catalog(t))
		if f, ok := tbl.Schema().FindFieldByName("editor"); !ok || f.ID != 6 || len(l.ids(t)) != 3 {
			t.Fatalf("%s, ids %v", tbl.Schema(), l.ids(t))
		}
		if _, err := start(l.defined(t, "q", after(), lake.CommitHooks{})); err != nil {
			t.Fatal(err)
		}
		if now := l.load(t, l.catalog(t)).Schema(); !now.Equals(tbl.Schema()) {
			t.Fatalf("another start made %s of %s", now, tbl.Schema())
		}
	}
	t.Run("REST", func(t *testing.T) {
		const credential = "weir:a-secret"
		srv := catalogtest.StartREST(t, credential)
		check(t, lakeStore{
			objects: filepath.Join(srv.Warehouse(), "columns"), table: table.Identifier{"columns", "events"},
			config: &lake.Config{Type: lake.TypeREST, URI: "http://" + srv.Addr(), REST: lake.REST{Credential: credential}},
		})
	})
	t.Run("Postgres", func(t *testing.T) {
		pg := catalogtest.StartPostgres(t)
		dir := t.TempDir()
		check(t, lakeStore{dir: dir, config: &lake.Config{URI: pg.URI(pg.Addr(), pg.NewDatabase()), Warehouse: filepath.Join(dir, "warehouse")}})
	})
}
