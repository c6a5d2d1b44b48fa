package foreachbatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/sink"
)

// Delivery is one batch as it is handed over.
type Delivery struct {
	QueryID, QueryName string
	BatchID            int64
	Epoch              marker.Epoch
	// Attempt is a nonce, another one for each time that the function is called.
	Attempt string
	// Try counts the calls of this process for the batch, from 1.
	Try int
	// Redelivered is true where the batch was handed over before, by this process
	// or an earlier one, and may have had effects.
	Redelivered bool
	// Start and Position are the batch's range: everything before Position is in
	// this batch or an earlier one.
	Start, Position batch.Position
	BatchTime       time.Time
	// Records are the rows. They are the sink's: a function that keeps one beyond
	// its return retains it.
	Records []arrow.RecordBatch
	Rows    int64
	// Note is what was kept about this very batch last, by this process or an
	// earlier one; Options.Note where nothing was.
	Note json.RawMessage
	// Keep writes a note about the batch down, durable when it returns: how it is
	// cut, what the receiver refused. It is not called by two goroutines at once.
	Keep func(ctx context.Context, note json.RawMessage) error
	// Decided, if not nil, are the rows that an earlier delivery of the batch left
	// to the table of rejected rows: they are not delivered, and no other row may
	// be refused.
	Decided []sink.Rejection
	// Refuse says which rows the receiver refuses, once, when the rest is dealt
	// with; they count as dealt with, and go to the table of rejected rows.
	Refuse func(rows []sink.Rejection)
}

// Handler is the user's function. It returns how many of the rows it has dealt
// with; a number other than Delivery.Rows fails the batch.
type Handler func(ctx context.Context, d Delivery) (rows int64, err error)

// Limits bound a delivery.
type Limits struct {
	// Tries is how often a batch is handed over while the error is transient.
	Tries int
	// BackoffMin is the pause after the first try; it doubles up to BackoffMax.
	BackoffMin, BackoffMax time.Duration
	// BatchBytes is how large a batch may be in memory.
	BatchBytes int64
	// Writes is how often a write to the record may fail.
	Writes int
}

// DefaultLimits are the limits of a zero Limits.
func DefaultLimits() Limits {
	return Limits{Tries: 6, BackoffMin: 200 * time.Millisecond, BackoffMax: 10 * time.Second, BatchBytes: 1 << 30, Writes: 10}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	if l.Tries <= 0 {
		l.Tries = d.Tries
	}
	if l.BackoffMin <= 0 {
		l.BackoffMin = d.BackoffMin
	}
	if l.BackoffMax <= 0 {
		l.BackoffMax = d.BackoffMax
	}
	if l.BatchBytes <= 0 {
		l.BatchBytes = d.BatchBytes
	}
	if l.Writes <= 0 {
		l.Writes = d.Writes
	}
	return l
}

// Options make a Sink.
type Options struct {
	// Name is the sink's name in logs and in the checkpoint; "foreachBatch" where
	// empty.
	Name  string
	Query string
	// Handler is called for every batch that has rows.
	Handler Handler
	// Record is where deliveries are written down: a folder beside the checkpoint
	// that belongs to this query alone.
	Record objstore.Store
	Clock  clock.Clock
	Limits Limits
	// Note is the first note of every batch: settings that a redelivery has to
	// repeat though the configuration has changed since.
	Note json.RawMessage
	// Stopping, when closed, ends the waiting between two tries: the batch is
	// left for the next start. Nil never does.
	Stopping <-chan struct{}
	// Probe, if set, tries whether the receiver is there, without effect.
	Probe func(ctx context.Context) error
}

// DefaultName is the name of a sink that was given none.
const DefaultName = "foreachBatch"

// Sink hands the batches of one query to a function.
type Sink struct {
	opts   Options
	record *record
	// prepared is what Prepare has handed over for the Commit that follows.
	prepared *committing
}

var (
	_ sink.Sink     = (*Sink)(nil)
	_ sink.Preparer = (*Sink)(nil)
)

