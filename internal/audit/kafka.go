package audit

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

const (
	// fetchBytesMax bounds one fetch response, and so the memory of a scan.
	fetchBytesMax = 8 << 20
	// fetchWaitMillis is how long the broker may wait for more.
	fetchWaitMillis = 500
	// emptyFetchesMax is how many fetches in a row may answer nothing below an
	// end that the broker itself says is stable, before the rest counts as
	// holes (compacted away).
	emptyFetchesMax = 3
	// fetchErrorsMax is how many retriable fetch errors in a row are waited out.
	fetchErrorsMax = 30
	fetchRetryWait = 200 * time.Millisecond
)

// Kafka reads a cluster's topics as a read_committed reader gets them. It
// issues fetch requests itself, so that it always knows the next offset: also
// where the last offsets are transaction markers or were compacted away.
type Kafka struct {
	client *kgo.Client
	admin  *kadm.Client
	clock  clock.Clock
}

// NewKafka connects; opts carry what else the cluster needs (TLS, SASL).
func NewKafka(brokers []string, c clock.Clock, opts ...kgo.Opt) (*Kafka, error) {
	if len(brokers) == 0 {
		return nil, failure.New(failure.Config, "no Kafka brokers are given")
	}
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(brokers...), kgo.RequestRetries(10)}, opts...)...)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "Kafka client for %v", brokers)
	}
	return &Kafka{client: cl, admin: kadm.NewClient(cl), clock: c}, nil
}

// Close releases the connections.
func (k *Kafka) Close() { k.client.Close() }

// PartitionBounds are the limits of one partition as the broker gives them.
type PartitionBounds struct {
	LogStart int64
	// Stable is the last stable offset: the end of what read_committed gets.
	Stable int64
}

// TopicBounds are the limits of one topic.
type TopicBounds struct {
	ClusterID string
	// TopicID is all zero, and HasTopicID false, where the broker gives none.
	TopicID    [16]byte
	HasTopicID bool
	Partitions map[int32]PartitionBounds
}

// Bounds asks for a topic's partitions and their limits.
func (k *Kafka) Bounds(ctx context.Context, topic string) (*TopicBounds, error) {
	md, err := k.admin.Metadata(ctx, topic)
	if err != nil {
		return nil, failure.Wrap(failure.Unreachable, err, "Kafka metadata of topic %s", topic)
	}
	td := md.Topics[topic]
	if td.Err != nil {
		if errors.Is(td.Err, kerr.UnknownTopicOrPartition) {
			return nil, failure.New(failure.Config, "Kafka has no topic %s", topic)
		}
		return nil, failure.Wrap(failure.Unreachable, td.Err, "Kafka metadata of topic %s", topic)
	}
	start, err := k.admin.ListStartOffsets(ctx, topic)
	if err == nil {
		err = start.Error()
	}
	if err != nil {
		return nil, failure.Wrap(failure.Unreachable, err, "log start of topic %s", topic)
	}
	stable, err := k.admin.ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = stable.Error()
	}
	if err != nil {
		return nil, failure.Wrap(failure.Unreachable, err, "last stable offsets of topic %s", topic)
	}
	out := &TopicBounds{ClusterID: md.Cluster, Partitions: map[int32]PartitionBounds{}}
	out.TopicID, out.HasTopicID = td.ID, td.ID != (kadm.TopicID{})
	for p := range td.Partitions {
		s, _ := start.Lookup(topic, p)
		e, _ := stable.Lookup(topic, p)
		out.Partitions[p] = PartitionBounds{LogStart: s.Offset, Stable: e.Offset}
	}
	return out, nil
}

