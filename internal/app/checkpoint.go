package app

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/checkpoint"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/sink"
	sinkdelta "github.com/weirlake/weir/internal/sink/delta"
)

// QueryByName picks a query of the pipeline; an empty name picks the only one.
func QueryByName(p *pipeline.Pipeline, name string) (pipeline.Query, error) {
	var names []string
	for _, q := range p.Queries {
		if q.Name == name || (name == "" && len(p.Queries) == 1) {
			return q, nil
		}
		names = append(names, q.Name)
	}
	if name == "" {
		return pipeline.Query{}, failure.New(failure.Config, "%s has several queries, and none is named", p.File).
			WithHint("name one of them after the file: %s", strings.Join(names, ", "))
	}
	return pipeline.Query{}, failure.New(failure.Config, "%s has no query %q; it has %s", p.File, name, strings.Join(names, ", "))
}

// CheckpointReport is what `weir checkpoint show` prints.
type CheckpointReport struct {
	Query    string                    `json:"query"`
	Location string                    `json:"location"`
	Exists   bool                      `json:"exists"`
	Metadata *checkpoint.Metadata      `json:"metadata,omitempty"`
	Plan     *checkpoint.Plan          `json:"plan,omitempty"`
	Commit   *checkpoint.CommitEntry   `json:"commit,omitempty"`
	Corrupt  string                    `json:"corrupt,omitempty"`
	Markers  map[string]*marker.Marker `json:"markers"`
	Rewound  map[string]string         `json:"rewound,omitempty"`
}

// ShowCheckpoint gathers what checkpoint and sinks say of a query.
func ShowCheckpoint(ctx context.Context, p *pipeline.Pipeline, name string) (*CheckpointReport, error) {
	a, q, built, err := openQuery(ctx, p, name)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	f, err := a.checkpointFacts(ctx, q)
	if err != nil {
		return nil, err
	}
	r := &CheckpointReport{
		Query: q.Name, Location: CheckpointDir(p, q), Exists: f.Exists, Metadata: f.Metadata, Plan: f.Plan,
		Commit: f.Commit, Corrupt: f.Corrupt, Markers: map[string]*marker.Marker{}, Rewound: map[string]string{},
	}
	for _, o := range built {
		facts, err := o.Sink.Facts(ctx, q.Name)
		if err != nil {
			return nil, err
		}
		r.Markers[o.Sink.Name()] = facts.Marker
		if facts.Rewound != "" {
			r.Rewound[o.Sink.Name()] = facts.Rewound
		}
	}
	return r, nil
}

// openQuery opens the catalog and one query's sinks; no broker is needed.
func openQuery(ctx context.Context, p *pipeline.Pipeline, name string) (*App, pipeline.Query, []engine.Output, error) {
	q, err := QueryByName(p, name)
	if err != nil {
		return nil, q, nil, err
	}
	a := &App{P: p, notify: map[string]*notifier{}}
	a.fillOptions()
	if err := a.openCatalog(ctx); err != nil {
		return nil, q, nil, err
	}
	t, err := Transform(q)
	if err != nil {
		return nil, q, nil, errors.Join(err, a.Close())
	}
	sinks, err := a.buildSinks(ctx, q, t)
	if err != nil {
		return nil, q, nil, errors.Join(err, a.Close())
	}
	return a, q, sinks, nil
}

// AdoptCheckpoint puts the checkpoint folder aside and writes a new one from
// the markers. With fromSnapshot, the table's present contents are accepted
// first: the marker becomes the one of the newest snapshot in the head's chain
// that has one, which is what a deliberate rollback calls for.
func AdoptCheckpoint(ctx context.Context, p *pipeline.Pipeline, name string, fromSnapshot bool, o Options) (aside string, err error) {
	q, err := QueryByName(p, name)
	if err != nil {
		return "", err
	}
	if fromSnapshot {
		if err := acceptable(q); err != nil {
			return "", err
		}
		if err := acceptSnapshot(ctx, p, q); err != nil {
			return "", err
		}
	}
	return settle(ctx, p, q, checkpoint.Adopt, o)
}

