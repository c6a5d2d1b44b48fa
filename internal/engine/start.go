package engine

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/checkpoint"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/source"
	"github.com/weirlake/weir/internal/state"
)

// stateStore is what the engine needs of package state.
type stateStore interface {
	Save(ctx context.Context, queryID string, op operator.Stateful, version int64, attempt string, parent *marker.StateFile) (marker.StateFile, error)
	Load(ctx context.Context, queryID string, op operator.Stateful, tip marker.StateFile) error
	Purge(ctx context.Context, tip marker.StateFile) error
}

func (q *Query) stateOptions() state.Options {
	return state.Options{Query: q.Name, PartBytes: q.Options.StatePartBytes}
}

// lock is the first step of a start. On an object store there is no file lock;
// the lease in the marker and the epochs stand alone there.
func (q *Query) lock() (func(), error) {
	if q.LockDir == "" {
		return func() {}, nil
	}
	l, err := checkpoint.Acquire(q.LockDir, q.Options.InstanceID, q.Options.TakeOver)
	if err != nil {
		return nil, err
	}
	return func() { _ = l.Release() }, nil
}

// observed are the facts that a decision is made from.
type observed struct {
	check   checkpoint.Facts
	sinks   []sink.Facts // by index of Query.ordered()
	forD    []checkpoint.SinkFacts
	source  checkpoint.SourceFacts
	initial batch.Position
	forgave []source.Violation
}

// start decides and claims. It returns the run and the plan of a batch that an
// earlier run left without a commit, if there is one.
func (q *Query) start(ctx context.Context) (*run, *checkpoint.Plan, error) {
	outputs := q.ordered()
	r := &run{q: q, log: checkpoint.Open(q.Checkpoint, q.Name), state: state.NewStore(q.Checkpoint, q.stateOptions())}
	waited := false
	self := q.self()
	for range maxStartAttempts {
		obs, d, err := q.decide(ctx, r.log, outputs, &self)
		if err != nil {
			return nil, nil, err
		}
		if d.RetryAfter > 0 && !waited {
			// Another deployment's marker looks alive. Wait out one lease: if it
			// is renewed meanwhile, the next decision refuses.
			q.Logger.Warn("another instance held the query; waiting for its lease to run out", "query", q.Name, "wait", d.RetryAfter)
			waited = true
			if d.RetryAfter >= self.Lease {
				self.Waited = obs.renewals()
			}
			if err := q.Clock.Sleep(ctx, d.RetryAfter); err != nil {
				return nil, nil, err
			}
			continue
		}
		if err := q.admit(obs, d); err != nil {
			return nil, nil, err
		}
		q.Logger.Info("decided", "query", q.Name, "outcome", d.Outcome.String(), "reason", d.Reason)
		for _, n := range d.Notes {
			q.Logger.Warn(n, "query", q.Name)
		}
		if d.Alert != "" {
			q.alert(d.Alert)
		}
		moved, err := r.claim(ctx, outputs, obs, d)
		if err != nil {
			return nil, nil, err
		}
		if moved {
			continue
		}
		fault.Reach(q.Name, fault.ClaimDone)
		pending, err := r.takeUp(ctx, obs, d)
		return r, pending, err
	}
	return nil, nil, failure.New(failure.Fenced, "query %s: lost the race for the claim %d times", q.Name, maxStartAttempts).
		WithHint("several instances of the query are being started; keep one")
}

// looksMax bounds how often a start looks at facts that contradict each other.
const looksMax = 3

// decide is what a start goes by: the facts as they are now, and what follows
// from them. It changes nothing. The sinks are read one after the other, and
// another instance may commit between two of them: facts that contradict each
// other count when a second look finds the same markers.
func (q *Query) decide(ctx context.Context, log *checkpoint.Log, outputs []Output, self *checkpoint.Self) (*observed, checkpoint.Decision, error) {
	var before *observed
	for look := 1; ; look++ {
		obs, err := q.observe(ctx, log, outputs)
		if err != nil {
			return nil, checkpoint.Decision{}, err
		}
		self.Now = q.Clock.Now()
		d := checkpoint.Decide(obs.check, obs.forD, obs.source, q.Options.OnLostCheckpoint, *self)
		contradict := d.Outcome == checkpoint.OutcomeSinkRewound || d.Outcome == checkpoint.OutcomeCorrupt
		if !contradict || look == looksMax || (before != nil && before.sameMarkers(obs)) {
			return obs, d, nil
		}
		before = obs
	}
}

