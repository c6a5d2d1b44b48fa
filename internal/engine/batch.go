package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/checkpoint"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/sink"
)

// run is a query between its claim and its end. It belongs to one goroutine.
type run struct {
	q      *Query
	log    *checkpoint.Log
	state  stateStore
	epoch  marker.Epoch
	id     identity
	sinks  []claimed // commit order: side sinks, then the main one
	pos    batch.Position
	mark   marker.Watermark
	next   int64 // the batch id that the next plan gets
	stateT []marker.StateFile
	last   time.Time // batch time of the last batch
	// since is where the operators' state began with nothing, nil where with the
	// query.
	since *batch.KafkaPosition
	// erased names the erasures of the source that the state knows of.
	erased string
	// limit is the marker of a side sink that holds the next batch already and
	// so fixes where it ends; nil otherwise.
	limit *marker.Marker
	// lastCare is when the tables were looked after last.
	lastCare checkpoint.CareEntry
	// caring ends with the run: what table care does beside the batches ends with it.
	caring context.Context
}

// identity is who the query is, for every file and marker that is written.
type identity struct {
	queryID     string
	predecessor string
	instance    string
}

// claimed is a sink that holds our epoch, the permit that proves it, and the
// marker that stands in it now.
type claimed struct {
	Output
	permit sink.Permit
	head   *marker.Marker
}

// attempt is one try of one batch: what the steps hand on to each other.
type attempt struct {
	plan     checkpoint.Plan
	planHash string
	nonce    string
	rerun    bool
	started  time.Time
	lag      int64
	end      batch.Position
	erased   int64 // rows of the batch that are gone from the source on purpose, at most
	result   operator.Result
	state    []marker.StateFile
	staged   []sink.Staged // by index of run.sinks
	marker   marker.Marker // as the main sink gets it, but for the sink's own fields
	took     map[string]time.Duration
	tookFrom time.Time
	// For observers: the steps that are over and the one under way, when the
	// source had given everything, and the snapshots of the commits by output.
	steps     []Step
	doing     string
	readEnd   time.Time
	snapshots map[string]int64
}

// lap closes the timing of a step.
func (r *run) lap(a *attempt, step string) {
	now := r.q.Clock.Now()
	a.took[step] += now.Sub(a.tookFrom)
	a.record(step, a.tookFrom, now)
	a.tookFrom = now
}

// runBatch takes one micro-batch from the source to the commit log. pending is
// the plan of a batch that an earlier run left without a commit, nil to plan a
// new one. It reports false where there was nothing new.
func (r *run) runBatch(ctx context.Context, pending *checkpoint.Plan) (did bool, err error) {
	// 1 plan. offsets/N is durable before anything is read: a batch that is
	// run again reads the same offsets under the same clock.
	a, err := r.plan(ctx, pending)
	if err != nil || a == nil {
		return false, err
	}
	fault.Reach(r.q.Name, fault.PlanWritten)
	r.lap(a, "plan")
	r.observeStart(a)
	defer func() { r.observeEnd(a, err, ctx.Err() != nil) }()

	for try := 1; ; try++ {
		a.nonce = clock.Nonce()
		if err := r.forgetErased(ctx); err != nil {
			return false, err
		}
		// 2 read, 3 transform and 4 stage overlap: rows stream from the source
		// through the operators into the sinks' staging files. Nothing that
		// these steps write is visible to anybody.
		if err := r.readTransformStage(ctx, a); err != nil {
			r.q.Transform.Rollback()
			return false, err
		}
		// The sum check stands between staging and the first commit: a row that
		// is unaccounted for stops the query while nothing is visible.
		if err := r.checkSums(a); err != nil {
			r.q.Transform.Rollback()
			return false, err
		}
		if err := r.stageState(ctx, a); err != nil {
			r.q.Transform.Rollback()
			return false, err
		}
		r.lap(a, "stage")
		fault.Reach(r.q.Name, fault.StageDone)

		// A stop that has arrived abandons the batch here, at the last line
		// before the world is touched. The plan stays and is run again.
		if ctx.Err() != nil {
			r.q.Transform.Rollback()
			return false, ctx.Err()
		}

		// 5 commit. From here on the batch is finished, stop or not.
		fin, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.q.Options.CommitDeadline)
		err = r.commit(fin, a)
		if errors.Is(err, sink.ErrStale) && try < maxStageAttempts {
			// The staged files have grown so old that orphan removal may take
			// them: the same plan is staged again under a new attempt.
			cancel()
			r.q.Transform.Rollback()
			continue
		}
		if err != nil {
			cancel()
			return false, err
		}
		r.lap(a, "commit")

		// 6 done. commits/N is written from the marker that stands in the sink.
		p := r.progress(a)
		err = r.done(fin, a, p)
		cancel()
		if err != nil {
			return false, err
		}
		fault.Reach(r.q.Name, fault.DoneWritten)

		// 7 report. For people and lag tools; nothing here is ever read back.
		r.report(ctx, p)
		if r.q.OnSetAside != nil && len(a.result.SetAside) > 0 {
			r.q.OnSetAside(a.result.SetAside, a.plan.Watermark.Micros)
		}
		fault.Reach(r.q.Name, fault.ReportDone)
		return true, nil
	}
}

