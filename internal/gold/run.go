package gold

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/apache/iceberg-go/table"
	"golang.org/x/sync/errgroup"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/duck"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/lake"
)

const (
	// DefaultParallel is how many models are built at the same time.
	DefaultParallel = 2
	// publishParallel is how many tables are staged and published at once.
	publishParallel = 4
	// faultScope qualifies gold's crash points.
	faultScope = "gold"
)

// Options say what a run does.
type Options struct {
	Catalog *lake.Catalog
	Clock   clock.Clock
	Logger  *slog.Logger
	// Parallel is how many models are built at once, Threads how many DuckDB
	// uses in all; 0 is the default.
	Parallel    int
	Threads     int
	MemoryLimit string
	// Keep is a DuckDB file that gets a copy of the published tables; empty for
	// none.
	Keep string
	// FullRefresh builds every model from nothing, also where nothing changed.
	FullRefresh bool
	// Pins read a source table at a snapshot other than its head.
	Pins map[string]int64
	// Select limits the run to these models and those upstream of them.
	Select []string
	// Test looks at what was built before it is published (gold build).
	Test bool
}

// States of a model in a result.
const (
	StatePublished = "published"
	StateSkipped   = "skipped" // inputs and text are those of the table
	StateBuilt     = "built"   // a view: nothing to publish
	StateFailed    = "failed"
	StateBlocked   = "blocked" // something upstream failed
)

// Result is what a run came to.
type Result struct {
	RunID          string        `json:"run_id"`
	StartedAt      time.Time     `json:"started_at"`
	ElapsedSeconds float64       `json:"elapsed_seconds"`
	Inputs         []Input       `json:"inputs"`
	Models         []ModelResult `json:"models"`
	Tests          []TestResult  `json:"tests,omitempty"`
}

// Input is a source table as the run read it.
type Input struct {
	Table      string `json:"table"`
	SnapshotID int64  `json:"snapshot_id"`
	// Missing is set for an optional one that there is not.
	Missing bool `json:"missing,omitempty"`
}

// ModelResult is what became of one model.
type ModelResult struct {
	Name         string `json:"name"`
	Materialized string `json:"materialized"`
	State        string `json:"state"`
	// Mode is full or incremental.
	Mode       string  `json:"mode,omitempty"`
	Table      string  `json:"table,omitempty"`
	Rows       int64   `json:"rows"`
	Files      int     `json:"files"`
	SnapshotID int64   `json:"snapshot_id,omitempty"`
	Seconds    float64 `json:"seconds"`
	Why        string  `json:"why,omitempty"`
	Error      string  `json:"error,omitempty"`
}

// run is one run under way.
type run struct {
	Options
	g       *Graph
	id      string
	pins    map[Key]*duck.Pin // nil for an optional source that there is not
	session *duck.Session
	jobs    map[string]*job
}

// job is one model of a run.
type job struct {
	m      *Model
	target *target
	plan   plan
	done   chan struct{}
	err    error
	result ModelResult
}

// Run builds and publishes. The result is complete also where the error says
// that some models failed: those that did not depend on them are published.
func (g *Graph) Run(ctx context.Context, o Options) (*Result, error) {
	r, err := g.begin(o)
	if err != nil {
		return nil, err
	}
	res := &Result{RunID: r.id, StartedAt: o.Clock.Now()}
	defer func() { res.ElapsedSeconds = o.Clock.Now().Sub(res.StartedAt).Seconds() }()
	order, err := r.selected()
	if err != nil {
		return nil, err
	}
	if err := r.pin(ctx, order); err != nil {
		return nil, err
	}
	res.Inputs = r.inputs()
	fault.Reach(faultScope, fault.GoldPinned)
	if err := r.decide(ctx, order); err != nil {
		return nil, err
	}
	if !r.nothingToDo() {
		if err := r.build(ctx, order); err != nil {
			return nil, err
		}
		defer r.session.Close()
		if o.Test {
			if res.Tests, err = r.gate(ctx); err != nil {
				return nil, err
			}
		}
		fault.Reach(faultScope, fault.GoldBuilt)
		if err := r.publishAll(ctx, order); err != nil {
			return nil, err
		}
	}
	if err := r.keep(ctx, order); err != nil {
		return nil, err
	}
	for _, m := range order {
		res.Models = append(res.Models, r.jobs[m.Name].finish())
	}
	return res, r.outcome(order)
}

