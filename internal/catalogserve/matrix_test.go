package catalogserve_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/catalogtest"
	"github.com/weirlake/weir/internal/objstore/s3"
)

const (
	// envMatrix names where the table of engines and catalogs is written; without it
	// the test does not run.
	envMatrix = "WEIR_ATTACH"
	// restCredential is what Iceberg's own REST server asks for.
	restCredential = "weir:a-secret"
	awsRegion      = "us-east-1"
)

// way is how an engine gets to a catalog: its settings, or why there is none.
type way struct {
	settings map[string]string
	none     string
}

func by(keysAndValues ...string) way {
	w := way{settings: map[string]string{}}
	for i := 0; i < len(keysAndValues); i += 2 {
		w.settings[keysAndValues[i]] = keysAndValues[i+1]
	}
	return w
}

// place is one catalog with the same tables as every other one.
type place struct {
	what string // as the table calls it
	name string // the catalog's own, which engines with JDBC must be told
	lake lakehouse
	ways map[string]way // by engine
	skip string         // why it is not there
}

const (
	inPyIceberg = "PyIceberg"
	inDuckDB    = "DuckDB"
	inSpark     = "Spark"
)

func engines() map[string]engine {
	reader := newEngine("attach_pyiceberg.py", "WEIR_ATTACH_PYTHON", "venv-attach/bin/python", "scripts/venv.sh attach, or set WEIR_ATTACH_PYTHON")
	return map[string]engine{inPyIceberg: reader, inDuckDB: duckDB(), inSpark: spark()}
}

// TestEveryEngineCountsTheSameThroughEveryCatalog writes a table of what each
// engine counts, or why it could not be asked.
func TestEveryEngineCountsTheSameThroughEveryCatalog(t *testing.T) {
	report := os.Getenv(envMatrix)
	if report == "" {
		t.Skip("starts a Postgres, Iceberg's REST server, moto, DuckDB and Spark: run make attach, or set " + envMatrix)
	}
	places := []*place{sqlitePlace(t), postgresPlace(t), restPlace(t), gluePlace(t)}
	cells := map[string]string{}
	for name, e := range engines() {
		asked := wanted{Catalogs: map[string]map[string]string{}}
		for _, p := range places {
			switch w := p.ways[name]; {
			case p.skip != "":
				cells[name+p.name] = "skipped: " + p.skip
			case w.none != "":
				cells[name+p.name] = w.none
			case e.missing != "":
				cells[name+p.name] = "skipped: " + e.missing
			default:
				asked.Catalogs[p.name] = w.settings
			}
		}
		if len(asked.Catalogs) == 0 {
			continue
		}
		got, err := e.ask(t, asked)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, p := range places {
			if asked.Catalogs[p.name] == nil {
				continue
			}
			cells[name+p.name] = shown(got.Counts[p.name])
			if !maps.Equal(got.Counts[p.name], p.lake.rows) {
				t.Errorf("%s through %s counts %v; want %v", name, p.what, got.Counts[p.name], p.lake.rows)
			}
		}
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "engine\tcatalog\tcounts")
	for _, name := range []string{inPyIceberg, inDuckDB, inSpark} {
		for _, p := range places {
			fmt.Fprintf(w, "%s\t%s\t%s\n", name, p.what, cells[name+p.name])
		}
	}
	_ = w.Flush()
	if err := os.WriteFile(report, []byte(b.String()), 0o600); err != nil {
		t.Error(err)
	}
	t.Log("\n" + b.String())
}

func shown(counts map[string]int) string {
	var out []string
	for _, table := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, fmt.Sprintf("%s=%d", table, counts[table]))
	}
	return strings.Join(out, " ")
}

// noted notes why a server cannot be had, in place of skipping the whole test.
type noted struct {
	testing.TB
	why *string
}

