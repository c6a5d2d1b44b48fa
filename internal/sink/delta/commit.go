package delta

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/weirlake/weir/internal/delta"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
)

// Commit implements sink.Sink: DESIGN section 2, "Rules of the commit".
//
// Once the first try is under way a cancelled ctx no longer stops it, so that a
// graceful stop finishes the batch; Limits.CommitDeadline does.
func (s *Sink) Commit(ctx context.Context, p sink.Permit, prev *marker.Marker, staged sink.Staged, m *marker.Marker) (sink.Committed, error) {
	if err := sink.CheckCommit(s, s.remembered() != nil, "table "+s.Name(), s.opts.Query, p, prev, m); err != nil {
		return sink.Committed{}, err
	}
	c := &committing{s: s, permit: p, prev: prev, staged: staged, m: m}
	release, err := c.unpack(ctx)
	if err != nil {
		return sink.Committed{}, err
	}
	defer release()
	if err := ctx.Err(); err != nil {
		return sink.Committed{}, err
	}
	fault.Reach(s.opts.Query, fault.CommitBefore)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.Limits.CommitDeadline)
	defer cancel()
	r, err := delta.Commit(ctx, s.table, c.build, delta.CommitOptions{
		Operation: "STREAMING UPDATE", Parameters: parameters(m), Metrics: c.metrics(), Nonce: m.Attempt,
		Limits: delta.Limits{Errors: s.opts.Limits.Errors, Conflicts: s.opts.Limits.Conflicts},
		Before: func(*delta.Snapshot) { fault.Reach(s.opts.Query, fault.CommitMetadata) },
		Info:   func(_ *delta.Snapshot, i *delta.CommitInfo) { c.info(i) },
	})
	out := sink.Committed{SnapshotID: r.Version, Found: r.Found, Conflicts: r.Conflicts}
	switch {
	case err == nil:
		written := *m
		written.BaseSequence = r.Version
		out.Marker = &written
		s.remember(r.Snapshot)
	case errors.Is(err, errFound):
		out = sink.Committed{Marker: c.found, SnapshotID: c.found.BaseSequence, Found: true, Conflicts: c.tries - 1}
		s.remember(c.foundIn)
	default:
		return sink.Committed{}, c.explain(err)
	}
	s.reachSwapped()
	s.dropSidecars(ctx, out.Marker)
	if s.opts.Upsert != nil {
		s.dropChanges(ctx, staged, out.Marker)
	}
	return out, nil
}

// unpack makes ready what was staged: files to add, or changes to merge.
func (c *committing) unpack(ctx context.Context) (release func(), err error) {
	if c.s.opts.Upsert == nil {
		c.adds, err = c.s.addsOf(c.staged)
		return func() {}, err
	}
	up, src, err := c.s.merge(ctx, c.staged, c.m)
	if err != nil {
		return nil, err
	}
	c.merge = up
	return src.Release, nil
}

func (c *committing) info(i *delta.CommitInfo) {
	i.Weir = c.summary
	if c.merge != nil {
		reads := false
		i.IsBlindAppend, i.OperationMetrics = &reads, c.merge.Metrics()
		i.OperationParameters["outputMode"] = "Update"
	}
}

func (s *Sink) reachSwapped() {
	if s.opts.Role == Side {
		fault.Reach(s.opts.Query, fault.CommitSide)
	} else {
		fault.Reach(s.opts.Query, fault.CommitSwapped)
	}
}

// committing is one Commit under way.
type committing struct {
	s      *Sink
	permit sink.Permit
	prev   *marker.Marker
	staged sink.Staged
	adds   []*delta.Add
	merge  *delta.Upsert // nil for a sink that appends
	m      *marker.Marker

	tries   int
	found   *marker.Marker
	foundIn *delta.Snapshot
	summary map[string]string
}

