package checkpoint

import (
	"time"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

// Outcome is what a start has to do: a closed set.
type Outcome int

// The outcomes. The first six go on, the others stop.
const (
	// OutcomeFresh: nothing is known of this query anywhere. Start at
	// startingOffsets.
	OutcomeFresh Outcome = iota + 1
	// OutcomeResume: plan and run the next batch.
	OutcomeResume
	// OutcomeRerun: run Plan as it stands.
	OutcomeRerun
	// OutcomeAlreadyCommitted: write commits/BatchID from Marker, then go on.
	OutcomeAlreadyCommitted
	// OutcomeAdopt: the sinks know more than the checkpoint. Log.Adopt, then go
	// on from Marker.
	OutcomeAdopt
	// OutcomeRestart: a new lineage at startingOffsets, asked for by
	// onLostCheckpoint: restart. Log.Restart, then claim.
	OutcomeRestart
	// OutcomeFenced: another run has, or may have, the query.
	OutcomeFenced
	// OutcomeSourceChanged: the position does not fit the source any more.
	OutcomeSourceChanged
	// OutcomeSinkRewound: a sink has lost commits that it had.
	OutcomeSinkRewound
	// OutcomeCorrupt: facts that contradict each other, or a lost checkpoint
	// that may not or cannot be adopted.
	OutcomeCorrupt
	// OutcomeOverlap: another query feeds the same table from the same
	// partitions.
	OutcomeOverlap
)

// String is the outcome's name as it stands in logs and JSON.
func (o Outcome) String() string {
	switch o {
	case OutcomeFresh:
		return "fresh"
	case OutcomeResume:
		return "resume"
	case OutcomeRerun:
		return "rerun"
	case OutcomeAlreadyCommitted:
		return "already-committed"
	case OutcomeAdopt:
		return "adopt"
	case OutcomeRestart:
		return "restart"
	case OutcomeFenced:
		return "fenced"
	case OutcomeSourceChanged:
		return "source-changed"
	case OutcomeSinkRewound:
		return "sink-rewound"
	case OutcomeCorrupt:
		return "corrupt"
	case OutcomeOverlap:
		return "overlap"
	default:
		return "undecided"
	}
}

// Stops reports whether the query must not go on.
func (o Outcome) Stops() bool { return o < OutcomeFresh || o > OutcomeRestart }

// Self is what the run that decides knows of itself.
type Self struct {
	QueryName string
	// InstanceID is stable for one deployment of the query.
	InstanceID string
	// NewQueryID is the UUID to use if this turns out to be a new lineage.
	NewQueryID string
	// Transform is the fingerprint of the transform that this run would apply.
	Transform string
	// Running is the epoch that this run has claimed, nil at start. A running
	// instance that meets a newer one stops; it never adopts.
	Running *marker.Epoch
	// Now, Lease: a marker that another instance renewed less than Lease ago is
	// a live instance's. Lease 0 turns that off; TakeOver ignores it.
	Now      time.Time
	Lease    time.Duration
	TakeOver bool
	// Waited is, by sink, the renewal that this run saw before it waited out a
	// whole lease by its own clock: where it is still the last one, nobody lives.
	Waited map[string]time.Time
}

// Decision is what Decide found, and everything that carrying it out needs.
type Decision struct {
	Outcome Outcome
	// BatchID: Fresh 0; Resume the next batch; Rerun and AlreadyCommitted the
	// batch of the plan; Adopt the marker's; Restart the first of the lineage.
	BatchID int64
	// NextBatchID is the id of the next batch that is planned anew. Ids never
	// start again, not even for a new lineage.
	NextBatchID int64
	// NextEpoch is one more than every epoch in the markers and the checkpoint:
	// the number to claim.
	NextEpoch int64
	// QueryID is the lineage to write under, Predecessor the one that it
	// replaced, if any.
	QueryID, Predecessor string

	// Plan: Rerun, the plan to run. Adopt, a plan for NextBatchID that must be
	// run as it is: the checkpoint still has it, or it could be rebuilt from the
	// markers (then write it with our epoch; its hash is the side markers').
	Plan *Plan
	// Marker is the one that position, watermark and state are taken from: the
	// main sink's. Nil for Fresh and Restart.
	Marker *marker.Marker
	// Claims are what to claim each sink with, by sink name: same batch id and
	// position as its marker, or the main sink's for one that joins; of an
	// unreadable sink, the commit log's. The caller fills in epoch, attempt, instance, renewal, base
	// sequence, and, for Fresh and Restart, the resolved starting position.
	Claims map[string]*marker.Marker
	// SinksDone are the side sinks that already hold the batch of Plan.
	SinksDone []string
	// UseStaged: commit the staged manifest of the batch as it is; the transform
	// that produced the side sinks' part is not the present one.
	UseStaged bool
	// MustEnd is the furthest side marker after an adoption: the first plan
	// ends exactly at its position and uses its batch time, and the side sinks
	// that hold it are skipped. MustEndAt and MustEndBatchID are its position
	// and batch id. Nil, nil and -1 otherwise.
	MustEnd        *marker.Marker
	MustEndAt      *batch.Position
	MustEndBatchID int64
	// Supersede are batches whose files in the logs contradict the markers;
	// Log.Adopt puts them aside.
	Supersede []int64
	// HandedOver are the partitions that another query's tombstones hand to this
	// one, at the offsets where it starts on them.
	HandedOver *batch.KafkaPosition
	// RebuildState: the state that Marker names is not there; RebuildWhy says
	// which file.
	RebuildState bool
	RebuildWhy   string

	// Sink is the sink that Reason is about, if it is about one.
	Sink string
	// Reason says what was found, Hint the way out. Alert is non-empty where
	// somebody should look (adopt, restart). Notes are for the log.
	Reason, Hint, Alert string
	Notes               []string
	// RetryAfter is how long until a stale lease may be ignored (Fenced by a
	// live instance), 0 otherwise.
	RetryAfter time.Duration
}

// Err is the classified failure of an outcome that stops, nil of one that goes
// on.
func (d Decision) Err() error {
	if !d.Outcome.Stops() {
		return nil
	}
	class := failure.Checkpoint
	switch d.Outcome {
	case OutcomeFenced:
		class = failure.Fenced
	case OutcomeSourceChanged:
		class = failure.SourceChanged
	case OutcomeOverlap:
		class = failure.Config
	}
	return failure.New(class, "%s", d.Reason).WithHint("%s", d.Hint)
}
