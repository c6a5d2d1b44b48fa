package cassandra

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/external"
	"github.com/weirlake/weir/internal/sink/rowjson"
)

var errMoved = errors.New("the head moved")

// Claim implements sink.Sink.
func (s *Sink) Claim(ctx context.Context, want sink.Facts, m *marker.Marker) (sink.Permit, bool, error) {
	if m.QueryName != s.opts.Query {
		return sink.Permit{}, false, failure.New(failure.Config, "sink %s belongs to query %s, not %s", s.Name(), s.opts.Query, m.QueryName)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.Limits.CommitDeadline)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.retry(ctx, func(ctx context.Context, session *gocql.Session) error { return s.claim(ctx, session, want, m) })
	if errors.Is(err, errMoved) {
		return sink.Permit{}, true, nil
	}
	if err != nil {
		return sink.Permit{}, false, s.explain(err, "claim it for query "+m.QueryName)
	}
	s.claimed = true
	return sink.NewPermit(s, m.Epoch), false, nil
}

func moved() error {
	return &failure.Error{Class: failure.Runtime, Message: "claim", Cause: errMoved}
}

func (s *Sink) claim(ctx context.Context, session *gocql.Session, want sink.Facts, m *marker.Marker) error {
	identity, err := s.ensure(ctx, session)
	if err != nil {
		return err
	}
	st, err := s.readState(ctx, session)
	if err != nil {
		return err
	}
	cur := st.markers[m.QueryName]
	if cur != nil && cur.QueryID == m.QueryID && cur.Attempt == m.Attempt && cur.Epoch == m.Epoch {
		s.identity = identity // an earlier try had landed
		return nil
	}
	if st.live != want.Exists || (st.live && (st.identity != want.Identity || st.version[m.QueryName] != want.HeadID)) {
		return moved()
	}
	if err := external.ClaimFollows(s.who(), cur, m); err != nil {
		return err
	}
	if err := sink.CheckOverlap(s.Name(), st.markers, m); err != nil {
		return err
	}
	written := *m
	applied, err := s.swap(ctx, session, &written, identity, st.version[m.QueryName], st.written[m.QueryName])
	if err != nil {
		return err
	}
	if !applied {
		return moved()
	}
	s.identity = identity
	return nil
}

