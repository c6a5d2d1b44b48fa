package gold

import (
	"fmt"
	"strings"

	"github.com/weirlake/weir/internal/duck"
)

// Severities of a test.
const (
	SeverityError = "error"
	SeverityWarn  = "warn"
)

// Test is one statement whose rows are failures.
type Test struct {
	Name string
	// Kind is not_null, unique, accepted_values, relationships or singular.
	Kind     string
	Severity string
	// Model is what the test belongs to, empty for a singular one.
	Model string

	on     relation
	column string
	values []string
	quote  bool
	to     string // the text of relationships' target, a template
	field  string
	where  string

	raw  string // of a singular test
	path string
	// set by compile
	sql     string
	refs    []string
	sources []Key
}

// relation is a model or a source.
type relation struct {
	model  string
	source *Key
}

func modelRelation(name string) relation { return relation{model: name} }

func genericTests(of string, on relation, whole []any, columns []columnProperties) ([]Test, error) {
	var out []Test
	add := func(column string, defs []any) error {
		for _, d := range defs {
			t, err := genericTest(of, on, column, d)
			if err != nil {
				return err
			}
			out = append(out, t)
		}
		return nil
	}
	if err := add("", whole); err != nil {
		return nil, err
	}
	for _, c := range columns {
		if err := add(c.Name, append(c.Tests, c.DataTests...)); err != nil {
			return nil, fmt.Errorf("column %s: %w", c.Name, err)
		}
	}
	return out, nil
}

func genericTest(of string, on relation, column string, def any) (Test, error) {
	t := Test{Severity: SeverityError, Model: on.model, on: on, column: column, quote: true}
	args := map[string]any{}
	switch d := def.(type) {
	case string:
		t.Kind = d
	case map[string]any:
		if name, ok := d["test_name"].(string); ok {
			t.Kind = name
			args = d
			break
		}
		for k, v := range d {
			if m, ok := v.(map[string]any); ok && k != "config" && k != "arguments" {
				t.Kind, args = k, m
			} else if v == nil {
				t.Kind = k
			}
		}
	}
	for k, v := range args {
		if err := t.set(k, v); err != nil {
			return t, fmt.Errorf("test %s: %w", t.Kind, err)
		}
	}
	t.Name = strings.Trim(t.Kind+"_"+of+"_"+t.column, "_")
	return t, t.complete()
}

func (t *Test) set(key string, v any) error {
	switch key {
	case "arguments", "config":
		m, ok := v.(map[string]any)
		if !ok {
			return fmt.Errorf("%s has to be a mapping", key)
		}
		for k, e := range m {
			if err := t.set(k, e); err != nil {
				return err
			}
		}
	case "severity":
		t.Severity = strings.ToLower(fmt.Sprint(v))
		if t.Severity != SeverityError && t.Severity != SeverityWarn {
			return fmt.Errorf("severity %v: want error or warn", v)
		}
	case "column_name":
		t.column = fmt.Sprint(v)
	case "values":
		list, ok := v.([]any)
		if !ok {
			return fmt.Errorf("values has to be a list")
		}
		for _, e := range list {
			t.values = append(t.values, fmt.Sprint(e))
		}
	case "quote":
		t.quote = v == true
	case "to":
		t.to = fmt.Sprint(v)
	case "field":
		t.field = fmt.Sprint(v)
	case "where":
		t.where = fmt.Sprint(v)
	case "name":
		t.Name = fmt.Sprint(v)
	case "description", "tags", "meta", "test_name":
	default:
		return fmt.Errorf("argument %q is not known here", key)
	}
	return nil
}

func (t *Test) complete() error {
	switch {
	case t.Kind != "not_null" && t.Kind != "unique" && t.Kind != "accepted_values" && t.Kind != "relationships":
		return fmt.Errorf("test %q is not known here (not_null, unique, accepted_values, relationships; others as SQL in tests/)", t.Kind)
	case t.column == "":
		return fmt.Errorf("test %s has no column", t.Kind)
	case t.Kind == "accepted_values" && len(t.values) == 0:
		return fmt.Errorf("test accepted_values of %s has no values", t.column)
	case t.Kind == "relationships" && (t.to == "" || t.field == ""):
		return fmt.Errorf("test relationships of %s needs to and field", t.column)
	}
	return nil
}

// statement is the test's query over the relations given: rows are failures.
func (t *Test) statement(on, to string) string {
	from := on
	if t.where != "" {
		from = "(FROM " + on + " WHERE " + t.where + ")"
	}
	col := t.column
	if !strings.ContainsAny(col, `"( `) {
		col = duck.Ident(col)
	}
	switch t.Kind {
	case "not_null":
		return fmt.Sprintf("FROM %s WHERE %s IS NULL", from, col)
	case "unique":
		return fmt.Sprintf("SELECT %s AS unique_field, count(*) AS n_records FROM %s WHERE %s IS NOT NULL GROUP BY 1 HAVING count(*) > 1", col, from, col)
	case "accepted_values":
		vals := make([]string, len(t.values))
		for i, v := range t.values {
			vals[i] = v
			if t.quote {
				vals[i] = duck.Quote(v)
			}
		}
		return fmt.Sprintf("SELECT %s AS value_field, count(*) AS n_records FROM %s GROUP BY 1 HAVING value_field NOT IN (%s)", col, from, strings.Join(vals, ", "))
	}
	field := duck.Ident(t.field)
	return fmt.Sprintf("SELECT c.%s AS from_field FROM %s AS c LEFT JOIN %s AS p ON c.%s = p.%s WHERE c.%s IS NOT NULL AND p.%s IS NULL",
		col, from, to, col, field, col, field)
}
