package pipeline

import "time"

// Pipeline is a whole pipeline file, interpolated, with defaults filled in,
// paths absolute, and checked.
type Pipeline struct {
	// File is the path that was loaded; Dir the folder that relative paths were
	// resolved against.
	File string `yaml:"-"`
	Dir  string `yaml:"-"`
	// Warnings are what deserves a word but does not stop a start.
	Warnings []Fault `yaml:"-"`

	Name               string   `yaml:"name" weir:"required,name"`
	Catalog            Catalog  `yaml:"catalog" weir:"required"`
	Warehouse          string   `yaml:"warehouse" weir:"location"`
	CheckpointLocation string   `yaml:"checkpointLocation" weir:"required,location"`
	Stores             []Store  `yaml:"stores"`
	Kafka              *Kafka   `yaml:"kafka"`
	Ingest             []Ingest `yaml:"ingest"`
	Queries            []Query  `yaml:"queries"`
	Gold               *Gold    `yaml:"gold"`
	Checks             []Check  `yaml:"checks"`
	Jobs               []Job    `yaml:"jobs"`
	Alerts             *Alerts  `yaml:"alerts"`
	Lineage            *Lineage `yaml:"lineage"`
	Ops                Ops      `yaml:"ops"`
	Status             Status   `yaml:"status"`

	places places
}

// Kafka is the broker that ingestion writes to and queries read from.
type Kafka struct {
	// BootstrapServers is empty exactly where Embedded is set.
	BootstrapServers []string  `yaml:"bootstrapServers" weir:"min=1"`
	ClientID         string    `yaml:"clientId"`
	Rack             string    `yaml:"rack"`
	Embedded         *Embedded `yaml:"embedded"`
	TLS              *TLS      `yaml:"tls"`
	SASL             *SASL     `yaml:"sasl"`
	// Topics are created at start when missing; existing ones are left as they are.
	Topics []Topic `yaml:"topics"`
}

// Embedded is the broker that Weir runs itself, as a child process.
type Embedded struct {
	DataDir string `yaml:"dataDir" weir:"required,path"`
	// Port is the loopback port; 0 takes a free one.
	Port int `yaml:"port" weir:"min=0,max=65535"`
}

// TLS turns encryption on; an empty mapping uses the system's roots.
type TLS struct {
	CAFile             string `yaml:"caFile" weir:"path"`
	CertFile           string `yaml:"certFile" weir:"path"`
	KeyFile            string `yaml:"keyFile" weir:"path"`
	ServerName         string `yaml:"serverName"`
	InsecureSkipVerify bool   `yaml:"insecureSkipVerify"`
}

// Topic is a topic to create when it is missing.
type Topic struct {
	Name              string            `yaml:"name" weir:"required,topic"`
	Partitions        int32             `yaml:"partitions" weir:"min=1,max=100000"`
	ReplicationFactor int16             `yaml:"replicationFactor" weir:"min=1,max=32767"`
	Config            map[string]string `yaml:"config"`
}

// Ingest reads one server-sent event stream into a topic.
type Ingest struct {
	Name            string   `yaml:"name" weir:"required,name"`
	SSE             SSE      `yaml:"sse" weir:"required"`
	Topic           string   `yaml:"topic" weir:"required,topic"`
	DeadLetterTopic string   `yaml:"deadLetterTopic" weir:"topic"`
	Key             string   `yaml:"key" weir:"jsonpath"`
	Contract        Contract `yaml:"contract"`
	Delivery        string   `yaml:"delivery" weir:"enum=at-least-once|exactly-once"`
	TransactionalID string   `yaml:"transactionalId"`
	MaxRecordBytes  Size     `yaml:"maxRecordBytes" weir:"min=1024,max=67108864"`
	// Position is the file that holds the resume position, in a folder of its own.
	Position string `yaml:"position" weir:"path"`
}

// The values of Ingest.Delivery.
const (
	AtLeastOnce = "at-least-once"
	ExactlyOnce = "exactly-once"
)

// SSE is the stream and how to treat it.
type SSE struct {
	URL       string `yaml:"url" weir:"required,url"`
	UserAgent string `yaml:"userAgent"`
	// Headers go with each request, for streams that want a key.
	Headers map[string]Secret `yaml:"headers"`
	// Since is where a first start begins: milliseconds since 1970 or an RFC
	// 3339 time (a mere date is made one), empty for now. A saved position takes precedence.
	Since         string        `yaml:"since" weir:"instant"`
	MaxEventBytes Size          `yaml:"maxEventBytes" weir:"min=1024,max=1073741824"`
	IdleTimeout   time.Duration `yaml:"idleTimeout" weir:"min=1s"`
	// Overlap is how much earlier than the saved position a resume begins.
	Overlap time.Duration `yaml:"overlap" weir:"min=0s"`
}

