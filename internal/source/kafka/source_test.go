package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/source"
)

func TestEveryRecordComesOnceAcrossBatchesOfAnySize(t *testing.T) {
	c := fake(t, 3)
	addr := c.ListenAddrs()[0]
	cl := client(t, addr)
	for p, n := range []int{1000, 70, 0} {
		produce(t, cl, int32(p), 0, n)
	}
	for _, limit := range []int64{0, 1, 7, 333, 5000} {
		if limit == 1 && testing.Short() {
			continue
		}
		s := newSource(t, addr)
		rows, end := drain(t, s, initial(t, s), limit)
		wantValues(t, rows, numbered(0, 0, 1000), numbered(1, 0, 70))
		at, _ := end.Kafka.Get(topic, 0)
		if at.Rows != 1000 || at.LastOffset != 999 || at.LeaderEpoch < 0 || at.NextOffset != 1000 {
			t.Fatalf("limit %d: end of partition 0 is %+v", limit, at)
		}
		if at, _ := end.Kafka.Get(topic, 2); at.LastOffset != -1 || at.Rows != 0 {
			t.Fatalf("end of the empty partition is %+v", at)
		}
	}
}

func TestTheSameRangeGivesTheSameRowsHoweverOftenItIsRead(t *testing.T) {
	c := fake(t, 2)
	addr := c.ListenAddrs()[0]
	cl := client(t, addr)
	produce(t, cl, 0, 0, 50)
	produce(t, cl, 1, 0, 50)
	s := newSource(t, addr)
	p := plan(t, s, initial(t, s), 60)
	first, res := mustRead(t, s, p.Start, p.End)
	produce(t, cl, 0, 50, 60)
	for range 2 {
		again, res2 := mustRead(t, s, p.Start, p.End)
		if !reflect.DeepEqual(values(first), values(again)) || !reflect.DeepEqual(res.End, res2.End) {
			t.Fatalf("read again: %v to %+v, first %v to %+v", values(again), res2.End, values(first), res.End)
		}
	}
	other, _ := mustRead(t, newSource(t, addr), p.Start, p.End)
	if !reflect.DeepEqual(values(first), values(other)) {
		t.Fatal("another instance reads other rows in the same range")
	}
}

func TestABatchThatGoesOnWhereTheLastEndedKeepsTheConsumer(t *testing.T) {
	c := fake(t, 1)
	addr := c.ListenAddrs()[0]
	cl := client(t, addr)
	produce(t, cl, 0, 0, 100)
	s := newSource(t, addr)
	p := plan(t, s, initial(t, s), 10)
	_, res := mustRead(t, s, p.Start, p.End)
	kept := s.reader
	p2 := plan(t, s, res.End, 10)
	rows, _ := mustRead(t, s, p2.Start, p2.End)
	wantValues(t, rows, numbered(0, 10, 20))
	if s.reader != kept {
		t.Error("the consumer was made anew although the batch goes on where it stands")
	}
	rows, _ = mustRead(t, s, p.Start, p.End) // a rerun of the first
	wantValues(t, rows, numbered(0, 0, 10))
	if s.reader == kept {
		t.Error("a read that starts elsewhere used a consumer that stands ahead of it")
	}
}

func TestAFailedEmitLeavesNothingBehindThatALaterReadWouldSkip(t *testing.T) {
	c := fake(t, 2)
	addr := c.ListenAddrs()[0]
	cl := client(t, addr)
	produce(t, cl, 0, 0, 100)
	produce(t, cl, 1, 0, 100)
	s := newSource(t, addr)
	p := plan(t, s, initial(t, s), 0)
	broken := errors.New("disk full")
	_, err := s.Read(t.Context(), p.Start, p.End, source.ReadEnv{}, func(rec arrow.RecordBatch) error {
		rec.Release()
		return broken
	})
	if !errors.Is(err, broken) {
		t.Fatalf("error %v, want the sink's own", err)
	}
	rows, _ := mustRead(t, s, p.Start, p.End)
	wantValues(t, rows, numbered(0, 0, 100), numbered(1, 0, 100))
}

