package gold

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/weirlake/weir/internal/failure"
)

// Kinds of materialisation.
const (
	View        = "view"
	Table       = "table"
	Incremental = "incremental"
	Ephemeral   = "ephemeral"
)

// Bounds of a project.
const (
	filesMax     = 2_000
	fileBytesMax = 1 << 20
)

// Project is a loaded folder of models.
type Project struct {
	Name    string
	Vars    map[string]any
	Models  []*Model // by name
	Sources []Source
	// Singular are the tests of the tests folder.
	Singular []Test
	macros   string
	configs  map[string]any // models: of the project file
}

// Model is one SQL file.
type Model struct {
	Name string
	// Path is relative to the project.
	Path   string
	Config Config
	Tests  []Test
	raw    string
	// set by compile
	refs        []string
	sources     []Key
	full, delta string // compiled; delta is the incremental text
	fingerprint string
}

// Published reports whether the model becomes an Iceberg table.
func (m *Model) Published() bool {
	return m.Config.Materialized == Table || m.Config.Materialized == Incremental
}

// Key names a source table.
type Key struct{ Schema, Name string }

func (k Key) String() string { return k.Schema + "." + k.Name }

// Source is a table that models read.
type Source struct {
	// Group and Name are what models write: source('group', 'name').
	Group, Name string
	// Table is the catalog's.
	Table Key
	// Optional stands in for an empty table where there is none: the columns are
	// then those declared.
	Optional bool
	Columns  []SourceColumn
	Tests    []Test
}

// SourceColumn is a declared column.
type SourceColumn struct{ Name, Type string }

// Load reads a project from a folder: its file, models, properties, macros and
// tests.
func Load(dir fs.FS) (*Project, error) {
	body, err := fs.ReadFile(dir, "dbt_project.yml")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, failure.New(failure.Config, "there is no dbt_project.yml in the gold project").
			WithHint("gold.project in the pipeline file names the folder that holds it; weir init --example wikimedia writes one")
	}
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "read dbt_project.yml")
	}
	var doc projectFile
	if err := yaml.Unmarshal(body, &doc); err != nil {
		return nil, failure.Wrap(failure.Config, err, "dbt_project.yml")
	}
	if doc.Name == "" {
		return nil, failure.New(failure.Config, "dbt_project.yml: name is missing")
	}
	p := &Project{Name: doc.Name, Vars: doc.vars(), configs: doc.Models}
	if err := p.unsupported(dir, doc); err != nil {
		return nil, err
	}
	if err := p.readMacros(dir, or(doc.MacroPaths, "macros")); err != nil {
		return nil, err
	}
	if err := p.readModels(dir, or(doc.ModelPaths, "models")); err != nil {
		return nil, err
	}
	if err := p.readProperties(dir, or(doc.ModelPaths, "models")); err != nil {
		return nil, err
	}
	if err := p.readTests(dir, or(doc.TestPaths, "tests")); err != nil {
		return nil, err
	}
	if len(p.Models) == 0 {
		return nil, failure.New(failure.Config, "project %s has no models", p.Name)
	}
	return p, nil
}

type projectFile struct {
	Name          string         `yaml:"name"`
	ModelPaths    []string       `yaml:"model-paths"`
	TestPaths     []string       `yaml:"test-paths"`
	MacroPaths    []string       `yaml:"macro-paths"`
	SeedPaths     []string       `yaml:"seed-paths"`
	SnapshotPaths []string       `yaml:"snapshot-paths"`
	Vars          map[string]any `yaml:"vars"`
	Models        map[string]any `yaml:"models"`
}

// vars are those of the file and those under the project's own name.
func (d projectFile) vars() map[string]any {
	out := map[string]any{}
	for k, v := range d.Vars {
		if k != d.Name {
			out[k] = v
		}
	}
	if own, ok := d.Vars[d.Name].(map[string]any); ok {
		for k, v := range own {
			out[k] = v
		}
	}
	return out
}

func or(paths []string, fallback string) []string {
	if len(paths) == 0 {
		return []string{fallback}
	}
	return paths
}

