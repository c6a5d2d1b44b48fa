package prove

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
)

const (
	groupCatalog = "catalog"

	// catalogDown is how long a killed catalog stays away.
	catalogDown = 3 * time.Second
	// lockShort is how long another process holds the write lock of a catalog on
	// SQLite while a commit waits for it, lockLong is longer than it waits.
	lockShort = 3 * time.Second
	lockLong  = 14 * time.Second
	// catalogSlow is by how much a slow catalog is late.
	catalogSlow = 1500 * time.Millisecond
	// One commit in so many is disturbed.
	commitEvery = 2
)

// catalogState is what a scenario of a catalog that fails knows.
type catalogState struct {
	*workload
	server      *server      // where the catalog is one
	address     string       // of it
	disturbance *disturbance // before a REST catalog
	front       *front       // before Postgres
	missed      string
}

// catalogKind is a kind of catalog: how it is started and named in the pipeline
// file.
type catalogKind struct {
	name, title, script, hint string
	// use is the catalog at an address as the pipeline file names it, and locate
	// as the reader finds it, which goes straight to the server.
	use    func(address string) string
	locate func(address string) audit.Locator
}

var catalogKinds = map[string]catalogKind{
	"postgres": {
		name: "postgres", title: "Postgres", script: "postgres", hint: "scripts/postgres.sh install finds Postgres, or installs it where that is permitted",
		use: func(address string) string {
			return "{type: sql, name: weir, uri: " + quote(postgresURL(address, "postgres")) + "}"
		},
		locate: func(address string) audit.Locator {
			return audit.PostgresCatalog{URI: postgresURL(address, "postgres")}
		},
	},
	"rest": {
		name: "rest", title: "Iceberg's REST server", script: "iceberg-rest", hint: "scripts/iceberg-rest.sh fetch gets it; it needs a JDK and mvn",
		use:    func(address string) string { return "{type: rest, name: weir, uri: " + quote("http://"+address) + "}" },
		locate: func(address string) audit.Locator { return audit.RESTCatalog{URI: "http://" + address} },
	},
}

// catalogs makes the scenarios of a catalog that fails under a pipeline, most of
// all in the middle of a commit.
func catalogs() []Scenario {
	var out []Scenario
	for _, query := range []string{"bronze", "silver"} {
		for _, held := range []time.Duration{lockShort, lockLong} {
			out = append(out, sqliteLocked(query, held))
		}
		for _, kind := range []string{"postgres", "rest"} {
			for _, point := range []string{fault.CommitBefore, fault.CommitMetadata, fault.CommitSwapped} {
				out = append(out, catalogKilled(catalogKinds[kind], query, point))
			}
		}
		for _, d := range restDisturbances() {
			out = append(out, restDisturbed(d, query))
		}
	}
	return append(out,
		postgresCut("postgres-cut-before-commit", "A connection to a catalog on Postgres that is cut, in every other transaction, before the server has got the COMMIT: nothing was committed, and nothing is taken for committed.",
			func() *front { return &front{needle: []byte("commit"), every: commitEvery} }),
		postgresCut("postgres-cut-after-commit", "A connection to a catalog on Postgres that is cut, in every other transaction, once the server has got the COMMIT: what was committed without an answer is found, and not committed again.",
			func() *front { return &front{needle: []byte("commit"), every: commitEvery, forward: true} }),
		postgresCut("postgres-slow", fmt.Sprintf("A catalog on Postgres that takes %s longer over every second message costs time and nothing else.", catalogSlow),
			func() *front { return &front{every: commitEvery * 5, delay: catalogSlow} }))
}

// catalogScenario is a pipeline over a catalog, of which a part runs while the
// catalog is struck.
func catalogScenario(s Scenario, kind *catalogKind, before func(*Env, *catalogState) (string, error), strike Step) Scenario {
	publish := func(ctx context.Context, e *Env) error { return e.state.(*catalogState).publish(ctx, e) }
	once := func(ctx context.Context, e *Env) error { _, err := e.runOnce(ctx); return err }
	s.Group = groupCatalog
	s.Steps = []Step{
		{"start the catalog, make the topic and the pipeline file", func(ctx context.Context, e *Env) error { return catalogPrepare(ctx, e, kind, before) }},
		{"publish, and run to the end", both(publish, once)},
		{"publish more", publish},
		strike,
		{"publish more, and run to the end", both(publish, once)},
		{"count", func(ctx context.Context, e *Env) error { return e.state.(*catalogState).count(ctx, e) }},
	}
	s.GuardAfter = strike.Name
	s.Guard = func(e *Env) string { return e.state.(*catalogState).missed }
	s.Expect = func(e *Env) []Check { return e.state.(*catalogState).expect() }
	return s
}

