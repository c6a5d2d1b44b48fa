package app

import (
	"slices"

	"github.com/weirlake/weir/internal/gold"
	"github.com/weirlake/weir/internal/status"
)

// jobsForPage is what the status page asks, nil where the file has no jobs.
func (a *App) jobsForPage() func() *status.Jobs {
	if a.jobs == nil {
		return nil
	}
	reads := map[string][]string{}
	if g := a.jobs.graph; g != nil {
		for _, m := range g.Order {
			reads[m.Name] = m.Reads()
		}
	}
	return func() *status.Jobs { return pageOf(a.jobs.board.snapshot(), reads) }
}

func pageOf(s JobsStatus, reads map[string][]string) *status.Jobs {
	out := &status.Jobs{Jobs: []status.Job{}, Models: []status.Mart{}, Checks: []status.Check{}}
	for _, j := range s.Jobs {
		p := status.Job{Name: j.Name, What: j.What, When: j.When, Runs: j.Runs, Failures: j.Failures}
		if r := j.Last; r != nil {
			p.State, p.RunID, p.Trigger, p.Started, p.Tries, p.Error = r.Status, r.ID, r.Trigger, &r.StartedAt, r.Tries, r.Error
			if r.EndedAt != nil {
				p.Seconds = r.EndedAt.Sub(r.StartedAt).Seconds()
			}
		}
		out.Jobs = append(out.Jobs, p)
	}
	if s.Gold != nil {
		for _, m := range s.Gold.Models {
			out.Models = append(out.Models, status.Mart{
				Name: m.Name, Kind: m.Materialized, State: m.State, Mode: m.Mode, Rows: m.Rows, Seconds: m.Seconds, Reads: slices.Clone(reads[m.Name]), Error: m.Error,
			})
		}
	}
	for _, t := range s.Tests {
		if t.State == gold.TestPassed {
			out.TestsPassed++
		} else {
			out.TestsFailed++
		}
		for i := range out.Models {
			m := &out.Models[i]
			switch {
			case !slices.Contains(t.Models, m.Name):
			case t.State == gold.TestFailed || t.State == gold.TestBroken:
				m.TestsFailed = append(m.TestsFailed, t.Name)
			case t.State == gold.TestPassed:
				m.TestsPassed++
			}
		}
	}
	for _, c := range s.Checks {
		out.Checks = append(out.Checks, status.Check{
			Name: c.Check, Kind: c.Kind, Table: c.Table, Severity: c.Severity, State: c.Status, Observed: c.Observed, Expected: c.Expected,
			Error: c.Error, At: c.EvaluatedAt,
		})
	}
	return out
}
