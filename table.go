package weir

import (
	"context"
	"log/slog"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/sink"
)

// Table is where rows are written exactly once: Iceberg, Delta, or a store outside
// (Postgres, …).
type Table interface {
	open(ctx context.Context, env tableEnv) (s sink.Sink, closer func() error, err error)
}

// tableEnv is what a query says of its table.
type tableEnv struct {
	query string
	side  bool
	shape *arrow.Schema
	clock clock.Clock
	log   *slog.Logger
	// deliveries is where a store without a readable marker is written down, and
	// stopping ends its pauses.
	deliveries string
	stopping   <-chan struct{}
	// rows are the query's columns and topics.
	rows pipeline.Query
}

// Catalog is where Iceberg tables are registered.
type Catalog struct {
	// Type is sql (SQLite or Postgres; also where empty) or rest.
	Type string
	// Name is "weir" where empty. Other engines must be told the same.
	Name string
	// URI is the SQLite file, postgres://…, or https://… of a REST catalog.
	URI string
	// Warehouse is the folder of the tables, local or s3://bucket/prefix.
	Warehouse string
	// Properties are passed to the catalog.
	Properties map[string]string
}

// Iceberg is an Iceberg table, made when it is missing.
type Iceberg struct {
	Catalog Catalog
	// Table is namespace.table.
	Table string
	// PartitionBy are terms like day(event_time), or columns.
	PartitionBy []string
	Properties  map[string]string
	// Upsert merges rows by key; nil appends them.
	Upsert *Upsert
}

func (t Iceberg) open(ctx context.Context, env tableEnv) (sink.Sink, func() error, error) {
	by, err := partitionFields(t.Table, t.PartitionBy)
	if err != nil {
		return nil, nil, err
	}
	name := t.Catalog.Name
	if name == "" {
		name = pipeline.DefaultCatalogName
	}
	catalog, err := lake.Open(ctx, lake.Config{Type: t.Catalog.Type, Name: name, URI: t.Catalog.URI, Warehouse: t.Catalog.Warehouse, Props: t.Catalog.Properties})
	if err != nil {
		return nil, nil, err
	}
	s, err := app.IcebergSink(catalog, app.SinkSpec{Query: env.query, Table: t.Table, Side: env.side, Shape: env.shape, PartitionBy: by, Properties: t.Properties, Clock: env.clock, Upsert: app.UpsertSpec(t.Upsert.spec())})
	if err != nil {
		_ = catalog.Close()
		return nil, nil, err
	}
	return s, catalog.Close, nil
}

// Delta is a Delta table, made when it is missing.
type Delta struct {
	// Path is the table's folder, local or s3://bucket/prefix.
	Path string
	// Name is its name in logs and checkpoints; Path where empty.
	Name string
	// PartitionBy are columns.
	PartitionBy []string
	Properties  map[string]string
	// MergeSchema adds columns that an existing table lacks.
	MergeSchema bool
	// AppID is a transaction app id of your own, kept at the batch id as other
	// Delta writers do; the query's own memory does not need it. Where it belongs
	// to another lineage the query stops, unless RebindAppID hands it over.
	AppID       string
	RebindAppID bool
	// Upsert merges rows by key; nil appends them.
	Upsert *Upsert
}

func (t Delta) open(ctx context.Context, env tableEnv) (sink.Sink, func() error, error) {
	if t.Path == "" {
		return nil, nil, failure.New(failure.Config, "query %s: a Delta table needs a Path", env.query)
	}
	name := t.Name
	if name == "" {
		name = t.Path
	}
	by, err := partitionFields(name, t.PartitionBy)
	if err != nil {
		return nil, nil, err
	}
	store, err := app.DeltaStorage(ctx, t.Path, env.clock)
	if err != nil {
		return nil, nil, err
	}
	s, err := app.DeltaSink(store,
		app.SinkSpec{Query: env.query, Table: name, Side: env.side, Shape: env.shape, PartitionBy: by, Properties: t.Properties, Clock: env.clock, Upsert: app.UpsertSpec(t.Upsert.spec())},
		app.DeltaSettings{MergeSchema: t.MergeSchema, AppID: t.AppID, Rebind: t.RebindAppID, Logger: env.log})
	return s, func() error { return nil }, err
}

func partitionFields(table string, terms []string) ([]pipeline.PartitionField, error) {
	var out []pipeline.PartitionField
	for _, term := range terms {
		f, err := pipeline.ParsePartitionField(term)
		if err != nil {
			return nil, failure.Wrap(failure.Config, err, "table %s: PartitionBy: %q", table, term)
		}
		out = append(out, f)
	}
	return out, nil
}
