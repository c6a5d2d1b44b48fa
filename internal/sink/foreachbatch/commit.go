package foreachbatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/external"
)

// movesMax bounds how often the record is read again because it had moved on.
const movesMax = 16

// Commit implements sink.Sink: it hands the batch over, unless the record says
// that it is done, or Prepare has.
func (s *Sink) Commit(ctx context.Context, p sink.Permit, prev *marker.Marker, staged sink.Staged, m *marker.Marker) (sink.Committed, error) {
	c := s.prepared
	s.prepared = nil
	if c == nil || c.m.Attempt != m.Attempt || c.permit != p {
		var err error
		if c, err = s.committing(p, prev, staged, m); err != nil {
			return sink.Committed{}, err
		}
	} else if err := sink.CheckCommit(s, true, "sink "+s.Name(), s.opts.Query, p, prev, m); err != nil {
		return sink.Committed{}, err
	}
	// The marker has been counted anew since: what is refused is dead-lettered.
	c.prev, c.m, c.expected, c.preparing = prev, m, staged.Rejected, false
	return c.run(ctx)
}

// Prepare implements sink.Preparer: all of a commit but the entry "done". A
// function whose receiver may refuse rows has to be prepared.
func (s *Sink) Prepare(ctx context.Context, p sink.Permit, prev *marker.Marker, staged sink.Staged, m *marker.Marker, decided []sink.Rejection) (sink.Prepared, error) {
	c, err := s.committing(p, prev, staged, m)
	if err != nil {
		return sink.Prepared{}, err
	}
	c.preparing, c.decided = true, decided
	if _, err := c.run(ctx); err != nil {
		return sink.Prepared{}, err
	}
	refused := c.refused
	if decided != nil {
		refused = decided
	}
	rows := &external.Rows{Records: c.records, Rows: c.rows}
	records, err := external.RejectedRecords(s.Name(), rows, refused, m)
	if err != nil {
		return sink.Prepared{}, err
	}
	s.prepared = c
	return sink.Prepared{Rejected: refused, Records: records}, nil
}

// Discard implements sink.Preparer. What was handed over stays handed over; the
// record says that it was begun.
func (s *Sink) Discard() { s.prepared = nil }

func (s *Sink) committing(p sink.Permit, prev *marker.Marker, staged sink.Staged, m *marker.Marker) (*committing, error) {
	if err := sink.CheckCommit(s, true, "sink "+s.Name(), s.opts.Query, p, prev, m); err != nil {
		return nil, err
	}
	records, ok := staged.Handle.([]arrow.RecordBatch)
	if !ok && staged.Rows > 0 {
		return nil, fmt.Errorf("%w: the rows were in the memory of another process", sink.ErrStale)
	}
	fault.Reach(s.opts.Query, fault.CommitBefore)
	return &committing{s: s, permit: p, prev: prev, m: m, records: records, rows: staged.Rows}, nil
}

// committing is one Commit under way, or a Prepare and the Commit after it.
type committing struct {
	s         *Sink
	permit    sink.Permit
	prev, m   *marker.Marker
	records   []arrow.RecordBatch
	rows      int64
	delivered bool
	conflicts int

	preparing bool
	// decided are the only rows that may be refused, if not nil; refused are those
	// that were, and expected those that the engine has put aside.
	decided, refused, expected []sink.Rejection
}

func (c *committing) run(ctx context.Context) (sink.Committed, error) {
	for ; c.conflicts < movesMax; c.conflicts++ {
		head, err := c.s.record.head(ctx)
		if err != nil {
			return sink.Committed{}, err
		}
		found, err := c.judge(head)
		if err != nil {
			return sink.Committed{}, err
		}
		if found != nil {
			return sink.Committed{Marker: found, SnapshotID: head.Seq, Found: true, Conflicts: c.conflicts}, nil
		}
		out, err := c.handOver(ctx, head)
		if !errors.Is(err, errMoved) {
			return out, err
		}
	}
	return sink.Committed{}, failure.New(failure.Fenced, "query %s, batch %d: the record in %s was written to by others %d times",
		c.m.QueryName, c.m.BatchID, c.s.record.store.Location(), movesMax).WithHint("another instance runs the query; stop one of them")
}

