package operator

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
)

// input is the columns of a record of batch.KafkaSchema.
type input struct {
	rows          int
	topic         *array.String
	partition     *array.Int32
	offset        *array.Int64
	timestamp     *array.Timestamp
	timestampType *array.Int32
	key, value    *array.Binary
	raw           *array.Binary // the value as it came, where that was unwrapped
	ingestedAt    *array.Timestamp
	topicID       *array.String
}

func inputOf(rec arrow.RecordBatch) (input, error) {
	in := input{rows: int(rec.NumRows())}
	if got, want := int(rec.NumCols()), batch.KafkaSchema.NumFields(); got != want {
		return in, failure.New(failure.Runtime, "the transform was given a record of %d columns, a Kafka record has %d", got, want)
	}
	err := firstError(
		take(rec, batch.ColTopic, &in.topic),
		take(rec, batch.ColPartition, &in.partition),
		take(rec, batch.ColOffset, &in.offset),
		take(rec, batch.ColTimestamp, &in.timestamp),
		take(rec, batch.ColTimestampType, &in.timestampType),
		take(rec, batch.ColKey, &in.key),
		take(rec, batch.ColValue, &in.value),
		take(rec, batch.ColIngestedAt, &in.ingestedAt),
		take(rec, batch.ColTopicID, &in.topicID),
	)
	in.raw = in.value
	return in, err
}

func take[A arrow.Array](rec arrow.RecordBatch, i int, dst *A) error {
	a, ok := rec.Column(i).(A)
	if !ok {
		return errShape(batch.KafkaSchema.Field(i).Name, fmt.Sprint(batch.KafkaSchema.Field(i).Type), rec.Column(i).DataType())
	}
	*dst = a
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// bytes is the value of a variable-width property, nil and false where null.
func (in *input) bytes(o origin, row int) ([]byte, bool) {
	switch o {
	case fromTopic:
		return stringBytes(in.topic, row), true
	case fromTopicID:
		if in.topicID.IsNull(row) {
			return nil, false
		}
		return stringBytes(in.topicID, row), true
	case fromKey:
		if in.key.IsNull(row) {
			return nil, false
		}
		return in.key.Value(row), true
	default:
		if in.raw.IsNull(row) {
			return nil, false
		}
		return in.raw.Value(row), true
	}
}

// fixed is the value of a property of fixed width.
func (in *input) fixed(o origin, row int, batchTime int64) uint64 {
	switch o {
	case fromPartition:
		return uint64(int64(in.partition.Value(row)))
	case fromOffset:
		return uint64(in.offset.Value(row))
	case fromTimestamp:
		return uint64(in.timestamp.Value(row))
	case fromTimestampType:
		return uint64(int64(in.timestampType.Value(row)))
	case fromIngestedAt:
		return uint64(in.ingestedAt.Value(row))
	default:
		return uint64(batchTime)
	}
}
