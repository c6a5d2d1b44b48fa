package kafka

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

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

// answer is a broker's answer to a fetch without records; fill makes of each
// partition what a test wants.
func answer(req kmsg.Request, fill func(*kmsg.FetchRequestTopicPartition, *kmsg.FetchResponseTopicPartition)) *kmsg.FetchResponse {
	resp := req.ResponseKind().(*kmsg.FetchResponse)
	for _, t := range req.(*kmsg.FetchRequest).Topics {
		rt := kmsg.NewFetchResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		for i := range t.Partitions {
			rp := kmsg.NewFetchResponseTopicPartition()
			rp.Partition = t.Partitions[i].Partition
			fill(&t.Partitions[i], &rp)
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
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
		hole := false
		resp := answer(req, func(asked *kmsg.FetchRequestTopicPartition, rp *kmsg.FetchResponseTopicPartition) {
			hole = hole || asked.FetchOffset >= 3
			rp.HighWatermark, rp.LastStableOffset = 13, 13
		})
		return resp, nil, hole
	})
	rows, res := mustRead(t, s, p.Start, end)
	wantValues(t, rows, numbered(0, 0, 3), numbered(1, 0, 3))
	if at, _ := res.End.Kafka.Get(topic, 0); at.NextOffset != 13 || at.LastOffset != 2 {
		t.Fatalf("end is %+v", at)
	}
}

// A leader that has just come to office may refuse an offset that it has a moment
// later. What counts is what the log holds.
func TestAnErrorOfAFetchIsSettledByWhatTheLogHolds(t *testing.T) {
	c := fake(t, 1)
	addr := c.ListenAddrs()[0]
	produce(t, client(t, addr), 0, 0, 6)
	s := newSource(t, addr)
	p := plan(t, s, initial(t, s), 0)
	var refused atomic.Bool
	c.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if refused.Swap(true) {
			return nil, nil, false
		}
		return answer(req, func(_ *kmsg.FetchRequestTopicPartition, rp *kmsg.FetchResponseTopicPartition) {
			rp.ErrorCode = kerr.OffsetOutOfRange.Code
		}), nil, true
	})
	rows, _ := mustRead(t, s, p.Start, p.End)
	wantValues(t, rows, numbered(0, 0, 6))
	if !refused.Load() {
		t.Fatal("no fetch was refused")
	}
}

// A broker that cuts an answer within its first batch, which Kafka never does, says
// nothing about what is there.
func TestAPartOfABatchIsNoProofThatNothingIsLeft(t *testing.T) {
	c := fake(t, 1)
	addr := c.ListenAddrs()[0]
	produce(t, client(t, addr), 0, 0, 6)
	s := newSource(t, addr)
	p := plan(t, s, initial(t, s), 0)
	var probes atomic.Int32
	c.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if req.(*kmsg.FetchRequest).MaxWaitMillis == probeWaitMs && probes.Add(1) > 2 || probes.Load() > 2 {
			return nil, nil, false
		}
		return answer(req, func(_ *kmsg.FetchRequestTopicPartition, rp *kmsg.FetchResponseTopicPartition) {
			rp.HighWatermark, rp.LastStableOffset = 6, 6
			rp.RecordBatches = make([]byte, 40)
			rp.RecordBatches[11], rp.RecordBatches[16] = 200, 2 // a batch of 200 bytes and more, of version 2
		}), nil, true
	})
	rows, _ := mustRead(t, s, p.Start, p.End)
	wantValues(t, rows, numbered(0, 0, 6))
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

// steppingClock passes the time of every sleep at once.
type steppingClock struct{ now time.Time }

func (c *steppingClock) Now() time.Time { return c.now }

func (c *steppingClock) Sleep(ctx context.Context, d time.Duration) error {
	c.now = c.now.Add(d)
	return ctx.Err()
}

func TestWhatIsWaitedForIsSaidOnceAndSoon(t *testing.T) {
	c := fake(t, 1)
	addr := c.ListenAddrs()[0]
	c.Close()
	s := newSource(t, addr)
	clk := &steppingClock{now: time.Unix(1_800_000_000, 0)}
	began, said := clk.now, time.Duration(-1)
	var log bytes.Buffer
	s.clk = clk
	s.log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	tries := 0
	err := s.retry(t.Context(), "read the cluster's metadata", func(context.Context) error {
		tries++
		if said < 0 && log.Len() > 0 {
			said = clk.now.Sub(began)
		}
		return errors.New("nobody answers")
	})
	wantClass(t, err, failure.Unreachable)
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, addr) || !strings.Contains(got, "2m0s") {
		t.Errorf("in %d tries it said %q", tries, got)
	}
	if said > 5*time.Second {
		t.Errorf("it was said after %s", said)
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