// judge compares the record with what batch m may follow.
func (c *committing) judge(head *entry) (found *marker.Marker, err error) {
	if head == nil {
		return nil, failure.New(failure.Checkpoint, "query %s: the record of its deliveries in %s has vanished while it was running", c.m.QueryName, c.s.record.store.Location()).
			WithHint("start again: the checkpoint knows which batch is next")
	}
	cur, epoch := head.Marker, c.permit.Epoch()
	switch {
	case cur.QueryID != c.m.QueryID:
		return nil, c.fenced(cur, "another lineage (query id "+cur.QueryID+")")
	case cur.Epoch.Newer(epoch) || (cur.Epoch.Number == epoch.Number && cur.Epoch != epoch):
		return nil, c.fenced(cur, "a newer start")
	case cur.BatchID == c.m.BatchID && cur.PlanHash == c.m.PlanHash && head.Kind == kindDone:
		out := *cur
		return &out, nil
	case cur.BatchID >= c.m.BatchID:
		return nil, c.fenced(cur, fmt.Sprintf("another run was done with batch %d", cur.BatchID))
	case cur.BatchID != c.prev.BatchID || !c.prev.Position.SameOffsets(cur.Position):
		return nil, failure.New(failure.Checkpoint, "query %s: the record of its deliveries stands at batch %d (%s), batch %d begins at %s",
			c.m.QueryName, cur.BatchID, cur.Position, c.m.BatchID, c.prev.Position)
	}
	return nil, nil
}

func (c *committing) fenced(cur *marker.Marker, why string) error {
	return failure.New(failure.Fenced, "sink %s: batch %d of query %s is fenced by %s (epoch %s, instance %s)",
		c.s.Name(), c.m.BatchID, c.m.QueryName, why, cur.Epoch, cur.Instance).
		WithHint("another instance runs the query; stop one of them")
}

// handOver calls the function between two entries of the record. errMoved: the
// record is to be read again.
func (c *committing) handOver(ctx context.Context, head *entry) (sink.Committed, error) {
	base := head.Seq
	// An earlier run may have died between done and commits/N.
	known := same(head.Done, c.m)
	if c.rows > 0 && !c.delivered && !known {
		again := same(head.Begun, c.m)
		note := c.s.opts.Note
		if again {
			note = head.Note
		}
		keep := func(ctx context.Context, note json.RawMessage) error {
			begun := *c.m
			begun.BaseSequence = base
			e := newEntry(kindBegun, head.Marker)
			e.Begun, e.Note = &begun, note
			if _, err := c.s.write(ctx, base, e); err != nil {
				return c.unwritten(err)
			}
			base++
			return nil
		}
		if err := keep(ctx, note); err != nil {
			return sink.Committed{}, err
		}
		fault.Reach(c.s.opts.Query, fault.CommitMetadata)
		if err := c.deliver(ctx, again, note, keep); err != nil {
			return sink.Committed{}, err
		}
		c.delivered = true
	}
	if c.preparing {
		return sink.Committed{}, nil
	}
	if len(c.refused) != len(c.expected) && !known {
		return sink.Committed{}, failure.New(failure.Mismatch, "query %s, batch %d: the receiver refuses %d rows, %d are put aside; the batch is not done",
			c.m.QueryName, c.m.BatchID, len(c.refused), len(c.expected)).
			WithHint("a sink whose receiver may refuse rows needs a table for them")
	}
	if !known {
		fault.Reach(c.s.opts.Query, fault.CommitSwapped)
	}
	done := *c.m
	done.BaseSequence = base
	found, err := c.s.write(ctx, base, newEntry(kindDone, &done))
	if err != nil {
		return sink.Committed{}, c.unwritten(err)
	}
	return sink.Committed{Marker: &done, SnapshotID: base + 1, Found: known || found, Conflicts: c.conflicts}, nil
}

