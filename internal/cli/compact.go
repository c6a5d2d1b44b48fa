package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/app"
)

func newCompact(g *globals) *cobra.Command {
	var targetMiB int64
	o := app.CareByHand{Compact: true}
	cmd := &cobra.Command{
		Use:   "compact FILE [TABLE…]",
		Short: "Put the small files of tables together, also while they are written",
		Long: `Writes the small files of each partition again as files of up to --target-mib, and
merges small manifests. No row changes and no marker moves. A running pipeline
does the same in small steps between its batches, to smaller files (care.compaction
in the pipeline file); this is for what it leaves, and for tables that nobody
writes. Old files stay for readers of older snapshots until they are removed
(care.orphans, weir orphans). Tables with deletes are left as they are.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := g.load(args[0])
			if err != nil {
				return err
			}
			o.TargetBytes = targetMiB << 20
			tables, err := app.Care(cmd.Context(), p, args[1:], o, app.Options{Logger: g.log})
			if err != nil {
				return err
			}
			return g.print(map[string]any{"tables": tables}, func(w io.Writer) error {
				for _, t := range tables {
					switch {
					case t.Delta != nil:
						fmt.Fprintf(w, "%s: %d files made into %d, %d rows in %d commits, %d conflicts\n", t.Table,
							t.Delta.FilesRemoved, t.Delta.FilesAdded, t.Delta.Rows, t.Delta.Commits, t.Delta.Conflicts)
					case t.Compacted.Skipped != "":
						fmt.Fprintf(w, "%s: left as it is: %s\n", t.Table, t.Compacted.Skipped)
					default:
						fmt.Fprintf(w, "%s: %d files made into %d, %d rows in %d commits, %d conflicts\n", t.Table,
							t.Compacted.FilesRemoved, t.Compacted.FilesAdded, t.Compacted.Rows, t.Compacted.Commits, t.Compacted.Conflicts)
					}
				}
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.Int64Var(&targetMiB, "target-mib", 256, "size of the new files in `MiB`")
	f.StringSliceVar(&o.Sort, "sort", nil, "order the rows of new files by these `columns`")
	return cmd
}
