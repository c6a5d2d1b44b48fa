package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

// Result is one measurement, or the median of several.
type Result struct {
	Name          string  `json:"name"`
	Rows          int64   `json:"rows,omitempty"`
	RowsPerSecond float64 `json:"rows_per_second,omitempty"`
	CPU           float64 `json:"cpu_seconds_per_million_rows,omitempty"`
	PeakRSSMB     float64 `json:"peak_rss_mb,omitempty"`
	P50           float64 `json:"p50_seconds,omitempty"`
	P95           float64 `json:"p95_seconds,omitempty"`
	P99           float64 `json:"p99_seconds,omitempty"`
	Target        string  `json:"target,omitempty"`
	// Ratio is the rate over that of what Target names, in the same run.
	Ratio float64 `json:"ratio,omitempty"`
	// Met is null where there is no target.
	Met *bool `json:"met,omitempty"`

	// Whole is the rate of the whole process, start-up included.
	Whole float64 `json:"rows_per_second_whole,omitempty"`
	// BrokerCPU is the broker's own, where it can be read.
	BrokerCPU float64 `json:"broker_cpu_seconds_per_million_rows,omitempty"`
	// Others are the cores that other processes of the machine used meanwhile:
	// a rate was reached with what they left.
	Others  float64 `json:"cores_used_by_others,omitempty"`
	Commits int     `json:"commits,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
	// Stages are seconds per million rows of each step, query by query, as the
	// process reports them. Steps of different queries overlap.
	Stages map[string]float64 `json:"stage_seconds_per_million_rows,omitempty"`
	Broker string             `json:"broker,omitempty"`
	// CompressionCPU is what compressing a million of the events cost right
	// before: the machine's speed at that moment.
	CompressionCPU float64 `json:"zstd_cpu_seconds_per_million_rows,omitempty"`
	Runs           int     `json:"runs,omitempty"`
	// History is that of the table, of the benchmark of that name.
	History []Point `json:"history,omitempty"`
}

// Report is the document that is printed.
type Report struct {
	Benchmarks []Result `json:"benchmarks"`
	Machine    Machine  `json:"machine"`
	Broker     string   `json:"broker"`
	Repeat     int      `json:"repeat"`
	// History is that of the last run of the benchmark of that name.
	History []Point `json:"history,omitempty"`
}

// target is what a result is held against; zero values are no bound.
type target struct {
	rate, cpu, rss, p95 float64
}

// targets are the ones that the project has set itself, on two cores with the
// broker beside. They are absolute figures: on another machine, compare ratios.
var targets = map[string]target{
	"bronze/none":                   {rate: 220_000, cpu: 6, rss: 400},
	"bronze/zstd":                   {rate: 220_000, cpu: 6, rss: 400},
	"silver/none":                   {rate: 150_000, cpu: 12},
	"silver/zstd":                   {rate: 150_000, cpu: 12},
	"ingest":                        {rate: 150_000},
	"freshness/5000/bronze/append":  {p95: 0.3, rss: 200},
	"freshness/5000/silver/append":  {p95: 0.6, rss: 200},
	"freshness/50000/bronze/append": {p95: 1},
	"freshness/50000/silver/append": {p95: 1},
	freshnessSlow + "/silver/event": {p95: 10.5},
	"startup/bronze":                {p95: 0.3},
	"recovery/bronze":               {p95: 1},
	"recovery/silver":               {p95: 1},
	"small":                         {rate: 400_000},
	"ids":                           {rss: 500},
	"ids/recovery/bronze":           {p95: 1},
	"ids/recovery/silver":           {p95: 1},
	"ids-pebble":                    {rss: 500},
	"ids-pebble/recovery/silver":    {p95: 1},
}

// judge compares with the target.
func (r *Result) judge() {
	if x, ok := ratios[r.Name]; ok && r.Ratio > 0 {
		met := r.Ratio >= x.least
		r.Target, r.Met = fmt.Sprintf("≥ %.0f %% of %s (%.0f %%)", x.least*100, x.of, r.Ratio*100), &met
		return
	}
	t, ok := targets[r.Name]
	if !ok {
		return
	}
	met := true
	var text []string
	least := func(want, got float64, format string) {
		if want > 0 {
			text = append(text, fmt.Sprintf("≥ "+format, want))
			met = met && got >= want
		}
	}
	most := func(want, got float64, format string) {
		if want > 0 {
			text = append(text, fmt.Sprintf("≤ "+format, want))
			met = met && got > 0 && got <= want
		}
	}
	least(t.rate, r.RowsPerSecond, "%.0f rows/s")
	most(t.cpu, r.CPU, "%g CPU-s/M")
	most(t.rss, r.PeakRSSMB, "%.0f MB")
	most(t.p95, r.P95, "p95 %g s")
	r.Target, r.Met = strings.Join(text, ", "), &met
}

// String is a line for people.
func (r Result) String() string {
	var s []string
	add := func(v float64, format string) {
		if v > 0 {
			s = append(s, fmt.Sprintf(format, v))
		}
	}
	add(r.RowsPerSecond, "%.0f rows/s")
	add(r.Whole, "(%.0f whole)")
	add(r.CPU, "%.2f CPU-s/M")
	add(r.PeakRSSMB, "%.0f MB")
	add(r.BrokerCPU, "broker %.2f CPU-s/M")
	add(r.Others, "others used %.2f cores")
	if r.P95 > 0 {
		s = append(s, fmt.Sprintf("p50 %.3f p95 %.3f p99 %.3f s", r.P50, r.P95, r.P99))
	}
	return r.Name + ": " + strings.Join(s, ", ")
}

// WriteText prints the table.
func (r *Report) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "%s\nbroker: %s, median of %d; others: cores that other processes used meanwhile\n\n", r.Machine, r.Broker, r.Repeat)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "benchmark\trows\trows/s\tCPU-s/M\tMB\tothers\tp50 s\tp95 s\tp99 s\ttarget\t")
	num := func(v float64, format string) string {
		if v == 0 {
			return "-"
		}
		return fmt.Sprintf(format, v)
	}
	for _, b := range r.Benchmarks {
		verdict := ""
		if b.Met != nil {
			if verdict = "missed"; *b.Met {
				verdict = "met"
			}
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", b.Name, num(float64(b.Rows), "%.0f"), num(b.RowsPerSecond, "%.0f"),
			num(b.CPU, "%.2f"), num(b.PeakRSSMB, "%.0f"), num(b.Others, "%.1f"), num(b.P50, "%.3f"), num(b.P95, "%.3f"), num(b.P99, "%.3f"), b.Target, verdict)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, b := range r.Benchmarks {
		if len(b.Stages) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s, seconds per million rows by step:", b.Name)
		for _, k := range sortedKeys(b.Stages) {
			fmt.Fprintf(w, " %s %.2f", k, b.Stages[k])
		}
		fmt.Fprintln(w)
	}
	return nil
}

func sortedKeys(m map[string]float64) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// medians folds the runs of each benchmark into one result, field by field, in
// the order of first appearance.
func medians(all []Result) []Result {
	var names []string
	by := map[string][]Result{}
	for _, r := range all {
		if by[r.Name] == nil {
			names = append(names, r.Name)
		}
		by[r.Name] = append(by[r.Name], r)
	}
	out := []Result{}
	for _, n := range names {
		runs := by[n]
		m := runs[0]
		mid := func(f func(*Result) *float64) {
			v := make([]float64, len(runs))
			for i := range runs {
				v[i] = *f(&runs[i])
			}
			*f(&m) = median(v)
		}
		for _, f := range []func(*Result) *float64{
			func(r *Result) *float64 { return &r.RowsPerSecond }, func(r *Result) *float64 { return &r.CPU },
			func(r *Result) *float64 { return &r.Ratio }, func(r *Result) *float64 { return &r.PeakRSSMB }, func(r *Result) *float64 { return &r.P50 },
			func(r *Result) *float64 { return &r.P95 }, func(r *Result) *float64 { return &r.P99 },
			func(r *Result) *float64 { return &r.Whole }, func(r *Result) *float64 { return &r.BrokerCPU },
			func(r *Result) *float64 { return &r.Seconds }, func(r *Result) *float64 { return &r.Others }, func(r *Result) *float64 { return &r.CompressionCPU },
		} {
			mid(f)
		}
		if len(m.Stages) > 0 {
			stages := map[string]float64{}
			for k := range m.Stages {
				var v []float64
				for _, r := range runs {
					v = append(v, r.Stages[k])
				}
				stages[k] = median(v)
			}
			m.Stages = stages
		}
		m.Runs = len(runs)
		m.judge()
		out = append(out, m)
	}
	return out
}

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	n := len(v)
	if n == 0 {
		return 0
	}
	if n%2 == 1 {
		return v[n/2]
	}
	return (v[n/2-1] + v[n/2]) / 2
}

// quantiles are p50, p95 and p99 of the values, by the nearest rank.
func quantiles(v []float64) (p50, p95, p99 float64) {
	if len(v) == 0 {
		return 0, 0, 0
	}
	v = slices.Clone(v)
	slices.Sort(v)
	at := func(q float64) float64 { return round(v[max(0, int(math.Ceil(q*float64(len(v))))-1)]) }
	return at(0.5), at(0.95), at(0.99)
}

// round keeps five significant digits at most: more would only be noise.
func round(v float64) float64 {
	if v == 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0
	}
	scale := math.Pow(10, 4-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}
