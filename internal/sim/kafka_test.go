package sim

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/source"
)

const topic, topicID, clusterID = "events", "topic-1", "cluster-1"

// feed is the topic of a world.
type feed interface {
	// produce appends n records to a partition.
	produce(part int, n int64) error
	// committed are the offsets of the records that a reader gets, by partition.
	committed() [][]int64
	// source is the source of one process.
	source(p *process, clk clock.Clock) (source.Source, error)
}

// kafka is a topic whose records are a function of partition and offset.
type kafka struct {
	mu   sync.Mutex
	ends []int64
}

func newKafka(partitions int, records int64) *kafka {
	return &kafka{ends: slices.Repeat([]int64{records}, partitions)}
}

func (k *kafka) produce(part int, n int64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ends[part] += n
	return nil
}

func (k *kafka) committed() [][]int64 {
	out := make([][]int64, len(k.ends))
	for p, end := range k.ends {
		for off := range end {
			out[p] = append(out[p], off)
		}
	}
	return out
}

func (k *kafka) source(p *process, _ clock.Clock) (source.Source, error) {
	return &topicSource{k, p}, nil
}

func (k *kafka) end(part int) int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ends[part]
}

// event is a record's value, with the id and kind that silver gives it. Every
// 13th is no JSON, every 11th is filtered, every 7th repeats the one before it.
func event(part int32, off int64) (value, id, kind string) {
	n := off
	switch {
	case off%13 == 5:
		return fmt.Sprintf("{ not JSON %d", off), "", "dead"
	case off%11 == 7:
		kind = "log"
	case off%7 == 3:
		n, kind = off-1, "edit"
	default:
		kind = "edit"
	}
	if n%11 == 7 || n%13 == 5 {
		n = off // the one before is no edit: nothing to repeat
	}
	id = fmt.Sprintf("%d-%d", part, n)
	return fmt.Sprintf(`{"id":%q,"kind":%q,"dt":%q}`, id, kind, eventTime(n).Format("2006-01-02T15:04:05.000000Z")), id, kind
}

// eventTime is within a few seconds for all: no event is late, whatever the
// batches are.
func eventTime(off int64) time.Time {
	return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(off%1000) * time.Millisecond)
}

// topicSource is a source that has nothing below it.
type topicSource struct {
	k *kafka
	p *process
}

var _ source.Source = (*topicSource)(nil)

func (s *topicSource) Schema() *arrow.Schema                        { return batch.KafkaSchema }
func (s *topicSource) Close() error                                 { return nil }
func (s *topicSource) Report(context.Context, batch.Position) error { return nil }

func (s *topicSource) ask(ctx context.Context, op string) error {
	err := s.p.do(ctx, "kafka "+op, false, func(int) error { return nil })
	if err != nil {
		return failure.Wrap(failure.Unreachable, err, "kafka %s", op)
	}
	return nil
}

func (s *topicSource) Initial(ctx context.Context) (batch.Position, error) {
	if err := s.ask(ctx, "initial"); err != nil {
		return batch.Position{}, err
	}
	p := batch.Position{Kafka: &batch.KafkaPosition{ClusterID: clusterID, Topics: map[string]batch.TopicPosition{}}}
	for i := range s.k.ends {
		p.Kafka.Set(topic, topicID, int32(i), batch.PartitionPosition{LastOffset: -1, LeaderEpoch: -1})
	}
	return p, nil
}

func (s *topicSource) Verify(ctx context.Context, pos batch.Position) (out []source.Violation, err error) {
	if err := s.ask(ctx, "verify"); err != nil {
		return nil, err
	}
	pos.Kafka.Each(func(_, _ string, part int32, p batch.PartitionPosition) {
		if end := s.k.end(int(part)); p.NextOffset > end {
			out = append(out, source.Violation{Topic: topic, Partition: part, From: end, To: p.NextOffset, Lost: true, Text: "the position is beyond the log"})
		}
	})
	return out, nil
}

func (s *topicSource) Plan(ctx context.Context, start batch.Position, limit int64) (source.Planned, error) {
	if err := s.ask(ctx, "plan"); err != nil {
		return source.Planned{}, err
	}
	from := start.Clone()
	end, latest := from.Clone(), from.Clone()
	left := limit
	for i := range s.k.ends {
		p, _ := from.Kafka.Get(topic, int32(i))
		share := s.k.end(i) - p.NextOffset
		if limit > 0 {
			share = min(share, max(1, limit/int64(len(s.k.ends))), left)
			left -= share
		}
		if share > 0 {
			end.Kafka.Set(topic, "", int32(i), batch.PartitionPosition{NextOffset: p.NextOffset + share, LastOffset: -1, LeaderEpoch: -1, Rows: -1})
		}
		p.NextOffset = s.k.end(i)
		latest.Kafka.Set(topic, "", int32(i), p)
	}
	return source.Planned{Start: from, End: end, Latest: latest}, nil
}

func (s *topicSource) Read(ctx context.Context, start, end batch.Position, env source.ReadEnv, emit func(arrow.RecordBatch) error) (source.ReadResult, error) {
	res := source.ReadResult{End: end.Clone()}
	for _, r := range start.Ranges(end) {
		if err := s.ask(ctx, "read"); err != nil {
			return res, err
		}
		if err := emit(rows(r.Partition, r.From, r.To, env.BatchTimeMicros)); err != nil {
			return res, err
		}
		res.Rows += r.To - r.From
		before, _ := start.Kafka.Get(topic, r.Partition)
		res.End.Kafka.Set(topic, "", r.Partition, batch.PartitionPosition{NextOffset: r.To, LastOffset: r.To - 1, LeaderEpoch: 1, Rows: before.Rows + r.To - r.From})
		res.MaxTimestampMicros = max(res.MaxTimestampMicros, eventTime(r.To-1).UnixMicro())
	}
	return res, nil
}

func rows(part int32, lo, hi, now int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, batch.KafkaSchema)
	defer b.Release()
	for off := lo; off < hi; off++ {
		value, _, _ := event(part, off)
		b.Field(batch.ColTopic).(*array.StringBuilder).Append(topic)
		b.Field(batch.ColPartition).(*array.Int32Builder).Append(part)
		b.Field(batch.ColOffset).(*array.Int64Builder).Append(off)
		b.Field(batch.ColTimestamp).(*array.TimestampBuilder).Append(arrow.Timestamp(eventTime(off).UnixMicro()))
		b.Field(batch.ColTimestampType).(*array.Int32Builder).Append(0)
		b.Field(batch.ColKey).AppendNull()
		b.Field(batch.ColValue).(*array.BinaryBuilder).Append([]byte(value))
		b.Field(batch.ColHeaders).AppendNull()
		b.Field(batch.ColIngestedAt).(*array.TimestampBuilder).Append(arrow.Timestamp(now))
		b.Field(batch.ColTopicID).(*array.StringBuilder).Append(topicID)
	}
	return b.NewRecordBatch()
}

// pollEvery is how long a process that has read everything waits.
const pollEvery = 200 * time.Millisecond

func (s *topicSource) Wait(ctx context.Context, pos batch.Position) error {
	for range 5 {
		for i := range s.k.ends {
			if p, _ := pos.Kafka.Get(topic, int32(i)); s.k.end(i) > p.NextOffset {
				return nil
			}
		}
		select {
		case <-time.After(pollEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
