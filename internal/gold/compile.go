package gold

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weirlake/weir/internal/duck"
	"github.com/weirlake/weir/internal/failure"
)

// Graph is a compiled project: models with their SQL, upstream first.
type Graph struct {
	Project *Project
	// Schema is the namespace of the tables that are published.
	Schema string
	// Order has each model after those that it refers to.
	Order []*Model
	tests []*Test
}

// Compile renders every model and test. vars lie over those of the project.
func (p *Project) Compile(schema string, vars map[string]any) (*Graph, error) {
	all := maps.Clone(p.Vars)
	if all == nil {
		all = map[string]any{}
	}
	maps.Copy(all, vars)
	for _, s := range p.Sources {
		if s.Table.Schema == schema {
			return nil, failure.New(failure.Config, "source %s.%s lies in the schema %s, which gold writes", s.Group, s.Name, schema).
				WithHint("refer to models with ref(), or set gold.schema to another name")
		}
	}
	g := &Graph{Project: p, Schema: schema}
	// Twice: a config() in one model may switch it off for the others' ref().
	for pass := range 2 {
		for _, m := range p.Models {
			if m.Config.off {
				continue
			}
			if err := p.compileModel(m, schema, all); err != nil && (pass == 1 || !strings.Contains(err.Error(), "there is no such model")) {
				return nil, failure.Wrap(failure.Config, err, "%s", m.Path)
			}
		}
	}
	if err := g.order(); err != nil {
		return nil, err
	}
	for _, m := range g.Order {
		m.fingerprint = g.fingerprint(m)
	}
	return g, g.compileTests(all)
}

func (p *Project) compileModel(m *Model, schema string, vars map[string]any) error {
	r := &rendering{p: p, schema: schema, vars: vars, model: m}
	sql, err := r.render(m.Name+".sql", p.macros+m.raw)
	if err != nil {
		return err
	}
	if err := m.Config.merge(r.config); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	sql = strings.TrimSuffix(strings.TrimSpace(sql), ";")
	if k := duck.Keyword(sql); len(duck.Statements(sql)) != 1 || duck.CheckReads(sql) != nil {
		return fmt.Errorf("a model is one query; this begins with %q", k)
	}
	m.full, m.delta, m.refs, m.sources = sql, "", r.refs, r.sources
	if m.Config.Materialized != Incremental {
		return nil
	}
	d := &rendering{p: p, schema: schema, vars: vars, model: m, incremental: true}
	if sql, err = d.render(m.Name+".sql", p.macros+m.raw); err != nil {
		return err
	}
	m.delta = strings.TrimSuffix(strings.TrimSpace(sql), ";")
	for _, name := range d.refs {
		if !slices.Contains(m.refs, name) {
			m.refs = append(m.refs, name)
		}
	}
	for _, k := range d.sources {
		if !slices.Contains(m.sources, k) {
			m.sources = append(m.sources, k)
		}
	}
	return nil
}

// order sorts the models, each after its references.
func (g *Graph) order() error {
	state := map[string]int{} // 1: being visited, 2: done
	var visit func(m *Model, trail []string) error
	visit = func(m *Model, trail []string) error {
		trail = append(trail, m.Name)
		switch state[m.Name] {
		case 1:
			return failure.New(failure.Config, "models refer to each other in a circle: %s", strings.Join(trail, " → "))
		case 2:
			return nil
		}
		state[m.Name] = 1
		for _, name := range m.refs {
			up := g.Project.model(name)
			if up == nil || up.Config.off {
				return failure.New(failure.Config, "%s: ref('%s'): there is no such model", m.Path, name)
			}
			if err := visit(up, trail); err != nil {
				return err
			}
		}
		state[m.Name] = 2
		g.Order = append(g.Order, m)
		return nil
	}
	for _, m := range g.Project.Models {
		if m.Config.off {
			continue
		}
		if err := visit(m, nil); err != nil {
			return err
		}
	}
	return nil
}

// fingerprint is that of everything that a model's rows follow from besides its
// inputs: its own text and setting, and those of the models upstream.
func (g *Graph) fingerprint(m *Model) string {
	up := make([]string, 0, len(m.refs))
	for _, name := range m.refs {
		up = append(up, g.Project.model(name).fingerprint)
	}
	slices.Sort(up)
	doc, err := json.Marshal([]any{m.full, m.delta, m.Config.Materialized, m.Config.UniqueKey, up})
	if err != nil {
		panic(err) // strings
	}
	sum := sha256.Sum256(doc)
	return hex.EncodeToString(sum[:8])
}

// Inputs are the sources that a model's rows come from, through the models
// upstream too.
func (g *Graph) Inputs(m *Model) []Key {
	seen := map[Key]bool{}
	var walk func(*Model)
	walk = func(m *Model) {
		for _, k := range m.sources {
			seen[k] = true
		}
		for _, name := range m.refs {
			walk(g.Project.model(name))
		}
	}
	walk(m)
	return slices.SortedFunc(maps.Keys(seen), func(a, b Key) int { return strings.Compare(a.String(), b.String()) })
}

// Refs are the models that a model refers to.
func (m *Model) Refs() []string { return slices.Clone(m.refs) }

// SQL is the compiled text of a full build.
func (m *Model) SQL() string { return m.full }

// Reads are the models and sources that a model reads, by their names.
func (m *Model) Reads() []string {
	out := m.Refs()
	for _, k := range m.sources {
		out = append(out, k.String())
	}
	return out
}

// compileTests renders the tests: those of sources and models, then singular
// ones.
func (g *Graph) compileTests(vars map[string]any) error {
	add := func(t *Test) error {
		if err := g.compileTest(t, vars); err != nil {
			return failure.Wrap(failure.Config, err, "test %s", t.Name)
		}
		g.tests = append(g.tests, t)
		return nil
	}
	for i := range g.Project.Sources {
		s := &g.Project.Sources[i]
		for j := range s.Tests {
			if err := add(&s.Tests[j]); err != nil {
				return err
			}
		}
	}
	for _, m := range g.Order {
		for j := range m.Tests {
			if err := add(&m.Tests[j]); err != nil {
				return err
			}
		}
	}
	for i := range g.Project.Singular {
		if err := add(&g.Project.Singular[i]); err != nil {
			return err
		}
	}
	return nil
}

func (g *Graph) compileTest(t *Test, vars map[string]any) error {
	r := &rendering{p: g.Project, schema: g.Schema, vars: vars}
	if t.Kind == "singular" {
		sql, err := r.render(t.Name+".sql", g.Project.macros+t.raw)
		if err != nil {
			return err
		}
		if s, ok := r.config["severity"].(string); ok {
			t.Severity = strings.ToLower(s)
		}
		t.sql = strings.TrimSuffix(strings.TrimSpace(sql), ";")
		t.refs, t.sources = r.refs, r.sources
		return nil
	}
	on := ""
	if t.on.source != nil {
		on = duck.Relation(t.on.source.Schema, t.on.source.Name)
		t.sources = []Key{*t.on.source}
	} else {
		on = duck.Relation(g.Schema, t.on.model)
		t.refs = []string{t.on.model}
	}
	to := ""
	if t.to != "" {
		text := strings.TrimSpace(t.to)
		if !strings.HasPrefix(text, "{{") {
			text = "{{ " + text + " }}"
		}
		var err error
		if to, err = r.render(t.Name, text); err != nil {
			return err
		}
		t.refs = append(t.refs, r.refs...)
		t.sources = append(t.sources, r.sources...)
	}
	t.sql = t.statement(on, to)
	return nil
}
