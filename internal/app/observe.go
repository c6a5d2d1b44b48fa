package app

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/gold"
	"github.com/weirlake/weir/internal/openlineage"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/status"
	"github.com/weirlake/weir/internal/tracing"
)

// openObservers starts traces and lineage, where they are asked for.
func (a *App) openObservers(ctx context.Context) error {
	want, err := tracing.Wanted()
	if err != nil {
		return err
	}
	if want {
		if a.tracer, err = tracing.New(ctx, tracing.Options{Pipeline: a.P.Name, Version: a.opts.Version, Clock: a.opts.Clock, Logger: a.opts.Logger}); err != nil {
			return err
		}
		a.closers = append(a.closers, a.tracer.Close)
	}
	return a.openLineage()
}

// openLineage starts lineage where the file or the environment names a server;
// the file comes first.
func (a *App) openLineage() error {
	o := openlineage.Options{Version: a.opts.Version, Clock: a.opts.Clock, Logger: a.opts.Logger}
	switch l := a.P.Lineage; {
	case strings.EqualFold(os.Getenv("OPENLINEAGE_DISABLED"), "true"):
		return nil
	case l != nil:
		o.URL, o.Endpoint, o.Namespace, o.APIKey, o.Timeout = l.URL, l.Endpoint, l.Namespace, l.APIKey.Reveal(), l.Timeout
	case os.Getenv("OPENLINEAGE_URL") != "":
		o.URL, o.Endpoint = os.Getenv("OPENLINEAGE_URL"), os.Getenv("OPENLINEAGE_ENDPOINT")
		o.Namespace, o.APIKey = os.Getenv("OPENLINEAGE_NAMESPACE"), os.Getenv("OPENLINEAGE_API_KEY")
	default:
		return nil
	}
	c, err := openlineage.New(o)
	if err != nil {
		return err
	}
	a.lineageTo = c
	a.closers = append(a.closers, c.Close)
	return nil
}

// observers are those of a query.
func (a *App) observers(q pipeline.Query, t operator.Transform) (out []engine.Observer) {
	if a.tracer != nil {
		out = append(out, a.tracer)
	}
	if a.lineageTo != nil {
		out = append(out, a.lineageTo.Observe(a.lineageOf(q, t)))
	}
	return out
}

// lineageOf is what is fixed about a query's datasets.
func (a *App) lineageOf(q pipeline.Query, t operator.Transform) openlineage.Query {
	shapes := t.Outputs()
	out := openlineage.Query{Job: a.P.Name + "." + q.Name, Outputs: map[string]openlineage.Table{}}
	if q.From.Table != nil {
		source := a.dataset(q.From.Table.Name, "", nil)
		out.Source = &source
	} else if b := a.Kafka.BootstrapServers; len(b) > 0 {
		out.Kafka = "kafka://" + b[0]
	}
	main := a.dataset(q.To.Table(), MainLocation(a.P, q), shapes[operator.Main])
	if key, e := q.To.External(); e != nil {
		main = openlineage.Table{Namespace: key, Path: e.Target(), Fields: fieldsOf(shapes[operator.Main])}
	}
	out.Outputs[operator.Main] = main
	if q.DeadLetter != nil {
		out.Outputs[operator.DeadLetter] = a.dataset(q.DeadLetter.Table, DeadLetterLocation(a.P, q), shapes[operator.DeadLetter])
	}
	if name := q.RejectedTable(); name != "" {
		out.Outputs[operator.Rejected] = a.dataset(name, "", nil)
	}
	return out
}

// dataset is a table by its place: location, or where the catalog puts a table of
// that name in the warehouse.
func (a *App) dataset(name, location string, shape *arrow.Schema) openlineage.Table {
	out := openlineage.Table{Fields: fieldsOf(shape)}
	if location == "" {
		location = DeltaLocation(a.P, name) // the layout is the same
		out.Catalog, out.Name = a.P.Catalog.Name, name
	}
	out.Namespace, out.Path = openlineage.Place(location)
	return out
}

func fieldsOf(shape *arrow.Schema) (out []openlineage.Field) {
	if shape == nil {
		return nil
	}
	for _, f := range shape.Fields() {
		if f.Name != operator.DeletedColumn {
			out = append(out, openlineage.Field{Name: f.Name, Type: f.Type.String()})
		}
	}
	return out
}

// goldRan tells of every model that a run of gold published or that failed.
func (a *App) goldRan(g *gold.Graph, res *gold.Result) {
	if a.lineageTo == nil || res == nil {
		return
	}
	at := map[string]int64{} // snapshots that were read
	for _, in := range res.Inputs {
		at[in.Table] = in.SnapshotID
	}
	tables := map[string]string{} // of published models
	for _, m := range res.Models {
		if m.Table != "" {
			tables[m.Name], at[m.Table] = m.Table, m.SnapshotID
		}
	}
	ended := res.StartedAt.Add(time.Duration(res.ElapsedSeconds * float64(time.Second)))
	for _, m := range res.Models {
		if m.State != gold.StatePublished && m.State != gold.StateFailed || m.Table == "" {
			continue
		}
		out := openlineage.Model{
			Job: a.P.Name + "." + m.Table, RunID: res.RunID, Begun: res.StartedAt, Ended: ended,
			Output: a.dataset(m.Table, "", nil), SnapshotID: m.SnapshotID, Rows: m.Rows, Files: int64(m.Files), Error: m.Error,
		}
		for _, model := range g.Order {
			if model.Name != m.Name {
				continue
			}
			out.SQL = model.SQL()
			for _, r := range sourcesOf(g, model) {
				if t, ok := tables[r]; ok {
					r = t
				}
				out.Inputs = append(out.Inputs, openlineage.ModelInput{Table: a.dataset(r, "", nil), SnapshotID: at[r]})
			}
		}
		a.lineageTo.ModelRan(out)
	}
}

// sourcesOf are the tables that a model reads, through models that are no tables.
func sourcesOf(g *gold.Graph, m *gold.Model) (out []string) {
	byName := map[string]*gold.Model{}
	for _, o := range g.Order {
		byName[o.Name] = o
	}
	seen := map[string]bool{}
	var walk func(*gold.Model)
	walk = func(m *gold.Model) {
		for _, r := range m.Reads() {
			if seen[r] {
				continue
			}
			seen[r] = true
			if up := byName[r]; up != nil && !up.Published() {
				walk(up)
				continue
			}
			out = append(out, r)
		}
	}
	walk(m)
	return out
}

// lineageForPage is what the status page asks, nil where there is no lineage.
func (a *App) lineageForPage() func() *status.Lineage {
	if a.lineageTo == nil {
		return nil
	}
	return func() *status.Lineage {
		s := a.lineageTo.Stats()
		return &status.Lineage{Sent: s.Sent, Dropped: s.Dropped}
	}
}
