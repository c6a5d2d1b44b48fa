package kafka

import (
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/batch"
)

// A record batch is emitted when it holds chunkRows rows or chunkBytes of
// values, whichever comes first; one larger record still makes a batch.
const (
	chunkRows  = 4 << 10
	chunkBytes = 4 << 20
	// rowBytesGuess is what a value is taken to hold before one was seen.
	rowBytesGuess = 1 << 10
)

// rowWriter appends Kafka records to Arrow builders, straight from the fetched
// bytes: a value is copied once.
type rowWriter struct {
	emit   func(arrow.RecordBatch) error
	micros int64 // ingested_at

	b                       *array.RecordBuilder
	topic, topicID          *array.StringBuilder
	partition, tsType       *array.Int32Builder
	offset                  *array.Int64Builder
	timestamp, ingestedAt   *array.TimestampBuilder
	key, value, headerValue *array.BinaryBuilder
	headers                 *array.ListBuilder
	header                  *array.StructBuilder
	headerKey               *array.StringBuilder

	rows, bytes int   // in the batch being built
	total       int64 // rows of the whole read
	totalBytes  int64
	maxMicros   int64

	// expect bounds the rows still to come, and rowBytes guesses their size, so
	// that buffers are made once in their final size.
	expect   int64
	rowBytes float64
}

func newRowWriter(micros, expect int64, rowBytes float64, emit func(arrow.RecordBatch) error) *rowWriter {
	b := array.NewRecordBuilder(memory.DefaultAllocator, batch.KafkaSchema)
	if rowBytes == 0 {
		rowBytes = rowBytesGuess
	}
	w := &rowWriter{emit: emit, micros: micros, b: b, expect: expect, rowBytes: rowBytes}
	w.topic = b.Field(batch.ColTopic).(*array.StringBuilder)
	w.partition = b.Field(batch.ColPartition).(*array.Int32Builder)
	w.offset = b.Field(batch.ColOffset).(*array.Int64Builder)
	w.timestamp = b.Field(batch.ColTimestamp).(*array.TimestampBuilder)
	w.tsType = b.Field(batch.ColTimestampType).(*array.Int32Builder)
	w.key = b.Field(batch.ColKey).(*array.BinaryBuilder)
	w.value = b.Field(batch.ColValue).(*array.BinaryBuilder)
	w.headers = b.Field(batch.ColHeaders).(*array.ListBuilder)
	w.header = w.headers.ValueBuilder().(*array.StructBuilder)
	w.headerKey = w.header.FieldBuilder(0).(*array.StringBuilder)
	w.headerValue = w.header.FieldBuilder(1).(*array.BinaryBuilder)
	w.ingestedAt = b.Field(batch.ColIngestedAt).(*array.TimestampBuilder)
	w.topicID = b.Field(batch.ColTopicID).(*array.StringBuilder)
	return w
}

func (w *rowWriter) release() { w.b.Release() }

// begin makes room for the next record batch.
func (w *rowWriter) begin() {
	rows := max(1, min(w.expect-w.total, chunkRows))
	w.b.Reserve(int(rows))
	// An eighth above the guess; a guess that is wrong costs a copy, not rows.
	w.value.ReserveData(int(min(float64(rows)*w.rowBytes*1.125, chunkBytes)))
}

// append adds one record, emitting the batch before it where it is full.
func (w *rowWriter) append(p *partition, r *kgo.Record) error {
	size := len(r.Key) + len(r.Value)
	if w.rows > 0 && (w.rows >= chunkRows || w.bytes+size > chunkBytes) {
		if err := w.flush(); err != nil {
			return err
		}
	}
	if w.rows == 0 {
		w.begin()
	}
	micros := microsOf(r.Timestamp)
	w.topic.Append(p.tp.Topic)
	w.partition.Append(p.tp.Partition)
	w.offset.Append(r.Offset)
	w.timestamp.Append(arrow.Timestamp(micros))
	w.tsType.Append(int32(r.Attrs.TimestampType()))
	appendBytes(w.key, r.Key)
	appendBytes(w.value, r.Value)
	w.appendHeaders(r.Headers)
	w.ingestedAt.Append(arrow.Timestamp(w.micros))
	if p.topicID == "" {
		w.topicID.AppendNull()
	} else {
		w.topicID.Append(p.topicID)
	}
	if w.total == 0 || micros > w.maxMicros {
		w.maxMicros = micros
	}
	w.rows++
	w.total++
	w.bytes += size
	w.totalBytes += int64(len(r.Value))
	return nil
}

// inverse15625 times 15625 is 1 modulo 2^58.
const inverse15625 = 0x10fb65668c26139

// microsOf is a record's timestamp in microseconds. kgo keeps milliseconds
// times a million as nanoseconds in an int64, which wraps for times after 2262
// (or before 1677). A million is 2^6 * 15625 and 15625 is odd, so the product
// has a unique inverse among times up to 4.5 million years, and nothing is lost.
func microsOf(t time.Time) int64 {
	product := uint64(t.UnixNano())
	millis := int64((product>>6)*inverse15625<<6) >> 6
	const most = math.MaxInt64 / 1000
	return max(-most, min(millis, most)) * 1000
}

// appendBytes keeps null (a tombstone's value, a missing key) apart from empty.
func appendBytes(b *array.BinaryBuilder, v []byte) {
	if v == nil {
		b.AppendNull()
		return
	}
	b.Append(v)
}

// appendHeaders keeps every header in its order, repeated keys and null values
// included. A record without headers has a null list, as in Spark. Keys become
// valid UTF-8, because a Parquet string must be.
func (w *rowWriter) appendHeaders(headers []kgo.RecordHeader) {
	if len(headers) == 0 {
		w.headers.AppendNull()
		return
	}
	w.headers.Append(true)
	for _, h := range headers {
		w.header.Append(true)
		key := h.Key
		if !utf8.ValidString(key) {
			key = strings.ToValidUTF8(key, "\uFFFD")
		}
		w.headerKey.Append(key)
		appendBytes(w.headerValue, h.Value)
		w.bytes += len(key) + len(h.Value)
	}
}

// flush emits what is built.
func (w *rowWriter) flush() error {
	if w.rows == 0 {
		return nil
	}
	rec := w.b.NewRecordBatch()
	w.rows, w.bytes = 0, 0
	return w.emit(rec)
}
