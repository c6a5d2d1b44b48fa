package prove

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/fault"
)

const (
	groupForeachBatch = "foreachbatch"
	// batchQuery is the name of the demonstration's query.
	batchQuery = "orders"
	// batchRunMax bounds one run of the demonstration.
	batchRunMax = 2 * time.Minute
	// trapRows is how many rows there are before the reset.
	trapRows = 9
)

// batchState is what a demonstration of foreachBatch knows.
type batchState struct {
	topic  string
	sent   int
	killed bool
	missed string
	settle func()
}

// foreachBatches makes the demonstrations: `weir __foreachbatch` is a user's
// program over the public package, run, killed and started again as such.
func foreachBatches() []Scenario {
	all := []Scenario{brokenAppend(), idempotentAppend(), resetTrap(), resetShut(), swallowedError()}
	for _, p := range fault.Points() {
		// Rows for a function are held in memory: no data file, no state here.
		if !ofBatch(p) || slices.Contains([]string{fault.StageFile, fault.StageState, fault.CommitSide}, p.Name) {
			continue
		}
		all = append(all, batchKilledAt(p))
	}
	return all
}

const (
	batchPrepare = "make the topic"
	batchKill    = "run until the step is reached, and SIGKILL"
	batchAgain   = "start again, and run to the end"
	batchCount   = "count"
)

// batchBegin makes the topic; every record is a row.
func batchBegin(records int) Step {
	return Step{batchPrepare, func(ctx context.Context, e *Env) error {
		st := &batchState{topic: e.topic("orders"), settle: func() {}}
		e.state = st
		if err := e.createTopic(ctx, "orders", 1); err != nil {
			return err
		}
		return st.send(ctx, e, records)
	}}
}

func (st *batchState) send(ctx context.Context, e *Env, n int) error {
	var events []event
	for range n {
		id := "r-" + strconv.Itoa(st.sent)
		st.sent++
		events = append(events, event{id: id, payload: fmt.Appendf(nil, `{"id":%q}`, id)})
	}
	return e.produce(ctx, st.topic, events)
}

// args are those of one run of the demonstration.
func (st *batchState) args(e *Env, handler string, more ...string) []string {
	return append([]string{"__foreachbatch", "--handler", handler, "--kafka", e.broker.bootstrap[0], "--topic", st.topic,
		"--checkpoint", e.path("checkpoint"), "--table", e.path("table")}, more...)
}

// run runs the demonstration to its end; it must end with the exit code.
func (st *batchState) run(ctx context.Context, e *Env, want int, handler string, more ...string) error {
	p, err := e.start("the program", nil, st.args(e, handler, more...)...)
	if err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, batchRunMax)
	defer cancel()
	select {
	case <-p.exited:
	case <-limit.Done():
		p.abandon()
		return violated("the program was still running after %s\n%s", batchRunMax, p.tail())
	}
	code := 0
	var ee *exec.ExitError
	if p.err != nil && !errors.As(p.err, &ee) {
		return p.err
	}
	if ee != nil {
		code = ee.ExitCode()
	}
	if code != want {
		return violated("the program ended with exit code %d, must be %d\n%s", code, want, p.tail())
	}
	return nil
}

// killAt runs the demonstration until it reports the step, and kills it.
func (st *batchState) killAt(ctx context.Context, e *Env, point, handler string) error {
	p, why, err := e.hold(ctx, batchQuery+"/"+point, 1, st.args(e, handler)...)
	if err != nil || p == nil {
		st.missed = why
		return err
	}
	if st.settle, err = e.kill(ctx, p, e.deltaRows); err != nil {
		return err
	}
	st.killed = true
	n, err := e.deltaRows(ctx)
	e.observed["rows_at_the_crash"] = n
	return err
}

// deltaRows counts the table's rows from its log; audit's reader shares no code
// with the writer.
func (e *Env) deltaRows(ctx context.Context) (int64, error) {
	h, err := audit.Peek(ctx, audit.DeltaCatalog{}, nil, e.path("table"))
	if err != nil {
		return 0, err
	}
	return h.Rows, nil
}

// countDelta counts rows and distinct ids, and lets delta-rs count where there is
// one.
func countDelta(ctx context.Context, e *Env) error {
	rows, err := e.deltaRows(ctx)
	if err != nil {
		return err
	}
	distinct := map[string]bool{}
	if rows > 0 {
		if err := audit.Strings(ctx, audit.DeltaCatalog{}, nil, e.path("table"), "id", func(id string) { distinct[id] = true }); err != nil {
			return err
		}
	}
	e.observed["rows"], e.observed["distinct_ids"] = rows, int64(len(distinct))
	return e.deltaRS(ctx, map[string]string{"rows": e.path("table")})
}