func TestTombstonesNullKeysAndHeadersAreKeptAsTheyAre(t *testing.T) {
	c := fake(t, 1)
	addr := c.ListenAddrs()[0]
	cl := client(t, addr)
	at := time.UnixMilli(1_700_000_000_123)
	in := []*kgo.Record{
		{Key: nil, Value: []byte("v"), Timestamp: at},
		{Key: []byte("k"), Value: nil, Timestamp: at},
		{Key: []byte{}, Value: []byte{}, Timestamp: at},
		{Value: []byte{0, 0xff}, Timestamp: at, Headers: []kgo.RecordHeader{
			{Key: "a", Value: []byte("1")}, {Key: "a", Value: nil}, {Key: "b\xff", Value: []byte{}}, {Key: "", Value: []byte("x")}}},
	}
	for _, r := range in {
		r.Topic = topic
	}
	if err := cl.ProduceSync(t.Context(), in...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	s := newSource(t, addr)
	rows, _ := drain(t, s, initial(t, s), 0)
	str := func(s string) *string { return &s }
	want := []row{
		{key: nil, value: str("v")},
		{key: str("k"), value: nil},
		{key: str(""), value: str("")},
		{value: str("\x00\xff"), headers: []header{{"a", str("1")}, {"a", nil}, {"b\uFFFD", str("")}, {"", str("x")}}},
	}
	id := topicID(c.TopicInfo(topic).TopicID)
	for i := range want {
		want[i].topic, want[i].topicID, want[i].offset = topic, id, int64(i)
		want[i].micros, want[i].made = at.UnixMicro(), 42
	}
	if !reflect.DeepEqual(rows, want) {
		t.Fatalf("got  %+v\nwant %+v", rows, want)
	}
}

func TestTimestampsOutsideTheNanosecondRangeAreNotWrapped(t *testing.T) {
	for _, ms := range []int64{0, 1, -1, 1_700_000_000_123, 253402300799000, -62135596800000, 9223372036855, -9223372036856} {
		if got := microsOf(time.Unix(0, ms*1e6)); got != ms*1000 {
			t.Errorf("%d ms became %d µs", ms, got)
		}
	}
	if got := microsOf(time.Unix(0, wrapped(1<<56))); got != math.MaxInt64/1000*1000 {
		t.Errorf("a time beyond microseconds became %d", got)
	}
	// And the client still hands them on that way.
	year9999 := int64(253402300799000)
	b := kmsg.NewRecordBatch()
	b.Magic, b.FirstTimestamp, b.MaxTimestamp, b.NumRecords = 2, year9999, year9999, 1
	b.Records = []byte{12, 0, 0, 0, 1, 1, 0} // one record without key, value and headers
	raw := b.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
	fp, _ := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{DisableCRCValidation: true},
		&kmsg.FetchResponseTopicPartition{RecordBatches: raw}, kgo.DefaultDecompressor(), nil)
	if fp.Err != nil || len(fp.Records) != 1 || microsOf(fp.Records[0].Timestamp) != year9999*1000 {
		t.Fatalf("the year 9999 became %+v (%v)", fp.Records, fp.Err)
	}
}

// wrapped multiplies as kgo does, wrapping around.
func wrapped(ms int64) int64 { return ms * 1e6 }

func TestAMarkerAtTheEndOfTheRangeDoesNotHangTheRead(t *testing.T) {
	c := fake(t, 1)
	addr := c.ListenAddrs()[0]
	cl := client(t, addr, kgo.TransactionalID("t"))
	transaction(t, cl, 0, 0, 5, kgo.TryCommit) // 0-4, marker 5
	transaction(t, cl, 0, 5, 9, kgo.TryAbort)  // 6-9, marker 10
	transaction(t, cl, 0, 9, 11, kgo.TryCommit)
	for _, limit := range []int64{0, 1, 2, 6, 11} {
		s := newSource(t, addr)
		rows, end := drain(t, s, initial(t, s), limit)
		wantValues(t, rows, numbered(0, 0, 5), numbered(0, 9, 11))
		if at, _ := end.Kafka.Get(topic, 0); at.NextOffset != 14 || at.LastOffset != 12 || at.Rows != 7 {
			t.Fatalf("limit %d: end is %+v, want 14 after the last record 12", limit, at)
		}
		if v, err := s.Verify(t.Context(), end); err != nil || len(v) > 0 {
			t.Fatalf("a position behind a marker is refused: %v %v", v, err)
		}
	}
}

