package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/lake/catalogtest"
	"github.com/weirlake/weir/internal/s3test"
)

// rebuildable is a lab with sessions, for a catalog that the test puts in.
func rebuildable(t *testing.T) *lab {
	t.Helper()
	slowCatalogs(t)
	return erasable(t)
}

// slowCatalogs skips where nobody asked for minutes of real catalogs.
func slowCatalogs(t *testing.T) {
	t.Helper()
	if os.Getenv("WEIR_CATALOGS") == "" {
		t.Skip("rebuilds on real catalogs take minutes: make catalogs, or WEIR_CATALOGS=1")
	}
	weirBin(t)
	python(t)
}

// pyIceberg counts silver as PyIceberg reads it, through the same catalog.
type pyIceberg func(l *lab) counted

// throughREST counts behind a REST catalog.
func throughREST(url string, properties ...string) pyIceberg {
	return func(l *lab) (c counted) {
		args := []string{"--catalog", url, "--table", labSilver}
		for _, p := range properties {
			args = append(args, "--property", p)
		}
		reader(l.t, &c, "count_iceberg.py", args...)
		return c
	}
}

// rebuildsAndErases makes silver and its sessions anew and erases a user, on the
// catalog and the store that the lab is on, killed at the steps that touch them.
// PyIceberg counts what was swapped in.
func (l *lab) rebuildsAndErases(count pyIceberg) {
	l.t.Helper()
	holds := func(want int64) {
		l.t.Helper()
		l.silverRows(want)
		if c := count(l); c.Rows != want || c.DistinctIDs != want || c.DistinctOffsets != want {
			l.t.Fatalf("PyIceberg counts %+v in silver, want %d rows", c, want)
		}
	}
	now := time.Now()
	for i := range 12 {
		l.sendValues(did("joe", fmt.Sprintf("joe-%d", i), "edit", now), did("jane", fmt.Sprintf("jane-%d", i), "edit", now))
		if i%4 == 0 {
			l.sendValues(did("ann", fmt.Sprintf("ann-%d", i), "log", now))
		}
	}
	l.sendValues(`{"id":"d","user":"joe","kind":"edit","dt":"never"}`)
	l.run(exitOK)
	holds(24)

	l.edit(`filter: "kind = 'edit'"`, `filter: "kind IN ('edit', 'log')"`)
	for _, point := range []string{"silver/" + fault.CommitMetadata, "rebuild/" + fault.RebuildBuilt, "rebuild/" + fault.RebuildKept, "rebuild/" + fault.CommitMetadata,
		"rebuild/" + fault.RebuildSide, "rebuild/" + fault.RebuildSwapped, "rebuild/" + fault.RebuildAdopted} {
		l.crashes(point+":1", "rebuild", l.file, "silver")
	}
	if r := l.rebuild("silver").Rebuilds; len(r) != 1 || !r[0].Swapped || !r[0].Resumed || r[0].Rows != 27 || r[0].RowsBefore != 24 {
		l.t.Fatalf("%+v", r)
	}
	if r := l.rebuild("sessions").Rebuilds; len(r) != 1 || !r[0].Swapped {
		l.t.Fatalf("%+v", r)
	}
	holds(27)

	for _, point := range []string{fault.EraseStaged + ":1", fault.CommitMetadata + ":1", fault.EraseCommitted + ":3", fault.EraseRecorded + ":1"} {
		l.crashes("erase/"+point, "erase", l.file, "--table", labSilver, "--where", "user = 'jane'", "--id", "gdpr-1")
	}
	l.erase("--id", "gdpr-1", "--expire")
	// The queries go on behind both, and what is erased does not come back.
	l.sendValues(did("joe", "joe-next", "edit", now.Add(50*time.Minute)))
	l.run(exitOK)
	holds(16)
	l.erasedIs(12, 12)
	l.rebuild("silver", "sessions")
	holds(16)
	var dropped struct{ Dropped []struct{ Tags []string } }
	mustJSON(l.t, &dropped, "rebuild", l.file, "silver", "--drop-old")
	if len(dropped.Dropped) == 0 {
		l.t.Error("no tag kept the rows from before")
	}
}

// served counts through weir catalog serve, which needs tables to be there.
func served(properties ...string) pyIceberg {
	return func(l *lab) counted { return throughREST(l.serve(), properties...)(l) }
}

func TestARebuildAndAnErasureOnPostgresKilledAreExact(t *testing.T) {
	l := rebuildable(t)
	pg := catalogtest.StartPostgres(t)
	l.useCatalog(fmt.Sprintf("catalog: {uri: %q}", pg.URI(pg.Addr(), pg.NewDatabase())))
	l.rebuildsAndErases(served())
}

func TestARebuildAndAnErasureBehindRESTKilledAreExact(t *testing.T) {
	l := rebuildable(t)
	srv := catalogtest.StartREST(t, "weir:a-secret")
	l.edit(fmt.Sprintf("warehouse: %q\n", filepath.Join(l.dir, "warehouse")), "")
	l.useCatalog(fmt.Sprintf(`catalog: {type: rest, uri: "http://%s", credential: "weir:a-secret"}`, srv.Addr()))
	l.rebuildsAndErases(throughREST("http://"+srv.Addr(), "credential=weir:a-secret"))
}

// TestARebuildAndAnErasureOnGlueByMotoKilledAreExact: checkpoints are local, because
// moto's S3 may give one key to two writers who both asked for a new one.
func TestARebuildAndAnErasureOnGlueByMotoKilledAreExact(t *testing.T) {
	l := rebuildable(t)
	py := glueReader(t)
	properties := l.useGlue(catalogtest.StartMoto(t))
	l.edit("checkpointLocation: s3://lake/checkpoints", fmt.Sprintf("checkpointLocation: %q", filepath.Join(l.dir, "checkpoints")))
	l.rebuildsAndErases(func(l *lab) (c counted) {
		args := []string{"--catalog", "glue:", "--table", labSilver}
		for _, p := range properties {
			args = append(args, "--property", p)
		}
		readerOf(l.t, py, &c, "count_iceberg.py", args...)
		return c
	})
}

// TestARebuildAndAnErasureOnS3WithACatalogInPostgresKilledAreExact: tables, plans and
// checkpoints on a real S3 server.
func TestARebuildAndAnErasureOnS3WithACatalogInPostgresKilledAreExact(t *testing.T) {
	slowCatalogs(t)
	pg := catalogtest.StartPostgres(t)
	l, srv := newLabOnS3(t, 0)
	l.withSessions()
	l.useCatalog(fmt.Sprintf("catalog: {uri: %q}", pg.URI(pg.Addr(), pg.NewDatabase())))
	l.rebuildsAndErases(served("s3.endpoint="+srv.Endpoint(), "s3.region="+s3test.Region,
		"s3.access-key-id="+s3test.AccessKeyID, "s3.secret-access-key="+s3test.SecretAccessKey))
}
