package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/check"
	"github.com/weirlake/weir/internal/duck"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/gold"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/schedule"
)

const (
	// jobsPause is how long the scheduler waits where its history cannot be read.
	jobsPause = 30 * time.Second
	// endsWait bounds a question to the broker.
	endsWait = 10 * time.Second
	// commandTailBytes bounds what is kept of a command's output.
	commandTailBytes = 2_000
)

// jobs are the pipeline's jobs with what they need.
type jobs struct {
	a         *App
	scheduler *schedule.Scheduler
	graph     *gold.Graph
	book      *check.Book
	alerts    *alerter
	board     jobBoard
}

// openJobs makes the scheduler where the file has jobs. A gold project that does
// not compile stops the start: it would fail every run.
func (a *App) openJobs() error {
	if len(a.P.Jobs) == 0 || a.opts.Queries != nil {
		return nil
	}
	if err := duck.Linked(); err != nil {
		a.opts.Logger.Warn("the jobs of the pipeline file are left out", "reason", err)
		return nil
	}
	j, err := a.newJobs()
	if err != nil {
		return err
	}
	a.jobs = j
	return nil
}

func (a *App) newJobs() (*jobs, error) {
	j := &jobs{a: a, alerts: newAlerter(a.P, a.opts.Clock, a.opts.Logger)}
	var err error
	if a.P.Gold != nil {
		if j.graph, err = goldGraph(a.P); err != nil {
			return nil, err
		}
	}
	if j.book, err = a.checkBook(); err != nil {
		return nil, err
	}
	runs, err := lake.ParseName(a.P.Ops.RunsTable)
	if err != nil {
		return nil, err
	}
	var list []*schedule.Job
	for _, def := range a.P.Jobs {
		one, err := j.job(def)
		if err != nil {
			return nil, err
		}
		list = append(list, one)
		j.board.add(def)
	}
	j.scheduler, err = schedule.New(schedule.Options{
		Jobs: list, Book: schedule.NewTableBook(a.Catalog, runs, a.opts.Clock), Clock: a.opts.Clock, Logger: a.opts.Logger,
		OnRun: func(r schedule.Run) {
			j.board.run(r)
			if r.Status == schedule.Failed {
				j.alerts.job(r)
			}
		},
	})
	return j, err
}

func (a *App) checkBook() (*check.Book, error) {
	if a.P.Ops.ChecksTable == "" {
		return nil, nil
	}
	ident, err := lake.ParseName(a.P.Ops.ChecksTable)
	if err != nil {
		return nil, err
	}
	return check.NewBook(a.Catalog, ident, a.opts.Clock), nil
}

func (j *jobs) job(def pipeline.Job) (*schedule.Job, error) {
	out := &schedule.Job{
		Name: def.Name, Every: def.Every, AfterCommit: def.AfterCommit, AfterJob: def.AfterJob, MinInterval: def.MinInterval,
		CatchUp: def.CatchUp, Retries: def.Retries, BackOff: def.BackOff, Timeout: def.Timeout,
	}
	if def.Cron != "" {
		var err error
		if out.Cron, err = pipeline.ParseCron(def.Cron, def.TimeZone); err != nil {
			return nil, err
		}
	}
	switch {
	case def.Gold != "":
		out.Do = func(ctx context.Context, _ schedule.Run) (string, error) { return j.gold(ctx, def) }
	case def.Checks != nil:
		out.Do = func(ctx context.Context, r schedule.Run) (string, error) { return j.checks(ctx, def.Checks, r.ID) }
	default:
		out.Do = func(ctx context.Context, _ schedule.Run) (string, error) { return command(ctx, def.Command) }
	}
	return out, nil
}

// gold runs the models, or tests what is published. Before the sources exist
// there is nothing to do.
func (j *jobs) gold(ctx context.Context, def pipeline.Job) (string, error) {
	o := j.a.goldOptions(GoldOptions{Test: def.Gold == pipeline.GoldBuild, Select: def.Select})
	if def.Gold == pipeline.GoldTest {
		rep, err := j.graph.Test(ctx, o)
		if rep != nil {
			j.board.tests(rep.Tests)
		}
		return "", err
	}
	res, err := j.graph.Run(ctx, o)
	if missing := (gold.NoSource{}); errors.As(err, &missing) && j.a.writes(missing.Table) {
		return "", fmt.Errorf("%w: %w", schedule.ErrNotYet, err) // its query has not begun
	}
	if res == nil {
		return "", err
	}
	j.a.goldRan(j.graph, res)
	j.board.gold(res)
	counts := map[string]int{}
	for _, m := range res.Models {
		counts[m.State]++
	}
	detail, jerr := json.Marshal(map[string]any{"gold_run": res.RunID, "models": counts, "inputs": res.Inputs})
	return string(detail), errors.Join(err, jerr)
}

