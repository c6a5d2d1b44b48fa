package gold

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/weirlake/weir/internal/duck"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
)

// States of a test.
const (
	TestPassed = "passed"
	TestFailed = "failed"
	TestWarned = "warned"
	TestBroken = "error" // the test itself did not run
)

// samplesMax bounds the failing rows that a result shows.
const samplesMax = 5

// TestResult is what a test found.
type TestResult struct {
	Name     string `json:"name"`
	Kind     string `json:"kind"`
	Severity string `json:"severity"`
	State    string `json:"state"`
	// Models are those that the test looks at.
	Models []string `json:"models,omitempty"`
	// Failures is the number of failing rows, Samples some of them as JSON.
	Failures int64    `json:"failures"`
	Samples  []string `json:"samples,omitempty"`
	Error    string   `json:"error,omitempty"`
}

// gate runs the tests on what was built: a model that fails one of severity
// error is not published, nor is what is built on it.
func (r *run) gate(ctx context.Context) ([]TestResult, error) {
	var out []TestResult
	for _, t := range r.g.tests {
		if !r.testable(t) {
			continue
		}
		res := runTest(ctx, r.session, t)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		out = append(out, res)
		if res.State == TestFailed || res.State == TestBroken {
			for _, name := range t.refs {
				j := r.jobs[name]
				if j != nil && j.err == nil && j.plan.what != planSkip {
					j.err = failure.New(failure.Mismatch, "test %s failed on %d rows", t.Name, res.Failures)
				}
			}
		}
	}
	for _, m := range r.g.Order {
		j := r.jobs[m.Name]
		if j == nil || j.err != nil {
			continue
		}
		for _, up := range m.refs {
			if r.jobs[up].err != nil {
				j.err = blocked{up}
			}
		}
	}
	return out, nil
}

// testable reports whether everything that the test looks at is in the session.
func (r *run) testable(t *Test) bool {
	for _, name := range t.refs {
		if j := r.jobs[name]; j == nil || j.err != nil {
			return false
		}
	}
	for _, k := range t.sources {
		if _, ok := r.pins[k]; !ok {
			return false
		}
	}
	return true
}

func runTest(ctx context.Context, s *duck.Session, t *Test) TestResult {
	res := TestResult{Name: t.Name, Kind: t.Kind, Severity: t.Severity, State: TestPassed, Models: t.refs}
	n, err := s.Count(ctx, "SELECT count(*) FROM ("+t.sql+"\n)")
	if err != nil {
		res.State, res.Error = TestBroken, err.Error()
		return res
	}
	res.Failures = n
	if n == 0 {
		return res
	}
	res.State = TestFailed
	if t.Severity == SeverityWarn {
		res.State = TestWarned
	}
	rows, err := s.Query(ctx, fmt.Sprintf("FROM (%s\n) LIMIT %d", t.sql, samplesMax), duck.JSON)
	if err != nil {
		return res
	}
	defer rows.Close()
	for {
		row, err := rows.Next()
		if err != nil || row == nil {
			return res
		}
		res.Samples = append(res.Samples, row[0].String)
	}
}

// TestReport is what `weir gold test` says.
type TestReport struct {
	Inputs []Input      `json:"inputs"`
	Tests  []TestResult `json:"tests"`
}

// Test runs the tests over the published tables. Sources are read at the
// snapshots that the tables were made from, so that a test that compares the two
// judges the tables and not the time that has passed since; where the tables
// differ in that, at the newest of them.
func (g *Graph) Test(ctx context.Context, o Options) (*TestReport, error) {
	r, err := g.begin(o)
	if err != nil {
		return nil, err
	}
	order, err := r.selected()
	if err != nil {
		return nil, err
	}
	r.Test = true
	if err := r.decide(ctx, order); err != nil { // loads the tables; there are no pins yet
		return nil, err
	}
	r.pinRecorded()
	if err := r.pin(ctx, order); err != nil {
		return nil, err
	}
	if r.session, err = duck.Open(ctx, duck.Options{Threads: o.Threads, MemoryLimit: o.MemoryLimit}); err != nil {
		return nil, err
	}
	defer r.session.Close()
	if err := r.mountSources(ctx); err != nil {
		return nil, err
	}
	for _, m := range order {
		if err := r.mountPublished(ctx, m); err != nil {
			return nil, err
		}
	}
	rep := &TestReport{Inputs: r.inputs()}
	var failed []string
	for _, t := range g.tests {
		if !r.testable(t) {
			continue
		}
		res := runTest(ctx, r.session, t)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		rep.Tests = append(rep.Tests, res)
		if res.State == TestFailed || res.State == TestBroken {
			failed = append(failed, t.Name)
		}
	}
	if len(failed) > 0 {
		return rep, failure.New(failure.Mismatch, "%d of %d tests failed: %v", len(failed), len(rep.Tests), failed)
	}
	return rep, nil
}

