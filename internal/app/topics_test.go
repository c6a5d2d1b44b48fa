package app

import (
	"testing"

	"github.com/weirlake/weir/internal/pipeline"
)

func TestTopicsOfIngestionAreMadeWithRoomForItsRecords(t *testing.T) {
	p := &pipeline.Pipeline{Ingest: []pipeline.Ingest{{Topic: "events", DeadLetterTopic: "events.dlq"}}}
	for _, c := range []struct {
		topic pipeline.Topic
		want  string
	}{
		{pipeline.Topic{Name: "events"}, "4196352"},
		{pipeline.Topic{Name: "events.dlq"}, "4196352"},
		{pipeline.Topic{Name: "events", Config: map[string]string{"max.message.bytes": "1000"}}, "1000"},
		{pipeline.Topic{Name: "other"}, ""},
	} {
		got := ""
		if v := topicConfig(p, c.topic)["max.message.bytes"]; v != nil {
			got = *v
		}
		if got != c.want {
			t.Errorf("%s with %v: max.message.bytes %q, not %q", c.topic.Name, c.topic.Config, got, c.want)
		}
	}
}