func (g *Graph) begin(o Options) (*run, error) {
	if o.Catalog == nil || o.Clock == nil {
		return nil, errors.New("gold needs a catalog and a clock")
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Parallel <= 0 {
		o.Parallel = DefaultParallel
	}
	return &run{
		Options: o, g: g, id: clock.Nonce(), pins: map[Key]*duck.Pin{}, jobs: map[string]*job{},
	}, nil
}

// selected are the models of the run, upstream first.
func (r *run) selected() ([]*Model, error) {
	if len(r.Select) == 0 {
		return r.g.Order, nil
	}
	want := map[string]bool{}
	var add func(*Model)
	add = func(m *Model) {
		want[m.Name] = true
		for _, name := range m.refs {
			add(r.g.Project.model(name))
		}
	}
	for _, name := range r.Select {
		m := r.g.Project.model(name)
		if m == nil || m.Config.off {
			return nil, failure.New(failure.Config, "there is no model %q%s", name, r.g.Project.similar(name))
		}
		add(m)
	}
	var out []*Model
	for _, m := range r.g.Order {
		if want[m.Name] {
			out = append(out, m)
		}
	}
	return out, nil
}

// pin loads every source that the models read, once.
func (r *run) pin(ctx context.Context, order []*Model) error {
	used := map[Key]bool{}
	for _, m := range order {
		for _, k := range r.g.Inputs(m) {
			used[k] = true
		}
	}
	if r.Test {
		for _, t := range r.g.tests {
			for _, k := range t.sources {
				used[k] = true
			}
		}
	}
	for name := range r.Pins {
		ident, err := lake.ParseName(name)
		if err != nil {
			return err
		}
		if !used[keyOf(ident)] {
			return failure.New(failure.Config, "no model reads table %s, so it cannot be pinned", name)
		}
	}
	for k := range used {
		pin, err := r.pinOne(ctx, k)
		if err != nil {
			return err
		}
		r.pins[k] = pin
	}
	return nil
}

func keyOf(ident table.Identifier) Key {
	return Key{Schema: lake.Name(ident[:len(ident)-1]), Name: ident[len(ident)-1]}
}

// NoSource says that a table which models read is not there, or not yet.
type NoSource struct{ Table string }

// Error implements error.
func (e NoSource) Error() string { return "source table " + e.Table + " does not exist (yet)" }

func (r *run) pinOne(ctx context.Context, k Key) (*duck.Pin, error) {
	ident, err := lake.ParseName(k.String())
	if err != nil {
		return nil, err
	}
	t, err := r.Catalog.LoadTable(ctx, ident)
	if errors.Is(err, lake.ErrNoTable) {
		for _, s := range r.g.Project.Sources {
			if s.Table == k && s.Optional {
				return nil, nil
			}
		}
		return nil, failure.Wrap(failure.Config, NoSource{k.String()}, "gold").
			WithHint("run the pipeline that writes it first; a source that may be missing needs meta: {optional: true} and its columns in schema.yml")
	}
	if err != nil {
		return nil, failure.Wrap(failure.ClassOf(err), err, "load source table %s", k)
	}
	p := duck.Head(t)
	if id, ok := r.Pins[k.String()]; ok {
		if p, err = duck.At(t, duck.AsOf{Snapshot: id}); err != nil {
			return nil, err
		}
	}
	return &p, nil
}

func (r *run) inputs() []Input {
	var out []Input
	for k, p := range r.pins {
		in := Input{Table: k.String(), Missing: p == nil}
		if p != nil {
			in.SnapshotID = p.Snapshot
		}
		out = append(out, in)
	}
	slices.SortFunc(out, func(a, b Input) int {
		if a.Table < b.Table {
			return -1
		}
		return 1
	})
	return out
}

// decide says of each model whether it has to be built, and how.
func (r *run) decide(ctx context.Context, order []*Model) error {
	for _, m := range order {
		j := &job{m: m, done: make(chan struct{}), result: ModelResult{Name: m.Name, Materialized: m.Config.Materialized}}
		r.jobs[m.Name] = j
		if !m.Published() {
			j.plan = plan{what: planView}
			continue
		}
		t, err := loadTarget(ctx, r.Catalog, r.g.Schema, m)
		if err != nil {
			return err
		}
		j.target = t
		j.plan = r.planOf(m, t)
		j.result.Table = lake.Name(t.ident)
		j.result.Why = j.plan.why
	}
	return nil
}

// nothingToDo reports whether every table is what a run would make it.
func (r *run) nothingToDo() bool {
	for _, j := range r.jobs {
		if j.plan.what == planFull || j.plan.what == planIncremental {
			return false
		}
	}
	return true
}

// build makes the models in a DuckDB of their own.
func (r *run) build(ctx context.Context, order []*Model) (err error) {
	if r.session, err = duck.Open(ctx, duck.Options{Threads: r.Threads, MemoryLimit: r.MemoryLimit}); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = r.session.Close()
		}
	}()
	for _, schema := range []string{r.g.Schema, r.g.Schema + incrementalSuffix, r.g.Schema + newSuffix} {
		if err := r.session.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+duck.Ident(schema)); err != nil {
			return err
		}
	}
	if err := r.mountSources(ctx); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	slots := make(chan struct{}, r.Parallel)
	for _, m := range order {
		j := r.jobs[m.Name]
		g.Go(func() error {
			defer close(j.done)
			for _, up := range m.refs {
				<-r.jobs[up].done
				if r.jobs[up].err != nil {
					j.err = blocked{up}
					return nil
				}
			}
			slots <- struct{}{}
			defer func() { <-slots }()
			if gctx.Err() != nil {
				j.err = gctx.Err()
				return j.err
			}
			began := r.Clock.Now()
			j.err = r.make(gctx, j)
			j.result.Seconds = r.Clock.Now().Sub(began).Seconds()
			return nil // a model's error is its own
		})
	}
	return g.Wait()
}

