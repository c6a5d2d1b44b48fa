package prove

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/pipeline"
)

const (
	groupCheckpoint = "checkpoint"

	// checkpointMaxOffsets makes small batches, so that a copy of a checkpoint
	// soon lies many of them behind.
	checkpointMaxOffsets = 100
	// olderBatches is how far behind a restored copy must lie.
	olderBatches = 5
	// boundaryBatch is the batch of the second run at which bronze is killed.
	boundaryBatch = 3
)

// What a lost checkpoint leads to, in the words of the alert.
const (
	alertAdopted   = "adopted batch"
	alertRestarted = "restarted from startingOffsets as query id"
)

// checkpointState is what a scenario of a lost or replaced checkpoint knows.
type checkpointState struct {
	*workload
	missed   string
	killed   bool
	behind   map[string]int64 // by query: how many batches the copy lies behind
	queryIDs map[string]string
	crash    int64 // bronze rows at the crash
	settle   func()
	restart  *process
}

// checkpoints makes the scenarios in which the checkpoint does not survive
// what the process did not survive.
func checkpoints() []Scenario {
	prepare := checkpointPrepare
	count := Step{"count", checkpointCount}
	again := Step{"start again, and run to the end", checkpointRestart()}
	missed := checkpointMissed
	return []Scenario{{
		Name: "checkpoint-lost", Group: groupCheckpoint,
		Claim: "A pipeline killed in mid-batch whose checkpoint folder is then removed goes on exactly from the markers in its tables, and says so in an alert.",
		Steps: []Step{
			prepare(pipeline.OnLostAdopt),
			{"publish, and run to the end", checkpointWork()},
			{"publish more, and SIGKILL at a commit of bronze", checkpointKill("bronze/"+fault.CommitSwapped, 2)},
			{"remove the checkpoint folder", checkpointRemove},
			again, count,
		},
		Guard:  missed,
		Expect: checkpointExpect,
	}, {
		Name: "checkpoint-restored-old", Group: groupCheckpoint,
		Claim: fmt.Sprintf("A pipeline killed in mid-batch whose checkpoint is then replaced by a copy at least %d batches old goes on exactly from the markers in its tables, and says so in an alert.", olderBatches),
		Steps: []Step{
			prepare(pipeline.OnLostAdopt),
			{"publish, and run to the end", checkpointWork()},
			{"copy the checkpoint folder", checkpointCopy},
			{"publish more, and SIGKILL at a commit of silver", checkpointKill("silver/"+fault.CommitSwapped, olderBatches+1)},
			{"put the copy in the checkpoint's place", checkpointReplace},
			again, count,
		},
		Guard: func(e *Env) string {
			if why := missed(e); why != "" {
				return why
			}
			for query, n := range e.state.(*checkpointState).behind {
				if n < olderBatches {
					return fmt.Sprintf("the copy of %s lies only %d batches behind its table", query, n)
				}
			}
			return ""
		},
		Expect: checkpointExpect,
	}, checkpointPartlyLost("offsets"), checkpointPartlyLost("commits"), checkpointPartlyLost("state"), {
		Name: "checkpoint-elsewhere", Group: groupCheckpoint,
		Claim: "A pipeline killed in mid-batch that is started with an empty checkpoint folder at another place, as on another machine, takes over and goes on exactly from the markers in its tables, and says so in an alert.",
		Steps: []Step{
			prepare(pipeline.OnLostAdopt),
			{"publish, and run to the end", checkpointWork()},
			{"publish more, and SIGKILL at a commit of silver", checkpointKill("silver/"+fault.CommitSwapped, 2)},
			{"start with another checkpoint folder, and run to the end", checkpointElsewhere},
			count,
		},
		Guard:  missed,
		Expect: checkpointExpect,
	}, {
		Name: "boundary", Group: groupCheckpoint,
		Differs: "rows are doubled on purpose",
		Claim:   "The boundary: with the memory switched off (onLostCheckpoint: restart) a lost checkpoint doubles every row that bronze had, the audit finds each of them, and an alert names the changed query id.",
		Steps: []Step{
			prepare(pipeline.OnLostRestart),
			{"publish, and run bronze to the end", checkpointWork("--query", "bronze")},
			{"publish more, and SIGKILL at a commit of bronze", checkpointKill("bronze/"+fault.CommitSwapped, boundaryBatch, "--query", "bronze")},
			{"remove the checkpoint folder", checkpointRemove},
			{"start bronze again, and run to the end", checkpointRestart("--query", "bronze")},
			{"count", boundaryCount},
		},
		Guard:  missed,
		Expect: boundaryExpect,
	}}
}

func checkpointWork(more ...string) func(context.Context, *Env) error {
	return func(ctx context.Context, e *Env) error {
		if err := e.state.(*checkpointState).publish(ctx, e); err != nil {
			return err
		}
		_, err := e.runOnce(ctx, more...)
		return err
	}
}

