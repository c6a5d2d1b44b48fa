package engine

import (
	"time"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/marker"
)

// Observer is told of a query's batches, for traces and lineage. Its methods are
// called by the goroutine that runs the batches: they must not block, and what
// they do decides nothing.
type Observer interface {
	// BatchStarted is called when the plan is durable; BatchEnded after the commit
	// log has the batch, or with Err where it failed or was given up by a stop.
	BatchStarted(BatchRun)
	BatchEnded(BatchRun)
}

// BatchRun is one batch as one process runs it.
type BatchRun struct {
	QueryName string
	QueryID   string
	BatchID   int64
	// Epoch is this process's; PlanEpoch that of the process which planned the
	// batch, a smaller one where that process died.
	Epoch     int64
	PlanEpoch int64
	Attempt   string
	Rerun     bool
	BatchTime time.Time
	// From and To are the plan's positions.
	From, To batch.Position
	Started  time.Time

	// What follows is known at the end only.

	Ended    time.Time
	Steps    []Step
	Counters marker.Counters
	Outputs  []OutputRun
	Err      error
	// Stopped is set where a stop that was asked for gave the batch up.
	Stopped bool
}

// Step is one of plan, read, transform, stage, commit and done. Read and
// transform overlap; where one of them failed they are one, read_transform. A
// batch that is staged again has some of them twice.
type Step struct {
	Name       string
	Start, End time.Time
	// Failed is set on the step that the batch's error came from.
	Failed bool
}

// OutputRun is what a batch wrote to one sink.
type OutputRun struct {
	// Output is operator.Main, operator.DeadLetter or operator.Rejected; Sink its
	// sink's name.
	Output, Sink string
	Rows         int64
	Bytes        int64
	Files        int
	// SnapshotID is of the commit; 0 where the sink has none, or held the batch
	// from an earlier attempt.
	SnapshotID int64
}

// after is the step that follows a lap.
var after = map[string]string{"plan": "read_transform", "read_transform": "stage", "stage": "commit", "commit": "done"}

// record keeps a lap for observers.
func (a *attempt) record(lap string, from, to time.Time) {
	a.doing = after[lap]
	if lap != "read_transform" {
		a.steps = append(a.steps, Step{Name: lap, Start: from, End: to})
		return
	}
	a.steps = append(a.steps, Step{Name: "read", Start: from, End: a.readEnd}, Step{Name: "transform", Start: from, End: to})
}

// observed is the batch as observers are told of it.
func (r *run) observed(a *attempt) BatchRun {
	return BatchRun{
		QueryName: r.q.Name, QueryID: r.id.queryID, BatchID: a.plan.BatchID, Epoch: r.epoch.Number, PlanEpoch: a.plan.Epoch.Number,
		Attempt: a.nonce, Rerun: a.rerun, BatchTime: a.plan.BatchTime, From: a.plan.Start, To: a.plan.End, Started: a.started,
	}
}

// observeStart tells the observers that a batch has been planned.
func (r *run) observeStart(a *attempt) {
	for _, o := range r.q.Observers {
		o.BatchStarted(r.observed(a))
	}
}

// observeEnd tells them how it ended.
func (r *run) observeEnd(a *attempt, err error, stopped bool) {
	if len(r.q.Observers) == 0 {
		return
	}
	b := r.observed(a)
	b.Ended, b.Err, b.Stopped = r.q.Clock.Now(), err, err != nil && stopped
	b.Steps, b.Counters = append(b.Steps, a.steps...), a.result.Counters
	b.Steps = append(b.Steps, Step{Name: a.doing, Start: a.tookFrom, End: b.Ended, Failed: err != nil})
	for i, s := range r.sinks {
		if i >= len(a.staged) || err != nil {
			break
		}
		out := OutputRun{Output: s.Name, Sink: s.Sink.Name(), Rows: a.staged[i].Rows, Files: len(a.staged[i].Files), SnapshotID: a.snapshots[s.Name]}
		for _, f := range a.staged[i].Files {
			out.Bytes += f.Bytes
		}
		b.Outputs = append(b.Outputs, out)
	}
	for _, o := range r.q.Observers {
		o.BatchEnded(b)
	}
}
