package gold

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/weirlake/weir/internal/failure"
)

// propertiesFile is a schema.yml.
type propertiesFile struct {
	Models  []modelProperties  `yaml:"models"`
	Sources []sourceProperties `yaml:"sources"`
}

type modelProperties struct {
	Name      string             `yaml:"name"`
	Config    map[string]any     `yaml:"config"`
	Columns   []columnProperties `yaml:"columns"`
	Tests     []any              `yaml:"tests"`
	DataTests []any              `yaml:"data_tests"`
}

type columnProperties struct {
	Name      string `yaml:"name"`
	DataType  string `yaml:"data_type"`
	Tests     []any  `yaml:"tests"`
	DataTests []any  `yaml:"data_tests"`
}

type sourceProperties struct {
	Name   string             `yaml:"name"`
	Schema string             `yaml:"schema"`
	Meta   map[string]any     `yaml:"meta"`
	Config map[string]any     `yaml:"config"`
	Tables []sourceTableProps `yaml:"tables"`
}

type sourceTableProps struct {
	Name       string             `yaml:"name"`
	Identifier string             `yaml:"identifier"`
	Meta       map[string]any     `yaml:"meta"`
	Config     map[string]any     `yaml:"config"`
	Columns    []columnProperties `yaml:"columns"`
	Tests      []any              `yaml:"tests"`
	DataTests  []any              `yaml:"data_tests"`
}

func (p *Project) readProperties(dir fs.FS, paths []string) error {
	files, err := list(dir, paths, ".yml", ".yaml")
	if err != nil {
		return err
	}
	for _, f := range files {
		body, err := read(dir, f)
		if err != nil {
			return err
		}
		var doc propertiesFile
		if err := yaml.Unmarshal([]byte(body), &doc); err != nil {
			return failure.Wrap(failure.Config, err, "%s", f)
		}
		if err := p.apply(doc); err != nil {
			return failure.Wrap(failure.Config, err, "%s", f)
		}
	}
	return nil
}

func (p *Project) apply(doc propertiesFile) error {
	for _, s := range doc.Sources {
		for _, t := range s.Tables {
			if err := p.addSource(s, t); err != nil {
				return err
			}
		}
	}
	for _, mp := range doc.Models {
		m := p.model(mp.Name)
		if m == nil {
			return fmt.Errorf("model %q has no SQL file", mp.Name)
		}
		if err := m.Config.merge(mp.Config); err != nil {
			return fmt.Errorf("model %s: %w", m.Name, err)
		}
		tests, err := genericTests(m.Name, modelRelation(m.Name), append(mp.Tests, mp.DataTests...), mp.Columns)
		if err != nil {
			return fmt.Errorf("model %s: %w", m.Name, err)
		}
		m.Tests = append(m.Tests, tests...)
	}
	return nil
}

// optional is the one setting of ours in a source: meta.optional.
func optional(metas ...map[string]any) bool {
	for _, m := range metas {
		if b, ok := m["optional"].(bool); ok && b {
			return true
		}
		if inner, ok := m["meta"].(map[string]any); ok {
			if b, ok := inner["optional"].(bool); ok && b {
				return true
			}
		}
	}
	return false
}

func (p *Project) addSource(s sourceProperties, t sourceTableProps) error {
	if p.source(s.Name, t.Name) != nil {
		return fmt.Errorf("source %s.%s is declared twice", s.Name, t.Name)
	}
	src := Source{Group: s.Name, Name: t.Name, Table: Key{Schema: s.Name, Name: t.Name}}
	if s.Schema != "" {
		src.Table.Schema = s.Schema
	}
	if t.Identifier != "" {
		src.Table.Name = t.Identifier
	}
	src.Optional = optional(s.Meta, s.Config, t.Meta, t.Config)
	for _, c := range t.Columns {
		src.Columns = append(src.Columns, SourceColumn{c.Name, c.DataType})
		if src.Optional && c.DataType == "" {
			return fmt.Errorf("source %s.%s is optional: column %s needs a data_type", s.Name, t.Name, c.Name)
		}
	}
	if src.Optional && len(src.Columns) == 0 {
		return fmt.Errorf("source %s.%s is optional: its columns have to be declared", s.Name, t.Name)
	}
	tests, err := genericTests("source_"+s.Name+"_"+t.Name, relation{source: &src.Table}, append(t.Tests, t.DataTests...), t.Columns)
	if err != nil {
		return fmt.Errorf("source %s.%s: %w", s.Name, t.Name, err)
	}
	src.Tests = tests
	p.Sources = append(p.Sources, src)
	return nil
}

// readTests reads the singular tests: a query each whose rows are failures.
func (p *Project) readTests(dir fs.FS, paths []string) error {
	files, err := list(dir, paths, ".sql")
	if err != nil {
		return err
	}
	for _, f := range files {
		if slices.Contains(strings.Split(path.Dir(f), "/"), "generic") {
			return failure.New(failure.Config, "%s: generic tests of one's own are not run natively", f).
				WithHint("write it as a singular test, or run the folder with dbt-duckdb")
		}
		body, err := read(dir, f)
		if err != nil {
			return err
		}
		p.Singular = append(p.Singular, Test{Name: strings.TrimSuffix(path.Base(f), ".sql"), Kind: "singular", Severity: SeverityError, raw: body, path: f})
	}
	return nil
}
