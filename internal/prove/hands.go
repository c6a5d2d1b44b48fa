package prove

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weirlake/weir/internal/fault"
)

const (
	groupForeign = "foreign"
	groupLimits  = "limits"

	// foreignRows are appended by another writer at each visit.
	foreignRows = 3
	// smallDisk is the size of the file system that fills up, and diskLeft what
	// is left of it.
	smallDisk = "size=16m"
	diskLeft  = 48 << 10
	// cannotGoOnMax is longer than a run waits for a broker that it cannot reach.
	cannotGoOnMax = runOnceMax + 2*time.Minute
	// fewFiles are the file descriptors of a process that runs out of them.
	fewFiles = 14
)

// handsState is what a scenario of foreign hands or of a limit knows.
type handsState struct {
	*workload
	missed  string
	disk    string // a small file system, where there is one
	foreign int64  // rows that another writer has put into bronze
}

func handsPrepare(ctx context.Context, e *Env) (err error) {
	st := &handsState{}
	e.state = st
	st.workload, err = e.newWorkload(ctx, setup{Name: "hands", MaxOffsets: crashMaxOffsets})
	return err
}

func handsMissed(e *Env) string { return e.state.(*handsState).missed }

func handsExpect(e *Env) []Check {
	st := e.state.(*handsState)
	out := st.expect()
	if st.foreign > 0 {
		out = append(out, Check{"bronze_rows_of_other_topics", "rows of the other writer in bronze", st.foreign})
	}
	return out
}

var (
	handsPublish = func(ctx context.Context, e *Env) error { return e.state.(*handsState).publish(ctx, e) }
	handsCount   = Step{"count", func(ctx context.Context, e *Env) error { return e.state.(*handsState).count(ctx, e) }}
	handsOnce    = func(ctx context.Context, e *Env) error { _, err := e.runOnce(ctx); return err }
)

// foreignHands makes the scenarios in which another engine works on the tables
// between a crash and the restart.
func foreignHands() []Scenario {
	var out []Scenario
	tables := []string{bronzeTable, silverTable}
	for _, c := range []foreignVisit{
		{pyIceberg, "bronze", fault.CommitMetadata, "rewrites all files and expires all snapshots but one", tables, []string{"--expire"}, 0},
		{pyIceberg, "bronze", fault.CommitSwapped, "rewrites all files and expires all snapshots but one", tables, []string{"--expire"}, 0},
		{pyIceberg, "silver", fault.CommitSide, "rewrites all files and expires all snapshots but one", tables, []string{"--expire"}, 0},
		{pyIceberg, "silver", fault.CommitSwapped, "expires all snapshots but one", tables, []string{"--expire", "--no-rewrite"}, 0},
		{pyIceberg, "silver", fault.DoneWritten, "rewrites all files", tables, nil, 0},
		{pyIceberg, "bronze", fault.CommitBefore, "appends rows of another topic", tables[:1], []string{"--no-rewrite", "--append", strconv.Itoa(foreignRows)}, foreignRows},
		{pyIceberg, "silver", fault.CommitBefore, "adds a column", tables, []string{"--no-rewrite", "--add-column", "note"}, 0},
		{spark, "bronze", fault.CommitMetadata, "rewrites all files and manifests and expires all snapshots but one", tables, []string{"rewrite", "manifests", "expire"}, 0},
		{spark, "silver", fault.CommitSide, "rewrites all files and manifests and expires all snapshots but one", tables, []string{"rewrite", "manifests", "expire"}, 0},
		{spark, "silver", fault.CommitSwapped, "rewrites all manifests", tables, []string{"manifests"}, 0},
		{spark, "bronze", fault.CommitBefore, "appends rows of another topic", tables[:1], []string{"append=" + strconv.Itoa(foreignRows)}, foreignRows},
		{spark, "silver", fault.CommitBefore, "adds a column", tables, []string{"column=note"}, 0},
	} {
		out = append(out, c.scenario())
	}
	return out
}

// The engines whose hands are tried.
const (
	pyIceberg = "PyIceberg"
	spark     = "Spark"
)

// foreignVisit is what another engine does to tables of a query that was killed.
type foreignVisit struct {
	engine             string
	query, point, what string
	tables, args       []string
	appended           int64 // rows of bronze, at each visit
}

