package engine_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/source"
	"github.com/weirlake/weir/internal/source/sourcetest"
)

const fakeTopic = "events"

// fakeKafka is a topic whose records are a function of partition and offset.
type fakeKafka struct {
	mu      sync.Mutex
	cluster string
	topicID string
	made    int
	parts   []fakePart
	value   func(part int32, offset int64) string
	news    chan struct{}
}

type fakePart struct{ start, end int64 }

func newFakeKafka(partitions int, records int64) *fakeKafka {
	k := &fakeKafka{cluster: "cluster-1", topicID: "topic-1", news: make(chan struct{}), value: event}
	for range partitions {
		k.parts = append(k.parts, fakePart{0, records})
	}
	return k
}

// change alters the topic and wakes who waits for news.
func (k *fakeKafka) change(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
	close(k.news)
	k.news = make(chan struct{})
}

func (k *fakeKafka) produce(part int, n int64) { k.change(func() { k.parts[part].end += n }) }

func (k *fakeKafka) addPartition(n int64) {
	k.change(func() { k.parts = append(k.parts, fakePart{0, n}) })
}

// lose makes retention remove everything before offset.
func (k *fakeKafka) lose(part int, offset int64) { k.change(func() { k.parts[part].start = offset }) }

// recreate makes the topic anew, empty.
func (k *fakeKafka) recreate() {
	k.change(func() {
		k.made++
		k.topicID = fmt.Sprintf("topic-%d", k.made+1)
		for i := range k.parts {
			k.parts[i] = fakePart{}
		}
	})
}

// fakeSource is the source of one process. Hooks run before what they are
// named after.
type fakeSource struct {
	k                *fakeKafka
	onPlan, onRead   func()
	reported, closed int
}

var _ source.Source = (*fakeSource)(nil)

func (s *fakeSource) Schema() *arrow.Schema { return batch.KafkaSchema }
func (s *fakeSource) Close() error          { s.closed++; return nil }
func (s *fakeSource) Report(ctx context.Context, _ batch.Position) error {
	s.reported++
	return ctx.Err()
}

func (s *fakeSource) Initial(context.Context) (batch.Position, error) {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	p := batch.Position{Kafka: &batch.KafkaPosition{ClusterID: s.k.cluster, Topics: map[string]batch.TopicPosition{}}}
	for i, part := range s.k.parts {
		p.Kafka.Set(fakeTopic, s.k.topicID, int32(i), batch.PartitionPosition{NextOffset: part.start, LastOffset: -1, LeaderEpoch: -1})
	}
	return p, nil
}

func (s *fakeSource) Verify(_ context.Context, pos batch.Position) ([]source.Violation, error) {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	return s.verify(pos), nil
}

func (s *fakeSource) verify(pos batch.Position) (out []source.Violation) {
	if pos.Kafka.ClusterID != s.k.cluster {
		return []source.Violation{{Partition: -1, Text: fmt.Sprintf("cluster %s is not %s", s.k.cluster, pos.Kafka.ClusterID), Hint: "bring it back"}}
	}
	pos.Kafka.Each(func(topic, id string, part int32, p batch.PartitionPosition) {
		switch {
		case id != s.k.topicID:
			out = append(out, source.Violation{Topic: topic, Partition: -1, Text: "topic " + topic + " was created again", Hint: "bring it back"})
		case s.k.parts[part].start > p.NextOffset:
			out = append(out, source.Violation{Topic: topic, Partition: part, From: p.NextOffset, To: s.k.parts[part].start, Lost: true, Retention: true,
				Text: fmt.Sprintf("offsets [%d, %d) of partition %d are gone", p.NextOffset, s.k.parts[part].start, part)})
		case s.k.parts[part].end < p.NextOffset:
			out = append(out, source.Violation{Topic: topic, Partition: part, From: s.k.parts[part].end, To: p.NextOffset, Lost: true,
				Text: fmt.Sprintf("partition %d ends at %d", part, s.k.parts[part].end)})
		}
	})
	return out
}

func (s *fakeSource) Plan(_ context.Context, start batch.Position, limit int64) (source.Planned, error) {
	if s.onPlan != nil {
		s.onPlan()
	}
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	if v := s.verify(start); len(v) > 0 {
		return source.Planned{}, failure.New(failure.SourceChanged, "%s", v[0].Text)
	}
	from := start.Clone()
	for i := range s.k.parts {
		if _, ok := from.Kafka.Get(fakeTopic, int32(i)); !ok {
			from.Kafka.Set(fakeTopic, s.k.topicID, int32(i), batch.PartitionPosition{LastOffset: -1, LeaderEpoch: -1})
		}
	}
	end, latest := from.Clone(), from.Clone()
	left := limit
	for i, part := range s.k.parts {
		p, _ := from.Kafka.Get(fakeTopic, int32(i))
		share := part.end - p.NextOffset
		if limit > 0 {
			share = min(share, max(1, limit/int64(len(s.k.parts))), left)
			left -= share
		}
		if share > 0 {
			end.Kafka.Set(fakeTopic, "", int32(i), batch.PartitionPosition{NextOffset: p.NextOffset + share, LastOffset: -1, LeaderEpoch: -1, Rows: -1})
		}
		p.NextOffset = part.end
		latest.Kafka.Set(fakeTopic, "", int32(i), p)
	}
	return source.Planned{Start: from, End: end, Latest: latest}, nil
}