// deltaRS lets delta-rs count the rows of tables, where there is one; folders
// are by the keys that the built-in reader's figures have.
func (e *Env) deltaRS(ctx context.Context, folders map[string]string) error {
	script := filepath.Join(e.o.Readers, "digest_delta.py")
	if _, err := os.Stat(script); err != nil || !e.o.foreignReaders() {
		return nil //nolint:nilerr // without the readers there is nothing to compare with
	}
	args := []string{script}
	for _, folder := range folders {
		args = append(args, "--table", folder)
	}
	cmd := exec.CommandContext(ctx, e.o.Python, args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", script, err, bytes.TrimSpace(errs.Bytes()))
	}
	got := map[string]struct{ Rows int64 }{}
	if err := json.Unmarshal(out, &got); err != nil {
		return fmt.Errorf("%s: %w", script, err)
	}
	for key, folder := range folders {
		e.observed[deltaRSPrefix+key] = got[folder].Rows
	}
	return nil
}

// deltaRSPrefix is that of the figures that delta-rs counts.
const deltaRSPrefix = "delta_rs_"

// deltaRSChecks are what delta-rs must have counted, where it did.
func (e *Env) deltaRSChecks(checks ...Check) (out []Check) {
	for _, c := range checks {
		if _, counted := e.observed[deltaRSPrefix+c.Key]; counted {
			out = append(out, Check{deltaRSPrefix + c.Key, "delta-rs: " + c.Text, c.Want})
		}
	}
	return out
}

// rowChecks are what the table must hold at the end.
func rowChecks(e *Env, rows, distinct int64) []Check {
	all := Check{"rows", "rows in the Delta table", rows}
	return append([]Check{all, {"distinct_ids", "distinct ids", distinct}}, e.deltaRSChecks(all)...)
}

func batchMissed(e *Env) string {
	if st := e.state.(*batchState); !st.killed {
		return "the step was never reached: " + st.missed
	}
	return ""
}

// killedOnce is a program that is killed at a step and started again.
func killedOnce(name, claim, point, handler string, rows int64) Scenario {
	return Scenario{
		Name: name, Group: groupForeachBatch, Claim: claim,
		Steps: []Step{
			batchBegin(3),
			{batchKill, func(ctx context.Context, e *Env) error { return e.state.(*batchState).killAt(ctx, e, point, handler) }},
			{batchAgain, func(ctx context.Context, e *Env) error {
				st := e.state.(*batchState)
				defer st.settle()
				return st.run(ctx, e, 0, handler)
			}},
			{batchCount, countDelta},
		},
		Guard: batchMissed, GuardAfter: batchKill,
		Expect: func(e *Env) []Check { return rowChecks(e, rows, 3) },
	}
}

func brokenAppend() Scenario {
	return killedOnce("foreachbatch-broken-append",
		"The trap: foreachBatch hands a batch over again after a crash, and a handler that plainly appends makes 6 rows of 3.",
		fault.CommitSwapped, "append", 6)
}

func idempotentAppend() Scenario {
	return killedOnce("foreachbatch-idempotent-append",
		"The way out: an append that keeps (app id, batch id) in the same commit knows the batch that comes again, and 3 rows stay 3.",
		fault.CommitSwapped, "append-idempotent", 3)
}

// batchKilledAt is one step of the protocol, with the idempotent handler.
func batchKilledAt(p fault.Point) Scenario {
	s := killedOnce("foreachbatch-"+p.Name,
		fmt.Sprintf("A query with foreachBatch killed at %s hands the same batch over again under the same ids, and an idempotent handler is exact.", p.Name),
		p.Name, "append-idempotent", 3)
	s.Place = &Place{Matrix: "Steps of foreachBatch", Row: p.Name, Column: "idempotent append"}
	return s
}

// trapBegin fills the table with nine batches of one row.
func trapBegin(handler string) []Step {
	return []Step{batchBegin(trapRows), {"write nine batches of one row each", func(ctx context.Context, e *Env) error {
		st := e.state.(*batchState)
		if err := st.run(ctx, e, 0, handler, "--app-id", "billing", "--max-offsets", "1"); err != nil {
			return err
		}
		n, err := e.deltaRows(ctx)
		e.observed["rows_before_the_reset"] = n
		return err
	}}}
}

// trapReset removes the checkpoint and the record beside it. The lineage that
// follows is told to read only what is new.
func trapReset(e *Env) error {
	return errors.Join(os.RemoveAll(e.path("checkpoint")), os.RemoveAll(e.path("checkpoint.deliveries")))
}