// unsupported names what a project has that only dbt itself can do.
func (p *Project) unsupported(dir fs.FS, doc projectFile) error {
	for _, name := range []string{"packages.yml", "dependencies.yml"} {
		if _, err := fs.Stat(dir, name); err == nil {
			return failure.New(failure.Config, "%s: packages of macros are not run natively", name).
				WithHint("copy the macros that you use into macros/, or run the folder with dbt-duckdb")
		}
	}
	for what, paths := range map[string][]string{"seeds": or(doc.SeedPaths, "seeds"), "snapshots": or(doc.SnapshotPaths, "snapshots")} {
		files, err := list(dir, paths, ".csv", ".sql", ".yml")
		if err != nil {
			return err
		}
		if len(files) > 0 {
			return failure.New(failure.Config, "%s: %s are not run natively", files[0], what).
				WithHint("load the rows into a table of the catalog, or run the folder with dbt-duckdb")
		}
	}
	return nil
}

// list finds files by their endings, in order.
func list(dir fs.FS, paths []string, endings ...string) ([]string, error) {
	var out []string
	for _, root := range paths {
		if _, err := fs.Stat(dir, path.Clean(root)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		err := fs.WalkDir(dir, path.Clean(root), func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if !d.IsDir() && slices.Contains(endings, path.Ext(name)) {
				out = append(out, name)
			}
			if len(out) > filesMax {
				return fmt.Errorf("more than %d files", filesMax)
			}
			return nil
		})
		if err != nil {
			return nil, failure.Wrap(failure.Config, err, "read the gold project's %s", root)
		}
	}
	slices.Sort(out)
	return out, nil
}

func read(dir fs.FS, name string) (string, error) {
	fi, err := fs.Stat(dir, name)
	if err == nil && fi.Size() > fileBytesMax {
		return "", failure.New(failure.Config, "%s is larger than %d bytes", name, fileBytesMax)
	}
	b, err := fs.ReadFile(dir, name)
	if err != nil {
		return "", failure.Wrap(failure.Config, err, "read %s", name)
	}
	return string(b), nil
}

func (p *Project) readMacros(dir fs.FS, paths []string) error {
	files, err := list(dir, paths, ".sql")
	if err != nil {
		return err
	}
	for _, f := range files {
		body, err := read(dir, f)
		if err != nil {
			return err
		}
		p.macros += body + "\n"
	}
	return nil
}

func (p *Project) readModels(dir fs.FS, paths []string) error {
	files, err := list(dir, paths, ".sql")
	if err != nil {
		return err
	}
	for _, f := range files {
		body, err := read(dir, f)
		if err != nil {
			return err
		}
		m := &Model{Name: strings.TrimSuffix(path.Base(f), ".sql"), Path: f, raw: body}
		if have := p.model(m.Name); have != nil {
			return failure.New(failure.Config, "two models are called %s: %s and %s", m.Name, have.Path, f)
		}
		root := ""
		for _, r := range paths {
			if rest, ok := strings.CutPrefix(f, path.Clean(r)+"/"); ok {
				root = rest
			}
		}
		if m.Config, err = p.folderConfig(root); err != nil {
			return err
		}
		p.Models = append(p.Models, m)
	}
	slices.SortFunc(p.Models, func(a, b *Model) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// model is the model of a name, nil where there is none.
func (p *Project) model(name string) *Model {
	for _, m := range p.Models {
		if m.Name == name {
			return m
		}
	}
	return nil
}

func (p *Project) source(group, name string) *Source {
	for i := range p.Sources {
		if p.Sources[i].Group == group && p.Sources[i].Name == name {
			return &p.Sources[i]
		}
	}
	return nil
}

// folderConfig is what the project file says of the folders of a model; the
// innermost has the last word.
func (p *Project) folderConfig(rel string) (Config, error) {
	c := Config{Materialized: View}
	at, ok := p.configs[p.Name].(map[string]any)
	for _, part := range append([]string{""}, strings.Split(strings.TrimSuffix(rel, ".sql"), "/")...) {
		if part != "" {
			at, ok = at[part].(map[string]any)
		}
		if !ok {
			break
		}
		own := map[string]any{}
		for k, v := range at {
			if name, plus := strings.CutPrefix(k, "+"); plus {
				own[name] = v
			} else if _, folder := v.(map[string]any); !folder {
				own[k] = v
			}
		}
		if err := c.merge(own); err != nil {
			return c, failure.Wrap(failure.Config, err, "dbt_project.yml: models")
		}
	}
	return c, nil
}
