package kafka

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/kafkatest"
	"github.com/weirlake/weir/internal/source"
	"github.com/weirlake/weir/internal/source/sourcetest"
)

// realTopic makes the topic anew on a real broker.
func realTopic(t *testing.T, b *kafkatest.Broker, partitions int32, configs map[string]*string) *kgo.Client {
	t.Helper()
	cl := client(t, b.Bootstrap())
	adm := kadm.NewClient(cl)
	_, _ = adm.DeleteTopic(t.Context(), topic) // absent the first time
	for try := 0; ; try++ {
		_, err := adm.CreateTopic(t.Context(), partitions, 1, configs, topic)
		if err == nil {
			break
		}
		if try == 50 {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return client(t, b.Bootstrap()) // knows nothing of the topic before
}

// On a real Apache Kafka, what the embedded broker cannot be trusted with.
func TestOnRealKafka(t *testing.T) {
	b := kafkatest.Start(t,
		"message.max.bytes=33554432",
		"log.cleaner.backoff.ms=100",
		"log.cleaner.dedupe.buffer.size=1200000",
	)
	for _, tt := range []struct {
		name string
		f    func(*testing.T, *kafkatest.Broker)
	}{
		{"MarkersAtTheEndOfTheRangeDoNotHangTheReadAndAbortedRecordsStayAway", realMarkers},
		{"APlanStopsBeforeAnOpenTransaction", realOpenTransaction},
		{"ARangeThatCompactionEmptiedIsReadToItsEnd", realCompaction},
		{"RetentionBetweenPlanAndReadIsSourceChanged", realRetention},
		{"ARecreatedTopicIsSourceChanged", realRecreated},
		{"AddedPartitionsAreReadFromZero", realAdded},
		{"AValueOf20MiBPasses", realLarge},
		{"AFrozenBrokerOnlyDelaysARead", realPaused},
		{"KillingTheBrokerDuringAReadLosesAndRepeatsNothing", realKilled},
		{"ATruncatedLogThatGrewAgainIsFound", realTruncated},
		{"ConformsToTheSourceInterface", func(t *testing.T, b *kafkatest.Broker) {
			sourcetest.Run(t, sourcetest.Harness{Overrun: 1, New: func(t *testing.T, partitions int32) sourcetest.Upstream {
				return &upstream{addr: b.Bootstrap(), cl: realTopic(t, b, partitions, nil)}
			}})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.f(t, b) })
	}
}

// stable waits until the markers of ended transactions are written: a real
// broker acknowledges the end of a transaction before.
func stable(t *testing.T, b *kafkatest.Broker) {
	t.Helper()
	adm := kadm.NewClient(client(t, b.Bootstrap()))
	for range 100 {
		ends, err1 := adm.ListEndOffsets(t.Context(), topic)
		stables, err2 := adm.ListCommittedOffsets(t.Context(), topic)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		behind := false
		ends.Each(func(o kadm.ListedOffset) {
			at, _ := stables.Lookup(o.Topic, o.Partition)
			behind = behind || at.Offset < o.Offset
		})
		if !behind {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("a transaction stays open")
}

func realMarkers(t *testing.T, b *kafkatest.Broker) {
	realTopic(t, b, 1, nil)
	cl := client(t, b.Bootstrap(), kgo.TransactionalID("markers"))
	transaction(t, cl, 0, 0, 5, kgo.TryCommit) // 0-4, marker 5
	transaction(t, cl, 0, 5, 9, kgo.TryAbort)  // 6-9, marker 10
	transaction(t, cl, 0, 9, 11, kgo.TryCommit)
	stable(t, b)
	for _, limit := range []int64{0, 1, 6, 11} {
		s := newSource(t, b.Bootstrap())
		rows, end := drain(t, s, initial(t, s), limit)
		wantValues(t, rows, numbered(0, 0, 5), numbered(0, 9, 11))
		if at, _ := end.Kafka.Get(topic, 0); at.NextOffset != 14 || at.LastOffset != 12 {
			t.Fatalf("limit %d: end is %+v, want 14 after the last record 12", limit, at)
		}
		if v, err := s.Verify(t.Context(), end); err != nil || len(v) > 0 {
			t.Fatalf("a position behind a marker is refused: %v %v", v, err)
		}
	}
}

func realOpenTransaction(t *testing.T, b *kafkatest.Broker) {
	other := realTopic(t, b, 1, nil)
	cl := client(t, b.Bootstrap(), kgo.TransactionalID("open"))
	produce(t, other, 0, 0, 3)
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	produce(t, cl, 0, 3, 5)
	produce(t, other, 0, 5, 8)
	s := newSource(t, b.Bootstrap())
	rows, pos := drain(t, s, initial(t, s), 0)
	wantValues(t, rows, numbered(0, 0, 3))
	if err := cl.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	stable(t, b)
	rows, _ = drain(t, s, pos, 0)
	wantValues(t, rows, numbered(0, 3, 5), numbered(0, 5, 8))
}

func realCompaction(t *testing.T, b *kafkatest.Broker) {
	conf := func(v string) *string { return &v }
	cl := realTopic(t, b, 1, map[string]*string{
		"cleanup.policy": conf("compact"), "delete.retention.ms": conf("0"), "segment.ms": conf("50"),
		"min.cleanable.dirty.ratio": conf("0.001"), "min.compaction.lag.ms": conf("0"),
	})
	put := func(key, value string) {
		t.Helper()
		r := &kgo.Record{Topic: topic, Key: []byte(key), Value: []byte(value)}
		if value == "" {
			r.Value = nil
		}
		if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(60 * time.Millisecond) // each record in a segment of its own
	}
	put("a", "keep")
	put("b", "gone")
	put("b", "")
	put("b", "")
	put("c", "after")
	s := newSource(t, b.Bootstrap())
	start := initial(t, s)
	p := plan(t, s, start, 4)
	for range 150 { // until the cleaner has removed every trace of b
		put("d", "active")
		rows, _ := drain(t, newSource(t, b.Bootstrap()), start, 0)
		if v := values(rows); len(v) < 5 && !slices.Contains(v, "<null>") && !slices.Contains(v, "gone") {
			break
		}
	}
	rows, res := mustRead(t, s, p.Start, p.End)
	if got := values(rows); !slices.Equal(got, []string{"keep"}) {
		t.Fatalf("the compacted range gave %v", got)
	}
	if at, _ := res.End.Kafka.Get(topic, 0); at.NextOffset != 4 || at.LastOffset != 0 {
		t.Fatalf("end is %+v", at)
	}
	// And where nothing at all is left in the range.
	mid := batch.Position{Kafka: res.End.Kafka.Clone()}
	mid.Kafka.Set(topic, "", 0, batch.PartitionPosition{NextOffset: 1, LastOffset: 0})
	if rows, _ := mustRead(t, newSource(t, b.Bootstrap()), mid, res.End); len(rows) != 0 {
		t.Fatalf("an emptied range gave %v", values(rows))
	}
}

func realRetention(t *testing.T, b *kafkatest.Broker) {
	cl := realTopic(t, b, 2, nil)
	produce(t, cl, 0, 0, 50)
	produce(t, cl, 1, 0, 50)
	s := newSource(t, b.Bootstrap())
	p := plan(t, s, initial(t, s), 0)
	deleteRecords(t, cl, 1, 30)
	_, _, err := read(t.Context(), s, p.Start, p.End)
	wantClass(t, err, failure.SourceChanged)
	if !strings.Contains(err.Error(), topic+"-1") || !strings.Contains(err.Error(), "[0, 30)") {
		t.Errorf("the error does not name partition and range: %v", err)
	}
	tolerant := newSource(t, b.Bootstrap(), func(c *Config) { c.TolerateDataLoss = true })
	rows, _ := mustRead(t, tolerant, p.Start, p.End)
	wantValues(t, rows, numbered(0, 0, 50), numbered(1, 30, 50))
}

func realRecreated(t *testing.T, b *kafkatest.Broker) {
	cl := realTopic(t, b, 1, nil)
	produce(t, cl, 0, 0, 10)
	s := newSource(t, b.Bootstrap())
	p := plan(t, s, initial(t, s), 5)
	_, res := mustRead(t, s, p.Start, p.End)
	p2 := plan(t, s, res.End, 0)
	produce(t, realTopic(t, b, 1, nil), 0, 100, 120)
	for name, f := range map[string]func() error{
		"read": func() error {
			_, _, err := read(t.Context(), newSource(t, b.Bootstrap()), p2.Start, p2.End)
			return err
		},
		"plan":   func() error { _, err := s.Plan(t.Context(), res.End, 0); return err },
		"verify": func() error { return verifyError(t, s, res.End) },
	} {
		t.Log(name)
		wantClass(t, f(), failure.SourceChanged)
	}
}

func realAdded(t *testing.T, b *kafkatest.Broker) {
	cl := realTopic(t, b, 1, nil)
	produce(t, cl, 0, 0, 5)
	s := newSource(t, b.Bootstrap())
	_, pos := drain(t, s, initial(t, s), 0)
	if _, err := kadm.NewClient(cl).CreatePartitions(t.Context(), 1, topic); err != nil {
		t.Fatal(err)
	}
	produce(t, client(t, b.Bootstrap()), 1, 0, 4)
	produce(t, cl, 0, 5, 7)
	rows, pos := drain(t, s, pos, 0)
	wantValues(t, rows, numbered(0, 5, 7), numbered(1, 0, 4))
	if next(pos, 1) != 4 {
		t.Fatalf("position %s", pos)
	}
}

func realLarge(t *testing.T, b *kafkatest.Broker) {
	cl := realTopic(t, b, 1, nil)
	produce(t, cl, 0, 0, 3)
	big := strings.Repeat("x", 20<<20)
	none := client(t, b.Bootstrap(), kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err := none.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte(big)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	produce(t, cl, 0, 4, 6)
	s := newSource(t, b.Bootstrap())
	rows, _ := drain(t, s, initial(t, s), 0)
	wantValues(t, rows, numbered(0, 0, 3), []string{big}, numbered(0, 4, 6))
}

func realPaused(t *testing.T, b *kafkatest.Broker) {
	cl := realTopic(t, b, 2, nil)
	produce(t, cl, 0, 0, 2000)
	produce(t, cl, 1, 0, 2000)
	s := newSource(t, b.Bootstrap())
	p := plan(t, s, initial(t, s), 1000)
	rows, res := mustRead(t, s, p.Start, p.End)
	p = plan(t, s, res.End, 0)
	b.Pause()
	go func() {
		time.Sleep(2 * time.Second)
		b.Resume()
	}()
	more, _ := mustRead(t, s, p.Start, p.End)
	wantValues(t, slices.Concat(rows, more), numbered(0, 0, 2000), numbered(1, 0, 2000))
}

func realKilled(t *testing.T, b *kafkatest.Broker) {
	realTopic(t, b, 2, nil)
	const n = 16_000
	none := client(t, b.Bootstrap(), kgo.ProducerBatchCompression(kgo.NoCompression()))
	pad := strings.Repeat("x", 1100)
	for p := range int32(2) {
		rs := make([]*kgo.Record, n)
		for i := range rs {
			rs[i] = &kgo.Record{Topic: topic, Partition: p, Value: fmt.Appendf(nil, "%d-%d%s", p, i, pad)}
		}
		if err := none.ProduceSync(t.Context(), rs...).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	s := newSource(t, b.Bootstrap())
	p := plan(t, s, initial(t, s), 0)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	restarted := make(chan struct{})
	var all []row
	chunks := 0
	_, err := s.Read(ctx, p.Start, p.End, source.ReadEnv{}, func(rec arrow.RecordBatch) error {
		defer rec.Release()
		all = append(all, rowsOf(rec)...)
		if chunks++; chunks == 1 {
			// 35 MB in all, 16 MiB of them are here, and a fetch ahead is 8 MiB.
			b.Kill9()
			go func() {
				defer close(restarted)
				b.Restart()
			}()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if chunks < 2 {
		t.Fatalf("%d record batches: the broker was not killed during the read", chunks)
	}
	<-restarted
	for i := range all {
		*all[i].value = strings.TrimSuffix(*all[i].value, pad)
	}
	wantValues(t, all, numbered(0, 0, n), numbered(1, 0, n))
}

func realTruncated(t *testing.T, b *kafkatest.Broker) {
	cl := realTopic(t, b, 1, nil)
	produce(t, cl, 0, 0, 10)
	s := newSource(t, b.Bootstrap())
	_, pos := drain(t, s, initial(t, s), 0)
	b.Kill9()
	dir := filepath.Join(b.LogDir(), topic+"-0")
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f.Name() != "partition.metadata" { // the topic id: the topic stays the same
			if err := os.RemoveAll(filepath.Join(dir, f.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	b.Restart()
	if err := verifyError(t, s, pos); !failure.Is(err, failure.SourceChanged) {
		t.Fatalf("an emptied log: %v", err)
	}
	produce(t, client(t, b.Bootstrap()), 0, 50, 80) // longer than what was delivered
	err = verifyError(t, s, pos)
	if !failure.Is(err, failure.SourceChanged) || !strings.Contains(err.Error(), "truncated") {
		t.Fatalf("a log that was truncated and grew again: %v", err)
	}
	_, err = s.Plan(t.Context(), pos, 0)
	wantClass(t, err, failure.SourceChanged)
}
