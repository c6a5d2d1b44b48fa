package checkpoint

import (
	"encoding/json"
	"time"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/marker"
)

// Format is the version of the checkpoint files; it is the first line of each.
const Format = 1

// Metadata is the file "metadata": who the checkpoint belongs to.
type Metadata struct {
	QueryID     string    `json:"query_id"`
	QueryName   string    `json:"query_name"`
	Predecessor string    `json:"predecessor,omitempty"`
	InstanceID  string    `json:"instance_id"`
	CreatedAt   time.Time `json:"created_at"`
	// Sinks are the identities (table UUIDs) of the sinks that were claimed,
	// by sink name. A sink that is recorded here must still be that table and
	// still hold a marker; one that is not recorded was added later.
	Sinks map[string]string `json:"sinks,omitempty"`
	// Epoch is that of the newest run that claimed the sinks with this
	// checkpoint. An older run that is still alive, or wakes up, sees it before
	// it writes to the logs.
	Epoch marker.Epoch `json:"epoch,omitzero"`
	// Definitions say what the stateful operators are and were, by fingerprint:
	// those of this run, and those that the state in the marker was made by.
	Definitions map[string]json.RawMessage `json:"definitions,omitempty"`
}

// Plan is the file offsets/N: what batch N will read, written once.
type Plan struct {
	QueryID   string           `json:"query_id"`
	BatchID   int64            `json:"batch_id"`
	Epoch     marker.Epoch     `json:"epoch"`
	Start     batch.Position   `json:"start"`
	End       batch.Position   `json:"end"`
	BatchTime time.Time        `json:"batch_time"`
	Watermark marker.Watermark `json:"watermark"`
	Transform string           `json:"transform,omitempty"`
	// Adopted marks a file that adoption wrote from a marker: the batch was
	// planned and committed by a run whose checkpoint is gone. A gap before an
	// adopted file is legal.
	Adopted bool `json:"adopted,omitempty"`
}

// CommitEntry is the file commits/N: batch N is in every sink.
type CommitEntry struct {
	QueryID string         `json:"query_id"`
	BatchID int64          `json:"batch_id"`
	Marker  *marker.Marker `json:"marker"`
	// Progress is the row of ops.stream_progress that belongs to the batch;
	// the file is kept until that row is visible.
	Progress json.RawMessage `json:"progress,omitempty"`
	Adopted  bool            `json:"adopted,omitempty"`
}

// StagedManifest is the file staged/N: all that every sink of batch N will
// commit, written before the first of several sinks commits.
type StagedManifest struct {
	QueryID   string                   `json:"query_id"`
	BatchID   int64                    `json:"batch_id"`
	Attempt   string                   `json:"attempt"`
	Transform string                   `json:"transform"`
	Marker    *marker.Marker           `json:"marker"`
	Sinks     map[string][]StagedFiles `json:"sinks"`
}

// StagedFiles is one staged data file of a sink, in the sink's own encoding.
type StagedFiles struct {
	Path    string `json:"path"`
	Rows    int64  `json:"rows"`
	Bytes   int64  `json:"bytes"`
	Encoded []byte `json:"encoded,omitempty"`
}

// Facts are what the checkpoint folder says, gathered by Log.Gather before the
// decision and never interpreted there.
type Facts struct {
	// Exists is true when there is at least one file of ours in the folder.
	Exists   bool
	Metadata *Metadata
	// Plan is the newest offsets/N, Commit the newest commits/N.
	Plan   *Plan
	Commit *CommitEntry
	// PlanHash is PlanHash(*Plan), empty without a plan.
	PlanHash string
	// Staged is the newest staged/N, nil if there is none.
	Staged *StagedManifest
	// Leftovers is true where log files of the predecessor's lineage are still
	// there: a restart was interrupted. They are not counted as Plan or Commit.
	Leftovers bool
	// Corrupt says what is unreadable, contradictory or missing within a log,
	// empty where the folder is sound.
	Corrupt string
	// HasState reports which state files (by path and checksum) are present.
	// Gather leaves it nil (nothing is known to be present); the caller fills it
	// for the files that the sink markers name (Log.StatePresence, or package
	// state, which also follows a chain to its snapshot).
	HasState func(f marker.StateFile) bool
}

// SinkFacts are what one sink says (see sink.Facts).
type SinkFacts struct {
	Name string
	// Main is the query's main sink; the others are side sinks that commit
	// first.
	Main     bool
	Exists   bool
	Identity string
	Marker   *marker.Marker
	Others   map[string]*marker.Marker
	Rewound  string
	// Readable is false for sinks without a readable marker (HTTP, exec,
	// foreachBatch).
	Readable bool
	// Record is, of an unreadable sink, the newest delivery that was written down
	// beside it: begun, perhaps done. Nothing is adopted from it, but epochs and
	// batch ids go on above it, and a checkpoint that knows less is a lost one:
	// the batch after it would be planned anew, and another set of rows would get
	// an id that the receiver may know already.
	Record *marker.Marker
}

// SourceFacts are what the source says of the position that would be resumed
// from (see source.Violation); Changed is empty where nothing contradicts it.
type SourceFacts struct {
	Changed []string
	// Forgiven: records after the position have expired, and the setting
	// (failOnDataLoss: false) lets the query go on at the log start. The claim
	// then carries a position moved forward.
	Forgiven bool
	// Assigned is every (topic, topic id, partition) that a fresh query would
	// take, for the overlap check.
	Assigned *batch.KafkaPosition
}

// OnLostCheckpoint is the policy of the setting of that name.
type OnLostCheckpoint string

// The policies.
const (
	Adopt   OnLostCheckpoint = "adopt"
	Fail    OnLostCheckpoint = "fail"
	Restart OnLostCheckpoint = "restart"
)
