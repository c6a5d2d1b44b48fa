package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/ingest"
	"github.com/weirlake/weir/internal/pipeline"
)

// Permissions on a topic, as the bits that Kafka answers them in (KIP-430).
const (
	mayRead  = 1 << kmsg.ACLOperationRead
	mayWrite = 1 << kmsg.ACLOperationWrite
	// unknownRights is what a broker answers that does not tell.
	unknownRights = -2147483648
)

// topicNeed is what the pipeline does with a topic.
type topicNeed struct {
	rights  int32
	created bool // the pipeline makes it where it is missing
}

// topicNeeds are the topics that the file names.
func (a *App) topicNeeds() map[string]topicNeed {
	out := map[string]topicNeed{}
	need := func(topic string, rights int32, created bool) {
		if topic == "" {
			return
		}
		n := out[topic]
		out[topic] = topicNeed{n.rights | rights, n.created || created}
	}
	for _, t := range a.P.Kafka.Topics {
		need(t.Name, 0, true)
	}
	for _, q := range a.P.Queries {
		if q.From.Kafka != nil {
			for _, t := range q.From.Kafka.Topics {
				need(t, mayRead, false)
			}
		}
	}
	for _, in := range a.P.Ingest {
		need(in.Topic, mayWrite, true)
		need(in.DeadLetterTopic, mayWrite, true)
		if in.Delivery == pipeline.ExactlyOnce {
			need(in.Topic+ingest.PositionSuffix, mayRead|mayWrite, true)
		}
	}
	return out
}

func (a *App) connectKafka(ctx context.Context, r *ConnectReport) {
	k := a.P.Kafka
	if k == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, connectMax)
	defer cancel()
	if k.Embedded != nil {
		r.add("kafka", "embedded broker: write to "+k.Embedded.DataDir, a.probeStore(ctx, k.Embedded.DataDir), "it is started with the pipeline, not now")
		return
	}
	c := KafkaConfig(k, "")
	servers := strings.Join(c.BootstrapServers, ",")
	err := broker.Contact(ctx, c)
	var known *failure.Error
	if err != nil && !errors.As(err, &known) {
		err = failure.Wrap(failure.Unreachable, err, "no answer from Kafka at %s", servers).
			WithHint("check that the brokers run, kafka.bootstrapServers, and that their advertised listeners can be reached from here")
	}
	r.add("kafka", "connect to "+servers, err)
	if err != nil {
		return
	}
	opts, err := broker.ClientOptions(c)
	if err != nil {
		return // Contact made the same ones
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		r.add("kafka", "client", failure.Wrap(failure.Config, err, "make a Kafka client"))
		return
	}
	defer cl.Close()
	a.connectTopics(ctx, cl, r)
	for _, in := range a.P.Ingest {
		if in.Delivery == pipeline.ExactlyOnce {
			r.add("kafka", "ingest "+in.Name+": transactional id "+in.TransactionalID, a.describeTransaction(ctx, cl, in.TransactionalID),
				"describing it; writing would fence a running ingestion, so it is not tried")
		}
	}
}

func (a *App) connectTopics(ctx context.Context, cl *kgo.Client, r *ConnectReport) {
	needs := a.topicNeeds()
	if len(needs) == 0 {
		return
	}
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = false
	req.IncludeTopicAuthorizedOperations = true
	names := slices.Sorted(maps.Keys(needs))
	for _, name := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		r.add("kafka", "describe topics", failure.Wrap(failure.Unreachable, err, "describe the pipeline's topics"))
		return
	}
	there := map[string]kmsg.MetadataResponseTopic{}
	for _, t := range resp.Topics {
		if t.Topic != nil {
			there[*t.Topic] = t
		}
	}
	for _, name := range names {
		note, err := a.judgeTopic(ctx, cl, name, needs[name], there[name])
		r.add("kafka", "topic "+name+": "+needs[name].String(), err, note...)
	}
}

func (n topicNeed) String() string {
	words := []string{"describe"}
	if n.rights&mayRead != 0 {
		words = append(words, "read")
	}
	if n.rights&mayWrite != 0 {
		words = append(words, "write")
	}
	return strings.Join(words, ", ")
}

func (a *App) judgeTopic(ctx context.Context, cl *kgo.Client, name string, need topicNeed, t kmsg.MetadataResponseTopic) (note []string, err error) {
	err = kerr.ErrorForCode(t.ErrorCode)
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return a.judgeMissing(ctx, cl, name, need)
	case err != nil:
		return nil, failure.Wrap(failure.Config, err, "topic %s cannot be described", name).
			WithHint("give this user the permission to describe it, and to %s", need)
	case t.AuthorizedOperations == unknownRights:
		return []string{"the broker does not tell permissions: they are not checked"}, nil
	}
	if missing := need.rights &^ t.AuthorizedOperations; missing != 0 {
		return nil, failure.New(failure.Config, "topic %s: this user may not %s", name,
			strings.TrimPrefix(topicNeed{rights: missing}.String(), "describe, ")).
			WithHint("give this user the permission")
	}
	return nil, nil
}

// judgeMissing asks whether a topic that is not there could be made, without
// making it.
func (a *App) judgeMissing(ctx context.Context, cl *kgo.Client, name string, need topicNeed) ([]string, error) {
	if !need.created {
		return nil, failure.New(failure.Config, "topic %s does not exist", name).
			WithHint("create it, or name it under kafka.topics: then a start creates it")
	}
	topic := pipeline.Topic{Name: name, Partitions: 1, ReplicationFactor: -1}
	for _, t := range a.P.Kafka.Topics {
		if t.Name == name {
			topic = t
		}
	}
	made, err := kadm.NewClient(cl).ValidateCreateTopics(ctx, max(topic.Partitions, 1), topic.ReplicationFactor, topicConfig(a.P, topic), name)
	if err == nil {
		err = made.Error()
		if d := made[name]; err != nil && d.ErrMessage != "" {
			err = fmt.Errorf("%w: %s", err, d.ErrMessage)
		}
	}
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "topic %s is missing and cannot be created", name).
			WithHint("create it by hand, correct its entry in kafka.topics, or give this user the permission to create topics")
	}
	return []string{"missing; a start creates it"}, nil
}

// describePause is between two questions to a coordinator that is not there yet:
// a broker that has just begun is still electing it.
const describePause = 500 * time.Millisecond

// describeTransaction asks for a transactional id's state: one that was never
// used is as good as any.
func (a *App) describeTransaction(ctx context.Context, cl *kgo.Client, id string) error {
	for {
		err := describeTransactionOnce(ctx, cl, id)
		if !kerr.IsRetriable(err) || a.opts.Clock.Sleep(ctx, describePause) != nil {
			return err
		}
	}
}

func describeTransactionOnce(ctx context.Context, cl *kgo.Client, id string) error {
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{id}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return failure.Wrap(failure.Unreachable, err, "ask for the transactional id %s", id)
	}
	for _, s := range resp.TransactionStates {
		switch err := kerr.ErrorForCode(s.ErrorCode); {
		case err == nil, errors.Is(err, kerr.TransactionalIDNotFound):
		case kerr.IsRetriable(err):
			return failure.Wrap(failure.Unreachable, err, "ask for the transactional id %s", id)
		default:
			return failure.Wrap(failure.Config, err, "the transactional id %s", id).
				WithHint("give this user the permissions to describe and to write it")
		}
	}
	return nil
}
