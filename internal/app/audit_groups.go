package app

import (
	"slices"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/pipeline"
)

// AuditGroups says how the audit can compute the table of a query with sessions
// or windows again; nil where it cannot: there the input is not a table, or the
// groups are made of groups.
func AuditGroups(q pipeline.Query) (*audit.GroupsConfig, audit.Columns) {
	topic, partition, offset := q.Place()
	columns := audit.Columns{Topic: topic, Partition: partition, Offset: offset}
	if !q.Typed() || len(q.Aggregate) != 1 {
		return nil, columns
	}
	a := q.Aggregate[0]
	for _, c := range q.Input() {
		if slices.Contains(a.Keys, c.Name) && (c.Type == pipeline.TypeBoolean || c.Type == pipeline.TypeBinary) {
			return nil, columns // not a type that the audit reads
		}
	}
	g := &audit.GroupsConfig{Keys: a.Keys, TimeColumn: q.EventTime(), Start: "session_start", End: "session_end"}
	if a.Session != nil {
		g.GapMicros = a.Session.Gap.Microseconds()
	} else {
		g.Start, g.End = "window_start", "window_end"
		g.DurationMicros, g.SlideMicros = a.Window.Duration.Microseconds(), a.Window.Slide.Microseconds()
		if g.SlideMicros == 0 {
			g.SlideMicros = g.DurationMicros
		}
	}
	for _, c := range a.Columns {
		if c.Function == "count" && c.Column == "" {
			g.CountColumn = c.Name
			break
		}
	}
	return g, columns
}

// Auditable reports whether a query's table can be compared with what it was
// made of.
func Auditable(q pipeline.Query) bool {
	if q.To.Upsert() != nil {
		return false // one row a key, not one an offset
	}
	if len(q.Aggregate) == 0 && !q.Typed() {
		return true
	}
	g, _ := AuditGroups(q)
	return g != nil
}
