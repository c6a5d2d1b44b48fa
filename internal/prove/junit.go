package prove

import (
	"encoding/xml"
	"fmt"
	"io"
)

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