func (c foreignVisit) scenario() Scenario {
	const kill = "publish more, run until the step is reached, and SIGKILL"
	var where []string
	for _, t := range c.tables {
		where = append(where, layer(t))
	}
	visit := func(ctx context.Context, e *Env) error {
		e.state.(*handsState).foreign += c.appended
		if c.engine == spark {
			return e.spark(ctx, c.tables, c.args...)
		}
		return e.pyiceberg(ctx, c.tables, c.args...)
	}
	name := "foreign-"
	if c.engine != pyIceberg {
		name += strings.ToLower(c.engine) + "-"
	}
	return Scenario{
		Name: name + c.query + "-" + c.point, Group: groupForeign,
		Place: &Place{Matrix: c.engine + " between crash and restart", Row: c.point + ": " + c.what, Column: c.query},
		Claim: fmt.Sprintf("%s killed at %s, then %s %s in %s: the restart is exact, and so are batches after another such visit.", c.query, c.point, c.engine, c.what, strings.Join(where, " and ")),
		Steps: []Step{
			{"make the topic and the pipeline file", handsPrepare},
			{"publish, and run to the end", both(handsPublish, handsOnce)},
			{kill, func(ctx context.Context, e *Env) error { return handsKill(ctx, e, c.engine, c.query+"/"+c.point) }},
			{c.engine + " at work", visit},
			{"start again, and run to the end", handsOnce},
			{c.engine + " at work again, publish, and run to the end", both(visit, handsPublish, handsOnce)},
			handsCount,
		},
		GuardAfter: kill, Guard: handsMissed, Expect: handsExpect,
	}
}

func handsKill(ctx context.Context, e *Env, engine, point string) error {
	st := e.state.(*handsState)
	switch {
	case engine == pyIceberg && !e.o.foreignReaders():
		st.missed = "no Python with PyIceberg (scripts/venv.sh makes one)"
		return nil
	case engine == spark && (e.o.Spark == "" || e.o.Readers == ""):
		st.missed = "no Spark (scripts/spark.sh makes one)"
		return nil
	}
	if err := st.publish(ctx, e); err != nil {
		return err
	}
	p, why, err := e.hold(ctx, point, 1, "run", e.path(queriesFileName), "--once")
	if err != nil || p == nil {
		st.missed = "the step was never reached: " + why
		return err
	}
	return e.strike(p, "SIGKILL")
}

// pyiceberg lets another engine work on tables.
func (e *Env) pyiceberg(ctx context.Context, tables []string, args ...string) error {
	for _, table := range tables {
		cmd := exec.CommandContext(ctx, e.o.Python, append([]string{filepath.Join(e.o.Readers, "compact_pyiceberg.py"),
			"--catalog", e.catalogFile, "--table", table}, args...)...)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("PyIceberg on %s: %w\n%s", table, err, stderr.String())
		}
		var done struct {
			Expired   int `json:"snapshots_expired"`
			Rewritten int `json:"rows_rewritten"`
			Appended  int `json:"rows_appended"`
		}
		if err := json.Unmarshal(out, &done); err != nil {
			return fmt.Errorf("PyIceberg on %s says %q: %w", table, out, err)
		}
		e.mark("commit", table, 0, fmt.Sprintf("PyIceberg: %d rows rewritten, %d appended, %d snapshots expired", done.Rewritten, done.Appended, done.Expired))
	}
	return nil
}