func trapFrom(st *batchState) string { return fmt.Sprintf(`{%q:{"0":%d}}`, st.topic, trapRows) }

func resetTrap() Scenario {
	return Scenario{
		Name: "foreachbatch-reset-trap", Group: groupForeachBatch,
		Claim: "The reset trap: after a new checkpoint batch ids start at 0 again, and a table that knows the writer's app id drops the tenth row as old, without a word.",
		Steps: append(trapBegin("append-naive"),
			Step{"remove checkpoint and record, and publish a tenth row", func(ctx context.Context, e *Env) error {
				return errors.Join(trapReset(e), e.state.(*batchState).send(ctx, e, 1))
			}},
			Step{"start again; the program reports success", func(ctx context.Context, e *Env) error {
				st := e.state.(*batchState)
				e.observed["exit_code"] = 0
				return st.run(ctx, e, 0, "append-naive", "--app-id", "billing", "--starting-offsets", trapFrom(st))
			}},
			Step{batchCount, countDelta}),
		Expect: func(e *Env) []Check {
			return append([]Check{
				{"rows_before_the_reset", "rows before the reset", int64(trapRows)}, {"exit_code", "exit code of the run that loses the row", 0},
			}, rowChecks(e, trapRows, trapRows)...)
		},
	}
}

func resetShut() Scenario {
	return Scenario{
		Name: "foreachbatch-reset-shut", Group: groupForeachBatch,
		Claim: "The trap shut: Weir notices the lost checkpoint; where its record is gone too it refuses the app id of another lineage before a row is dropped, and hands it over when told to: all ten rows are there.",
		Steps: append(trapBegin("append-idempotent"),
			Step{"remove the checkpoint alone; a start stops", func(ctx context.Context, e *Env) error {
				st := e.state.(*batchState)
				if err := errors.Join(os.RemoveAll(e.path("checkpoint")), st.send(ctx, e, 1)); err != nil {
					return err
				}
				e.observed["exit_code_without_checkpoint"] = 7
				return st.run(ctx, e, 7, "append-idempotent", "--app-id", "billing")
			}},
			Step{"remove the record as well; a start is refused by the table", func(ctx context.Context, e *Env) error {
				st := e.state.(*batchState)
				if err := trapReset(e); err != nil {
					return err
				}
				e.observed["exit_code_of_another_lineage"] = 7
				return st.run(ctx, e, 7, "append-idempotent", "--app-id", "billing", "--starting-offsets", trapFrom(st))
			}},
			Step{"hand the app id over", func(ctx context.Context, e *Env) error {
				st := e.state.(*batchState)
				return st.run(ctx, e, 0, "append-idempotent", "--app-id", "billing", "--starting-offsets", trapFrom(st), "--rebind")
			}},
			Step{batchCount, countDelta}),
		Expect: func(e *Env) []Check {
			return append([]Check{
				{"rows_before_the_reset", "rows before the reset", int64(trapRows)},
				{"exit_code_without_checkpoint", "exit code without the checkpoint", 7},
				{"exit_code_of_another_lineage", "exit code under another lineage's app id", 7},
			}, rowChecks(e, trapRows+1, trapRows+1)...)
		},
	}
}

func swallowedError() Scenario {
	files := func(e *Env) (int64, error) {
		list, err := os.ReadDir(e.path("table"))
		return int64(len(list)), err
	}
	return Scenario{
		Name: "foreachbatch-swallowed-error", Group: groupForeachBatch,
		Claim: "A handler that keeps an error to itself is found out by its own row count: the batch fails, comes again to the mended handler, and every row is there once.",
		Steps: []Step{
			batchBegin(3),
			{"run a handler that loses one of three rows and says nothing", func(ctx context.Context, e *Env) (err error) {
				st := e.state.(*batchState)
				e.observed["exit_code"] = 4
				if err := st.run(ctx, e, 4, "files-swallowing"); err != nil {
					return err
				}
				e.observed["rows_written_by_it"], err = files(e)
				return err
			}},
			{"run the mended handler", func(ctx context.Context, e *Env) (err error) {
				if err := e.state.(*batchState).run(ctx, e, 0, "files"); err != nil {
					return err
				}
				e.observed["rows"], err = files(e)
				return err
			}},
		},
		Expect: func(*Env) []Check {
			return []Check{
				{"exit_code", "exit code of the run that swallows an error", 4},
				{"rows_written_by_it", "rows that it had written", int64(2)},
				{"rows", "rows in the end", int64(3)},
			}
		},
	}
}
