package lake_test

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/catalogtest"
)

func open(t *testing.T, cfg lake.Config) *lake.Catalog {
	t.Helper()
	c, err := lake.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestSQLiteConformance(t *testing.T) {
	catalogtest.Run(t, "SQL: SQLite", func(t *testing.T) catalogtest.Harness {
		dir := t.TempDir()
		cfg := lake.Config{URI: filepath.Join(dir, "catalog.db"), Warehouse: filepath.Join(dir, "warehouse")}
		return catalogtest.Harness{Namespace: "a", Open: func(t *testing.T) *lake.Catalog { return open(t, cfg) }}
	})
}

// subtest is one that shares its server with others.
type subtest struct {
	name string
	run  func(t *testing.T, s *catalogtest.Server)
}

func TestPostgres(t *testing.T) {
	pg := catalogtest.StartPostgres(t)
	for _, c := range []subtest{
		{"Conformance", postgresConformance},
		{"EveryWayThatItCanBeWrongIsSaid", postgresErrors},
		{"OpenWaitsUntilItComesUpAndSaysWhatForOnce", postgresComesUp},
		{"WaitForALockIsBounded", postgresLock},
		{"ConfirmedCommitSurvivesAKillWhereTheDatabaseSaysOtherwise", postgresDurable},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, pg) })
	}
}

func postgresConformance(t *testing.T, pg *catalogtest.Server) {
	catalogtest.Run(t, "SQL: Postgres", func(t *testing.T) catalogtest.Harness {
		database, warehouse := pg.NewDatabase(), t.TempDir()
		at := func(addr string) lake.Config {
			return lake.Config{URI: pg.URI(addr, database), Warehouse: warehouse}
		}
		return catalogtest.Harness{
			Namespace: "a",
			Open:      func(t *testing.T) *lake.Catalog { return open(t, at(pg.Addr())) },
			Faulty: func(t *testing.T) (*lake.Catalog, catalogtest.Faults) {
				line := catalogtest.NewLine(t, pg.Addr(), func(b []byte) bool {
					return bytes.Contains(bytes.ToLower(b), []byte("commit\x00"))
				})
				return open(t, at(line.Addr())), line
			},
			Kill: pg.Kill9, Restart: pg.Restart,
		}
	})
}

const credential = "weir:a-secret"

func TestREST(t *testing.T) {
	srv := catalogtest.StartREST(t, credential)
	for _, c := range []subtest{
		{"Conformance", restConformance},
		{"WrongAndMissingSecretsAreSaid", restRefusesTheSecret},
		{"CommitsThatProxiesAndServersDistortAreToldApart", restDistorted},
		{"OnlyTheCatalogsOwnWordMeansThatATableDoesNotExist", restOwnWord},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, srv) })
	}
}

func restConformance(t *testing.T, srv *catalogtest.Server) {
	var n atomic.Int64
	catalogtest.Run(t, "REST: Apache Iceberg's server", func(t *testing.T) catalogtest.Harness {
		at := func(url string) lake.Config {
			return lake.Config{Type: lake.TypeREST, URI: url, REST: lake.REST{Credential: credential}}
		}
		return catalogtest.Harness{
			Namespace: fmt.Sprintf("ns%d", n.Add(1)),
			Open:      func(t *testing.T) *lake.Catalog { return open(t, at("http://"+srv.Addr())) },
			Faulty: func(t *testing.T) (*lake.Catalog, catalogtest.Faults) {
				line := catalogtest.NewRESTLine(t, srv.Addr())
				return open(t, at(line.URL())), line
			},
			Kill: srv.Kill9, Restart: srv.Restart,
		}
	})
}
