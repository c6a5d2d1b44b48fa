package kafka

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
)

func TestARecreatedTopicIsNotReadOnAsTheOldOne(t *testing.T) {
	c := fake(t, 1)
	addr := c.ListenAddrs()[0]
	cl := client(t, addr)
	produce(t, cl, 0, 0, 10)
	s := newSource(t, addr)
	p := plan(t, s, initial(t, s), 5)
	_, res := mustRead(t, s, p.Start, p.End)
	p2 := plan(t, s, res.End, 0)
	recreate(t, cl, 1)
	fresh := client(t, addr)
	produce(t, fresh, 0, 100, 120)
	for name, f := range map[string]func() error{
		"read":         func() error { _, _, err := read(t.Context(), s, p2.Start, p2.End); return err },
		"read anew":    func() error { _, _, err := read(t.Context(), newSource(t, addr), p2.Start, p2.End); return err },
		"plan":         func() error { _, err := s.Plan(t.Context(), res.End, 0); return err },
		"empty verify": func() error { return verifyError(t, s, res.End) },
	} {
		err := f()
		if name == "read" && err == nil {
			continue // the records were fetched before the topic went: they are the old topic's
		}
		t.Log(name)
		wantClass(t, err, failure.SourceChanged)
		if !strings.Contains(err.Error(), "created again") {
			t.Errorf("%s: the error does not say what happened: %v", name, err)
		}
	}
}

func verifyError(t *testing.T, s *Source, pos batch.Position) error {
	t.Helper()
	v, err := s.Verify(t.Context(), pos)
	if err != nil {
		t.Fatal(err)
	}
	if len(v) == 0 {
		return nil
	}
	for _, x := range v {
		if x.Text == "" || x.Hint == "" {
			t.Errorf("violation without words: %+v", x)
		}
	}
	return changed(v)
}

func TestADeletedTopicAnotherClusterAndAShorterLogAreNamed(t *testing.T) {
	c := fake(t, 1)
	addr := c.ListenAddrs()[0]
	produce(t, client(t, addr), 0, 0, 10)
	s := newSource(t, addr)
	_, pos := drain(t, s, initial(t, s), 0)
	for _, tt := range []struct {
		text   string
		lost   bool
		mutate func(p *batch.KafkaPosition)
	}{
		{"cluster", false, func(p *batch.KafkaPosition) { p.ClusterID = "cluster-2" }},
		{"does not exist", false, func(p *batch.KafkaPosition) { p.Set("gone", "x", 0, fresh(0)) }},
		{"partition events-7 does not exist", false, func(p *batch.KafkaPosition) { p.Set(topic, "", 7, fresh(0)) }},
		{"created again", false, func(p *batch.KafkaPosition) { p.Set(topic, "other", 0, fresh(0)) }},
		{"[10, 15) was delivered", true, func(p *batch.KafkaPosition) {
			p.Set(topic, "", 0, batch.PartitionPosition{NextOffset: 15, LastOffset: -1, LeaderEpoch: -1})
		}},
		{"does not know leader epoch 9", true, func(p *batch.KafkaPosition) {
			p.Set(topic, "", 0, batch.PartitionPosition{NextOffset: 10, LastOffset: 9, LeaderEpoch: 9})
		}},
	} {
		bad := pos.Clone()
		tt.mutate(bad.Kafka)
		v, err := s.Verify(t.Context(), bad)
		if err != nil {
			t.Fatal(err)
		}
		if len(v) != 1 || !strings.Contains(v[0].Text, tt.text) || v[0].Lost != tt.lost || v[0].Retention || v[0].Hint == "" {
			t.Errorf("want a violation about %q, lost %v, got %+v", tt.text, tt.lost, v)
		}
		if tt.lost { // Plan does not ask for epochs on its first try
			continue
		}
		_, err = s.Plan(t.Context(), bad, 0)
		wantClass(t, err, failure.SourceChanged)
	}
	handed := pos.Clone()
	handed.Kafka.Set(topic, "", 3, batch.PartitionPosition{NextOffset: 5, HandedTo: "other query"})
	if v, err := s.Verify(t.Context(), handed); err != nil || len(v) > 0 {
		t.Errorf("a partition that was handed over is verified: %v %v", v, err)
	}
}