// recordRows is how many rows the fake's records hold at most.
const recordRows = 7

func (s *fakeSource) Read(ctx context.Context, start, end batch.Position, env source.ReadEnv, emit func(arrow.RecordBatch) error) (source.ReadResult, error) {
	if s.onRead != nil {
		s.onRead()
	}
	res := source.ReadResult{End: end.Clone()}
	for _, r := range start.Ranges(end) {
		for lo := r.From; lo < r.To; lo += recordRows {
			if err := ctx.Err(); err != nil {
				return res, err
			}
			hi := min(lo+recordRows, r.To)
			if err := emit(s.rows(r.Partition, lo, hi, env.BatchTimeMicros)); err != nil {
				return res, err
			}
			res.Rows += hi - lo
			for off := lo; off < hi; off++ {
				res.MaxTimestampMicros = max(res.MaxTimestampMicros, eventMicros(r.Partition, off))
			}
		}
		before, _ := start.Kafka.Get(fakeTopic, r.Partition)
		res.End.Kafka.Set(fakeTopic, "", r.Partition, batch.PartitionPosition{NextOffset: r.To, LastOffset: r.To - 1, LeaderEpoch: 1, Rows: before.Rows + r.To - r.From})
	}
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	for _, r := range start.Ranges(end) {
		if s.k.cluster != end.Kafka.ClusterID || s.k.topicID != end.Kafka.Topics[fakeTopic].ID || s.k.parts[r.Partition].start > r.From {
			return res, failure.New(failure.SourceChanged, "offsets of partition %d are gone", r.Partition)
		}
	}
	return res, nil
}

func (s *fakeSource) rows(part int32, lo, hi, now int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, batch.KafkaSchema)
	defer b.Release()
	for off := lo; off < hi; off++ {
		b.Field(batch.ColTopic).(*array.StringBuilder).Append(fakeTopic)
		b.Field(batch.ColPartition).(*array.Int32Builder).Append(part)
		b.Field(batch.ColOffset).(*array.Int64Builder).Append(off)
		b.Field(batch.ColTimestamp).(*array.TimestampBuilder).Append(arrow.Timestamp(eventMicros(part, off)))
		b.Field(batch.ColTimestampType).(*array.Int32Builder).Append(0)
		b.Field(batch.ColKey).AppendNull()
		b.Field(batch.ColValue).(*array.BinaryBuilder).Append([]byte(s.k.value(part, off)))
		b.Field(batch.ColHeaders).AppendNull()
		b.Field(batch.ColIngestedAt).(*array.TimestampBuilder).Append(arrow.Timestamp(now))
		b.Field(batch.ColTopicID).(*array.StringBuilder).Append(s.k.topicID)
	}
	return b.NewRecordBatch()
}

func (s *fakeSource) Wait(ctx context.Context, pos batch.Position) error {
	for {
		s.k.mu.Lock()
		news := s.k.news
		fresh := len(s.k.parts) > len(pos.Kafka.Topics[fakeTopic].Partitions)
		for i, part := range s.k.parts {
			p, _ := pos.Kafka.Get(fakeTopic, int32(i))
			fresh = fresh || part.end > p.NextOffset
		}
		s.k.mu.Unlock()
		if fresh {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// noon is the time at which the fake world begins.
var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// eventMicros is the event time of a record: half an hour before noon and on,
// with a few that are three hours old.
func eventMicros(part int32, off int64) int64 {
	at := noon.Add(-30*time.Minute + time.Duration(off)*7*time.Second + time.Duration(part)*time.Second)
	if off%19 == 18 {
		at = at.Add(-3 * time.Hour)
	}
	return at.UnixMicro()
}

// event is the value of a record: edits, and now and then something that is
// filtered, is a duplicate, comes late or is not JSON at all.
func event(part int32, off int64) string {
	id, kind, at := off, "edit", eventMicros(part, off)
	switch {
	case off%13 == 5:
		return fmt.Sprintf("{ not JSON %d", off)
	case off%11 == 7:
		kind = "log"
	case off%7 == 3:
		id, at = off-1, eventMicros(part, off-1)
	}
	return fmt.Sprintf(`{"id":"%d-%d","kind":%q,"dt":%q}`, part, id, kind, time.UnixMicro(at).UTC().Format("2006-01-02T15:04:05.000000Z"))
}

// fakeUpstream shows the fake to the conformance suite.
type fakeUpstream struct{ k *fakeKafka }

func (u fakeUpstream) Open(*testing.T) source.Source { return &fakeSource{k: u.k} }
func (u fakeUpstream) Produce(_ *testing.T, partition int32, n int) {
	u.k.produce(int(partition), int64(n))
}
func (u fakeUpstream) Lose(_ *testing.T, partition int32, n int) {
	u.k.lose(int(partition), u.k.parts[partition].start+int64(n))
}
func (u fakeUpstream) Recreate(*testing.T) { u.k.recreate() }
func (u fakeUpstream) AddPartition(*testing.T) int32 {
	u.k.addPartition(0)
	return int32(len(u.k.parts) - 1)
}

// TestTheFakeSourceConforms qualifies the fake for the tests of the engine.
func TestTheFakeSourceConforms(t *testing.T) {
	sourcetest.Run(t, sourcetest.Harness{Overrun: 1, New: func(_ *testing.T, partitions int32) sourcetest.Upstream {
		return fakeUpstream{newFakeKafka(int(partitions), 0)}
	}})
}