func (c *committing) unwritten(err error) error {
	if errors.Is(err, errMoved) {
		return err
	}
	return fmt.Errorf("write down the delivery of batch %d: %w", c.m.BatchID, err)
}

// keeper writes down that the batch was begun, with a note about it.
type keeper func(ctx context.Context, note json.RawMessage) error

// overtaken is the error of a note that came too late.
func (c *committing) overtaken() error {
	return failure.New(failure.Fenced, "query %s, batch %d: another run wrote to the record in %s while the batch was being delivered",
		c.m.QueryName, c.m.BatchID, c.s.record.store.Location()).WithHint("another instance runs the query; stop one of them")
}

// deliver calls the function until it is done, fails for good, or is out of
// tries.
func (c *committing) deliver(ctx context.Context, redelivered bool, note json.RawMessage, keep keeper) error {
	limits := c.s.opts.Limits
	noted := func(ctx context.Context, n json.RawMessage) error {
		err := keep(ctx, n)
		if errors.Is(err, errMoved) {
			return c.overtaken()
		}
		if err == nil {
			note = n
		}
		return err
	}
	attempt := c.m.Attempt
	for try := 1; ; try++ {
		rows, err := c.call(ctx, Delivery{
			QueryID: c.m.QueryID, QueryName: c.m.QueryName, BatchID: c.m.BatchID, Epoch: c.m.Epoch, Attempt: attempt, Try: try,
			Redelivered: redelivered || try > 1, Start: c.prev.Position.Clone(), Position: c.m.Position.Clone(), BatchTime: c.m.BatchTime,
			Records: c.records, Rows: c.rows, Note: note, Keep: noted,
			Decided: c.decided, Refuse: func(rows []sink.Rejection) { c.refused = rows },
		})
		switch {
		case err == nil && rows == c.rows:
			return nil
		case err == nil:
			return failure.New(failure.Mismatch, "query %s, batch %d: the handler reports %d rows, the batch has %d; the batch is not done", c.m.QueryName, c.m.BatchID, rows, c.rows).
				WithHint("a handler returns how many rows of the batch it has dealt with; an error that it swallows shows here. The same batch comes again with the next start")
		case !IsTransient(err) || try >= limits.Tries:
			return c.failed(err, try)
		}
		if err := c.wait(ctx, try, err); err != nil {
			return err
		}
		attempt = clock.Nonce()
	}
}

func (c *committing) failed(err error, try int) error {
	what := "the handler failed"
	if try > 1 {
		what = fmt.Sprintf("the handler failed %d times, each time with a transient error or for good at last", try)
	}
	return failure.Wrap(failure.ClassOf(err), err, "query %s, batch %d: %s; the same batch comes again with the next start", c.m.QueryName, c.m.BatchID, what)
}

// wait pauses between two tries; a stop ends it, and the batch is left for the
// next start.
func (c *committing) wait(ctx context.Context, try int, cause error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if c.s.opts.Stopping != nil {
		go func() {
			select {
			case <-c.s.opts.Stopping:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	if err := c.s.opts.Clock.Sleep(ctx, c.s.pause(try)); err != nil {
		return fmt.Errorf("query %s, batch %d: not tried again, because of a stop or the deadline (%w); the handler's error was: %w", c.m.QueryName, c.m.BatchID, err, cause)
	}
	return nil
}

// call calls the function once; a panic is an error.
func (c *committing) call(ctx context.Context, d Delivery) (rows int64, err error) {
	defer func() {
		if p := recover(); p != nil {
			rows, err = 0, failure.New(failure.Runtime, "the handler panicked: %v\n%s", p, debug.Stack())
		}
	}()
	return c.s.opts.Handler(ctx, d)
}

// transient marks an error that is expected to pass by itself.
type transient struct{ error }

// Unwrap gives the marked error.
func (t transient) Unwrap() error { return t.error }

// Transient marks an error for another try.
func Transient(err error) error {
	if err == nil {
		return nil
	}
	return transient{err}
}

// IsTransient reports whether an error is marked.
func IsTransient(err error) bool {
	var t transient
	return errors.As(err, &t)
}
