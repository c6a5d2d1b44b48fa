package sim

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/source"
	source_kafka "github.com/weirlake/weir/internal/source/kafka"
)

const (
	nodes         = 2
	partitionsMax = 4
)

// brokers are franz-go's fake brokers, which the shipped source reads over the
// simulated network. The records are those of kafka; here they lie between the
// markers and the records of transactions.
type brokers struct {
	net    *network
	fake   *kfake.Cluster
	plain  *kgo.Client // appends outside of transactions
	txn    *kgo.Client // appends in transactions
	stable [][]int64   // by partition: the offsets of records that count
	ends   []int64     // by partition: the next offset
	// open are the records of the transaction under way, by partition.
	open  map[int][]int64
	began time.Time // when it was opened
}

func newBrokers(partitions int) (*brokers, error) {
	b := &brokers{net: &network{links: map[*link]bool{}}, stable: make([][]int64, partitions), ends: make([]int64, partitions)}
	b.net.mend = b.mend
	var err error
	b.fake, err = kfake.NewCluster(kfake.NumBrokers(nodes), kfake.ClusterID(clusterID), kfake.SeedTopics(int32(partitions), topic), kfake.ListenFn(b.net.listen))
	if err != nil {
		return nil, err
	}
	for p := range partitions {
		if err := b.fake.MoveTopicPartition(topic, int32(p), int32(p%nodes)); err != nil {
			return nil, err
		}
	}
	return b, b.connect()
}

// connect makes the clients that append.
func (b *brokers) connect() (err error) {
	opts := []kgo.Opt{kgo.SeedBrokers(b.addresses()...), kgo.Dialer(b.net.dialer(nil)), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(0), kgo.MetadataMinAge(10 * time.Millisecond), kgo.DisableClientMetrics(),
		kgo.ProducerBatchCompression(kgo.NoCompression())}
	if b.plain, err = kgo.NewClient(opts...); err != nil {
		return err
	}
	b.txn, err = kgo.NewClient(append(opts, kgo.TransactionalID("sim"), kgo.TransactionTimeout(10*time.Minute))...)
	return err
}

func (b *brokers) addresses() (out []string) {
	for _, l := range b.net.listeners {
		out = append(out, l.addr.String())
	}
	return out
}

// close ends the brokers; every client must be gone.
func (b *brokers) close() {
	b.plain.Close()
	b.txn.Close()
	b.fake.Close()
}

func (b *brokers) committed() [][]int64 { return b.stable }

// append appends records of which the values are those of the offsets that
// they will have.
func (b *brokers) append(cl *kgo.Client, part int, n int64) (offsets []int64, err error) {
	var rs []*kgo.Record
	for off := b.ends[part]; off < b.ends[part]+n; off++ {
		value, _, _ := event(int32(part), off)
		rs = append(rs, &kgo.Record{Topic: topic, Partition: int32(part), Value: []byte(value), Timestamp: eventTime(off)})
		offsets = append(offsets, off)
	}
	if err := cl.ProduceSync(context.Background(), rs...).FirstErr(); err != nil {
		return nil, err
	}
	for i, r := range rs {
		if r.Offset != offsets[i] {
			return nil, fmt.Errorf("record %d of partition %d came to offset %d, not %d", i, part, r.Offset, offsets[i])
		}
	}
	b.ends[part] += n
	return offsets, nil
}

func (b *brokers) produce(part int, n int64) error {
	offs, err := b.append(b.plain, part, n)
	b.stable[part] = append(b.stable[part], offs...)
	return err
}

// produceOpen appends records to the open transaction, and opens one where
// there is none.
func (b *brokers) produceOpen(part int, n int64) error {
	if b.open == nil {
		if err := b.txn.BeginTransaction(); err != nil {
			return err
		}
		b.open, b.began = map[int][]int64{}, time.Now()
	}
	offs, err := b.append(b.txn, part, n)
	b.open[part] = append(b.open[part], offs...)
	return err
}

// end ends the open transaction; its marker takes an offset of each partition.
func (b *brokers) end(commit bool) error {
	if b.open == nil {
		return nil
	}
	if err := b.txn.EndTransaction(context.Background(), kgo.TransactionEndTry(commit)); err != nil {
		return err
	}
	for part, offs := range b.open {
		b.ends[part]++
		if commit {
			b.stable[part] = append(b.stable[part], offs...)
		}
	}
	b.open = nil
	return nil
}

// grow adds a partition; no transaction may be open. The clients are made anew,
// for the old ones learn of it some day only.
func (b *brokers) grow() error {
	n := len(b.ends) + 1
	if _, err := kadm.NewClient(b.plain).UpdatePartitions(context.Background(), n, topic); err != nil {
		return err
	}
	b.ends, b.stable = append(b.ends, 0), append(b.stable, nil)
	if err := b.fake.MoveTopicPartition(topic, int32(n-1), int32(n%nodes)); err != nil {
		return err
	}
	b.plain.Close()
	b.txn.Close()
	return b.connect()
}

// move gives a partition another leader, or the same one with another epoch.
func (b *brokers) move(part, node int) error {
	return b.fake.MoveTopicPartition(topic, int32(part), int32(node))
}

// mend corrects where the fake brokers answer otherwise than Kafka does.
func (b *brokers) mend(m *message) {
	switch resp := m.resp.(type) {
	case *kmsg.OffsetForLeaderEpochResponse:
		req, err := m.request()
		if err != nil {
			return
		}
		b.mendEpochs(req.(*kmsg.OffsetForLeaderEpochRequest), resp)
	case *kmsg.SASLHandshakeResponse:
		// Nobody logs in here, and the fake ones offer it all the same.
		resp.ErrorCode, resp.SupportedMechanisms = kerr.IllegalSaslState.Code, nil
	default:
		return
	}
	m.raw = m.encode()
}

// mendEpochs: a leader notes where its epoch begins when it becomes leader, and
// the fake one at its first record, so that it does not know where an epoch
// ended after which no record came.
func (b *brokers) mendEpochs(req *kmsg.OffsetForLeaderEpochRequest, resp *kmsg.OffsetForLeaderEpochResponse) {
	asked := map[int32]int32{}
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			asked[p.Partition] = p.LeaderEpoch
		}
	}
	for i := range resp.Topics {
		for j := range resp.Topics[i].Partitions {
			p := &resp.Topics[i].Partitions[j]
			now := b.fake.PartitionInfo(topic, p.Partition)
			if p.ErrorCode == 0 && p.EndOffset < 0 && asked[p.Partition] < now.Epoch {
				p.LeaderEpoch, p.EndOffset = asked[p.Partition], now.HighWatermark
			}
		}
	}
}

// source is the shipped source of one process.
func (b *brokers) source(p *process, clk clock.Clock) (source.Source, error) {
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	return source_kafka.New(source_kafka.Config{Topics: []string{topic},
		Client: broker.Config{BootstrapServers: b.addresses(), Dial: b.net.dialer(p), Logger: quiet}}, clk, quiet)
}
