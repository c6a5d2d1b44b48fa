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

// topicDeadline bounds the creation of the pipeline's topics.
const topicDeadline = time.Minute

// createTopics makes the topics that the pipeline declares and the broker does
// not have. An existing topic is left as it is.
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
	ctx, cancel := context.WithTimeout(ctx, topicDeadline)
	defer cancel()
	for _, t := range topics {
		configs := topicConfig(a.P, t)
		_, err := admin.CreateTopic(ctx, max(t.Partitions, 1), max(t.ReplicationFactor, 1), configs, t.Name)
		if err == nil || errors.Is(err, kerr.TopicAlreadyExists) {
			continue
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return failure.Wrap(failure.Unreachable, err, "create topic %s on %v", t.Name, a.Kafka.BootstrapServers)
		}
		return failure.Wrap(failure.Runtime, err, "create topic %s", t.Name).
			WithHint("create it by hand, or give the user permission to create topics")
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
			size := strconv.Itoa(ingest.TopicMaxMessageBytes)
			configs[limit] = &size
		}
	}
	return configs
}