func (j *jobs) checks(ctx context.Context, names []string, runID string) (string, error) {
	list, err := check.Select(j.a.P.Checks, names)
	if err != nil {
		return "", err
	}
	res, err := check.Run(ctx, j.a.checkOptions(list, j.book, runID))
	j.board.checks(res)
	if len(res) > 0 {
		j.alerts.checks(res, runID)
	}
	counts := map[string]int{}
	for _, r := range res {
		counts[r.Status]++
	}
	detail, jerr := json.Marshal(counts)
	return string(detail), errors.Join(err, jerr)
}

// command runs a line of the shell; its last words are kept.
func command(ctx context.Context, line string) (string, error) {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", line)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	tail := strings.TrimSpace(out.String())
	if n := len(tail) - commandTailBytes; n > 0 {
		tail = "…" + tail[n:]
	}
	if err != nil {
		return tail, fmt.Errorf("%s: %w: %s", line, err, tail)
	}
	return tail, nil
}

// checkOptions are those of a run over the pipeline's tables.
func (a *App) checkOptions(list []pipeline.Check, book *check.Book, runID string) check.Options {
	o := check.Options{
		Catalog: a.Catalog, Clock: a.opts.Clock, Checks: list, Book: book, RunID: runID, MemoryLimit: pipeline.DefaultDuckMemory,
		Gapless: func(topic string) bool {
			fed := false
			for _, in := range a.P.Ingest {
				if in.Topic == topic {
					fed = true
					if in.Delivery != pipeline.AtLeastOnce {
						return false
					}
				}
			}
			return fed
		},
	}
	if a.P.Gold != nil {
		o.GoldSchema, o.MemoryLimit = a.P.Gold.Schema, a.P.Gold.MemoryLimit
	}
	if a.P.Kafka != nil {
		o.Ends = a.topicEnds
	}
	return o
}

// topicEnds are the ends of a topic's partitions, less open transactions.
func (a *App) topicEnds(ctx context.Context, topic string) (map[int32]int64, error) {
	opts, err := a.KafkaOptions()
	if err != nil {
		return nil, err
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	defer cl.Close()
	wctx, cancel := context.WithTimeout(ctx, endsWait)
	defer cancel()
	ends, err := kadm.NewClient(cl).ListCommittedOffsets(wctx, topic)
	if err != nil {
		return nil, failure.Wrap(failure.Unreachable, err, "ask for the end of topic %s", topic)
	}
	out := map[int32]int64{}
	var errs []error
	ends.Each(func(o kadm.ListedOffset) {
		if o.Err != nil {
			errs = append(errs, o.Err)
			return
		}
		out[o.Partition] = o.Offset
	})
	if err := errors.Join(errs...); err != nil || len(out) == 0 {
		return nil, failure.New(failure.Unreachable, "the broker does not say where topic %s ends: %v", topic, err)
	}
	return out, nil
}

// jobsCommitted tells the scheduler of a batch.
func (a *App) jobsCommitted(p engine.Progress) {
	if a.jobs != nil && p.OutputRows > 0 {
		a.jobs.scheduler.Committed(p.QueryName)
	}
}

// runJobs runs the scheduler until ctx ends. What goes wrong there does not stop
// the queries.
func (a *App) runJobs(ctx context.Context) {
	if a.jobs == nil {
		return
	}
	for ctx.Err() == nil {
		if err := a.jobs.scheduler.Run(ctx); err != nil && ctx.Err() == nil {
			a.opts.Logger.Error("jobs do not run, they are tried again", "pause", jobsPause, "error", err)
			_ = a.opts.Clock.Sleep(ctx, jobsPause)
		}
	}
}

// ChecksRun runs checks of a pipeline whose tables exist. The broker is asked
// where a check needs it: not an embedded one, which runs with the pipeline only.
func ChecksRun(ctx context.Context, p *pipeline.Pipeline, names []string, logger *slog.Logger) (res []check.Result, err error) {
	if len(p.Checks) == 0 {
		return nil, failure.New(failure.Config, "%s has no checks", p.File)
	}
	list, err := check.Select(p.Checks, names)
	if err != nil {
		return nil, err
	}
	a, err := openReader(ctx, p, logger)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	if slices.ContainsFunc(list, func(c pipeline.Check) bool { return c.Completeness != nil }) {
		if err := a.openKafka(ctx); err != nil {
			return nil, err
		}
	}
	book, err := a.checkBook()
	if err != nil {
		return nil, err
	}
	res, err = check.Run(ctx, a.checkOptions(list, book, ""))
	if len(res) > 0 {
		al := newAlerter(p, a.opts.Clock, a.opts.Logger)
		al.checks(res, res[0].RunID)
		al.wait()
	}
	return res, err
}
