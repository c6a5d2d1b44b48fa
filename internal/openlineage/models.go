package openlineage

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// Model is one model of gold in one run.
type Model struct {
	Job   string
	RunID string // of the run of gold
	SQL   string
	// Begun and Ended are of the whole run: models overlap.
	Begun, Ended time.Time
	Inputs       []ModelInput
	Output       Table
	SnapshotID   int64
	Rows, Files  int64
	// Error is set where the model failed.
	Error string
}

// ModelInput is a table that a model read, at the snapshot it was pinned to.
type ModelInput struct {
	Table
	SnapshotID int64
}

// ModelRan tells of a model that was built and published, or failed.
func (c *Client) ModelRan(m Model) {
	e := Event{
		EventTime: m.Begun.UTC(), EventType: Start,
		Job: Job{Namespace: c.o.Namespace, Name: m.Job, Facets: map[string]any{"jobType": jobType("BATCH", "MODEL")}},
		Run: Run{RunID: runID(m.RunID, m.Job), Facets: map[string]any{
			"processing_engine": engineFacet(c.o.Version), "nominalTime": nominalTime(m.Begun),
		}},
	}
	if m.SQL != "" {
		e.Job.Facets["sql"] = sqlFacet(m.SQL)
	}
	for _, in := range m.Inputs {
		e.Inputs = append(e.Inputs, in.dataset(in.SnapshotID))
	}
	e.Outputs = []Dataset{m.Output.dataset(0)}
	c.Emit(e)
	e.EventTime, e.EventType = m.Ended.UTC(), Complete
	e.Run.Facets = maps.Clone(e.Run.Facets)
	if m.Error != "" {
		e.EventType = Fail
		e.Run.Facets["errorMessage"] = errorFacet(m.Error)
	} else {
		d := m.Output.dataset(m.SnapshotID)
		stats := outputStatistics(m.Rows, 0, m.Files)
		delete(stats, "size") // not counted
		d.OutputFacets = map[string]any{"outputStatistics": stats}
		e.Outputs = []Dataset{d}
	}
	c.Emit(e)
}

// outputOrder are the outputs, the main one first.
func outputOrder(outputs map[string]Table) []string {
	return slices.SortedFunc(maps.Keys(outputs), func(a, b string) int {
		if (a == "main") != (b == "main") {
			if a == "main" {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
}