// plan is step 1. It returns nil where there is nothing new.
func (r *run) plan(ctx context.Context, pending *checkpoint.Plan) (*attempt, error) {
	now := r.q.Clock.Now()
	a := &attempt{started: now, took: map[string]time.Duration{}, tookFrom: now}
	if pending != nil {
		a.plan, a.rerun = *pending, true
		a.planHash = checkpoint.PlanHash(a.plan)
		return a, nil
	}
	planned, err := r.q.Source.Plan(ctx, r.pos, r.planLimit())
	if err != nil {
		return nil, err
	}
	end, batchTime := planned.End, maxTime(r.last, now)
	if r.limit != nil {
		// After an adoption, a side sink that already holds this batch fixes
		// where it ends: another cut would double or drop the side's rows.
		end, batchTime = r.limit.Position.Clone(), r.limit.BatchTime
	}
	if planned.Start.Offsets(end) == 0 && r.limit == nil && !r.releases(end) {
		return nil, nil
	}
	a.lag = end.Offsets(planned.Latest)
	w, err := r.log.WritePlan(ctx, checkpoint.Plan{
		QueryID: r.id.queryID, BatchID: r.next, Epoch: r.epoch,
		Start: planned.Start, End: end,
		// Never before the last batch, so that no clock jump reorders batches.
		BatchTime: batchTime,
		Watermark: r.mark, Transform: r.q.Transform.Fingerprint(),
	})
	if err != nil {
		return nil, err
	}
	if !w.Ours {
		// Somebody wrote offsets/N first. An older epoch's plan was made by a
		// run that our claim has fenced: its offsets start where we stand, so
		// it is run as it is. A newer one fences us.
		if err := r.judge(w.Plan); err != nil {
			return nil, err
		}
		a.rerun = true
	}
	a.plan, a.planHash = w.Plan, w.Hash
	return a, nil
}

// judge says whether a plan of another epoch may be run by this one.
func (r *run) judge(p checkpoint.Plan) error {
	if p.Epoch.Number >= r.epoch.Number || p.QueryID != r.id.queryID {
		return failure.New(failure.Fenced, "query %s: batch %d was planned by epoch %s, this run is epoch %s",
			r.q.Name, p.BatchID, p.Epoch, r.epoch).WithHint("another instance runs the query; stop one of them")
	}
	if !p.Start.SameOffsets(r.pos) {
		return failure.New(failure.Checkpoint, "query %s: offsets/%d of epoch %s starts at %s, the sink stands at %s",
			r.q.Name, p.BatchID, p.Epoch, p.Start, r.pos)
	}
	return nil
}

// planLimit is the bound of the next batch in offsets.
func (r *run) planLimit() int64 {
	if r.q.Options.Trigger.Once {
		return 0
	}
	return r.q.Options.MaxOffsetsPerTrigger
}

// commit is step 5: side sinks first, the main sink last. Sinks that hold the
// batch already (a rerun after a crash between two of them) are left alone.
func (r *run) commit(ctx context.Context, a *attempt) error {
	a.marker = r.markerOf(a)
	if err := r.prepare(ctx, a); err != nil {
		return err
	}
	err := r.commitPrepared(ctx, a)
	if p, _, _ := r.rejecting(); p != nil && err != nil {
		p.Discard()
	}
	return err
}

func (r *run) commitPrepared(ctx context.Context, a *attempt) error {
	if len(r.sinks) > 1 {
		// What every sink will commit is durable before the first one does: a
		// binary that can no longer compute the batch can still finish it.
		if err := r.log.WriteStaged(ctx, r.stagedManifest(a)); err != nil {
			return err
		}
	}
	return r.commitSinks(ctx, a)
}

