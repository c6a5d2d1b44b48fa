package kafka

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/source"
)

const topic = "events"

// fake starts a broker in this process with the topic of n partitions.
func fake(t testing.TB, n int32, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{
		kfake.NumBrokers(1), kfake.ClusterID("cluster-1"), kfake.SeedTopics(n, topic),
		kfake.BrokerConfigs(map[string]string{"message.max.bytes": strconv.Itoa(64 << 20)}),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func client(t testing.TB, addr string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(addr), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchMaxBytes(32 << 20), kgo.MetadataMinAge(50 * time.Millisecond),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func testLog(testing.TB) *slog.Logger {
	if os.Getenv("WEIR_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.NewTextHandler(io.Discard, nil))
}

func newSource(t testing.TB, addr string, mutate ...func(*Config)) *Source {
	t.Helper()
	cfg := Config{Client: broker.Config{BootstrapServers: []string{addr}}, Topics: []string{topic}}
	for _, m := range mutate {
		m(&cfg)
	}
	s, err := New(cfg, clock.System{}, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// produce writes records "<partition>-<i>" for i in [from, to) and waits for them.
func produce(t testing.TB, cl *kgo.Client, partition int32, from, to int) {
	t.Helper()
	var rs []*kgo.Record
	for i := from; i < to; i++ {
		rs = append(rs, &kgo.Record{Topic: topic, Partition: partition, Key: []byte("k"), Value: fmt.Appendf(nil, "%d-%d", partition, i)})
	}
	if err := cl.ProduceSync(t.Context(), rs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// transaction writes records in one transaction.
func transaction(t testing.TB, cl *kgo.Client, partition int32, from, to int, end kgo.TransactionEndTry) {
	t.Helper()
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	produce(t, cl, partition, from, to)
	if err := cl.EndTransaction(t.Context(), end); err != nil {
		t.Fatal(err)
	}
}

type header struct {
	key   string
	value *string
}

type row struct {
	topic, topicID       string
	partition, tsType    int32
	offset, micros, made int64
	key, value           *string
	headers              []header // nil: a null list
}

func bytesOf(a *array.Binary, i int) *string {
	if a.IsNull(i) {
		return nil
	}
	v := string(a.Value(i))
	return &v
}

// rowsOf copies a record batch out.
func rowsOf(rec arrow.RecordBatch) []row {
	var out []row
	headers := rec.Column(batch.ColHeaders).(*array.List)
	entries := headers.ListValues().(*array.Struct)
	for i := range int(rec.NumRows()) {
		r := row{
			topic:     rec.Column(batch.ColTopic).(*array.String).Value(i),
			topicID:   rec.Column(batch.ColTopicID).(*array.String).Value(i),
			partition: rec.Column(batch.ColPartition).(*array.Int32).Value(i),
			tsType:    rec.Column(batch.ColTimestampType).(*array.Int32).Value(i),
			offset:    rec.Column(batch.ColOffset).(*array.Int64).Value(i),
			micros:    int64(rec.Column(batch.ColTimestamp).(*array.Timestamp).Value(i)),
			made:      int64(rec.Column(batch.ColIngestedAt).(*array.Timestamp).Value(i)),
			key:       bytesOf(rec.Column(batch.ColKey).(*array.Binary), i),
			value:     bytesOf(rec.Column(batch.ColValue).(*array.Binary), i),
		}
		if !headers.IsNull(i) {
			from, to := headers.ValueOffsets(i)
			for j := from; j < to; j++ {
				r.headers = append(r.headers, header{
					entries.Field(0).(*array.String).Value(int(j)), bytesOf(entries.Field(1).(*array.Binary), int(j)),
				})
			}
		}
		out = append(out, r)
	}
	return out
}

// read reads a range and checks that every partition is in ascending order.
func read(ctx context.Context, s *Source, start, end batch.Position) ([]row, source.ReadResult, error) {
	var rows []row
	last := map[int32]int64{}
	res, err := s.Read(ctx, start, end, source.ReadEnv{BatchTimeMicros: 42}, func(rec arrow.RecordBatch) error {
		defer rec.Release()
		if !rec.Schema().Equal(s.Schema()) {
			return fmt.Errorf("emitted schema %s", rec.Schema())
		}
		for _, r := range rowsOf(rec) {
			if at, ok := last[r.partition]; ok && r.offset <= at {
				return fmt.Errorf("partition %d: offset %d after %d", r.partition, r.offset, at)
			}
			last[r.partition] = r.offset
			rows = append(rows, r)
		}
		return nil
	})
	if err == nil && res.Rows != int64(len(rows)) {
		err = fmt.Errorf("result says %d rows, %d were emitted", res.Rows, len(rows))
	}
	return rows, res, err
}

func mustRead(t testing.TB, s *Source, start, end batch.Position) ([]row, source.ReadResult) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	rows, res, err := read(ctx, s, start, end)
	if err != nil {
		t.Fatalf("read %s to %s: %v", start, end, err)
	}
	return rows, res
}

func initial(t testing.TB, s *Source) batch.Position {
	t.Helper()
	pos, err := s.Initial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return pos
}

func plan(t testing.TB, s *Source, start batch.Position, limit int64) source.Planned {
	t.Helper()
	p, err := s.Plan(t.Context(), start, limit)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// drain reads batch after batch until nothing is new.
func drain(t testing.TB, s *Source, pos batch.Position, limit int64) ([]row, batch.Position) {
	t.Helper()
	var all []row
	for {
		p := plan(t, s, pos, limit)
		if p.Start.Offsets(p.End) == 0 {
			return all, p.Start
		}
		if n := p.Start.Offsets(p.End); limit > 0 && n > limit && !s.cfg.TolerateDataLoss {
			t.Fatalf("planned %d offsets, limit %d", n, limit)
		}
		rows, res := mustRead(t, s, p.Start, p.End)
		all = append(all, rows...)
		pos = res.End
	}
}

// values are the values of rows in order of partition and offset.
func values(rows []row) []string {
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.partition, b.partition), cmp.Compare(a.offset, b.offset))
	})
	var out []string
	for _, r := range rows {
		if r.value == nil {
			out = append(out, "<null>")
			continue
		}
		out = append(out, *r.value)
	}
	return out
}

// numbered are the values that produce wrote.
func numbered(partition int32, from, to int) (out []string) {
	for i := from; i < to; i++ {
		out = append(out, fmt.Sprintf("%d-%d", partition, i))
	}
	return out
}

func wantValues(t testing.TB, rows []row, want ...[]string) {
	t.Helper()
	got, all := values(rows), slices.Concat(want...)
	if !slices.Equal(got, all) {
		t.Fatalf("got %d values, want %d\n got %.200s\nwant %.200s", len(got), len(all), fmt.Sprint(got), fmt.Sprint(all))
	}
}

func wantClass(t testing.TB, err error, class failure.Class) {
	t.Helper()
	if !failure.Is(err, class) {
		t.Fatalf("error %v, want class %s", err, class)
	}
}

func next(pos batch.Position, partition int32) int64 {
	p, _ := pos.Kafka.Get(topic, partition)
	return p.NextOffset
}

func deleteRecords(t testing.TB, cl *kgo.Client, partition int32, before int64) {
	t.Helper()
	var os kadm.Offsets
	os.AddOffset(topic, partition, before, -1)
	if _, err := kadm.NewClient(cl).DeleteRecords(t.Context(), os); err != nil {
		t.Fatal(err)
	}
}

func recreate(t testing.TB, cl *kgo.Client, partitions int32) {
	t.Helper()
	adm := kadm.NewClient(cl)
	if _, err := adm.DeleteTopic(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	for try := 0; ; try++ {
		_, err := adm.CreateTopic(t.Context(), partitions, 1, nil, topic)
		if err == nil {
			return
		}
		if try == 50 { // deletion is not immediate on a real broker
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
