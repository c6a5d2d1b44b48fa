package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/external"
)

// prepared is an open transaction that holds a batch's records.
type prepared struct {
	attempt  string
	found    *marker.Marker // the batch is in the topic already
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

// Discard implements sink.Preparer. The transaction is aborted when the id is
// taken again, or by its time-out.
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
	// sent: the end of the transaction was asked for and its answer did not come.
	sent bool
	out  sink.Committed
}

// prepare begins the transaction, unless it is open, and produces the rows.
func (c *committing) prepare(ctx context.Context) error {
	s := c.s
	if s.open != nil && s.open.attempt == c.m.Attempt {
		return nil
	}
	if s.open != nil { // another attempt's, given up
		s.drop()
	}
	if s.producer == nil {
		if err := s.take(ctx); err != nil {
			return err
		}
	}
	found, err := c.judge(ctx)
	if err != nil {
		return err
	}
	// The id is ours and the marker was read: an end that was asked for before is
	// known not to have been one.
	c.sent = false
	open := &prepared{attempt: c.m.Attempt}
	if found {
		open.found, open.foundAt = s.state.marker, s.state.version
		s.open = open
		return nil
	}
	if err := s.producer.BeginTransaction(); err != nil {
		return err
	}
	r := &external.Rejections{Who: s.who(), Policy: s.opts.OnRejected, Decided: c.decided}
	if err := c.produce(ctx, r); err != nil {
		return err
	}
	open.rejected = r.List()
	s.open = open
	fault.Reach(s.opts.Query, fault.CommitPrepared)
	return nil
}

// judge compares what is remembered with what the batch may follow.
func (c *committing) judge(ctx context.Context) (found bool, err error) {
	s := c.s
	if addsPartitions(c.prev.Position, c.m.Position) {
		// Who else delivers a partition is looked at when one is added.
		fresh, err := s.readState(ctx, false)
		if err != nil {
			return false, err
		}
		if err := sink.CheckOverlap(s.Name(), fresh.others, c.m); err != nil {
			return false, err
		}
		s.state.exists, s.state.others = fresh.exists, fresh.others
	}
	switch st := s.state; {
	case !st.exists || (st.marker != nil && st.identity != s.identity):
		return false, c.rewound("the topic was deleted, or made again")
	case st.marker == nil:
		return false, c.rewound("topic " + s.markerTopic() + " holds no marker of it any more")
	}
	return external.Judge(s.who(), s.state.marker, c.prev, c.m, c.permit)
}

func (c *committing) rewound(why string) error {
	return failure.New(failure.Checkpoint, "%s went backwards under query %s: %s", c.s.who(), c.m.QueryName, why).
		WithHint("weir checkpoint show tells how far the query was; or start over with: weir checkpoint reset")
}

// produce sends the rows and waits until the broker has them.
func (c *committing) produce(ctx context.Context, r *external.Rejections) error {
	s := c.s
	if c.rows.Rows == 0 {
		return nil
	}
	s.calls++
	var mu sync.Mutex
	var first error
	failed := func() error {
		mu.Lock()
		defer mu.Unlock()
		return first
	}
	var row int64
	for _, rec := range c.rows.Records {
		for i := range int(rec.NumRows()) {
			at := row
			row++
			if c.decided != nil && r.Has(at) {
				continue
			}
			out := s.shape.record(rec, i)
			if n := sizeOf(out); n > s.shape.limit {
				if err := r.Add(c.m, at, "MESSAGE_TOO_LARGE", fmt.Sprintf("a record of %d bytes; topic %s takes %d (max.message.bytes)", n, s.opts.Topic, s.shape.limit)); err != nil {
					return err
				}
				continue
			}
			s.producer.Produce(ctx, out, func(_ *kgo.Record, err error) {
				if err != nil {
					mu.Lock()
					defer mu.Unlock()
					if first == nil {
						first = err
					}
				}
			})
		}
		if err := failed(); err != nil {
			return fmt.Errorf("produce: %w", err)
		}
	}
	if err := s.producer.Flush(ctx); err != nil {
		return fmt.Errorf("produce: %w", err)
	}
	if err := failed(); err != nil {
		return fmt.Errorf("produce: %w", err)
	}
	return nil
}

// finish prepares where that is needed, produces the marker and commits.
func (c *committing) finish(ctx context.Context) error {
	s := c.s
	if err := c.prepare(ctx); err != nil {
		return err
	}
	open := s.open
	if open.found != nil {
		s.open = nil
		c.out = sink.Committed{Marker: open.found, SnapshotID: open.foundAt, Found: true}
		return nil
	}
	written := *c.m
	if err := s.writeMarker(ctx, &written, s.identity); err != nil {
		return err
	}
	fault.Reach(s.opts.Query, fault.CommitMetadata)
	c.sent = true
	if err := s.end(ctx); err != nil {
		return err
	}
	s.open, c.sent = nil, false
	s.state.marker, s.state.live, s.state.identity = &written, true, s.identity
	c.out = sink.Committed{Marker: &written, SnapshotID: written.BaseSequence + 1}
	return nil
}

// explain classes the error of a batch that is not known to be committed.
func (c *committing) explain(err error) error {
	what := fmt.Sprintf("commit batch %d of query %s", c.m.BatchID, c.m.QueryName)
	var classified *failure.Error
	if c.sent && !errors.As(err, &classified) {
		return failure.Wrap(failure.CommitUnknown, err, "%s: %s", c.s.who(), what).
			WithHint("start again when the broker answers; the next start finds out what happened")
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
