package app

import (
	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/kafka"
)

// KafkaSink makes the sink over a topic; own is the pipeline's broker, for a sink
// that names none.
func KafkaSink(s pipeline.KafkaSink, own broker.Config, query string, shape *arrow.Schema, clk clock.Clock) (sink.Sink, error) {
	if len(s.BootstrapServers) > 0 {
		own = KafkaConfig(&pipeline.Kafka{BootstrapServers: s.BootstrapServers, TLS: s.TLS, SASL: s.SASL, ClientID: own.ClientID}, "")
	}
	opts, err := broker.ClientOptions(own)
	if err != nil {
		return nil, err
	}
	return kafka.New(kafka.Options{
		Client: opts, Name: "kafka:" + s.Topic, Topic: s.Topic, Partitions: s.Partitions, Query: query, Arrow: shape,
		Key: s.Key, Value: s.Value, Headers: s.Headers,
		OnRejected: sink.OnRejected(s.OnRejected), Clock: clk, Limits: kafka.Limits{BatchBytes: int64(s.MaxBatchBytes)},
	})
}
