package kafka

import (
	"strconv"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/source"
	"github.com/weirlake/weir/internal/source/sourcetest"
)

// upstream is the topic of a broker, as the conformance suite uses it.
type upstream struct {
	addr string
	cl   *kgo.Client
	made int
}

func (u *upstream) Open(t *testing.T) source.Source { return newSource(t, u.addr) }

func (u *upstream) Produce(t *testing.T, partition int32, n int) {
	var rs []*kgo.Record
	for range n {
		rs = append(rs, &kgo.Record{Topic: topic, Partition: partition, Value: []byte(strconv.Itoa(u.made))})
		u.made++
	}
	// The client of the test may still know the topic as it was.
	if err := client(t, u.addr).ProduceSync(t.Context(), rs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func (u *upstream) AddPartition(t *testing.T) int32 {
	adm := kadm.NewClient(u.cl)
	topics, err := adm.ListTopics(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := adm.CreatePartitions(t.Context(), 1, topic); err != nil {
		t.Fatal(err)
	}
	return int32(len(topics[topic].Partitions))
}

func (u *upstream) Lose(t *testing.T, partition int32, n int) {
	starts, err := kadm.NewClient(u.cl).ListStartOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	at, _ := starts.Lookup(topic, partition)
	deleteRecords(t, u.cl, partition, at.Offset+int64(n))
}

func (u *upstream) Recreate(t *testing.T) { recreate(t, u.cl, 2) }

func TestTheKafkaSourceIsASource(t *testing.T) {
	sourcetest.Run(t, sourcetest.Harness{Overrun: 1, New: func(t *testing.T, partitions int32) sourcetest.Upstream {
		addr := fake(t, partitions).ListenAddrs()[0]
		return &upstream{addr: addr, cl: client(t, addr)}
	}})
}
