package audit

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/catalogtest"
	"github.com/weirlake/weir/internal/objstore/s3"
)

// locates checks a locator against the catalog of the shared table code.
func locates(t *testing.T, cfg lake.Config, l Locator) {
	t.Helper()
	locatesEach(t, cfg, l, table.Identifier{"a", "events"}, table.Identifier{"a", "inner", "events"})
}

func locatesEach(t *testing.T, cfg lake.Config, l Locator, idents ...table.Identifier) {
	t.Helper()
	ctx := context.Background()
	c, err := lake.Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, ident := range idents {
		tbl, err := c.EnsureTable(ctx, ident, catalogtest.Schema, catalogtest.Spec(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time after a commit: nothing is remembered
			got, err := l.MetadataLocation(ctx, lake.Name(ident))
			if err != nil || got != tbl.MetadataLocation() {
				t.Fatalf("%s: %q, %v; want %q", lake.Name(ident), got, err, tbl.MetadataLocation())
			}
			if tbl, err = c.Commit(ctx, tbl, lake.Change{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	var none *NoTableError
	for _, name := range []string{"a.nothing", "nothing.events"} {
		if _, err := l.MetadataLocation(ctx, name); !errors.As(err, &none) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTablesAreFoundInACatalogOnPostgres(t *testing.T) {
	pg := catalogtest.StartPostgres(t)
	uri := pg.URI(pg.Addr(), pg.NewDatabase())
	locates(t, lake.Config{URI: uri, Warehouse: t.TempDir()}, PostgresCatalog{URI: strings.Replace(uri, "postgres://", "postgresql+psycopg2://", 1)})
	_, err := PostgresCatalog{URI: strings.Replace(uri, ":weir@", ":hunter2@", 1)}.MetadataLocation(context.Background(), "a.events")
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a wrong password: %v", err)
	}
}

func TestTablesAreFoundBehindREST(t *testing.T) {
	const credential = "weir:a-secret"
	srv := catalogtest.StartREST(t, credential)
	url := "http://" + srv.Addr()
	locates(t, lake.Config{Type: lake.TypeREST, URI: url, REST: lake.REST{Credential: credential}}, RESTCatalog{URI: url, Credential: credential})
	_, err := RESTCatalog{URI: url, Credential: "weir:hunter2"}.MetadataLocation(context.Background(), "a.events")
	if !failure.Is(err, failure.Config) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a wrong secret: %v", err)
	}
}

func TestTablesAreFoundInGlueByMoto(t *testing.T) {
	moto := catalogtest.StartMoto(t)
	bucket := moto.Bucket("lake")
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	endpoint := "http://" + moto.Addr()
	stores, err := s3.NewStores(s3.Config{Endpoint: endpoint, Region: "us-east-1", PathStyle: true})
	if err != nil {
		t.Fatal(err)
	}
	locatesEach(t, lake.Config{
		Type: lake.TypeGlue, Warehouse: "s3://" + bucket + "/w", Stores: stores, Glue: lake.Glue{AWS: s3.Config{Region: "us-east-1", Endpoint: endpoint}},
	}, GlueCatalog{AWS: S3{Region: "us-east-1", Endpoint: endpoint}}, table.Identifier{"a", "events"})
}
