// Package source is where a query reads from. A source knows identities and
// offsets; it never remembers progress: the engine's plan says which range to
// read, and the same range gives the same rows, however often it is asked.
//
// Implementations: source/kafka, source/iceberg (over an upstream table).
// source/sourcetest is the conformance suite that each of them runs.
package source

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/batch"
)

// Source is one place to read from. All methods fail with a classified error
// (package failure): Unreachable when the source cannot be reached within the
// deadline of ctx or the configured one, SourceChanged when what is asked for
// is no longer there.
type Source interface {
	// Initial resolves the starting offsets of a fresh query: every assigned
	// partition listed, with its identity. Called once per lineage.
	Initial(ctx context.Context) (batch.Position, error)

	// Verify compares a position with the source as it is now and lists what
	// contradicts it: another cluster, topic or table identity; log start
	// beyond the position; log end before it; a log truncated below the last
	// delivered record. An empty list means that reading may go on from pos.
	Verify(ctx context.Context, pos batch.Position) ([]Violation, error)

	// Plan proposes the end of a batch that starts at start: at most limit
	// offsets (0: no limit) shared fairly over the partitions, never past the
	// last stable offset (Kafka) or the pinned head's vector (table). Newly
	// matched partitions are added to BOTH positions: the returned start has
	// them at 0 in a known topic, at the recorded log start in a new one.
	// start equal to end by offset means that there is nothing new.
	Plan(ctx context.Context, start batch.Position, limit int64) (Planned, error)

	// Read calls emit with the rows of [start, end) in order of topic,
	// partition, offset, as records of Schema(); records may be of any length
	// and emit takes them over (it releases them). It returns the end with
	// LastOffset, LeaderEpoch and Rows filled in from what was read. The check
	// that nothing was lost between plan and read (log start ≤ start, row
	// counts against the upstream's) is made after the last row and fails with
	// SourceChanged.
	Read(ctx context.Context, start, end batch.Position, env ReadEnv, emit func(arrow.RecordBatch) error) (ReadResult, error)

	// Schema is the shape of the emitted records.
	Schema() *arrow.Schema

	// Wait blocks until something new may be there after pos, or ctx ends, or
	// a bound of the source's own has passed. It is a hint, never a promise.
	Wait(ctx context.Context, pos batch.Position) error

	// Report tells lag tools how far the query is (Kafka: commits the
	// consumer-group offset). Never read back; failures are returned to be
	// logged and otherwise ignored.
	Report(ctx context.Context, pos batch.Position) error

	// Close releases connections.
	Close() error
}

// Rescanner is what a Source also is that can give the rows of the past again,
// for rebuilding what operators remember of them.
type Rescanner interface {
	// Rescan calls emit with the rows from start (nil: the first) to before end,
	// in any order, that have an event time of at least minMicros; records hold
	// the given columns and emit takes them over.
	Rescan(ctx context.Context, start *batch.KafkaPosition, end batch.Position, columns []string, timeColumn string, minMicros int64, emit func(arrow.RecordBatch) error) error
}

// Erasable is what a Source also is whose rows can be erased on purpose.
type Erasable interface {
	// Erasures names the erasures that the source has seen. While the name is the
	// same no row that was read is gone.
	Erasures(ctx context.Context) (string, error)
}

// ReadEnv is what the plan fixes for the rows of a batch.
type ReadEnv struct {
	// BatchTimeMicros is the plan's batch time; the ingested_at of Kafka rows.
	BatchTimeMicros int64
}

// Planned is a proposed batch.
type Planned struct {
	Start, End batch.Position
	// Latest is how far the source reached when the plan was made, for lag.
	Latest batch.Position
}

// ReadResult is what reading a batch found out.
type ReadResult struct {
	End  batch.Position
	Rows int64
	// MaxTimestampMicros is the greatest Kafka timestamp read, 0 if none.
	MaxTimestampMicros int64
	// Erased is how many rows of the range are gone because they were erased on
	// purpose, at most.
	Erased int64
}

// Violation is one contradiction between a position and the source.
type Violation struct {
	// Topic, Partition and Range name the place; Partition is -1 for a whole
	// topic, Topic empty for the whole source.
	Topic     string
	Partition int32
	From, To  int64
	// Lost is true where records were lost (offsets gone, log truncated), false
	// where the source is another one (identity changed). failOnDataLoss:
	// false forgives only losses by retention.
	Lost bool
	// Retention is true where the log start moved past the position.
	Retention bool
	// Text says what is wrong, naming found and expected.
	Text string
	// Hint is the way out.
	Hint string
}
