package app

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/weirlake/weir/internal/check"
	"github.com/weirlake/weir/internal/gold"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/schedule"
)

// jobBoard is what the jobs came to in this process, for the status page.
type jobBoard struct {
	mu   sync.Mutex
	data JobsStatus
}

// JobsStatus is the jobs' part of the status.
type JobsStatus struct {
	Jobs   []JobStatus       `json:"jobs"`
	Checks []check.Result    `json:"checks"`
	Gold   *gold.Result      `json:"gold,omitempty"`
	Tests  []gold.TestResult `json:"tests,omitempty"`
	// CheckedAt is when the checks were last run.
	CheckedAt *time.Time `json:"checked_at,omitempty"`
}

// JobStatus is one job.
type JobStatus struct {
	Name string        `json:"name"`
	What string        `json:"what"`
	When string        `json:"when"`
	Last *schedule.Run `json:"last,omitempty"`
	// Runs and Failures count those of this process.
	Runs     int64 `json:"runs"`
	Failures int64 `json:"failures"`
}

func (b *jobBoard) add(def pipeline.Job) {
	s := JobStatus{Name: def.Name, What: "gold " + def.Gold}
	switch {
	case def.Checks != nil:
		s.What = "checks"
	case def.Command != "":
		s.What = "command"
	}
	var when []string
	if def.Cron != "" {
		when = append(when, "cron "+def.Cron)
	}
	if def.Every > 0 {
		when = append(when, "every "+def.Every.String())
	}
	for _, q := range def.AfterCommit {
		when = append(when, "after commits of "+q)
	}
	for _, j := range def.AfterJob {
		when = append(when, "after job "+j)
	}
	for i, w := range when {
		if i > 0 {
			s.When += ", "
		}
		s.When += w
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data.Jobs = append(b.data.Jobs, s)
}

func (b *jobBoard) run(r schedule.Run) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.data.Jobs {
		if j := &b.data.Jobs[i]; j.Name == r.Job {
			j.Last = &r
			switch r.Status {
			case schedule.Running:
				j.Runs++
			case schedule.Failed:
				j.Failures++
			}
		}
	}
}

func (b *jobBoard) gold(res *gold.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data.Gold = res
	if res.Tests != nil {
		b.data.Tests = res.Tests
	}
}

func (b *jobBoard) tests(t []gold.TestResult) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data.Tests = t
}

// checks lays results over those of earlier runs, by name.
func (b *jobBoard) checks(res []check.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range res {
		b.data.CheckedAt = &r.EvaluatedAt
		i := slices.IndexFunc(b.data.Checks, func(old check.Result) bool { return old.Check == r.Check })
		if i < 0 {
			b.data.Checks = append(b.data.Checks, r)
		} else {
			b.data.Checks[i] = r
		}
	}
}

func (b *jobBoard) snapshot() JobsStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.data
	out.Jobs, out.Checks = slices.Clone(out.Jobs), slices.Clone(out.Checks)
	return out
}

// JobsStatus is what the jobs came to in this process; the zero value where the
// file has none.
func (a *App) JobsStatus() JobsStatus {
	if a.jobs == nil {
		return JobsStatus{}
	}
	return a.jobs.board.snapshot()
}

// runJobsOnce runs every job once, each after those that it waits for.
func (a *App) runJobsOnce(ctx context.Context) error {
	if a.jobs == nil {
		return nil
	}
	err := a.jobs.scheduler.RunAll(ctx)
	a.jobs.alerts.wait()
	return err
}
