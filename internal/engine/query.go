package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weirlake/weir/internal/checkpoint"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/source"
)

// Bounds of the engine. Each names what it bounds.
const (
	maxStartAttempts  = 8   // claims that lose a race before the start gives up
	maxStageAttempts  = 3   // times that a batch is staged anew because its files grew too old
	recordsInFlight   = 4   // records between read and transform
	retainBatches     = 100 // offsets/ and commits/ entries that are kept at least
	maintainEvery     = 50  // batches between two rounds of table and checkpoint care
	maintainAgain     = 5   // batches after a round that did not come to its end
	defaultCommitTime = 2 * time.Minute
	defaultLease      = 10 * time.Second
)

// Trigger says when a batch is planned. The names are Spark's.
type Trigger struct {
	// ProcessingTime is the interval between the starts of batches, which fall on its
	// whole multiples by the clock; 0 plans the next one as soon as there is
	// something new.
	ProcessingTime time.Duration
	// AvailableNow reads what is there at the start, in batches, and stops.
	AvailableNow bool
	// Once reads what is there at the start in a single batch and stops.
	Once bool
}

// Options are a query's settings. The zero value is usable.
type Options struct {
	Trigger Trigger
	// MaxOffsetsPerTrigger bounds a batch; 0 means no bound.
	MaxOffsetsPerTrigger int64
	// FailOnDataLoss stops the query where offsets are gone by retention; off,
	// the loss is recorded and reading goes on at the log start.
	FailOnDataLoss bool
	// OnLostCheckpoint is adopt where empty.
	OnLostCheckpoint checkpoint.OnLostCheckpoint
	// TakeOver claims the query although another instance seems alive.
	TakeOver bool
	// StatePartBytes is the size at which a snapshot of state is cut into parts;
	// 0 is the default of package state.
	StatePartBytes int
	// NewState begins with nothing remembered, whatever state there is.
	NewState bool
	// InstanceID is stable for one deployment of the query.
	InstanceID string
	// CommitDeadline bounds the resolving of one commit.
	CommitDeadline time.Duration
	// Lease is how long a marker that another instance renewed counts as live.
	Lease time.Duration
}

// Output binds one of the transform's outputs to a sink.
type Output struct {
	// Name is operator.Main, operator.DeadLetter or operator.Rejected.
	Name string
	Sink sink.Sink
}

// Query is one streaming query. Fields are set before Run and not changed.
type Query struct {
	Name      string
	Source    source.Source
	Transform operator.Transform
	// Outputs are the sinks; side sinks commit first, in this order, then the
	// main one, wherever it stands in the list.
	Outputs []Output
	// Checkpoint is the query's folder. LockDir is its local path, empty on an
	// object store.
	Checkpoint objstore.Store
	LockDir    string
	Options    Options
	Clock      clock.Clock
	Logger     *slog.Logger
	// Progress receives one row a batch; nil keeps them in commits/N only.
	Progress ProgressSink
	// Upstream are the queries of this process that write what Source reads. On an
	// interval, a trigger of this one comes after theirs.
	Upstream []*Query
	// Drain, when closed, ends a query that runs on an interval: it works off
	// what its source has by then and returns. Nil never ends it.
	Drain <-chan struct{}
	// OnProgress is called after every batch, and OnAlert for what a person
	// must see (adoption, restart). Both may be nil and must not block.
	OnProgress func(Progress)
	OnAlert    func(text string)
	// OnSetAside is called after a batch that had late or duplicate rows, with some
	// of them and the watermark that they were measured against, in microseconds.
	// It may be nil and must not block.
	OnSetAside func(rows []operator.SetAside, watermarkMicros int64)
	// Observers are told of every batch.
	Observers []Observer
	// OnIdle is called when the query has looked and found nothing new: a sign
	// of life for whoever watches. It may be nil and must not block.
	OnIdle func()

	turns turns
	// noSource is why there is nothing to read from yet; only Plan sets it.
	noSource string
	// careDue is the batch id before which the tables are looked after next.
	careDue atomic.Int64
}

