package app

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/column"
	"github.com/weirlake/weir/internal/delta"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/maintain"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/sink"
	sinkdelta "github.com/weirlake/weir/internal/sink/delta"
	sinkiceberg "github.com/weirlake/weir/internal/sink/iceberg"
	"github.com/weirlake/weir/internal/upsert"
)

// DeltaLocation is the folder of a Delta table that is named as tables of a
// catalog are: <warehouse>/<namespace>/<table>.
func DeltaLocation(p *pipeline.Pipeline, table string) string {
	return pipeline.JoinLocation(p.Warehouse, strings.Split(table, ".")...)
}

// MainLocation is the folder of a query's Delta table; empty where its main
// table is another one.
func MainLocation(p *pipeline.Pipeline, q pipeline.Query) string {
	switch d := q.To.Delta; {
	case d == nil:
		return ""
	case d.Path != "":
		return d.Path
	default:
		return DeltaLocation(p, d.Table)
	}
}

// DeadLetterLocation is the folder of a query's dead-letter table where that is
// a Delta table, else empty.
func DeadLetterLocation(p *pipeline.Pipeline, q pipeline.Query) string {
	if q.DeadLetter == nil || q.DeadLetter.Format != pipeline.FormatDelta {
		return ""
	}
	return DeltaLocation(p, q.DeadLetter.Table)
}

// SinkSpec is what every table's sink is made from.
type SinkSpec struct {
	Query string
	// Table is its name in logs and checkpoints.
	Table string
	// Side is set for a dead-letter table.
	Side        bool
	Shape       *arrow.Schema
	PartitionBy []pipeline.PartitionField
	Properties  map[string]string
	Clock       clock.Clock
	// Evolution is what the file declares of the columns' past; nil where the
	// program itself has the columns.
	Evolution *column.Evolution
	// Upsert, where set, merges rows by key; Shape then has the column that says
	// what is deleted, and the table has not.
	Upsert *upsert.Spec
	// Care says what is done to an Iceberg table between its batches, Retention
	// what expiry leaves, OldestReader what readers of it still need.
	Care         maintain.Settings
	Retention    lake.Retention
	OldestReader func(ctx context.Context) (int64, error)
	// Verify, if set, is asked before each try of a commit to an Iceberg table.
	Verify func(ctx context.Context, head *table.Table) error
}

// IcebergSink makes the sink over an Iceberg table.
func IcebergSink(catalog *lake.Catalog, s SinkSpec) (sink.Sink, error) {
	ident, err := lake.ParseName(s.Table)
	if err != nil {
		return nil, err
	}
	shape := s.tableShape()
	schema, err := icebergSchema(shape)
	if err != nil {
		return nil, err
	}
	spec, err := partitionSpec(s.Table, schema, s.PartitionBy)
	if err != nil {
		return nil, err
	}
	role := sinkiceberg.Main
	if s.Side {
		role = sinkiceberg.Side
	}
	return sinkiceberg.New(sinkiceberg.Options{
		Catalog: catalog, Table: ident, Query: s.Query, Role: role, Arrow: shape, Schema: schema,
		Partition: spec, Properties: s.Properties, Clock: s.Clock, Upsert: s.Upsert, Verify: s.Verify,
		Care: s.Care, Retention: s.Retention, OldestReader: s.OldestReader, Evolution: s.Evolution,
	})
}

// DeltaSettings are what only a Delta table has.
type DeltaSettings struct {
	MergeSchema bool
	AppID       string
	// Rebind hands AppID over from another lineage; else that is refused.
	Rebind bool
	Logger *slog.Logger
}

// DeltaSink makes the sink over the Delta table in a store.
func DeltaSink(store delta.Storage, s SinkSpec, d DeltaSettings) (sink.Sink, error) {
	o := sinkdelta.Options{
		Storage: store, Table: s.Table, Query: s.Query, Arrow: s.tableShape(), Properties: s.Properties, Upsert: s.Upsert,
		AddColumns: d.MergeSchema, Evolution: s.Evolution, AppID: d.AppID, Clock: s.Clock, Engine: engineInfo,
	}
	if s.Side {
		o.Role = sinkdelta.Side
	}
	if d.Rebind {
		o.OnReusedAppID = delta.RebindReused
	}
	if d.Logger != nil {
		o.Warn = func(err error) {
			d.Logger.Warn("care of the Delta log failed, it is tried again later", "table", s.Table, "error", err)
		}
	}
	for _, f := range s.PartitionBy {
		o.PartitionColumns = append(o.PartitionColumns, f.Column)
	}
	return sinkdelta.New(o)
}

