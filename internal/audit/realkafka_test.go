package audit

import (
	"context"
	"reflect"
	"testing"
	"time"

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
	// The broker writes a transaction's marker a moment after it answers, so
	// which offset is a marker is not fixed; the records' own offsets are known.
	want := NewOffsetSet()
	for _, offsets := range [][]int64{f.publish(0, 4), f.transaction(0, 3, true)} {
		for _, o := range offsets {
			want.Add(o)
		}
	}
	f.transaction(0, 2, false)
	for _, o := range f.publish(0, 1) {
		want.Add(o)
	}
	f.transaction(0, 2, false) // the log ends in what no reader gets
	f.trim(0, 2)
	k, err := NewKafka(f.brokers, clock.System{})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	var bounds *TopicBounds
	for range 100 {
		if bounds, err = k.Bounds(ctx, topic); err != nil {
			t.Fatal(err)
		}
		if bounds.Partitions[0].Stable == 15 { // 12 records and 3 markers
			break
		}
		if err := (clock.System{}).Sleep(ctx, 50*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	if got := bounds.Partitions[0]; got != (PartitionBounds{LogStart: 2, Stable: 15}) || !bounds.HasTopicID || bounds.ClusterID == "" {
		t.Fatalf("bounds %+v", bounds)
	}
	set := NewOffsetSet()
	if err := k.Scan(ctx, topic, 0, 2, 15, func(r *Record) error { set.Add(r.Offset); return nil }); err != nil {
		t.Fatal(err)
	}
	if got, want := set.Ranges(minOffset, maxOffset), want.Ranges(2, maxOffset); !reflect.DeepEqual(got, want) {
		t.Errorf("records %v, want %v", got, want)
	}
}
