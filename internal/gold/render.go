package gold

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	gonjaroot "github.com/nikolalohinski/gonja/v2"
	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"

	"github.com/weirlake/weir/internal/duck"
	"github.com/weirlake/weir/internal/failure"
)

// incrementalSuffix makes the schema in which a model finds its own table.
const incrementalSuffix = "@this"

// rendering is one pass over a template: what it says of itself and what it
// refers to.
type rendering struct {
	p           *Project
	schema      string
	vars        map[string]any
	incremental bool
	model       *Model // nil for a test
	refs        []string
	sources     []Key
	config      map[string]any
}

// render turns a template into SQL. Names of models become tables of the
// session's gold schema, those of sources the catalog's own names.
func (r *rendering) render(name, text string) (out string, err error) {
	loader, err := loaders.NewMemoryLoader(map[string]string{"/" + name: text})
	if err != nil {
		return "", err
	}
	env := *gonjaroot.DefaultEnvironment
	env.Context = exec.EmptyContext().Update(gonjaroot.DefaultContext).Update(r.context())
	cfg := config.New()
	cfg.StrictUndefined = true
	defer func() { // the library trusts its templates
		if v := recover(); v != nil {
			out, err = "", fmt.Errorf("template: %v", v)
		}
	}()
	t, err := exec.NewTemplate("/"+name, cfg, loader, &env)
	if err != nil {
		return "", errors.New(shortened(err, text))
	}
	out, err = t.ExecuteToString(exec.EmptyContext())
	if err != nil {
		var f *failure.Error
		if errors.As(err, &f) {
			return "", f
		}
		return "", errors.New(shortened(err, text))
	}
	return strings.TrimSpace(out), nil
}

// shortened takes the template itself out of the library's message.
func shortened(err error, text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(err.Error(), "failed to parse template '"+text+"': ", ""), "unable to execute template: ", "")
}

func (r *rendering) context() *exec.Context {
	this := ""
	if r.model != nil {
		this = duck.Relation(r.schema+incrementalSuffix, r.model.Name)
	}
	return exec.NewContext(map[string]any{
		"ref": r.ref, "source": r.source, "config": r.configure, "var": r.variable,
		"is_incremental": func(*exec.VarArgs) *exec.Value { return exec.AsValue(r.incremental) },
		"this":           this,
		"execute":        true,
		"target":         map[string]any{"name": "weir", "type": "duckdb", "schema": r.schema},
	})
}

func texts(args *exec.VarArgs) ([]string, error) {
	var out []string
	for _, a := range args.Args {
		if !a.IsString() {
			return nil, fmt.Errorf("%s is not a string", a.String())
		}
		out = append(out, a.String())
	}
	return out, nil
}

func (r *rendering) ref(args *exec.VarArgs) *exec.Value {
	names, err := texts(args)
	if err != nil || len(names) < 1 || len(names) > 2 {
		return exec.AsValue(fmt.Errorf("ref takes the name of a model"))
	}
	name := names[len(names)-1] // ref('project', 'model')
	m := r.p.model(name)
	if m == nil || m.Config.off {
		return exec.AsValue(fmt.Errorf("ref('%s'): there is no such model%s", name, r.p.similar(name)))
	}
	if !slices.Contains(r.refs, name) {
		r.refs = append(r.refs, name)
	}
	return exec.AsSafeValue(duck.Relation(r.schema, name))
}

func (p *Project) similar(string) string {
	var names []string
	for _, m := range p.Models {
		names = append(names, m.Name)
	}
	return " (" + strings.Join(names, ", ") + ")"
}

func (r *rendering) source(args *exec.VarArgs) *exec.Value {
	names, err := texts(args)
	if err != nil || len(names) != 2 {
		return exec.AsValue(errors.New("source takes two names: of the source and of its table"))
	}
	s := r.p.source(names[0], names[1])
	if s == nil {
		return exec.AsValue(fmt.Errorf("source('%s', '%s') is not declared under sources: in a schema.yml", names[0], names[1]))
	}
	if !slices.Contains(r.sources, s.Table) {
		r.sources = append(r.sources, s.Table)
	}
	return exec.AsSafeValue(duck.Relation(s.Table.Schema, s.Table.Name))
}

func (r *rendering) configure(args *exec.VarArgs) *exec.Value {
	if r.config == nil {
		r.config = map[string]any{}
	}
	for k, v := range args.KwArgs {
		r.config[k] = v.ToGoSimpleType(false)
	}
	return exec.AsValue("")
}

func (r *rendering) variable(args *exec.VarArgs) *exec.Value {
	names, err := texts(&exec.VarArgs{Args: args.Args[:min(1, len(args.Args))]})
	if err != nil || len(names) != 1 {
		return exec.AsValue(errors.New("var takes a name, and a default if you like"))
	}
	if v, ok := r.vars[names[0]]; ok {
		return exec.AsValue(v)
	}
	if len(args.Args) == 2 {
		return args.Args[1]
	}
	if v, ok := args.KwArgs["default"]; ok {
		return v
	}
	return exec.AsValue(fmt.Errorf("var('%s') is not set: under vars: in dbt_project.yml, or gold.vars in the pipeline file", names[0]))
}
