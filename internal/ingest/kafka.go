package ingest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirlake/weir/internal/failure"
)

const (
	// recordSlackBytes is room for framing, batch header and our headers.
	recordSlackBytes = 2 << 10
	// brokerDefaultLimit is Kafka's own max.message.bytes, assumed where the
	// topic's cannot be read.
	brokerDefaultLimit = 1_048_588
	smallestLimit      = 16 << 10
	topicTries         = 100
	// meetMax bounds the first request.
	meetMax   = 3 * time.Second
	topicWait = 50 * time.Millisecond
)

// TopicLimit is the max.message.bytes of topics that are made for ingestion,
// here or by the pipeline: room for a record of so many bytes, or of the
// default's.
func TopicLimit(maxRecordBytes int) int {
	return orElse(maxRecordBytes, DefaultMaxRecordBytes) + recordSlackBytes
}

// newProducer makes the client that publishes. It never drops what is in
// flight by itself: an idempotent producer cannot know the fate of a record
// that it gives up. Waiting is bounded by the run instead.
func newProducer(cfg Config, deps Deps, limit int) (*kgo.Client, error) {
	comp, err := codec(cfg.Compression)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "ingest %s", cfg.Name)
	}
	opts := append([]kgo.Opt{
		kgo.SeedBrokers(cfg.Brokers...),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchCompression(comp, kgo.NoCompression()),
		kgo.ProducerBatchMaxBytes(int32(limit)),
		kgo.ProducerLinger(cfg.Linger),
		kgo.MaxBufferedRecords(cfg.MaxInFlight),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
	}, deps.Kafka...)
	if cfg.Delivery == ExactlyOnce {
		opts = append(opts, kgo.TransactionalID(cfg.TransactionalID),
			kgo.TransactionTimeout(max(cfg.DeliveryTimeout, cfg.TxnInterval)+txnSlack))
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "the Kafka client of ingest %s", cfg.Name)
	}
	return cl, nil
}

// topicSpec is a topic that must be there.
type topicSpec struct {
	name       string
	partitions int32
	config     map[string]*string
}

// ensureTopics creates what is missing and returns each topic's own limit on a
// record batch.
func ensureTopics(ctx context.Context, cfg Config, deps Deps) (limits map[string]int, err error) {
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(cfg.Brokers...),
		// kadm answers from the client's cache: a topic that was just created
		// would stay unknown for seconds.
		kgo.MetadataMinAge(topicWait / 2),
	}, deps.Kafka...)...)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "the Kafka client of ingest %s", cfg.Name)
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	ctx, cancel := context.WithTimeout(ctx, cfg.DeliveryTimeout)
	defer cancel()

	if err := meet(ctx, cl, deps); err != nil {
		return nil, err
	}
	size := strconv.Itoa(TopicLimit(cfg.MaxRecordBytes))
	specs := []topicSpec{
		{cfg.Topic, cfg.Partitions, map[string]*string{"max.message.bytes": &size}},
		{cfg.DeadLetterTopic, cfg.Partitions, map[string]*string{"max.message.bytes": &size}},
	}
	if cfg.Delivery == ExactlyOnce {
		compact := "compact"
		specs = append(specs, topicSpec{cfg.Topic + PositionSuffix, 1, map[string]*string{"cleanup.policy": &compact}})
	}
	limits = map[string]int{}
	for _, s := range specs {
		if err := ensureTopic(ctx, adm, cfg, deps, s); err != nil {
			return nil, err
		}
		limits[s.name] = topicLimit(ctx, adm, s.name)
	}
	return limits, nil
}

// meet says at once what is wrong with the settings of the connection, where
// that is why Kafka does not answer. A broker that is down is waited for later.
func meet(ctx context.Context, cl *kgo.Client, deps Deps) error {
	if deps.Explain == nil {
		return nil
	}
	attempt, cancel := context.WithTimeout(ctx, meetMax)
	defer cancel()
	_, err := kmsg.NewPtrMetadataRequest().RequestWith(attempt, cl)
	if err == nil {
		return nil
	}
	var classified *failure.Error
	if err = deps.Explain(ctx, err); errors.As(err, &classified) {
		return err
	}
	return nil
}

