package iceberg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
)

const (
	pauseMin = 5 * time.Millisecond
	pauseMax = time.Second
)

// Commit implements sink.Sink: DESIGN section 2, "Rules of the commit".
//
// Once the first try is under way a cancelled ctx no longer stops it, so that a
// graceful stop finishes the batch; Limits.CommitDeadline does.
func (s *Sink) Commit(ctx context.Context, p sink.Permit, prev *marker.Marker, staged sink.Staged, m *marker.Marker) (sink.Committed, error) {
	if err := sink.CheckCommit(s, s.remembered() != nil, "table "+s.Name(), s.opts.Query, p, prev, m); err != nil {
		return sink.Committed{}, err
	}
	if err := ctx.Err(); err != nil {
		return sink.Committed{}, err
	}
	fault.Reach(s.opts.Query, fault.CommitBefore)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.Limits.CommitDeadline)
	defer cancel()
	ctx = lake.WithMetadataHook(ctx, func() { fault.Reach(s.opts.Query, fault.CommitMetadata) })
	c := &committing{s: s, permit: p, prev: prev, staged: staged, m: m}
	if s.opts.Upsert != nil {
		var err error
		if c.merge, err = s.merge(ctx, staged, m); err != nil {
			return sink.Committed{}, err
		}
		defer c.merge.src.Release()
	}
	for {
		done, err := c.try(ctx)
		if done != nil {
			s.reachSwapped()
			if c.merge != nil {
				s.dropChanges(ctx, staged)
			}
			return *done, nil
		}
		if final := c.final(err); final != nil {
			return sink.Committed{}, final
		}
		if c.errors >= s.opts.Limits.Errors || c.conflicts >= s.opts.Limits.Conflicts || s.pause(ctx, c.errors+c.conflicts) != nil {
			return sink.Committed{}, c.gaveUp(err)
		}
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
	merge  *merging // nil for a sink that appends
	m      *marker.Marker

	conflicts int
	errors    int
	unknown   bool // a try may have been made and has not been seen
}

// final is an error that no further try changes.
func (c *committing) final(err error) error {
	var classified *failure.Error
	if errors.As(err, &classified) || errors.Is(err, sink.ErrStale) {
		return err
	}
	return nil
}

// try loads the table, judges it and, where the marker is still the one before
// ours, commits once. Any error may be tried again unless final says otherwise.
func (c *committing) try(ctx context.Context) (*sink.Committed, error) {
	s := c.s
	t, err := s.opts.Catalog.LoadTable(ctx, s.opts.Table)
	if err != nil {
		if errors.Is(err, lake.ErrNoTable) {
			return nil, c.rewound("the table was dropped")
		}
		c.errors++
		return nil, fmt.Errorf("load table %s: %w", s.Name(), err)
	}
	found, err := c.judge(t)
	if err != nil {
		return nil, err
	}
	if found != nil {
		s.remember(t)
		return &sink.Committed{Marker: found, SnapshotID: snapshotOf(t, found), Found: true, Conflicts: c.conflicts}, nil
	}
	ch, written, err := c.change(ctx, t)
	if err != nil {
		return nil, err
	}
	after, err := s.opts.Catalog.Commit(ctx, t, ch)
	if err == nil {
		s.remember(after)
		return &sink.Committed{Marker: written, SnapshotID: lake.HeadOf(after).ID, Conflicts: c.conflicts}, nil
	}
	if lake.IsConflict(err) {
		c.conflicts++
	} else {
		c.errors++
	}
	c.unknown = c.unknown || errors.Is(err, lake.ErrUnknown)
	return nil, err
}

// change is what the commit does to t: files that are added, or changes merged.
func (c *committing) change(ctx context.Context, t *table.Table) (lake.Change, *marker.Marker, error) {
	var files []iceberg.DataFile
	var err error
	if err := c.checkErased(t); err != nil {
		return lake.Change{}, nil, err
	}
	if c.s.opts.Verify != nil {
		if err := c.s.opts.Verify(ctx, t); err != nil {
			c.errors++
			return lake.Change{}, nil, err
		}
	}
	if c.merge != nil {
		err = c.merge.on(ctx, t)
	} else if files, err = c.s.dataFiles(ctx, t, c.staged); err == nil {
		err = c.s.checkStaged(ctx, t, c.staged)
	}
	if err != nil {
		c.errors++
		return lake.Change{}, nil, err
	}
	ch, written, err := c.s.change(t, c.m, files)
	if err == nil && c.merge != nil {
		err = c.merge.apply(&ch)
	}
	return ch, written, err
}

// checkErased refuses rows of a table that were read before an erasure: some of
// them may be gone there by now. An erasure goes down the tables in the order in
// which rows do and moves the head of each, so rows that were read too early meet
// it here, and are read again. What the sink knows of is from before the read: it
// is what it has claimed or committed last.
func (c *committing) checkErased(t *table.Table) error {
	if c.m.Position.Table == nil {
		return nil // Kafka has its records still, and none of these was in a table
	}
	if marker.ErasuresOf(t.Properties()) == marker.ErasuresOf(c.s.remembered().Properties()) {
		return nil
	}
	c.s.remember(t)
	return fmt.Errorf("%w: rows were erased from table %s since the batch was read", sink.ErrStale, c.s.Name())
}

// judge compares the table's marker with what a commit of ours may follow:
// found where batch m is in the table, an error where another run has moved on
// or the table went backwards, neither where the commit may go ahead.
func (c *committing) judge(t *table.Table) (found *marker.Marker, err error) {
	if claimed := c.s.remembered(); claimed.Metadata().TableUUID() != t.Metadata().TableUUID() {
		return nil, c.rewound(fmt.Sprintf("the table was made again: its UUID was %s, it is %s",
			claimed.Metadata().TableUUID(), t.Metadata().TableUUID()))
	}
	facts, err := factsOf(t, c.m.QueryName)
	if err != nil {
		return nil, err
	}
	cur := facts.Marker
	switch {
	case cur == nil:
		return nil, c.rewound("the table has no marker of the query any more")
	case facts.Rewound != "":
		return nil, c.rewound(facts.Rewound)
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

func (c *committing) gaveUp(err error) error {
	what := fmt.Sprintf("commit batch %d of query %s to table %s", c.m.BatchID, c.m.QueryName, c.s.Name())
	switch {
	case c.unknown:
		return failure.Wrap(failure.CommitUnknown, err, "%s: the outcome is unknown after %d errors and %d conflicts", what, c.errors, c.conflicts).
			WithHint("start again when the catalog answers; the next start finds out what happened")
	case c.conflicts >= c.s.opts.Limits.Conflicts:
		return failure.Wrap(failure.Runtime, err, "%s: the head moved %d times under the commit", what, c.conflicts).
			WithHint("too many writers commit to this table; give the query a longer trigger interval")
	default:
		return failure.Wrap(failure.Unreachable, err, "%s: nothing was committed after %d errors", what, c.errors)
	}
}

// pause waits before try n+1; a first conflict is tried again at once.
func (s *Sink) pause(ctx context.Context, n int) error {
	if n <= 1 {
		return ctx.Err()
	}
	d := min(pauseMin<<min(n-2, 10), pauseMax)
	return s.opts.Clock.Sleep(ctx, d)
}
