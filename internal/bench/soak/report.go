package soak

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"

	"github.com/weirlake/weir/internal/bench/plot"
)

// Report is all stretches of a folder. Its JSON is what `weir bench soak
// --output json` prints.
type Report struct {
	Rate      float64 `json:"rate"`
	Stretches int     `json:"stretches"`
	Seconds   float64 `json:"seconds"`
	Events    float64 `json:"events"`
	// First and Last are medians of the first and the last quarter of the samples.
	First Figures `json:"first_quarter"`
	Last  Figures `json:"last_quarter"`
	// Counted is the demo's own summary, every layer counted against Kafka.
	Counted json.RawMessage `json:"counted,omitempty"`
	Samples []Sample        `json:"samples"`
}

// Figures are medians over samples.
type Figures struct {
	MemoryMB      float64            `json:"memory_mb"`
	MemoryMaxMB   float64            `json:"memory_max_mb"`
	CommitMS      map[string]float64 `json:"commit_ms"`
	DataFiles     float64            `json:"data_files"`
	Snapshots     float64            `json:"snapshots"`
	MetadataBytes float64            `json:"metadata_bytes"`
}

func newReport(o Options, samples []Sample) *Report {
	r := &Report{Rate: o.Rate, Samples: samples}
	for _, s := range samples {
		r.Stretches, r.Seconds = max(r.Stretches, s.Stretch), max(r.Seconds, s.Seconds)
		r.Events += s.Events
	}
	quarter := max((len(samples)+3)/4, min(len(samples), 1))
	r.First, r.Last = figures(samples[:quarter]), figures(samples[len(samples)-quarter:])
	return r
}

func figures(samples []Sample) Figures {
	f := Figures{CommitMS: map[string]float64{}}
	f.MemoryMB = median(samples, func(s Sample) float64 { return s.MemoryMB })
	f.MemoryMaxMB = median(samples, func(s Sample) float64 { return s.MemoryMaxMB })
	f.DataFiles = median(samples, func(s Sample) float64 { return s.DataFiles })
	f.Snapshots = median(samples, func(s Sample) float64 { return s.Snapshots })
	f.MetadataBytes = median(samples, func(s Sample) float64 { return s.MetadataBytes })
	for _, query := range queries(samples) {
		var with []Sample
		for _, s := range samples {
			if _, ok := s.CommitMS[query]; ok {
				with = append(with, s)
			}
		}
		f.CommitMS[query] = median(with, func(s Sample) float64 { return s.CommitMS[query] })
	}
	return f
}

// queries that committed in the samples, sorted.
func queries(samples []Sample) []string {
	seen := map[string]bool{}
	for _, s := range samples {
		for q := range s.CommitMS {
			seen[q] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

func median(samples []Sample, of func(Sample) float64) float64 {
	var all []float64
	for _, s := range samples {
		all = append(all, of(s))
	}
	return medianOf(all)
}

func medianOf(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

// WriteText writes first quarter beside last, and the count.
func (r *Report) WriteText(w io.Writer) error {
	rows := [][3]string{
		{"resident memory, MB", fmt.Sprintf("%.0f", r.First.MemoryMB), fmt.Sprintf("%.0f", r.Last.MemoryMB)},
		{"the most of it in a minute, MB", fmt.Sprintf("%.0f", r.First.MemoryMaxMB), fmt.Sprintf("%.0f", r.Last.MemoryMaxMB)},
		{"data files", fmt.Sprintf("%.0f", r.First.DataFiles), fmt.Sprintf("%.0f", r.Last.DataFiles)},
		{"snapshots", fmt.Sprintf("%.0f", r.First.Snapshots), fmt.Sprintf("%.0f", r.Last.Snapshots)},
		{"metadata, KB", fmt.Sprintf("%.0f", r.First.MetadataBytes/1000), fmt.Sprintf("%.0f", r.Last.MetadataBytes/1000)},
	}
	for _, q := range queries(r.Samples) {
		rows = append(rows, [3]string{"commit of " + q + ", ms", fmt.Sprintf("%.1f", r.First.CommitMS[q]), fmt.Sprintf("%.1f", r.Last.CommitMS[q])})
	}
	if _, err := fmt.Fprintf(w, "%.0f minutes in %d stretches, each ended by SIGKILL, %.0f events\n\n%-32s %14s %14s\n",
		r.Seconds/60, r.Stretches, r.Events, "median of samples", "first quarter", "last quarter"); err != nil {
		return err
	}
	for _, row := range rows {
		if _, err := fmt.Fprintf(w, "%-32s %14s %14s\n", row[0], row[1], row[2]); err != nil {
			return err
		}
	}
	if r.Counted == nil {
		return nil
	}
	_, err := fmt.Fprintf(w, "\nCounted, nothing lost and nothing doubled:\n%s\n", r.Counted)
	return err
}

// WriteCSV writes a line for each sample.
func (r *Report) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	lines := [][]string{{"seconds", "stretch", "events", "memory_mb", "memory_max_mb", "lag_offsets", "data_files", "snapshots", "metadata_bytes", "rows", "state_keys"}}
	all := queries(r.Samples)
	for _, q := range all {
		lines[0] = append(lines[0], "commit_ms_"+q)
	}
	for _, s := range r.Samples {
		line := []string{number(s.Seconds), strconv.Itoa(s.Stretch), number(s.Events), strconv.FormatFloat(s.MemoryMB, 'f', 1, 64),
			strconv.FormatFloat(s.MemoryMaxMB, 'f', 1, 64), number(s.Lag),
			number(s.DataFiles), number(s.Snapshots), number(s.MetadataBytes), number(s.Rows), number(s.StateKeys)}
		for _, q := range all {
			line = append(line, number(s.CommitMS[q]))
		}
		lines = append(lines, line)
	}
	return c.WriteAll(lines)
}

// WriteSVG draws memory, commit time, files and metadata over the time.
func (r *Report) WriteSVG(w io.Writer) error {
	lines := []plot.Line{
		{Title: "resident memory", Unit: "MB"},
		{Title: "the most of it in a minute", Unit: "MB"},
		{Title: "time of a commit, mean over the queries", Unit: "ms"},
		{Title: "data files, all tables"},
		{Title: "metadata, all tables", Unit: "KB"},
	}
	var places []float64
	for _, s := range r.Samples {
		places = append(places, s.Seconds)
		for i, v := range []float64{s.MemoryMB, s.MemoryMaxMB, s.commit(), s.DataFiles, s.MetadataBytes / 1000} {
			lines[i].Values = append(lines[i].Values, v)
		}
	}
	return plot.WriteSVG(w, lines, places, r.Seconds, fmt.Sprintf("%.0f minutes", r.Seconds/60))
}