// uuidText writes a topic id as a UUID, the form of our markers; Kafka's own
// tools print the same bytes in base 64.
func uuidText(id [16]byte) string {
	h := hex.EncodeToString(id[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// Record is one record that a read_committed reader gets.
type Record = kgo.Record

// leader is where a partition is read from, as one metadata answer gave it.
type leader struct {
	broker  int
	topicID [16]byte
}

// Scan calls f for every record of [from, to) of one partition that a
// read_committed reader gets, in order. It returns when everything below to
// has been seen or is known to be a hole.
func (k *Kafka) Scan(ctx context.Context, topic string, partition int32, from, to int64, f func(*Record) error) error {
	var at *leader
	next, empty, failures := from, 0, 0
	for next < to {
		if err := ctx.Err(); err != nil {
			return err
		}
		fp, after, err := k.fetchFrom(ctx, &at, topic, partition, next)
		if errors.Is(err, kerr.OffsetOutOfRange) {
			return failure.New(failure.SourceChanged, "topic %s partition %d: offset %d is not in the log [%d, %d)",
				topic, partition, next, fp.LogStartOffset, fp.HighWatermark)
		}
		if err != nil {
			at = nil
			if failures++; failures > fetchErrorsMax {
				return failure.Wrap(failure.Unreachable, err, "read topic %s partition %d at offset %d", topic, partition, next)
			}
			if err := k.clock.Sleep(ctx, fetchRetryWait); err != nil {
				return err
			}
			continue
		}
		failures = 0
		if done, err := deliver(fp.Records, next, to, f); done || err != nil {
			return err
		}
		if after > next {
			next, empty = after, 0
			continue
		}
		if empty++; empty >= emptyFetchesMax && fp.LastStableOffset >= to {
			return nil // nothing is left below the stable end: the rest are holes
		}
		if empty >= fetchErrorsMax {
			return failure.New(failure.Unreachable, "topic %s partition %d: nothing readable at offset %d, last stable offset %d, wanted up to %d",
				topic, partition, next, fp.LastStableOffset, to)
		}
	}
	return nil
}

// deliver hands over the records of one fetch; done says that to was reached.
func deliver(records []*Record, from, to int64, f func(*Record) error) (done bool, err error) {
	for _, r := range records {
		if r.Offset >= to {
			return true, nil
		}
		if r.Offset < from || r.Attrs.IsControl() {
			continue
		}
		if err := f(r); err != nil {
			return true, err
		}
	}
	return false, nil
}

// fetchFrom issues one fetch to the partition's leader, which it looks up
// where at is nil. The second result is the next offset to ask for.
func (k *Kafka) fetchFrom(ctx context.Context, at **leader, topic string, partition int32, offset int64) (kgo.FetchPartition, int64, error) {
	if *at == nil {
		md, err := k.admin.Metadata(ctx, topic)
		if err != nil {
			return kgo.FetchPartition{}, offset, err
		}
		td := md.Topics[topic]
		pd, ok := td.Partitions[partition]
		if td.Err != nil || !ok || pd.Err != nil {
			return kgo.FetchPartition{}, offset, errors.Join(fmt.Errorf("no leader for %s-%d", topic, partition), td.Err, pd.Err)
		}
		*at = &leader{broker: int(pd.Leader), topicID: td.ID}
	}
	raw, err := k.client.Broker((*at).broker).RetriableRequest(ctx, fetchRequest(*at, topic, partition, offset))
	if err != nil {
		return kgo.FetchPartition{}, offset, err
	}
	resp := raw.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return kgo.FetchPartition{}, offset, err
	}
	for i := range resp.Topics {
		for j := range resp.Topics[i].Partitions {
			p := &resp.Topics[i].Partitions[j]
			if p.Partition != partition {
				continue
			}
			opts := kgo.ProcessFetchPartitionOpts{Offset: offset, IsolationLevel: kgo.ReadCommitted(), Topic: topic, Partition: partition}
			fp, next := kgo.ProcessFetchPartition(opts, p, kgo.DefaultDecompressor(), nil)
			return fp, next, fp.Err
		}
	}
	return kgo.FetchPartition{}, offset, fmt.Errorf("the broker answered without partition %d", partition)
}

func fetchRequest(at *leader, topic string, partition int32, offset int64) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis = fetchWaitMillis
	req.MinBytes = 1
	req.MaxBytes = fetchBytesMax
	req.IsolationLevel = 1 // read_committed
	req.SessionEpoch = -1  // no fetch session
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID = topic, at.topicID
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = partition, offset, fetchBytesMax
	rp.CurrentLeaderEpoch = -1
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return req
}
