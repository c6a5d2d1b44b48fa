package kafka

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/external"
)

const (
	// markerInfix stands between the topic's name and the query's in the name of
	// the marker topic.
	markerInfix = ".weir."
	// topicNameMax is Kafka's own bound.
	topicNameMax = 249
	// transactionTimeout is when the broker gives up an open transaction: longer
	// than the commit of a side table that happens within it, shorter than readers
	// should wait after a crash that nobody restarts.
	transactionTimeout = 4 * time.Minute
	// recordOverhead is the most that a record takes beyond its key, value and
	// headers in a batch of its own.
	recordOverhead = 256
	// defaultMessageBytes is the broker's own default of max.message.bytes, where
	// the topic's cannot be read.
	defaultMessageBytes = 1048588
)

// Limits bound a commit.
type Limits struct {
	// CommitDeadline is the time after which a claim or a commit gives up, where
	// the context has no earlier end.
	CommitDeadline time.Duration
	// Tries is how often a transaction is begun for one commit.
	Tries int
	// BackoffMin is the pause after the first failure; it doubles up to BackoffMax.
	BackoffMin, BackoffMax time.Duration
	// BatchBytes is how large a batch may be in memory.
	BatchBytes int64
}

// DefaultLimits are the limits of a zero Limits.
func DefaultLimits() Limits {
	return Limits{CommitDeadline: 2 * time.Minute, Tries: 60, BackoffMin: 100 * time.Millisecond, BackoffMax: 5 * time.Second, BatchBytes: external.DefaultBatchBytes}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	if l.CommitDeadline <= 0 {
		l.CommitDeadline = d.CommitDeadline
	}
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
	return l
}

// Options make a Sink.
type Options struct {
	// Client are how the cluster is reached (broker.ClientOptions).
	Client []kgo.Opt
	// Name is the sink's name in logs and checkpoints; kafka:Topic where empty.
	Name  string
	Topic string
	// Partitions of a topic that this sink makes; the broker's default where 0.
	Partitions int32
	Query      string
	// Arrow is the shape of the rows.
	Arrow *arrow.Schema
	// Key is the column of the record's key; none where empty. Value is the column
	// of its value; the whole row as JSON where empty. Headers are columns that
	// become headers of their names.
	Key, Value string
	Headers    []string
	OnRejected sink.OnRejected
	Clock      clock.Clock
	Limits     Limits
}

// Sink writes one query's rows into one topic.
type Sink struct {
	opts  Options
	shape *mapping
	hooks hooks

	mu      sync.Mutex
	claimed bool
	// producer holds the transactional id, nil before the claim and after an error.
	// state is what the marker topic said after it was taken.
	producer *kgo.Client
	state    *stored
	identity string // of the topic as claimed
	open     *prepared
	calls    int // batches of which records were produced
}

// hooks are for tests: before is called ahead of the end of the next transaction,
// after when it has been committed. Their errors stand for those of the connection.
type hooks struct{ before, after func() error }

func (h *hooks) take(f *func() error) error {
	g := *f
	*f = nil
	if g == nil {
		return nil
	}
	return g()
}

var (
	_ sink.Sink     = (*Sink)(nil)
	_ sink.Preparer = (*Sink)(nil)
)

// New makes a sink; nothing is connected before Facts or Claim.
func New(o Options) (*Sink, error) {
	if o.Clock == nil || o.Arrow == nil {
		return nil, errors.New("a Kafka sink needs a clock and a schema")
	}
	if o.Query == "" || o.Topic == "" {
		return nil, failure.New(failure.Config, "a Kafka sink needs a topic and the name of its query (%q, %q)", o.Topic, o.Query)
	}
	if n := len(o.Topic) + len(markerInfix) + len(o.Query); n > topicNameMax {
		return nil, failure.New(failure.Config, "query %s: the name of its marker topic, %s, would have %d characters; Kafka takes %d", o.Query, o.Topic+markerInfix+o.Query, n, topicNameMax)
	}
	shape, err := newMapping(o)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "query %s: topic %s", o.Query, o.Topic)
	}
	if o.Name == "" {
		o.Name = "kafka:" + o.Topic
	}
	if o.OnRejected == "" {
		o.OnRejected = sink.RejectFail
	}
	o.Limits = o.Limits.withDefaults()
	return &Sink{opts: o, shape: shape}, nil
}