// Prepare implements sink.Preparer: the rows are written.
func (s *Sink) Prepare(ctx context.Context, p sink.Permit, prev *marker.Marker, staged sink.Staged, m *marker.Marker, decided []sink.Rejection) (sink.Prepared, error) {
	c, err := s.begin(p, prev, staged, m, decided)
	if err != nil {
		return sink.Prepared{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fault.Reach(s.opts.Query, fault.CommitBefore)
	if err := s.retry(ctx, c.write); err != nil {
		return sink.Prepared{}, s.explain(err, c.what())
	}
	out := sink.Prepared{Rejected: c.rejected}
	out.Records, err = external.RejectedRecords(s.Name(), c.rows, out.Rejected, m)
	return out, err
}

// Commit implements sink.Sink: the rows, which may be there already, then the
// marker.
func (s *Sink) Commit(ctx context.Context, p sink.Permit, prev *marker.Marker, staged sink.Staged, m *marker.Marker) (sink.Committed, error) {
	decided := staged.Rejected
	prepared := decided != nil
	if !prepared {
		decided = []sink.Rejection{}
	}
	c, err := s.begin(p, prev, staged, m, decided)
	if err != nil {
		return sink.Committed{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !prepared {
		fault.Reach(s.opts.Query, fault.CommitBefore)
	}
	if err := s.retry(ctx, c.finish); err != nil {
		var classified *failure.Error
		if c.sent && !errors.As(err, &classified) {
			return sink.Committed{}, failure.Wrap(failure.CommitUnknown, err, "%s: %s", s.who(), c.what()).
				WithHint("start again when the cluster answers; the next start finds out what happened")
		}
		return sink.Committed{}, s.explain(err, c.what())
	}
	fault.Reach(s.opts.Query, fault.CommitSwapped)
	return c.out, nil
}

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
	s        *Sink
	permit   sink.Permit
	prev, m  *marker.Marker
	rows     *external.Rows
	decided  []sink.Rejection
	rejected []sink.Rejection
	version  int64
	stamp    int64 // timestamp of the batch's rows
	found    *marker.Marker
	sent     bool
	out      sink.Committed
}

func (c *committing) what() string {
	return fmt.Sprintf("commit batch %d of query %s", c.m.BatchID, c.m.QueryName)
}

// judge reads the marker and compares it with the batch.
func (c *committing) judge(ctx context.Context, session *gocql.Session) error {
	st, err := c.s.readState(ctx, session)
	if err != nil {
		return err
	}
	if !st.live || st.identity != c.s.identity {
		return failure.New(failure.Checkpoint, "%s went backwards under query %s: the table was dropped, or made again", c.s.who(), c.m.QueryName).
			WithHint("start over with: weir checkpoint reset")
	}
	c.found, c.version = nil, st.version[c.m.QueryName]
	found, err := external.Judge(c.s.who(), st.markers[c.m.QueryName], c.prev, c.m, c.permit)
	if err != nil {
		return err
	}
	c.sent = false // what was sent has been applied, or never will be
	if found {
		c.found = st.markers[c.m.QueryName]
		return nil
	}
	// The same at every try: both are what the plan and the batch before say.
	c.stamp = max(c.m.BatchTime.UnixMicro(), st.written[c.m.QueryName]+1)
	return sink.CheckOverlap(c.s.Name(), st.markers, c.m)
}

// write writes the batch's rows.
func (c *committing) write(ctx context.Context, session *gocql.Session) error {
	if err := c.judge(ctx, session); err != nil || c.found != nil {
		return err
	}
	if c.s.prepared == c.m.Attempt {
		c.rejected = c.decided
		return nil
	}
	r := &external.Rejections{Who: c.s.who(), Policy: c.s.opts.OnRejected, Decided: c.decided}
	last, err := c.look(r)
	if err != nil {
		return err
	}
	if err := c.send(ctx, session, last); err != nil {
		return err
	}
	c.rejected, c.s.prepared = r.List(), c.m.Attempt
	if c.rows.Rows > 0 {
		fault.Reach(c.s.opts.Query, fault.CommitPrepared)
	}
	return nil
}

// look refuses rows before anything is written, and gives the last row of each
// key: of two rows under one timestamp the store would keep the greater value of
// each column.
func (c *committing) look(r *external.Rejections) (map[string]int64, error) {
	last := map[string]int64{}
	var row int64
	for _, rec := range c.rows.Records {
		for i := range int(rec.NumRows()) {
			at := row
			row++
			if c.decided != nil && r.Has(at) {
				continue
			}
			if why := c.refused(rec, i); why != "" {
				if err := r.Add(c.m, at, "INVALID", why); err != nil {
					return nil, err
				}
				continue
			}
			var key []byte
			for _, k := range c.s.opts.Keys {
				key = append(rowjson.AppendValue(key, rec.Column(rec.Schema().FieldIndices(k)[0]), i), ',')
			}
			last[string(key)] = at
		}
	}
	return last, nil
}

// keyBytesMax is the longest value of a key column.
const keyBytesMax = 65535

func (c *committing) refused(rec arrow.RecordBatch, i int) string {
	for _, k := range c.s.opts.Keys {
		a := rec.Column(rec.Schema().FieldIndices(k)[0])
		if a.IsNull(i) {
			return fmt.Sprintf("key column %q is null", k)
		}
		if t, ok := a.(*array.String); ok && (len(t.Value(i)) == 0 || len(t.Value(i)) > keyBytesMax) {
			return fmt.Sprintf("key column %q has %d bytes", k, len(t.Value(i)))
		}
	}
	if c.s.deletes(rec, i) {
		return "" // its other columns are not written
	}
	for j, col := range rec.Columns() {
		if t, ok := col.(*array.String); ok && t.IsValid(i) && !utf8.ValidString(t.Value(i)) {
			return fmt.Sprintf("column %q: text that is not UTF-8", rec.ColumnName(j))
		}
	}
	return ""
}

// send writes the rows, several at once, each until it is acknowledged.
func (c *committing) send(ctx context.Context, session *gocql.Session, last map[string]int64) error {
	if len(last) == 0 {
		return nil
	}
	c.s.calls++
	rows := make(chan int64)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for range c.s.opts.Limits.Concurrency {
		wg.Go(func() {
			for row := range rows {
				rec, i, _ := c.rows.At(row)
				statement, args := c.s.statement(rec, i, c.stamp)
				if err := session.Query(statement, args...).Idempotent(true).ExecContext(ctx); err != nil {
					cancel(fmt.Errorf("row %d: %w", row, err))
				}
			}
		})
	}
	for _, row := range last {
		if ctx.Err() != nil {
			break
		}
		rows <- row
	}
	close(rows)
	wg.Wait()
	return context.Cause(ctx)
}

// statement writes a row, or deletes its key, under the batch's timestamp.
func (s *Sink) statement(rec arrow.RecordBatch, i int, stamp int64) (string, []any) {
	value := func(name string) any { return valueOf(rec.Column(rec.Schema().FieldIndices(name)[0]), i) }
	if s.deletes(rec, i) {
		args := []any{stamp}
		for _, k := range s.opts.Keys {
			args = append(args, value(k))
		}
		return s.remove, args
	}
	var args []any
	for _, f := range s.columns {
		args = append(args, value(f.Name))
	}
	return s.insert, append(args, stamp)
}

// deletes reports whether a row deletes its key.
func (s *Sink) deletes(rec arrow.RecordBatch, i int) bool {
	if s.opts.DeleteColumn == "" {
		return false
	}
	d, ok := rec.Column(rec.Schema().FieldIndices(s.opts.DeleteColumn)[0]).(*array.Boolean)
	return ok && d.IsValid(i) && d.Value(i)
}

// finish writes the rows where that is needed and moves the marker.
func (c *committing) finish(ctx context.Context, session *gocql.Session) error {
	if err := c.write(ctx, session); err != nil {
		return err
	}
	if c.found != nil {
		c.out = sink.Committed{Marker: c.found, SnapshotID: c.version, Found: true}
		return nil
	}
	written := *c.m
	fault.Reach(c.s.opts.Query, fault.CommitMetadata)
	c.sent = true
	applied, err := c.s.swap(ctx, session, &written, c.s.identity, c.version, c.stamp)
	if err != nil {
		return err
	}
	if !applied {
		return errors.New("the marker has moved") // read again: it says by whom
	}
	c.sent = false
	c.out = sink.Committed{Marker: &written, SnapshotID: c.version + 1}
	return nil
}
