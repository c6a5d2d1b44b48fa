package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/external"
)

// prepared is a transaction that holds a batch's rows and the lock on the
// marker's row.
type prepared struct {
	attempt  string
	version  int64
	found    *marker.Marker // the batch is in the table already
	foundAt  int64
	rejected []sink.Rejection
}

// Prepare implements sink.Preparer.
func (s *Sink) Prepare(ctx context.Context, p sink.Permit, prev *marker.Marker, staged sink.Staged, m *marker.Marker, decided []sink.Rejection) (sink.Prepared, error) {
	c, err := s.begin(p, prev, staged, m, decided)
	if err != nil {
		return sink.Prepared{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fault.Reach(s.opts.Query, fault.CommitBefore)
	if err := s.retry(ctx, c.prepare); err != nil {
		return sink.Prepared{}, c.explain(err)
	}
	out := sink.Prepared{Rejected: s.open.rejected}
	if out.Records, err = external.RejectedRecords(s.Name(), c.rows, out.Rejected, m); err != nil {
		s.drop()
		return sink.Prepared{}, err
	}
	return out, nil
}

// Discard implements sink.Preparer: the transaction is rolled back.
func (s *Sink) Discard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open != nil {
		s.drop()
	}
}

// Commit implements sink.Sink.
func (s *Sink) Commit(ctx context.Context, p sink.Permit, prev *marker.Marker, staged sink.Staged, m *marker.Marker) (sink.Committed, error) {
	// What is refused was decided in Prepare; without it nothing may be.
	decided := staged.Rejected
	if decided == nil {
		decided = []sink.Rejection{}
	}
	c, err := s.begin(p, prev, staged, m, decided)
	if err != nil {
		return sink.Committed{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		fault.Reach(s.opts.Query, fault.CommitBefore)
	}
	if err := s.retry(ctx, c.finish); err != nil {
		return sink.Committed{}, c.explain(err)
	}
	fault.Reach(s.opts.Query, fault.CommitSwapped)
	return c.out, nil
}

// begin checks the arguments of a commit.
func (s *Sink) begin(p sink.Permit, prev *marker.Marker, staged sink.Staged, m *marker.Marker, decided []sink.Rejection) (*committing, error) {
	if err := sink.CheckCommit(s, s.claimed, s.who(), s.opts.Query, p, prev, m); err != nil {
		return nil, err
	}
	rows, err := external.RowsOf(staged)
	if err != nil {
		return nil, err
	}
	return &committing{s: s, permit: p, prev: prev, m: m, rows: rows, decided: decided}, nil
}

// committing is one Prepare or Commit under way.
type committing struct {
	s       *Sink
	permit  sink.Permit
	prev, m *marker.Marker
	rows    *external.Rows
	decided []sink.Rejection
	// sent: COMMIT was sent and its answer did not come.
	sent bool
	out  sink.Committed
}

// prepare opens the transaction, unless it is open, and loads the rows.
func (c *committing) prepare(ctx context.Context, conn *pgx.Conn) error {
	s := c.s
	if s.open != nil && s.open.attempt == c.m.Attempt {
		return nil
	}
	if s.open != nil { // another attempt's, given up
		if _, err := conn.Exec(ctx, "ROLLBACK"); err != nil {
			return err
		}
		s.open = nil
	}
	if !s.plan.direct {
		if err := s.makeStaging(ctx, conn); err != nil {
			return err
		}
	}
	if _, err := conn.Exec(ctx, "BEGIN; SET CONSTRAINTS ALL IMMEDIATE"); err != nil {
		return err
	}
	if err := s.hooks.take(&s.hooks.before); err != nil {
		return err
	}
	if addsPartitions(c.prev.Position, c.m.Position) {
		if err := s.lockTarget(ctx, conn); err != nil {
			return err
		}
	}
	st, err := s.readState(ctx, conn, "FOR UPDATE")
	if err != nil {
		return err
	}
	open := &prepared{attempt: c.m.Attempt, version: st.version[c.m.QueryName]}
	if found, err := c.judge(st); err != nil {
		return err
	} else if found {
		open.found, open.foundAt = st.markers[c.m.QueryName], open.version
		s.open = open
		return nil
	}
	// Whoever had sent a COMMIT before held the row that is ours now: it is known
	// not to have landed.
	c.sent = false
	r := &external.Rejections{Who: s.who(), Policy: s.opts.OnRejected, Decided: c.decided}
	if err := s.load(ctx, conn, c.m, c.rows, r); err != nil {
		return err
	}
	open.rejected = r.List()
	s.open = open
	fault.Reach(s.opts.Query, fault.CommitPrepared)
	return nil
}

// judge compares what is remembered with what the batch may follow.
func (c *committing) judge(st *stored) (found bool, err error) {
	switch {
	case !st.live:
		return false, c.rewound("the table was dropped, or made again")
	case st.identity != c.s.identity:
		return false, c.rewound(fmt.Sprintf("the table was made again: its identity was %s, it is %s", c.s.identity, st.identity))
	}
	if found, err = external.Judge(c.s.who(), st.markers[c.m.QueryName], c.prev, c.m, c.permit); found || err != nil {
		return found, err
	}
	return false, sink.CheckOverlap(c.s.Name(), st.markers, c.m)
}

func (c *committing) rewound(why string) error {
	return failure.New(failure.Checkpoint, "%s went backwards under query %s: %s", c.s.who(), c.m.QueryName, why).
		WithHint("weir checkpoint show tells how far the query was; restore the table, or start over with: weir checkpoint reset")
}

// finish prepares where that is needed, writes the marker and commits.
func (c *committing) finish(ctx context.Context, conn *pgx.Conn) error {
	s := c.s
	if err := c.prepare(ctx, conn); err != nil {
		return err
	}
	open := s.open
	if open.found != nil {
		if _, err := conn.Exec(ctx, "ROLLBACK"); err != nil {
			return err
		}
		s.open = nil
		c.out = sink.Committed{Marker: open.found, SnapshotID: open.foundAt, Found: true}
		return nil
	}
	written := *c.m
	if err := s.writeMarker(ctx, conn, &written, open.version); err != nil {
		return err
	}
	fault.Reach(s.opts.Query, fault.CommitMetadata)
	c.sent = true
	if err := s.commitNow(ctx, conn); err != nil {
		return err
	}
	s.open, c.sent = nil, false
	c.out = sink.Committed{Marker: &written, SnapshotID: written.BaseSequence + 1}
	return nil
}

// explain classes the error of a batch that is not known to be committed.
func (c *committing) explain(err error) error {
	what := fmt.Sprintf("commit batch %d of query %s", c.m.BatchID, c.m.QueryName)
	var classified *failure.Error
	if c.sent && !errors.As(err, &classified) {
		return failure.Wrap(failure.CommitUnknown, c.s.redact(err), "%s: %s", c.s.who(), what).
			WithHint("start again when the database answers; the next start finds out what happened")
	}
	return c.s.explain(err, what)
}

// addsPartitions reports whether end lists partitions that start does not.
func addsPartitions(start, end batch.Position) bool {
	from, adds := start.Vector(), false
	end.Vector().Each(func(topic, _ string, part int32, _ batch.PartitionPosition) {
		if _, ok := from.Get(topic, part); !ok {
			adds = true
		}
	})
	return adds
}