// engineInfo is what a Delta log says of who wrote it.
const engineInfo = "weir"

// OpenStore opens a folder on the local disk, or a prefix on S3 by the default
// chain of the SDK.
func OpenStore(ctx context.Context, location string, clk clock.Clock) (objstore.Store, error) {
	a := &App{P: &pipeline.Pipeline{}, opts: Options{Clock: clk}}
	return a.openCheckpoint(ctx, location)
}

// DeltaStorage opens the folder of a Delta table in the same way.
func DeltaStorage(ctx context.Context, location string, clk clock.Clock) (delta.Storage, error) {
	a := &App{P: &pipeline.Pipeline{}, opts: Options{Clock: clk}}
	return a.deltaStorage(ctx, location)
}

// InstanceID names a deployment of a query: the same checkpoint on the same host
// is the same instance, restarted.
func InstanceID(checkpoint, query string) string { return instanceID(checkpoint, query) }

// LockDir is the folder to lock for a checkpoint, empty where there is none.
func LockDir(checkpoint string) string {
	a := &App{P: &pipeline.Pipeline{}}
	return a.lockDir(checkpoint)
}

// deltaStorage opens the folder of a Delta table. On an object store a data file
// is held in memory while it is written.
func (a *App) deltaStorage(ctx context.Context, location string) (delta.Storage, error) {
	if !pipeline.Remote(location) {
		return delta.OpenLocal(location, objstore.LocalOptions{Clock: a.opts.Clock})
	}
	store, err := a.openCheckpoint(ctx, location)
	if err != nil {
		return nil, err
	}
	return delta.FromStore(store), nil
}

// buildSinks makes a query's sinks: the main table and, where it has one, the
// dead-letter table.
func (a *App) buildSinks(ctx context.Context, q pipeline.Query, t operator.Transform) ([]engine.Output, error) {
	if _, e := q.To.External(); e != nil {
		return a.buildExternal(ctx, q, t)
	}
	shapes := t.Outputs()
	spec := SinkSpec{Query: q.Name, Table: q.To.Table(), Shape: shapes[operator.Main], PartitionBy: q.To.PartitionBy(), Clock: a.opts.Clock,
		Upsert: UpsertSpec(q.To.Upsert()), Evolution: evolutionOf(q)}
	var settings DeltaSettings
	if d := q.To.Delta; d != nil {
		spec.Properties = d.Properties
		settings = DeltaSettings{MergeSchema: d.MergeSchema, AppID: d.AppID, Rebind: d.OnReusedAppID == pipeline.ReusedRebind}
	} else {
		spec.Properties = q.To.Iceberg.Properties
		spec.Care, spec.Retention, spec.OldestReader = a.careOf(q, spec.Table, false)
	}
	mainSink, err := a.tableSink(ctx, spec, MainLocation(a.P, q), settings)
	if err != nil {
		return nil, err
	}
	outputs := []engine.Output{{Name: operator.Main, Sink: mainSink}}
	if q.DeadLetter == nil {
		return outputs, nil
	}
	side, err := a.deadLetterSink(ctx, q, shapes[operator.DeadLetter])
	if err != nil {
		return nil, err
	}
	return append(outputs, engine.Output{Name: operator.DeadLetter, Sink: side}), nil
}

func (a *App) deadLetterSink(ctx context.Context, q pipeline.Query, shape *arrow.Schema) (sink.Sink, error) {
	spec := SinkSpec{Query: q.Name, Table: q.DeadLetter.Table, Side: true, Shape: shape, Properties: q.DeadLetter.Properties, Clock: a.opts.Clock}
	spec.Care, spec.Retention, spec.OldestReader = a.careOf(q, spec.Table, true)
	return a.tableSink(ctx, spec, DeadLetterLocation(a.P, q), DeltaSettings{})
}

// tableSink makes a sink over the Delta table at a location, or over the Iceberg
// table of that name where there is no location.
func (a *App) tableSink(ctx context.Context, s SinkSpec, location string, d DeltaSettings) (sink.Sink, error) {
	if location == "" {
		return IcebergSink(a.Catalog, s)
	}
	store, err := a.deltaStorage(ctx, location)
	if err != nil {
		return nil, fmt.Errorf("query %s: table %s: %w", s.Query, s.Table, err)
	}
	d.Logger = a.opts.Logger
	return DeltaSink(store, s, d)
}
