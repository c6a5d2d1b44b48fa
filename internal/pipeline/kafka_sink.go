package pipeline

import (
	"fmt"
	"strings"
)

// KafkaSink writes to a topic, exactly once for a read_committed reader.
type KafkaSink struct {
	Topic string `yaml:"topic" weir:"required,topic"`
	// BootstrapServers, TLS and SASL are another cluster's; without them it is the
	// pipeline's own.
	BootstrapServers []string `yaml:"bootstrapServers" weir:"min=1"`
	TLS              *TLS     `yaml:"tls"`
	SASL             *SASL    `yaml:"sasl"`
	// Partitions of a topic that is made.
	Partitions int32 `yaml:"partitions" weir:"min=0,max=100000"`
	// Key and Value are columns; the whole row as JSON where Value is empty.
	Key           string   `yaml:"key"`
	Value         string   `yaml:"value"`
	Headers       []string `yaml:"headers" weir:"min=1"`
	OnRejected    string   `yaml:"onRejected" weir:"enum=fail|deadLetter"`
	RejectedTable string   `yaml:"rejectedTable" weir:"table"`
	MaxBatchBytes Size     `yaml:"maxBatchBytes" weir:"min=1048576"`
}

func (s *KafkaSink) setDefaults() {
	s.OnRejected, s.MaxBatchBytes = RejectFail, DefaultMaxBatchBytes
}

// Target implements External.
func (s *KafkaSink) Target() string {
	if len(s.BootstrapServers) > 0 {
		return "kafka:" + s.BootstrapServers[0] + "/" + s.Topic
	}
	return "kafka:" + s.Topic
}

// Rejects implements External.
func (s *KafkaSink) Rejects() (string, string) { return s.OnRejected, s.RejectedTable }

func (s *KafkaSink) check(l *loader, p *Pipeline, q *Query, key string) {
	switch {
	case len(s.BootstrapServers) == 0 && p.Kafka == nil && !l.isBroken(key+".bootstrapServers"):
		l.faultKey(key, "kafka needs bootstrapServers, because the pipeline has no broker of its own")
	case len(s.BootstrapServers) == 0 && (s.TLS != nil || s.SASL != nil):
		l.faultKey(key, "kafka: tls and sasl go with bootstrapServers; the pipeline's own broker has its own")
	}
	if strings.Contains(s.Topic, MarkerTopicInfix) {
		l.faultKey(key+".topic", "topic %q has the form of a marker topic", clip(s.Topic))
	}
	if n := len(s.Topic) + len(MarkerTopicInfix) + len(q.Name); n > 249 {
		l.faultKey(key+".topic", "the name of the marker topic, %s%s%s, would have %d characters; Kafka takes 249", clip(s.Topic), MarkerTopicInfix, clip(q.Name), n)
	}
	if k := q.From.Kafka; k != nil && len(s.BootstrapServers) == 0 {
		for _, t := range k.Topics {
			if t == s.Topic {
				l.faultKey(key+".topic", "the query reads topic %q: it would read its own rows for ever", t)
			}
		}
	}
	if q.Parse != nil && l.isBroken(strings.TrimSuffix(key, ".to.kafka")+".parse") {
		return
	}
	for what, name := range map[string]string{"key": s.Key, "value": s.Value} {
		if _, ok := q.column(name); !ok && name != "" {
			l.unknownColumn(q, key+"."+what, what, name)
		}
	}
	for i, name := range s.Headers {
		if _, ok := q.column(name); !ok && name != "" {
			l.unknownColumn(q, fmt.Sprintf("%s.headers[%d]", key, i), "headers", name)
		}
	}
}

// MarkerTopicInfix stands between a topic's name and the query's in the name of the
// topic that holds the query's marker.
const MarkerTopicInfix = ".weir."
