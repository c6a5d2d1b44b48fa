package app

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strings"

	"github.com/weirlake/weir/examples"
	"github.com/weirlake/weir/internal/duck"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/gold"
	"github.com/weirlake/weir/internal/pipeline"
)

// GoldOptions are what a command adds to the file's gold.
type GoldOptions struct {
	Logger *slog.Logger
	// Version is this program's, for lineage.
	Version     string
	FullRefresh bool
	Test        bool
	Pins        map[string]int64
	Select      []string
}

// goldGraph loads and compiles the models of a pipeline.
func goldGraph(p *pipeline.Pipeline) (*gold.Graph, error) {
	if p.Gold == nil {
		return nil, failure.New(failure.Config, "%s has no gold", p.File).
			WithHint("add gold: {project: FOLDER}, or gold: {project: %s}", pipeline.BuiltinGold)
	}
	var dir fs.FS
	if p.Gold.Project == pipeline.BuiltinGold {
		dir = examples.Gold()
	} else {
		if fi, err := os.Stat(p.Gold.Project); err != nil || !fi.IsDir() {
			return nil, failure.New(failure.Config, "gold.project: %s is not a folder", p.Gold.Project)
		}
		dir = os.DirFS(p.Gold.Project)
	}
	project, err := gold.Load(dir)
	if err != nil {
		return nil, err
	}
	vars := map[string]any{}
	for k, v := range p.Gold.Vars {
		vars[k] = v
	}
	return project.Compile(p.Gold.Schema, vars)
}

func (a *App) goldOptions(o GoldOptions) gold.Options {
	g := a.P.Gold
	return gold.Options{
		Catalog: a.Catalog, Clock: a.opts.Clock, Logger: a.opts.Logger, Threads: g.Threads, MemoryLimit: g.MemoryLimit, Keep: g.Database,
		FullRefresh: o.FullRefresh, Test: o.Test, Pins: o.Pins, Select: o.Select,
	}
}

// withGold opens the catalog alone and calls do with the compiled models.
func withGold(ctx context.Context, p *pipeline.Pipeline, o GoldOptions, do func(*App, *gold.Graph, gold.Options) error) (err error) {
	if err := duck.Linked(); err != nil {
		return err
	}
	g, err := goldGraph(p)
	if err != nil {
		return err
	}
	a, err := openReader(ctx, p, o.Logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	a.opts.Version = o.Version
	if err := a.openLineage(); err != nil {
		return err
	}
	return do(a, g, a.goldOptions(o))
}

// openReader opens the catalog of a pipeline whose tables exist; no broker is
// needed.
func openReader(ctx context.Context, p *pipeline.Pipeline, logger *slog.Logger) (*App, error) {
	a := &App{P: p, opts: Options{Logger: logger}}
	a.fillOptions()
	if err := a.openCatalogToRead(ctx); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	if a.Catalog == nil {
		return nil, errors.Join(failure.New(failure.Config, "%s: there is no catalog yet", p.File).WithHint("weir run makes it"), a.Close())
	}
	return a, nil
}

// GoldRun builds and publishes the models.
func GoldRun(ctx context.Context, p *pipeline.Pipeline, o GoldOptions) (res *gold.Result, err error) {
	err = withGold(ctx, p, o, func(a *App, g *gold.Graph, opts gold.Options) (err error) {
		res, err = g.Run(ctx, opts)
		a.goldRan(g, res)
		return err
	})
	return res, err
}

// GoldTest tests the published tables.
func GoldTest(ctx context.Context, p *pipeline.Pipeline, o GoldOptions) (rep *gold.TestReport, err error) {
	err = withGold(ctx, p, o, func(_ *App, g *gold.Graph, opts gold.Options) (err error) {
		rep, err = g.Test(ctx, opts)
		return err
	})
	return rep, err
}

// GoldList lists the models.
func GoldList(ctx context.Context, p *pipeline.Pipeline, o GoldOptions) (out []gold.Listing, err error) {
	err = withGold(ctx, p, o, func(_ *App, g *gold.Graph, opts gold.Options) (err error) {
		out, err = g.List(ctx, opts)
		return err
	})
	return out, err
}

// GoldAttach writes the sources, pinned, into a DuckDB file.
func GoldAttach(ctx context.Context, p *pipeline.Pipeline, o GoldOptions, path string) (in []gold.Input, err error) {
	err = withGold(ctx, p, o, func(_ *App, g *gold.Graph, opts gold.Options) (err error) {
		in, err = g.Attach(ctx, opts, path)
		return err
	})
	return in, err
}

// SQL is DuckDB over every table of a pipeline's catalog, pinned.
type SQL struct {
	*duck.Session
	*duck.Shelf
	a *App
}

// OpenSQL pins every table of the catalog.
func OpenSQL(ctx context.Context, p *pipeline.Pipeline, asOf duck.AsOf, logger *slog.Logger) (*SQL, error) {
	if err := duck.Linked(); err != nil {
		return nil, err
	}
	a, err := openReader(ctx, p, logger)
	if err != nil {
		return nil, err
	}
	s, err := duck.Open(ctx, duck.Options{})
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	sh, err := duck.NewShelf(ctx, s, a.Catalog, asOf)
	if err != nil {
		return nil, errors.Join(err, s.Close(), a.Close())
	}
	return &SQL{Session: s, Shelf: sh, a: a}, nil
}

// Close ends the session.
func (s *SQL) Close() error { return errors.Join(s.Session.Close(), s.a.Close()) }

// Run runs one statement that reads.
func (s *SQL) Run(ctx context.Context, statement string, form duck.Form) (*duck.Rows, error) {
	if err := duck.CheckReads(statement); err != nil {
		return nil, err
	}
	query, err := s.Prepare(ctx, statement)
	if err != nil {
		return nil, err
	}
	rows, err := s.Query(ctx, query, form)
	if f := (*failure.Error)(nil); errors.As(err, &f) && strings.Contains(f.Message, "does not exist") && f.Hint == "" {
		var names []string
		for _, t := range s.Tables() {
			names = append(names, t.Name)
		}
		return nil, f.WithHint("there are %s", strings.Join(names, ", "))
	}
	return rows, err
}
