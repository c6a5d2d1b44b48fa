package ingest

import (
	"context"
	"errors"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/fault"
)

// atLeastOnce publishes batches as they come and keeps the position in a file.
//
// Ordering invariant: the position that is saved is the end of a prefix, in the
// order of receipt, of batches of which Kafka has acknowledged every record.
// Rejected: saving the id of the newest acknowledged event. Partitions
// acknowledge independently, so an older event may still be in flight.
type atLeastOnce struct {
	in    *Ingester
	saved int64 // seq of the last saved place

	mu      sync.Mutex
	refused []refusal
	wake    chan struct{}
}

// refusal is a record that the broker found too large.
type refusal struct {
	b   *batch
	rec *kgo.Record
}

// retriedKey marks a record that was sent on its own after its batch was refused.
type retriedKey struct{}

// plainlySmall is a size that no topic refuses; such a record was in a batch
// that was refused as a whole, and gets a second try.
const plainlySmall = 8 << 10

func newAtLeastOnce(in *Ingester) *atLeastOnce {
	return &atLeastOnce{in: in, saved: in.durable.seq, wake: make(chan struct{}, 1)}
}

func (a *atLeastOnce) run() {
	in := a.in
	for b := range in.ordered {
		select {
		case <-b.checked:
		case <-in.runCtx.Done():
			return
		}
		in.prepare(b)
		in.enqueue(b)
		recs := b.records()
		// One more than there are records: the batch is not done before all
		// were handed over.
		b.pending.Store(int64(len(recs)) + 1)
		promise := func(r *kgo.Record, err error) { a.acked(b, r, err) }
		for _, r := range recs {
			in.kafka.Produce(in.runCtx, r, promise)
			fault.Reach(scope, fault.IngestProduced)
		}
		a.less(b)
	}
}

func (a *atLeastOnce) less(b *batch) {
	if b.pending.Add(-1) == 0 {
		a.in.acknowledged(b)
		fault.Reach(scope, fault.IngestAcked)
	}
}

func (a *atLeastOnce) acked(b *batch, r *kgo.Record, err error) {
	switch {
	case err == nil:
		a.in.acks.Add(1)
		a.less(b)
	case errors.Is(err, kerr.MessageTooLarge) && a.in.runCtx.Err() == nil:
		// Not from here: a promise must not produce, the buffer may be full.
		a.mu.Lock()
		a.refused = append(a.refused, refusal{b, r})
		a.mu.Unlock()
		select {
		case a.wake <- struct{}{}:
		default:
		}
	default:
		a.in.fail(classify(err, a.in.cfg, b.describe()))
	}
}

// reroute sends what the broker found too large to the dead-letter topic. The
// list is bounded by what is in flight.
func (a *atLeastOnce) reroute(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		}
		a.mu.Lock()
		list := a.refused
		a.refused = nil
		a.mu.Unlock()
		for _, f := range list {
			a.again(f)
		}
	}
}

func (a *atLeastOnce) again(f refusal) {
	in, r := a.in, f.rec
	promise := func(r *kgo.Record, err error) { a.acked(f.b, r, err) }
	_, retried := context.Context.Value(contextOf(r), retriedKey{}).(bool)
	size := recordSize(r.Key, r.Value) - recordSlackBytes
	next := &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: r.Headers, Timestamp: r.Timestamp}
	switch {
	case size <= plainlySmall && !retried:
	case size <= plainlySmall:
		in.fail(batchesTooLarge(in.cfg, r.Topic, size))
		return
	case r.Topic == in.cfg.DeadLetterTopic:
		next.Value = r.Value[:plainlySmall/2]
		next.Headers = append(next.Headers, kgo.RecordHeader{Key: HeaderTruncated, Value: itoa(int64(len(r.Value)))})
	default:
		f.b.moved.Add(1)
		in.c.violation(string(ReasonTooLarge))
		d := in.deadLetter(r.Key, r.Value, int64(len(r.Value)), f.b.idOf(r), r.Timestamp, ReasonTooLarge,
			"the broker refused "+strconv.Itoa(size)+" bytes as too large")
		next = &d
	}
	next.Context = context.WithValue(in.runCtx, retriedKey{}, next.Topic == r.Topic)
	if next.Topic != r.Topic {
		next.Context = in.runCtx
	}
	in.kafka.Produce(next.Context, next, promise)
}

func contextOf(r *kgo.Record) context.Context {
	if r.Context == nil {
		return context.Background()
	}
	return r.Context
}

// idOf finds the id of the event that a record was made of.
func (b *batch) idOf(r *kgo.Record) []byte {
	for i := range b.events {
		if d := b.events[i].Data; len(d) > 0 && len(r.Value) > 0 && &d[0] == &r.Value[0] {
			return b.events[i].ID
		}
	}
	return nil
}

// keepSaving saves the position as it moves, at most once an interval.
func (a *atLeastOnce) keepSaving(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.in.advance:
		}
		if err := a.save(); err != nil {
			a.in.fail(err)
			return
		}
		if a.in.deps.Clock.Sleep(ctx, a.in.cfg.SaveInterval) != nil {
			return
		}
	}
}

// save keeps the acknowledged place. It is called from one goroutine at a time.
func (a *atLeastOnce) save() error {
	in := a.in
	in.mu.Lock()
	d := in.durable
	if d.seq == a.saved {
		in.mu.Unlock()
		return nil
	}
	s := in.state(d)
	s.Recent = in.window.Store(in.window.Tail(keptInFile, int(in.current.added-d.added)))
	in.trim(d)
	in.mu.Unlock()
	if err := in.file.Save(s); err != nil {
		return err
	}
	a.saved = d.seq
	in.c.saves.Add(1)
	return nil
}

func itoa(n int64) []byte { return strconv.AppendInt(nil, n, 10) }
