package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/ingest/contract"
)

func newContract(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "contract", Short: "Work with the contracts that events have to fulfil"}
	cmd.AddCommand(newContractDiff(g))
	return cmd
}

// contractDiff is what `weir contract diff` prints.
type contractDiff struct {
	Old        string `json:"old"`
	New        string `json:"new"`
	Compatible bool   `json:"compatible"`
	*contract.Difference
}

func newContractDiff(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Say which events that one contract accepts another one would reject",
		Long: `Compares two JSON Schema files (or ` + contract.Wikimedia + `), as ingestion takes them:

  breaking    events that OLD accepts and NEW rejects
  accepted    events that OLD rejects and NEW accepts
  undecided   changes that are not known to be harmless: a keyword that is not
              compared (anyOf, not, …), a pattern that no example was found for

Each breaking and each accepted change comes with an example, an event that both
contracts were asked about.

Exit code 0 where NEW accepts all that OLD accepts, 9 where it rejects some of it,
10 where that is undecided, 2 where a schema is unusable.`,
		Example: "  weir contract diff contracts/v1.json contracts/v2.json",
		Args:    cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			d, err := contract.Diff(contract.Options{Schema: args[0]}, contract.Options{Schema: args[1]})
			if err != nil {
				return err
			}
			out := contractDiff{args[0], args[1], d.Compatible(), d}
			if err := g.print(out, func(w io.Writer) error { return writeContractDiff(w, out) }); err != nil {
				return err
			}
			switch {
			case len(d.Breaking) > 0:
				return exitCode(failure.SchemaConflict)
			case len(d.Undecided) > 0:
				return exitCode(failure.Inconclusive)
			}
			return nil
		},
	}
}

func writeContractDiff(w io.Writer, d contractDiff) error {
	for _, l := range []struct {
		title    string
		findings []contract.Finding
	}{
		{"breaking: accepted by " + d.Old + ", rejected by " + d.New, d.Breaking},
		{"undecided: may be rejected by " + d.New, d.Undecided},
		{"accepted from now on: rejected by " + d.Old, d.Accepted},
	} {
		if len(l.findings) == 0 {
			continue
		}
		fmt.Fprintf(w, "%s\n", l.title)
		for _, f := range l.findings {
			path := f.Path
			if path == "" {
				path = "(the event)"
			}
			fmt.Fprintf(w, "  %s: %s\n", path, f.Change)
			if f.Example != nil {
				fmt.Fprintf(w, "      %s\n", f.Example)
			}
		}
	}
	if d.Compatible {
		fmt.Fprintf(w, "compatible: %s accepts every event that %s accepts\n", d.New, d.Old)
	}
	return nil
}