func TestAPlanStopsBeforeAnOpenTransaction(t *testing.T) {
	c := fake(t, 1)
	addr := c.ListenAddrs()[0]
	cl := client(t, addr, kgo.TransactionalID("t"))
	other := client(t, addr)
	produce(t, other, 0, 0, 3)
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	produce(t, cl, 0, 3, 5)
	produce(t, other, 0, 5, 8)
	s := newSource(t, addr)
	rows, pos := drain(t, s, initial(t, s), 0)
	wantValues(t, rows, numbered(0, 0, 3))
	if err := cl.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	rows, _ = drain(t, s, pos, 0)
	wantValues(t, rows, numbered(0, 5, 8))
}

func TestARangeWhoseEndWasCompactedAwayIsReadToItsEnd(t *testing.T) {
	c := fake(t, 1)
	addr := c.ListenAddrs()[0]
	cl := client(t, addr)
	compact, zero := "compact", "0"
	if err := c.DeleteTopic(topic); err != nil {
		t.Fatal(err)
	}
	if err := c.CreateTopic(topic, 1, map[string]string{"cleanup.policy": compact, "delete.retention.ms": zero, "segment.bytes": "1"}); err != nil {
		t.Fatal(err)
	}
	put := func(key string, value []byte) {
		t.Helper()
		r := &kgo.Record{Topic: topic, Key: []byte(key), Value: value}
		if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	put("a", []byte("keep"))
	put("b", []byte("gone"))
	put("b", nil)
	s := newSource(t, addr)
	p := plan(t, s, initial(t, s), 0)
	put("active", []byte("active")) // the last batch is never compacted
	c.Compact()
	c.Compact()
	rows, res := mustRead(t, s, p.Start, p.End)
	if got := values(rows); !slices.Equal(got, []string{"keep"}) {
		t.Fatalf("the compacted log gave %v (this test needs the tombstone at the end to be gone)", got)
	}
	put("c", []byte("next"))
	rows, _ = drain(t, s, res.End, 0)
	if got := values(rows); !slices.Equal(got, []string{"active", "next"}) {
		t.Fatalf("after the hole came %v", got)
	}
}

func TestAHoleAtTheVeryEndOfTheLogDoesNotHangTheRead(t *testing.T) {
	c := fake(t, 2)
	addr := c.ListenAddrs()[0]
	cl := client(t, addr)
	produce(t, cl, 0, 0, 3)
	produce(t, cl, 1, 0, 3)
	s := newSource(t, addr)
	p := plan(t, s, initial(t, s), 0)
	// Nothing but the log's end tells that offsets 10 to 12 of partition 0 were.
	end := p.End.Clone()
	end.Kafka.Set(topic, "", 0, batch.PartitionPosition{NextOffset: 13})
	c.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		hole := false
		for _, t := range req.(*kmsg.FetchRequest).Topics {
			rt := kmsg.NewFetchResponseTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			for _, p := range t.Partitions {
				hole = hole || p.FetchOffset >= 3
				rp := kmsg.NewFetchResponseTopicPartition()
				rp.Partition, rp.HighWatermark, rp.LastStableOffset = p.Partition, 13, 13
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, hole
	})
	rows, res := mustRead(t, s, p.Start, end)
	wantValues(t, rows, numbered(0, 0, 3), numbered(1, 0, 3))
	if at, _ := res.End.Kafka.Get(topic, 0); at.NextOffset != 13 || at.LastOffset != 2 {
		t.Fatalf("end is %+v", at)
	}
}

func TestRetentionThatOvertakesAPlanIsFoundWhileReading(t *testing.T) {
	c := fake(t, 2)
	addr := c.ListenAddrs()[0]
	cl := client(t, addr)
	produce(t, cl, 0, 0, 100)
	produce(t, cl, 1, 0, 100)
	s := newSource(t, addr)
	p := plan(t, s, initial(t, s), 0)
	deleteRecords(t, cl, 1, 30)
	_, _, err := read(t.Context(), s, p.Start, p.End)
	wantClass(t, err, failure.SourceChanged)
	if !strings.Contains(err.Error(), topic+"-1") || !strings.Contains(err.Error(), "[0, 30)") {
		t.Errorf("the error does not name partition and range: %v", err)
	}
	// The next start finds the same, and so does a plan.
	v, err := s.Verify(t.Context(), p.Start)
	if err != nil || len(v) != 1 || !v[0].Retention || !v[0].Lost || v[0].Partition != 1 || v[0].From != 0 || v[0].To != 30 {
		t.Fatalf("Verify says %+v, %v", v, err)
	}
	_, err = s.Plan(t.Context(), p.Start, 0)
	wantClass(t, err, failure.SourceChanged)

	tolerant := newSource(t, addr, func(c *Config) { c.TolerateDataLoss = true })
	if v, err := tolerant.Verify(t.Context(), p.Start); err != nil || len(v) > 0 {
		t.Fatalf("failOnDataLoss: false still says %+v, %v", v, err)
	}
	for _, at := range []batch.Position{p.Start, plan(t, tolerant, p.Start, 0).Start} {
		rows, _ := mustRead(t, tolerant, at, p.End)
		wantValues(t, rows, numbered(0, 0, 100), numbered(1, 30, 100))
	}
	rows, _ := drain(t, tolerant, p.Start, 37)
	wantValues(t, rows, numbered(0, 0, 100), numbered(1, 30, 100))
}

func TestRetentionDuringAReadIsForgivenOnlyWhenAsked(t *testing.T) {
	c := fake(t, 1)
	addr := c.ListenAddrs()[0]
	cl := client(t, addr)
	produce(t, cl, 0, 0, 10)
	s := newSource(t, addr, func(c *Config) { c.TolerateDataLoss = true })
	_, pos := drain(t, s, initial(t, s), 0)
	produce(t, cl, 0, 10, 12)
	p := plan(t, s, pos, 0)
	s.dropReader()
	deleteRecords(t, cl, 0, 12)
	rows, res := mustRead(t, s, p.Start, p.End)
	if len(rows) != 0 || next(res.End, 0) != 12 {
		t.Fatalf("everything of the range is gone, but %d rows came and the end is %s", len(rows), res.End)
	}
}

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

func TestAnAbsentBrokerIsUnreachableAfterTheDeadline(t *testing.T) {
	c := fake(t, 1)
	addr := c.ListenAddrs()[0]
	produce(t, client(t, addr), 0, 0, 5)
	s := newSource(t, addr, func(c *Config) { c.UnreachableAfter = 600 * time.Millisecond })
	p := plan(t, s, initial(t, s), 0)
	c.Close()
	_, err := s.Plan(t.Context(), p.Start, 0)
	wantClass(t, err, failure.Unreachable)
	_, _, err = read(t.Context(), s, p.Start, p.End)
	wantClass(t, err, failure.Unreachable)
	if !strings.Contains(err.Error(), addr) || !strings.Contains(err.Error(), "hint") {
		t.Errorf("the error names neither broker nor way out: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Plan(ctx, p.Start, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled plan ends with %v", err)
	}
}

func TestABrokerThatGoesDuringAReadIsUnreachableAfterTheDeadline(t *testing.T) {
	c := fake(t, 1)
	addr := c.ListenAddrs()[0]
	produce(t, client(t, addr), 0, 0, 5)
	s := newSource(t, addr, func(c *Config) { c.UnreachableAfter = 600 * time.Millisecond })
	p := plan(t, s, initial(t, s), 2)
	_, res := mustRead(t, s, p.Start, p.End)
	end := res.End.Clone()
	end.Kafka.Set(topic, "", 0, batch.PartitionPosition{NextOffset: 50})
	c.Close()
	_, _, err := read(t.Context(), s, res.End, end)
	wantClass(t, err, failure.Unreachable)
}

func TestAValueOf20MiBPasses(t *testing.T) {
	c := fake(t, 1)
	addr := c.ListenAddrs()[0]
	cl := client(t, addr)
	produce(t, cl, 0, 0, 3)
	big := strings.Repeat("x", 20<<20)
	if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte(big)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	produce(t, cl, 0, 4, 6)
	s := newSource(t, addr)
	rows, _ := drain(t, s, initial(t, s), 0)
	wantValues(t, rows, numbered(0, 0, 3), []string{big}, numbered(0, 4, 6))
}

func TestWaitEndsWhenSomethingIsNew(t *testing.T) {
	c := fake(t, 1)
	addr := c.ListenAddrs()[0]
	cl := client(t, addr)
	produce(t, cl, 0, 0, 5)
	s := newSource(t, addr)
	start := initial(t, s)
	if err := s.Wait(t.Context(), start); err != nil {
		t.Fatal(err)
	}
	_, pos := drain(t, s, start, 0)
	for i := range 3 {
		done := make(chan error, 1)
		go func() {
			for {
				if err := s.Wait(t.Context(), pos); err != nil {
					done <- err
					return
				}
				if p, err := s.Plan(t.Context(), pos, 0); err != nil || p.Start.Offsets(p.End) > 0 {
					done <- err
					return
				}
			}
		}()
		produce(t, cl, 0, 5+i, 6+i)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		_, pos = drain(t, s, pos, 0)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Wait(ctx, pos); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled wait ends with %v", err)
	}
}

func TestReportShowsThePositionToLagTools(t *testing.T) {
	c := fake(t, 1)
	addr := c.ListenAddrs()[0]
	cl := client(t, addr)
	produce(t, cl, 0, 0, 5)
	s := newSource(t, addr, func(c *Config) { c.GroupID = "weir-bronze" })
	_, pos := drain(t, s, initial(t, s), 0)
	if err := s.Report(t.Context(), pos); err != nil {
		t.Fatal(err)
	}
	got, err := kadm.NewClient(cl).FetchOffsets(t.Context(), "weir-bronze")
	if err != nil {
		t.Fatal(err)
	}
	if o, ok := got.Lookup(topic, 0); !ok || o.At != 5 {
		t.Fatalf("the group stands at %+v", o)
	}
	if err := newSource(t, addr).Report(t.Context(), pos); err != nil {
		t.Errorf("a source without a group cannot report: %v", err)
	}
}

func TestAPartitionFarAheadIsHeldBackWhileOthersCatchUp(t *testing.T) {
	c := fake(t, 2, kfake.NumBrokers(2))
	addr := c.ListenAddrs()[0]
	if err := c.MoveTopicPartition(topic, 1, 1-c.LeaderFor(topic, 0)); err != nil {
		t.Fatal(err)
	}
	cl := client(t, addr, kgo.ProducerBatchCompression(kgo.NoCompression()))
	value := []byte(strings.Repeat("x", 1<<20))
	for range 64 {
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Partition: 0, Value: value}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	produce(t, cl, 1, 0, 2)
	s := newSource(t, addr)
	start := initial(t, s)
	end := start.Clone()
	end.Kafka.Set(topic, "", 0, batch.PartitionPosition{NextOffset: 1})
	end.Kafka.Set(topic, "", 1, batch.PartitionPosition{NextOffset: 3}) // not there yet
	go func() {
		time.Sleep(1500 * time.Millisecond)
		produce(t, cl, 1, 2, 3)
	}()
	rows, res := mustRead(t, s, start, end)
	if len(rows) != 4 {
		t.Fatalf("%d rows", len(rows))
	}
	kept := s.reader.parts[batch.TopicPartition{Topic: topic, Partition: 0}].pendingBytes
	if most := int64(pendingBytesMax + 2*fetchBytesTotal); kept > most {
		t.Errorf("%d bytes are kept beyond the end, want at most %d", kept, most)
	}
	p := plan(t, s, res.End, 0)
	rows, _ = mustRead(t, s, p.Start, p.End)
	if len(rows) != 63 {
		t.Fatalf("after the pause came %d rows, want 63", len(rows))
	}
}

func TestTheBrokerSendingAnOffsetTwiceIsAnErrorNotADuplicate(t *testing.T) {
	p := &partition{tp: batch.TopicPartition{Topic: topic}, fetched: 5, end: 100, last: -1}
	for _, offsets := range [][]int64{{4}, {5, 5}, {6, 5}} {
		q := *p
		var rs []*kgo.Record
		for _, o := range offsets {
			rs = append(rs, &kgo.Record{Offset: o, Timestamp: time.UnixMilli(0)})
		}
		if err := q.accept(rs); err == nil {
			t.Errorf("offsets %v at 5 were accepted", offsets)
		}
	}
}

func ExampleSource_Plan() {
	fmt.Println(share([]int64{300, 100}, 100))
	// Output: [75 25]
}
