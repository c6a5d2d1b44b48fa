package care

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
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

// The plot: three lines, each from 0 to its own largest value.
const (
	plotWidth  = 720
	plotHeight = 130
	plotLeft   = 70
	plotGap    = 34
)

// WriteSVG draws commit time, metadata size and files over the commits.
func (r *Report) WriteSVG(w io.Writer) error {
	lines := []struct {
		title, unit string
		value       func(Bucket) float64
	}{
		{"median time of a commit", "ms", func(b Bucket) float64 { return b.CommitMedianMS }},
		{"size of the table's metadata", "KB", func(b Bucket) float64 { return float64(b.MetadataBytes) / 1000 }},
		{"most files of a partition", "", func(b Bucket) float64 { return float64(b.FilesMost) }},
	}
	var s strings.Builder
	height := len(lines)*(plotHeight+plotGap) + 30
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, height)
	fmt.Fprintf(&s, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", plotWidth, height)
	for n, l := range lines {
		top, most := n*(plotHeight+plotGap)+24, 0.0
		for _, b := range r.Buckets {
			most = max(most, l.value(b))
		}
		fmt.Fprintf(&s, `<text x="%d" y="%d" fill="#222222">%s</text>`+"\n", plotLeft, top-8, l.title)
		fmt.Fprintf(&s, `<path d="M%d %dV%dH%d" fill="none" stroke="#999999"/>`+"\n", plotLeft, top, top+plotHeight, plotWidth-10)
		fmt.Fprintf(&s, `<text x="%d" y="%d" fill="#555555" text-anchor="end">%.0f %s</text>`+"\n", plotLeft-6, top+10, most, l.unit)
		fmt.Fprintf(&s, `<text x="%d" y="%d" fill="#555555" text-anchor="end">0</text>`+"\n", plotLeft-6, top+plotHeight)
		var points []string
		for _, b := range r.Buckets {
			x := plotLeft + float64(plotWidth-10-plotLeft)*float64(b.Commits)/float64(max(r.Commits, 1))
			y := float64(top+plotHeight) - float64(plotHeight)*l.value(b)/max(most, 1e-9)
			points = append(points, fmt.Sprintf("%.1f,%.1f", x, y))
		}
		fmt.Fprintf(&s, `<polyline points="%s" fill="none" stroke="#1f6feb" stroke-width="2"/>`+"\n", strings.Join(points, " "))
	}
	fmt.Fprintf(&s, `<text x="%d" y="%d" fill="#555555" text-anchor="end">%d commits</text>`+"\n</svg>\n", plotWidth-10, height-4, r.Commits)
	_, err := io.WriteString(w, s.String())
	return err
}
