package duck

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/iceberg-go"

	_ "github.com/weirlake/weir/internal/duck/link" // the tests run statements
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
)

func TestTimeTravelIsRewrittenOutsideOfStringsAndComments(t *testing.T) {
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for in, want := range map[string]struct {
		sql     string
		travels []Travel
	}{
		"SELECT * FROM silver.edits AT (VERSION => 7) e": {`SELECT * FROM "silver@7"."edits" e`, []Travel{{"silver", "edits", AsOf{Snapshot: 7}}}},
		"SELECT * FROM silver.edits at ( timestamp=>'2026-01-31 12:00' ) WHERE x": {
			`SELECT * FROM "silver@2026-01-31T12:00:00Z"."edits" WHERE x`, []Travel{{"silver", "edits", AsOf{Time: at}}}},
		`FROM "s".t FOR VERSION AS OF 7 JOIN s.t FOR SYSTEM_TIME AS OF TIMESTAMP '2026-01-31 12:00:00' USING (x)`: {
			`FROM "s@7"."t" JOIN "s@2026-01-31T12:00:00Z"."t" USING (x)`, []Travel{{"s", "t", AsOf{Snapshot: 7}}, {"s", "t", AsOf{Time: at}}}},
		"SELECT 's.t AT (VERSION => 7)', e.at -- s.t AT (VERSION => 7)\nFROM s.t e": {"SELECT 's.t AT (VERSION => 7)', e.at -- s.t AT (VERSION => 7)\nFROM s.t e", nil},
		"SELECT a.b.c AT (VERSION => 7)":                                            {`SELECT "a.b@7"."c"`, []Travel{{"a.b", "c", AsOf{Snapshot: 7}}}},
		"SELECT x.y FOR 1":                                                          {"SELECT x.y FOR 1", nil},
	} {
		sql, travels, err := Travels(in)
		if err != nil || sql != want.sql || !slices.Equal(travels, want.travels) {
			t.Errorf("%s\n  gives %s, %v, %v\n  want  %s, %v", in, sql, travels, err, want.sql, want.travels)
		}
	}
	for _, bad := range []string{"FROM s.t AT (VERSION => )", "FROM s.t AT (VERSION => 'yesterday')", "FROM s.t AT (VERSION => 7", "FROM s.t FOR VERSION AS OF x"} {
		if _, _, err := Travels(bad); !failure.Is(err, failure.Config) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestAScriptIsCutAtItsSemicolons(t *testing.T) {
	got := Statements("select ';' ; -- a; b\n/* ; /* ; */ */ select $$ ; $$;; select \"a;b\"")
	want := []string{"select ';'", "-- a; b\n/* ; /* ; */ */ select $$ ; $$", `select "a;b"`}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	for s, want := range map[string]bool{"select 1;": true, "select 1; -- done": true, "select ';": false, "select 1": false} {
		if Complete(s) != want {
			t.Errorf("Complete(%q) is %t", s, !want)
		}
	}
}

func TestOnlyQueriesAreReads(t *testing.T) {
	for _, ok := range []string{"select 1", "with x as (select 1) from x", "(select 1)", "explain select 1", "explain analyze select 1", "describe x", "/* c */ from x"} {
		if err := CheckReads(ok); err != nil {
			t.Errorf("%s: %v", ok, err)
		}
	}
	for _, bad := range []string{"insert into x values (1)", "copy x to 'y'", "explain analyze copy x to 'y'", "explain explain copy x", "attach 'x'", "set a = 1", "install httpfs", "pragma x", "call x()", ""} {
		if err := CheckReads(bad); !failure.Is(err, failure.Config) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestTypesGoToIcebergAndBack(t *testing.T) {
	n := 0
	next := func() int { n++; return n }
	for duckType, want := range map[string]string{
		"BIGINT": "long", "SMALLINT": "int", "DECIMAL(9,2)": "decimal(9, 2)", "HUGEINT": "decimal(38, 0)", "VARCHAR[]": "list<string>",
		"MAP(VARCHAR, INTEGER)": "map<string, int>", "ENUM('a', ')b')": "string", "INTEGER[3][]": "list<list<int>>",
		`STRUCT(a INTEGER, "b c" STRUCT(d DOUBLE)[])`: "",
	} {
		got, cast, err := Stored(duckType, next)
		if err != nil {
			t.Errorf("%s: %v", duckType, err)
			continue
		}
		if want != "" && got.String() != want {
			t.Errorf("%s is kept as %s, want %s", duckType, got, want)
		}
		if back, err := TypeOf(got); err != nil || (cast == "" && !strings.EqualFold(back, duckType)) {
			t.Errorf("%s comes back as %s, %v", duckType, back, err)
		}
	}
	for _, bad := range []string{"INTERVAL", "TIMESTAMP_NS", "UNION(a INTEGER)", "STRUCT(a INTERVAL)", "BIT"} {
		if _, _, err := Stored(bad, next); err == nil {
			t.Errorf("%s is kept", bad)
		}
	}
}

func TestALockedSessionReadsTheTablesAndNothingElse(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	secret := filepath.Join(t.TempDir(), "secret.csv")
	if err := os.WriteFile(secret, []byte("a\n1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := lake.Open(ctx, lake.Config{URI: filepath.Join(dir, "catalog.db"), Warehouse: filepath.Join(dir, "warehouse")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sc := iceberg.NewSchema(0, iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64})
	if _, err := c.EnsureTable(ctx, []string{"a", "b"}, sc, *iceberg.UnpartitionedSpec, nil); err != nil {
		t.Fatal(err)
	}
	s, err := Open(ctx, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	sh, err := NewShelf(ctx, s, c, AsOf{})
	if err != nil {
		t.Fatal(err)
	}
	q, err := sh.Prepare(ctx, "SELECT count(*) FROM a.b")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s.Count(ctx, q); err != nil || n != 0 {
		t.Errorf("%d, %v", n, err)
	}
	for _, bad := range []string{
		"SELECT * FROM read_csv('" + secret + "')", "COPY (SELECT 1) TO '" + secret + "'", "ATTACH '" + filepath.Join(dir, "x.duckdb") + "'",
		"SET enable_external_access = true", "SELECT * FROM read_csv('http://127.0.0.1:1/x')", "SELECT * FROM read_text('" + filepath.Join(dir, "catalog.db") + "')",
	} {
		if err := s.Exec(ctx, bad); err == nil {
			t.Errorf("%s was allowed", bad)
		}
	}
	if _, err := sh.Prepare(ctx, "SELECT id FROM a.b AT (VERSION => 12)"); !failure.Is(err, failure.Config) || !strings.Contains(err.Error(), "no snapshot 12") {
		t.Errorf("a snapshot that there is not: %v", err)
	}
	if len(sh.Tables()) != 1 || sh.Find("A.B") == nil {
		t.Errorf("tables %v", sh.Tables())
	}
}

func TestAStatementsFaultIsTheUsers(t *testing.T) {
	ctx := context.Background()
	s, err := Open(ctx, Options{Threads: 1, MemoryLimit: "100MB"})
	if err != nil {
		t.Fatal(err)
	}
	folder := s.Folder()
	for _, bad := range []string{"SELEC 1", "SELECT nope", "SELECT * FROM nope", "SELECT CAST('x' AS INTEGER)", "SELECT error('no')"} {
		err := s.Exec(ctx, bad)
		if !failure.Is(err, failure.Config) || !strings.Contains(err.Error(), "Error") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	rows, err := s.Query(ctx, "SELECT 1 AS a, NULL AS b, [1.5] AS c", JSON)
	if err != nil {
		t.Fatal(err)
	}
	if row, err := rows.Next(); err != nil || row[0].String != `{"a":1,"b":null,"c":[1.5]}` {
		t.Errorf("%v, %v", row, err)
	}
	if err := rows.Close(); err != nil {
		t.Error(err)
	}
	stopped, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.Exec(stopped, "SELECT 1"); !errors.Is(err, context.Canceled) {
		t.Errorf("a stopped statement: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the session's folder stays: %v", err)
	}
}
