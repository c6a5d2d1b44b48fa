package prove

import (
	"encoding/xml"
	"fmt"
	"io"
	"sort"
	"strings"
)

// WriteText prints the report for people: one line per scenario, and every
// figure of those that are not one of many alike.
func (r *Report) WriteText(w io.Writer) {
	for _, s := range r.Scenarios {
		if s.Group != groupCrash && s.Group != groupCrashFirst || s.Outcome == Violated {
			s.writeFigures(w)
		}
	}
	width := len("scenario")
	for _, s := range r.Scenarios {
		width = max(width, len(s.label()))
	}
	fmt.Fprintf(w, "   %-*s  %-12s  %5s  %10s  %8s\n", width, "scenario", "outcome", "kills", "recovery", "time")
	fmt.Fprintln(w, strings.Repeat("─", width+47))
	counts := map[string]int{}
	for _, s := range r.Scenarios {
		counts[s.Outcome]++
		fmt.Fprintf(w, " %s %-*s  %-12s  %5d  %10s  %7.1fs\n", sign(s.Outcome), width, s.label(), s.Outcome, s.Kills, recoveryText(s.RecoverySeconds), s.ElapsedSeconds)
		if s.Reason != "" {
			fmt.Fprintf(w, "     %s\n", strings.ReplaceAll(strings.TrimSpace(s.Reason), "\n", "\n     "))
		}
		if s.Folder != "" && s.Outcome != Proved {
			fmt.Fprintf(w, "     evidence: %s\n", s.Folder)
		}
	}
	fmt.Fprintf(w, "\n%d proved, %d violated, %d inconclusive", counts[Proved], counts[Violated], counts[Inconclusive])
	if len(r.Scenarios) > 0 {
		fmt.Fprintf(w, "  (seed %d, %s broker)", r.Scenarios[0].Seed, r.Scenarios[0].Broker)
	}
	fmt.Fprintln(w)
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

func recoveryText(seconds []float64) string {
	if len(seconds) == 0 {
		return "–"
	}
	sorted := append([]float64{}, seconds...)
	sort.Float64s(sorted)
	return fmt.Sprintf("%.2f s", sorted[len(sorted)-1])
}

// writeFigures prints what a scenario expected and observed, side by side.
func (s *Result) writeFigures(w io.Writer) {
	fmt.Fprintf(w, "%s\n  %s\n\n", s.label(), s.Claim)
	if len(s.Checks) > 0 {
		width := len("what")
		for _, c := range s.Checks {
			width = max(width, len(c.Text))
		}
		fmt.Fprintf(w, "   %-*s  %10s  %10s\n  %s\n", width, "what", "expected", "observed", strings.Repeat("─", width+26))
		for _, c := range s.Checks {
			mark := "✓"
			if fmt.Sprint(s.Observed[c.Key]) != fmt.Sprint(c.Want) {
				mark = "✗"
			}
			fmt.Fprintf(w, " %s %-*s  %10s  %10s\n", mark, width, c.Text, figure(c.Want), figure(s.Observed[c.Key]))
		}
		fmt.Fprintln(w)
	}
	var notes []string
	for _, k := range s.Notes() {
		notes = append(notes, fmt.Sprintf("%s %s", strings.ReplaceAll(k, "_", " "), figure(s.Observed[k])))
	}
	if len(notes) > 0 {
		fmt.Fprintf(w, "   %s\n\n", strings.Join(notes, " · "))
	}
}

// Notes are the observed figures that no check is about.
func (s *Result) Notes() []string {
	checked := map[string]bool{}
	for _, c := range s.Checks {
		checked[c.Key] = true
	}
	var out []string
	for k := range s.Observed {
		if !checked[k] {
			out = append(out, k)
		}
	}
	sort.Strings(out)
	return out
}

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

type junitSuites struct {
	XMLName xml.Name     `xml:"testsuites"`
	Suites  []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Time     string      `xml:"time,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Name    string        `xml:"name,attr"`
	Class   string        `xml:"classname,attr"`
	Time    string        `xml:"time,attr"`
	Failure *junitProblem `xml:"failure,omitempty"`
	Error   *junitProblem `xml:"error,omitempty"`
	Out     string        `xml:"system-out,omitempty"`
}

type junitProblem struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr"`
}

// WriteJUnit writes the report as JUnit XML: a violation is a failure, an
// inconclusive scenario an error, because it showed nothing.
func (r *Report) WriteJUnit(w io.Writer) error {
	byGroup, order := map[string]*junitSuite{}, []string{}
	var seconds = map[string]float64{}
	for _, s := range r.Scenarios {
		suite := byGroup[s.Group]
		if suite == nil {
			suite = &junitSuite{Name: "weir prove " + s.Group}
			byGroup[s.Group], order = suite, append(order, s.Group)
		}
		c := junitCase{Name: s.label(), Class: "weir.prove." + s.Group, Time: fmt.Sprintf("%.3f", s.ElapsedSeconds), Out: s.Claim}
		switch s.Outcome {
		case Violated:
			suite.Failures++
			c.Failure = &junitProblem{Message: s.Reason, Type: Violated}
		case Inconclusive:
			suite.Errors++
			c.Error = &junitProblem{Message: s.Reason, Type: Inconclusive}
		}
		suite.Tests++
		suite.Cases = append(suite.Cases, c)
		seconds[s.Group] += s.ElapsedSeconds
	}
	var out junitSuites
	for _, g := range order {
		byGroup[g].Time = fmt.Sprintf("%.3f", seconds[g])
		out.Suites = append(out.Suites, *byGroup[g])
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(out); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
