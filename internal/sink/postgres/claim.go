package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/external"
)

var errMoved = errors.New("the head moved")

// Claim implements sink.Sink: the marker's row under our epoch.
func (s *Sink) Claim(ctx context.Context, want sink.Facts, m *marker.Marker) (sink.Permit, bool, error) {
	if m.QueryName != s.opts.Query {
		return sink.Permit{}, false, failure.New(failure.Config, "sink %s belongs to query %s, not %s", s.Name(), s.opts.Query, m.QueryName)
	}
	if want.Marker != nil && !m.Epoch.Newer(want.Marker.Epoch) {
		return sink.Permit{}, false, failure.New(failure.Fenced, "%s: epoch %s of query %s does not come after %s", s.who(), m.Epoch, m.QueryName, want.Marker.Epoch)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.Limits.CommitDeadline)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop() // whatever an earlier use has left open
	err := s.retry(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		err := s.claim(ctx, conn, want, m)
		if codeOf(err) == codeLockTimeout {
			s.endPredecessor(ctx)
		}
		return err
	})
	if errors.Is(err, errMoved) {
		return sink.Permit{}, true, nil
	}
	if err != nil {
		return sink.Permit{}, false, s.explain(err, "claim it for query "+m.QueryName)
	}
	s.claimed = true
	return sink.NewPermit(s, m.Epoch), false, nil
}

// moved is errMoved in a form that is not tried again.
func moved() error {
	return &failure.Error{Class: failure.Runtime, Message: "claim", Cause: errMoved}
}

func (s *Sink) claim(ctx context.Context, conn *pgx.Conn, want sink.Facts, m *marker.Marker) error {
	if _, err := conn.Exec(ctx, "BEGIN"); err != nil {
		return err
	}
	if err := s.hooks.take(&s.hooks.before); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", s.opts.Limits.LockWait.Milliseconds())); err != nil {
		return err
	}
	// Claims of one target one after the other: they make tables, and look at each
	// other's partitions.
	if err := s.lockTarget(ctx, conn); err != nil {
		return err
	}
	st, err := s.readState(ctx, conn, "FOR UPDATE")
	if err != nil {
		return err
	}
	cur := st.markers[m.QueryName]
	if st.live && cur != nil && cur.QueryID == m.QueryID && cur.Attempt == m.Attempt && cur.Epoch == m.Epoch {
		s.identity = st.identity // an earlier try had landed
		return s.checkTarget(ctx, conn, st.oid)
	}
	if st.live != want.Exists || (st.live && (st.identity != want.Identity || st.version[m.QueryName] != want.HeadID)) {
		return moved()
	}
	if err := s.ensure(ctx, conn, st); err != nil {
		return err
	}
	if err := external.ClaimFollows(s.who(), st.markers[m.QueryName], m); err != nil {
		return err
	}
	if err := sink.CheckOverlap(s.Name(), st.markers, m); err != nil {
		return err
	}
	written := *m
	if err := s.writeMarker(ctx, conn, &written, st.version[m.QueryName]); err != nil {
		return err
	}
	if err := s.commitNow(ctx, conn); err != nil {
		return err
	}
	s.identity = st.identity
	return nil
}

// commitNow ends the transaction.
func (s *Sink) commitNow(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, "COMMIT"); err != nil {
		return err
	}
	return s.hooks.take(&s.hooks.after)
}

// lockTarget keeps other claims, and commits that add partitions, from the target
// until the transaction ends.
func (s *Sink) lockTarget(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended('weir:' || $1, 0))", s.schema+"."+s.table)
	return err
}

// endPredecessor ends the sessions of other processes of the query: one that
// stands still in a transaction keeps the marker's row locked. What it had not
// committed is rolled back; a live one finds itself fenced.
func (s *Sink) endPredecessor(ctx context.Context) {
	s.drop()
	conn, err := s.connection(ctx)
	if err != nil {
		return // the next try says it
	}
	_, _ = conn.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1 AND pid <> pg_backend_pid()", s.application())
}
