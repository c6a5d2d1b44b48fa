package prove

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/weirlake/weir/internal/fault"
)

//go:embed report.html.tmpl
var reportPage string

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"figure": figure, "recovery": recoveryText, "sign": sign, "chart": drawTimeline, "dots": drawRecovery,
	"durable": func(row string) string { return pointText(point(row)) },
	"seconds": seconds, "human": human, "plural": plural,
}).Parse(reportPage))

// matrix is a table of many scenarios that are alike.
type matrix struct {
	Name          string
	Columns, Rows []string
	cells         map[[2]string]*Result
	Proved, Total int
}

// Cell is the scenario of a field, nil where there is none.
func (m *matrix) Cell(row, column string) *Result { return m.cells[[2]string{row, column}] }

// matrices gathers the scenarios that have a place in one. Repetitions share a
// field: it shows the worst of them.
func (r *Report) matrices() []*matrix {
	var out []*matrix
	for _, s := range r.Scenarios {
		if s.Place == nil {
			continue
		}
		i := slices.IndexFunc(out, func(m *matrix) bool { return m.Name == s.Place.Matrix })
		if i < 0 {
			i = len(out)
			out = append(out, &matrix{Name: s.Place.Matrix, cells: map[[2]string]*Result{}})
		}
		m := out[i]
		if !slices.Contains(m.Columns, s.Place.Column) {
			m.Columns = append(m.Columns, s.Place.Column)
		}
		if !slices.Contains(m.Rows, s.Place.Row) {
			m.Rows = append(m.Rows, s.Place.Row)
		}
		m.Total++
		if s.Outcome == Proved {
			m.Proved++
		}
		at := [2]string{s.Place.Row, s.Place.Column}
		if old := m.cells[at]; old == nil || rank(s.Outcome) > rank(old.Outcome) {
			m.cells[at] = s
		}
	}
	for _, m := range out {
		slices.SortStableFunc(m.Rows, func(a, b string) int { return pointOrder(a) - pointOrder(b) })
	}
	return out
}

// point is the crash point that a row is about.
func point(row string) string {
	name, _, _ := strings.Cut(row, " ")
	return name
}

// pointOrder is the place of a row's crash point in the protocol.
func pointOrder(row string) int {
	return slices.IndexFunc(fault.Points(), func(p fault.Point) bool { return p.Name == point(row) })
}

// rank orders outcomes from good to bad.
func rank(outcome string) int { return slices.Index([]string{Proved, Inconclusive, Violated}, outcome) }

// verdict is the report's outcome in a sentence.
func (r *Report) verdict() string {
	n := r.counts()
	switch r.Outcome() {
	case Violated:
		return fmt.Sprintf("%s violated", plural(n[Violated], "claim"))
	case Inconclusive:
		return fmt.Sprintf("%s inconclusive", plural(n[Inconclusive], "scenario"))
	}
	if len(r.Scenarios) == 1 {
		return "Proved"
	}
	return fmt.Sprintf("All %d scenarios proved", len(r.Scenarios))
}

// WriteHTML writes the report as one page that needs nothing else.
func (r *Report) WriteHTML(w io.Writer) error {
	// What was not proved comes first and in full.
	var failing, alone, alike []*Result
	for _, s := range r.Scenarios {
		switch {
		case s.Outcome != Proved:
			failing = append(failing, s)
		case s.Place == nil:
			alone = append(alone, s)
		default:
			alike = append(alike, s)
		}
	}
	var recoveries []float64
	for _, s := range r.Scenarios {
		recoveries = append(recoveries, s.RecoverySeconds...)
	}
	return page.Execute(w, map[string]any{
		"Date": r.About.Started.Format("2006-01-02 15:04 UTC"), "Verdict": r.verdict(), "Outcome": r.Outcome(),
		"Counts": r.counts(), "Total": len(r.Scenarios), "Kills": r.Kills, "KillsLanded": r.KillsLanded, "Recovery": r.Recovery, "Recoveries": recoveries,
		"Minutes": duration(r.elapsed()), "Matrices": r.matrices(), "Alone": slices.Concat(failing, alone), "Alike": alike,
		"About": r.aboutRows(), "Remarks": r.remarks(),
	})
}

// Sizes of the drawings.
const (
	chartWidth  = 860
	chartLeft   = 150
	chartRight  = 16
	chartRow    = 34
	chartTop    = 20
	chartBottom = 24
	// labelRoom is how near to each other two labels may stand.
	labelRoom = 52
)