func (o *observed) sameMarkers(other *observed) bool {
	return slices.EqualFunc(o.sinks, other.sinks, func(a, b sink.Facts) bool { return reflect.DeepEqual(a.Marker, b.Marker) })
}

// admit says why a query must not go on from a decision, before anything is
// claimed.
func (q *Query) admit(obs *observed, d checkpoint.Decision) error {
	if err := d.Err(); err != nil {
		return err
	}
	if err := q.checkDefinition(obs, d); err != nil {
		return err
	}
	m := d.Claims[q.mainOutput().Sink.Name()]
	if m == nil {
		return nil // the claim says so
	}
	for _, f := range q.stateFates(m, d) {
		if _, grouped := q.Transform.(operator.InputRebuilder); grouped && f.Fate == StateRebuilt && !q.canRescan() {
			return q.cannotRescan()
		}
	}
	return nil
}

// renewals are, by sink, when the marker there was last renewed.
func (o *observed) renewals() map[string]time.Time {
	out := map[string]time.Time{}
	for _, s := range o.forD {
		switch {
		case s.Record != nil:
			out[s.Name] = s.Record.RenewedAt
		case s.Marker != nil:
			out[s.Name] = s.Marker.RenewedAt
		}
	}
	return out
}

// self is what this process knows of itself for a decision.
func (q *Query) self() checkpoint.Self {
	return checkpoint.Self{
		QueryName: q.Name, InstanceID: q.Options.InstanceID, NewQueryID: uuid.NewString(),
		Transform: q.Transform.Fingerprint(),
		Now:       q.Clock.Now(), Lease: q.Options.Lease, TakeOver: q.Options.TakeOver,
	}
}

// observe gathers the facts: checkpoint, markers, source.
func (q *Query) observe(ctx context.Context, log *checkpoint.Log, outputs []Output) (*observed, error) {
	obs := &observed{}
	var err error
	if obs.check, err = log.Gather(ctx); err != nil {
		return nil, err
	}
	for _, o := range outputs {
		f, err := o.Sink.Facts(ctx, q.Name)
		if err != nil {
			return nil, fmt.Errorf("query %s: read the marker in %s: %w", q.Name, o.Sink.Name(), err)
		}
		obs.sinks = append(obs.sinks, f)
		facts := checkpoint.SinkFacts{
			Name: o.Sink.Name(), Main: o.Name == operator.Main, Exists: f.Exists, Identity: f.Identity,
			Marker: f.Marker, Others: f.Others, Rewound: f.Rewound, Readable: !f.Unreadable,
		}
		if f.Unreadable {
			if facts.Record = f.Begun; facts.Record == nil {
				facts.Record = f.Marker
			}
		}
		obs.forD = append(obs.forD, facts)
	}
	markers := make([]*marker.Marker, 0, len(obs.sinks))
	for _, f := range obs.sinks {
		markers = append(markers, f.Marker)
	}
	if obs.check.Commit != nil {
		markers = append(markers, obs.check.Commit.Marker) // what counts beside a sink that cannot be read
	}
	if obs.check.HasState, err = log.StatePresence(ctx, markers...); err != nil {
		return nil, err
	}
	at := obs.resumePoint()
	if at == nil && q.noSource != "" {
		return obs, nil
	}
	if at == nil || q.Options.OnLostCheckpoint == checkpoint.Restart {
		// A fresh query: where it would start, for the overlap check.
		if obs.initial, err = q.Source.Initial(ctx); err != nil {
			return nil, err
		}
		obs.source.Assigned = obs.initial.Vector()
	}
	if at == nil {
		return obs, nil
	}
	found, err := q.Source.Verify(ctx, *at)
	if err != nil {
		return nil, err
	}
	for _, v := range found {
		if v.Lost && v.Retention && !q.Options.FailOnDataLoss {
			obs.forgave = append(obs.forgave, v)
			continue
		}
		text := v.Text
		if v.Hint != "" {
			text += " (" + v.Hint + ")"
		}
		obs.source.Changed = append(obs.source.Changed, text)
	}
	obs.source.Forgiven = len(obs.forgave) > 0
	return obs, nil
}

// resumePoint is the position that reading would go on from: the main sink's
// marker, or the checkpoint's where the sink has none that counts.
func (o *observed) resumePoint() *batch.Position {
	main := o.sinks[len(o.sinks)-1]
	if main.Marker != nil && !main.Unreadable {
		return &main.Marker.Position
	}
	if o.check.Commit != nil && o.check.Commit.Marker != nil {
		return &o.check.Commit.Marker.Position
	}
	if main.Unreadable && o.check.Plan != nil {
		return &o.check.Plan.Start
	}
	return nil
}

