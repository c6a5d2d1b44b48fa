package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/failure"
)

func newCheckpoint(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "Look at a query's checkpoint, or settle it by hand",
	}
	cmd.AddCommand(newCheckpointShow(g), newCheckpointAdopt(g), newCheckpointReset(g))
	return cmd
}

// queryArg is the optional query name after FILE.
func queryArg(args []string) string {
	if len(args) > 1 {
		return args[1]
	}
	return ""
}

func newCheckpointShow(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "show FILE [QUERY]",
		Short: "Print what checkpoint and sinks say of a query",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := g.load(args[0])
			if err != nil {
				return err
			}
			r, err := app.ShowCheckpoint(cmd.Context(), p, queryArg(args))
			if err != nil {
				return err
			}
			return g.print(r, func(w io.Writer) error { return writeCheckpoint(w, r) })
		},
	}
}

func writeCheckpoint(w io.Writer, r *app.CheckpointReport) error {
	fmt.Fprintf(w, "query %s, checkpoint %s\n", r.Query, r.Location)
	if !r.Exists {
		fmt.Fprintln(w, "  no checkpoint")
	}
	if r.Corrupt != "" {
		fmt.Fprintf(w, "  CORRUPT: %s\n", r.Corrupt)
	}
	if m := r.Metadata; m != nil {
		fmt.Fprintf(w, "  metadata  query id %s, instance %s, since %s\n", m.QueryID, m.InstanceID, m.CreatedAt.Format("2006-01-02 15:04:05 MST"))
	}
	if p := r.Plan; p != nil {
		fmt.Fprintf(w, "  offsets/%d  epoch %s, %s to %s\n", p.BatchID, p.Epoch, p.Start, p.End)
	}
	if c := r.Commit; c != nil {
		adopted := ""
		if c.Adopted {
			adopted = ", adopted"
		}
		fmt.Fprintf(w, "  commits/%d  position %s%s\n", c.BatchID, c.Marker.Position, adopted)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Markers)) {
		m := r.Markers[name]
		if m == nil {
			fmt.Fprintf(w, "  sink %s: no marker\n", name)
			continue
		}
		fmt.Fprintf(w, "  sink %s: batch %d, epoch %s, position %s, by %s\n", name, m.BatchID, m.Epoch, m.Position, m.Instance)
		if why := r.Rewound[name]; why != "" {
			fmt.Fprintf(w, "    REWOUND: %s\n", why)
		}
	}
	return nil
}

func newCheckpointAdopt(g *globals) *cobra.Command {
	var fromSnapshot, takeOver bool
	cmd := &cobra.Command{
		Use:   "adopt FILE [QUERY]",
		Short: "Write the checkpoint anew from the markers in the tables",
		Long: `Puts the checkpoint folder aside and writes a new one from the markers: position,
watermark and batch id go on where the tables stand. With --from-snapshot the
tables' present contents are accepted first, as after a deliberate rollback: what
was rolled back is then read and written again. QUERY may be left out where the
file has one query only.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := g.load(args[0])
			if err != nil {
				return err
			}
			aside, err := app.AdoptCheckpoint(cmd.Context(), p, queryArg(args), fromSnapshot, app.Options{Logger: g.log, TakeOver: takeOver})
			return g.settled(aside, err)
		},
	}
	cmd.Flags().BoolVar(&fromSnapshot, "from-snapshot", false, "accept the tables' present contents")
	cmd.Flags().BoolVar(&takeOver, "take-over", false, "although another instance seems alive")
	return cmd
}

func newCheckpointReset(g *globals) *cobra.Command {
	var yes, takeOver bool
	cmd := &cobra.Command{
		Use:   "reset FILE [QUERY] --yes",
		Short: "Begin a new lineage at startingOffsets: delivered rows are delivered again",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !yes {
				return failure.New(failure.Config, "a reset delivers rows again that are in the table already").
					WithHint("say --yes if that is what you want; weir checkpoint adopt goes on without duplicates")
			}
			p, err := g.load(args[0])
			if err != nil {
				return err
			}
			aside, err := app.ResetCheckpoint(cmd.Context(), p, queryArg(args), app.Options{Logger: g.log, TakeOver: takeOver})
			return g.settled(aside, err)
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "yes, deliver rows again")
	cmd.Flags().BoolVar(&takeOver, "take-over", false, "although another instance seems alive")
	return cmd
}

func (g *globals) settled(aside string, err error) error {
	if err != nil {
		return err
	}
	if g.json() {
		return json.NewEncoder(g.stdout).Encode(map[string]string{"aside": aside})
	}
	if aside != "" {
		_, err = fmt.Fprintf(g.stdout, "done; the old folder is %s\n", aside)
	} else {
		_, err = fmt.Fprintln(g.stdout, "done")
	}
	return err
}
