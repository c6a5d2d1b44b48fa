package gold

import (
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/weirlake/weir/examples"
	"github.com/weirlake/weir/internal/failure"
)

// shippedWith is the shipped project with one text exchanged.
func shippedWith(t *testing.T, file, from, to string) fs.FS {
	t.Helper()
	out := fstest.MapFS{}
	err := fs.WalkDir(examples.Gold(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(examples.Gold(), name)
		out[name] = &fstest.MapFile{Data: b}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	was := string(out[file].Data)
	now := strings.Replace(was, from, to, 1)
	if was == now {
		t.Fatalf("%s does not hold %q", file, from)
	}
	out[file].Data = []byte(now)
	return out
}

func TestTemplatesAreRenderedAsDbtDoes(t *testing.T) {
	g := compiled(t, project(map[string]string{
		"macros/m.sql": "{% macro cents(column) %}({{ column }} / 100){% endmacro %}",
		"models/a.sql": "{{ config(materialized='table', tags=['x']) }}\nselect {{ cents('n') }} as euro, {{ var('n') }} as n, {{ var('other', 7) }} as o from {{ source('silver', 'edits') }};",
		"models/b.sql": "{# a comment #}{% set cols = ['x', 'y'] %}select {% for c in cols %}1 as {{ c }}{% if not loop.last %}, {% endif %}{% endfor %} from {{ ref('a') }}",
		"models/c.sql": "{{ config(materialized='incremental') }} select 1 as x {% if is_incremental() %} where x > (select max(x) from {{ this }}) {% endif %}",
	}), map[string]any{"n": "4"})
	want := map[string]string{
		"a": `select (n / 100) as euro, 4 as n, 7 as o from "silver"."edits"`,
		"b": `select 1 as x, 1 as y from "gold"."a"`,
		"c": `select 1 as x`,
	}
	for name, sql := range want {
		if got := g.Project.model(name).full; got != sql {
			t.Errorf("%s: %q, want %q", name, got, sql)
		}
	}
	if got := g.Project.model("c").delta; got != `select 1 as x  where x > (select max(x) from "gold@this"."c")` {
		t.Errorf("incremental: %q", got)
	}
	if g.Order[0].Name != "a" || g.Project.model("b").Config.Materialized != View {
		t.Error("order or default materialisation")
	}
}

func TestAFaultInAProjectNamesTheFileAndTheThing(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"unknown ref":        {map[string]string{"models/a.sql": "select * from {{ ref('nope') }}"}, []string{"models/a.sql", "ref('nope')"}},
		"undeclared source":  {map[string]string{"models/a.sql": "select * from {{ source('silver', 'nope') }}"}, []string{"models/a.sql", "not declared"}},
		"circle":             {map[string]string{"models/a.sql": "select * from {{ ref('b') }}", "models/b.sql": "select * from {{ ref('a') }}"}, []string{"circle", "a → b → a"}},
		"missing var":        {map[string]string{"models/a.sql": "select {{ var('x') }}"}, []string{"var('x') is not set"}},
		"unknown function":   {map[string]string{"models/a.sql": "select {{ run_query('x') }}"}, []string{"models/a.sql", "run_query"}},
		"unclosed tag":       {map[string]string{"models/a.sql": "select {{ 1 "}, []string{"models/a.sql"}},
		"unknown setting":    {map[string]string{"models/a.sql": "{{ config(partition_by='x') }} select 1"}, []string{"partition_by"}},
		"unknown kind":       {map[string]string{"models/a.sql": "{{ config(materialized='snapshot') }} select 1"}, []string{"snapshot"}},
		"two statements":     {map[string]string{"models/a.sql": "select 1; drop table x"}, []string{"one query"}},
		"not a query":        {map[string]string{"models/a.sql": "delete from x"}, []string{"one query"}},
		"unknown test":       {map[string]string{"models/a.sql": "select 1 as x", "models/s.yml": "models: [{name: a, columns: [{name: x, tests: [positive]}]}]"}, []string{`"positive"`}},
		"test without model": {map[string]string{"models/a.sql": "select 1", "models/s.yml": "models: [{name: b}]"}, []string{`"b" has no SQL file`}},
		"packages":           {map[string]string{"models/a.sql": "select 1", "packages.yml": "packages: []"}, []string{"packages.yml"}},
		"seeds":              {map[string]string{"models/a.sql": "select 1", "seeds/s.csv": "a\n1\n"}, []string{"seeds/s.csv"}},
		"same name twice":    {map[string]string{"models/a.sql": "select 1", "models/x/a.sql": "select 1"}, []string{"two models are called a"}},
		"no models":          {map[string]string{}, []string{"no models"}},
		"optional but unknown columns": {map[string]string{"models/a.sql": "select 1", "models/o.yml": "sources: [{name: o, tables: [{name: t, meta: {optional: true}}]}]"},
			[]string{"columns have to be declared"}},
	} {
		p, err := Load(project(c.files))
		if err == nil {
			_, err = p.Compile("gold", nil)
		}
		if !failure.Is(err, failure.Config) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", name, err, want)
			}
		}
	}
	if _, err := Load(fstest.MapFS{}); !failure.Is(err, failure.Config) || !strings.Contains(err.Error(), "dbt_project.yml") {
		t.Errorf("an empty folder: %v", err)
	}
}
