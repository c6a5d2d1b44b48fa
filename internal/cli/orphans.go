package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/maintain"
)

func newOrphans(g *globals) *cobra.Command {
	var o maintain.OrphanOptions
	cmd := &cobra.Command{
		Use:   "orphans FILE [TABLE…]",
		Short: "Remove files that nothing refers to any more",
		Long: `Removes the files in a table's own folders that neither its metadata nor the
metadata documents before it lead to: manifests of expired snapshots, data files
that were replaced, and what attempts left that died. Nothing is removed that is
younger than --older-than, that a retained snapshot reads, or that a checkpoint
holds staged. Data files that never were in the table are not removed before they
are 7 days old, whatever the age, because a batch may be about to commit them;
with --force they are, while nothing writes to the table.

A running pipeline removes files by itself (care.orphans in the pipeline file).`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := g.load(args[0])
			if err != nil {
				return err
			}
			tables, err := app.Care(cmd.Context(), p, args[1:], app.CareByHand{Orphans: &o}, app.Options{Logger: g.log})
			if err != nil {
				return err
			}
			return g.print(map[string]any{"tables": tables}, func(w io.Writer) error {
				for _, t := range tables {
					r, what := t.Orphans, "removed"
					if r.DryRun {
						what = "would be removed"
						for _, f := range r.Files {
							fmt.Fprintf(w, "%s: %s\n", t.Table, f.Path)
						}
					}
					fmt.Fprintf(w, "%s: %d files of %d bytes %s, %d are too young, %d are staged\n", t.Table, len(r.Files), r.Bytes, what, r.TooYoung, r.Staged)
				}
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.DryRun, "dry-run", false, "only list what would be removed")
	f.DurationVar(&o.OlderThan, "older-than", maintain.DefaultOrphanAge, "how `old` a file must be, an hour at least")
	f.BoolVar(&o.Force, "force", false, "any age, for data files that never were in the table as well")
	return cmd
}