// claim commits our epoch to every sink as a zero-file snapshot. It reports
// moved where a head was not the one that the decision was made from.
func (r *run) claim(ctx context.Context, outputs []Output, obs *observed, d checkpoint.Decision) (moved bool, err error) {
	r.epoch = marker.Epoch{Number: d.NextEpoch, Nonce: clock.Nonce()}
	r.id = identity{queryID: d.QueryID, predecessor: d.Predecessor, instance: r.q.Options.InstanceID}
	meta := checkpoint.Metadata{
		QueryID: d.QueryID, Predecessor: d.Predecessor, InstanceID: r.id.instance, CreatedAt: r.q.Clock.Now(),
	}
	// Whose checkpoint it is stands there before a sink is touched: a crash
	// between the two is a fresh start again, under the same query id.
	switch d.Outcome {
	case checkpoint.OutcomeRestart:
		err = r.log.Restart(ctx, meta)
	case checkpoint.OutcomeAdopt:
		// Log.Adopt writes the metadata, after the claim has fenced whoever
		// still holds the old folder.
	default:
		_, err = r.log.CreateMetadata(ctx, meta)
	}
	if err != nil {
		return false, err
	}
	fault.Reach(r.q.Name, fault.ClaimBefore)
	r.sinks = r.sinks[:0]
	for i, o := range outputs {
		m, err := r.claimMarker(obs, d, o)
		if err != nil {
			return false, err
		}
		permit, moved, err := o.Sink.Claim(ctx, obs.sinks[i], m)
		if err != nil {
			return false, fmt.Errorf("query %s: claim %s: %w", r.q.Name, o.Sink.Name(), err)
		}
		if moved {
			return true, nil
		}
		r.sinks = append(r.sinks, claimed{Output: o, permit: permit, head: m})
	}
	return false, nil
}

// claimMarker is what the decision puts into the sink, under our epoch.
func (r *run) claimMarker(obs *observed, d checkpoint.Decision, o Output) (*marker.Marker, error) {
	m := d.Claims[o.Sink.Name()]
	if m == nil {
		return nil, fmt.Errorf("query %s: the decision %s has no claim for %s", r.q.Name, d.Outcome, o.Sink.Name())
	}
	if d.Outcome == checkpoint.OutcomeFresh || d.Outcome == checkpoint.OutcomeRestart {
		handed := m.Position.Vector()
		m.Position = obs.initial.Clone()
		handed.Each(func(topic, id string, part int32, p batch.PartitionPosition) {
			m.Position.Vector().Set(topic, id, part, p)
		})
	}
	for _, v := range obs.forgave {
		if !d.UseStaged { // staged files are committed where they were planned
			skipTo(&m.Position, v)
		}
	}
	m.Epoch, m.Attempt = r.epoch, clock.Nonce()
	m.Instance, m.RenewedAt = r.id.instance, r.q.Clock.Now()
	return m, nil
}

// takeUp sets the run to where the decision says it stands: files that the
// outcome owes, operator state, the pending plan.
func (r *run) takeUp(ctx context.Context, obs *observed, d checkpoint.Decision) (*checkpoint.Plan, error) {
	m := r.main().head
	for _, v := range obs.forgave {
		r.q.alert("records lost by retention, going on at the log start: " + v.Text)
	}
	if err := r.settle(ctx, d); err != nil {
		return nil, err
	}
	r.pos, r.mark, r.last, r.next = m.Position.Clone(), m.Watermark, m.BatchTime, d.NextBatchID
	r.stateT = m.State
	r.recallCare(ctx)
	if m.Position.Table != nil {
		r.erased = m.Position.Table.Erasures
	}
	if err := r.restoreState(ctx, m, d); err != nil {
		return nil, err
	}
	if err := r.reappendProgress(ctx); err != nil {
		r.q.Logger.Warn("progress rows of earlier batches not appended again", "query", r.q.Name, "error", err)
	}
	switch {
	case d.UseStaged:
		return nil, r.finishStaged(ctx, obs.check.Staged)
	case d.Outcome == checkpoint.OutcomeRerun:
		return d.Plan, nil
	case d.Outcome == checkpoint.OutcomeAdopt && d.Plan != nil:
		return r.adoptedPlan(ctx, d)
	case d.MustEnd != nil:
		r.limit = d.MustEnd
	}
	return nil, nil
}

