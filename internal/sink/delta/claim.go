package delta

import (
	"context"
	"errors"
	"maps"

	"github.com/weirlake/weir/internal/delta"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
)

var (
	errFound = errors.New("already committed")
	errMoved = errors.New("the head moved")
)

// Claim implements sink.Sink: a commit of nothing but txn actions on the version
// that want was read from.
func (s *Sink) Claim(ctx context.Context, want sink.Facts, m *marker.Marker) (sink.Permit, bool, error) {
	if m.QueryName != s.opts.Query {
		return sink.Permit{}, false, failure.New(failure.Config, "sink %s belongs to query %s, not %s", s.Name(), s.opts.Query, m.QueryName)
	}
	if want.Marker != nil && !m.Epoch.Newer(want.Marker.Epoch) {
		return sink.Permit{}, false, failure.New(failure.Fenced, "table %s: epoch %s of query %s does not come after %s",
			s.Name(), m.Epoch, m.QueryName, want.Marker.Epoch)
	}
	var head *delta.Snapshot
	if want.Exists {
		var ok bool
		if head, ok = want.Handle.(*delta.Snapshot); !ok {
			return sink.Permit{}, false, errors.New("facts of another sink")
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.Limits.CommitDeadline)
	defer cancel()
	c := &claiming{s: s, head: head, m: m}
	r, err := delta.Commit(ctx, s.table, c.build, delta.CommitOptions{Operation: "STREAMING UPDATE", Parameters: parameters(m),
		Nonce: m.Attempt, Limits: delta.Limits{Errors: s.opts.Limits.Errors, Conflicts: s.opts.Limits.Conflicts},
		Info: func(_ *delta.Snapshot, i *delta.CommitInfo) { i.Weir = c.summary }})
	switch {
	case err == nil:
		s.remember(r.Snapshot)
		return sink.NewPermit(s, m.Epoch), false, nil
	case errors.Is(err, errFound):
		s.remember(c.found)
		return sink.NewPermit(s, m.Epoch), false, nil
	case errors.Is(err, errMoved):
		return sink.Permit{}, true, nil
	}
	var gaveUp *delta.GaveUp
	if !errors.As(err, &gaveUp) {
		return sink.Permit{}, false, err
	}
	class := failure.Unreachable
	if gaveUp.Unknown {
		class = failure.CommitUnknown
	}
	return sink.Permit{}, false, failure.Wrap(class, err, "claim table %s for query %s", s.Name(), m.QueryName).
		WithHint("start again when the store answers; the next start finds out what happened")
}

// claiming is one Claim under way.
type claiming struct {
	s       *Sink
	head    *delta.Snapshot // nil: there was no table
	m       *marker.Marker
	found   *delta.Snapshot
	summary map[string]string
}

func (c *claiming) build(ctx context.Context, snap *delta.Snapshot) ([]delta.Action, error) {
	if c.head == nil && snap.Version == delta.NoVersion {
		return c.create(ctx, snap)
	}
	if snap.Version == delta.NoVersion {
		return nil, errMoved
	}
	if err := c.s.checkOwner(snap, c.m); err != nil {
		return nil, err
	}
	markers, err := c.s.markersOf(ctx, snap)
	if err != nil {
		return nil, retryable(err)
	}
	if got := markers[c.m.QueryName]; got != nil && got.QueryID == c.m.QueryID && got.Attempt == c.m.Attempt && got.Epoch == c.m.Epoch {
		c.found = snap
		return nil, errFound
	}
	if c.head == nil || c.head.Version != snap.Version || c.head.Metadata.ID != snap.Metadata.ID {
		return nil, errMoved
	}
	shape, err := c.s.evolve(snap, markers[c.m.QueryName] != nil)
	if err != nil {
		return nil, err
	}
	return c.finish(ctx, snap, markers, shape)
}

func (c *claiming) create(ctx context.Context, snap *delta.Snapshot) ([]delta.Action, error) {
	o := c.s.opts
	properties := maps.Clone(o.Properties)
	if properties == nil {
		properties = map[string]string{}
	}
	properties[c.s.columnsKey()] = c.s.written()
	shape, err := c.s.table.CreateActions(o.Arrow, delta.CreateOptions{Name: o.Table, PartitionColumns: o.PartitionColumns, Configuration: properties})
	if err != nil {
		return nil, err
	}
	return c.finish(ctx, snap, nil, shape)
}

func (c *claiming) finish(ctx context.Context, snap *delta.Snapshot, markers map[string]*marker.Marker, shape []delta.Action) ([]delta.Action, error) {
	var err error
	if c.summary, err = c.s.summary(markers, c.m); err != nil {
		return nil, err
	}
	actions, err := c.s.change(ctx, snap, markers, c.m)
	if err != nil {
		return nil, err
	}
	return append(shape, actions...), nil
}

// retryable lets a commit be tried again after the store failed, and only then.
func retryable(err error) error {
	var classified *failure.Error
	if errors.As(err, &classified) && classified.Class != failure.Unreachable {
		return err
	}
	return delta.Again(err)
}

// checkOwner refuses a query id that another query of the table has: both would
// write the same txn actions. A copied checkpoint folder makes such a pair.
func (s *Sink) checkOwner(snap *delta.Snapshot, m *marker.Marker) error {
	mk := allMarks(snap)[m.QueryID]
	if mk == nil {
		return nil
	}
	for name := range mk.names {
		if name != m.QueryName {
			return failure.New(failure.Config, "table %s: query id %s belongs to query %s and cannot be query %s too", s.Name(), m.QueryID, name, m.QueryName).
				WithHint("a checkpoint folder was copied, or the query renamed: start %s with a checkpoint folder of its own", m.QueryName)
		}
	}
	return nil
}
