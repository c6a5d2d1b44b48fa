package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirlake/weir/internal/checkpoint"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/column"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/source"
	"github.com/weirlake/weir/internal/state"
)

// Plan is what a start of the query would do, found out by the start's own code
// up to where it would write.
type Plan struct {
	Query  string     `json:"query"`
	Status PlanStatus `json:"status"`
	// Outcome and Reason are the decision's.
	Outcome string `json:"outcome,omitempty"`
	Reason  string `json:"reason,omitempty"`
	// Refusal is set where the start would refuse.
	Refusal *Refusal `json:"refusal,omitempty"`
	// Computes says that the query computes other rows than it did: other columns,
	// another filter, other code.
	Computes bool        `json:"computes_differently"`
	Tables   []TablePlan `json:"tables"`
	State    []StateFate `json:"state,omitempty"`
	// Position is where reading goes on, Waiting how many offsets lie behind it up
	// to the source's end; -1 where there is no source yet.
	Position string `json:"position,omitempty"`
	Waiting  int64  `json:"waiting"`
	// NextBatch is the next batch's id, PendingBatch that of one that an earlier
	// run left, -1 for none.
	NextBatch    int64 `json:"next_batch"`
	PendingBatch int64 `json:"pending_batch"`
	// Formats are those of what is stored, where this program would write others.
	Formats []FormatChange `json:"formats,omitempty"`
	// WaitSeconds is how long a start would wait for another instance's lease.
	WaitSeconds float64 `json:"wait_seconds,omitempty"`
	// Running is the process that holds the query's checkpoint now. A start would
	// refuse beside it; the rest of the plan is of one after it has stopped.
	Running string   `json:"running,omitempty"`
	Notes   []string `json:"notes,omitempty"`
}

// PlanStatus sums a plan up.
type PlanStatus string

// The statuses. A batch that is only run again, and an epoch that is claimed, are
// no change.
const (
	PlanNew       PlanStatus = "new"
	PlanUnchanged PlanStatus = "unchanged"
	PlanChanged   PlanStatus = "changed"
	PlanRefused   PlanStatus = "refused"
)

// Refusal is the error that a start would end with.
type Refusal struct {
	ExitCode int    `json:"exit_code"`
	Class    string `json:"class"`
	Message  string `json:"message"`
}

// TablePlan is what a start does to a sink. Every one of them is claimed.
type TablePlan struct {
	Table string `json:"table"`
	// Output is main, deadLetter or rejected.
	Output string `json:"output"`
	// Create: it is not there yet. Joins: it is, and the query has no marker in it.
	Create  bool            `json:"create,omitempty"`
	Joins   bool            `json:"joins,omitempty"`
	Columns []column.Change `json:"columns,omitempty"`
}

// FormatChange is a stored thing of another version than this program writes.
type FormatChange struct {
	Of    string `json:"of"`
	Found int    `json:"found"`
	Write int    `json:"writes"`
}

// Plan says what Run would do first, and changes nothing: no lock is taken, no
// sink claimed, no file written. noSource, where it is not empty, says why there
// is nothing to read from before the pipeline is started; a query that has a
// position is looked at all the same.
func (q *Query) Plan(ctx context.Context, noSource string) (*Plan, error) {
	if err := q.Validate(); err != nil {
		return nil, err
	}
	q.defaults()
	q.noSource = noSource
	p := &Plan{Query: q.Name, Waiting: -1, NextBatch: -1, PendingBatch: -1}
	if h := checkpoint.HeldBy(q.LockDir); q.LockDir != "" && h != nil {
		p.Running = fmt.Sprintf("process %d on %s (instance %s)", h.PID, h.Host, h.InstanceID)
	}
	log, self := checkpoint.Open(q.Checkpoint, q.Name), q.self()
	obs, d, err := q.decide(ctx, log, q.ordered(), &self)
	if err == nil && d.RetryAfter > 0 {
		p.WaitSeconds = d.RetryAfter.Seconds()
		p.Notes = append(p.Notes, fmt.Sprintf("another instance held the query a moment ago: a start waits %s for its lease to run out, and refuses if it is renewed", d.RetryAfter.Round(time.Millisecond)))
		if d.RetryAfter >= self.Lease {
			self.Waited = obs.renewals()
		}
		self.Now = self.Now.Add(d.RetryAfter)
		d = checkpoint.Decide(obs.check, obs.forD, obs.source, q.Options.OnLostCheckpoint, self)
	}
	if err != nil {
		return p, p.refuse(err)
	}
	p.Outcome, p.Reason, p.NextBatch = d.Outcome.String(), d.Reason, d.NextBatchID
	p.Notes = append(p.Notes, d.Notes...)
	if d.Alert != "" {
		p.Notes = append(p.Notes, d.Alert)
	}
	if err := q.admit(obs, d); err != nil {
		return p, p.refuse(err)
	}
	return p, p.refuse(q.planClaims(ctx, p, obs, d))
}

// refuse records an error as what the start would end with. An error that is none
// of a start's (the context has ended) is the plan's own.
func (p *Plan) refuse(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	class := failure.ClassOf(err)
	p.Status, p.Refusal = PlanRefused, &Refusal{ExitCode: int(class), Class: class.String(), Message: err.Error()}
	return nil
}

