package audit

import (
	"context"
	"reflect"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/kafkatest"
)

func TestARealKafkaGivesTheRecordsOfCommittedTransactionsAndNothingElse(t *testing.T) {
	b := kafkatest.Start(t)
	ctx := context.Background()
	cl := b.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if _, err := kadm.NewClient(cl).CreateTopic(ctx, 1, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, brokers: []string{b.Bootstrap()}, client: cl}
	f.publish(0, 4)            // 0-3
	f.transaction(0, 3, true)  // 4-6, marker 7
	f.transaction(0, 2, false) // 8 9, marker 10
	f.publish(0, 1)            // 11
	f.transaction(0, 2, false) // 12 13, marker 14: the log ends in what no reader gets
	f.trim(0, 2)
	k, err := NewKafka(f.brokers, clock.System{})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	bounds, err := k.Bounds(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	if got := bounds.Partitions[0]; got != (PartitionBounds{LogStart: 2, Stable: 15}) || !bounds.HasTopicID || bounds.ClusterID == "" {
		t.Fatalf("bounds %+v", bounds)
	}
	set := NewOffsetSet()
	if err := k.Scan(ctx, topic, 0, 2, 15, func(r *Record) error { set.Add(r.Offset); return nil }); err != nil {
		t.Fatal(err)
	}
	if got := set.Ranges(minOffset, maxOffset); !reflect.DeepEqual(got, [][2]int64{{2, 7}, {11, 12}}) {
		t.Errorf("records %v", got)
	}
}
