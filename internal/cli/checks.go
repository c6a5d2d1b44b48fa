package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/check"
)

func newChecks(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "checks",
		Short: "Check what the tables hold, as the pipeline file says",
	}
	run := &cobra.Command{
		Use:   "run FILE [CHECK…]",
		Short: "Run checks now, keep their results, and alert",
		Long: `Runs the checks of a pipeline file (all, or those named), appends the results to
ops.checks, and ends with exit code 4 if one of severity error failed.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := g.load(args[0])
			if err != nil {
				return err
			}
			res, err := app.ChecksRun(cmd.Context(), p, args[1:], g.log)
			if res == nil {
				return err
			}
			if perr := g.print(map[string]any{"checks": res}, func(w io.Writer) error { writeChecks(w, res); return nil }); perr != nil {
				return perr
			}
			return err
		},
	}
	cmd.AddCommand(run)
	return cmd
}

func writeChecks(w io.Writer, res []check.Result) {
	for _, r := range res {
		fmt.Fprintf(w, "%-8s %-28s %s", r.Status, r.Check, r.Observed)
		if r.Status != check.Passed && r.Expected != "" {
			fmt.Fprintf(w, "; want %s", r.Expected)
		}
		if r.Error != "" {
			fmt.Fprintf(w, "%s", r.Error)
		}
		fmt.Fprintln(w)
		for _, s := range r.Samples {
			fmt.Fprintf(w, "    %s\n", s)
		}
	}
}
