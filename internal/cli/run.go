package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/engine"
)

func newRun(g *globals) *cobra.Command {
	var once, takeOver bool
	var only, newState []string
	var page pageFlags
	cmd := &cobra.Command{
		Use:         "run FILE",
		Annotations: map[string]string{untilStopped: ""},
		Short:       "Run a pipeline: ingestion and every query, until stopped",
		Long: `Runs everything in one process. SIGTERM stops cleanly: a batch that has begun to
commit is finished, one that has not is run again by the next start.

With --once, what is there now is worked off (Spark's availableNow), upstream
queries first, and the command returns; ingestion is not started, and the status
page only where --listen asks for it. Stopped by a signal before that is done, it
ends with 143 (130 for an interrupt): start it again, as often as you like. With
--output json the last line sums the run up: completed, exit_code, retry, queries.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if once { // its answer is that everything was worked off
				delete(cmd.Annotations, untilStopped)
			}
			p, err := g.load(args[0])
			if err != nil {
				return err
			}
			sum := newOnceRun(clock.System{})
			line := g.progressLine()
			a, err := app.Open(cmd.Context(), p, app.Options{
				Logger: g.log, Version: readBuildInfo().Version, TakeOver: takeOver, Queries: only, NewState: newState,
				OnProgress: func(p engine.Progress) { sum.batch(p); line(p) },
				OnAlert:    func(query, text string) { fmt.Fprintf(g.stderr, "weir: ALERT %s: %s\n", query, text) },
			})
			if err != nil {
				if once {
					return g.finish(cmd.Context(), sum, err)
				}
				return err
			}
			defer a.Close()
			if !once || page.listen != "" {
				if err := g.openPage(a, page.options(p.Status)); err != nil {
					return err
				}
			}
			if once {
				return g.finish(cmd.Context(), sum, a.RunOnce(cmd.Context()))
			}
			return runAll(cmd.Context(), a)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&once, "once", false, "work off what is there and return")
	f.BoolVar(&takeOver, "take-over", false, "claim the queries although another instance seems alive")
	f.StringSliceVar(&only, "query", nil, "run only this `query` (repeatable)")
	f.StringSliceVar(&newState, "new-state", nil, "give up what this `query` remembers, where its definition was changed (repeatable)")
	page.add(cmd, "", "`address` of the status page, or none (default: status.listen of the file)")
	return cmd
}

// runAll runs ingestion beside the queries until ctx ends or one fails.
func runAll(ctx context.Context, a *app.App) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, def := range a.P.Ingest {
		in, err := a.Ingester(def.Name, http.DefaultClient)
		if err != nil {
			return err
		}
		g.Go(func() error { return a.RunIngester(gctx, in) })
	}
	g.Go(func() error { return a.Run(gctx, nil) })
	err := g.Wait()
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return nil //nolint:nilerr // the stop that was asked for is a clean end
	}
	return err
}

// progressLine prints one line a batch: JSON with --output json, else text on
// standard error.
func (g *globals) progressLine() func(engine.Progress) {
	return func(p engine.Progress) {
		if g.json() {
			_ = g.print(p, nil)
			return
		}
		fmt.Fprintf(g.stderr, "%s %-10s batch %-5d %8d in %8d out  late %d  dup %d  dead %d  %4d ms  lag %d\n",
			p.CommittedAt.Format("15:04:05"), p.QueryName, p.BatchID, p.InputRows, p.OutputRows,
			p.RowsDroppedByWatermark, p.RowsDuplicate, p.RowsDeadLettered, p.DurationMs["triggerExecution"], p.LagOffsets)
	}
}