func TestATruncatedLogIsComparedWithTheRecordNotWithTheNextOffset(t *testing.T) {
	tp := batch.TopicPartition{Topic: topic, Partition: 0}
	at := batch.PartitionPosition{NextOffset: 13, LastOffset: 9, LeaderEpoch: 4} // 10-12: markers of later epochs
	for _, tt := range []struct {
		end int64
		bad bool
	}{{10, false}, {13, false}, {9, true}, {3, true}, {-1, true}} {
		v, bad := epochViolation(tp, at, kadm.OffsetForLeaderEpoch{LeaderEpoch: 4, EndOffset: tt.end})
		if bad != tt.bad || (bad && (!v.Lost || v.To != 10 || v.Text == "" || v.Hint == "")) {
			t.Errorf("epoch ends at %d: violation %v %+v, want %v", tt.end, bad, v, tt.bad)
		}
	}
}

func TestALeaderChangeMakesThePlanCompareTheLog(t *testing.T) {
	c := fake(t, 1, kfake.NumBrokers(2))
	addr := c.ListenAddrs()[0]
	produce(t, client(t, addr), 0, 0, 10)
	s := newSource(t, addr)
	_, pos := drain(t, s, initial(t, s), 0)
	if err := c.MoveTopicPartition(topic, 0, 1-c.LeaderFor(topic, 0)); err != nil {
		t.Fatal(err)
	}
	// The new leader's log is shorter than what was delivered, and has grown again.
	c.ControlKey(int16(kmsg.OffsetForLeaderEpoch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := req.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
		for _, t := range req.(*kmsg.OffsetForLeaderEpochRequest).Topics {
			rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
				rp.Partition, rp.LeaderEpoch, rp.EndOffset = p.Partition, p.LeaderEpoch, 6
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
	_, err := s.Plan(t.Context(), pos, 0)
	wantClass(t, err, failure.SourceChanged)
	if !strings.Contains(err.Error(), "truncated") {
		t.Errorf("the error does not speak of truncation: %v", err)
	}
}

func TestABrokerWithoutEpochsIsUnverifiedNotRefused(t *testing.T) {
	old := kversion.Stable()
	old.SetMaxKeyVersion(int16(kmsg.OffsetForLeaderEpoch), -1)
	c := fake(t, 1, kfake.MaxVersions(old))
	addr := c.ListenAddrs()[0]
	produce(t, client(t, addr), 0, 0, 10)
	s := newSource(t, addr)
	_, pos := drain(t, s, initial(t, s), 0)
	if v, err := s.Verify(t.Context(), pos); err != nil || len(v) > 0 {
		t.Fatalf("violations %v, error %v", v, err)
	}
	if !s.epochsTold {
		t.Error("nobody was told that truncation cannot be verified")
	}
}

func TestABrokerWithoutTopicIDsIsRead(t *testing.T) {
	c := fake(t, 2, kfake.MaxVersions(kversion.V2_3_0()))
	addr := c.ListenAddrs()[0]
	cl := client(t, addr)
	produce(t, cl, 0, 0, 10)
	s := newSource(t, addr)
	rows, pos := drain(t, s, initial(t, s), 3)
	wantValues(t, rows, numbered(0, 0, 10))
	if id := pos.Kafka.Topics[topic].ID; id != "" {
		t.Fatalf("topic id %q of a broker that has none", id)
	}
	if v, err := s.Verify(t.Context(), pos); err != nil || len(v) > 0 {
		t.Fatalf("violations %v, error %v", v, err)
	}
}

func TestAddedPartitionsStartAtZeroAndNewTopicsAtTheirLogStart(t *testing.T) {
	c := fake(t, 1)
	addr := c.ListenAddrs()[0]
	cl := client(t, addr)
	adm := kadm.NewClient(cl)
	produce(t, cl, 0, 0, 5)
	s := newSource(t, addr, func(c *Config) { c.Topics, c.TopicPattern = nil, "events.*" })
	_, pos := drain(t, s, initial(t, s), 0)
	if _, err := adm.CreatePartitions(t.Context(), 1, topic); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"events-2", "other-events"} {
		if _, err := adm.CreateTopic(t.Context(), 1, 1, nil, name); err != nil {
			t.Fatal(err)
		}
		r := &kgo.Record{Topic: name, Value: []byte(name)}
		if err := client(t, addr).ProduceSync(t.Context(), r, &kgo.Record{Topic: name, Value: []byte(name + "b")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := c.DeleteRecords(name, 0, 1); err != nil {
			t.Fatal(err)
		}
	}
	produce(t, client(t, addr), 1, 0, 4)
	p := plan(t, s, pos, 0)
	if at, ok := p.Start.Kafka.Get(topic, 1); !ok || at.NextOffset != 0 {
		t.Errorf("the added partition starts at %+v, want 0", at)
	}
	if at, ok := p.Start.Kafka.Get("events-2", 0); !ok || at.NextOffset != 1 {
		t.Errorf("the new topic starts at %+v, want its log start 1", at)
	}
	if !p.Start.SameOffsets(pos) {
		t.Errorf("the plan's start %s does not cover the position %s", p.Start, pos)
	}
	if at, ok := p.End.Kafka.Get("other-events", 0); ok {
		t.Errorf("a topic that does not match whole is planned: %+v", at)
	}
	rows, _ := drain(t, s, pos, 0)
	if got := values(rows); len(got) != 5 || !slices.Contains(got, "events-2b") || !slices.Contains(got, "1-3") {
		t.Fatalf("read %v", got)
	}
}

func TestThePartitionFilterHoldsForTheStartAndForLaterPartitions(t *testing.T) {
	c := fake(t, 4)
	addr := c.ListenAddrs()[0]
	cl := client(t, addr)
	for p := range int32(4) {
		produce(t, cl, p, 0, 3)
	}
	s := newSource(t, addr, func(c *Config) { c.Partitions = "0-1,3,8" })
	rows, pos := drain(t, s, initial(t, s), 0)
	wantValues(t, rows, numbered(0, 0, 3), numbered(1, 0, 3), numbered(3, 0, 3))
	if _, ok := pos.Kafka.Get(topic, 2); ok {
		t.Error("a filtered partition is in the position")
	}
	none := newSource(t, addr, func(c *Config) { c.Partitions = "9" })
	_, err := none.Initial(t.Context())
	wantClass(t, err, failure.Config)
}

func TestStartingOffsetsAreResolvedAsInSpark(t *testing.T) {
	c := fake(t, 2)
	addr := c.ListenAddrs()[0]
	cl := client(t, addr)
	for p := range int32(2) {
		for i := range 10 {
			r := &kgo.Record{Topic: topic, Partition: p, Value: []byte("v"), Timestamp: time.UnixMilli(int64(1000 * i))}
			if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	deleteRecords(t, cl, 0, 2)
	for _, tt := range []struct {
		name   string
		mutate func(*Config)
		want   [2]int64
		class  failure.Class
	}{
		{"default", func(*Config) {}, [2]int64{2, 0}, 0},
		{"earliest", func(c *Config) { c.StartingOffsets = "earliest" }, [2]int64{2, 0}, 0},
		{"latest", func(c *Config) { c.StartingOffsets = "latest" }, [2]int64{10, 10}, 0},
		{"json", func(c *Config) { c.StartingOffsets = `{"events":{"0":4,"1":-1}}` }, [2]int64{4, 10}, 0},
		{"json earliest", func(c *Config) { c.StartingOffsets = `{"events":{"0":-2,"1":7}}` }, [2]int64{2, 7}, 0},
		{"json below the log", func(c *Config) { c.StartingOffsets = `{"events":{"0":1,"1":7}}` }, [2]int64{}, failure.Config},
		{"json above the log", func(c *Config) { c.StartingOffsets = `{"events":{"0":2,"1":11}}` }, [2]int64{}, failure.Config},
		{"json forgets one", func(c *Config) { c.StartingOffsets = `{"events":{"0":4}}` }, [2]int64{}, failure.Config},
		{"json names a stranger", func(c *Config) { c.StartingOffsets = `{"events":{"0":4,"1":4,"2":4}}` }, [2]int64{}, failure.Config},
		{"timestamp", func(c *Config) { c.StartingTimestamp = "3500" }, [2]int64{4, 4}, 0},
		{"timestamp too late", func(c *Config) { c.StartingTimestamp = "99999" }, [2]int64{}, failure.Config},
		{"timestamp too late, latest", func(c *Config) {
			c.StartingTimestamp, c.StartingOffsetsByTimestampStrategy = "99999", "latest"
		}, [2]int64{10, 10}, 0},
		{"by timestamp", func(c *Config) { c.StartingOffsetsByTimestamp = `{"events":{"0":0,"1":9000}}` }, [2]int64{2, 9}, 0},
		{"by timestamp forgets one", func(c *Config) { c.StartingOffsetsByTimestamp = `{"events":{"0":0}}` }, [2]int64{}, failure.Config},
		{"no such topic", func(c *Config) { c.Topics = []string{"nope"} }, [2]int64{}, failure.Config},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pos, err := newSource(t, addr, tt.mutate).Initial(t.Context())
			if tt.class != 0 {
				wantClass(t, err, tt.class)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := [2]int64{next(pos, 0), next(pos, 1)}; got != tt.want {
				t.Errorf("starts at %v, want %v", got, tt.want)
			}
			if pos.Kafka.ClusterID != "cluster-1" || pos.Kafka.Topics[topic].ID != topicID(c.TopicInfo(topic).TopicID) {
				t.Errorf("identity is %+v", pos.Kafka)
			}
		})
	}
}

func TestEveryFaultOfTheConfigurationIsNamedAtOnce(t *testing.T) {
	_, err := New(Config{
		Topics: []string{"a", "a"}, TopicPattern: "(", Partitions: "5-2",
		StartingOffsets: `{"a":{"x":1}}`, StartingTimestamp: "soon", StartingOffsetsByTimestamp: "{",
		StartingOffsetsByTimestampStrategy: "maybe", UnreachableAfter: -1,
	}, nil, nil)
	wantClass(t, err, failure.Config)
	for _, part := range []string{"bootstrapServers", "exclude each other", "twice", "5-2", `"x"`, "soon", "startingOffsetsByTimestamp", "maybe", "only one of", "negative"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not name %q: %v", part, err)
		}
	}
}

func TestTheLimitIsSharedInProportionAndNeverExceeded(t *testing.T) {
	if got := share([]int64{1000, 10, 0}, 100); !slices.Equal(got, []int64{99, 1, 0}) {
		t.Errorf("1000 and 10 share 100 as %v", got)
	}
	if got := share([]int64{1 << 60, 1 << 60}, 1<<50); !slices.Equal(got, []int64{1 << 49, 1 << 49}) {
		t.Errorf("huge partitions overflow: %v", got)
	}
	const seed = 7
	rnd := rand.New(rand.NewPCG(seed, seed))
	for range 2000 {
		available := make([]int64, 1+rnd.IntN(9))
		var total int64
		for i := range available {
			available[i] = rnd.Int64N(1 + rnd.Int64N(1_000_000))
			total += available[i]
		}
		limit := rnd.Int64N(1 + rnd.Int64N(2_000_000))
		var sum int64
		for i, n := range share(available, limit) {
			if n < 0 || n > available[i] {
				t.Fatalf("seed %d: share %d of %d", seed, n, available[i])
			}
			sum += n
		}
		want := total
		if limit > 0 {
			want = min(limit, total)
		}
		if sum != want {
			t.Fatalf("seed %d: %v shared with limit %d give %d, want %d", seed, available, limit, sum, want)
		}
	}
}

func ExampleSource_Plan() {
	fmt.Println(share([]int64{300, 100}, 100))
	// Output: [75 25]
}
