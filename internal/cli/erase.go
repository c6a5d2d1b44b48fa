package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/failure"
)

func newErase(g *globals) *cobra.Command {
	var r app.EraseRequest
	var file string
	cmd := &cobra.Command{
		Use:   "erase FILE --table TABLE --where CONDITION",
		Short: "Take rows out of the tables on purpose, for good, while the queries run",
		Long: `Finds the Kafka records that a condition meets and takes them out of every Iceberg
table that holds them: the table of records, dead-letter tables, the named table and
those that are made of it. The condition is about the columns of --table, in the
language of a query's filter: user = 'x', user IN ('x','y') AND wiki = 'dewiki'.
Records that the table's query has dropped (duplicates, late and filtered ones) are
found by it as well; --contains finds those that do not parse.

It is done once, for what is in the tables now; what is erased is declared in each
table, so that the queries, the audit and the checks do not take it for a loss, and
recorded in ops.erasures without the condition's values. Killed and given again it
goes on where it was. What it cannot reach is said at the end: snapshots from before
(--expire), Kafka's own copy, gold, aggregates. See docs/erase-and-rebuild.md.`,
		Example: `  weir erase pipeline.yaml --table silver.edits --where "user = 'Jane Doe'" --reason TICKET-17 --dry-run
  weir erase pipeline.yaml --table silver.edits --where "user = 'Jane Doe'" --reason TICKET-17 --expire`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := oneFile(file, args)
			if err != nil {
				return err
			}
			p, err := g.load(file)
			if err != nil {
				return err
			}
			done, err := app.Erase(cmd.Context(), p, r, app.Options{Logger: g.log})
			if err != nil {
				return err
			}
			return g.print(map[string]any{"erasures": done}, func(w io.Writer) error {
				for _, d := range done {
					writeErasure(w, d)
				}
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "file", "f", "", "the pipeline `file`, in place of FILE")
	f.StringVar(&r.Table, "table", "", "the `table` whose columns the condition is about")
	f.StringVar(&r.Where, "where", "", "`condition` on its columns")
	f.StringVar(&r.Contains, "contains", "", "also every Kafka record whose key or value holds this `text`")
	f.StringVar(&r.ID, "id", "", "`name` of the erasure; given again, it is not made twice")
	f.StringVar(&r.By, "by", "", "who asks, for the record; empty: the `user` of this process")
	f.StringVar(&r.Reason, "reason", "", "why, for the record: `text` without personal data")
	f.BoolVar(&r.DryRun, "dry-run", false, "count, and erase nothing")
	f.BoolVar(&r.Expire, "expire", false, "take the snapshots that still hold the rows out of the tables' metadata")
	return cmd
}

// oneFile is the pipeline file, given in either way.
func oneFile(flag string, args []string) (string, error) {
	switch {
	case flag != "" && len(args) > 0:
		return "", failure.New(failure.Config, "two pipeline files: %s and %s", flag, args[0])
	case flag != "":
		return flag, nil
	case len(args) == 1:
		return args[0], nil
	}
	return "", failure.New(failure.Config, "which pipeline file?")
}

func writeErasure(w io.Writer, d *app.EraseReport) {
	switch {
	case d.DryRun:
		fmt.Fprintf(w, "dry run: %d records meet %s\n", d.Records, d.Condition)
	case d.Repeated:
		fmt.Fprintf(w, "erasure %s was made before\n", d.ID)
	case len(d.Tables) == 0:
		fmt.Fprintf(w, "nothing meets %s\n", d.Condition)
		return
	case d.Resumed:
		fmt.Fprintf(w, "erasure %s, which an earlier command had begun, is finished: %d records meet %s\n", d.ID, d.Records, d.Condition)
	default:
		fmt.Fprintf(w, "erasure %s: %d records meet %s\n", d.ID, d.Records, d.Condition)
	}
	old := 0
	for _, t := range d.Tables {
		fmt.Fprintf(w, "  %s: %d rows\n", t.Table, t.Rows)
		old += t.OldSnapshots
	}
	for _, u := range d.Untouched {
		fmt.Fprintf(w, "  %s is left as it is: %s\n", u.Table, u.Why)
	}
	if d.DryRun {
		return
	}
	if old > 0 {
		fmt.Fprintf(w, "  %d snapshots from before still hold the rows: --expire, again when the queries have committed\n", old)
	}
	fmt.Fprintln(w, "  files of expired snapshots are removed by the running pipeline after care.orphans.grace, or by: weir orphans")
	if len(d.Topics) > 0 {
		fmt.Fprintf(w, "  Kafka holds the records of %s until its retention removes them; a checkpoint that is reset reads them again\n", strings.Join(d.Topics, ", "))
	}
}
