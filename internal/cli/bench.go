package cli

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/bench"
)

func newBench(g *globals) *cobra.Command {
	var o bench.Options
	var list bool
	var csv, svg string
	cmd := &cobra.Command{
		Use:   "bench NAME…",
		Short: "Measure this binary on this machine: rates, CPU, memory, freshness, recovery",
		Long: `Measures the binary from the outside: what is measured runs as a process of its
own, with every sync and commit as in earnest; the broker is another process and
is not counted. Visible means read from the tables by a reader that shares no
code with the writer.

  weir bench quick        one small pass over everything
  weir bench all          every benchmark; with --repeat 5 medians of five
  weir bench --list       what there is

Everything happens in a temporary folder that is removed at the end. Figures of
different machines, or of a busy one, compare by ratio only: the CPU time that
compressing the same events takes is printed beside them.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if list {
				return g.listBenchmarks()
			}
			exe, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			o.Names, o.Binary, o.Progress = args, exe, g.stderr
			report, err := bench.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			return errors.Join(writeTo(csv, report.WriteCSV), writeTo(svg, report.WriteSVG), g.print(report, report.WriteText))
		},
	}
	cmd.AddCommand(newBenchCare(g), newBenchSoak(g))
	f := cmd.Flags()
	f.BoolVar(&list, "list", false, "list the benchmarks")
	f.Int64Var(&o.Rows, "rows", 0, "events of a backlog or stream (default 1,000,000; quick: 400,000)")
	f.IntVar(&o.Partitions, "partitions", 0, "partitions of the topic (default 4)")
	f.StringVar(&o.Compression, "compression", bench.None, "of the preloaded topic: `none|zstd|both`")
	f.Int64Var(&o.MaxOffsets, "max-offsets", 0, "maxOffsetsPerTrigger of the queries (default 100,000)")
	f.DurationVar(&o.Trigger, "trigger", bench.TriggerDefault, "trigger `interval` of the live queries")
	f.IntSliceVar(&o.Rates, "rate", nil, "events a `second` of freshness, repeatable (default 100,1000,5000,15000,50000)")
	f.IntVar(&o.Seconds, "seconds", 0, "length of each rate (default 45; quick: 10)")
	f.IntVar(&o.Kills, "kills", 0, "kills, and starts, that are timed (default 10; quick: 4)")
	f.IntVar(&o.Repeat, "repeat", 0, "measure each so `often` and report the medians (default 1)")
	f.StringSliceVar(&o.Kafka, "kafka", nil, "measure against this Kafka: bootstrap `servers`")
	f.StringVar(&o.KafkaScript, "kafka-script", "", "start a real Kafka with this `script` (scripts/kafka.sh)")
	f.StringVar(&o.Cassandra, "cassandra", "", "measure the Cassandra sink in this empty keyspace: `host:port/keyspace`")
	f.StringVar(&o.Postgres, "postgres", "", "measure the Postgres sink in this database (`URL`; tables weir_bench*), beside psql")
	f.IntVar(&o.Port, "port", 0, "`port` of a broker that is started (0: a free one)")
	f.DurationVar(&o.QuietWait, "quiet-wait", 0, "wait so `long` at most, before each measurement, for others to leave the machine alone")
	f.StringVar(&o.Dir, "dir", "", "make the temporary folder in this `folder`")
	f.StringVar(&o.Record, "record", "", "append the results of every measurement to this `file`, a JSON object a line")
	f.BoolVar(&o.Resume, "resume", false, "go on with --record: what this binary gave there under the same settings is not measured again")
	f.StringVar(&o.Profile, "profile", "", "write CPU and heap profiles of the measured processes to this `folder`")
	f.StringVar(&csv, "csv", "", "write the stretches of history to this `file`")
	f.StringVar(&svg, "svg", "", "draw them into this `file`")
	f.BoolVar(&o.Keep, "keep", false, "keep the temporary folder")
	f.Uint64Var(&o.Seed, "seed", 1, "`seed` of the events and of the kills' moments")
	return cmd
}

func (g *globals) listBenchmarks() error {
	return g.print(map[string]any{"benchmarks": bench.List()}, func(w io.Writer) error {
		for _, d := range bench.List() {
			if _, err := fmt.Fprintf(w, "%-10s %s\n", d.Name, d.Text); err != nil {
				return err
			}
		}
		return nil
	})
}
