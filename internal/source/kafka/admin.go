package kafka

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/failure"
)

const (
	// attemptMax bounds one try of a request, so that a broker that accepts
	// connections and never answers is tried again on another connection.
	attemptMax      = 10 * time.Second
	attemptMin      = 100 * time.Millisecond
	retryBackoffMin = 50 * time.Millisecond
	retryBackoffMax = time.Second
	// noticeAfter is how long Kafka may be away before it is said what is
	// waited for: whoever has just started a pipeline watches the terminal.
	noticeAfter = 3 * time.Second
	// lookMax is more than passes between two looks at a clock that nobody sets.
	lookMax = 15 * time.Second
)

// Timestamps of a ListOffsets request that are not timestamps.
const (
	listLatest   = -1
	listEarliest = -2
)

// topicView is a topic as the metadata shows it.
type topicView struct {
	id      string
	epochs  map[int32]int32 // leader epoch by partition
	leaders map[int32]int32 // broker by partition, -1 for none
}

// clusterView is the cluster as one metadata response shows it. Topics that do
// not exist are absent.
type clusterView struct {
	clusterID string
	brokers   int
	topics    map[string]topicView
}

// topicID is a topic id as Kafka's own tools print it; empty for the zero id
// of a broker that has none.
func topicID(id [16]byte) string {
	if id == ([16]byte{}) {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(id[:])
}

// retry calls f until it succeeds, fails for good, or the broker has been away
// for longer than the configured time.
func (s *Source) retry(ctx context.Context, what string, f func(context.Context) error) error {
	trying, told := s.watch(), false
	for wait := retryBackoffMin; ; wait = min(2*wait, retryBackoffMax) {
		left := max(attemptMin, min(attemptMax, s.cfg.UnreachableAfter-trying.Passed()))
		if !told {
			left = min(left, noticeAfter)
		}
		attempt, cancel := context.WithTimeout(ctx, left)
		err := f(attempt)
		cancel()
		if !told && !s.met.Load() {
			err = broker.Explain(ctx, s.cfg.Client, err)
		}
		var classified *failure.Error
		switch {
		case err == nil:
			s.met.Store(true)
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &classified):
			return err
		case broker.Exhausted(err) != nil:
			return fmt.Errorf("%s: %w", what, broker.Exhausted(err))
		case broker.Misconfigured(err):
			return fmt.Errorf("%s: %w", what, broker.Refused(err, s.cfg.Client))
		case trying.Passed() >= s.cfg.UnreachableAfter:
			return s.unreachable(err, what)
		}
		if !told && trying.Passed() >= noticeAfter {
			told = true
			s.log.Warn("waiting for Kafka, which does not answer", "brokers", s.cfg.Client.BootstrapServers, "to", what,
				"giving_up_after", s.cfg.UnreachableAfter.String(), "error", err)
		}
		s.log.Debug("kafka request failed, trying again", "what", what, "error", err)
		if err := s.clk.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

func (s *Source) unreachable(err error, what string) error {
	return failure.Wrap(failure.Unreachable, err, "%s: no answer from Kafka at %v for %s",
		what, s.cfg.Client.BootstrapServers, s.cfg.UnreachableAfter).
		WithHint("check that the brokers run and that their advertised listeners can be reached from here; starting again is safe")
}

// view asks for the topics of the configuration and those in also.
func (s *Source) view(ctx context.Context, also ...string) (*clusterView, error) {
	names := slices.Concat(s.cfg.Topics, also)
	slices.Sort(names)
	names = slices.Compact(names)
	if s.set.pattern != nil {
		names = nil // all topics
	}
	var out *clusterView
	err := s.retry(ctx, "read the cluster's metadata", func(ctx context.Context) error {
		meta, err := s.metadata(ctx, names)
		if err == nil {
			out, err = viewOf(meta)
		}
		return err
	})
	return out, err
}

// metadata asks a broker; no names mean all topics. kadm's own metadata comes
// from the client's cache, which shows a deleted topic for a while.
func (s *Source) metadata(ctx context.Context, names []string) (*kmsg.MetadataResponse, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = false
	for _, name := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	return req.RequestWith(ctx, s.cl)
}

func viewOf(meta *kmsg.MetadataResponse) (*clusterView, error) {
	out := &clusterView{brokers: len(meta.Brokers), topics: map[string]topicView{}}
	if meta.ClusterID != nil {
		out.clusterID = *meta.ClusterID
	}
	for _, t := range meta.Topics {
		err := kerr.ErrorForCode(t.ErrorCode)
		if errors.Is(err, kerr.UnknownTopicOrPartition) || t.Topic == nil || t.IsInternal {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("topic %s: %w", *t.Topic, err)
		}
		v := topicView{id: topicID(t.TopicID), epochs: map[int32]int32{}, leaders: map[int32]int32{}}
		for _, p := range t.Partitions {
			// A partition without a leader exists; requests to it are retried.
			v.epochs[p.Partition] = p.LeaderEpoch
			v.leaders[p.Partition] = p.Leader
		}
		out.topics[*t.Topic] = v
	}
	return out, nil
}

// assigned are the partitions that the configuration selects, in order.
func (s *Source) assigned(v *clusterView) []batch.TopicPartition {
	var out []batch.TopicPartition
	for _, name := range slices.Sorted(maps.Keys(v.topics)) {
		if s.set.pattern != nil {
			if !s.set.pattern.MatchString(name) {
				continue
			}
		} else if !slices.Contains(s.cfg.Topics, name) {
			continue
		}
		for _, p := range slices.Sorted(maps.Keys(v.topics[name].epochs)) {
			if s.set.has(p) {
				out = append(out, batch.TopicPartition{Topic: name, Partition: p})
			}
		}
	}
	return out
}

type offsets map[batch.TopicPartition]int64

// same asks for one kind of offset for all partitions.
func same(tps []batch.TopicPartition, timestamp int64) map[batch.TopicPartition]int64 {
	out := make(map[batch.TopicPartition]int64, len(tps))
	for _, tp := range tps {
		out[tp] = timestamp
	}
	return out
}

// listStart, listStable and listEnd are the log start, the last stable offset
// and the high watermark.
func (s *Source) listStart(ctx context.Context, tps []batch.TopicPartition) (offsets, error) {
	return s.list(ctx, "list log starts", 0, same(tps, listEarliest))
}

func (s *Source) listStable(ctx context.Context, tps []batch.TopicPartition) (offsets, error) {
	return s.list(ctx, "list last stable offsets", 1, same(tps, listLatest))
}

func (s *Source) listEnd(ctx context.Context, tps []batch.TopicPartition) (offsets, error) {
	return s.list(ctx, "list log ends", 0, same(tps, listLatest))
}

// list asks every leader for an offset by timestamp; -1 stands where there is
// none. All partitions are answered or it fails.
func (s *Source) list(ctx context.Context, what string, isolation int8, at map[batch.TopicPartition]int64) (offsets, error) {
	out := offsets{}
	if len(at) == 0 {
		return out, nil
	}
	err := s.retry(ctx, what, func(ctx context.Context) error {
		req := kmsg.NewPtrListOffsetsRequest()
		req.ReplicaID = -1
		req.IsolationLevel = isolation
		byTopic := map[string]int{}
		for tp, ts := range at {
			i, ok := byTopic[tp.Topic]
			if !ok {
				i = len(req.Topics)
				byTopic[tp.Topic] = i
				t := kmsg.NewListOffsetsRequestTopic()
				t.Topic = tp.Topic
				req.Topics = append(req.Topics, t)
			}
			p := kmsg.NewListOffsetsRequestTopicPartition()
			p.Partition, p.Timestamp = tp.Partition, ts
			req.Topics[i].Partitions = append(req.Topics[i].Partitions, p)
		}
		for _, shard := range s.cl.RequestSharded(ctx, req) {
			if shard.Err != nil {
				return shard.Err
			}
			for _, t := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics {
				for _, p := range t.Partitions {
					tp := batch.TopicPartition{Topic: t.Topic, Partition: p.Partition}
					if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
						return fmt.Errorf("partition %s: %w", tp, err)
					}
					out[tp] = p.Offset
				}
			}
		}
		for tp := range at {
			if _, ok := out[tp]; !ok {
				return fmt.Errorf("partition %s: the broker gave no answer", tp)
			}
		}
		return nil
	})
	return out, err
}