// settle makes the checkpoint this run's and writes the files that the outcome
// owes.
func (r *run) settle(ctx context.Context, d checkpoint.Decision) error {
	if d.Outcome == checkpoint.OutcomeAdopt {
		if err := r.log.Adopt(ctx, d, r.id.instance, r.q.Clock.Now()); err != nil {
			return err
		}
	}
	if err := r.recordClaim(ctx); err != nil {
		return err
	}
	kept := map[string]bool{}
	for _, f := range r.main().head.State {
		kept[f.Definition] = true
	}
	if err := r.log.RecordDefinitions(ctx, r.q.readable(), kept); err != nil {
		return err
	}
	if d.Outcome == checkpoint.OutcomeAlreadyCommitted {
		return r.log.WriteCommit(ctx, checkpoint.CommitEntry{
			QueryID: r.id.queryID, BatchID: d.BatchID, Marker: d.Marker, Progress: encode(r.progressOf(d.Marker)),
		})
	}
	return nil
}

// adoptedPlan is the plan of the batch after an adopted one, which a side sink
// holds already. Where the folder has lost it, it was rebuilt from the markers
// and is written under our epoch.
func (r *run) adoptedPlan(ctx context.Context, d checkpoint.Decision) (*checkpoint.Plan, error) {
	p := *d.Plan
	p.Epoch = r.epoch
	w, err := r.log.WritePlan(ctx, p)
	if err != nil {
		return nil, err
	}
	return &w.Plan, nil
}

// recordClaim remembers our epoch, which keeps older runs out of the logs, and
// which tables were claimed, so that one that is dropped and made again is
// noticed.
func (r *run) recordClaim(ctx context.Context) error {
	ids := map[string]string{}
	for _, s := range r.sinks {
		f, err := s.Sink.Facts(ctx, r.q.Name)
		if err != nil {
			return err
		}
		ids[s.Sink.Name()] = f.Identity
	}
	return r.log.RecordClaim(ctx, r.epoch, ids)
}

// skipTo moves the position past records that retention removed, where the
// query is told to go on (failOnDataLoss: false).
func skipTo(p *batch.Position, v source.Violation) {
	vec := p.Vector()
	if pp, ok := vec.Get(v.Topic, v.Partition); ok && pp.NextOffset < v.To {
		pp.NextOffset = v.To
		vec.Set(v.Topic, "", v.Partition, pp)
	}
}

// restoreState loads the operators' state that the marker names, or rebuilds
// it from the main table where it is not there or not the same.
func (r *run) restoreState(ctx context.Context, m *marker.Marker, d checkpoint.Decision) error {
	fates := r.q.stateFates(m, d)
	if r.q.Options.NewState && m.BatchID >= 0 {
		return r.beginAnew(ctx, m)
	}
	from, fromInput := r.q.rebuiltFrom(), r.releasing()
	if d.RebuildState {
		r.q.alert(d.RebuildWhy + "; state is rebuilt from " + from)
	}
	tips := map[string]*marker.StateFile{}
	for i, f := range m.State {
		r.since = f.Since
		tips[f.Operator] = &m.State[i]
	}
	rebuilt := false
	for i, op := range r.q.Transform.State() {
		op.Reset()
		switch fate := fates[i]; fate.Fate {
		case StateNone:
			continue // the query has not committed a batch yet
		case StateKept:
			err := r.state.Load(ctx, r.id.queryID, op, *tips[op.Name()])
			if err == nil {
				continue
			}
			if !unusable(err) {
				return fmt.Errorf("query %s: load state of %s: %w", r.q.Name, op.Name(), err)
			}
			r.q.alert(fmt.Sprintf("state of %s cannot be read (%v); it is rebuilt from %s", op.Name(), err, from))
		default:
			if !d.RebuildState {
				r.q.Logger.Warn(fate.Why+"; state is rebuilt from "+from, "query", r.q.Name, "operator", op.Name())
			}
		}
		rebuilt = true
		if fromInput != nil {
			// All of them at once: what one keeps is made of what another emits.
			if err := r.rebuildInput(ctx, fromInput, m); err != nil {
				return err
			}
			break
		}
		op.Reset()
		if err := r.rebuildMain(ctx, op, m); err != nil {
			return err
		}
	}
	if rebuilt {
		r.stateT = nil // the next version is a snapshot without a parent
	}
	return nil
}
