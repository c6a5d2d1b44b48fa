package operator

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/weirlake/weir/internal/batch"
)

// DeadLetterSchema is the shape of the dead-letter output. Key and value are
// the record's own bytes, whole.
var DeadLetterSchema = arrow.NewSchema([]arrow.Field{
	{Name: "kafka_topic", Type: arrow.BinaryTypes.String},
	{Name: "kafka_partition", Type: arrow.PrimitiveTypes.Int32},
	{Name: "kafka_offset", Type: arrow.PrimitiveTypes.Int64},
	{Name: "kafka_timestamp", Type: batch.Timestamp},
	{Name: "reason", Type: arrow.BinaryTypes.String},
	{Name: "detail", Type: arrow.BinaryTypes.String},
	{Name: "key", Type: arrow.BinaryTypes.Binary, Nullable: true},
	{Name: "value", Type: arrow.BinaryTypes.Binary, Nullable: true},
	{Name: "event_id", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "processed_at", Type: batch.Timestamp},
}, nil)

// emitDeadLetters emits the faults of a block, in row order.
func (c *chain) emitDeadLetters(used []*worker, emit Emit) error {
	rows, bytes := 0, 0
	for _, w := range used {
		rows += len(w.faults)
		for _, f := range w.faults {
			if !c.in.raw.IsNull(f.row) {
				bytes += c.in.raw.ValueLen(f.row)
			}
		}
	}
	if rows == 0 {
		return nil
	}
	b := array.NewRecordBuilder(c.mem, DeadLetterSchema)
	defer b.Release()
	b.Reserve(rows)
	b.Field(7).(*array.BinaryBuilder).ReserveData(bytes)
	for _, w := range used {
		for i := range w.faults {
			c.appendDeadLetter(b, &w.faults[i])
		}
	}
	return emit(DeadLetter, b.NewRecordBatch())
}

func (c *chain) appendDeadLetter(b *array.RecordBuilder, f *fault) {
	in := &c.in
	b.Field(0).(*array.StringBuilder).Append(in.topic.Value(f.row))
	b.Field(1).(*array.Int32Builder).Append(in.partition.Value(f.row))
	b.Field(2).(*array.Int64Builder).Append(in.offset.Value(f.row))
	b.Field(3).(*array.TimestampBuilder).Append(in.timestamp.Value(f.row))
	b.Field(4).(*array.StringBuilder).Append(string(f.reason))
	b.Field(5).(*array.StringBuilder).Append(f.detail)
	for i, a := range []*array.Binary{in.key, in.raw} {
		if a.IsNull(f.row) {
			b.Field(6 + i).AppendNull()
		} else {
			b.Field(6 + i).(*array.BinaryBuilder).Append(a.Value(f.row))
		}
	}
	if f.hasID {
		b.Field(8).(*array.StringBuilder).Append(f.eventID)
	} else {
		b.Field(8).AppendNull()
	}
	b.Field(9).(*array.TimestampBuilder).Append(arrow.Timestamp(c.env.BatchTimeMicros))
}
