package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/source"
)

const (
	// Clients come back quickly after a broker's restart.
	clientBackoffMax = time.Second
	metadataMinAge   = 100 * time.Millisecond
	// clientRetryMax bounds a client's own retries; retry goes on from there.
	clientRetryMax = 5 * time.Second
)

// Source reads Kafka topics. Read may run while Plan, Wait and Report do;
// two Reads at once wait for each other.
type Source struct {
	cfg  Config
	set  *settings
	clk  clock.Clock
	log  *slog.Logger
	opts []kgo.Opt

	cl  *kgo.Client // metadata and offsets; consuming has a client of its own
	adm *kadm.Client

	met atomic.Bool // the cluster has answered: the connection's settings are right

	readMu sync.Mutex // one Read at a time
	mu     sync.Mutex // guards what follows
	reader *reader    // nil before the first Read and after a failed one

	verified    map[batch.TopicPartition]int32 // leader epoch at the last Verify
	epochsTold  bool                           // the broker without OffsetForLeaderEpoch was logged
	rowBytesAvg float64                        // of the rows read so far, to size buffers
}

var _ source.Source = (*Source)(nil)

// New prepares a source; it does not connect yet.
func New(cfg Config, clk clock.Clock, log *slog.Logger) (*Source, error) {
	set, err := cfg.parse()
	if err != nil {
		return nil, err
	}
	if cfg.UnreachableAfter == 0 {
		cfg.UnreachableAfter = UnreachableAfterDefault
	}
	opts, err := broker.ClientOptions(cfg.Client)
	if err != nil {
		return nil, err
	}
	opts = append(opts,
		kgo.RetryBackoffFn(clientBackoff),
		kgo.MetadataMinAge(metadataMinAge),
	)
	cl, err := kgo.NewClient(append(opts, kgo.RetryTimeout(clientRetryMax))...)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "make a Kafka client")
	}
	return &Source{
		cfg: cfg, set: set, clk: clk, log: log, opts: opts, cl: cl, adm: kadm.NewClient(cl),
		verified: map[batch.TopicPartition]int32{},
	}, nil
}

func clientBackoff(failures int) time.Duration {
	d := retryBackoffMin
	for i := 1; i < failures && d < clientBackoffMax; i++ {
		d *= 2
	}
	return min(d, clientBackoffMax)
}

// Schema implements source.Source.
func (s *Source) Schema() *arrow.Schema { return batch.KafkaSchema }

// Close implements source.Source.
func (s *Source) Close() error {
	s.dropReader()
	s.cl.Close()
	return nil
}

// Report implements source.Source: it commits the position as the consumer
// group's offsets.
func (s *Source) Report(ctx context.Context, pos batch.Position) error {
	if s.cfg.GroupID == "" || pos.Kafka == nil {
		return nil
	}
	var os kadm.Offsets
	pos.Kafka.Each(func(topic, _ string, p int32, at batch.PartitionPosition) {
		if at.HandedTo == "" {
			os.AddOffset(topic, p, at.NextOffset, -1)
		}
	})
	if err := s.adm.CommitAllOffsets(ctx, s.cfg.GroupID, os); err != nil {
		return fmt.Errorf("report the position to consumer group %s: %w", s.cfg.GroupID, err)
	}
	return nil
}

const (
	// waitMax bounds Wait; the trigger looks again then.
	waitMax = time.Second
	// Without a consumer at the position the broker is asked, ever less often.
	waitPollMin = 10 * time.Millisecond
	waitPollMax = 100 * time.Millisecond
	// With one, its buffer is looked at: no request, so it can be often.
	waitBufferPoll = 3 * time.Millisecond
)

// Wait implements source.Source. A consumer that stands at pos has a fetch
// waiting at the broker, so new records arrive in its buffer by themselves.
func (s *Source) Wait(ctx context.Context, pos batch.Position) error {
	if pos.Kafka == nil {
		return s.clk.Sleep(ctx, waitMax)
	}
	var tps []batch.TopicPartition
	pos.Kafka.Each(func(topic, _ string, p int32, at batch.PartitionPosition) {
		if at.HandedTo == "" {
			tps = append(tps, batch.TopicPartition{Topic: topic, Partition: p})
		}
	})
	waited, asked := s.watch(), s.watch()
	poll := waitPollMin
	for first := true; ; first = false {
		if waited.Passed() >= waitMax {
			return nil
		}
		buffered, standing := s.buffered(pos)
		if buffered {
			return nil
		}
		if first || asked.Passed() >= poll {
			asked.Reset()
			ends, err := s.listStable(ctx, tps)
			if err != nil {
				return err
			}
			for _, tp := range tps {
				if at, _ := pos.Kafka.Get(tp.Topic, tp.Partition); ends[tp] > at.NextOffset {
					return nil
				}
			}
			poll = min(2*poll, waitPollMax)
		}
		sleep := poll
		if standing {
			sleep = waitBufferPoll
		}
		if err := s.clk.Sleep(ctx, sleep); err != nil {
			return err
		}
	}
}

// watch starts a stopwatch that does not mind when somebody sets the clock.
func (s *Source) watch() *clock.Stopwatch { return clock.NewStopwatch(s.clk, lookMax) }

// buffered reports whether records are there already, and whether a consumer
// stands at pos.
func (s *Source) buffered(pos batch.Position) (buffered, standing bool) {
	if !s.readMu.TryLock() {
		return false, false // the reader belongs to a Read under way
	}
	defer s.readMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reader == nil || !s.reader.standsAt(pos.Kafka) {
		return false, false
	}
	return s.reader.hasPending() || s.reader.cl.BufferedFetchRecords() > 0, true
}

// dropReader closes the consumer; the next Read makes another.
func (s *Source) dropReader() {
	s.mu.Lock()
	r := s.reader
	s.reader = nil
	s.mu.Unlock()
	if r != nil {
		r.cl.Close()
	}
}
