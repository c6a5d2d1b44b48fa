package ingest

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/ingest/contract"
	"github.com/weirlake/weir/internal/ingest/position"
	"github.com/weirlake/weir/internal/ingest/sse"
)

// Delivery says what a reader of the topic can rely on.
type Delivery string

const (
	// AtLeastOnce loses nothing; after a crash some events are sent again, with
	// the same key and new offsets.
	AtLeastOnce Delivery = "at-least-once"
	// ExactlyOnce gives a read_committed reader every event once.
	ExactlyOnce Delivery = "exactly-once"
)

// Defaults and bounds of Config.
const (
	DefaultKeyPath         = "meta.id"
	DefaultUserAgent       = "weir (https://github.com/weirlake/weir)"
	DefaultPartitions      = 4
	DefaultMaxRecordBytes  = 4 << 20
	DefaultMaxInFlight     = 50_000
	DefaultMaxInFlightSize = 64 << 20
	DefaultLinger          = 5 * time.Millisecond
	DefaultSaveInterval    = time.Second
	DefaultTxnInterval     = 500 * time.Millisecond
	DefaultTxnMaxRecords   = 20_000
	DefaultDeliveryTimeout = 2 * time.Minute
	DefaultStopTimeout     = 15 * time.Second
	DefaultWindow          = 500_000

	// PositionSuffix ends the name of the topic that holds the position in
	// exactly-once mode.
	PositionSuffix = ".weir-position"

	maxTxnRecords  = 24_000 // their ids must fit into one record of the position topic
	maxTxnInterval = 30 * time.Second
	maxWorkers     = 64
	// maxDeliveryTimeout keeps a transaction's time-out below the most that
	// brokers allow (15 minutes).
	maxDeliveryTimeout = 14 * time.Minute
)

// Config is one stream, what its events must be, and where they go. It is plain
// data; zero values of optional fields take the defaults above.
type Config struct {
	// Name stands in logs. Default: the topic.
	Name string
	// URL of the stream. UserAgent should carry a contact: Wikimedia asks for one.
	URL       string
	UserAgent string
	Header    map[string]string
	// Since is where a first start begins: milliseconds or an RFC 3339 time;
	// empty: the end of the stream. A saved position takes precedence.
	Since         string
	MaxEventBytes int
	IdleTimeout   time.Duration
	// ConnectDeadline is how long the stream may be out of reach.
	ConnectDeadline        time.Duration
	BackoffMin, BackoffMax time.Duration
	// Overlap is how much earlier than the saved position a resume begins;
	// negative: not at all. The stream's own disorder may raise it.
	Overlap time.Duration
	// EventTypes are the types that carry data; others become dead letters.
	// Default: message.
	EventTypes []string

	// Schema is contract.Wikimedia, the path of a JSON Schema file, or empty:
	// any JSON object.
	Schema string
	// Canary tells artificial events. Wikimedia's contract has a default.
	Canary *contract.Canary
	// KeyPath is the path of the record key in the event.
	KeyPath string

	Brokers         []string
	Topic           string
	DeadLetterTopic string // default: Topic + ".dlq"
	// Partitions and ReplicationFactor of topics that have to be created; a
	// replication factor of 0 leaves it to the broker.
	Partitions        int32
	ReplicationFactor int16
	// MaxRecordBytes bounds a record. Topics are created to take it; the limit
	// of an existing topic lowers it. Longer events become dead letters.
	MaxRecordBytes int
	// Compression is none, snappy, lz4, zstd or gzip. Default: snappy.
	Compression string
	Linger      time.Duration

	Delivery Delivery
	// TransactionalID names this ingestion to the broker. Default: "weir-ingest-" + Topic.
	TransactionalID string
	TxnInterval     time.Duration
	TxnMaxRecords   int
	// PositionPath is the folder (or .json file) of the resume position. In
	// exactly-once mode it is optional, read only for a first start.
	PositionPath string
	SaveInterval time.Duration

	// MaxInFlight and MaxInFlightBytes bound what is read and not acknowledged.
	MaxInFlight      int
	MaxInFlightBytes int64
	// Window bounds the events remembered to drop what a resume sends again.
	Window int
	// Workers check events. Default: one for each processor.
	Workers int
	// DeliveryTimeout is how long the broker may acknowledge nothing at all.
	DeliveryTimeout time.Duration
	// StopTimeout bounds the flush of a graceful stop.
	StopTimeout time.Duration
	// Seed makes the jitter of reconnects repeatable; 0 takes a random one.
	Seed uint64
}

// Deps are the components that Run uses. Zero fields take the real ones.
type Deps struct {
	Clock      clock.Clock
	Kafka      []kgo.Opt // security, client id; added to every client
	HTTPClient *http.Client
	Logger     *slog.Logger
	// Explain, where set, looks whether the settings of the connection explain
	// that Kafka gave no answer; else it returns the error.
	Explain func(context.Context, error) error
	// StopWhen ends the run gracefully as soon as it returns true. It is asked
	// after each group of events that is read and that is acknowledged, from one
	// goroutine.
	StopWhen func(Stats) bool
}