// pinRecorded pins every input at the newest snapshot that a table records of
// it, where it is still there.
func (r *run) pinRecorded() {
	if r.Pins == nil {
		r.Pins = map[string]int64{}
	}
	sequence := map[string]int64{}
	for _, j := range r.jobs {
		if j.target == nil || j.target.record == nil {
			continue
		}
		for name, in := range j.target.record.Inputs {
			if in.SnapshotID != 0 && in.Sequence >= sequence[name] {
				sequence[name], r.Pins[name] = in.Sequence, in.SnapshotID
			}
		}
	}
}

// mountPublished makes a model's table, or the view of one that has none.
func (r *run) mountPublished(ctx context.Context, m *Model) error {
	j := r.jobs[m.Name]
	if !m.Published() {
		if err := r.session.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+duck.Ident(r.g.Schema)); err != nil {
			return err
		}
		return r.session.Exec(ctx, "CREATE OR REPLACE VIEW "+duck.Relation(r.g.Schema, m.Name)+" AS "+m.full)
	}
	if j.target.table == nil {
		return failure.New(failure.Config, "table %s does not exist yet", lake.Name(j.target.ident)).WithHint("weir gold run makes it")
	}
	_, err := r.session.Mount(ctx, r.g.Schema, m.Name, duck.Head(j.target.table))
	return err
}

// errNoModels is what a listing of nothing is.
var errNoModels = errors.New("no models")

// Listing is one model as `weir gold ls` shows it.
type Listing struct {
	Name         string   `json:"name"`
	Materialized string   `json:"materialized"`
	UniqueKey    []string `json:"unique_key,omitempty"`
	Refs         []string `json:"refs,omitempty"`
	Sources      []string `json:"sources,omitempty"`
	Tests        int      `json:"tests"`
	Table        string   `json:"table,omitempty"`
	// State is stale, current or missing; empty for a view.
	State string `json:"state,omitempty"`
	Why   string `json:"why,omitempty"`
	Rows  int64  `json:"rows"`
	// Inputs are those that the table was made from.
	Inputs map[string]int64 `json:"inputs,omitempty"`
	RunID  string           `json:"run_id,omitempty"`
}

// List says of every model what its table is.
func (g *Graph) List(ctx context.Context, o Options) ([]Listing, error) {
	r, err := g.begin(o)
	if err != nil {
		return nil, err
	}
	if len(g.Order) == 0 {
		return nil, errNoModels
	}
	if err := r.pin(ctx, g.Order); err != nil {
		return nil, err
	}
	if err := r.decide(ctx, g.Order); err != nil {
		return nil, err
	}
	var out []Listing
	for _, m := range g.Order {
		l := Listing{Name: m.Name, Materialized: m.Config.Materialized, UniqueKey: m.Config.UniqueKey, Refs: m.Refs(), Tests: len(m.Tests)}
		for _, k := range m.sources {
			l.Sources = append(l.Sources, k.String())
		}
		slices.Sort(l.Sources)
		if j := r.jobs[m.Name]; j.target != nil {
			l.Table = lake.Name(j.target.ident)
			l.State, l.Why = "stale", j.plan.why
			if j.target.table == nil {
				l.State = "missing"
			} else {
				l.Rows = j.target.rows()
			}
			if j.plan.what == planSkip {
				l.State = "current"
			}
			if l.State == "stale" && l.Why == "" {
				l.Why = "an input has a new snapshot"
			}
			if j.target.record != nil {
				l.Inputs, l.RunID = j.target.record.snapshots(), j.target.record.RunID
			}
		}
		out = append(out, l)
	}
	return out, nil
}
