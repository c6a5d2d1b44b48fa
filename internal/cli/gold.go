package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/gold"
	"github.com/weirlake/weir/internal/pipeline"
)

func newGold(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gold",
		Short: "Run SQL models over the tables, and publish the results as tables",
		Long: `Runs a folder of SQL models in the shape of a dbt project (gold.project in the
pipeline file) over one set of snapshots, in DuckDB, and publishes each result
as an Iceberg table in one commit that names the snapshots it was made from.
A model whose inputs and text did not change is skipped.`,
	}
	cmd.AddCommand(newGoldRun(g, false), newGoldRun(g, true), newGoldTest(g), newGoldList(g), newGoldAttach(g))
	return cmd
}

// goldFlags are those that say which models, over what.
type goldFlags struct {
	sel  []string
	pins []string
	full bool
}

func (f *goldFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&f.sel, "select", nil, "only these `models`, and those upstream of them")
	cmd.Flags().StringSliceVar(&f.pins, "pin", nil, "read a table at a snapshot: `TABLE=ID`; may be repeated")
}

func (f *goldFlags) options(g *globals) (app.GoldOptions, error) {
	o := app.GoldOptions{Logger: g.log, Version: readBuildInfo().Version, FullRefresh: f.full, Select: f.sel, Pins: map[string]int64{}}
	for _, p := range f.pins {
		name, id, ok := strings.Cut(p, "=")
		n, err := strconv.ParseInt(id, 10, 64)
		if !ok || err != nil {
			return o, failure.New(failure.Config, "--pin %q: want TABLE=SNAPSHOT", p)
		}
		o.Pins[name] = n
	}
	return o, nil
}

func newGoldRun(g *globals, test bool) *cobra.Command {
	var f goldFlags
	cmd := &cobra.Command{
		Use:   "run FILE",
		Short: "Build the models and publish them",
		Args:  cobra.ExactArgs(1),
	}
	if test {
		cmd.Use, cmd.Short = "build FILE", "Build the models, test what was built, and publish what passes"
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&f.full, "full-refresh", false, "build every model from nothing")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, o, err := g.goldArgs(args[0], f)
		if err != nil {
			return err
		}
		o.Test = test
		res, err := app.GoldRun(cmd.Context(), p, o)
		if res == nil {
			return err
		}
		if perr := g.print(res, func(w io.Writer) error { return writeGold(w, res) }); perr != nil {
			return perr
		}
		return err
	}
	return cmd
}

func (g *globals) goldArgs(file string, f goldFlags) (*pipeline.Pipeline, app.GoldOptions, error) {
	o, err := f.options(g)
	if err != nil {
		return nil, o, err
	}
	p, err := g.load(file)
	return p, o, err
}

func writeGold(w io.Writer, res *gold.Result) error {
	for _, in := range res.Inputs {
		at := fmt.Sprintf("snapshot %d", in.SnapshotID)
		if in.Missing {
			at = "not there: empty"
		}
		fmt.Fprintf(w, "%-28s %s\n", in.Table, at)
	}
	for _, m := range res.Models {
		fmt.Fprintf(w, "  %-26s %-10s", m.Name, m.State)
		switch m.State {
		case gold.StatePublished:
			fmt.Fprintf(w, " %10d rows  %-11s %6.2f s", m.Rows, m.Mode, m.Seconds)
		case gold.StateSkipped:
			if m.Table != "" {
				fmt.Fprintf(w, " %10d rows", m.Rows)
			}
		}
		if m.Why != "" {
			fmt.Fprintf(w, "  (%s)", m.Why)
		}
		fmt.Fprintln(w)
		if m.Error != "" {
			fmt.Fprintf(w, "    %s\n", strings.ReplaceAll(m.Error, "\n", "\n    "))
		}
	}
	writeTests(w, res.Tests)
	_, err := fmt.Fprintf(w, "run %s, %.2f s\n", res.RunID, res.ElapsedSeconds)
	return err
}

func writeTests(w io.Writer, tests []gold.TestResult) {
	passed := 0
	for _, t := range tests {
		if t.State == gold.TestPassed {
			passed++
			continue
		}
		fmt.Fprintf(w, "  test %-40s %s: %d rows %s\n", t.Name, t.State, t.Failures, t.Error)
		for _, s := range t.Samples {
			fmt.Fprintf(w, "    %s\n", s)
		}
	}
	if len(tests) > 0 {
		fmt.Fprintf(w, "  %d of %d tests passed\n", passed, len(tests))
	}
}

func newGoldTest(g *globals) *cobra.Command {
	var f goldFlags
	cmd := &cobra.Command{
		Use:   "test FILE",
		Short: "Test the published tables, at the snapshots that they were made from",
		Args:  cobra.ExactArgs(1),
	}
	f.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, o, err := g.goldArgs(args[0], f)
		if err != nil {
			return err
		}
		rep, err := app.GoldTest(cmd.Context(), p, o)
		if rep == nil {
			return err
		}
		if perr := g.print(rep, func(w io.Writer) error { writeTests(w, rep.Tests); return nil }); perr != nil {
			return perr
		}
		return err
	}
	return cmd
}

func newGoldList(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "ls FILE",
		Short: "List the models: what each reads, and whether its table is current",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := g.load(args[0])
			if err != nil {
				return err
			}
			list, err := app.GoldList(cmd.Context(), p, app.GoldOptions{Logger: g.log})
			if err != nil {
				return err
			}
			return g.print(map[string]any{"models": list}, func(w io.Writer) error {
				for _, m := range list {
					fmt.Fprintf(w, "%-26s %-12s %-8s reads %s", m.Name, m.Materialized, m.State, strings.Join(append(m.Refs, m.Sources...), ", "))
					if m.Why != "" {
						fmt.Fprintf(w, "  (%s)", m.Why)
					}
					fmt.Fprintln(w)
				}
				return nil
			})
		},
	}
}

func newGoldAttach(g *globals) *cobra.Command {
	var to string
	var f goldFlags
	cmd := &cobra.Command{
		Use:   "attach FILE --to DATABASE",
		Short: "Write the models' sources, at one set of snapshots, into a DuckDB file as views",
		Long: `For dbt: the folder of models builds in this file as it is,

  weir gold attach pipeline.yaml --to gold.duckdb
  cd gold && WEIR_DUCKDB=../gold.duckdb dbt build --profiles-dir .

and for anything else that opens DuckDB files.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return g.goldAttach(cmd.Context(), args[0], to, f) },
	}
	f.add(cmd)
	cmd.Flags().StringVar(&to, "to", "", "the DuckDB `file`, made if need be")
	_ = cmd.MarkFlagRequired("to")
	return cmd
}

func (g *globals) goldAttach(ctx context.Context, file, to string, f goldFlags) error {
	p, o, err := g.goldArgs(file, f)
	if err != nil {
		return err
	}
	in, err := app.GoldAttach(ctx, p, o, to)
	if err != nil {
		return err
	}
	return g.print(map[string]any{"database": to, "inputs": in}, func(w io.Writer) error {
		for _, i := range in {
			fmt.Fprintf(w, "%-28s snapshot %d\n", i.Table, i.SnapshotID)
		}
		return nil
	})
}
