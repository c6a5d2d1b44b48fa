package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/app"
)

func newStatus(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "status FILE",
		Short: "Say how far each query of a pipeline is, from its checkpoint and its table",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := g.load(args[0])
			if err != nil {
				return err
			}
			st, err := app.Status(cmd.Context(), p)
			if err != nil {
				return err
			}
			return g.print(st, func(w io.Writer) error { return writeStatus(w, st) })
		},
	}
}

func writeStatus(w io.Writer, st *app.PipelineStatus) error {
	for _, q := range st.Queries {
		fmt.Fprintf(w, "%s → %s\n", q.Name, q.Table)
		if q.QueryID == "" {
			fmt.Fprintf(w, "  not started yet\n")
			continue
		}
		fmt.Fprintf(w, "  query id   %s, epoch %d, instance %s\n", q.QueryID, q.Epoch, q.Instance)
		fmt.Fprintf(w, "  batch      %d committed", q.BatchID)
		if q.Pending {
			fmt.Fprintf(w, ", %d planned", q.BatchID+1)
		}
		fmt.Fprintf(w, ", last write %s\n", q.RenewedAt.Format(time.RFC3339))
		fmt.Fprintf(w, "  position   %s\n", q.Position)
		if q.Watermark != nil {
			fmt.Fprintf(w, "  watermark  %s\n", q.Watermark.Format(time.RFC3339Nano))
		}
		fmt.Fprintf(w, "  table      %d rows, %d snapshots\n", q.Rows, q.Snapshots)
		for _, n := range q.Notes {
			fmt.Fprintf(w, "  note       %s\n", n)
		}
	}
	return nil
}
