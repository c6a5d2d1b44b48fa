package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirlake/weir/internal/checkpoint"
	"github.com/weirlake/weir/internal/delta"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/pipeline"
)

// PipelineStatus is what `weir status` prints.
type PipelineStatus struct {
	Name    string        `json:"name"`
	Queries []QueryStatus `json:"queries"`
}

// QueryStatus is one query as its table and its checkpoint know it.
type QueryStatus struct {
	Name      string          `json:"name"`
	Table     string          `json:"table"`
	QueryID   string          `json:"query_id,omitempty"`
	Epoch     int64           `json:"epoch"`
	Instance  string          `json:"instance,omitempty"`
	BatchID   int64           `json:"batch_id"`
	Pending   bool            `json:"pending"`
	RenewedAt time.Time       `json:"renewed_at"`
	Position  string          `json:"position,omitempty"`
	Watermark *time.Time      `json:"watermark,omitempty"`
	Counters  marker.Counters `json:"last_batch"`
	Rows      int64           `json:"rows"`
	Snapshots int             `json:"snapshots"`
	// Checkpoint is the folder; Notes say what stands out in it.
	Checkpoint string   `json:"checkpoint"`
	Notes      []string `json:"notes,omitempty"`
}

// Status reads markers and checkpoints; it changes nothing and needs no broker.
func Status(ctx context.Context, p *pipeline.Pipeline) (*PipelineStatus, error) {
	a := &App{P: p}
	a.fillOptions()
	if err := a.openCatalogToRead(ctx); err != nil {
		return nil, err
	}
	defer a.Close()
	out := &PipelineStatus{Name: p.Name}
	for _, q := range p.Queries {
		s, err := a.queryStatus(ctx, q)
		if err != nil {
			return nil, fmt.Errorf("query %s: %w", q.Name, err)
		}
		out.Queries = append(out.Queries, *s)
	}
	return out, nil
}

func (a *App) queryStatus(ctx context.Context, q pipeline.Query) (*QueryStatus, error) {
	s := &QueryStatus{Name: q.Name, Table: q.To.Table(), BatchID: -1, Checkpoint: CheckpointDir(a.P, q)}
	m, err := a.markerOf(ctx, q, s)
	if err != nil {
		return nil, err
	}
	if m != nil {
		s.QueryID, s.Epoch, s.Instance, s.BatchID = m.QueryID, m.Epoch.Number, m.Instance, m.BatchID
		s.RenewedAt, s.Position, s.Counters = m.RenewedAt, m.Position.String(), m.Counters
		if m.Watermark.Micros != marker.MinTime {
			w := time.UnixMicro(m.Watermark.Micros).UTC()
			s.Watermark = &w
		}
	}
	f, err := a.checkpointFacts(ctx, q)
	if err != nil {
		return nil, err
	}
	switch {
	case f.Corrupt != "":
		s.Notes = append(s.Notes, "checkpoint: "+f.Corrupt)
	case !f.Exists && m != nil:
		s.Notes = append(s.Notes, "the checkpoint folder is missing; the next start adopts the marker (onLostCheckpoint)")
	}
	if f.Plan != nil && (f.Commit == nil || f.Plan.BatchID > f.Commit.BatchID) {
		s.Pending = true
	}
	return s, nil
}

// markerOf reads the table's marker of the query, nil where there is none.
func (a *App) markerOf(ctx context.Context, q pipeline.Query, s *QueryStatus) (*marker.Marker, error) {
	if _, e := q.To.External(); e != nil {
		return a.externalMarkerOf(ctx, q, s)
	}
	if location := MainLocation(a.P, q); location != "" {
		return a.deltaMarkerOf(ctx, q, location, s)
	}
	if a.Catalog == nil {
		return nil, nil
	}
	ident, err := lake.ParseName(q.To.Table())
	if err != nil {
		return nil, err
	}
	t, err := a.Catalog.LoadTable(ctx, ident)
	if errors.Is(err, lake.ErrNoTable) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s.Snapshots = len(t.Metadata().Snapshots())
	if head := t.CurrentSnapshot(); head != nil {
		_, _ = fmt.Sscan(lake.SummaryValue(head, "total-records"), &s.Rows)
	}
	markers, err := marker.FromProperties(t.Properties())
	if err != nil {
		return nil, err
	}
	return markers[q.Name], nil
}

// deltaMarkerOf is markerOf for a Delta table: versions stand for snapshots.
func (a *App) deltaMarkerOf(ctx context.Context, q pipeline.Query, location string, s *QueryStatus) (*marker.Marker, error) {
	store, err := a.deltaStorage(ctx, location)
	if err != nil {
		return nil, err
	}
	snap, err := delta.Open(store, delta.Options{Clock: a.opts.Clock}).Snapshot(ctx)
	if errors.Is(err, delta.ErrNoTable) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s.Snapshots = int(snap.Version) + 1
	for _, f := range snap.Files() {
		s.Rows += f.Rows()
	}
	t, err := Transform(q)
	if err != nil {
		return nil, err
	}
	reader, err := a.tableSink(ctx, SinkSpec{Query: q.Name, Table: q.To.Table(), Shape: t.Outputs()[operator.Main], Clock: a.opts.Clock, Upsert: UpsertSpec(q.To.Upsert())}, location, DeltaSettings{})
	if err != nil {
		return nil, err
	}
	f, err := reader.Facts(ctx, q.Name)
	if f.Rewound != "" {
		s.Notes = append(s.Notes, "table: "+f.Rewound)
	}
	return f.Marker, err
}

// checkpointFacts gathers what the query's checkpoint folder says.
func (a *App) checkpointFacts(ctx context.Context, q pipeline.Query) (checkpoint.Facts, error) {
	store, err := a.openCheckpoint(ctx, CheckpointDir(a.P, q))
	if err != nil {
		return checkpoint.Facts{}, err
	}
	return checkpoint.Open(store, q.Name).Gather(ctx)
}
