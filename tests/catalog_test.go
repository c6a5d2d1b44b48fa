package tests

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/lake/catalogtest"
)

// exitUnknown and exitUnreachable are safe to start again from.
const (
	exitUnknown     = 6
	exitUnreachable = 8
)

// useCatalog puts another catalog into the lab's pipeline file.
func (l *lab) useCatalog(catalog string) {
	l.t.Helper()
	l.edit(fmt.Sprintf(`catalog: {type: sql, name: weir, uri: "sqlite:%s/catalog.db"}`, l.dir), catalog)
}

// exactThrough is exact, and PyIceberg counts the same through a REST catalog.
func (l *lab) exactThrough(url string, properties ...string) {
	l.t.Helper()
	l.exact()
	var args []string
	for _, p := range properties {
		args = append(args, "--property", p)
	}
	var b, s counted
	reader(l.t, &b, "count_iceberg.py", append([]string{"--catalog", url, "--table", labBronze}, args...)...)
	reader(l.t, &s, "count_iceberg.py", append([]string{"--catalog", url, "--table", labSilver}, args...)...)
	want := int64(len(l.wantIDs()))
	if b.Rows != l.sent || b.DistinctOffsets != l.sent || s.Rows != want || s.DistinctIDs != want {
		l.t.Fatalf("PyIceberg: bronze %+v of %d records, silver %+v of %d ids", b, l.sent, s, want)
	}
}

// serve runs weir catalog serve on the lab's pipeline and gives its URL.
func (l *lab) serve() string {
	l.t.Helper()
	p := start(l.t, nil, "catalog", "serve", l.file, "--listen", "127.0.0.1:0", "--output", "json")
	var doc struct{ URL string }
	waitFor(l.t, "the served catalog", func() bool {
		if !p.running() {
			l.t.Fatalf("it ended by itself\n%s", tail(p.errs.String()))
		}
		return json.Unmarshal([]byte(p.out.String()), &doc) == nil && doc.URL != ""
	})
	return doc.URL
}

// killsOfBoth kills the pipeline at its commit's crash points, and the
// catalog's server under a running pipeline.
func killsOfBoth(l *lab, srv *catalogtest.Server) {
	l.t.Helper()
	for _, point := range []string{"bronze/commit.metadata:2", "bronze/commit.swapped:2", "silver/commit.metadata:2", "silver/commit.side:1", "silver/commit.swapped:1"} {
		l.crash(point)
		l.produce(300)
	}
	for range 3 {
		l.produce(3000)
		before := l.committed("silver")
		p := start(l.t, nil, "run", l.file)
		waitFor(l.t, "a batch of silver", func() bool { return l.committed("silver") > before || !p.running() })
		srv.Kill9()
		time.Sleep(100 * time.Millisecond)
		srv.Restart()
		// It waits the outage out, or ends in a way that is safe to start from.
		select {
		case <-p.exited:
			if code := p.cmd.ProcessState.ExitCode(); code != exitUnreachable && code != exitUnknown {
				l.t.Fatalf("exit %d\n%s", code, tail(p.errs.String()))
			}
			lines := strings.Split(strings.TrimSpace(p.errs.String()), "\n")
			l.t.Logf("it ended with %d: %s", p.cmd.ProcessState.ExitCode(), strings.Join(lines[max(0, len(lines)-2):], "\n"))
		case <-time.After(2 * time.Second):
			p.kill9()
		}
	}
	l.run(exitOK)
}

func TestAPipelineOnPostgresIsExactWhileItAndTheDatabaseAreKilled(t *testing.T) {
	python(t)
	weirBin(t)
	pg := catalogtest.StartPostgres(t)
	l := newLab(t, 1000)
	l.useCatalog(fmt.Sprintf("catalog: {uri: %q}", pg.URI(pg.Addr(), pg.NewDatabase())))
	killsOfBoth(l, pg)
	l.exactThrough(l.serve())
	if _, err := os.Stat(l.catalog()); err == nil {
		t.Error("there is a SQLite catalog")
	}
	// The checkpoints are gone: the markers in the tables are what is left.
	l.remove(filepath.Join(l.dir, "checkpoints"))
	l.produce(300)
	l.run(exitOK)
	l.exactThrough(l.serve())
}

func TestAPipelineBehindRESTIsExactWhileItAndTheServerAreKilled(t *testing.T) {
	python(t)
	weirBin(t)
	srv := catalogtest.StartREST(t, "weir:a-secret")
	l := newLab(t, 1000)
	l.edit(fmt.Sprintf("warehouse: %q\n", filepath.Join(l.dir, "warehouse")), "")
	l.useCatalog(fmt.Sprintf(`catalog: {type: rest, uri: "http://%s", credential: "weir:a-secret"}`, srv.Addr()))
	killsOfBoth(l, srv)
	l.exactThrough("http://"+srv.Addr(), "credential=weir:a-secret")
	_, errs, code := weir(t, nil, "catalog", "serve", l.file)
	if code != exitConfig || !strings.Contains(errs, "REST catalog already") {
		t.Errorf("serving a REST catalog: exit %d\n%s", code, errs)
	}
}

func TestCatalogsThatCannotBeOpenedEndTheRunWithTheirCodeAndNoSecret(t *testing.T) {
	weirBin(t)
	l := newLab(t, 0)
	l.useCatalog(`catalog: {uri: "postgres://weir:hunter2@127.0.0.1:1/lake", startTimeout: 1s}`)
	_, errs, code := weir(t, nil, "run", l.file, "--once")
	if code != exitUnreachable || !strings.Contains(errs, "waiting up to 1s for the catalog database lake on 127.0.0.1:1") || strings.Contains(errs, "hunter2") {
		t.Errorf("nobody there: exit %d\n%s", code, errs)
	}
	pg := catalogtest.StartPostgres(t)
	l.edit("127.0.0.1:1/", pg.Addr()+"/")
	for _, args := range [][]string{{"run", l.file, "--once"}, {"catalog", "serve", l.file}, {"audit", l.file}, {"status", l.file}} {
		out, errs, code := weir(t, nil, append(args, "--log-level", "debug")...)
		if strings.Contains(out+errs, "hunter2") {
			t.Errorf("%v shows the password\n%s%s", args, out, errs)
		}
		if code != exitConfig && args[0] != "audit" {
			t.Errorf("%v with a wrong password: exit %d\n%s", args, code, errs)
		}
	}
}