// Contract is what an event must be before it is published.
type Contract struct {
	// Schema is builtin:wikimedia/recentchange, an absolute path of a JSON
	// Schema file, or empty for valid JSON objects only.
	Schema string  `yaml:"schema"`
	Canary *Canary `yaml:"canary"`
}

// Canary tells artificial events: dropped and counted before anything else.
type Canary struct {
	Path   string `yaml:"path" weir:"required,jsonpath"`
	Equals string `yaml:"equals" weir:"required"`
}

// Query is one micro-batch query: one source, one main sink, one checkpoint.
type Query struct {
	Name    string  `yaml:"name" weir:"required,name"`
	From    From    `yaml:"from" weir:"required"`
	Trigger Trigger `yaml:"trigger"`
	// OnLostCheckpoint is one of adopt, fail, restart.
	OnLostCheckpoint string `yaml:"onLostCheckpoint" weir:"enum=adopt|fail|restart"`
	// CheckpointLocation is the query's own folder; by default the pipeline's
	// checkpointLocation with the query's name.
	CheckpointLocation            string     `yaml:"checkpointLocation" weir:"location"`
	Parse                         *Parse     `yaml:"parse"`
	Filter                        string     `yaml:"filter"`
	Watermark                     *Watermark `yaml:"watermark"`
	DropDuplicatesWithinWatermark []string   `yaml:"dropDuplicatesWithinWatermark" weir:"min=1"`
	// Aggregate are the stages of sessions and windows, in their order.
	Aggregate  []Aggregation `yaml:"aggregate" weir:"min=1"`
	DeadLetter *DeadLetter   `yaml:"deadLetter"`
	To         To            `yaml:"to" weir:"required"`
	Care       Care          `yaml:"care"`
	State      State         `yaml:"state"`

	// inherited are the columns of the table that is read, where they are typed.
	inherited []Column
}

// From is where a query reads: exactly one of its fields is set.
type From struct {
	Kafka *KafkaSource `yaml:"kafka"`
	Table *TableSource `yaml:"table"`
}

// KafkaSource reads topics.
type KafkaSource struct {
	// Topics or TopicPattern, never both.
	Topics       []string `yaml:"topics" weir:"min=1,topic"`
	TopicPattern string   `yaml:"topicPattern" weir:"regexp"`
	// Partitions limits the query to some partitions of each topic; empty is all.
	Partitions Partitions `yaml:"partitions"`
	// StartingOffsets is where a fresh query begins. The two timestamps take
	// precedence, as in Spark.
	StartingOffsets StartingOffsets `yaml:"startingOffsets"`
	// StartingOffsetsByTimestamp is by topic and partition, in milliseconds.
	StartingOffsetsByTimestamp map[string]map[int32]int64 `yaml:"startingOffsetsByTimestamp"`
	// StartingTimestamp is for all partitions, in milliseconds; nil where not given.
	StartingTimestamp *Millis `yaml:"startingTimestamp"`
	// MaxOffsetsPerTrigger limits a batch; 0 is no limit.
	MaxOffsetsPerTrigger int64  `yaml:"maxOffsetsPerTrigger" weir:"min=0"`
	FailOnDataLoss       bool   `yaml:"failOnDataLoss"`
	GroupID              string `yaml:"groupId"`
}

// TableSource reads a table that a Kafka query feeds, incrementally.
type TableSource struct {
	Name                 string          `yaml:"name" weir:"required,table"`
	StartingOffsets      StartingOffsets `yaml:"startingOffsets"`
	MaxOffsetsPerTrigger int64           `yaml:"maxOffsetsPerTrigger" weir:"min=0"`
	FailOnDataLoss       bool            `yaml:"failOnDataLoss"`
}

// Trigger says when a batch is planned: exactly one of its fields is set.
type Trigger struct {
	// ProcessingTime is the interval; 0 plans the next batch at once.
	ProcessingTime time.Duration `yaml:"processingTime" weir:"min=0s"`
	// AvailableNow works off what is there, in as many batches as needed, and ends.
	AvailableNow bool `yaml:"availableNow"`
	// Once works off what is there in a single batch and ends.
	Once bool `yaml:"once"`
}

// Ends reports whether the query ends by itself.
func (t Trigger) Ends() bool { return t.AvailableNow || t.Once }

// The values of Query.OnLostCheckpoint, spelled as in package checkpoint.
const (
	OnLostAdopt   = "adopt"
	OnLostFail    = "fail"
	OnLostRestart = "restart"
)

