package weir

import (
	"log/slog"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/source"
	"github.com/weirlake/weir/internal/source/kafka"
)

// Source is where a query reads: Kafka.
type Source interface {
	open(query string, clk clock.Clock, log *slog.Logger) (openedSource, error)
}

// openedSource is a source with what the engine must know of it.
type openedSource struct {
	source.Source
	maxOffsets     int64
	failOnDataLoss bool
}

// DefaultMaxOffsetsPerTrigger bounds a batch where nothing else is said.
const DefaultMaxOffsetsPerTrigger = 100_000

// Kafka reads topics, at read_committed.
type Kafka struct {
	// BootstrapServers are host:port, several with commas.
	BootstrapServers string
	// Topics, or TopicPattern: a regular expression (RE2) that a topic's whole
	// name has to match.
	Topics       []string
	TopicPattern string
	// Partitions limits the query to some partitions of each topic: "0-15,18".
	Partitions string
	// StartingOffsets is where a new query begins: earliest (also where empty),
	// latest, or {"topic":{"0":23,"1":-2}}.
	StartingOffsets string
	// MaxOffsetsPerTrigger bounds a batch: DefaultMaxOffsetsPerTrigger where 0, no
	// bound where negative.
	MaxOffsetsPerTrigger int64
	// TolerateDataLoss goes on at the log's start where retention has removed
	// records before they were read; else the query stops.
	TolerateDataLoss bool
	// GroupID is told the progress, for lag tools; "weir-" and the query's name
	// where empty.
	GroupID  string
	ClientID string
	TLS      *TLS
	SASL     *SASL
}

// TLS encrypts the connections; the zero value trusts the system's roots. Files
// are PEM.
type TLS struct {
	CAFile, CertFile, KeyFile, ServerName string
	InsecureSkipVerify                    bool
}

// SASL logs in to the broker: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
type SASL struct {
	Mechanism, Username, Password string
}

func (k Kafka) open(query string, clk clock.Clock, log *slog.Logger) (openedSource, error) {
	client := clientConfig(k.BootstrapServers, k.ClientID, k.TLS, k.SASL)
	group := k.GroupID
	if group == "" {
		group = "weir-" + query
	}
	src, err := kafka.New(kafka.Config{
		Client: client, Topics: k.Topics, TopicPattern: k.TopicPattern, Partitions: k.Partitions, StartingOffsets: k.StartingOffsets,
		TolerateDataLoss: k.TolerateDataLoss, GroupID: group,
	}, clk, log)
	if err != nil {
		return openedSource{}, err
	}
	out := openedSource{Source: src, maxOffsets: k.MaxOffsetsPerTrigger, failOnDataLoss: !k.TolerateDataLoss}
	switch {
	case out.maxOffsets == 0:
		out.maxOffsets = DefaultMaxOffsetsPerTrigger
	case out.maxOffsets < 0:
		out.maxOffsets = 0
	}
	return out, nil
}