// blocked is the error of a model whose upstream failed.
type blocked struct{ by string }

func (b blocked) Error() string { return "model " + b.by + " upstream failed" }

// mountSources makes the views of the sources that something under way reads.
func (r *run) mountSources(ctx context.Context) error {
	for k, p := range r.pins {
		if err := mountSource(ctx, r.session, r.g.Project, k, p); err != nil {
			return err
		}
	}
	return nil
}

func mountSource(ctx context.Context, s *duck.Session, p *Project, k Key, pin *duck.Pin) error {
	if pin != nil {
		_, err := s.Mount(ctx, k.Schema, k.Name, *pin)
		return err
	}
	for _, src := range p.Sources {
		if src.Table != k {
			continue
		}
		if err := s.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+duck.Ident(k.Schema)); err != nil {
			return err
		}
		return s.Exec(ctx, "CREATE OR REPLACE VIEW "+duck.Relation(k.Schema, k.Name)+" AS "+src.empty())
	}
	return fmt.Errorf("source %s is not declared", k)
}

// empty is a SELECT of no rows with the declared columns.
func (s Source) empty() string {
	out := "SELECT "
	for i, c := range s.Columns {
		if i > 0 {
			out += ", "
		}
		out += "CAST(NULL AS " + c.Type + ") AS " + duck.Ident(c.Name)
	}
	return out + " WHERE false"
}

// make builds one model in the session.
func (r *run) make(ctx context.Context, j *job) error {
	rel := duck.Relation(r.g.Schema, j.m.Name)
	switch j.plan.what {
	case planView:
		j.result.State = StateBuilt
		return r.session.Exec(ctx, "CREATE OR REPLACE VIEW "+rel+" AS "+j.m.full)
	case planSkip:
		j.result.State, j.result.SnapshotID, j.result.Rows = StateSkipped, j.target.head().ID, j.target.rows()
		_, err := r.session.Mount(ctx, r.g.Schema, j.m.Name, duck.Head(j.target.table))
		return err
	case planIncremental:
		ok, err := r.makeIncremental(ctx, j)
		if err != nil || ok {
			return err
		}
		j.plan = plan{what: planFull, why: "its columns changed"}
		j.result.Why = j.plan.why
	}
	j.result.Mode = "full"
	return r.session.Exec(ctx, "CREATE OR REPLACE TABLE "+rel+" AS "+j.m.full)
}

// outcome is the run's error: that of the first model that failed.
func (r *run) outcome(order []*Model) error {
	var failed []string
	var first error
	for _, m := range order {
		j := r.jobs[m.Name]
		if j.err == nil {
			continue
		}
		var b blocked
		if !errors.As(j.err, &b) {
			failed = append(failed, m.Name)
			if first == nil {
				first = j.err
			}
		}
	}
	if first == nil {
		return nil
	}
	if len(failed) == 1 {
		return failure.Wrap(failure.ClassOf(first), first, "model %s", failed[0])
	}
	return failure.Wrap(failure.ClassOf(first), first, "models %v failed; %s", failed, failed[0])
}

func (j *job) finish() ModelResult {
	var b blocked
	switch {
	case errors.As(j.err, &b):
		j.result.State, j.result.Error = StateBlocked, j.err.Error()
	case j.err != nil:
		j.result.State, j.result.Error = StateFailed, j.err.Error()
	case j.result.State == "" && j.plan.what == planSkip: // nothing was to be done at all
		j.result.State, j.result.SnapshotID, j.result.Rows = StateSkipped, j.target.head().ID, j.target.rows()
	case j.result.State == "":
		j.result.State = StateSkipped
	}
	return j.result
}

// encoded is v as JSON; the values are the package's own.
func encoded(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
