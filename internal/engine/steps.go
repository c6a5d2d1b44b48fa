package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"golang.org/x/sync/errgroup"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/source"
)

// readTransformStage is steps 2 to 4 for the data files. Reading and
// transforming run side by side over a bounded channel; the sinks encode in
// the background and push back when they are behind.
func (r *run) readTransformStage(ctx context.Context, a *attempt) error {
	stages, err := r.openStages(ctx, a)
	if err != nil {
		return err
	}
	closed := false
	defer func() {
		if !closed {
			for _, s := range stages {
				s.stage.Abort()
			}
		}
	}()
	read, err := r.stream(ctx, a, stages)
	if err != nil {
		return err
	}
	a.end, a.erased = read.End, read.Erased
	if a.end.Table != nil {
		a.end.Table.Erasures = r.erased
	}
	fault.Reach(r.q.Name, fault.TransformDone)
	r.lap(a, "read_transform")
	closed = true
	a.staged = make([]sink.Staged, len(r.sinks))
	for i := range stages {
		s := &stages[i]
		if s.skip {
			a.staged[i] = sink.Staged{Attempt: a.nonce, Rows: s.rows}
			continue
		}
		st, err := s.stage.Close(ctx)
		if err != nil {
			for _, rest := range stages[i+1:] {
				rest.stage.Abort()
			}
			return fmt.Errorf("query %s: stage %s: %w", r.q.Name, s.name, err)
		}
		if st.Rows != s.rows {
			return failure.New(failure.Runtime, "query %s, batch %d: %d rows were written to %s, its files hold %d; nothing was committed",
				r.q.Name, a.plan.BatchID, s.rows, s.name, st.Rows)
		}
		a.staged[i] = st
	}
	return nil
}

// staging is one output's staging area during an attempt.
type staging struct {
	name   string
	output string
	stage  sink.Stage
	rows   int64
	// skip is set where the sink holds the batch already: rows are counted and
	// dropped.
	skip bool
}

// discard is the staging area of a sink that holds the batch already.
type discard struct{}

func (discard) Write(rec arrow.RecordBatch) error          { rec.Release(); return nil }
func (discard) Close(context.Context) (sink.Staged, error) { return sink.Staged{}, nil }
func (discard) Abort()                                     {}

func (r *run) openStages(ctx context.Context, a *attempt) ([]staging, error) {
	out := make([]staging, len(r.sinks))
	for i, s := range r.sinks {
		out[i] = staging{name: s.Sink.Name(), output: s.Name, stage: discard{}}
		if s.head.BatchID == a.plan.BatchID {
			out[i].skip = true
			continue
		}
		if s.Name == operator.Rejected {
			continue // opened when the store has said which rows: see prepare
		}
		st, err := s.Sink.Stage(ctx, a.plan.BatchID, a.nonce)
		if err != nil {
			for _, o := range out[:i] {
				o.stage.Abort()
			}
			return nil, fmt.Errorf("query %s: open staging of %s: %w", r.q.Name, s.Sink.Name(), err)
		}
		out[i].stage = st
	}
	return out, nil
}

