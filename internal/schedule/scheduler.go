package schedule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
)

const (
	// waitMax bounds one wait, so that a wall clock that was set is noticed.
	waitMax = time.Minute
	// backOffMax bounds the pause between two tries.
	backOffMax = 10 * time.Minute
	// errorBytesMax bounds the error that a row keeps.
	errorBytesMax = 4_000
	// faultScope qualifies the crash points of jobs.
	faultScope = "jobs"
)

// Options make a Scheduler.
type Options struct {
	Jobs   []*Job
	Book   Book
	Clock  clock.Clock
	Logger *slog.Logger
	// OnRun hears of runs that begin (Status Running) and end. May be nil.
	OnRun func(Run)
}

// Scheduler runs jobs until its context ends.
type Scheduler struct {
	o Options

	mu      sync.Mutex
	plan    *planner
	records map[string]Record
	wake    chan struct{}
	opened  bool
}

// New makes a scheduler; Run or RunAll starts it.
func New(o Options) (*Scheduler, error) {
	if o.Book == nil || o.Clock == nil {
		return nil, errors.New("a scheduler needs a book and a clock")
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Scheduler{o: o, wake: make(chan struct{}, 1)}, nil
}

// Committed says that a query has committed rows. It never blocks, and may be
// called before Run: jobs that commits start are due then anyway.
func (s *Scheduler) Committed(query string) {
	s.mu.Lock()
	if s.plan != nil {
		s.plan.committed(query, s.o.Clock.Now())
	}
	s.mu.Unlock()
	s.poke()
}

func (s *Scheduler) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// open reads the history, and closes what a killed process left open.
func (s *Scheduler) open(ctx context.Context) error {
	if s.opened {
		return nil
	}
	var names []string
	for _, j := range s.o.Jobs {
		names = append(names, j.Name)
	}
	now := s.o.Clock.Now()
	records, interrupted, err := s.o.Book.Open(ctx, names, now)
	if err != nil {
		return fmt.Errorf("read the history of jobs: %w", err)
	}
	for _, r := range interrupted {
		s.o.Logger.Warn("a run was interrupted when the process ended", "job", r.Job, "run", r.ID)
		s.tell(r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plan = newPlanner(s.o.Jobs, records, interrupted, now)
	s.records, s.opened = records, true
	return nil
}

// Run starts jobs as they are due, until ctx ends; runs under way are then told
// to stop, and recorded as interrupted.
func (s *Scheduler) Run(ctx context.Context) error {
	if err := s.open(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for ctx.Err() == nil {
		now := s.o.Clock.Now()
		s.mu.Lock()
		due := s.plan.due(now)
		next := s.plan.next()
		s.mu.Unlock()
		for _, st := range due {
			wg.Go(func() {
				ok := s.run(ctx, st.job.Job, st.trigger, st.slot)
				s.mu.Lock()
				s.plan.ended(st.job.Name, ok, s.o.Clock.Now())
				s.mu.Unlock()
				s.poke()
			})
		}
		if len(due) > 0 {
			continue
		}
		wait := waitMax
		if !next.IsZero() {
			wait = min(waitMax, max(next.Sub(now), time.Millisecond))
		}
		s.sleep(ctx, wait)
	}
	return nil
}

// sleep waits for d, an event, or the end.
func (s *Scheduler) sleep(ctx context.Context, d time.Duration) {
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	slept := make(chan struct{})
	go func() {
		defer close(slept)
		_ = s.o.Clock.Sleep(sctx, d)
	}()
	select {
	case <-s.wake:
	case <-slept:
	}
	cancel()
	<-slept
}

// RunAll runs every job once, each after those that it waits for, and reports
// the first that failed: the end of a pipeline that was told to run once.
func (s *Scheduler) RunAll(ctx context.Context) error {
	if err := s.open(ctx); err != nil {
		return err
	}
	done := map[string]bool{}
	failed := map[string]bool{}
	var first error
	for len(done) < len(s.o.Jobs) {
		before := len(done)
		for _, j := range s.o.Jobs {
			if done[j.Name] || !allIn(done, j.AfterJob) {
				continue
			}
			done[j.Name] = true
			if anyIn(failed, j.AfterJob) {
				failed[j.Name] = true
				continue
			}
			if err := s.RunOne(ctx, j, TriggerManual); err != nil {
				failed[j.Name] = true
				if first == nil {
					first = err
				}
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		if len(done) == before {
			return errors.New("jobs wait for each other")
		}
	}
	return first
}

func allIn(set map[string]bool, names []string) bool {
	for _, n := range names {
		if !set[n] {
			return false
		}
	}
	return true
}

func anyIn(set map[string]bool, names []string) bool {
	for _, n := range names {
		if set[n] {
			return true
		}
	}
	return false
}

// RunOne runs a job now, with its retries, and keeps its history.
func (s *Scheduler) RunOne(ctx context.Context, j *Job, trigger string) error {
	if err := s.open(ctx); err != nil {
		return err
	}
	r, err := s.perform(ctx, j, trigger, s.o.Clock.Now())
	if err != nil {
		return fmt.Errorf("job %s (run %s): %w", j.Name, r.ID, err)
	}
	return nil
}

// run is RunOne for the loop, which goes on whatever happens.
func (s *Scheduler) run(ctx context.Context, j *Job, trigger string, slot time.Time) bool {
	r, err := s.perform(ctx, j, trigger, slot)
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrNotYet) {
		s.o.Logger.Error("job failed", "job", j.Name, "run", r.ID, "tries", r.Tries, "error", err)
	}
	return err == nil
}

// perform does one run from begin to end.
func (s *Scheduler) perform(ctx context.Context, j *Job, trigger string, slot time.Time) (Run, error) {
	r := Run{ID: clock.Nonce(), Job: j.Name, Trigger: trigger, ScheduledFor: slot, StartedAt: s.o.Clock.Now(), Status: Running}
	if err := s.o.Book.Begin(ctx, r); err != nil {
		return r, fmt.Errorf("record the start of job %s: %w", j.Name, err)
	}
	s.tell(r)
	fault.Reach(faultScope, fault.JobBegun)
	err := s.tries(ctx, j, &r)
	fault.Reach(faultScope, fault.JobDone)
	ended := s.o.Clock.Now()
	r.EndedAt, r.Status = &ended, Succeeded
	switch {
	case ctx.Err() != nil && err != nil:
		r.Status, r.Error = Interrupted, "the process was told to stop"
	case err != nil:
		r.Status, r.Error = Failed, err.Error()
		if errors.Is(err, ErrNotYet) {
			r.Status = Waiting
		}
		if len(r.Error) > errorBytesMax {
			r.Error = r.Error[:errorBytesMax]
		}
	}
	if berr := s.o.Book.End(context.WithoutCancel(ctx), r); berr != nil {
		return r, errors.Join(err, fmt.Errorf("record the end of job %s: %w", j.Name, berr))
	}
	fault.Reach(faultScope, fault.JobRecorded)
	s.tell(r)
	return r, err
}

// tries does the work until it goes well, or further tries are of no use.
func (s *Scheduler) tries(ctx context.Context, j *Job, r *Run) error {
	pause := j.BackOff
	for {
		r.Tries++
		err := s.try(ctx, j, r)
		if err == nil || ctx.Err() != nil || r.Tries > j.Retries || hopeless(err) {
			return err
		}
		s.o.Logger.Warn("job failed, it is tried again", "job", j.Name, "run", r.ID, "try", r.Tries, "pause", pause, "error", err)
		if s.o.Clock.Sleep(ctx, pause) != nil {
			return err
		}
		pause = min(2*pause, backOffMax)
	}
}

func (s *Scheduler) try(ctx context.Context, j *Job, r *Run) (err error) {
	tctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if j.Timeout > 0 {
		go func() {
			if s.o.Clock.Sleep(tctx, j.Timeout) == nil {
				cancel(failure.New(failure.Runtime, "job %s took longer than %s", j.Name, j.Timeout))
			}
		}()
	}
	r.Detail, err = j.Do(tctx, *r)
	if err != nil && ctx.Err() == nil && tctx.Err() != nil {
		return context.Cause(tctx)
	}
	return err
}

// ErrNotYet is what a job's error wraps where what it works on is not there yet.
// Such a run has not failed; jobs after it do not start.
var ErrNotYet = errors.New("there is nothing to work on yet")

// hopeless errors come again however often one tries.
func hopeless(err error) bool {
	if errors.Is(err, ErrNotYet) {
		return true // its trigger comes again
	}
	switch failure.ClassOf(err) {
	case failure.Config, failure.SchemaConflict, failure.Mismatch:
		return true
	}
	return false
}

func (s *Scheduler) tell(r Run) {
	if s.o.OnRun != nil {
		s.o.OnRun(r)
	}
}