// Parse turns a record's value into declared columns.
type Parse struct {
	// Format is json, or one of a value that names its schema in a registry.
	Format         string          `yaml:"format" weir:"enum=json|avro|protobuf|jsonSchema"`
	SchemaRegistry *SchemaRegistry `yaml:"schemaRegistry"`
	Columns        []Column        `yaml:"columns" weir:"required,min=1"`
}

// Column is one declared column: exactly one of Path and Source is set.
type Column struct {
	Name string `yaml:"name" weir:"required,column"`
	// Path is a JSON path into the value: $.a.b, $['a b'], $.a[0].
	Path string `yaml:"path" weir:"jsonpath"`
	// Source is a property of the record or of the batch.
	Source string `yaml:"source" weir:"enum=topic|topicId|partition|offset|timestamp|timestampType|key|value|ingestedAt|batchTime"`
	Type   string `yaml:"type" weir:"required,columntype"`
	// TimeFormat says how a timestamptz is written in JSON; empty is rfc3339.
	TimeFormat string `yaml:"timeFormat" weir:"enum=rfc3339|epochSeconds|epochMillis"`
	// Required sends a row without the value to the dead-letter table.
	Required bool `yaml:"required"`
	// RenamedFrom is the name that the table's column had before.
	RenamedFrom string `yaml:"renamedFrom" weir:"column"`
}

// The values of Column.Type.
const (
	TypeString  = "string"
	TypeInt     = "int"
	TypeLong    = "long"
	TypeFloat   = "float"
	TypeDouble  = "double"
	TypeBoolean = "boolean"
	TypeDate    = "date"
	// TypeTimestamp is a time without a zone.
	TypeTimestamp   = "timestamp"
	TypeTimestamptz = "timestamptz"
	TypeBinary      = "binary"
	// TypeJSON is the JSON text of a value, whatever it is, in a string column.
	TypeJSON = "json"
)

// The values of Column.Source.
const (
	SourceTopic         = "topic"
	SourceTopicID       = "topicId"
	SourcePartition     = "partition"
	SourceOffset        = "offset"
	SourceTimestamp     = "timestamp"
	SourceTimestampType = "timestampType"
	SourceKey           = "key"
	SourceValue         = "value"
	SourceIngestedAt    = "ingestedAt"
	SourceBatchTime     = "batchTime"
)

// Watermark bounds how late an event may be.
type Watermark struct {
	Column string `yaml:"column" weir:"required"`
	// Delay is required with parse; over a table that is parsed already it comes
	// on top of the table's own.
	Delay time.Duration `yaml:"delay" weir:"min=0s"`
	// MaxFutureSkew sends events further ahead of the batch time to the
	// dead-letter table, so that one wrong clock cannot move the watermark.
	MaxFutureSkew time.Duration `yaml:"maxFutureSkew" weir:"min=0s"`
	// PerPartition draws a watermark in each partition; the least of those that
	// are not idle counts.
	PerPartition bool `yaml:"perPartition"`
	// IdleTimeout is after how long without an event a partition is idle.
	IdleTimeout time.Duration `yaml:"idleTimeout" weir:"min=0s"`
}

// DeadLetter is the side table for rows that cannot be used.
type DeadLetter struct {
	Table string `yaml:"table" weir:"required,table"`
	// Format is iceberg or delta.
	Format     string            `yaml:"format" weir:"enum=iceberg|delta"`
	Properties map[string]string `yaml:"properties"`
}

// The values of DeadLetter.Format.
const (
	FormatIceberg = "iceberg"
	FormatDelta   = "delta"
)

// To is where a query writes: exactly one of its fields is set.
type To struct {
	Iceberg *IcebergSink `yaml:"iceberg"`
	Delta   *DeltaSink   `yaml:"delta"`
	// Stores outside: see External.
	Postgres *PostgresSink `yaml:"postgres"`
	Kafka    *KafkaSink    `yaml:"kafka"`
	// Cassandra is any store that speaks its protocol.
	Cassandra *CassandraSink `yaml:"cassandra"`
	HTTP      *HTTPSink      `yaml:"http"`
	File      *FileSink      `yaml:"file"`
	Exec      *ExecSink      `yaml:"exec"`
}

// Table is the name of the table: namespace.table, or the location of a Delta
// table that was given one, or the target of a store outside; empty where nothing
// is set.
func (t To) Table() string {
	if _, e := t.External(); e != nil {
		return e.Target()
	}
	switch {
	case t.Iceberg != nil:
		return t.Iceberg.Table
	case t.Delta != nil && t.Delta.Path != "":
		return t.Delta.Path
	case t.Delta != nil:
		return t.Delta.Table
	}
	return ""
}

