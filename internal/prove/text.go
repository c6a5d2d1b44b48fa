package prove

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// WriteText prints the report for people: a line per scenario, and every figure
// of those that are not one of many alike.
func (r *Report) WriteText(w io.Writer) {
	for _, s := range r.Scenarios {
		if s.inFull() {
			s.writeFigures(w)
		}
	}
	width := len("scenario")
	for _, s := range r.Scenarios {
		width = max(width, len(s.label()))
	}
	if len(r.Scenarios) > 1 {
		fmt.Fprintf(w, "   %-*s  %-12s  %5s  %9s  %8s\n  %s\n", width, "scenario", "outcome", "kills", "recovery", "time", strings.Repeat("─", width+43))
	}
	for _, s := range r.Scenarios {
		if len(r.Scenarios) > 1 {
			fmt.Fprintf(w, " %s %-*s  %-12s  %5d  %9s  %7.1fs\n", sign(s.Outcome), width, s.label(), s.Outcome, s.Kills, recoveryText(s.RecoverySeconds), s.ElapsedSeconds)
		}
		if s.Reason != "" {
			fmt.Fprintf(w, "     %s\n", strings.ReplaceAll(strings.TrimSpace(s.Reason), "\n", "\n     "))
		}
		if s.Folder != "" && s.Outcome != Proved {
			fmt.Fprintf(w, "     evidence: %s\n", s.Folder)
		}
	}
	r.writeSummary(w)
}

// inFull reports whether the text shows every figure: where something is not
// proved, and of scenarios that are not one of a matrix.
func (s *Result) inFull() bool {
	return s.Place == nil || s.Outcome == Violated
}

// writeSummary prints what it came to, and with what.
func (r *Report) writeSummary(w io.Writer) {
	n := r.counts()
	var parts []string
	for _, outcome := range []string{Proved, Violated, Inconclusive} {
		if n[outcome] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[outcome], outcome))
		}
	}
	fmt.Fprintf(w, "\n%s · %s with SIGKILL, %d of them at a step or over a batch under way", strings.Join(parts, ", "), plural(r.Kills, "kill"), r.KillsLanded)
	if rec := r.Recovery; rec.Count > 0 {
		fmt.Fprintf(w, " · recovery p50 %s, p95 %s, max %s", seconds(rec.P50Seconds), seconds(rec.P95Seconds), seconds(rec.MaxSeconds))
	}
	fmt.Fprintln(w)
	for _, row := range r.aboutRows() {
		fmt.Fprintf(w, "  %-9s  %s\n", row[0], row[1])
	}
	for _, remark := range r.remarks() {
		fmt.Fprintf(w, "  %-9s  %s\n", "limit", remark)
	}
}

// counts is how many scenarios came to each outcome.
func (r *Report) counts() map[string]int {
	out := map[string]int{}
	for _, s := range r.Scenarios {
		out[s.Outcome]++
	}
	return out
}

// remarks, brokers and servers are those of all scenarios, each once.
func (r *Report) remarks() []string {
	return r.once(func(s *Result) []string { return s.Remarks })
}

func (r *Report) brokers() []string {
	return r.once(func(s *Result) []string { return []string{s.Broker} })
}

func (r *Report) servers() []string {
	return r.once(func(s *Result) []string { return s.Servers })
}

// once collects texts of the scenarios in their order, each of them once.
func (r *Report) once(of func(*Result) []string) []string {
	var out []string
	for _, s := range r.Scenarios {
		for _, text := range of(s) {
			if !slices.Contains(out, text) {
				out = append(out, text)
			}
		}
	}
	return out
}

// aboutRows say with what the report was made, as pairs of name and value.
func (r *Report) aboutRows() [][2]string {
	a := &r.About
	weir := a.Weir
	if a.Revision != "" {
		weir += " (" + a.Revision[:min(len(a.Revision), 12)] + ")"
	}
	machine := plural(a.Cores, "core")
	if a.CPU != "" {
		machine += " of " + a.CPU
	}
	if a.MemoryMB > 0 {
		machine += fmt.Sprintf(", %.1f GiB", float64(a.MemoryMB)/1024)
	}
	var libs []string
	for _, l := range a.Libraries {
		libs = append(libs, strings.TrimPrefix(l.Name, "github.com/")+" "+strings.TrimPrefix(l.Version, "v"))
	}
	readers := a.Readers
	note := "; PyIceberg and DuckDB were not to be had (--python, --readers)"
	if len(readers) > 1 {
		note = ""
		if !slices.ContainsFunc(r.Scenarios, func(s *Result) bool { return len(s.Readers()) > 1 }) {
			// Each takes seconds: only the reference asks them.
			readers = readers[:1]
		}
	}
	counted := strings.Join(readers, ", ") + note
	rows := [][2]string{
		{"weir", weir + ", " + a.Go + ", " + a.Platform},
		{"broker", strings.Join(r.brokers(), "; ")},
		{"readers", counted},
		{"libraries", strings.Join(libs, ", ")},
		{"machine", machine},
		{"run", fmt.Sprintf("%s, %s of scenarios, seed %s", a.Started.Format("2006-01-02 15:04:05 UTC"), duration(r.elapsed()), strings.Join(r.seeds(), ", "))},
	}
	if servers := r.servers(); len(servers) > 0 {
		rows = slices.Insert(rows, 2, [2]string{"servers", strings.Join(servers, ", ")})
	}
	return rows
}

