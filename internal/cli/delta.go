package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/delta"
)

func newDelta(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "delta",
		Short: "Care for the Delta tables of a pipeline, also while it runs",
	}
	cmd.AddCommand(newDeltaOptimize(g), newDeltaVacuum(g))
	return cmd
}

func newDeltaOptimize(g *globals) *cobra.Command {
	var targetMiB int64
	cmd := &cobra.Command{
		Use:   "optimize FILE [TABLE…]",
		Short: "Put small files together",
		Long: `Writes the small files of each partition again as files of about --target-mib.
No row changes and no marker moves: what the table remembers of its queries stays
as it is. Appends that are committed meanwhile do not disturb it; files that
somebody else replaced are left alone and counted as conflicts. The old files stay
for readers of older versions until a vacuum.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := g.load(args[0])
			if err != nil {
				return err
			}
			tables, err := app.OptimizeDelta(cmd.Context(), p, args[1:], delta.OptimizeOptions{TargetBytes: targetMiB << 20}, app.Options{Logger: g.log})
			if err != nil {
				return err
			}
			return g.print(map[string]any{"tables": tables}, func(w io.Writer) error {
				for _, t := range tables {
					fmt.Fprintf(w, "%s: %d files made into %d, %d rows in %d commits, %d conflicts\n",
						t.Table, t.FilesRemoved, t.FilesAdded, t.Rows, t.Commits, t.Conflicts)
				}
				return nil
			})
		},
	}
	cmd.Flags().Int64Var(&targetMiB, "target-mib", 256, "size of the new files in `MiB`")
	return cmd
}

func newDeltaVacuum(g *globals) *cobra.Command {
	var o delta.VacuumOptions
	cmd := &cobra.Command{
		Use:   "vacuum FILE [TABLE…]",
		Short: "Remove data files that no version within the retention refers to",
		Long: `Removes data files that no version of the table within the retention refers to:
those that were replaced, and those of attempts that were never committed. The log
stays, and with it what the table remembers of its queries.

The retention is the table's delta.deletedFileRetentionDuration, 7 days where it
has none. A shorter one breaks readers of older versions, and writers that have
staged files; it is refused without --force.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := g.load(args[0])
			if err != nil {
				return err
			}
			tables, err := app.VacuumDelta(cmd.Context(), p, args[1:], o, app.Options{Logger: g.log})
			if err != nil {
				return err
			}
			return g.print(map[string]any{"tables": tables}, func(w io.Writer) error {
				for _, t := range tables {
					what := "removed"
					if t.DryRun {
						what = "would be removed"
						for _, f := range t.Files {
							fmt.Fprintf(w, "%s: %s\n", t.Table, f)
						}
					}
					fmt.Fprintf(w, "%s: %d files of %d bytes %s\n", t.Table, len(t.Files), t.Bytes, what)
				}
				return nil
			})
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&o.DryRun, "dry-run", false, "only list what would be removed")
	fl.DurationVar(&o.Retention, "retention", 0, "how old a file must be; the table's own where 0")
	fl.BoolVar(&o.Force, "force", false, "although the retention is shorter than the table's")
	return cmd
}