func (r *run) commitSinks(ctx context.Context, a *attempt) error {
	for i := range r.sinks {
		s := &r.sinks[i]
		if s.head.BatchID == a.plan.BatchID {
			continue
		}
		m := a.marker
		m.RenewedAt = r.q.Clock.Now()
		if r.sinks[i].Name != operator.Main {
			m.State = nil
		}
		got, err := s.Sink.Commit(ctx, s.permit, s.head, a.staged[i], &m)
		if err != nil {
			return fmt.Errorf("query %s, batch %d: %w", r.q.Name, a.plan.BatchID, err)
		}
		s.head = got.Marker
		if a.snapshots == nil {
			a.snapshots = map[string]int64{}
		}
		a.snapshots[s.Name] = got.SnapshotID
		if s.Name == operator.Main {
			// An earlier attempt may have landed: then its state files count.
			a.marker = *got.Marker
			a.state = got.Marker.State
		}
	}
	return nil
}

// done is step 6 and moves the run to the next batch.
func (r *run) done(ctx context.Context, a *attempt, p Progress) error {
	if err := r.log.WriteCommit(ctx, checkpoint.CommitEntry{
		QueryID: r.id.queryID, BatchID: a.plan.BatchID, Marker: r.main().head, Progress: encode(p),
	}); err != nil {
		return err
	}
	r.pos = a.marker.Position.Clone()
	r.mark = a.marker.Watermark
	r.last = a.plan.BatchTime
	r.next = a.plan.BatchID + 1
	r.stateT = a.state
	r.limit = nil
	return nil
}

func (r *run) main() *claimed { return &r.sinks[len(r.sinks)-1] }

// finishStaged commits what an earlier run had staged for every sink, where the
// transform that computed it is not the present one and a side sink holds its
// part of the batch already.
func (r *run) finishStaged(ctx context.Context, st *checkpoint.StagedManifest) error {
	plan, err := r.log.ReadPlan(ctx, st.BatchID)
	if err != nil {
		return err
	}
	now := r.q.Clock.Now()
	a := &attempt{
		plan: *plan, planHash: st.Marker.PlanHash, nonce: clock.Nonce(), rerun: true, started: now,
		took: map[string]time.Duration{}, tookFrom: now, end: st.Marker.Position, state: st.Marker.State,
		result: operator.Result{Counters: st.Marker.Counters, Watermark: st.Marker.Watermark},
	}
	a.marker = *st.Marker
	a.marker.Epoch, a.marker.Attempt, a.marker.Instance = r.epoch, a.nonce, r.id.instance
	a.staged = make([]sink.Staged, len(r.sinks))
	for i, s := range r.sinks {
		a.staged[i].Attempt = a.nonce
		for _, f := range st.Sinks[s.Sink.Name()] {
			a.staged[i].Rows += f.Rows
			a.staged[i].Files = append(a.staged[i].Files, sink.StagedFile(f))
		}
	}
	fin, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.q.Options.CommitDeadline)
	defer cancel()
	err = r.commitSinks(fin, a)
	if errors.Is(err, sink.ErrStale) {
		return failure.Wrap(failure.Checkpoint, err, "query %s: batch %d is half visible and can no longer be finished", r.q.Name, st.BatchID).
			WithHint("start once with the configuration and version that planned the batch, then change them")
	}
	if err != nil {
		return err
	}
	p := r.progress(a)
	if err := r.done(fin, a, p); err != nil {
		return err
	}
	r.report(ctx, p)
	// The operators in memory stand at the batch before; the files do not.
	return r.restoreState(ctx, r.main().head, checkpoint.Decision{})
}

// markerOf is what the sinks will remember of the attempt.
func (r *run) markerOf(a *attempt) marker.Marker {
	return marker.Marker{
		Format: marker.Format, Kind: marker.KindStream,
		QueryName: r.q.Name, QueryID: r.id.queryID, Predecessor: r.id.predecessor,
		BatchID: a.plan.BatchID, Epoch: r.epoch, Attempt: a.nonce, PlanHash: a.planHash,
		Position: a.end, Watermark: a.result.Watermark, BatchTime: a.plan.BatchTime,
		Transform: r.q.Transform.Fingerprint(), State: a.state, Counters: a.result.Counters,
		Instance: r.id.instance, RenewedAt: r.q.Clock.Now(),
	}
}

func (r *run) stagedManifest(a *attempt) checkpoint.StagedManifest {
	m := checkpoint.StagedManifest{
		QueryID: r.id.queryID, BatchID: a.plan.BatchID, Attempt: a.nonce,
		Transform: a.marker.Transform, Marker: &a.marker, Sinks: map[string][]checkpoint.StagedFiles{},
	}
	for i, s := range r.sinks {
		files := make([]checkpoint.StagedFiles, 0, len(a.staged[i].Files))
		for _, f := range a.staged[i].Files {
			files = append(files, checkpoint.StagedFiles(f))
		}
		m.Sinks[s.Sink.Name()] = files
	}
	return m
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
