package lake_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/catalogtest"
)

var events = table.Identifier{"a", "events"}

// wrong opens a catalog that cannot be opened, and checks class and text.
func wrong(t *testing.T, cfg lake.Config, class failure.Class, want string) {
	t.Helper()
	if cfg.OpenDeadline == 0 {
		cfg.OpenDeadline = 300 * time.Millisecond
	}
	c, err := lake.Open(context.Background(), cfg)
	if err == nil {
		_ = c.Close()
		t.Errorf("opened; want %s: %s", class, want)
		return
	}
	if failure.ClassOf(err) != class || !strings.Contains(err.Error(), want) {
		t.Errorf("class %s: %v\nwant class %s with %q", failure.ClassOf(err), err, class, want)
	}
	for _, text := range []string{err.Error(), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", err)} {
		if strings.Contains(text, "hunter2") {
			t.Errorf("the error shows the password: %v", text)
		}
	}
}

func nobody(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestASQLiteFileThatIsNoCatalogIsAMatterOfConfiguration(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.db")
	if err := os.WriteFile(text, bytes.Repeat([]byte("no database "), 100), 0o600); err != nil {
		t.Fatal(err)
	}
	wrong(t, lake.Config{URI: text, Warehouse: dir}, failure.Config, "is not a SQLite database")
	wrong(t, lake.Config{URI: dir, Warehouse: dir}, failure.Config, "cannot be opened for writing")
	none := lake.Config{URI: filepath.Join(dir, "folder", "none.db"), Warehouse: dir, ReadOnly: true}
	wrong(t, none, failure.Config, "there is no catalog")
	if _, err := lake.Open(context.Background(), none); !errors.Is(err, lake.ErrNoCatalog) {
		t.Errorf("no catalog: %v", err)
	}
	if _, err := os.Stat(filepath.Dir(none.URI)); err == nil {
		t.Error("looking made a folder")
	}
}

func TestPostgresThatCannotBeReachedIsSaid(t *testing.T) {
	warehouse := t.TempDir()
	at := func(uri string) lake.Config { return lake.Config{URI: uri, Warehouse: warehouse} }
	wrong(t, at("postgres://weir:hunter2@["), failure.Config, "cannot be read")
	wrong(t, at("postgres://weir:hunter2@h:port/db"), failure.Config, "cannot be read")
	wrong(t, at("postgresql+psycopg2://weir:hunter2@"+nobody(t)+"/db"), failure.Unreachable, "does not answer")
	// Something that accepts and is not a Postgres.
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	wrong(t, at("postgres://weir:hunter2@"+srv.Listener.Addr().String()+"/db?sslmode=disable&connect_timeout=1"), failure.Unreachable, "does not answer")
}

func postgresErrors(t *testing.T, pg *catalogtest.Server) {
	warehouse := t.TempDir()
	at := func(uri string) lake.Config { return lake.Config{URI: uri, Warehouse: warehouse} }
	db := pg.NewDatabase()
	wrong(t, at(fmt.Sprintf("postgres://weir:hunter2@%s/%s", pg.Addr(), db)), failure.Config, "refuses the user")
	wrong(t, at(fmt.Sprintf("postgres://nobody:hunter2@%s/%s", pg.Addr(), db)), failure.Config, "refuses the user")
	wrong(t, at(pg.URI(pg.Addr(), "nothing")), failure.Config, `database "nothing" does not exist`)
	wrong(t, at(pg.URI(pg.Addr(), db)+"&sslmode=require"), failure.Config, "TLS")
	cfg := at(pg.URI(pg.Addr(), db))
	cfg.ReadOnly = true
	wrong(t, cfg, failure.Config, "holds no Iceberg catalog yet")

	other := pg.NewDatabase()
	pg.Exec(other, "CREATE TABLE iceberg_tables (id int)", "CREATE TABLE iceberg_namespace_properties (id int)")
	wrong(t, at(pg.URI(pg.Addr(), other)), failure.Config, "not the database of an Iceberg SQL catalog")

	// Permissions, one after the other. public is closed to others from
	// version 15 on.
	pg.Exec(db, "CREATE ROLE reader LOGIN PASSWORD 'hunter2'")
	reader := at(fmt.Sprintf("postgres://reader:hunter2@%s/%s", pg.Addr(), db))
	wrong(t, reader, failure.Config, "missing permission")
	c := open(t, at(pg.URI(pg.Addr(), db)))
	if _, err := c.EnsureTable(context.Background(), events, catalogtest.Schema, catalogtest.Spec(), nil); err != nil {
		t.Fatal(err)
	}
	wrong(t, reader, failure.Config, "missing permission")
	pg.Exec(db, "GRANT SELECT ON iceberg_tables, iceberg_namespace_properties TO reader")
	wrong(t, reader, failure.Config, "no INSERT permission on table iceberg_tables")
	reader.ReadOnly = true
	if _, err := open(t, reader).LoadTable(context.Background(), events); err != nil {
		t.Errorf("SELECT is not enough to read: %v", err)
	}

	misspelt := at(pg.URI(pg.Addr(), db))
	misspelt.Name = "wier"
	wrong(t, misspelt, failure.Config, `holds the tables of catalog "weir" and none of "wier"`)
	misspelt.NewName = true
	if _, err := open(t, misspelt).LoadTable(context.Background(), events); !errors.Is(err, lake.ErrNoTable) {
		t.Errorf("a second catalog in the database sees the first one's tables: %v", err)
	}
}

func TestSQLiteCatalogWithTheWrongNameIsRefused(t *testing.T) {
	dir := t.TempDir()
	cfg := lake.Config{URI: filepath.Join(dir, "catalog.db"), Warehouse: dir}
	if _, err := open(t, cfg).EnsureTable(context.Background(), events, catalogtest.Schema, catalogtest.Spec(), nil); err != nil {
		t.Fatal(err)
	}
	cfg.Name = "wier"
	wrong(t, cfg, failure.Config, `none of "wier"`)
}

func postgresComesUp(t *testing.T, pg *catalogtest.Server) {
	db := pg.NewDatabase()
	pg.Kill9()
	said := make(chan string, 10)
	cfg := lake.Config{URI: pg.URI(pg.Addr(), db), Warehouse: t.TempDir(), OpenDeadline: 5 * time.Minute, OnWait: func(s string) { said <- s; go pg.Restart() }}
	open(t, cfg)
	close(said)
	var all []string
	for s := range said {
		all = append(all, s)
	}
	if len(all) != 1 || !strings.Contains(all[0], pg.Addr()) || !strings.Contains(all[0], db) {
		t.Fatalf("said %q", all)
	}
}

func postgresLock(t *testing.T, pg *catalogtest.Server) {
	db := pg.NewDatabase()
	c := open(t, lake.Config{URI: pg.URI(pg.Addr(), db), Warehouse: t.TempDir()})
	tbl, err := c.EnsureTable(context.Background(), events, catalogtest.Schema, catalogtest.Spec(), nil)
	if err != nil {
		t.Fatal(err)
	}
	release := pg.Lock(db, "LOCK TABLE iceberg_tables IN SHARE MODE")
	_, err = c.Commit(context.Background(), tbl, lake.Change{})
	if err == nil || errors.Is(err, lake.ErrConflict) || errors.Is(err, lake.ErrUnknown) || !strings.Contains(err.Error(), "lock timeout") {
		t.Errorf("a commit behind a lock: %v", err)
	}
	release()
	if _, err = c.Commit(context.Background(), tbl, lake.Change{}); err != nil {
		t.Error(err)
	}
}

func postgresDurable(t *testing.T, pg *catalogtest.Server) {
	db := pg.NewDatabase()
	// Confirmed commits would stay in memory for seconds.
	pg.Exec(db, "ALTER DATABASE "+db+" SET synchronous_commit = off", "ALTER SYSTEM SET wal_writer_delay = '10s'", "SELECT pg_reload_conf()")
	c := open(t, lake.Config{URI: pg.URI(pg.Addr(), db), Warehouse: t.TempDir()})
	tbl, err := c.EnsureTable(context.Background(), events, catalogtest.Schema, catalogtest.Spec(), nil)
	if err != nil {
		t.Fatal(err)
	}
	after, err := c.Commit(context.Background(), tbl, lake.Change{})
	if err != nil {
		t.Fatal(err)
	}
	pg.Kill9()
	pg.Restart()
	if got, err := c.LoadTable(context.Background(), events); err != nil || lake.HeadOf(got) != lake.HeadOf(after) {
		t.Fatalf("a confirmed commit is gone: %v", err)
	}
}

func restAt(url string) lake.Config {
	return lake.Config{Type: lake.TypeREST, URI: url, REST: lake.REST{Credential: "weir:hunter2"}}
}

func restRefusesTheSecret(t *testing.T, srv *catalogtest.Server) {
	wrong(t, restAt("http://"+srv.Addr()), failure.Config, "gets no token")
	nothing := restAt("http://" + srv.Addr())
	nothing.REST = lake.REST{}
	wrong(t, nothing, failure.Config, "does not accept who we are")
}

// restTable opens a REST catalog over a line, with one table.
func restTable(t *testing.T, srv *catalogtest.Server, ident table.Identifier) (*lake.Catalog, *catalogtest.RESTLine, *table.Table) {
	t.Helper()
	line := catalogtest.NewRESTLine(t, srv.Addr())
	c := open(t, lake.Config{Type: lake.TypeREST, URI: line.URL(), REST: lake.REST{Credential: credential}})
	tbl, err := c.EnsureTable(context.Background(), ident, catalogtest.Schema, catalogtest.Spec(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return c, line, tbl
}

func restDistorted(t *testing.T, srv *catalogtest.Server) {
	events := table.Identifier{"distorted", "events"}
	c, line, tbl := restTable(t, srv, events)
	// A proxy that repeats the request gets a conflict with our own commit.
	line.SendTwice()
	after, err := c.Commit(context.Background(), tbl, lake.Change{Properties: map[string]string{"n": "1"}})
	if err != nil {
		t.Fatalf("a commit that was made and repeated: %v", err)
	}
	if after.Properties()["n"] != "1" || lake.HeadOf(after).Sequence != 1 {
		t.Fatalf("not our commit: %v", lake.HeadOf(after))
	}
	// A gateway that gives up on a commit that is made.
	line.FailAfter()
	if _, err = c.Commit(context.Background(), after, lake.Change{}); !errors.Is(err, lake.ErrUnknown) {
		t.Fatalf("503 after a commit: %v", err)
	}
	cur, err := c.LoadTable(context.Background(), events)
	if err != nil || lake.HeadOf(cur).Sequence != 2 {
		t.Fatalf("head %v, %v", lake.HeadOf(cur), err)
	}
	// A real conflict stays one.
	if _, err = c.Commit(context.Background(), after, lake.Change{}); !lake.IsConflict(err) {
		t.Fatalf("a stale commit: %v", err)
	}
	// A server that no longer knows the token, in the middle of it.
	var refused atomic.Int64
	line.Intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost || strings.HasSuffix(r.URL.Path, "/oauth/tokens") || refused.Add(1) > 1 {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	if cur, err = c.Commit(context.Background(), cur, lake.Change{}); err != nil || refused.Load() != 2 {
		t.Fatalf("a commit with an old token: %v after %d requests", err, refused.Load())
	}
	for _, tc := range []struct {
		status int
		body   string
		want   func(error) bool
		what   string
	}{
		{403, `{"error":{"message":"no","type":"ForbiddenException","code":403}}`, func(err error) bool { return failure.Is(err, failure.Config) }, "a configuration failure"},
		{400, `{"error":{"message":"no","type":"BadRequestException","code":400}}`, notMade, "not made"},
		{429, `{}`, notMade, "not made"},
		{500, `{"error":{"message":"?","type":"CommitStateUnknownException","code":500}}`, unknown, "unknown"},
		{502, `<html>`, unknown, "unknown"},
		{504, ``, unknown, "unknown"},
		{200, ``, unknown, "unknown"},
		{200, `{"metadata-location":"x","metadata":{}}`, unknown, "unknown"},
		{404, `<html>`, notMade, "not made"},
		// Nobody moved the table: it is not known what conflicted.
		{409, `{"error":{"message":"locked","type":"CommitFailedException","code":409}}`, unknown, "unknown"},
	} {
		line.Intercept = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodPost || !strings.Contains(r.URL.Path, "/tables") {
				return false
			}
			if strings.HasPrefix(tc.body, "{") {
				w.Header().Set("Content-Type", "application/json")
			}
			w.WriteHeader(tc.status)
			fmt.Fprint(w, tc.body)
			return true
		}
		if _, err := c.Commit(context.Background(), cur, lake.Change{}); !tc.want(err) {
			t.Errorf("HTTP %d %s: %v; want %s", tc.status, tc.body, err, tc.what)
		}
	}
}

func unknown(err error) bool { return errors.Is(err, lake.ErrUnknown) }

func notMade(err error) bool {
	return err != nil && !errors.Is(err, lake.ErrUnknown) && !lake.IsConflict(err) && !failure.Is(err, failure.Config)
}

func restOwnWord(t *testing.T, srv *catalogtest.Server) {
	events := table.Identifier{"ownword", "events"}
	c, line, _ := restTable(t, srv, events)
	line.Intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/tables/") {
			return false
		}
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, "<html>no such backend</html>")
		return true
	}
	if _, err := c.LoadTable(context.Background(), events); err == nil || errors.Is(err, lake.ErrNoTable) {
		t.Errorf("a proxy's 404: %v", err)
	}
	line.Intercept = nil
	if _, err := c.LoadTable(context.Background(), table.Identifier{"a", "nothing"}); !errors.Is(err, lake.ErrNoTable) {
		t.Errorf("the catalog's 404: %v", err)
	}
}