// stream moves every row of the batch from the source through the transform
// into the staging areas.
func (r *run) stream(ctx context.Context, a *attempt, stages []staging) (source.ReadResult, error) {
	t := r.q.Transform
	if err := t.Begin(operator.Env{
		BatchID: a.plan.BatchID, BatchTimeMicros: a.plan.BatchTime.UnixMicro(), Watermark: a.plan.Watermark,
		Upstream: upstreamWatermark(a.plan.End), Partitions: partitionsOf(a.plan.End),
		Context: ctx,
	}); err != nil {
		return source.ReadResult{}, err
	}
	emit := func(output string, rec arrow.RecordBatch) error {
		for i := range stages {
			if stages[i].output == output {
				stages[i].rows += rec.NumRows()
				return stages[i].stage.Write(rec)
			}
		}
		rec.Release()
		return failure.New(failure.Config, "query %s: rows for output %q, which has no sink", r.q.Name, output)
	}
	records := make(chan arrow.RecordBatch, recordsInFlight)
	var read source.ReadResult
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(records)
		var err error
		read, err = r.q.Source.Read(gctx, a.plan.Start, a.plan.End, source.ReadEnv{BatchTimeMicros: a.plan.BatchTime.UnixMicro()},
			func(rec arrow.RecordBatch) error {
				select {
				case records <- rec:
					return nil
				case <-gctx.Done():
					rec.Release()
					return gctx.Err()
				}
			})
		if err != nil {
			return err
		}
		a.readEnd = r.q.Clock.Now()
		fault.Reach(r.q.Name, fault.ReadDone)
		return nil
	})
	g.Go(func() error {
		for rec := range records {
			if err := t.Process(rec, emit); err != nil {
				// The reader is woken by gctx; what it still holds is released.
				go drain(records)
				return err
			}
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return read, err
	}
	var err error
	a.result, err = t.Finish(emit)
	return read, err
}

func drain(records <-chan arrow.RecordBatch) {
	for rec := range records {
		rec.Release()
	}
}

// checkSums is the last look before anything becomes visible: every row that
// was read has ended in a counted place, and every emitted row is in a file.
func (r *run) checkSums(a *attempt) error {
	c := a.result.Counters
	fail := func(format string, args ...any) error {
		return failure.New(failure.Runtime, "query %s, batch %d: %s; nothing was committed", r.q.Name, a.plan.BatchID,
			fmt.Sprintf(format, args...)).WithHint("this is a defect: keep the checkpoint folder and report it")
	}
	if !c.Balanced() {
		return fail("%d rows read, but %d emitted + %d aggregated + %d filtered + %d duplicate + %d late + %d dead-lettered",
			c.Read, c.Emitted-c.Results, c.Aggregated, c.Filtered, c.Duplicate, c.Late, c.DeadLettered)
	}
	for i, s := range r.sinks {
		want := c.Emitted
		switch s.Name {
		case operator.DeadLetter:
			want = c.DeadLettered
		case operator.Rejected:
			want = 0
		}
		if a.staged[i].Rows != want {
			return fail("%d rows for %s, %d in its files", want, s.Sink.Name(), a.staged[i].Rows)
		}
		// A side sink that committed the batch before rows of it were erased has
		// counted those as well.
		erased := s.head.Counters.Read - c.Read
		if p, _, _ := r.rejecting(); p == nil && s.head.BatchID == a.plan.BatchID && s.head.Counters != c && (erased <= 0 || erased > a.erased) {
			return r.otherCounts(a, s)
		}
	}
	return nil
}

// stageState makes the operators' state of version N durable. The commit's
// marker names it, so it must be there first.
func (r *run) stageState(ctx context.Context, a *attempt) error {
	a.state = nil
	for _, op := range r.q.Transform.State() {
		var parent *marker.StateFile
		for i := range r.stateT {
			if r.stateT[i].Operator == op.Name() {
				parent = &r.stateT[i]
			}
		}
		f, err := r.state.Save(ctx, r.id.queryID, op, a.plan.BatchID, a.nonce, parent)
		if err != nil {
			return fmt.Errorf("query %s, batch %d: save state of %s: %w", r.q.Name, a.plan.BatchID, op.Name(), err)
		}
		f.Definition, f.Since = r.q.definitionOf(op.Name()), r.since
		a.state = append(a.state, f)
		fault.Reach(r.q.Name, fault.StageState)
	}
	return nil
}

// progress is the batch's row of ops.stream_progress.
func (r *run) progress(a *attempt) Progress {
	p := r.progressOf(r.main().head)
	p.StartedAt, p.LagOffsets = a.started, a.lag
	for step, d := range a.took {
		p.DurationMs[step] = d.Milliseconds()
	}
	p.DurationMs["triggerExecution"] = p.CommittedAt.Sub(a.started).Milliseconds()
	p.FreshnessP50Ms, p.FreshnessP95Ms, p.FreshnessMaxMs = freshness(a.result.EventMicros, p.CommittedAt)
	for _, op := range r.q.Transform.State() {
		p.StateRows += op.Keys()
		p.StateBytes += op.Bytes()
	}
	return p
}

// progressOf is what a marker alone knows of its batch: all counts, but neither
// durations nor freshness. It is the row of a batch whose run died before it
// could write one.
func (r *run) progressOf(m *marker.Marker) Progress {
	p := Progress{
		QueryName: r.q.Name, QueryID: m.QueryID, BatchID: m.BatchID, Epoch: m.Epoch.Number,
		StartedAt: m.BatchTime, CommittedAt: r.q.Clock.Now(),
		InputRows: m.Counters.Read, OutputRows: m.Counters.Emitted,
		RowsFiltered: m.Counters.Filtered, RowsDuplicate: m.Counters.Duplicate,
		RowsDroppedByWatermark: m.Counters.Late, RowsDeadLettered: m.Counters.DeadLettered,
		DurationMs: map[string]int64{}, Position: encode(m.Position),
	}
	if m.Watermark.Micros != marker.MinTime {
		w := time.UnixMicro(m.Watermark.Micros).UTC()
		p.Watermark = &w
	}
	return p
}

// reappendProgress queues the rows of batches that an earlier run committed
// and whose progress is not visible yet.
func (r *run) reappendProgress(ctx context.Context) error {
	if r.q.Progress == nil {
		return nil
	}
	recorded, err := r.q.Progress.Recorded(ctx, r.q.Name, r.id.queryID)
	if err != nil {
		return err
	}
	entries, err := r.log.Commits(ctx, recorded+1)
	if err != nil {
		return err
	}
	for _, e := range entries {
		p := r.progressOf(e.Marker)
		if len(e.Progress) > 0 {
			if err := json.Unmarshal(e.Progress, &p); err != nil {
				return fmt.Errorf("progress in commits/%d: %w", e.BatchID, err)
			}
		}
		r.q.Progress.Add(p)
	}
	return nil
}

// freshness is now minus event time over the sample, in milliseconds.
func freshness(eventMicros []int64, now time.Time) (p50, p95, most int64) {
	if len(eventMicros) == 0 {
		return 0, 0, 0
	}
	ages := make([]int64, len(eventMicros))
	for i, e := range eventMicros {
		ages[i] = (now.UnixMicro() - e) / 1000
	}
	slices.Sort(ages)
	at := func(q float64) int64 { return ages[int(q*float64(len(ages)-1))] }
	return at(0.5), at(0.95), ages[len(ages)-1]
}

// report is step 7. Failures are logged: nothing depends on it.
func (r *run) report(ctx context.Context, p Progress) {
	if r.q.Progress != nil {
		r.q.Progress.Add(p)
	}
	if r.q.OnProgress != nil {
		r.q.OnProgress(p)
	}
	if err := r.q.Source.Report(ctx, r.pos); err != nil && !errors.Is(err, context.Canceled) {
		r.q.Logger.Warn("consumer-group offset not reported", "query", r.q.Name, "error", err)
	}
	r.q.Logger.Info("batch committed", "query", r.q.Name, "batch_id", p.BatchID, "input_rows", p.InputRows,
		"output_rows", p.OutputRows, "late", p.RowsDroppedByWatermark, "dead_lettered", p.RowsDeadLettered,
		"duration_ms", p.DurationMs["triggerExecution"])
}

func encode(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain structs of numbers, strings and times
	}
	return b
}
