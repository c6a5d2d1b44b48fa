package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/external"
)

var errMoved = errors.New("the head moved")

// Claim implements sink.Sink: the transactional id, and the marker under our
// epoch.
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
	s.drop()
	err := s.retry(ctx, func(ctx context.Context) error { return s.claim(ctx, want, m) })
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

func (s *Sink) claim(ctx context.Context, want sink.Facts, m *marker.Marker) error {
	identity, err := s.ensure(ctx)
	if err != nil {
		return err
	}
	if err := s.take(ctx); err != nil {
		return err
	}
	st := s.state
	cur := st.marker
	if cur != nil && cur.QueryID == m.QueryID && cur.Attempt == m.Attempt && cur.Epoch == m.Epoch {
		s.identity = identity // an earlier try had landed
		return nil
	}
	if st.known() != want.Exists || (want.Exists && (st.identity != want.Identity || st.version != want.HeadID)) {
		return moved()
	}
	if err := external.ClaimFollows(s.who(), cur, m); err != nil {
		return err
	}
	if err := sink.CheckOverlap(s.Name(), st.others, m); err != nil {
		return err
	}
	if err := s.producer.BeginTransaction(); err != nil {
		return err
	}
	written := *m
	if err := s.writeMarker(ctx, &written, identity); err != nil {
		return err
	}
	if err := s.end(ctx); err != nil {
		return err
	}
	s.identity = identity
	st.marker, st.live, st.identity, st.exists = &written, true, identity, true
	return nil
}

// take makes a producer that holds the transactional id, and reads the marker
// topic, which cannot move from here on unless the id is taken by another.
func (s *Sink) take(ctx context.Context) error {
	plain, err := s.client()
	if err != nil {
		return err
	}
	limit := s.messageBytes(ctx, plain)
	plain.Close()
	s.shape.limit = int(limit)
	cl, err := s.client(
		kgo.TransactionalID(s.transactionalID()),
		kgo.TransactionTimeout(transactionTimeout),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchMaxBytes(limit),
		kgo.ProducerBatchCompression(kgo.ZstdCompression(), kgo.NoCompression()),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
	)
	if err != nil {
		return err
	}
	s.producer = cl
	if _, _, err := cl.ProducerID(ctx); err != nil {
		return fmt.Errorf("take transactional id %s: %w", s.transactionalID(), err)
	}
	s.state, err = s.readState(ctx, true)
	return err
}

// writeMarker produces the marker within the open transaction, and waits until
// the broker has it.
func (s *Sink) writeMarker(ctx context.Context, m *marker.Marker, identity string) error {
	rec, err := s.entryRecord(m, s.state.version, identity)
	if err != nil {
		return err
	}
	if err := s.producer.ProduceSync(ctx, rec).FirstErr(); err != nil {
		return fmt.Errorf("produce the marker: %w", err)
	}
	return nil
}

// end commits the open transaction and notes what is in the marker topic now.
func (s *Sink) end(ctx context.Context) error {
	if err := s.hooks.take(&s.hooks.before); err != nil {
		return err
	}
	if err := s.producer.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return fmt.Errorf("commit the transaction: %w", err)
	}
	if err := s.hooks.take(&s.hooks.after); err != nil {
		return err
	}
	s.state.version++
	return nil
}