func orElse[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

// withDefaults fills what was left out.
func (c Config) withDefaults() Config {
	c.Name = orElse(c.Name, c.Topic)
	c.UserAgent = orElse(c.UserAgent, DefaultUserAgent)
	c.MaxEventBytes = orElse(c.MaxEventBytes, sse.DefaultMaxEventBytes)
	c.IdleTimeout = orElse(c.IdleTimeout, sse.DefaultIdleTimeout)
	c.Overlap = max(orElse(c.Overlap, position.DefaultOverlap), 0)
	if len(c.EventTypes) == 0 {
		c.EventTypes = []string{"message"}
	}
	if c.Canary == nil && c.Schema == contract.Wikimedia {
		c.Canary = contract.WikimediaCanary()
	}
	c.KeyPath = orElse(c.KeyPath, DefaultKeyPath)
	c.DeadLetterTopic = orElse(c.DeadLetterTopic, c.Topic+".dlq")
	c.Partitions = orElse(c.Partitions, DefaultPartitions)
	c.MaxRecordBytes = orElse(c.MaxRecordBytes, DefaultMaxRecordBytes)
	c.Compression = orElse(c.Compression, "snappy")
	c.Linger = orElse(c.Linger, DefaultLinger)
	c.Delivery = orElse(c.Delivery, AtLeastOnce)
	c.TransactionalID = orElse(c.TransactionalID, "weir-ingest-"+c.Topic)
	c.TxnInterval = orElse(c.TxnInterval, DefaultTxnInterval)
	c.TxnMaxRecords = orElse(c.TxnMaxRecords, DefaultTxnMaxRecords)
	c.SaveInterval = orElse(c.SaveInterval, DefaultSaveInterval)
	c.MaxInFlight = orElse(c.MaxInFlight, DefaultMaxInFlight)
	c.MaxInFlightBytes = orElse(c.MaxInFlightBytes, DefaultMaxInFlightSize)
	c.Window = orElse(c.Window, DefaultWindow)
	c.DeliveryTimeout = orElse(c.DeliveryTimeout, DefaultDeliveryTimeout)
	c.StopTimeout = orElse(c.StopTimeout, DefaultStopTimeout)
	return c
}

// Validate names everything that is wrong with the configuration at once.
func (c Config) Validate() []error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if u, err := url.Parse(c.URL); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		bad("sse.url must be an http or https URL")
	}
	if c.Since != "" && !plausibleSince(c.Since) {
		bad("sse.since %q is neither milliseconds since 1970 nor an RFC 3339 time", c.Since)
	}
	if c.Topic == "" {
		bad("topic is missing")
	}
	if c.Topic != "" && c.Topic == c.DeadLetterTopic {
		bad("topic and deadLetterTopic are both %q", c.Topic)
	}
	if len(c.Brokers) == 0 {
		bad("kafka.bootstrapServers is empty")
	}
	switch c.Delivery {
	case "", AtLeastOnce:
		if c.PositionPath == "" {
			bad("position is missing: at-least-once delivery keeps its position in a file")
		}
	case ExactlyOnce:
	default:
		bad("delivery %q is neither %s nor %s", c.Delivery, AtLeastOnce, ExactlyOnce)
	}
	if _, err := codec(orElse(c.Compression, "none")); err != nil {
		errs = append(errs, err)
	}
	for _, n := range []struct {
		name string
		v    int64
		max  int64
	}{
		{"sse.maxEventBytes", int64(c.MaxEventBytes), 1 << 30},
		{"maxRecordBytes", int64(c.MaxRecordBytes), 1 << 30},
		{"partitions", int64(c.Partitions), 100_000},
		{"replicationFactor", int64(c.ReplicationFactor), 1 << 15},
		{"maxInFlight", int64(c.MaxInFlight), 10_000_000},
		{"maxInFlightBytes", c.MaxInFlightBytes, 1 << 40},
		{"window", int64(c.Window), 50_000_000},
		{"workers", int64(c.Workers), maxWorkers},
		{"transactionMaxRecords", int64(c.TxnMaxRecords), maxTxnRecords},
		{"transactionInterval", int64(c.TxnInterval), int64(maxTxnInterval)},
		{"sse.idleTimeout", int64(c.IdleTimeout), int64(24 * time.Hour)},
		{"deliveryTimeout", int64(c.DeliveryTimeout), int64(maxDeliveryTimeout)},
	} {
		if n.v < 0 || n.v > n.max {
			bad("%s must lie between 0 and %d", n.name, n.max)
		}
	}
	if strings.ContainsAny(c.UserAgent, "\r\n") {
		bad("sse.userAgent must be one line")
	}
	return errs
}

func plausibleSince(s string) bool {
	if strings.Trim(s, "0123456789") == "" {
		return true
	}
	_, err := time.Parse(time.RFC3339Nano, s)
	return err == nil
}

func codec(name string) (kgo.CompressionCodec, error) {
	switch name {
	case "none":
		return kgo.NoCompression(), nil
	case "snappy":
		return kgo.SnappyCompression(), nil
	case "lz4":
		return kgo.Lz4Compression(), nil
	case "zstd":
		return kgo.ZstdCompression(), nil
	case "gzip":
		return kgo.GzipCompression(), nil
	}
	return kgo.CompressionCodec{}, fmt.Errorf("compression %q is none of none, snappy, lz4, zstd, gzip", name)
}