func TestHeadersGoWithEveryRESTRequestAndNoTokenIsSentWithoutOne(t *testing.T) {
	var seen, total atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		total.Add(1)
		if r.Header.Get("X-Tenant") == "a" && r.Header.Get("Authorization") == "" && r.URL.Query().Get("warehouse") == "w" {
			seen.Add(1)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"defaults":{},"overrides":{}}`)
	}))
	defer srv.Close()
	open(t, lake.Config{Type: lake.TypeREST, URI: srv.URL, REST: lake.REST{Warehouse: "w", Headers: map[string]string{"X-Tenant": "a"}}})
	if total.Load() == 0 || seen.Load() != total.Load() {
		t.Fatalf("%d of %d requests", seen.Load(), total.Load())
	}
}

func TestAWarehouseThatCannotBeWrittenToIsAMatterOfConfiguration(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := open(t, lake.Config{URI: filepath.Join(dir, "catalog.db"), Warehouse: filepath.Join(file, "warehouse")})
	_, err := c.EnsureTable(context.Background(), events, catalogtest.Schema, catalogtest.Spec(), nil)
	if !failure.Is(err, failure.Config) || !strings.Contains(err.Error(), "warehouse cannot be written to") {
		t.Errorf("class %s: %v", failure.ClassOf(err), err)
	}
}
