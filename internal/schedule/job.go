package schedule

import (
	"context"
	"time"

	"github.com/robfig/cron/v3"
)

// What a job does with starts that it missed.
const (
	Skip = "skip"
	Once = "once"
	All  = "all"
)

// Triggers, as they stand in the runs table.
const (
	TriggerCron     = "cron"
	TriggerInterval = "interval"
	TriggerCommit   = "commit"
	TriggerJob      = "job"
	TriggerStart    = "start"    // the process began: what commits may have asked for
	TriggerCatchUp  = "catch-up" // a start that was missed, or a run that was interrupted
	TriggerManual   = "manual"
)

// Statuses of a run.
const (
	Running     = "running"
	Succeeded   = "succeeded"
	Failed      = "failed"
	Interrupted = "interrupted"
	Waiting     = "waiting" // there was nothing to work on yet: ErrNotYet
)

// Job is work with a schedule.
type Job struct {
	Name string
	// Cron, or Every, or neither.
	Cron  cron.Schedule
	Every time.Duration
	// AfterCommit names queries, AfterJob jobs.
	AfterCommit []string
	AfterJob    []string
	// MinInterval is the least time between starts that commits and jobs ask for.
	MinInterval time.Duration
	CatchUp     string
	Retries     int
	BackOff     time.Duration
	Timeout     time.Duration
	// Do does the work; the detail is kept with the run.
	Do func(ctx context.Context, run Run) (detail string, err error)
}

// Run is one run of a job: a row of the runs table once it has ended.
type Run struct {
	ID      string `json:"run_id"`
	Job     string `json:"job"`
	Trigger string `json:"trigger"`
	// ScheduledFor is the time that it was due.
	ScheduledFor time.Time  `json:"scheduled_for"`
	StartedAt    time.Time  `json:"started_at"`
	EndedAt      *time.Time `json:"ended_at,omitempty"`
	Status       string     `json:"status"`
	// Tries is how often the work was begun.
	Tries  int    `json:"tries"`
	Error  string `json:"error,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// Record is what is remembered of a job: its last run, open or ended, and the
// last one that succeeded.
type Record struct {
	Last Run `json:"last"`
	// Slot is the last scheduled time that was taken, zero where there was none.
	Slot time.Time `json:"slot"`
	// SucceededAt is when a run last ended well.
	SucceededAt time.Time `json:"succeeded_at"`
	// Failures counts runs that failed since.
	Failures int `json:"failures"`
}

// Book keeps the history. Implementations are safe for use by several
// goroutines.
type Book interface {
	// Open reads the records and closes runs that were left open, as interrupted;
	// those are returned too.
	Open(ctx context.Context, jobs []string, now time.Time) (map[string]Record, []Run, error)
	// Begin records an open run, before it does anything.
	Begin(ctx context.Context, r Run) error
	// End adds the row of an ended run and records it, in one step.
	End(ctx context.Context, r Run) error
}
