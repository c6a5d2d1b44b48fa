package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/prove"
)

// proveFlags are the flags of prove that are not options of package prove.
type proveFlags struct {
	list, listPoints, embeddedOnly bool
	report, result, pipeline       string
	records                        int64
}

func newProve(g *globals) *cobra.Command {
	var o prove.Options
	var f proveFlags
	cmd := &cobra.Command{
		Use:   "prove [NAME…]",
		Short: "Kill it at every step of its protocol, start it again, and count",
		Long: `Runs scenarios on real processes with a real SIGKILL and counts every layer
against what Kafka itself holds, with readers that share no code with the engine.

  weir prove --list            what there is
  weir prove reference         a kill in mid-backlog, a restart, late events
  weir prove checkpoint        the checkpoint lost, or restored from an old copy; the boundary
  weir prove ingest            weir ingest killed at every step, in both deliveries
  weir prove crash-points      a kill at every step of a micro-batch
  weir prove --pipeline FILE   a pipeline of your own, on an isolated copy of its newest records
  weir prove foreachbatch      the traps of foreachBatch, and how they are shut
  weir prove outside           Postgres, Kafka, Cassandra, files, an HTTP API, a program
  weir prove delta upsert      Delta tables; a change stream merged by key
  weir prove all --resume      every scenario; a run that was interrupted goes on

NAME is a scenario, a group or a pattern; none, or "all", runs all of them. An outcome is
proved, violated, or inconclusive: the fault did not land where it was meant to.

The broker is the embedded one unless --kafka or --kafka-script names a real one.
In a checkout of the project, exactly-once ingestion is proved on a real Kafka
that scripts/kafka.sh starts (where java is there), and PyIceberg and DuckDB of
.cache/venv count too.

Exit code 0 all proved, 4 a violation, 10 something inconclusive.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Names = args
			switch {
			case f.listPoints:
				return g.listCrashPoints()
			case f.list:
				return g.listScenarios()
			}
			return g.prove(cmd, o, f)
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&f.list, "list", false, "list the scenarios and what each claims")
	fl.BoolVar(&f.listPoints, "list-crash-points", false, "list the crash points of the protocol")
	fl.Uint64Var(&o.Seed, "seed", 0, "`seed` of events and choices (0: a new one)")
	fl.IntVar(&o.Repeat, "repeat", 1, "run each scenario `n` times")
	fl.IntVar(&o.Jobs, "jobs", 1, "run `n` scenarios side by side: sooner done, but each recovers more slowly")
	fl.BoolVar(&o.Resume, "resume", false, "keep what an earlier run of this binary in the same folder came to")
	fl.StringVar(&o.Dir, "dir", "", "work `folder` (default: weir-prove below the system's temporary folder)")
	fl.StringSliceVar(&o.Kafka, "kafka", nil, "run against this Kafka: bootstrap `servers`")
	fl.StringVar(&o.KafkaScript, "kafka-script", "", "start a real Kafka with this `script` (scripts/kafka.sh)")
	fl.BoolVar(&f.embeddedOnly, "embedded-only", false, "start no real Kafka for exactly-once ingestion either")
	fl.IntVar(&o.Port, "port", 0, "`port` of a broker that is started (0: a free one)")
	fl.StringVar(&f.report, "report", "", "write the report as one HTML `file`")
	fl.StringVar(&f.result, "result", "", "write the report as one JSON `file`, for --proof of weir run (default with --pipeline: proof.json beside its checkpoints)")
	fl.StringVar(&f.pipeline, "pipeline", "", "prove a pipeline `file` of your own on an isolated copy: own topics, tables and checkpoints")
	fl.Int64Var(&f.records, "records", prove.DefaultRecords, "copy so many of the newest `records` of each topic, with --pipeline")
	fl.BoolVar(&o.Keep, "keep", false, "keep the folders of proved scenarios")
	fl.StringVar(&o.Python, "python", os.Getenv("WEIR_PYTHON"), "let PyIceberg and DuckDB count too: `interpreter` (default: the checkout's)")
	o.Spark = os.Getenv("WEIR_SPARK")
	fl.StringVar(&o.Readers, "readers", "", "`folder` of the Python readers (default: the checkout's tests/readers)")
	fl.BoolVar(&o.Direct, "direct", false, "publish to Kafka directly instead of through weir ingest")
	fl.StringVar(&o.KillAt, "kill-at", "", "move the reference's kill: mid, before-first-commit, after-last")
	fl.DurationVar(&o.KillAfter, "kill-after", 0, "`time` until the reference's kill (default 12s)")
	fl.DurationVar(&o.Trigger, "trigger", 0, "the reference's trigger `interval` (default 2s)")
	return cmd
}

func (g *globals) prove(cmd *cobra.Command, o prove.Options, f proveFlags) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	build := readBuildInfo()
	o.Binary, o.Version, o.Revision = exe, build.Version, build.Revision
	if o.Dir == "" {
		o.Dir = filepath.Join(os.TempDir(), "weir-prove")
	}
	useCheckout(&o, f)
	if f.pipeline != "" {
		user, done, err := g.userPipeline(cmd, f)
		if err != nil {
			return err
		}
		defer done()
		o.User = user
		if f.result == "" {
			f.result = app.ProofFile(user.Pipeline)
		}
		if o.Dir == filepath.Join(os.TempDir(), "weir-prove") {
			o.Dir += "-pipeline" // results of other scenarios stay apart
		}
	}
	o.Progress = g.stderr
	report, err := prove.Main(cmd.Context(), o)
	if err != nil {
		return err
	}
	if f.report != "" {
		if err := writeReport(f.report, report.WriteHTML); err != nil {
			return err
		}
	}
	if f.result != "" {
		if err := writeReport(f.result, report.WriteJSON); err != nil {
			return err
		}
	}
	switch g.output {
	case "junit":
		err = report.WriteJUnit(g.stdout)
	default:
		err = g.print(report, func(w io.Writer) error { report.WriteText(w); return nil })
	}
	if err != nil {
		return err
	}
	if err := report.Err(); err != nil {
		return exitCode(failure.ClassOf(err))
	}
	return nil
}

// userPipeline is the pipeline of --pipeline with the way to its Kafka.
func (g *globals) userPipeline(cmd *cobra.Command, f proveFlags) (*prove.User, func(), error) {
	p, err := g.load(f.pipeline)
	if err != nil {
		return nil, nil, err
	}
	kafka, stop, err := app.Reach(cmd.Context(), p)
	if err != nil {
		return nil, nil, err
	}
	opts, err := broker.ClientOptions(kafka)
	if err != nil {
		stop()
		return nil, nil, err
	}
	return &prove.User{File: f.pipeline, Pipeline: p, Kafka: opts, Records: f.records}, stop, nil
}

// sparkIn is the Spark that scripts/spark.sh has made, in its own words; "" where
// it has not. It is half a gigabyte, which nobody fetches unasked.
func sparkIn(cache string) string {
	python := existing(filepath.Join(cache, "venv-spark", "bin", "python"))
	var jars []string
	for _, name := range []string{"iceberg-spark-runtime-*", "sqlite-jdbc-*"} {
		found, _ := filepath.Glob(filepath.Join(cache, name, "*.jar"))
		if python == "" || len(found) == 0 {
			return ""
		}
		jars = append(jars, found[len(found)-1])
	}
	return python + " " + strings.Join(jars, ",")
}

// useCheckout takes from a checkout of the project what a binary alone does not
// have: readers of another make, and a script that starts a real Kafka.
func useCheckout(o *prove.Options, f proveFlags) {
	root := checkout(o.Binary)
	if root != "" {
		if o.Python == "" {
			o.Python = existing(filepath.Join(root, ".cache", "venv", "bin", "python"))
		}
		if o.Readers == "" {
			o.Readers = existing(filepath.Join(root, "tests", "readers"))
		}
		if o.Spark == "" {
			o.Spark = sparkIn(filepath.Join(root, ".cache"))
		}
		o.Scripts = existing(filepath.Join(root, "scripts"))
		o.StoreScript = existing(filepath.Join(root, "scripts", "s3.sh"))
		if _, err := exec.LookPath("java"); err == nil && !f.embeddedOnly {
			o.RealScript = existing(filepath.Join(root, "scripts", "kafka.sh"))
		}
	}
}

// checkout is the folder of the project above the working folder or the binary,
// empty where there is none.
func checkout(binary string) string {
	wd, err := os.Getwd()
	if err != nil {
		wd = filepath.Dir(binary)
	}
	for _, dir := range []string{wd, filepath.Dir(binary)} {
		for {
			if b, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && strings.HasPrefix(string(b), "module github.com/weirlake/weir\n") {
				return dir
			}
			up := filepath.Dir(dir)
			if up == dir {
				break
			}
			dir = up
		}
	}
	return ""
}

// existing is the path, empty where nothing is there.
func existing(path string) string {
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// writeReport writes a report beside its place and then puts it there: a status
// page may be reading the one before.
func writeReport(path string, write func(io.Writer) error) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return failure.Wrap(failure.Config, err, "write the report")
	}
	out, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return failure.Wrap(failure.Config, err, "write the report")
	}
	defer func() {
		if err != nil {
			_ = os.Remove(out.Name())
		}
	}()
	if err := errors.Join(write(out), out.Chmod(0o644), out.Close()); err != nil {
		return failure.Wrap(failure.Config, err, "write the report")
	}
	if err := os.Rename(out.Name(), path); err != nil {
		return failure.Wrap(failure.Config, err, "write the report")
	}
	return nil
}

func (g *globals) listScenarios() error {
	type row struct {
		Name  string `json:"name"`
		Group string `json:"group"`
		Claim string `json:"claim"`
	}
	var rows []row
	for _, s := range prove.List() {
		rows = append(rows, row{s.Name, s.Group, s.Claim})
	}
	return g.print(map[string]any{"scenarios": rows}, func(w io.Writer) error {
		for _, r := range rows {
			if _, err := fmt.Fprintf(w, "%-34s %-14s %s\n", r.Name, r.Group, r.Claim); err != nil {
				return err
			}
		}
		return nil
	})
}

func (g *globals) listCrashPoints() error {
	return g.print(map[string]any{"crash_points": fault.Points()}, func(w io.Writer) error {
		for _, p := range fault.Points() {
			if _, err := fmt.Fprintf(w, "%-18s %-10s %s\n", p.Name, p.Step, p.Text); err != nil {
				return err
			}
		}
		return nil
	})
}