// catalogPrepare starts the catalog's server, where it has one; before gives the
// address of what is put before it.
func catalogPrepare(ctx context.Context, e *Env, kind *catalogKind, before func(*Env, *catalogState) (string, error)) (err error) {
	st := &catalogState{}
	e.state = st
	s := setup{Name: "catalog", MaxOffsets: crashMaxOffsets}
	if kind != nil {
		if st.server, err = e.ownServer(ctx, kind.script, kind.hint); err != nil {
			return err
		}
		st.address = st.server.addr
		e.catalog, e.catalogFile = kind.locate(st.address), ""
		address := st.address
		if before != nil {
			if address, err = before(e, st); err != nil {
				return err
			}
		}
		s.Catalog, s.PlacedByCatalog = kind.use(address), kind.name == "rest"
	}
	st.workload, err = e.newWorkload(ctx, s)
	return err
}

func catalogKilled(kind catalogKind, query, point string) Scenario {
	const name = "suspend the pipeline at the step, kill the catalog, wake the pipeline, start the catalog again"
	return catalogScenario(Scenario{
		Name:  kind.name + "-killed-" + query + "-" + point,
		Place: &Place{Matrix: "A catalog that is killed under a pipeline", Row: point, Column: query + ", " + kind.title},
		Claim: fmt.Sprintf("%s, which holds the catalog, killed with SIGKILL while %s stands at %s, and away for %s: the pipeline ends well or says that the catalog is away, and the tables are exact.", kind.title, query, point, catalogDown),
	}, &kind, nil, Step{name, func(ctx context.Context, e *Env) error {
		st := e.state.(*catalogState)
		return st.suspended(ctx, e, query+"/"+point, func(p *process) error {
			if out, err := st.server.run(ctx, "kill", st.server.dir); err != nil {
				return fmt.Errorf("kill the catalog: %w: %s", err, out)
			}
			e.kills++
			e.mark("kill", "catalog", 0, "SIGKILL")
			if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
				return err
			}
			if err := e.o.Clock.Sleep(ctx, catalogDown); err != nil {
				return err
			}
			if out, err := st.server.run(ctx, "start", st.server.dir); err != nil {
				return failure.Wrap(failure.Unreachable, err, "start the catalog again: %s", out)
			}
			e.mark("start", "catalog", 0, "")
			return nil
		})
	}})
}

// suspended lets something happen to the catalog while the pipeline stands at a
// step of its protocol. It must end well, or say that the catalog is away or
// that it does not know whether a commit has landed.
func (st *catalogState) suspended(ctx context.Context, e *Env, point string, happens func(*process) error, more ...string) error {
	p, why, err := e.suspend(ctx, point, 1, append([]string{"run", e.path(queriesFileName), "--once"}, more...)...)
	if err != nil || p == nil {
		st.missed = "the step was never reached: " + why
		return err
	}
	if err := happens(p); err != nil {
		return err
	}
	return e.endsWellOrAway(ctx, p)
}

// endsWellOrAway waits for a run that met an outage.
func (e *Env) endsWellOrAway(ctx context.Context, p *process) error {
	code, err := p.endsBy(ctx, runOnceMax)
	if err != nil {
		return err
	}
	e.observed["exit_code_of_the_run"] = code
	if !slices.Contains([]int64{0, int64(failure.Unreachable), int64(failure.CommitUnknown)}, code) {
		return violated("the run ended with exit code %d\n%s", code, p.tail())
	}
	return nil
}

func sqliteLocked(query string, held time.Duration) Scenario {
	name, how := "sqlite-locked-", "shorter than a commit waits"
	if held == lockLong {
		name, how = "sqlite-locked-long-", "longer than a commit waits"
	}
	step := fmt.Sprintf("suspend the pipeline at %s, lock the catalog, wake the pipeline, unlock after %s", fault.CommitMetadata, held)
	return catalogScenario(Scenario{
		Name:  name + query,
		Place: &Place{Matrix: "A catalog on SQLite that another process locks", Row: fmt.Sprintf("for %s, %s", held, how), Column: query},
		Claim: fmt.Sprintf("A catalog on SQLite whose write lock another process holds for %s (%s) when %s is about to swap the table's metadata: nothing is lost and nothing doubled.", held, how, query),
	}, nil, nil, Step{step, func(ctx context.Context, e *Env) error {
		if query != "bronze" {
			if _, err := e.runOnce(ctx, "--query", "bronze"); err != nil {
				return err
			}
		}
		st := e.state.(*catalogState)
		return st.suspended(ctx, e, query+"/"+fault.CommitMetadata, func(p *process) error {
			return st.holdLock(ctx, e, p, held)
		}, "--query", query)
	}})
}

// holdLock holds the write lock of the catalog's file: for the pipeline this is
// another process, and it has to wait.
func (st *catalogState) holdLock(ctx context.Context, e *Env, p *process, held time.Duration) error {
	unlock, err := e.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	e.mark("kill", "catalog", 0, "locked")
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	if err := e.o.Clock.Sleep(ctx, held); err != nil {
		return err
	}
	if !p.running() {
		st.missed = "the run had nothing more to commit when the catalog was locked"
	}
	e.mark("start", "catalog", 0, "unlocked")
	return nil
}