func checkpointKill(point string, n int, more ...string) func(context.Context, *Env) error {
	return func(ctx context.Context, e *Env) error {
		st := e.state.(*checkpointState)
		if err := st.publish(ctx, e); err != nil {
			return err
		}
		p, why, err := e.hold(ctx, point, n, append([]string{"run", e.path(queriesFileName), "--once"}, more...)...)
		if err != nil || p == nil {
			st.missed = why
			return err
		}
		table := bronzeTable
		if strings.HasPrefix(point, "silver/") {
			table = silverTable
		}
		if st.settle, err = e.kill(ctx, p, e.tableRows(table)); err != nil {
			return err
		}
		st.killed = true
		if st.crash, err = e.rows(ctx, bronzeTable); err != nil {
			return err
		}
		for query, table := range queryTables {
			c, err := e.newestBatch(ctx, table)
			if err != nil {
				return err
			}
			st.queryIDs[query] = c.QueryID
		}
		return e.rowsAtCrash(ctx, bronzeTable, silverTable)
	}
}

// newestBatch is the newest commit of a table that carries a marker.
func (e *Env) newestBatch(ctx context.Context, table string) (audit.Commit, error) {
	h, err := e.peek(ctx, table)
	if err != nil {
		return audit.Commit{}, err
	}
	for i := len(h.Commits) - 1; i >= 0; i-- {
		if h.Commits[i].BatchID != "" {
			return h.Commits[i], nil
		}
	}
	return audit.Commit{}, nil
}

func (e *Env) checkpointDir() string { return e.path("checkpoints") }
func (e *Env) checkpointOld() string { return e.path("checkpoints-old") }

func checkpointRemove(_ context.Context, e *Env) error { return os.RemoveAll(e.checkpointDir()) }

func checkpointPrepare(policy string) Step {
	return Step{"make the topic and the pipeline file", func(ctx context.Context, e *Env) (err error) {
		st := &checkpointState{behind: map[string]int64{}, queryIDs: map[string]string{}, settle: func() {}}
		e.state = st
		st.workload, err = e.newWorkload(ctx, setup{Name: "checkpoint", MaxOffsets: checkpointMaxOffsets, OnLost: policy})
		return err
	}}
}

func checkpointMissed(e *Env) string {
	if st := e.state.(*checkpointState); !st.killed {
		return "the step was never reached: " + st.missed
	}
	return ""
}

// checkpointPartlyLost loses one folder of every query's checkpoint. State is
// built again from the table; a log without the other contradicts it.
func checkpointPartlyLost(part string) Scenario {
	claim := fmt.Sprintf("A pipeline killed in mid-batch of whose checkpoint %s/ is then removed stops (exit code %d) and says how to go on: weir checkpoint adopt, after which it is exact.", part, failure.Checkpoint)
	again := Step{"start: it must stop; adopt the markers, and run to the end", checkpointRefused}
	if part == "state" {
		claim = "A pipeline killed in mid-batch of whose checkpoint state/ is then removed builds it again from the table, and is exact."
		again = Step{"start again, and run to the end", checkpointRestart()}
	}
	return Scenario{
		Name: "checkpoint-partly-lost-" + part, Group: groupCheckpoint, Claim: claim,
		Steps: []Step{
			checkpointPrepare(pipeline.OnLostAdopt),
			{"publish, and run to the end", checkpointWork()},
			{"publish more, and SIGKILL at a commit of silver", checkpointKill("silver/"+fault.CommitSwapped, 2)},
			{"remove " + part + "/ of every query", func(_ context.Context, e *Env) error { return checkpointRemovePart(e, part) }},
			again,
			{"count", checkpointCount},
		},
		Guard: checkpointMissed,
		Expect: func(e *Env) []Check {
			checks := append(e.state.(*checkpointState).expect(), Check{"query_ids_kept", "queries that kept their query id", int64(len(queryTables))})
			if part != "state" {
				checks = append(checks, Check{"exit_code", "exit code of the first start", int64(failure.Checkpoint)})
			}
			return checks
		},
	}
}

// checkpointRefused starts the pipeline, which must stop, and adopts.
func checkpointRefused(ctx context.Context, e *Env) error {
	st := e.state.(*checkpointState)
	if !st.killed {
		return nil // the guard says so
	}
	p, err := e.start("weir run --once, which must stop", nil, "run", e.path(queriesFileName), "--once")
	if err != nil {
		return err
	}
	if e.observed["exit_code"], err = p.endsBy(ctx, runOnceMax); err != nil {
		return err
	}
	for query := range queryTables {
		if p, err = e.start("weir checkpoint adopt "+query, nil, "checkpoint", "adopt", e.path(queriesFileName), query); err != nil {
			return err
		}
		if err := p.wait(ctx, runOnceMax); err != nil {
			return err
		}
	}
	return checkpointRestart()(ctx, e)
}

// checkpointRemovePart removes one folder of every query's checkpoint.
func checkpointRemovePart(e *Env, part string) error {
	for query := range queryTables {
		if err := os.RemoveAll(filepath.Join(e.checkpointDir(), query, part)); err != nil {
			return err
		}
	}
	return nil
}

