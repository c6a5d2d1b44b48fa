package audit

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// walCatalog makes a catalog file in WAL mode with one table in it.
func walCatalog(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	for _, q := range []string{"PRAGMA journal_mode=WAL",
		"CREATE TABLE iceberg_tables (catalog_name TEXT, table_namespace TEXT, table_name TEXT, metadata_location TEXT)",
		"INSERT INTO iceberg_tables VALUES ('weir', 'a', 't', 'one'), ('other', 'a', 't', 'two')"} {
		if _, err := db.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	return db
}

func TestTheCatalogIsReadWhateverItsFolderIsCalledAndWhetherAWriterLives(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "100% odd?name#1")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	real := filepath.Join(t.TempDir(), "catalog.db")
	db := walCatalog(t, real)
	read := func(path, want string) {
		t.Helper()
		got, err := SQLiteCatalog{Path: path}.MetadataLocation(context.Background(), "a.t")
		if err != nil || got != want {
			t.Fatalf("got %q, %v; want %q", got, err, want)
		}
	}
	read(real, "one")
	// A writer that was killed leaves the log behind: a copy of all files shows
	// the same.
	for _, suffix := range []string{"", "-wal"} {
		b, err := os.ReadFile(real + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "catalog.db"+suffix), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	read(filepath.Join(dir, "catalog.db"), "one")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	read(real, "one")
	var none *NoTableError
	if _, err := (SQLiteCatalog{Path: real}).MetadataLocation(context.Background(), "a.other"); !errors.As(err, &none) {
		t.Errorf("a table that is not there: %v", err)
	}
}

func TestATableIsFoundByItsFolderToo(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 40)
	tbl := f.append(f.create("bronze.r", bronzeSchema), reached(40), span0(0, 0, 40)...)
	for _, name := range []string{tbl.Location(), tbl.MetadataLocation()} {
		rep, err := Run(context.Background(), Config{Catalog: PathCatalog{}, Brokers: f.brokers, Tables: []TableConfig{{Name: name, Topic: topic}}})
		if err != nil {
			t.Fatal(err)
		}
		expect(t, rep.Tables[0], Exact, nil, nil)
	}
}

func TestColumnsOfOtherPeoplesTablesAreNamed(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 5)
	f.append(f.create("silver.e", silverSchema), nil, span0(0, 0, 5)...)
	rep := f.audit(TableConfig{Name: "silver.e", Topic: topic, Columns: Columns{Partition: "kafka_partition", Offset: "kafka_offset"}})
	expect(t, rep.Tables[0], Exact, nil, nil)
}

func TestATableThatMovesOnDuringTheAuditIsJudgedAtItsPinnedSnapshot(t *testing.T) {
	f := newFixture(t, 1)
	f.publish(0, 40)
	tbl := f.append(f.create("bronze.r", bronzeSchema), reached(20), span0(0, 0, 20)...)
	catalog := &movingCatalog{Locator: SQLiteCatalog{Path: filepath.Join(f.dir, "catalog.db")}}
	// The writer commits between the first question and the last.
	catalog.after = func() { tbl = f.append(tbl, reached(40), span0(0, 20, 40)...) }
	cfg := Config{Catalog: catalog, Brokers: f.brokers, Tables: []TableConfig{{Name: "bronze.r", Topic: topic}}}
	rep, err := Run(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, rep.Tables[0], Exact, nil, nil)
	if rep.Tables[0].Rows != 20 || len(rep.Tables[0].Notes) == 0 {
		t.Errorf("%+v", rep.Tables[0])
	}
	// A reader that must not be stale begins again and sees the newest.
	catalog.asked = 0
	catalog.after = func() { tbl = f.property(tbl, "x", "y") }
	cfg.RequireStill = true
	if rep, err = Run(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
	if rep.Tables[0].Rows != 40 || rep.Tables[0].Outcome != Exact {
		t.Errorf("%+v", rep.Tables[0])
	}
	// One that is rewritten every time cannot be judged.
	catalog.every = func() { tbl = f.property(tbl, "x", tbl.MetadataLocation()) }
	if rep, err = Run(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
	if rep.Tables[0].Outcome != Inconclusive {
		t.Errorf("%+v", rep.Tables[0])
	}
}

// movingCatalog lets a writer commit after a question was answered.
type movingCatalog struct {
	Locator
	asked        int
	after, every func()
}

func (c *movingCatalog) MetadataLocation(ctx context.Context, name string) (string, error) {
	location, err := c.Locator.MetadataLocation(ctx, name)
	c.asked++
	if c.asked == 1 && c.after != nil {
		c.after()
	}
	if c.every != nil {
		c.every()
	}
	return location, err
}