// lock takes the write lock of the catalog's file, if nobody has it.
func (e *Env) lock(ctx context.Context) (unlock func(), err error) {
	db, err := sql.Open("sqlite", "file:"+e.catalogFile+"?_txlock=immediate")
	if err != nil {
		return nil, err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("lock the catalog: %w", err)
	}
	return func() {
		_ = tx.Rollback() // nothing was written
		_ = db.Close()
	}, nil
}

// postgresCut is a pipeline whose way to Postgres is disturbed.
func postgresCut(name, claim string, f func() *front) Scenario {
	kind := catalogKinds["postgres"]
	return catalogScenario(Scenario{Name: name, Claim: claim}, &kind,
		func(e *Env, st *catalogState) (string, error) {
			st.front = f()
			return st.front.listen(e, st.address)
		},
		Step{"run while the way to Postgres is disturbed", func(ctx context.Context, e *Env) error {
			st := e.state.(*catalogState)
			st.front.on.Store(true)
			defer st.front.on.Store(false)
			return st.disturbed(ctx, e, &st.front.done)
		}})
}

// disturbed runs the pipeline, of which something must be disturbed.
func (st *catalogState) disturbed(ctx context.Context, e *Env, done *atomic.Int64) error {
	p, err := e.start("weir run --once, disturbed", nil, "run", e.path(queriesFileName), "--once")
	if err != nil {
		return err
	}
	if err := e.endsWellOrAway(ctx, p); err != nil {
		return err
	}
	e.observed["disturbed"] = done.Load()
	if done.Load() == 0 {
		st.missed = "nothing was disturbed"
	}
	return nil
}

// restDisturbance is something that a REST catalog does to a commit.
type restDisturbance struct {
	name, claim string
	// once hits the first commit only, for what takes long.
	once bool
	do   func(w http.ResponseWriter, r *http.Request, forward http.Handler)
}

const restError = `{"error":{"message":"something went wrong","type":"ServerError","code":500}}`

func restDisturbances() []restDisturbance {
	return []restDisturbance{
		{"answer-lost", "makes every other commit and breaks the connection before it answers", false, loseAnswer},
		{"error-after-applying", "makes every other commit and answers that it has failed (HTTP 500)", false, errorAfter(http.StatusInternalServerError, "application/json", restError)},
		{"success-without-applying", "answers to every other commit that it is made, and has not made it", false, claimSuccess},
		{"slow", fmt.Sprintf("takes %s longer over every other commit", catalogSlow), false, delayed(catalogSlow)},
		{"after-the-timeout", "makes a commit only when the client has given it up", true, afterTheTimeout},
	}
}

// claimSuccess answers with the table as it is in the place of the one that
// the commit would have made.
func claimSuccess(w http.ResponseWriter, r *http.Request, forward http.Handler) {
	ask := r.Clone(r.Context())
	ask.Method, ask.Body, ask.ContentLength = http.MethodGet, http.NoBody, 0
	was := httptest.NewRecorder()
	forward.ServeHTTP(was, ask)
	answer(w, was.Code, was.Header().Get("Content-Type"), was.Body.String())
}

func restDisturbed(d restDisturbance, query string) Scenario {
	kind := catalogKinds["rest"]
	path := "/namespaces/" + strings.Replace(queryTables[query], ".", "/tables/", 1)
	hits := func() func(int64, *http.Request) bool {
		var commits atomic.Int64
		return func(_ int64, r *http.Request) bool {
			if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, path) {
				return false
			}
			n := commits.Add(1)
			return n == commitEvery || !d.once && n%commitEvery == 0
		}
	}
	return catalogScenario(Scenario{
		Name:  "rest-" + d.name + "-" + query,
		Place: &Place{Matrix: "A REST catalog that misbehaves", Row: d.name + ": " + d.claim, Column: query},
		Claim: fmt.Sprintf("A REST catalog that %s of %s: nothing is lost and nothing doubled.", d.claim, query),
	}, &kind,
		func(e *Env, st *catalogState) (string, error) {
			st.disturbance = &disturbance{hits: hits(), do: d.do}
			url, err := e.proxy("http://"+st.address, st.disturbance)
			return strings.TrimPrefix(url, "http://"), err
		},
		Step{"run while commits are disturbed", func(ctx context.Context, e *Env) error {
			st := e.state.(*catalogState)
			st.disturbance.on.Store(true)
			defer st.disturbance.on.Store(false)
			return st.disturbed(ctx, e, &st.disturbance.done)
		}})
}

// postgresURL is the address of a database of scripts/postgres.sh.
func postgresURL(address, database string) string {
	return fmt.Sprintf("postgres://weir:%s@%s/%s?sslmode=disable", scriptPassword, address, database)
}
