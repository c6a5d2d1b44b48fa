package cli

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/bench/soak"
	"github.com/weirlake/weir/internal/failure"
)

func newBenchSoak(g *globals) *cobra.Command {
	var o soak.Options
	var csv, svg string
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Run the demo for hours, in stretches that end with SIGKILL, and see whether it stays as it was",
		Long: `Runs the demo with table care for a stretch of time and samples it each minute:
memory, commit time, files, metadata, lag. A stretch ends with SIGKILL; the next
one goes on in the same folder. With --count the stream is then brought to an
end and every layer is counted against Kafka.

  weir bench soak --dir soak --for 30m            as often as one likes
  weir bench soak --dir soak --for 0s --count     the end

The folder grows with the stream, by about 3 GB an hour at 1,000 events a second.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Dir == "" {
				return failure.New(failure.Config, "bench soak needs a folder").WithHint("add --dir DIR")
			}
			exe, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			o.Binary, o.Progress = exe, g.stderr
			r, err := soak.Run(cmd.Context(), o)
			if r == nil {
				return err
			}
			return errors.Join(err, writeTo(csv, r.WriteCSV), writeTo(svg, r.WriteSVG), g.print(r, r.WriteText))
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Dir, "dir", "", "`folder` of the demo and of the samples, kept between stretches")
	f.DurationVar(&o.For, "for", 30*time.Minute, "length of this stretch")
	f.Float64Var(&o.Rate, "rate", 1000, "events a `second`")
	f.DurationVar(&o.Every, "every", time.Minute, "length of a sample")
	f.BoolVar(&o.Count, "count", false, "bring the stream to its end after the stretch, and count")
	f.StringVar(&csv, "csv", "", "write the samples to this `file`")
	f.StringVar(&svg, "svg", "", "draw them into this `file`")
	return cmd
}
