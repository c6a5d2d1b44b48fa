package kafka

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/kafkatest"
)

// probeMax is a safety net.
const probeMax = 2 * time.Minute

func TestAProbeMakesNoTopicAndTakesNoTransactionalID(t *testing.T) {
	k, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	probeLeavesNothing(t, k.ListenAddrs()[0])
}

func TestAProbeOfApacheKafkaMakesNoTopicAndTakesNoTransactionalID(t *testing.T) {
	probeLeavesNothing(t, kafkatest.Start(t).Bootstrap())
}

func probeLeavesNothing(t *testing.T, bootstrap string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), probeMax)
	defer cancel()
	c := cluster{bootstrap, "probed"}
	s, err := New(Options{Client: []kgo.Opt{kgo.SeedBrokers(bootstrap)}, Topic: c.topic, Query: "q", Arrow: idSchema, Clock: clock.System{}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	topics := func() []string {
		all, err := kadm.NewClient(c.client(t)).ListTopics(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return all.Names()
	}
	if err := s.Probe(ctx); err != nil {
		t.Errorf("nothing is there yet: %v", err)
	}
	if got := topics(); slices.Contains(got, s.opts.Topic) || slices.Contains(got, s.markerTopic()) {
		t.Errorf("it made one of the topics: %v", got)
	}
	// A claim holds the transactional id, and commits with it after a probe.
	if _, err := s.ensure(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.take(ctx); err != nil {
		t.Fatal(err)
	}
	other, err := New(s.opts)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Probe(ctx); err != nil {
		t.Errorf("beside a running query: %v", err)
	}
	if err := s.producer.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := s.producer.ProduceSync(ctx, &kgo.Record{Topic: s.opts.Topic, Value: []byte("x")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := s.end(ctx); err != nil {
		t.Errorf("the probe took the transactional id: %v", err)
	}
}

func TestAProbeOfABrokerThatIsGoneSaysThatItIsOutOfReach(t *testing.T) {
	k, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	bootstrap := k.ListenAddrs()[0]
	k.Close()
	ctx, cancel := context.WithTimeout(context.Background(), probeMax)
	defer cancel()
	s, err := New(Options{Client: []kgo.Opt{kgo.SeedBrokers(bootstrap), kgo.RequestRetries(1)}, Topic: "probed", Query: "q", Arrow: idSchema, Clock: clock.System{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Probe(ctx); !failure.Is(err, failure.Unreachable) {
		t.Errorf("a broker that is gone: %v", err)
	}
}
