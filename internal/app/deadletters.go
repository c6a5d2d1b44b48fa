package app

import (
	"context"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/pipeline"
)

// DeadQueries are the queries that have a dead-letter table in the catalog.
func DeadQueries(p *pipeline.Pipeline) (out []string) {
	for _, q := range p.Queries {
		if q.DeadLetter != nil && q.DeadLetter.Format != pipeline.FormatDelta {
			out = append(out, q.Name)
		}
	}
	return out
}

// DeadLetters says what a query's dead-letter table holds.
type DeadLetters struct {
	Query   string           `json:"query"`
	Table   string           `json:"table"`
	Rows    int64            `json:"rows"`
	Reasons map[string]int64 `json:"reasons"`
	First   *time.Time       `json:"first,omitempty"`
	Last    *time.Time       `json:"last,omitempty"`
	// Letters are the first of them, where they were asked for.
	Letters []DeadLetter `json:"letters,omitempty"`
}

// DeadLetter is one record that could not be used.
type DeadLetter struct {
	Topic       string    `json:"topic"`
	Partition   int32     `json:"partition"`
	Offset      int64     `json:"offset"`
	Timestamp   time.Time `json:"timestamp"`
	Reason      string    `json:"reason"`
	Detail      string    `json:"detail,omitempty"`
	Key         []byte    `json:"key,omitempty"`
	Value       []byte    `json:"value,omitempty"`
	ProcessedAt time.Time `json:"processed_at"`
}

// letterBytesMax cuts the value of a dead letter that is shown.
const letterBytesMax = 4096

// DeadLettersOf counts a query's dead letters, and shows those of a reason (all
// where it is empty), up to a limit.
func DeadLettersOf(ctx context.Context, p *pipeline.Pipeline, name, reason string, show int, o Options) (*DeadLetters, error) {
	q, err := QueryByName(p, name)
	if err != nil {
		return nil, err
	}
	a := &App{P: p, opts: o, notify: map[string]*notifier{}}
	a.fillOptions()
	if err := a.openCatalogToRead(ctx); err != nil {
		return nil, err
	}
	defer a.Close()
	out := &DeadLetters{Query: q.Name, Reasons: map[string]int64{}}
	if q.DeadLetter != nil {
		out.Table = q.DeadLetter.Table
	}
	if a.Catalog == nil {
		return out, nil
	}
	columns := []string{"reason", "processed_at"}
	if show > 0 {
		columns = []string{"kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp", "reason", "detail", "key", "value", "processed_at"}
	}
	err = a.eachDead(ctx, q, columns, func(rec arrow.RecordBatch, c deadColumns) error {
		for i := range int(rec.NumRows()) {
			out.Rows++
			why := string([]byte(c.reason.Value(i)))
			out.Reasons[why]++
			at := utc(micros(c.processed, i))
			if out.First == nil || at.Before(*out.First) {
				out.First = &at
			}
			if out.Last == nil || at.After(*out.Last) {
				out.Last = &at
			}
			if len(out.Letters) < show && (reason == "" || reason == why) {
				out.Letters = append(out.Letters, letterOf(c, i))
			}
		}
		return nil
	})
	return out, err
}

func letterOf(c deadColumns, i int) DeadLetter {
	clip := func(a *array.Binary) []byte {
		if a.IsNull(i) {
			return nil
		}
		v := a.Value(i)
		return append([]byte{}, v[:min(len(v), letterBytesMax)]...)
	}
	return DeadLetter{
		Topic: string([]byte(c.topic.Value(i))), Partition: c.partition.Value(i), Offset: c.offset.Value(i), Timestamp: utc(micros(c.at, i)),
		Reason: string([]byte(c.reason.Value(i))), Detail: string([]byte(c.detail.Value(i))), Key: clip(c.key), Value: clip(c.value), ProcessedAt: utc(micros(c.processed, i)),
	}
}

// ReplayDeadLetters puts a query's dead letters through its rules as they are now
// and brings those that pass into its table, each once.
func ReplayDeadLetters(ctx context.Context, p *pipeline.Pipeline, name string, dryRun bool, show int, o Options) (*ReplayReport, error) {
	q, err := QueryByName(p, name)
	if err != nil {
		return nil, err
	}
	if q.DeadLetter == nil {
		return nil, failure.New(failure.Config, "query %s has no dead-letter table", q.Name)
	}
	r, err := openReplay(ctx, p, q, marker.KindDeadReplay, "dlq", o)
	if err != nil {
		return nil, err
	}
	defer r.a.Close()
	r.report.Failed = map[string]int64{}
	found := &pending{}
	defer found.release()
	keep := found
	if dryRun {
		keep = nil
	}
	columns := []string{"kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp", "key", "value", "processed_at"}
	err = r.a.eachDead(ctx, q, columns, func(rec arrow.RecordBatch, c deadColumns) error {
		if err := r.revive(rec, c, keep, show); err != nil || len(found.ids) < replayRowsMax {
			return err
		}
		return r.bring(ctx, found)
	})
	if err != nil {
		return nil, err
	}
	return &r.report, r.bring(ctx, found)
}

// revive puts a record of dead letters through the rules.
func (r *replaying) revive(rec arrow.RecordBatch, c deadColumns, keep *pending, show int) error {
	kafka := r.asKafka(rec, c)
	defer kafka.Release()
	feed := func(process func(arrow.RecordBatch) error) error {
		kafka.Retain()
		return process(kafka)
	}
	return r.pass(feed, func(output string, rec arrow.RecordBatch) error {
		defer rec.Release()
		if output == operator.Main {
			return r.choose(rec, keep, show)
		}
		reasons := rec.Column(rec.Schema().FieldIndices("reason")[0]).(*array.String)
		for i := range reasons.Len() {
			r.report.Failed[string([]byte(reasons.Value(i)))]++
		}
		return nil
	})
}

// asKafka makes Kafka records of dead letters again. What a dead letter does not
// keep is what it can be: no headers, the time of dead-lettering as ingestedAt,
// the topic's present id.
func (r *replaying) asKafka(rec arrow.RecordBatch, c deadColumns) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, batch.KafkaSchema)
	defer b.Release()
	v := r.live.Position.Vector()
	bytes := func(field int, a *array.Binary, i int) {
		if a.IsNull(i) {
			b.Field(field).AppendNull()
			return
		}
		b.Field(field).(*array.BinaryBuilder).Append(a.Value(i))
	}
	for i := range int(rec.NumRows()) {
		topic := c.topic.Value(i)
		b.Field(batch.ColTopic).(*array.StringBuilder).Append(topic)
		b.Field(batch.ColPartition).(*array.Int32Builder).Append(c.partition.Value(i))
		b.Field(batch.ColOffset).(*array.Int64Builder).Append(c.offset.Value(i))
		b.Field(batch.ColTimestamp).(*array.TimestampBuilder).Append(arrow.Timestamp(micros(c.at, i)))
		b.Field(batch.ColTimestampType).(*array.Int32Builder).Append(0)
		bytes(batch.ColKey, c.key, i)
		bytes(batch.ColValue, c.value, i)
		b.Field(batch.ColHeaders).AppendNull()
		b.Field(batch.ColIngestedAt).(*array.TimestampBuilder).Append(arrow.Timestamp(micros(c.processed, i)))
		if id := v.Topics[topic].ID; id != "" {
			b.Field(batch.ColTopicID).(*array.StringBuilder).Append(id)
		} else {
			b.Field(batch.ColTopicID).AppendNull()
		}
	}
	return b.NewRecordBatch()
}
