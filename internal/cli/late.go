package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/pipeline"
)

// showDefault is how many rows a list shows.
const showDefault = 10

func newLate(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "late",
		Short: "Find rows that came after the watermark, and bring them in",
		Long: `Late rows are those that a query's upstream table holds, that pass its rules, and
that its own table lacks, because they came when the watermark had passed them.
They are found by comparing the two tables. Replaying brings each of them once,
whatever happens in between: again, after a kill, and beside the running query.`,
	}
	for _, replay := range []bool{false, true} {
		use, short := "list FILE [QUERY]", "Count late rows and show the first"
		if replay {
			use, short = "replay FILE [QUERY]", "Bring late rows into the table, each once"
		}
		var limit int
		sub := &cobra.Command{
			Use: use, Short: short, Args: cobra.RangeArgs(1, 2),
			RunE: func(cmd *cobra.Command, args []string) error {
				return g.replays(cmd.Context(), args, app.LateQueries, "late rows: it needs from.table, parse and an Iceberg table", replay, func(ctx context.Context, p *pipeline.Pipeline, q string) (*app.ReplayReport, error) {
					return app.Late(ctx, p, q, replay, limit, app.Options{Logger: g.log})
				})
			},
		}
		sub.Flags().IntVar(&limit, "limit", showDefault, "rows to show")
		cmd.AddCommand(sub)
	}
	return cmd
}

func newDeadLetters(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dlq",
		Short: "Look at dead letters, and bring in those that parse by now",
		Long: `Dead letters are records that a query could not use; they stand in its dead-letter
table with a reason. After the columns or the contract were corrected, replaying
puts them through the rules as they are now and brings those that pass into the
query's table, each once. The dead-letter table keeps them: it says what happened.`,
	}
	cmd.AddCommand(newDeadList(g), newDeadShow(g), newDeadReplay(g))
	return cmd
}

func newDeadList(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "list FILE [QUERY]", Short: "Count dead letters by reason", Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error { return g.deadLetters(cmd.Context(), args, "", 0) },
	}
}

func newDeadShow(g *globals) *cobra.Command {
	var reason string
	var limit int
	cmd := &cobra.Command{
		Use: "show FILE [QUERY]", Short: "Show dead letters with their values", Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.deadLetters(cmd.Context(), args, reason, max(1, limit))
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "only those of a reason")
	cmd.Flags().IntVar(&limit, "limit", showDefault, "letters to show of each query")
	return cmd
}

func newDeadReplay(g *globals) *cobra.Command {
	var dry bool
	var limit int
	var topic string
	cmd := &cobra.Command{
		Use: "replay FILE [QUERY]", Short: "Bring dead letters that parse by now into the table, each once", Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("topic") {
				if queryArg(args) != "" {
					return failure.New(failure.Config, "--topic is for an ingest section, QUERY for a table: give one of them")
				}
				return g.revive(cmd.Context(), args[0], topic, dry)
			}
			return g.replays(cmd.Context(), args, app.DeadQueries, "a dead-letter table in the catalog", !dry, func(ctx context.Context, p *pipeline.Pipeline, q string) (*app.ReplayReport, error) {
				return app.ReplayDeadLetters(ctx, p, q, dry, limit, app.Options{Logger: g.log})
			})
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "say what would be brought, and bring nothing")
	cmd.Flags().StringVar(&topic, "topic", "", "the dead-letter topic of this ingest section: publish what meets the contract by now to the main topic")
	cmd.Flags().IntVar(&limit, "limit", showDefault, "rows to show")
	return cmd
}

// chosen are the queries that a command is for: the one that is named, or all of
// a kind.
func (g *globals) chosen(args []string, all func(*pipeline.Pipeline) []string, what string) (*pipeline.Pipeline, []string, error) {
	p, err := g.load(args[0])
	if err != nil {
		return nil, nil, err
	}
	if q := queryArg(args); q != "" {
		return p, []string{q}, nil
	}
	names := all(p)
	if len(names) == 0 {
		return nil, nil, failure.New(failure.Config, "%s has no query with %s", args[0], what)
	}
	return p, names, nil
}

