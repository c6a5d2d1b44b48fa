package cli

import (
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/bench/care"
	"github.com/weirlake/weir/internal/failure"
)

func newBenchCare(g *globals) *cobra.Command {
	var o care.Options
	var csv, svg string
	cmd := &cobra.Command{
		Use:   "care",
		Short: "Measure whether a table stays quick and small over a day of a commit a second",
		Long: `Commits to a table as bronze does, a second of the table's time apart and as fast
as it goes, with the table care that a running pipeline has. For each hour it tells
what a commit took, how large the metadata and how many the files are. At the end
every row is read back and counted. The files are in memory, unless --dir says
where else.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Dir != "" {
				dir, err := os.MkdirTemp(o.Dir, "weir-care-")
				if err != nil {
					return failure.Wrap(failure.Config, err, "the folder of the table")
				}
				defer func() { _ = os.RemoveAll(dir) }()
				if o.Dir, err = filepath.Abs(dir); err != nil {
					return err
				}
			}
			o.Progress = g.stderr
			r, err := care.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			if err := writeTo(csv, r.WriteCSV); err != nil {
				return err
			}
			if err := writeTo(svg, r.WriteSVG); err != nil {
				return err
			}
			return g.print(r, r.WriteText)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Commits, "commits", care.Day, "how many commits")
	f.IntVar(&o.Rows, "rows", 0, "rows of a commit (default 10)")
	f.IntVar(&o.Bucket, "bucket", 0, "commits that are one line of the result (default 3,600)")
	f.DurationVar(&o.Most, "most", 0, "end after so `long`, with what was reached (0: never)")
	f.StringVar(&o.Dir, "dir", "", "keep the files in a temporary folder in this `folder`")
	f.StringVar(&csv, "csv", "", "write the lines to this `file`")
	f.StringVar(&svg, "svg", "", "draw them into this `file`")
	return cmd
}

// writeTo writes a file, where one is asked for.
func writeTo(path string, write func(io.Writer) error) error {
	if path == "" {
		return nil
	}
	f, err := os.Create(path)
	if err != nil {
		return failure.Wrap(failure.Config, err, "write %s", path)
	}
	if err := write(f); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}
