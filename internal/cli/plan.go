package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/column"
	"github.com/weirlake/weir/internal/engine"
)

// exitChanges is the exit code of a plan of a start that would go on, and change
// something.
const exitChanges = exitCode(11)

func newPlan(g *globals) *cobra.Command {
	var takeOver bool
	var only, newState []string
	cmd := &cobra.Command{
		Use:   "plan FILE",
		Short: "Say what a start would do to tables, state and positions, and do nothing of it",
		Long: `Goes through a start with the start's own code, up to where it would write: for
each query, whether it is new, changed or unchanged; which tables are made, which
columns are added, widened, renamed, dropped; whether what the query remembers is
kept, or read again and from where; where reading goes on and how many offsets
wait; a lost or older checkpoint and what is done about it; whatever the start
would refuse, with the reason and the way out.

Nothing is changed: no lock, no claim, no file. A broker that is embedded and does
not run is started for the answer and stopped again. What is said is true of now.
Where the pipeline is running, it is what a start does once that has stopped.

Exit code 0 where a start changes nothing, 11 where it goes on and changes
something, else that of the start's refusal (weir run).`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := g.load(args[0])
			if err != nil {
				return err
			}
			plan, err := app.Plan(cmd.Context(), p, app.Options{Logger: g.log, TakeOver: takeOver, Queries: only, NewState: newState})
			if err != nil {
				return err
			}
			doc := struct {
				*app.PipelinePlan
				Changes  bool `json:"changes"`
				ExitCode int  `json:"exit_code"`
			}{plan, plan.Changes(), planCode(plan)}
			if err := g.print(doc, func(w io.Writer) error { return writePlan(w, p.File, plan) }); err != nil {
				return err
			}
			if doc.ExitCode != 0 {
				return exitCode(doc.ExitCode)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.BoolVar(&takeOver, "take-over", false, "as the start would with --take-over")
	f.StringSliceVar(&only, "query", nil, "plan only this `query` (repeatable)")
	f.StringSliceVar(&newState, "new-state", nil, "as the start would with --new-state `query` (repeatable)")
	return cmd
}

func planCode(p *app.PipelinePlan) int {
	switch r := p.Refusal(); {
	case r != nil:
		return r.ExitCode
	case p.Changes():
		return int(exitChanges)
	}
	return 0
}

// planSigns stand before a query, as in a diff.
var planSigns = map[engine.PlanStatus]string{engine.PlanNew: "+", engine.PlanChanged: "~", engine.PlanUnchanged: "=", engine.PlanRefused: "!"}

func writePlan(w io.Writer, file string, p *app.PipelinePlan) error {
	count := map[engine.PlanStatus]int{}
	for _, topic := range p.Topics {
		fmt.Fprintf(w, "+ topic %s is made\n", topic)
	}
	for _, q := range p.Queries {
		count[q.Status]++
		fmt.Fprintf(w, "%s %s → %s: %s\n", planSigns[q.Status], q.Query, q.Table, q.Status)
		writeQueryPlan(w, q)
	}
	var sum []string
	for _, s := range []engine.PlanStatus{engine.PlanNew, engine.PlanChanged, engine.PlanUnchanged, engine.PlanRefused} {
		if count[s] > 0 {
			sum = append(sum, fmt.Sprintf("%d %s", count[s], s))
		}
	}
	_, err := fmt.Fprintf(w, "%s: %s; nothing was changed\n", file, strings.Join(sum, ", "))
	return err
}

func writeQueryPlan(w io.Writer, q *app.QueryPlan) {
	line := func(what, format string, args ...any) {
		text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "\n                ")
		fmt.Fprintf(w, "    %-11s %s\n", what, text)
	}
	if q.Refusal != nil {
		line("refused", "exit code %d (%s)\n%s", q.Refusal.ExitCode, q.Refusal.Class, q.Refusal.Message)
	}
	for _, t := range q.Tables {
		switch {
		case t.Create:
			line("table", "%s is made", t.Table)
		case t.Joins:
			line("table", "%s is there; the query joins it", t.Table)
		}
		for _, c := range t.Columns {
			if c.Kind != column.Refused {
				line("table", "%s: %s", t.Table, c)
			}
		}
	}
	if q.Outcome != "" {
		line("start", "%s: %s", q.Outcome, q.Reason)
	}
	if q.Running != "" {
		line("running", "%s; this is what a start does once that has stopped", q.Running)
	}
	if q.WaitSeconds > 0 {
		line("wait", "%s", time.Duration(q.WaitSeconds*float64(time.Second)).Round(time.Millisecond))
	}
	if q.Computes {
		line("rows", "columns, filter or code are others than those of the last batch")
	}
	for _, f := range q.State {
		switch f.Fate {
		case engine.StateKept:
			line("state", "%s is kept", f.Operator)
		case engine.StateRebuilt:
			line("state", "%s is read again from %s: %s", f.Operator, f.From, f.Why)
		case engine.StateBegins:
			line("state", "%s begins with nothing (%s)", f.Operator, f.Why)
		}
	}
	for _, f := range q.Formats {
		line("format", "%s is of version %d; this program writes %d", f.Of, f.Found, f.Write)
	}
	if q.PendingBatch >= 0 {
		line("batch", "%d was begun and is run again", q.PendingBatch)
	}
	if q.Position != "" {
		line("position", "%s", q.Position)
	}
	if q.Waiting >= 0 {
		line("waiting", "%d offsets", q.Waiting)
	}
	for _, n := range q.Notes {
		line("note", "%s", n)
	}
}