// New makes a sink; nothing is read or written before Facts or Claim.
func New(o Options) (*Sink, error) {
	if o.Handler == nil || o.Record == nil || o.Clock == nil {
		return nil, errors.New("a foreachBatch sink needs a handler, a record and a clock")
	}
	if o.Query == "" {
		return nil, failure.New(failure.Config, "the query of a foreachBatch sink has no name")
	}
	if o.Name == "" {
		o.Name = DefaultName
	}
	o.Limits = o.Limits.withDefaults()
	return &Sink{opts: o, record: &record{store: o.Record, query: o.Query}}, nil
}

// Name implements sink.Sink.
func (s *Sink) Name() string { return s.opts.Name }

// Close implements sink.Sink; there is nothing to close.
func (s *Sink) Close() error { return nil }

// Facts implements sink.Sink.
func (s *Sink) Facts(ctx context.Context, queryName string) (sink.Facts, error) {
	out := sink.Facts{Unreadable: true, Others: map[string]*marker.Marker{}}
	if queryName != s.opts.Query {
		return out, failure.New(failure.Config, "sink %s belongs to query %s, not %s", s.Name(), s.opts.Query, queryName)
	}
	e, err := s.record.head(ctx)
	if err != nil || e == nil {
		return out, err
	}
	m := *e.Marker
	out.Exists, out.Identity, out.Marker = true, m.QueryID, &m
	out.HeadID, out.HeadSequence, out.Handle = e.Seq, e.Seq, e
	if ahead := e.ahead(); ahead != nil {
		b := *ahead
		out.Begun = &b
	}
	return out, nil
}

// Claim implements sink.Sink: an entry of its own, after the one that want was
// read from.
func (s *Sink) Claim(ctx context.Context, want sink.Facts, m *marker.Marker) (sink.Permit, bool, error) {
	if m.QueryName != s.opts.Query {
		return sink.Permit{}, false, failure.New(failure.Config, "sink %s belongs to query %s, not %s", s.Name(), s.opts.Query, m.QueryName)
	}
	if want.Marker != nil && !m.Epoch.Newer(want.Marker.Epoch) {
		return sink.Permit{}, false, failure.New(failure.Fenced, "sink %s: epoch %s of query %s does not come after %s", s.Name(), m.Epoch, m.QueryName, want.Marker.Epoch)
	}
	var head *entry
	base := int64(0)
	if want.Exists {
		var ok bool
		if head, ok = want.Handle.(*entry); !ok {
			return sink.Permit{}, false, errors.New("facts of another sink")
		}
		base = head.Seq
	}
	written := *m
	written.BaseSequence = base
	_, err := s.write(ctx, base, head.claim(&written))
	if errors.Is(err, errMoved) {
		return sink.Permit{}, true, nil
	}
	if err != nil {
		return sink.Permit{}, false, fmt.Errorf("claim sink %s for query %s: %w", s.Name(), m.QueryName, err)
	}
	return sink.NewPermit(s, m.Epoch), false, nil
}

// write appends an entry, asking again where the answer is an error. found is
// true where an earlier asking had landed.
func (s *Sink) write(ctx context.Context, base int64, e *entry) (found bool, err error) {
	for n := 1; n <= s.opts.Limits.Writes; n++ {
		if found, err = s.record.append(ctx, base, e); err == nil || errors.Is(err, errMoved) || !failure.Is(err, failure.Unreachable) {
			return found, err
		}
		if n < s.opts.Limits.Writes && s.opts.Clock.Sleep(ctx, s.pause(n)) != nil {
			break
		}
	}
	return false, err
}

// pause is the time to wait after the n-th failure.
func (s *Sink) pause(n int) time.Duration {
	d := s.opts.Limits.BackoffMin
	for ; n > 1 && d < s.opts.Limits.BackoffMax; n-- {
		d *= 2
	}
	return min(d, s.opts.Limits.BackoffMax)
}

// RebuildScan implements sink.Sink: a function cannot be asked for what it was
// given.
func (s *Sink) RebuildScan(context.Context, *marker.Marker, []string, string, int64, func(arrow.RecordBatch) error) error {
	return failure.New(failure.Checkpoint, "query %s: the state of its operators is lost, or was made by another transform, and %s cannot be read to rebuild it", s.opts.Query, s.Name()).
		WithHint("restore the checkpoint folder and the transform; or let a table be the sink, from which state can be rebuilt, and run foreachBatch over a query without dedup")
}
