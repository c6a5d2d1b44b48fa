package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/app"
)

func newExpire(g *globals) *cobra.Command {
	o := app.CareByHand{Expire: true}
	cmd := &cobra.Command{
		Use:   "expire FILE [TABLE…]",
		Short: "Take old snapshots out of the tables' metadata",
		Long: `Takes snapshots out of the metadata until care.expiry.keepSnapshots of the pipeline
file are left, or --keep. What tags and branches point at stays, so does the last
snapshot of each query, and what a slower query of the pipeline still reads. No
file is removed: a running pipeline does that later, and weir orphans.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := g.load(args[0])
			if err != nil {
				return err
			}
			tables, err := app.Care(cmd.Context(), p, args[1:], o, app.Options{Logger: g.log})
			if err != nil {
				return err
			}
			return g.print(map[string]any{"tables": tables}, func(w io.Writer) error {
				for _, t := range tables {
					fmt.Fprintf(w, "%s: %d snapshots expired, %d stay\n", t.Table, *t.Expired, *t.Left)
				}
				return nil
			})
		},
	}
	cmd.Flags().IntVar(&o.Keep, "keep", 0, "how `many` of the newest stay; 0: as the pipeline file says")
	return cmd
}
