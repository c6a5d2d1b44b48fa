package app

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/ingest"
	"github.com/weirlake/weir/internal/pipeline"
)

const (
	// topicDeadline bounds the creation of the pipeline's topics, and topicPause
	// stands between two tries.
	topicDeadline = 2 * time.Minute
	topicPause    = 250 * time.Millisecond
	// topicAttempt bounds one try; after the first it is said what is waited for.
	topicAttempt = 3 * time.Second
)

// createTopics makes the topics that the pipeline declares and the broker does
// not have. An existing topic is left as it is. A broker that is not up yet is
// waited for.
func (a *App) createTopics(ctx context.Context, topics []pipeline.Topic) error {
	if len(topics) == 0 {
		return nil
	}
	opts, err := broker.ClientOptions(a.Kafka)
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return failure.Wrap(failure.Config, err, "kafka client")
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	began, told := a.opts.Clock.Now(), false
	for {
		attempt, cancel := context.WithTimeout(ctx, topicAttempt)
		err := a.tryTopics(attempt, admin, topics)
		cancel()
		err = broker.Explain(ctx, a.Kafka, err)
		waited := a.opts.Clock.Now().Sub(began)
		var classified *failure.Error
		switch {
		case err == nil || errors.As(err, &classified):
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case waited >= topicDeadline:
			return failure.Wrap(failure.Unreachable, err, "no answer from Kafka at %v for %s", a.Kafka.BootstrapServers, topicDeadline).
				WithHint("check that the brokers run, kafka.bootstrapServers, and that their advertised listeners can be reached from here; starting again is safe")
		case !told && waited >= topicAttempt:
			told = true
			a.opts.Logger.Warn("waiting for Kafka, which does not answer", "brokers", a.Kafka.BootstrapServers,
				"to", "look for the pipeline's topics", "giving_up_after", topicDeadline.String(), "error", err)
		}
		if err := a.opts.Clock.Sleep(ctx, topicPause); err != nil {
			return err
		}
	}
}

// tryTopics creates what is missing. An error without a class is worth another
// try.
func (a *App) tryTopics(ctx context.Context, admin *kadm.Client, topics []pipeline.Topic) error {
	var names []string
	for _, t := range topics {
		names = append(names, t.Name)
	}
	there, err := admin.ListTopics(ctx, names...)
	if err != nil {
		return err
	}
	for _, t := range topics {
		if d, ok := there[t.Name]; ok && d.Err == nil {
			continue
		}
		made, err := admin.CreateTopic(ctx, max(t.Partitions, 1), max(t.ReplicationFactor, 1), topicConfig(a.P, t), t.Name)
		if err == nil {
			err = made.Err
		}
		var answer *kerr.Error
		switch {
		case err == nil || errors.Is(err, kerr.TopicAlreadyExists):
		case errors.As(err, &answer) && !answer.Retriable:
			text := answer.Message
			if made.ErrMessage != "" {
				text += ": " + made.ErrMessage
			}
			return failure.New(failure.Config, "topic %s is missing and Kafka does not create it: %s", t.Name, text).
				WithHint("correct its entry in kafka.topics, create it by hand, or give this user the permission to create topics")
		default:
			return err
		}
	}
	return nil
}

// topicConfig are the settings that a topic is created with. One that ingestion
// publishes to gets the room that it would be given by ingestion itself: with
// the broker's own limit an event of 1 MiB would be a dead letter.
func topicConfig(p *pipeline.Pipeline, t pipeline.Topic) map[string]*string {
	const limit = "max.message.bytes"
	configs := map[string]*string{}
	for k, v := range t.Config {
		configs[k] = &v
	}
	for _, in := range p.Ingest {
		if _, given := configs[limit]; !given && (t.Name == in.Topic || t.Name == in.DeadLetterTopic) {
			size := strconv.Itoa(ingest.TopicLimit(int(in.MaxRecordBytes)))
			configs[limit] = &size
		}
	}
	return configs
}