func (g *globals) replays(ctx context.Context, args []string, all func(*pipeline.Pipeline) []string, what string, replay bool, run func(context.Context, *pipeline.Pipeline, string) (*app.ReplayReport, error)) error {
	p, names, err := g.chosen(args, all, what)
	if err != nil {
		return err
	}
	out := struct {
		Queries []*app.ReplayReport `json:"queries"`
	}{Queries: []*app.ReplayReport{}}
	for _, q := range names {
		r, err := run(ctx, p, q)
		if err != nil {
			return err
		}
		out.Queries = append(out.Queries, r)
	}
	return g.print(out, func(w io.Writer) error {
		for _, r := range out.Queries {
			writeReplay(w, r, replay)
		}
		return nil
	})
}

func writeReplay(w io.Writer, r *app.ReplayReport, replay bool) {
	fmt.Fprintf(w, "%s: %d rows read, %d belong into %s and are not there", r.Query, r.Read, r.Found, r.Table)
	if replay {
		fmt.Fprintf(w, "; %d were brought", r.Replayed)
	}
	fmt.Fprintln(w)
	for _, reason := range slices.Sorted(maps.Keys(r.Failed)) {
		fmt.Fprintf(w, "  still dead: %d %s\n", r.Failed[reason], reason)
	}
	for _, row := range r.Rows {
		fmt.Fprintf(w, "  %s\n", row.Value)
	}
}

func (g *globals) revive(ctx context.Context, file, name string, dry bool) error {
	p, err := g.load(file)
	if err != nil {
		return err
	}
	r, err := app.ReviveTopic(ctx, p, name, dry, app.Options{Logger: g.log})
	if err != nil {
		return err
	}
	return g.print(r, func(w io.Writer) error {
		fmt.Fprintf(w, "%s: %d letters in %s, %d replayed before; %d meet the contract by now, %d were published\n", r.Ingest, r.Letters, r.Topic, r.Before, r.Found, r.Replayed)
		for _, reason := range slices.Sorted(maps.Keys(r.Failed)) {
			fmt.Fprintf(w, "  still dead: %d %s\n", r.Failed[reason], reason)
		}
		if r.Truncated > 0 {
			fmt.Fprintf(w, "  %d were too large to be kept whole and cannot be published\n", r.Truncated)
		}
		return nil
	})
}

func (g *globals) deadLetters(ctx context.Context, args []string, reason string, show int) error {
	p, names, err := g.chosen(args, app.DeadQueries, "a dead-letter table in the catalog")
	if err != nil {
		return err
	}
	out := struct {
		Queries []*app.DeadLetters `json:"queries"`
	}{Queries: []*app.DeadLetters{}}
	for _, q := range names {
		d, err := app.DeadLettersOf(ctx, p, q, reason, show, app.Options{Logger: g.log})
		if err != nil {
			return err
		}
		out.Queries = append(out.Queries, d)
	}
	return g.print(out, func(w io.Writer) error {
		for _, d := range out.Queries {
			writeDeadLetters(w, d)
		}
		return nil
	})
}

func writeDeadLetters(w io.Writer, d *app.DeadLetters) {
	fmt.Fprintf(w, "%s: %d dead letters in %s", d.Query, d.Rows, d.Table)
	if d.First != nil {
		fmt.Fprintf(w, ", %s to %s", d.First.Format(time.DateTime), d.Last.Format(time.DateTime))
	}
	fmt.Fprintln(w)
	for _, reason := range slices.Sorted(maps.Keys(d.Reasons)) {
		fmt.Fprintf(w, "  %8d %s\n", d.Reasons[reason], reason)
	}
	for _, l := range d.Letters {
		fmt.Fprintf(w, "  %s-%d@%d %s %s\n    %s\n", l.Topic, l.Partition, l.Offset, l.Reason, oneLine(l.Detail), oneLine(string(l.Value)))
	}
}

// oneLine keeps control characters of a record away from the terminal.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return '·'
		}
		return r
	}, strings.ToValidUTF8(s, "�"))
}
