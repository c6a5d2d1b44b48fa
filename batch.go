package weir

import (
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/batch"
)

// Batch is one micro-batch as a handler gets it. After a failure the same query
// id and batch id come again with the same rows in the same order.
type Batch struct {
	// QueryID is the lineage: a UUID that stays the same through restarts,
	// crashes and upgrades, and is another one only after a deliberate restart
	// from the starting offsets. QueryID and BatchID together name the batch for
	// ever.
	QueryID   string
	QueryName string
	// BatchID grows by one from batch to batch.
	BatchID int64
	// Epoch numbers the starts of the query. A store that can compare it can
	// refuse a run that was overtaken.
	Epoch int64
	// Attempt is another text for each call of the handler.
	Attempt string
	// Try counts this process's calls for the batch, from 1.
	Try int
	// Redelivered is set where the batch was handed over before, by this process
	// or an earlier one, and may have had effects.
	Redelivered bool
	// Position is the batch's place in the source.
	Position Position
	// BatchTime is when the batch was planned; the same for every delivery.
	BatchTime time.Time
	// Records are the rows. They are valid until the handler returns; one that is
	// kept must be retained.
	Records []arrow.RecordBatch

	rows int64
}

// NumRows is the number of rows in Records.
func (b Batch) NumRows() int64 { return b.rows }

// Empty reports whether the batch has no rows. A handler never gets such a batch.
func (b Batch) Empty() bool { return b.rows == 0 }

// Schema is the shape of the rows, nil of an empty batch.
func (b Batch) Schema() *arrow.Schema {
	if len(b.Records) == 0 {
		return nil
	}
	return b.Records[0].Schema()
}

// Key names the batch for ever: "<query id>/<batch id>", an idempotency key for
// systems that take one.
func (b Batch) Key() string { return fmt.Sprintf("%s/%d", b.QueryID, b.BatchID) }

// Position is a batch's range in its source: the rows of [Start, End).
type Position struct {
	Start, End Offsets
}

// Offsets are by topic and partition.
type Offsets map[string]map[int32]int64

// offsetsOf is the vector that a position stands on.
func offsetsOf(p batch.Position) Offsets {
	out := Offsets{}
	p.Vector().Each(func(topic, _ string, partition int32, at batch.PartitionPosition) {
		if out[topic] == nil {
			out[topic] = map[int32]int64{}
		}
		out[topic][partition] = at.NextOffset
	})
	return out
}
