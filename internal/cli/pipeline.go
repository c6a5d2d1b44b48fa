package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/pipeline"
)

// load reads a pipeline file; its faults are printed, all at once, and the
// error that comes back ends the command with the configuration's exit code.
func (g *globals) load(path string) (*pipeline.Pipeline, error) {
	p, faults := pipeline.Load(path, os.LookupEnv)
	if len(faults) > 0 {
		g.printFaults(g.stderr, faults)
		return nil, exitCode(failure.Config)
	}
	for _, w := range p.Warnings {
		g.log.Warn(w.Message, "file", w.File, "line", w.Line)
	}
	return p, nil
}

func (g *globals) printFaults(w io.Writer, faults []pipeline.Fault) {
	for _, f := range faults {
		fmt.Fprintln(w, f)
	}
}

func newValidate(g *globals) *cobra.Command {
	var connect bool
	cmd := &cobra.Command{
		Use:   "validate FILE",
		Short: "Check a pipeline file and report every fault at once",
		Long: `Checks the file. With --connect, also every connection and permission that the
pipeline needs: Kafka and its topics, the stores of warehouse and checkpoints, the
catalog, sinks outside. Everything is tried on scratch names, all of it is
reported, nothing is left behind and no data moves.

Exit code 0, 2 for a fault of the file or of a permission, 8 where a server is
merely out of reach.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, faults := pipeline.Load(args[0], os.LookupEnv)
			if len(faults) > 0 {
				if g.json() {
					if err := json.NewEncoder(g.stdout).Encode(map[string]any{"valid": false, "faults": faults}); err != nil {
						return err
					}
				} else {
					g.printFaults(g.stdout, faults)
				}
				return exitCode(failure.Config)
			}
			if connect {
				return g.connect(cmd.Context(), p)
			}
			doc := map[string]any{"valid": true, "name": p.Name, "queries": len(p.Queries), "warnings": p.Warnings}
			return g.print(doc, func(w io.Writer) error {
				for _, f := range p.Warnings {
					f.Message = "warning: " + f.Message
					fmt.Fprintln(w, f)
				}
				_, err := fmt.Fprintf(w, "%s: pipeline %s is valid: %d ingests, %d queries\n", p.File, p.Name, len(p.Ingest), len(p.Queries))
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&connect, "connect", false, "also try every connection and permission")
	return cmd
}

func newInit(g *globals) *cobra.Command {
	var kind string
	var force bool
	cmd := &cobra.Command{
		Use:   "init FILE",
		Short: "Write a commented example of a pipeline file",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			text := pipeline.Example(kind)
			if text == "" {
				return failure.New(failure.Config, "no example %q; there are %v", kind, pipeline.Examples())
			}
			flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
			if force {
				flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
			}
			text, err := writeModels(args[0], text, force)
			if err != nil {
				return err
			}
			f, err := os.OpenFile(args[0], flags, 0o644)
			if errors.Is(err, fs.ErrExist) {
				return failure.New(failure.Config, "%s exists", args[0]).WithHint("choose another name, or --force to overwrite it")
			}
			if err != nil {
				return failure.Wrap(failure.Config, err, "write %s", args[0])
			}
			if _, err := f.WriteString(text); err != nil {
				return errors.Join(failure.Wrap(failure.Config, err, "write %s", args[0]), f.Close())
			}
			if err := f.Close(); err != nil {
				return failure.Wrap(failure.Config, err, "write %s", args[0])
			}
			_, err = fmt.Fprintf(g.stderr, "wrote %s; next: weir validate %s, weir run %s\n", args[0], args[0], args[0])
			return err
		},
	}
	cmd.Flags().StringVar(&kind, "example", pipeline.ExampleMinimal, "which `example`: "+fmt.Sprint(pipeline.Examples()))
	cmd.Flags().BoolVar(&force, "force", false, "overwrite FILE")
	return cmd
}
