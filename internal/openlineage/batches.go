package openlineage

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/engine"
)

// Table is a table as a dataset: by its place, with its name in the catalog.
type Table struct {
	// Namespace and Path are of the place: file and /data/warehouse/silver/edits,
	// s3://bucket and warehouse/silver/edits.
	Namespace, Path string
	// Catalog and Name are of the catalog; empty where it is in none.
	Catalog, Name string
	Fields        []Field
}

// dataset is the table with a version, 0 for none.
func (t Table) dataset(version int64) Dataset {
	d := Dataset{Namespace: t.Namespace, Name: t.Path, Facets: map[string]any{}}
	if t.Catalog != "" {
		d.Facets["symlinks"] = symlinkFacet(t.Catalog, t.Name)
	}
	if t.Fields != nil {
		d.Facets["schema"] = schemaFacet(t.Fields)
	}
	if version != 0 {
		d.Facets["version"] = versionFacet(strconv.FormatInt(version, 10))
	}
	return d
}

// Query is what is fixed about a query.
type Query struct {
	// Job is the job's name.
	Job string
	// Kafka is the namespace of its topics; Source its source table, where it
	// reads one.
	Kafka  string
	Source *Table
	// Outputs are by the engine's name of the output.
	Outputs map[string]Table
}

// batches tells of the batches of one query. It implements engine.Observer.
type batches struct {
	c *Client
	q Query
}

// Observe is an observer of a query's batches.
func (c *Client) Observe(q Query) engine.Observer { return &batches{c: c, q: q} }

// BatchStarted implements engine.Observer. A batch that another process had
// begun and did not end is aborted first: that process is dead.
func (b *batches) BatchStarted(r engine.BatchRun) {
	if r.PlanEpoch != r.Epoch {
		old := r
		old.Epoch = r.PlanEpoch
		b.c.Emit(b.event(Abort, r.Started, old))
	}
	b.c.Emit(b.event(Start, r.Started, r))
}

// BatchEnded implements engine.Observer.
func (b *batches) BatchEnded(r engine.BatchRun) {
	kind := Complete
	switch {
	case r.Stopped:
		kind = Abort
	case r.Err != nil:
		kind = Fail
	}
	e := b.event(kind, r.Ended, r)
	if kind == Fail {
		e.Run.Facets["errorMessage"] = errorFacet(r.Err.Error())
	}
	if kind == Complete {
		for i := range e.Inputs {
			if len(e.Inputs) == 1 { // how many came from which of several topics is not counted
				e.Inputs[i].InputFacets = map[string]any{"inputStatistics": inputStatistics(r.Counters.Read)}
			}
		}
	}
	b.c.Emit(e)
}

func (b *batches) event(kind string, at time.Time, r engine.BatchRun) Event {
	position := func(p batch.Position) json.RawMessage {
		raw, _ := json.Marshal(p) // plain structs
		return raw
	}
	e := Event{
		EventTime: at.UTC(), EventType: kind,
		Job: Job{Namespace: b.c.o.Namespace, Name: b.q.Job, Facets: map[string]any{"jobType": jobType("STREAMING", "QUERY")}},
		Run: Run{RunID: runID(r.QueryID, strconv.FormatInt(r.BatchID, 10), strconv.FormatInt(r.Epoch, 10)), Facets: map[string]any{
			"processing_engine": engineFacet(b.c.o.Version), "nominalTime": nominalTime(r.BatchTime),
			"weir_batch": facet(ownFacet, map[string]any{
				"queryName": r.QueryName, "queryId": r.QueryID, "batchId": r.BatchID, "epoch": r.Epoch, "rerun": r.Rerun,
				"from": position(r.From), "to": position(r.To),
			}),
		}},
	}
	switch {
	case b.q.Source != nil:
		var snapshot int64
		if r.To.Table != nil {
			snapshot = r.To.Table.SnapshotID
		}
		e.Inputs = []Dataset{b.q.Source.dataset(snapshot)}
	case r.To.Kafka != nil:
		seen := ""
		r.To.Kafka.Each(func(topic, _ string, _ int32, _ batch.PartitionPosition) {
			if topic != seen {
				e.Inputs, seen = append(e.Inputs, Dataset{Namespace: b.q.Kafka, Name: topic}), topic
			}
		})
	}
	if kind != Complete {
		for _, name := range outputOrder(b.q.Outputs) {
			e.Outputs = append(e.Outputs, b.q.Outputs[name].dataset(0))
		}
		return e
	}
	for _, o := range r.Outputs {
		t, ok := b.q.Outputs[o.Output]
		if !ok {
			continue
		}
		d := t.dataset(o.SnapshotID)
		d.OutputFacets = map[string]any{"outputStatistics": outputStatistics(o.Rows, o.Bytes, int64(o.Files))}
		e.Outputs = append(e.Outputs, d)
	}
	return e
}

// Place splits a location into a dataset's namespace and name.
func Place(location string) (namespace, path string) {
	scheme, rest, ok := strings.Cut(location, "://")
	if !ok || scheme == "file" {
		if ok {
			location = rest
		}
		return "file", location
	}
	host, path, _ := strings.Cut(rest, "/")
	return scheme + "://" + host, path
}