// planClaims goes on after the decision: sinks, state, position.
func (q *Query) planClaims(ctx context.Context, p *Plan, obs *observed, d checkpoint.Decision) error {
	r := &run{q: q, epoch: marker.Epoch{Number: d.NextEpoch, Nonce: clock.Nonce()}, id: identity{queryID: d.QueryID, predecessor: d.Predecessor, instance: q.Options.InstanceID}}
	outputs := q.ordered()
	var main *marker.Marker
	var refused error
	for i, o := range outputs {
		m, err := r.claimMarker(obs, d, o)
		if err != nil {
			return err
		}
		facts := obs.sinks[i]
		t := TablePlan{Table: o.Sink.Name(), Output: o.Name, Create: !facts.Exists, Joins: facts.Exists && facts.Marker == nil && !facts.Unreadable}
		if planner, ok := o.Sink.(sink.Planner); ok && facts.Exists {
			claim, err := planner.PlanClaim(ctx, facts, m)
			t.Columns = claim.Columns
			if err != nil && refused == nil {
				refused = fmt.Errorf("query %s: claim %s: %w", q.Name, o.Sink.Name(), err)
			}
		}
		if o.Name == operator.Main {
			main = m
		}
		p.Tables = append(p.Tables, t)
	}
	slices.Reverse(p.Tables) // the main table first
	if refused != nil {
		return refused
	}
	if err := p.states(ctx, q, main, d); err != nil {
		return err
	}
	if before := obs.sinks[len(obs.sinks)-1].Marker; before != nil && before.Transform != "" {
		p.Computes = before.Transform != q.Transform.Fingerprint()
	}
	if err := p.place(ctx, q, main, d); err != nil {
		return err
	}
	p.formats(ctx, q, obs, main)
	p.Status = p.sum(d)
	return nil
}

// place is where reading goes on.
func (p *Plan) place(ctx context.Context, q *Query, main *marker.Marker, d checkpoint.Decision) error {
	if d.Outcome == checkpoint.OutcomeRerun || d.Outcome == checkpoint.OutcomeAdopt && d.Plan != nil {
		p.PendingBatch = d.Plan.BatchID
	}
	if q.noSource != "" && main.Position.Vector() == nil {
		p.Notes = append(p.Notes, q.noSource)
		return nil
	}
	p.Position = main.Position.String()
	planned, err := q.Source.Plan(ctx, main.Position, 0)
	if err != nil {
		return err
	}
	p.Waiting = planned.Start.Offsets(planned.Latest)
	return nil
}

// formats are the versions of what is stored that this program would write anew
// in its own.
func (p *Plan) formats(ctx context.Context, q *Query, obs *observed, main *marker.Marker) {
	add := func(of string, found, writes int) {
		if found != 0 && found != writes {
			p.Formats = append(p.Formats, FormatChange{of, found, writes})
		}
	}
	for i, o := range q.ordered() {
		if m := obs.sinks[i].Marker; m != nil {
			add("marker in "+o.Sink.Name(), m.Format, marker.Format)
		}
	}
	if obs.check.Exists {
		add("checkpoint", checkpoint.FormatOf(ctx, q.Checkpoint), checkpoint.Format)
	}
}

// states is what becomes of what the query remembers. What would be kept is
// loaded, as the start does, because only that tells whether it can be.
func (p *Plan) states(ctx context.Context, q *Query, main *marker.Marker, d checkpoint.Decision) error {
	p.State = q.stateFates(main, d)
	store := state.NewStore(q.Checkpoint, q.stateOptions())
	for i, op := range q.Transform.State() {
		f := &p.State[i]
		at := slices.IndexFunc(main.State, func(s marker.StateFile) bool { return s.Operator == op.Name() })
		if f.Fate != StateKept || at < 0 {
			continue
		}
		err := store.Load(ctx, d.QueryID, op, main.State[at])
		op.Reset()
		switch {
		case err == nil:
			continue
		case !unusable(err):
			return fmt.Errorf("query %s: load state of %s: %w", q.Name, op.Name(), err)
		}
		f.Fate, f.Why, f.From = StateRebuilt, err.Error(), q.rebuiltFrom()
		if _, grouped := q.Transform.(operator.InputRebuilder); grouped && !q.canRescan() {
			return q.cannotRescan()
		}
	}
	return p.erased(ctx, q, main)
}

// erased: rows that were erased from the source since are taken out of the open
// groups by the first batch.
func (p *Plan) erased(ctx context.Context, q *Query, main *marker.Marker) error {
	src, ok := q.Source.(source.Erasable)
	if _, grouped := q.Transform.(operator.InputRebuilder); !ok || !grouped || main.Position.Table == nil || main.BatchID < 0 {
		return nil
	}
	now, err := src.Erasures(ctx)
	if err != nil || now == main.Position.Table.Erasures || !q.canRescan() {
		return err
	}
	for i := range p.State {
		if f := &p.State[i]; f.Fate == StateKept {
			f.Fate, f.From, f.Why = StateRebuilt, q.rebuiltFrom(), "rows were erased there"
		}
	}
	return nil
}

func (p *Plan) sum(d checkpoint.Decision) PlanStatus {
	if d.Outcome == checkpoint.OutcomeFresh {
		return PlanNew
	}
	changed := p.Computes || len(p.Formats) > 0 || d.Outcome == checkpoint.OutcomeAdopt || d.Outcome == checkpoint.OutcomeRestart ||
		slices.ContainsFunc(p.State, func(f StateFate) bool { return f.Fate == StateRebuilt || f.Fate == StateBegins }) ||
		slices.ContainsFunc(p.Tables, func(t TablePlan) bool { return t.Create || t.Joins || len(t.Columns) > 0 })
	if changed {
		return PlanChanged
	}
	return PlanUnchanged
}
