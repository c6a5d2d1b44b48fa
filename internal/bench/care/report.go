package care

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"

	"github.com/weirlake/weir/internal/bench/plot"
)

// WriteText writes the result as a table.
func (r *Report) WriteText(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%d of %d commits in %.0f s, files in %s, every row there once (%d)\n\n%8s %10s %10s %10s %10s %10s %10s %6s %8s %8s\n",
		r.Commits, r.Planned, r.Seconds, r.Storage, r.Rows, "commits", "median ms", "p95 ms", "CPU ms", "care ms", "most ms", "metadata", "files", "stored", "heap MB"); err != nil {
		return err
	}
	for _, b := range r.Buckets {
		if _, err := fmt.Fprintf(w, "%8d %10.1f %10.1f %10.1f %10.0f %10.0f %10d %6d %8d %8.0f\n", b.Commits, b.CommitMedianMS, b.CommitP95MS, b.CPUMS,
			b.CareMedianMS, b.CareMaxMS, b.MetadataBytes, b.DataFiles, b.StoredFiles, b.HeapMB); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "\nlast median over first: %.2f\n", r.Ratio)
	return err
}

// WriteCSV writes a line for each bucket.
func (r *Report) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	lines := [][]string{{"commits", "commit_median_ms", "commit_p95_ms", "cpu_ms", "care_median_ms", "care_max_ms", "metadata_bytes", "snapshots", "manifests",
		"data_files", "files_of_a_partition_most", "stored_files", "stored_bytes", "heap_mb"}}
	f := func(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }
	i := func(v int64) string { return strconv.FormatInt(v, 10) }
	for _, b := range r.Buckets {
		lines = append(lines, []string{i(int64(b.Commits)), f(b.CommitMedianMS), f(b.CommitP95MS), f(b.CPUMS), f(b.CareMedianMS), f(b.CareMaxMS), i(b.MetadataBytes),
			i(int64(b.Snapshots)), i(int64(b.Manifests)), i(b.DataFiles), i(int64(b.FilesMost)), i(int64(b.StoredFiles)), i(b.StoredBytes), f(b.HeapMB)})
	}
	return c.WriteAll(lines)
}

// WriteSVG draws commit time, metadata size and files over the commits.
func (r *Report) WriteSVG(w io.Writer) error {
	lines := []plot.Line{
		{Title: "median time of a commit", Unit: "ms"},
		{Title: "size of the table's metadata", Unit: "KB"},
		{Title: "most files of a partition"},
	}
	var places []float64
	for _, b := range r.Buckets {
		places = append(places, float64(b.Commits))
		for i, v := range []float64{b.CommitMedianMS, float64(b.MetadataBytes) / 1000, float64(b.FilesMost)} {
			lines[i].Values = append(lines[i].Values, v)
		}
	}
	return plot.WriteSVG(w, lines, places, float64(r.Commits), fmt.Sprintf("%d commits", r.Commits))
}
