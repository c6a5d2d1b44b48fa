package batch

import "github.com/apache/arrow-go/v18/arrow"

// Timestamp is the type of points in time: microseconds, UTC.
var Timestamp = &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}

// LocalTimestamp is a time on the calendar and the clock of nobody says where.
var LocalTimestamp = &arrow.TimestampType{Unit: arrow.Microsecond}

// Columns of a Kafka record as a row, in their order.
const (
	ColTopic = iota
	ColPartition
	ColOffset
	ColTimestamp
	ColTimestampType
	ColKey
	ColValue
	ColHeaders
	ColIngestedAt
	ColTopicID
)

// KafkaSchema is the shape of a Kafka record as a row: what the Kafka source
// emits, what bronze stores, and what the table source reads back.
//
//	topic string, partition int, offset long,
//	timestamp timestamptz, timestamp_type int (0 create time, 1 log append time),
//	key binary?, value binary?, headers list<struct<key string, value binary?>>?,
//	ingested_at timestamptz (the batch time of the plan), topic_id string?
var KafkaSchema = arrow.NewSchema([]arrow.Field{
	{Name: "topic", Type: arrow.BinaryTypes.String},
	{Name: "partition", Type: arrow.PrimitiveTypes.Int32},
	{Name: "offset", Type: arrow.PrimitiveTypes.Int64},
	{Name: "timestamp", Type: Timestamp},
	{Name: "timestamp_type", Type: arrow.PrimitiveTypes.Int32},
	{Name: "key", Type: arrow.BinaryTypes.Binary, Nullable: true},
	{Name: "value", Type: arrow.BinaryTypes.Binary, Nullable: true},
	{Name: "headers", Type: arrow.ListOfField(arrow.Field{Name: "element", Nullable: false, Type: arrow.StructOf(
		arrow.Field{Name: "key", Type: arrow.BinaryTypes.String},
		arrow.Field{Name: "value", Type: arrow.BinaryTypes.Binary, Nullable: true},
	)}), Nullable: true},
	{Name: "ingested_at", Type: Timestamp},
	{Name: "topic_id", Type: arrow.BinaryTypes.String, Nullable: true},
}, nil)