// seeds are those of all scenarios: results that an earlier run came to keep
// their own.
func (r *Report) seeds() []string {
	var out []string
	for _, s := range r.Scenarios {
		if text := fmt.Sprint(s.Seed); !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}

// elapsed is the time of all scenarios, those of earlier runs included.
func (r *Report) elapsed() (s float64) {
	for _, x := range r.Scenarios {
		s += x.ElapsedSeconds
	}
	return s
}

// duration writes seconds as minutes and seconds.
func duration(s float64) string {
	n := int(math.Round(s))
	if n < 60 {
		return fmt.Sprintf("%d s", n)
	}
	return fmt.Sprintf("%d min %02d s", n/60, n%60)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (s *Result) label() string {
	if s.Repeat > 0 {
		return fmt.Sprintf("%s #%d", s.Name, s.Repeat+1)
	}
	return s.Name
}

func sign(outcome string) string {
	switch outcome {
	case Proved:
		return "✓"
	case Violated:
		return "✗"
	}
	return "?"
}

// seconds writes a time with as many places as it deserves.
func seconds(s float64) string { return fmt.Sprintf("%.2f s", s) }

// recoveryText is the longest recovery of a scenario.
func recoveryText(all []float64) string {
	if len(all) == 0 {
		return "–"
	}
	return seconds(slices.Max(all))
}

// writeFigures prints what a scenario expected and observed, side by side.
func (s *Result) writeFigures(w io.Writer) {
	fmt.Fprintf(w, "%s: %s\n", s.label(), strings.ToUpper(s.Outcome))
	for _, line := range wrap(s.Claim, textWidth) {
		fmt.Fprintf(w, "  %s\n", line)
	}
	fmt.Fprintln(w)
	if len(s.Checks) > 0 {
		s.writeTable(w)
	}
	notes := []string{fmt.Sprintf("%s in %.0f s", plural(s.Kills, "kill"), s.ElapsedSeconds), "recovery " + recoveryText(s.RecoverySeconds)}
	for _, k := range s.Notes() {
		notes = append(notes, fmt.Sprintf("%s %s", human(k), figure(s.Observed[k])))
	}
	for _, line := range wrap(strings.Join(notes, " · "), textWidth) {
		fmt.Fprintf(w, "   %s\n", line)
	}
	fmt.Fprintln(w)
}

// writeTable prints the figures, a column per reader.
func (s *Result) writeTable(w io.Writer) {
	rows := s.Rows()
	heads := append([]string{"expected"}, s.Readers()...)
	first := len("what")
	widths := make([]int, len(heads))
	for i, h := range heads {
		widths[i] = len(h)
	}
	for _, r := range rows {
		first = max(first, len([]rune(r.Text)))
		widths[0] = max(widths[0], len([]rune(r.Want)))
		for i, c := range r.Cells {
			widths[i+1] = max(widths[i+1], len([]rune(c.Value)))
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "   %-*s", first, "what")
	total := first
	for i, h := range heads {
		fmt.Fprintf(&b, "  %*s", widths[i], h)
		total += widths[i] + 2
	}
	fmt.Fprintf(&b, "\n  %s\n", strings.Repeat("─", total+2))
	for _, r := range rows {
		mark := "✓"
		if !r.Met() {
			mark = "✗"
		}
		line := fmt.Sprintf(" %s %-*s  %*s", mark, first, r.Text, widths[0], r.Want)
		for i, c := range r.Cells {
			line += fmt.Sprintf("  %*s", widths[i+1], c.Value)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	fmt.Fprintln(w, b.String())
}

// textWidth is where running text is broken.
const textWidth = 96

// wrap breaks a text at spaces.
func wrap(text string, width int) []string {
	var out []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len([]rune(line))+1+len([]rune(word)) > width {
			out, line = append(out, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		out = append(out, line)
	}
	return out
}

// human is the name of an observed figure in words.
func human(key string) string { return strings.ReplaceAll(key, "_", " ") }

// figure writes a number with a comma every three digits. Numbers that come
// back from a results file are floats.
func figure(v any) string {
	var n int64
	switch x := v.(type) {
	case int64:
		n = x
	case int:
		n = int64(x)
	case float64:
		n = int64(x)
	case bool:
		if x {
			return "yes"
		}
		return "no"
	case nil:
		return "–"
	default:
		return fmt.Sprint(v)
	}
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
