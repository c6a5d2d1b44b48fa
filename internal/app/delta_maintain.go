package app

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/weirlake/weir/internal/delta"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/pipeline"
)

// DeltaOptimized is what became of one table's small files.
type DeltaOptimized struct {
	Table        string `json:"table"`
	Location     string `json:"location"`
	Commits      int    `json:"commits"`
	FilesRemoved int    `json:"files_removed"`
	FilesAdded   int    `json:"files_added"`
	Rows         int64  `json:"rows"`
	Conflicts    int    `json:"conflicts"`
}

// OptimizeDelta puts the small files of a pipeline's Delta tables together; of
// all of them where names is empty. Queries may run meanwhile.
func OptimizeDelta(ctx context.Context, p *pipeline.Pipeline, names []string, o delta.OptimizeOptions, opts Options) ([]DeltaOptimized, error) {
	out := []DeltaOptimized{}
	err := eachDelta(ctx, p, names, opts, func(name string, t *delta.Table) error {
		r, err := delta.Optimize(ctx, t, o)
		out = append(out, DeltaOptimized{Table: name, Location: t.Location(), Commits: r.Commits, FilesRemoved: r.FilesRemoved,
			FilesAdded: r.FilesAdded, Rows: r.Rows, Conflicts: r.Conflicts})
		return err
	})
	return out, err
}

// DeltaVacuumed is what a vacuum removed from one table, or would.
type DeltaVacuumed struct {
	Table    string   `json:"table"`
	Location string   `json:"location"`
	DryRun   bool     `json:"dry_run"`
	Files    []string `json:"files"`
	Bytes    int64    `json:"bytes"`
}

// VacuumDelta removes files that no version within the retention refers to from
// a pipeline's Delta tables; from all of them where names is empty. Queries may
// run meanwhile.
func VacuumDelta(ctx context.Context, p *pipeline.Pipeline, names []string, o delta.VacuumOptions, opts Options) ([]DeltaVacuumed, error) {
	out := []DeltaVacuumed{}
	err := eachDelta(ctx, p, names, opts, func(name string, t *delta.Table) error {
		r, err := delta.Vacuum(ctx, t, o)
		out = append(out, DeltaVacuumed{Table: name, Location: t.Location(), DryRun: o.DryRun, Files: append([]string{}, r.Files...), Bytes: r.Bytes})
		return err
	})
	return out, err
}

// eachDelta calls f with the Delta tables of a pipeline, each once, whichever
// queries write them. One that is not made yet is left out.
func eachDelta(ctx context.Context, p *pipeline.Pipeline, names []string, opts Options, f func(name string, t *delta.Table) error) error {
	a := &App{P: p, opts: opts}
	a.fillOptions()
	defer a.Close()
	var known []string
	locations := map[string]string{}
	note := func(name, location string) {
		if _, had := locations[name]; !had && location != "" {
			known, locations[name] = append(known, name), location
		}
	}
	for _, q := range p.Queries {
		note(q.To.Table(), MainLocation(p, q))
		if q.DeadLetter != nil {
			note(q.DeadLetter.Table, DeadLetterLocation(p, q))
		}
	}
	for _, n := range names {
		if locations[n] == "" {
			return failure.New(failure.Config, "%s writes no Delta table %q; it writes %v", p.File, n, known)
		}
	}
	if len(known) == 0 {
		return failure.New(failure.Config, "%s writes no Delta table", p.File)
	}
	for _, n := range known {
		if len(names) > 0 && !slices.Contains(names, n) {
			continue
		}
		store, err := a.deltaStorage(ctx, locations[n])
		if err != nil {
			return fmt.Errorf("table %s: %w", n, err)
		}
		err = f(n, delta.Open(store, delta.Options{Clock: a.opts.Clock, Engine: engineInfo}))
		if err != nil && (!errors.Is(err, delta.ErrNoTable) || len(names) > 0) {
			return fmt.Errorf("table %s: %w", n, err)
		}
	}
	return nil
}