// drawTimeline draws a scenario's commits, one lane per table, with the starts
// and kills of the process across them.
func drawTimeline(s *Result) template.HTML {
	var lanes []string
	var end float64
	most := map[string]int64{}
	for _, ev := range s.Timeline {
		end = math.Max(end, ev.Seconds)
		if ev.Kind == "commit" {
			if !slices.Contains(lanes, ev.Lane) {
				lanes = append(lanes, ev.Lane)
			}
			most[ev.Lane] = max(most[ev.Lane], ev.Rows)
		}
	}
	if len(lanes) == 0 || end <= 0 {
		return ""
	}
	slices.Sort(lanes) // bronze above silver
	base := chartTop + len(lanes)*chartRow
	x := func(t float64) float64 { return chartLeft + t/end*(chartWidth-chartLeft-chartRight) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="timeline" viewBox="0 0 %d %d" role="img" aria-label="commits over time">`, chartWidth, base+chartBottom)
	for i, lane := range lanes {
		y := float64(chartTop + (i+1)*chartRow)
		fmt.Fprintf(&b, `<text x="%d" y="%.1f" text-anchor="end">%s</text>`, chartLeft-10, y-4, template.HTMLEscapeString(lane))
		fmt.Fprintf(&b, `<line class="axis" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>`, chartLeft, chartWidth-chartRight, y, y)
		for _, ev := range s.Timeline {
			if ev.Kind != "commit" || ev.Lane != lane {
				continue
			}
			h := 2.0
			if most[lane] > 0 {
				h += 22 * float64(ev.Rows) / float64(most[lane])
			}
			fmt.Fprintf(&b, `<rect class="commit" x="%.1f" y="%.1f" width="3" height="%.1f" rx="1"><title>%.1f s: %s rows, %s</title></rect>`,
				x(ev.Seconds)-1.5, y-h, h, ev.Seconds, figure(ev.Rows), template.HTMLEscapeString(ev.Text))
		}
	}
	drawMoments(&b, s.Timeline, x, base)
	drawTicks(&b, end, x, base)
	b.WriteString(`</svg>`)
	return template.HTML(b.String()) // every text in it was escaped above
}

// drawMoments draws the starts and kills of processes.
func drawMoments(b *strings.Builder, timeline []Event, x func(float64) float64, base int) {
	labelled := math.Inf(-1)
	for _, ev := range timeline {
		if ev.Kind != "kill" && ev.Kind != "start" {
			continue
		}
		at := x(ev.Seconds)
		fmt.Fprintf(b, `<line class="%s" x1="%.1f" x2="%.1f" y1="%d" y2="%d"><title>%.1f s: %s</title></line>`,
			ev.Kind, at, at, chartTop-4, base, ev.Seconds, template.HTMLEscapeString(ev.Text))
		if ev.Kind == "kill" && at-labelled > labelRoom {
			fmt.Fprintf(b, `<text class="kill" x="%.1f" y="%d" text-anchor="middle">SIGKILL</text>`, at, chartTop-8)
			labelled = at
		}
	}
}

// drawTicks labels the time axis.
func drawTicks(b *strings.Builder, end float64, x func(float64) float64, base int) {
	places := 0
	if end < 10 {
		places = 1
	}
	for i := range 5 {
		t := end * float64(i) / 4
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%.*f s</text>`, x(t), base+16, places, t)
	}
}

// recoveryHeight is the height of the drawing of recovery times.
const recoveryHeight = 64

// drawRecovery draws one dot per kill over the time that its recovery took.
func drawRecovery(all []float64, r Recovery) template.HTML {
	if len(all) < 5 {
		return ""
	}
	end := r.MaxSeconds * 1.05
	x := func(t float64) float64 { return chartRight + t/end*(chartWidth-2*chartRight) }
	const base = recoveryHeight - chartBottom
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="timeline" viewBox="0 0 %d %d" role="img" aria-label="recovery times">`, chartWidth, recoveryHeight)
	fmt.Fprintf(&b, `<line class="axis" x1="%d" x2="%d" y1="%d" y2="%d"/>`, chartRight, chartWidth-chartRight, base, base)
	for i, v := range all {
		// Spread over a few heights, so that equal times do not hide each other.
		fmt.Fprintf(&b, `<circle class="dot" cx="%.1f" cy="%d" r="3"><title>%s</title></circle>`, x(v), base-6-i%4*5, seconds(v))
	}
	for _, p := range []struct {
		name string
		v    float64
	}{{"p50", r.P50Seconds}, {"p95", r.P95Seconds}} {
		fmt.Fprintf(&b, `<line class="mark" x1="%.1f" x2="%.1f" y1="12" y2="%d"/><text x="%.1f" y="10" text-anchor="middle">%s</text>`, x(p.v), x(p.v), base, x(p.v), p.name)
	}
	drawTicks(&b, end, x, base)
	b.WriteString(`</svg>`)
	return template.HTML(b.String()) // numbers only
}