// ResetCheckpoint begins a new lineage at startingOffsets: rows that are in the
// table already are delivered again.
func ResetCheckpoint(ctx context.Context, p *pipeline.Pipeline, name string, o Options) (aside string, err error) {
	q, err := QueryByName(p, name)
	if err != nil {
		return "", err
	}
	return settle(ctx, p, q, checkpoint.Restart, o)
}

// settle moves the checkpoint aside and claims the query under the policy.
func settle(ctx context.Context, p *pipeline.Pipeline, q pipeline.Query, policy checkpoint.OnLostCheckpoint, o Options) (string, error) {
	before := &App{P: p, opts: o}
	before.fillOptions()
	aside, err := before.putAside(ctx, q, policy == checkpoint.Adopt)
	if err != nil {
		return aside, err
	}
	o.Queries = []string{q.Name}
	a, err := Open(ctx, p, o)
	if err != nil {
		return aside, err
	}
	defer a.Close()
	for _, built := range a.Queries() {
		built.Options.OnLostCheckpoint = policy
		if err := built.Claim(ctx); err != nil {
			return aside, err
		}
	}
	return aside, nil
}

// acceptSnapshot makes the marker in each of the query's tables that of the
// newest snapshot that is left.
func acceptSnapshot(ctx context.Context, p *pipeline.Pipeline, q pipeline.Query) error {
	a, _, sinks, err := openQuery(ctx, p, q.Name)
	if err != nil {
		return err
	}
	defer a.Close()
	for _, o := range sinks {
		if d, ok := o.Sink.(*sinkdelta.Sink); ok {
			_, err = d.AcceptHead(ctx)
		} else {
			err = a.acceptHead(ctx, o.Sink.Name(), q.Name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (a *App) acceptHead(ctx context.Context, name, query string) error {
	ident, err := lake.ParseName(name)
	if err != nil {
		return err
	}
	t, err := a.Catalog.LoadTable(ctx, ident)
	if errors.Is(err, lake.ErrNoTable) {
		return nil
	}
	if err != nil {
		return err
	}
	markers, err := marker.FromProperties(t.Properties())
	if err != nil {
		return err
	}
	now := markers[query]
	if now == nil {
		return failure.New(failure.Checkpoint, "table %s holds no marker of query %s", name, query)
	}
	var found *marker.Marker
	lake.Walk(t, func(s *table.Snapshot) bool {
		if m, err := marker.Decode(lake.SummaryValue(s, marker.KeyMarker)); err == nil && m.QueryName == query {
			found = m
			return false
		}
		return true
	})
	if found == nil {
		return failure.New(failure.Checkpoint, "no snapshot of table %s that is left names a batch of query %s", name, query).
			WithHint("start over with: weir checkpoint reset")
	}
	if found.Attempt == now.Attempt {
		return nil // the head is what the marker speaks of
	}
	m := *found
	m.QueryID, m.Predecessor = now.QueryID, now.Predecessor
	m.Epoch = marker.Epoch{Number: now.Epoch.Number + 1, Nonce: clock.Nonce()}
	m.Attempt, m.Claim, m.RenewedAt = clock.Nonce(), true, a.opts.Clock.Now()
	m.BaseSequence = lake.HeadOf(t).Sequence
	offsets, err := sink.MergeOffsets(markers, &m)
	if err != nil {
		return err
	}
	summary, err := m.Summary(offsets)
	if err != nil {
		return err
	}
	whole, err := m.Encode()
	if err != nil {
		return err
	}
	if _, err := a.Catalog.Commit(ctx, t, lake.Change{
		Properties: map[string]string{marker.PropertyKey(query): whole}, Summary: summary,
	}); err != nil {
		return fmt.Errorf("accept the contents of %s: %w", name, err)
	}
	return nil
}
