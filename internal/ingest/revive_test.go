package ingest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/failure"
)

func TestDeadLettersOfATopicThatMeetTheContractArePublishedOnce(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "main", "main.dlq"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	opts := []kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...)}
	p, err := kgo.NewClient(append(opts, kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	put := func(part int32, value string, headers ...kgo.RecordHeader) {
		t.Helper()
		if err := p.ProduceSync(t.Context(), &kgo.Record{Topic: "main.dlq", Partition: part, Value: []byte(value), Headers: headers}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	put(0, `{"id":"a","n":1}`)
	put(1, `{"id":"b","n":"2"}`)
	put(1, `{"id":"c"}`)
	put(0, `not JSON`)
	put(0, `{"id":"d","n":"4"}`, kgo.RecordHeader{Key: HeaderTruncated, Value: []byte("99")})
	schema := filepath.Join(t.TempDir(), "schema.json")
	cfg := Config{Name: "i", Topic: "main", DeadLetterTopic: "main.dlq", Schema: schema, KeyPath: "id"}
	revive := func(dry bool, text string) *Revived {
		t.Helper()
		if err := os.WriteFile(schema, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Revive(t.Context(), cfg, opts, dry)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	const strict = `{"type":"object","required":["n"],"properties":{"n":{"type":"integer"}}}`
	const loose = `{"type":"object","required":["n"]}`
	if r := revive(true, strict); r.Letters != 5 || r.Found != 1 || r.Replayed != 0 || r.Truncated != 1 || len(r.Failed) == 0 {
		t.Fatalf("%+v", r)
	}
	if r := revive(false, strict); r.Replayed != 1 {
		t.Fatalf("%+v", r)
	}
	if r := revive(false, strict); r.Replayed != 0 || r.Before != 1 || r.Letters != 5 {
		t.Fatalf("again: %+v", r)
	}
	if r := revive(false, loose); r.Replayed != 1 || r.Before != 1 {
		t.Fatalf("after the contract was loosened: %+v", r)
	}
	if r := revive(false, loose); r.Replayed != 0 || r.Before != 2 || r.Failed["missing"]+r.Failed["missing_required"]+r.Failed["schema"] > 3 {
		t.Fatalf("again: %+v", r)
	}
	// A replay that was overtaken publishes nothing.
	old := &reviver{cfg: cfg}
	if old.producer, err = kgo.NewClient(append(opts, kgo.TransactionalID("weir-dlq-i-main.dlq"))...); err != nil {
		t.Fatal(err)
	}
	defer old.producer.Close()
	if _, _, err := old.producer.ProducerID(t.Context()); err != nil {
		t.Fatal(err)
	}
	revive(false, loose)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	letter := &kgo.Record{Topic: "main.dlq", Partition: 1, Offset: 1, Value: []byte(`{"id":"c"}`)}
	if err := old.publish(ctx, []revival{{letter, &kgo.Record{Topic: "main", Value: letter.Value}}}); !failure.Is(err, failure.Unreachable) {
		t.Fatalf("an overtaken replay published: %v", err)
	}
	if got := committed(t, opts, "main", 2); len(got) != 2 || !strings.Contains(strings.Join(got, " "), `"a"`) || !strings.Contains(strings.Join(got, " "), `"b"`) {
		t.Fatalf("%v", got)
	}
}

// committed reads the first n records of a topic, and that no more come up to the
// end of a marker written after them.
func committed(t *testing.T, opts []kgo.Opt, topic string, n int) (out []string) {
	t.Helper()
	p, err := kgo.NewClient(append(opts, kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for part := range int32(2) {
		if err := p.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Partition: part, Value: []byte("end")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	c, err := kgo.NewClient(append(opts, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ends := 0; ends < 2 && ctx.Err() == nil; {
		c.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			if string(r.Value) == "end" {
				ends++
			} else {
				out = append(out, string(r.Value))
			}
		})
	}
	if ctx.Err() != nil {
		t.Fatalf("only %d of %d records: %v", len(out), n, out)
	}
	return out
}