func ensureTopic(ctx context.Context, adm *kadm.Client, cfg Config, deps Deps, s topicSpec) error {
	for try := range topicTries {
		got, err := adm.ListTopics(ctx, s.name)
		if err != nil {
			return unreachable(err, cfg, "look for topic "+s.name)
		}
		d := got[s.name]
		switch {
		case d.Err == nil && len(d.Partitions) > 0:
			return nil
		case d.Err != nil && !errors.Is(d.Err, kerr.UnknownTopicOrPartition) && !kerr.IsRetriable(d.Err):
			return failure.Wrap(failure.Config, d.Err, "topic %s", s.name)
		}
		if try == 0 {
			rf := cfg.ReplicationFactor
			if rf == 0 {
				rf = -1
			}
			made, err := adm.CreateTopic(ctx, s.partitions, rf, s.config, s.name)
			if err == nil {
				err = made.Err
			}
			if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
				if ctx.Err() != nil {
					return unreachable(err, cfg, "create topic "+s.name)
				}
				return failure.Wrap(failure.Config, err, "topic %s is missing and cannot be created", s.name).
					WithHint("create it, or give this client the right to")
			}
		}
		if err := deps.Clock.Sleep(ctx, topicWait); err != nil {
			return unreachable(err, cfg, "wait for topic "+s.name)
		}
	}
	return failure.New(failure.Unreachable, "topic %s was created and does not appear", s.name)
}

// topicLimit is the topic's max.message.bytes, or the broker's default where
// we may not read it.
func topicLimit(ctx context.Context, adm *kadm.Client, topic string) int {
	rs, err := adm.DescribeTopicConfigs(ctx, topic)
	if err != nil || len(rs) == 0 {
		return brokerDefaultLimit
	}
	for _, c := range rs[0].Configs {
		if c.Key == "max.message.bytes" && c.Value != nil {
			if n, err := strconv.Atoi(*c.Value); err == nil && n > 0 {
				return n
			}
		}
	}
	return brokerDefaultLimit
}

func unreachable(err error, cfg Config, what string) error {
	if refuses(err) {
		return failure.Wrap(failure.Config, err, "Kafka refuses: %s", what).WithHint("give this user the rights that are missing, or check kafka.sasl")
	}
	return failure.Wrap(failure.Unreachable, err, "Kafka at %v does not answer: %s", cfg.Brokers, what).
		WithHint("check the broker and kafka.bootstrapServers; a restart goes on from the saved position")
}

// refuses reports that the broker has answered, and that no further try changes
// the answer.
func refuses(err error) bool {
	for _, e := range []error{kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.TransactionalIDAuthorizationFailed, kerr.SaslAuthenticationFailed} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// classify gives an error of producing or committing its class.
func classify(err error, cfg Config, what string) error {
	var known *failure.Error
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, kerr.ProducerFenced), errors.Is(err, kerr.InvalidProducerEpoch),
		errors.Is(err, kerr.InvalidProducerIDMapping), errors.Is(err, kerr.TransactionCoordinatorFenced):
		return failure.Wrap(failure.Fenced, err, "another ingestion with transactional id %s has taken over (%s)", cfg.TransactionalID, what).
			WithHint("stop the other one, or give each its own transactionalId, topic and position; a transaction that outlived its time-out looks the same, and then a restart is enough")
	case refuses(err):
		return failure.Wrap(failure.Config, err, "Kafka refuses: %s", what)
	case errors.Is(err, kerr.MessageTooLarge):
		return batchesTooLarge(cfg, cfg.Topic, smallestLimit)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, kgo.ErrRecordTimeout), errors.Is(err, kgo.ErrRecordRetries):
		return unreachable(err, cfg, what)
	default:
		return failure.Wrap(failure.Runtime, err, "ingest %s: %s", cfg.Name, what)
	}
}

// batchesTooLarge is the case that is not an event's fault: the topic takes less
// than a batch of small records, and we were not allowed to know.
func batchesTooLarge(cfg Config, topic string, size int) error {
	return failure.New(failure.Config, "topic %s refuses batches as too large although a record has only %d bytes; its max.message.bytes is lower than the %d assumed", topic, size, brokerDefaultLimit).
		WithHint("let this client describe the topic's configuration, or raise max.message.bytes of %s", topic)
}

func recordSize(key, value []byte) int { return len(key) + len(value) + recordSlackBytes }

func describeBytes(n int64, limit int) string {
	return fmt.Sprintf("%d bytes; the limit is %d", n, limit)
}
