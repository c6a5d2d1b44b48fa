package weir

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore"
)

// quiet is a logger that says nothing.
var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// kafka is a broker in this process with one topic, "t".
type kafkaLab struct {
	t       *testing.T
	servers string
	client  *kgo.Client
	sent    int
	dir     string
}

func newKafka(t *testing.T, partitions int32) *kafkaLab {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, "t"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	k := &kafkaLab{t: t, servers: strings.Join(c.ListenAddrs(), ","), dir: t.TempDir()}
	if k.client, err = kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.RecordPartitioner(kgo.RoundRobinPartitioner())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.client.Close)
	return k
}

// send publishes n records {"id": i} with ids that go on.
func (k *kafkaLab) send(n int) {
	k.t.Helper()
	for range n {
		r := &kgo.Record{Topic: "t", Value: fmt.Appendf(nil, `{"id":%d}`, k.sent)}
		k.sent++
		if err := k.client.ProduceSync(context.Background(), r).FirstErr(); err != nil {
			k.t.Fatal(err)
		}
	}
}

// query begins a query over the topic whose rows are ids.
func (k *kafkaLab) query(name string, perBatch int64) *Query {
	return NewQuery(name).
		From(Kafka{BootstrapServers: k.servers, Topics: []string{"t"}, MaxOffsetsPerTrigger: perBatch}).
		Parse(Parse{Columns: []Column{{Name: "id", Path: "$.id", Type: "long", Required: true}, {Name: "kafka_offset", Source: "offset", Type: "long"}}}).
		Trigger(AvailableNow()).
		Checkpoint(k.path("checkpoints", name)).
		With(Settings{Logger: quiet})
}

func (k *kafkaLab) path(elem ...string) string {
	return filepath.Join(append([]string{k.dir}, elem...)...)
}

func ids(records []arrow.RecordBatch) (out []int64) {
	for _, r := range records {
		out = append(out, r.Column(0).(*array.Int64).Int64Values()...)
	}
	return out
}

// keyed is an external system that applies a batch once by its key, and checks
// that a key always comes with the same rows.
type keyed struct {
	mu      sync.Mutex
	t       *testing.T
	applied map[string][]int64
	order   []string
	calls   int
	epochs  []int64
}

func newKeyed(t *testing.T) *keyed { return &keyed{t: t, applied: map[string][]int64{}} }

func (s *keyed) write(_ context.Context, b Batch) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	s.epochs = append(s.epochs, b.Epoch)
	rows := ids(b.Records)
	if b.Empty() || int64(len(rows)) != b.NumRows() {
		s.t.Errorf("batch %s with %d rows says %d", b.Key(), len(rows), b.NumRows())
	}
	if had, ok := s.applied[b.Key()]; ok {
		if fmt.Sprint(had) != fmt.Sprint(rows) {
			s.t.Errorf("batch %s came with rows %v, and again with %v", b.Key(), had, rows)
		}
		if !b.Redelivered {
			s.t.Errorf("batch %s came again without saying so", b.Key())
		}
		return b.NumRows(), nil
	}
	s.applied[b.Key()] = rows
	s.order = append(s.order, b.Key())
	return b.NumRows(), nil
}

func (s *keyed) called() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// counts is how often each id was applied.
func (s *keyed) counts() map[int64]int {
	out := map[int64]int{}
	for _, rows := range s.applied {
		for _, id := range rows {
			out[id]++
		}
	}
	return out
}

func (s *keyed) exactly(n int) {
	s.t.Helper()
	got := s.counts()
	for id := range int64(n) {
		if got[id] != 1 {
			s.t.Fatalf("id %d was applied %d times", id, got[id])
		}
	}
	if len(got) != n {
		s.t.Fatalf("%d ids were applied, want %d", len(got), n)
	}
}

// errPower is what a process sees of its stores once it is dead.
var errPower = failure.New(failure.Runtime, "the process is dead")

// power counts durable writes; when left comes to zero nothing happens any more.
type power struct {
	mu   sync.Mutex
	left int
}

func (p *power) step() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left == 0 {
		return errPower
	}
	if p.left > 0 {
		p.left--
	}
	return nil
}

// powered is a store of a process that may die at any write.
type powered struct {
	objstore.Store
	p *power
}

func (s powered) CreateOnce(ctx context.Context, key string, data []byte) (bool, []byte, error) {
	if err := s.p.step(); err != nil {
		return false, nil, err
	}
	return s.Store.CreateOnce(ctx, key, data)
}

func (s powered) Put(ctx context.Context, key string, data []byte) error {
	if err := s.p.step(); err != nil {
		return err
	}
	return s.Store.Put(ctx, key, data)
}

// plugged lets a query's checkpoint and record live in memory and die with p.
func plugged(q *Query, disks map[string]*objstore.Memory, p *power) *Query {
	q.store = func(_ context.Context, location string, clk clock.Clock) (objstore.Store, error) {
		if disks[location] == nil {
			disks[location] = objstore.NewMemory(clk)
		}
		return powered{disks[location], p}, nil
	}
	return q
}
