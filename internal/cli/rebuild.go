package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
)

func newRebuild(g *globals) *cobra.Command {
	var r app.RebuildRequest
	var file string
	var dropOld bool
	cmd := &cobra.Command{
		Use:   "rebuild FILE QUERY…",
		Short: "Make a query's table anew beside the live one, and swap it in",
		Long: `Runs a query over a table again from the first row, with the definition that the
file has now, into a table beside its own, and then exchanges the rows of the live
table for the new ones in one commit: a reader sees the old rows or the new ones. The
live query may run until then; for the exchange it is stopped, and goes on afterwards
from where the rebuild has come to, with no row left out or doubled. Killed and given
again it goes on where it was.

The old rows stay under a tag until --drop-old. Queries that read the table stop and
say so, because what they made is of the old rows: name them as well, they are rebuilt
in the right order. See docs/erase-and-rebuild.md.`,
		Example: `  weir rebuild pipeline.yaml silver sessions
  weir rebuild pipeline.yaml silver --no-swap      look at silver.edits__rebuild first
  weir rebuild pipeline.yaml silver --drop-old     remove the tags of earlier rebuilds`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if file == "" {
				file, args = args[0], args[1:]
			}
			if len(args) == 0 {
				return failure.New(failure.Config, "which query?").WithHint("weir rebuild FILE QUERY…")
			}
			p, err := g.load(file)
			if err != nil {
				return err
			}
			r.Queries = args
			if dropOld {
				dropped, err := app.DropOld(cmd.Context(), p, args, app.Options{Logger: g.log})
				if err != nil {
					return err
				}
				return g.print(map[string]any{"dropped": dropped}, func(w io.Writer) error {
					for _, d := range dropped {
						fmt.Fprintf(w, "%s: the rows from before are kept no longer (%s); expiry takes them\n", d.Table, strings.Join(d.Tags, ", "))
					}
					return nil
				})
			}
			progress := func(b engine.Progress) {
				fmt.Fprintf(cmd.ErrOrStderr(), "weir: rebuild %s: batch %d, %d rows read, %d put out, %d offsets to go\n", b.QueryName, b.BatchID, b.InputRows, b.OutputRows, b.LagOffsets)
			}
			done, err := app.Rebuild(cmd.Context(), p, r, app.Options{Logger: g.log, OnProgress: progress})
			if err != nil {
				return err
			}
			return g.print(map[string]any{"rebuilds": done}, func(w io.Writer) error {
				for _, d := range done {
					writeRebuild(w, d, args)
				}
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "file", "f", "", "the pipeline `file`, in place of FILE")
	f.BoolVar(&r.NoSwap, "no-swap", false, "build the new table, and leave it beside the live one")
	f.BoolVar(&r.Abort, "abort", false, "remove what an unfinished rebuild has left beside")
	f.BoolVar(&dropOld, "drop-old", false, "only remove the tags that keep the rows from before earlier rebuilds")
	cmd.MarkFlagsMutuallyExclusive("no-swap", "abort", "drop-old")
	return cmd
}

func writeRebuild(w io.Writer, d *app.RebuildReport, named []string) {
	switch {
	case d.Aborted:
		fmt.Fprintf(w, "%s: nothing stands beside %s any more\n", d.Query, d.Table)
		return
	case !d.Swapped:
		fmt.Fprintf(w, "%s: the new table is %s; the same command without --no-swap swaps it in, --abort removes it\n", d.Query, d.Beside)
		return
	}
	fmt.Fprintf(w, "%s: %s holds %d rows in place of %d (read %d, filtered %d, duplicate %d, late %d, dead letters %d)\n", d.Query, d.Table, d.Rows, d.RowsBefore,
		d.Counters.Read, d.Counters.Filtered, d.Counters.Duplicate, d.Counters.Late, d.Counters.DeadLettered)
	fmt.Fprintf(w, "  the rows from before are kept under the tag %s (snapshot %d) until: weir rebuild FILE %s --drop-old\n", d.Tag, d.SnapshotBefore, d.Query)
	var left []string
	for _, q := range d.Downstream {
		if !slices.Contains(named, q) {
			left = append(left, q)
		}
	}
	if len(left) > 0 {
		fmt.Fprintf(w, "  made of the old rows, and stopped until rebuilt: weir rebuild FILE %s\n", strings.Join(left, " "))
	}
	fmt.Fprintln(w, "  incremental gold models are made anew by: weir gold run --full-refresh")
}
