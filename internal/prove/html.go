package prove

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
)

//go:embed report.html.tmpl
var reportPage string

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"figure": figure, "recovery": recoveryText, "sign": sign, "chart": drawTimeline,
	"human": human,
}).Parse(reportPage))

// WriteHTML writes the report as one page that needs nothing else.
func (r *Report) WriteHTML(w io.Writer, title string) error {
	type group struct {
		Name      string
		Scenarios []*Result
		Proved    int
	}
	var groups []*group
	counts := map[string]int{}
	var slowest float64
	for _, s := range r.Scenarios {
		counts[s.Outcome]++
		var g *group
		for _, have := range groups {
			if have.Name == s.Group {
				g = have
			}
		}
		if g == nil {
			g = &group{Name: s.Group}
			groups = append(groups, g)
		}
		g.Scenarios = append(g.Scenarios, s)
		if s.Outcome == Proved {
			g.Proved++
		}
		for _, v := range s.RecoverySeconds {
			slowest = math.Max(slowest, v)
		}
	}
	kills := 0
	for _, s := range r.Scenarios {
		kills += s.Kills
	}
	return page.Execute(w, map[string]any{
		"Title": title, "Groups": groups, "Counts": counts, "Kills": kills, "Slowest": slowest,
		"Outcome": r.Outcome(), "Scenarios": r.Scenarios,
	})
}

// Sizes of the timeline's drawing.
const (
	chartWidth  = 860
	chartLeft   = 150
	chartRow    = 34
	chartTop    = 16
	chartBottom = 24
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
			if _, ok := most[ev.Lane]; !ok {
				lanes = append(lanes, ev.Lane)
				most[ev.Lane] = 0
			}
			most[ev.Lane] = max(most[ev.Lane], ev.Rows)
		}
	}
	if len(lanes) == 0 || end <= 0 {
		return ""
	}
	height := chartTop + len(lanes)*chartRow + chartBottom
	x := func(t float64) float64 { return chartLeft + t/end*(chartWidth-chartLeft-12) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="timeline" viewBox="0 0 %d %d" role="img" aria-label="commits over time">`, chartWidth, height)
	base := chartTop + len(lanes)*chartRow
	for i, lane := range lanes {
		y := float64(chartTop + (i+1)*chartRow)
		fmt.Fprintf(&b, `<text x="%d" y="%.1f" class="lane" text-anchor="end">%s</text>`, chartLeft-10, y-4, template.HTMLEscapeString(lane))
		fmt.Fprintf(&b, `<line class="axis" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>`, chartLeft, chartWidth-12, y, y)
		for _, ev := range s.Timeline {
			if ev.Kind != "commit" || ev.Lane != lane {
				continue
			}
			h := 2.0
			if most[lane] > 0 {
				h += 22 * float64(ev.Rows) / float64(most[lane])
			}
			fmt.Fprintf(&b, `<rect class="commit" x="%.1f" y="%.1f" width="2.5" height="%.1f"><title>%.1f s: %d rows, %s</title></rect>`,
				x(ev.Seconds)-1.2, y-h, h, ev.Seconds, ev.Rows, template.HTMLEscapeString(ev.Text))
		}
	}
	for _, ev := range s.Timeline {
		if ev.Kind != "kill" && ev.Kind != "start" {
			continue
		}
		fmt.Fprintf(&b, `<line class="%s" x1="%.1f" x2="%.1f" y1="%d" y2="%d"><title>%.1f s: %s</title></line>`,
			ev.Kind, x(ev.Seconds), x(ev.Seconds), chartTop-4, base, ev.Seconds, template.HTMLEscapeString(ev.Text))
		if ev.Kind == "kill" {
			fmt.Fprintf(&b, `<text class="kill" x="%.1f" y="%d" text-anchor="middle">SIGKILL</text>`, x(ev.Seconds), chartTop-6)
		}
	}
	for i := 0; i <= 4; i++ {
		t := end * float64(i) / 4
		fmt.Fprintf(&b, `<text class="tick" x="%.1f" y="%d" text-anchor="middle">%.0f s</text>`, x(t), base+16, t)
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String()) // every text in it was escaped above
}