// ProgressSink appends rows to ops.stream_progress in groups.
type ProgressSink interface {
	// Add queues a row. It is durable later; Recorded says up to which batch.
	Add(p Progress)
	// Recorded is the last batch id of the query that is visible in the table,
	// -1 where there is none.
	Recorded(ctx context.Context, queryName, queryID string) (int64, error)
}

// Maintainer is what a sink may also be: table care between two batches.
type Maintainer interface {
	Maintain(ctx context.Context) error
	// Settle commits what Maintain has begun and goes on beside the batches, where
	// it is ready; with wait it waits for it.
	Settle(ctx context.Context, wait bool) error
}

// Progress is the row of ops.stream_progress of one batch. Names are Spark's
// StreamingQueryProgress in snake case where Spark has one.
type Progress struct {
	QueryName              string           `json:"query_name"`
	QueryID                string           `json:"query_id"`
	BatchID                int64            `json:"batch_id"`
	Epoch                  int64            `json:"epoch"`
	StartedAt              time.Time        `json:"started_at"`
	CommittedAt            time.Time        `json:"committed_at"`
	InputRows              int64            `json:"input_rows"`
	OutputRows             int64            `json:"output_rows"`
	RowsFiltered           int64            `json:"rows_filtered"`
	RowsDuplicate          int64            `json:"rows_duplicate"`
	RowsDroppedByWatermark int64            `json:"rows_dropped_by_watermark"`
	RowsDeadLettered       int64            `json:"rows_dead_lettered"`
	Watermark              *time.Time       `json:"watermark"`
	FreshnessP50Ms         int64            `json:"freshness_p50_ms"`
	FreshnessP95Ms         int64            `json:"freshness_p95_ms"`
	FreshnessMaxMs         int64            `json:"freshness_max_ms"`
	DurationMs             map[string]int64 `json:"duration_ms"`
	Position               json.RawMessage  `json:"position"`
	StateRows              int64            `json:"state_rows"`
	StateBytes             int64            `json:"state_bytes"`
	// LagOffsets is how many offsets were waiting when the batch was planned,
	// beyond what it took.
	LagOffsets int64 `json:"lag_offsets"`
}

// Validate names every conflict of the query's fields at once.
func (q *Query) Validate() error {
	var faults []string
	add := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if q.Name == "" {
		add("a query needs a name")
	}
	if q.Source == nil || q.Transform == nil || q.Checkpoint == nil {
		add("source, transform and checkpoint must be set")
	}
	mains := 0
	for _, o := range q.Outputs {
		if o.Name == operator.Main {
			mains++
		}
	}
	if mains != 1 {
		add("a query has exactly one main sink, this has %d", mains)
	}
	if q.Options.Trigger.Once && q.Options.Trigger.AvailableNow {
		add("trigger: once and availableNow exclude each other")
	}
	if len(faults) > 0 {
		return failure.New(failure.Config, "query %s: %v", q.Name, faults)
	}
	return nil
}

// ordered is the outputs in commit order: the rejected rows, because a rerun goes
// by what stands there, the other side sinks, then the main one.
func (q *Query) ordered() []Output {
	out := make([]Output, 0, len(q.Outputs))
	var main Output
	for _, o := range q.Outputs {
		switch o.Name {
		case operator.Main:
			main = o
		case operator.Rejected:
			out = slices.Insert(out, 0, o)
		default:
			out = append(out, o)
		}
	}
	return append(out, main)
}

func (q *Query) mainOutput() Output {
	outputs := q.ordered()
	return outputs[len(outputs)-1]
}

func (q *Query) defaults() {
	if q.Clock == nil {
		q.Clock = clock.System{}
	}
	if q.Logger == nil {
		q.Logger = slog.Default()
	}
	if q.Options.OnLostCheckpoint == "" {
		q.Options.OnLostCheckpoint = checkpoint.Adopt
	}
	if q.Options.CommitDeadline == 0 {
		q.Options.CommitDeadline = defaultCommitTime
	}
	if q.Options.Lease == 0 {
		q.Options.Lease = defaultLease
	}
	if q.Options.InstanceID == "" {
		q.Options.InstanceID = clock.Nonce()
	}
}

func (q *Query) alert(text string) {
	q.Logger.Warn(text, "query", q.Name)
	if q.OnAlert != nil {
		q.OnAlert(text)
	}
}