func (n noted) Skipf(format string, args ...any) {
	*n.why = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// placed makes a place. What skips ends its own goroutine only.
func placed(t *testing.T, what, name string, build func(servers testing.TB) (lakehouse, map[string]way)) *place {
	t.Helper()
	p := &place{what: what, name: name}
	built := make(chan bool)
	go func() {
		defer close(built)
		p.lake, p.ways = build(noted{t, &p.skip})
	}()
	<-built
	if p.ways == nil && p.skip == "" {
		t.FailNow()
	}
	return p
}

func sqlitePlace(t *testing.T) *place {
	return placed(t, "SQL: SQLite", "in_sqlite", func(testing.TB) (lakehouse, map[string]way) {
		dir := t.TempDir()
		file, warehouse := filepath.Join(dir, "catalog.db"), "file://"+filepath.Join(dir, "warehouse")
		l := fill(t, lake.Config{Name: "in_sqlite", URI: file, Warehouse: filepath.Join(dir, "warehouse")})
		return l, map[string]way{
			inPyIceberg: by("type", "sql", "uri", "sqlite:///"+file, "init_catalog_tables", "false"),
			inDuckDB:    by("uri", l.serve(t, "")),
			inSpark:     by("type", "jdbc", "uri", "jdbc:sqlite:"+file, "warehouse", warehouse),
		}
	})
}

func postgresPlace(t *testing.T) *place {
	return placed(t, "SQL: Postgres", "in_postgres", func(servers testing.TB) (lakehouse, map[string]way) {
		pg := catalogtest.StartPostgres(servers)
		warehouse := t.TempDir()
		uri := pg.URI(pg.Addr(), pg.NewDatabase())
		l := fill(t, lake.Config{Name: "in_postgres", URI: uri, Warehouse: warehouse})
		who, address, _ := strings.Cut(strings.TrimPrefix(uri, "postgres://"), "@")
		user, password, _ := strings.Cut(who, ":")
		return l, map[string]way{
			inPyIceberg: by("type", "sql", "uri", strings.Replace(uri, "postgres://", "postgresql+psycopg://", 1), "init_catalog_tables", "false"),
			inDuckDB:    by("uri", l.serve(t, "")),
			inSpark: by("type", "jdbc", "uri", "jdbc:postgresql://"+address, "jdbc.user", user, "jdbc.password", password,
				"warehouse", "file://"+warehouse),
		}
	})
}

func restPlace(t *testing.T) *place {
	return placed(t, "REST: Apache Iceberg's server", "in_rest", func(servers testing.TB) (lakehouse, map[string]way) {
		url := "http://" + catalogtest.StartREST(servers, restCredential).Addr()
		l := fill(t, lake.Config{Type: lake.TypeREST, URI: url, REST: lake.REST{Credential: restCredential}})
		w := by("type", "rest", "uri", url, "credential", restCredential, "scope", "catalog")
		return l, map[string]way{inPyIceberg: w, inDuckDB: w, inSpark: w}
	})
}

func gluePlace(t *testing.T) *place {
	return placed(t, "Glue: moto, an emulation", "in_glue", func(servers testing.TB) (lakehouse, map[string]way) {
		moto := catalogtest.StartMoto(servers)
		url, keys := "http://"+moto.Addr(), s3.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}
		stores, err := s3.NewStores(s3.Config{Endpoint: url, Region: awsRegion, PathStyle: true, Credentials: keys})
		if err != nil {
			t.Fatal(err)
		}
		l := fill(t, lake.Config{Type: lake.TypeGlue, Warehouse: "s3://" + moto.Bucket("lake") + "/warehouse", Stores: stores,
			Glue: lake.Glue{AWS: s3.Config{Region: awsRegion, Endpoint: url, Credentials: keys}}})
		none := "not tried: AWS's own client for Java, or extension, is needed; it attaches to `weir catalog serve`"
		return l, map[string]way{
			inPyIceberg: by("type", "glue", "glue.endpoint", url, "s3.endpoint", url, "client.region", awsRegion,
				"client.access-key-id", keys.AccessKeyID, "client.secret-access-key", keys.SecretAccessKey),
			inDuckDB: {none: none}, inSpark: {none: none},
		}
	})
}