// checkpointElsewhere starts the pipeline with another checkpoint folder.
func checkpointElsewhere(ctx context.Context, e *Env) error {
	st := e.state.(*checkpointState)
	defer func() { st.settle() }()
	if !st.killed {
		return nil // the guard says so
	}
	other := st.setup
	other.Checkpoints, other.File = e.path("checkpoints-elsewhere"), "elsewhere.yaml"
	if err := other.write(); err != nil {
		return err
	}
	p, err := e.start("weir run --once, elsewhere", nil, "run", e.path(other.File), "--once", "--take-over")
	if err != nil {
		return err
	}
	st.restart = p
	return p.wait(ctx, runOnceMax)
}

func checkpointCopy(_ context.Context, e *Env) error {
	return os.CopyFS(e.checkpointOld(), os.DirFS(e.checkpointDir()))
}

// checkpointReplace puts the copy into place, and says how old it is.
func checkpointReplace(ctx context.Context, e *Env) error {
	st := e.state.(*checkpointState)
	for query, table := range queryTables {
		c, err := e.newestBatch(ctx, table)
		if err != nil {
			return err
		}
		now, err := strconv.ParseInt(c.BatchID, 10, 64)
		if err != nil {
			return fmt.Errorf("the newest batch of %s is %q", table, c.BatchID)
		}
		then, err := newestCommitLog(filepath.Join(e.checkpointOld(), query, "commits"))
		if err != nil {
			return err
		}
		st.behind[query] = now - then
		e.observed[query+"_batches_behind"] = now - then
	}
	if err := os.RemoveAll(e.checkpointDir()); err != nil {
		return err
	}
	return os.Rename(e.checkpointOld(), e.checkpointDir())
}

// newestCommitLog is the greatest batch id in a commit log.
func newestCommitLog(dir string) (int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	newest := int64(-1)
	for _, f := range entries {
		if n, err := strconv.ParseInt(f.Name(), 10, 64); err == nil {
			newest = max(newest, n)
		}
	}
	return newest, nil
}

func checkpointRestart(more ...string) func(context.Context, *Env) error {
	return func(ctx context.Context, e *Env) (err error) {
		st := e.state.(*checkpointState)
		defer func() { st.settle() }()
		if !st.killed {
			return nil // the guard says so
		}
		st.restart, err = e.runOnce(ctx, more...)
		return err
	}
}

// alertedBy lists the queries that raised an alert with the text.
func (st *checkpointState) alertedBy(text string) string {
	var out []string
	for _, query := range []string{"bronze", "silver"} {
		for _, a := range st.restart.alerts(query) {
			if strings.Contains(a, text) {
				out = append(out, query)
				break
			}
		}
	}
	return strings.Join(out, ", ")
}

func checkpointCount(ctx context.Context, e *Env) error {
	st := e.state.(*checkpointState)
	if !st.killed {
		return nil // the guard says so
	}
	kept := int64(0)
	for query, table := range queryTables {
		c, err := e.newestBatch(ctx, table)
		if err != nil {
			return err
		}
		if c.QueryID != "" && c.QueryID == st.queryIDs[query] {
			kept++
		}
	}
	e.observed["query_ids_kept"] = kept
	e.observed["alert_of_adoption"] = st.alertedBy(alertAdopted)
	return st.count(ctx, e)
}

func checkpointExpect(e *Env) []Check {
	return append(e.state.(*checkpointState).expect(),
		Check{"query_ids_kept", "queries that kept their query id", int64(len(queryTables))},
		Check{"alert_of_adoption", "queries that raised the alert of an adoption", "bronze, silver"})
}

func boundaryCount(ctx context.Context, e *Env) error {
	st := e.state.(*checkpointState)
	if !st.killed {
		return nil // the guard says so
	}
	rep, err := e.verify(ctx, st.setup.Topic, bronzeTable)
	if err != nil {
		return err
	}
	e.observed["bronze_rows_doubled"] = rep.Table(bronzeTable).DoubledRows
	c, err := e.newestBatch(ctx, bronzeTable)
	if err != nil {
		return err
	}
	before, after := st.queryIDs["bronze"], c.QueryID
	e.observed["query_id_changed"] = before != "" && after != "" && before != after
	named := false
	for _, a := range st.restart.alerts("bronze") {
		named = named || strings.Contains(a, alertRestarted) && strings.Contains(a, before) && strings.Contains(a, after)
	}
	e.observed["alert_of_the_change"] = named
	e.gatherTimeline(ctx, bronzeTable)
	return nil
}

func boundaryExpect(e *Env) []Check {
	st := e.state.(*checkpointState)
	return []Check{
		{"kafka_messages", "Kafka messages", st.sent},
		{"bronze_rows", "bronze rows: those at the crash, and every message again", st.crash + st.sent},
		{"bronze_distinct_offsets", "distinct (partition, offset)", st.sent},
		{"bronze_rows_doubled", "doubled rows that the audit finds", st.crash},
		{"audit", "audit of bronze", audit.Mismatch},
		{"query_id_changed", "the table's marker carries another query id", true},
		{"alert_of_the_change", "an alert that names both query ids", true},
	}
}