// spark lets Spark work on tables, all in one session.
func (e *Env) spark(ctx context.Context, tables []string, args ...string) error {
	python, jars, _ := strings.Cut(e.o.Spark, " ")
	cmd := exec.CommandContext(ctx, python, append([]string{filepath.Join(e.o.Readers, "hands_spark.py"),
		jars, e.catalogFile, "file://" + e.path("warehouse"), strings.Join(tables, ",")}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		said := stderr.String()
		return fmt.Errorf("Spark on %s: %w\n%s", strings.Join(tables, " and "), err, said[max(0, len(said)-sparkSays):])
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var done struct {
			Table     string `json:"table"`
			Files     int    `json:"files_rewritten"`
			Manifests int    `json:"manifests_rewritten"`
			Expired   int    `json:"snapshots_expired"`
			Appended  int    `json:"rows_appended"`
		}
		if err := dec.Decode(&done); err != nil {
			return fmt.Errorf("Spark says %q: %w", out, err)
		}
		e.mark("commit", done.Table, 0, fmt.Sprintf("Spark: %d files and %d manifests rewritten, %d rows appended, %d snapshots expired",
			done.Files, done.Manifests, done.Appended, done.Expired))
	}
	return nil
}

// sparkSays is how much of what Spark wrote to its log is quoted.
const sparkSays = 4000

// limits makes the scenarios of a machine that runs out of something.
func limits() []Scenario {
	stops := func(e *Env) []Check {
		return append(handsExpect(e), Check{"the_cause_is_named", "the run that could not go on names the cause, and its exit code is not 0", true})
	}
	return []Scenario{{
		Name: "disk-full", Group: groupLimits,
		Claim: "A disk that fills up under tables and checkpoint stops the run, which says so; with room again the next one is exact.",
		Steps: []Step{
			{"make the topic and the pipeline file on a small file system", diskPrepare},
			{"publish, and run to the end", both(handsPublish, handsOnce)},
			{"fill the disk, publish, and run", both(handsPublish, diskFull)},
			{"make room, and run to the end", both(diskRoom, handsOnce)},
			handsCount,
		},
		Guard: handsMissed, GuardAfter: "make the topic and the pipeline file on a small file system", Expect: stops,
	}, {
		Name: "disk-read-only", Group: groupLimits,
		Claim: "A file system that turns read-only stops the run, which says so; writable again, the next run is exact.",
		Steps: []Step{
			{"make the topic and the pipeline file on a small file system", diskPrepare},
			{"publish, and run to the end", both(handsPublish, handsOnce)},
			{"make the disk read-only, publish, and run", both(handsPublish, diskReadOnly)},
			{"make it writable, and run to the end", both(diskWritable, handsOnce)},
			handsCount,
		},
		Guard: handsMissed, GuardAfter: "make the topic and the pipeline file on a small file system", Expect: stops,
	}, {
		Name: "file-descriptors", Group: groupLimits,
		Claim: fmt.Sprintf("A process with %d file descriptors cannot do its work and ends with an error that says so; the next one with enough is exact.", fewFiles),
		Steps: []Step{
			{"make the topic and the pipeline file", handsPrepare},
			{"publish, and run to the end", both(handsPublish, handsOnce)},
			{"publish, and run with few file descriptors", both(handsPublish, filesFew)},
			{"run to the end", handsOnce},
			handsCount,
		},
		Guard: handsMissed, Expect: stops,
	}}
}

// diskPrepare puts everything that the pipeline writes on a small file system.
func diskPrepare(ctx context.Context, e *Env) error {
	st := &handsState{disk: e.path("disk")}
	e.state = st
	if err := os.MkdirAll(st.disk, 0o755); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", st.disk, "tmpfs", 0, smallDisk); err != nil {
		st.missed = fmt.Sprintf("no right to mount a small file system (%v)", err)
		return nil
	}
	e.cleanup = append(e.cleanup, func() { _ = syscall.Unmount(st.disk, syscall.MNT_DETACH) })
	for _, dir := range []string{"warehouse", "checkpoints"} {
		if err := os.Mkdir(filepath.Join(st.disk, dir), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(filepath.Join(st.disk, dir), e.path(dir)); err != nil {
			return err
		}
	}
	w, err := e.newWorkload(ctx, setup{Name: "hands", MaxOffsets: crashMaxOffsets, Warehouse: filepath.Join(st.disk, "warehouse"),
		Checkpoints: filepath.Join(st.disk, "checkpoints")})
	st.workload = w
	return err
}

func diskFull(ctx context.Context, e *Env) error {
	st := e.state.(*handsState)
	f, err := os.Create(filepath.Join(st.disk, "filler"))
	if err != nil {
		return err
	}
	defer f.Close()
	for block := make([]byte, 16<<10); err == nil; _, err = f.Write(block) {
	}
	fi, err := f.Stat()
	if err == nil {
		err = f.Truncate(fi.Size() - diskLeft)
	}
	if err != nil {
		return err
	}
	return e.cannotGoOn(ctx, nil, "no space left", "disk is full")
}

func diskRoom(_ context.Context, e *Env) error {
	return os.Remove(filepath.Join(e.state.(*handsState).disk, "filler"))
}

func diskReadOnly(ctx context.Context, e *Env) error {
	if err := syscall.Mount("", e.state.(*handsState).disk, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		return err
	}
	return e.cannotGoOn(ctx, nil, "read-only")
}

func diskWritable(_ context.Context, e *Env) error {
	return syscall.Mount("", e.state.(*handsState).disk, "", syscall.MS_REMOUNT, "")
}

func filesFew(ctx context.Context, e *Env) error {
	return e.cannotGoOn(ctx, []string{"sh", "-c", fmt.Sprintf(`ulimit -n %d; exec "$0" "$@"`, fewFiles)}, "too many open files")
}

// cannotGoOn runs the pipeline, which must end with an error that names one of
// the causes. under is a command that it is run by.
func (e *Env) cannotGoOn(ctx context.Context, under []string, causes ...string) error {
	binary, args := e.o.Binary, []string{"run", e.path(queriesFileName), "--once"}
	if len(under) > 0 {
		binary, args = under[0], append(append(under[1:len(under):len(under)], e.o.Binary), args...)
	}
	p, err := spawn(binary, args, nil, e.path("weir.log"), "weir run --once, which cannot go on")
	if err != nil {
		return err
	}
	e.children = append(e.children, p)
	e.starts.Add(1)
	code, err := p.endsBy(ctx, cannotGoOnMax)
	if err != nil {
		return err
	}
	e.observed["exit_code_without_it"] = code
	named := false
	for _, c := range causes {
		named = named || strings.Contains(p.output(), c)
	}
	e.observed["the_cause_is_named"] = named && code > 0
	return nil
}