// PartitionBy is how the table is partitioned.
func (t To) PartitionBy() []PartitionField {
	switch {
	case t.Iceberg != nil:
		return t.Iceberg.PartitionBy
	case t.Delta != nil:
		return t.Delta.PartitionBy
	}
	return nil
}

// IcebergSink appends to an Iceberg table, or merges into it, created when missing.
type IcebergSink struct {
	Table       string            `yaml:"table" weir:"required,table"`
	PartitionBy []PartitionField  `yaml:"partitionBy"`
	Properties  map[string]string `yaml:"properties"`
	// DropColumns and KeepColumns are columns that the query wrote before: those
	// go, these stay and get nulls.
	DropColumns []string `yaml:"dropColumns" weir:"min=1"`
	KeepColumns []string `yaml:"keepColumns" weir:"min=1"`
	// Mode is append or upsert; the rest is for upsert, see Upsert.
	Mode            string        `yaml:"mode" weir:"enum=append|upsert"`
	Keys            []string      `yaml:"keys" weir:"min=1"`
	OrderBy         []string      `yaml:"orderBy" weir:"min=1"`
	DeleteWhen      string        `yaml:"deleteWhen"`
	Changes         string        `yaml:"changes" weir:"enum=debezium"`
	RememberDeletes time.Duration `yaml:"rememberDeletes" weir:"min=0s"`
}

// DeltaSink appends to a Delta table, or merges into it, created when missing. Exactly one of Table
// and Path is set.
type DeltaSink struct {
	// Table is namespace.table, a folder <namespace>/<table> of the warehouse.
	Table string `yaml:"table" weir:"table"`
	// Path is the table's folder.
	Path string `yaml:"path" weir:"location"`
	// PartitionBy are columns: Delta has no transforms.
	PartitionBy []PartitionField  `yaml:"partitionBy"`
	Properties  map[string]string `yaml:"properties"`
	// MergeSchema adds columns also to a table that the query has not written to.
	MergeSchema bool `yaml:"mergeSchema"`
	// KeepColumns are columns that the query wrote before: they stay and get nulls.
	KeepColumns []string `yaml:"keepColumns" weir:"min=1"`
	// AppID is a transaction app id of the user's own; empty for none.
	AppID string `yaml:"appId"`
	// OnReusedAppID says what happens where AppID belongs to another lineage.
	OnReusedAppID string `yaml:"onReusedAppId" weir:"enum=fail|rebind"`
	// Mode is append or upsert; the rest is for upsert, see Upsert.
	Mode            string        `yaml:"mode" weir:"enum=append|upsert"`
	Keys            []string      `yaml:"keys" weir:"min=1"`
	OrderBy         []string      `yaml:"orderBy" weir:"min=1"`
	DeleteWhen      string        `yaml:"deleteWhen"`
	Changes         string        `yaml:"changes" weir:"enum=debezium"`
	RememberDeletes time.Duration `yaml:"rememberDeletes" weir:"min=0s"`
}

// The values of DeltaSink.OnReusedAppID.
const (
	ReusedFail   = "fail"
	ReusedRebind = "rebind"
)

// PartitionField is one term of partitionBy: day(timestamp), bucket(16, key), wiki.
type PartitionField struct {
	// Transform is identity, year, month, day, hour, bucket or truncate.
	Transform string
	Column    string
	// Param is the number of buckets or the width, 0 otherwise.
	Param int
}

// Ops is what the engine writes about itself.
type Ops struct {
	// ProgressTable is the table of batches; empty writes none.
	ProgressTable string `yaml:"progressTable" weir:"table"`
	// FlushInterval groups progress rows into one commit.
	FlushInterval time.Duration `yaml:"flushInterval" weir:"min=100ms"`
	// RunsTable and ChecksTable are those of jobs and of checks; empty where there
	// are none.
	RunsTable   string `yaml:"runsTable" weir:"table"`
	ChecksTable string `yaml:"checksTable" weir:"table"`
	// JSONL is a file that gets every progress row as a line of JSON.
	JSONL string `yaml:"jsonl" weir:"path"`
}

// Status is the status page.
type Status struct {
	// Listen is host:port, or "none".
	Listen string `yaml:"listen"`
	// Given is set where the file says where to listen: then another port is
	// not what was asked for.
	Given bool `yaml:"-"`
	// Token is asked of every reader; an address that is not a loopback one
	// needs it.
	Token Secret `yaml:"token"`
}
