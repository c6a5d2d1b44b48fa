// Package sink is where a query writes to. A sink remembers the query in a
// marker that it writes in the same commit as the rows; that memory, not the
// checkpoint, is what makes redelivery harmless.
//
// Implementations: sink/iceberg, sink/delta, sink/foreachbatch, and the stores
// outside (sink/postgres, sink/kafka, …), which share sink/external. sink/sinktest
// is the conformance suite.
package sink

import (
	"context"
	"errors"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/column"
	"github.com/weirlake/weir/internal/marker"
)

// Sink is one table (or store) that a query writes to.
type Sink interface {
	// Name is the sink's name in logs and checkpoints: the table's full name.
	Name() string

	// Facts reads what the sink remembers, without changing anything. A table
	// that does not exist yet gives facts with Exists false.
	Facts(ctx context.Context, queryName string) (Facts, error)

	// Claim creates the sink where it is missing and commits m (Claim set, a
	// newer epoch, position as decided) without rows, asserting that the head
	// is the one that want was read from. moved is true when the head was
	// another one: nothing was written and the caller decides again.
	Claim(ctx context.Context, want Facts, m *marker.Marker) (p Permit, moved bool, err error)

	// Stage opens the staging area of one attempt of one batch. Nothing that
	// it writes is visible until Commit.
	Stage(ctx context.Context, batchID int64, attempt string) (Stage, error)

	// Commit makes the staged rows and the marker visible in one step and
	// resolves unknown outcomes: it returns only Committed or an error. prev
	// is what the sink's marker must say before (same query id, batch id,
	// offsets; epoch not newer than the permit's). Errors: Fenced when another
	// run has moved on; CommitUnknown after the deadline; Checkpoint when the
	// sink was rewound.
	Commit(ctx context.Context, p Permit, prev *marker.Marker, staged Staged, m *marker.Marker) (Committed, error)

	// RebuildScan calls emit with the rows of the given columns that the sink
	// holds at the snapshot of m, for rebuilding operator state. where bounds
	// the scan: rows whose timestamp column is at least minMicros.
	RebuildScan(ctx context.Context, m *marker.Marker, columns []string, timeColumn string, minMicros int64, emit func(arrow.RecordBatch) error) error

	// Close releases connections.
	Close() error
}

// Planner is what a Sink also is that can say what a claim would do to it.
type Planner interface {
	// PlanClaim says what Claim with the same arguments would do, without doing
	// it. The error is that of the refusal; the plan is then what is known of it.
	PlanClaim(ctx context.Context, want Facts, m *marker.Marker) (ClaimPlan, error)
}

// ClaimPlan is what a claim does to a table beside writing its marker.
type ClaimPlan struct {
	// Columns are the changes of columns, refused ones among them.
	Columns []column.Change
}

// Facts is what a sink says about a query before it is claimed.
type Facts struct {
	Exists bool
	// Identity is the table's UUID, empty where it does not exist.
	Identity string
	// Marker is this query's memory, nil if there is none. It comes from the
	// table property (which outlives expiry) of the metadata that HeadID and
	// HeadSequence were read from.
	Marker *marker.Marker
	// Others are the stream markers of other queries in the same sink.
	Others map[string]*marker.Marker
	// HeadID and HeadSequence are the head snapshot's, 0 on an empty table.
	HeadID       int64
	HeadSequence int64
	// Rewound says how the head contradicts the marker (rolled back, dropped
	// and recreated, restored), empty where it does not. See DESIGN: the head's
	// sequence number below the marker's, or a chain from the head that passes
	// the marker's number without meeting its attempt.
	Rewound string
	// Handle is the sink's own view of the head, for Claim to assert.
	Handle any
	// Unreadable is set by a sink that cannot say what it holds: a function of
	// the user's. Marker is then what was written down beside it, after the
	// delivery and not in one step with it: nothing is adopted from it.
	Unreadable bool
	// Begun is, of such a sink, the batch that was last handed over, where no
	// record says that it is done.
	Begun *marker.Marker
}

// Permit is the right to commit. Only a successful claim produces one; its
// fields are set by the sink package of the implementation that issued it.
type Permit struct {
	epoch  marker.Epoch
	issuer any
}

// NewPermit is for implementations of Sink, at the end of a successful claim.
func NewPermit(issuer any, e marker.Epoch) Permit { return Permit{epoch: e, issuer: issuer} }

// Epoch is the epoch that was claimed.
func (p Permit) Epoch() marker.Epoch { return p.epoch }

// IssuedBy reports whether the permit came from this very sink.
func (p Permit) IssuedBy(issuer any) bool { return p.issuer != nil && p.issuer == issuer }

// Stage receives the rows of one attempt.
type Stage interface {
	// Write adds a record and takes it over. Encoding may go on in the
	// background; memory is bounded, so Write may block.
	Write(rec arrow.RecordBatch) error
	// Close makes every file durable (fsync of file and directory, or the
	// store's acknowledgement) and says what was written.
	Close(ctx context.Context) (Staged, error)
	// Abort stops background work. Files may stay behind as orphans.
	Abort()
}

// Staged is what an attempt has written, durable and unreferenced.
type Staged struct {
	Attempt string
	Rows    int64
	Files   []StagedFile
	// Handle is the sink's own description of the files.
	Handle any
	// Rejected are rows that the sink's Prepare refused: they are in another
	// table, and Commit leaves them out. See Preparer.
	Rejected []Rejection
}

// StagedFile is one data file of an attempt. It is what the staged manifest
// (checkpoint) keeps, so that a batch with several sinks can be finished by a
// binary that can no longer compute it.
type StagedFile struct {
	Path  string `json:"path"`
	Rows  int64  `json:"rows"`
	Bytes int64  `json:"bytes"`
	// Encoded is the sink's own serialised description of the file (for
	// Iceberg the manifest entry), enough to commit it without reading it.
	Encoded []byte `json:"encoded,omitempty"`
}

// Committed is a commit that is known to have happened.
type Committed struct {
	// Marker is the one in the sink now: ours, or that of an earlier attempt
	// of the same batch and plan that had landed.
	Marker     *marker.Marker
	SnapshotID int64
	// Found is true where an earlier attempt had already landed.
	Found bool
	// Conflicts is how often the head had moved under the commit.
	Conflicts int
}

// MergeOffsets is the vector of all stream markers of a sink, with m in place
// of its own query's: what a reader of the table may take as its end.
func MergeOffsets(markers map[string]*marker.Marker, m *marker.Marker) (*batch.KafkaPosition, error) {
	out := &batch.KafkaPosition{Topics: map[string]batch.TopicPosition{}}
	for name, o := range markers {
		if name == m.QueryName || o.Kind != marker.KindStream {
			continue
		}
		if err := out.Merge(o.Position.Vector()); err != nil {
			return nil, err
		}
	}
	if err := out.Merge(m.Position.Vector()); err != nil {
		return nil, err
	}
	return out, nil
}

// ErrStale is returned by Commit when staged files are gone or too old to be
// referenced safely: nothing was committed, the batch must be staged again.
var ErrStale = errors.New("staged files are gone or too old")