// build judges a version and, where the marker is still the one before ours,
// gives the commit that follows it.
func (c *committing) build(ctx context.Context, snap *delta.Snapshot) ([]delta.Action, error) {
	c.tries++
	if snap.Version == delta.NoVersion {
		return nil, c.rewound("the table was dropped")
	}
	if claimed := c.s.remembered(); claimed.Metadata.ID != snap.Metadata.ID {
		return nil, c.rewound(fmt.Sprintf("the table was made again: its id was %s, it is %s", claimed.Metadata.ID, snap.Metadata.ID))
	}
	markers, err := c.s.markersOf(ctx, snap)
	if err != nil {
		return nil, retryable(err)
	}
	if c.found, err = c.judge(ctx, snap, markers[c.m.QueryName]); err != nil {
		return nil, err
	}
	if c.found != nil {
		c.foundIn = snap
		return nil, errFound
	}
	if err := c.s.table.Fits(snap, c.s.opts.Arrow); err != nil {
		return nil, err
	}
	if err := c.s.checkStaged(ctx, c.adds, snap); err != nil {
		return nil, err
	}
	if c.summary, err = c.s.summary(markers, c.m); err != nil {
		return nil, err
	}
	if c.merge != nil {
		if err := c.merge.On(ctx, snap, snap); err != nil {
			return nil, retryable(err)
		}
	}
	actions, err := c.s.change(ctx, snap, markers, c.m)
	if err != nil {
		return nil, err
	}
	if c.merge != nil {
		return append(actions, c.merge.Actions()...), nil
	}
	for _, a := range c.adds {
		actions = append(actions, delta.Action{Add: a})
	}
	return actions, nil
}

// judge compares the table's marker with what a commit of ours may follow:
// found where batch m is in the table, an error where another run has moved on
// or the table went backwards, neither where the commit may go ahead.
func (c *committing) judge(ctx context.Context, snap *delta.Snapshot, cur *marker.Marker) (found *marker.Marker, err error) {
	if cur == nil {
		return nil, c.rewound("the table has no marker of the query any more")
	}
	why, err := c.s.rewound(ctx, snap, cur)
	if err != nil {
		return nil, retryable(err)
	}
	switch {
	case why != "":
		return nil, c.rewound(why)
	case cur.QueryID != c.m.QueryID:
		return nil, c.fenced(cur, "another lineage (query id "+cur.QueryID+")")
	case cur.Epoch.Newer(c.permit.Epoch()) || (cur.Epoch.Number == c.permit.Epoch().Number && cur.Epoch != c.permit.Epoch()):
		return nil, c.fenced(cur, "a newer start")
	case cur.BatchID == c.m.BatchID && cur.PlanHash == c.m.PlanHash:
		return cur, nil
	case cur.BatchID >= c.m.BatchID:
		return nil, c.fenced(cur, fmt.Sprintf("another run committed batch %d", cur.BatchID))
	case cur.BatchID != c.prev.BatchID:
		return nil, c.rewound(fmt.Sprintf("its marker is of batch %d, batch %d was committed", cur.BatchID, c.prev.BatchID))
	case !c.prev.Position.SameOffsets(cur.Position):
		return nil, c.rewound(fmt.Sprintf("its marker stands at %s, batch %d begins at %s", cur.Position, c.m.BatchID, c.prev.Position))
	}
	return nil, nil
}

func (c *committing) fenced(cur *marker.Marker, why string) error {
	return failure.New(failure.Fenced, "table %s: batch %d of query %s is fenced by %s (epoch %s, instance %s)",
		c.s.Name(), c.m.BatchID, c.m.QueryName, why, cur.Epoch, cur.Instance).
		WithHint("another instance runs the query; stop one of them")
}

func (c *committing) rewound(why string) error {
	return failure.New(failure.Checkpoint, "table %s went backwards under query %s: %s", c.s.Name(), c.m.QueryName, why).
		WithHint("weir checkpoint show tells how far the query was; weir checkpoint adopt goes on from what the table holds")
}

// explain classifies the error of a commit that was not made.
func (c *committing) explain(err error) error {
	var gaveUp *delta.GaveUp
	if !errors.As(err, &gaveUp) {
		return err
	}
	what := fmt.Sprintf("commit batch %d of query %s to table %s", c.m.BatchID, c.m.QueryName, c.s.Name())
	switch {
	case gaveUp.Unknown:
		return failure.Wrap(failure.CommitUnknown, err, "%s", what).
			WithHint("start again when the store answers; the next start finds out what happened")
	case gaveUp.Conflicts >= c.s.opts.Limits.Conflicts:
		return failure.Wrap(failure.Runtime, err, "%s", what).
			WithHint("too many writers commit to this table; give the query a longer trigger interval")
	default:
		return failure.Wrap(failure.Unreachable, err, "%s", what)
	}
}

func (c *committing) metrics() map[string]any {
	var bytes int64
	for _, f := range c.staged.Files {
		bytes += f.Bytes
	}
	return map[string]any{
		"numAddedFiles": strconv.Itoa(len(c.staged.Files)), "numRemovedFiles": "0",
		"numOutputRows": strconv.FormatInt(c.staged.Rows, 10), "numOutputBytes": strconv.FormatInt(bytes, 10),
	}
}