// Name implements sink.Sink.
func (s *Sink) Name() string { return s.opts.Name }

func (s *Sink) who() string { return "Kafka topic " + s.opts.Topic }

func (s *Sink) markerTopic() string { return s.opts.Topic + markerInfix + s.opts.Query }

// transactionalID is the same for every process of the query.
func (s *Sink) transactionalID() string { return s.markerTopic() }

// Close implements sink.Sink.
func (s *Sink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
	return nil
}

// drop gives the producer up, and with it whatever transaction is open: the next
// one to take the transactional id aborts it.
func (s *Sink) drop() {
	s.open, s.state = nil, nil
	if s.producer != nil {
		s.producer.Close()
		s.producer = nil
	}
}

// Stage implements sink.Sink.
func (s *Sink) Stage(_ context.Context, batchID int64, attempt string) (sink.Stage, error) {
	return external.NewStage(s.opts.Query, batchID, attempt, s.opts.Limits.BatchBytes), nil
}

// RebuildScan implements sink.Sink.
func (s *Sink) RebuildScan(context.Context, *marker.Marker, []string, string, int64, func(arrow.RecordBatch) error) error {
	return failure.New(failure.Checkpoint, "query %s: the state of its operators is lost, or was made by another transform, and is not rebuilt from %s", s.opts.Query, s.who()).
		WithHint("restore the checkpoint folder and the transform; or let a table be the sink of the query that has state, from which it is rebuilt")
}

// retry calls f until it succeeds, fails for good, or the time is up. After a
// failure the producer is given up.
func (s *Sink) retry(ctx context.Context, f func(ctx context.Context) error) error {
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.opts.Limits.CommitDeadline)
		defer cancel()
	}
	var err error
	for n := 1; n <= s.opts.Limits.Tries; n++ {
		if err = f(ctx); err == nil {
			return nil
		}
		s.drop()
		var classified *failure.Error
		if errors.As(err, &classified) {
			return err
		}
		if ctx.Err() != nil || (n < s.opts.Limits.Tries && s.opts.Clock.Sleep(ctx, s.pause(n)) != nil) {
			return err
		}
	}
	return err
}

// pause is the time to wait after the n-th failure.
func (s *Sink) pause(n int) time.Duration {
	d := s.opts.Limits.BackoffMin
	for ; n > 1 && d < s.opts.Limits.BackoffMax; n-- {
		d *= 2
	}
	return min(d, s.opts.Limits.BackoffMax)
}

// explain classes the error of an operation.
func (s *Sink) explain(err error, what string) error {
	var classified *failure.Error
	if err == nil || errors.As(err, &classified) {
		return err
	}
	if isAuthorization(err) {
		return failure.Wrap(failure.Config, err, "%s: %s", s.who(), what).
			WithHint("the user needs WRITE on the topic, READ, WRITE and CREATE on the topics %s%s*, and WRITE on the transactional id %s", s.opts.Topic, markerInfix, s.transactionalID())
	}
	return failure.Wrap(failure.Unreachable, err, "%s: %s", s.who(), what).
		WithHint("start again when the broker answers")
}

// otherQueries are the queries whose marker topics stand beside the target's, by
// the name of the marker topic.
func (s *Sink) otherQueries(topics []string) map[string]string {
	out := map[string]string{}
	for _, t := range topics {
		if q, ok := strings.CutPrefix(t, s.opts.Topic+markerInfix); ok && q != s.opts.Query {
			out[t] = q
		}
	}
	return out
}

func sorted(m map[string]string) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
