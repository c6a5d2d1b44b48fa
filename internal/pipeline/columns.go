package pipeline

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

func init() {
	maps.Copy(descriptions, map[string]string{
		"Column.renamedFrom":      "The name that the column had in the table before. It is renamed there; its rows stay. See [changing the columns](#changing-the-columns).",
		"Aggregate.renamedFrom":   "The name that the column had in the table before. It is renamed there; its rows stay.",
		"IcebergSink.dropColumns": "Columns of the table that the query wrote before and that go out of it. See [changing the columns](#changing-the-columns).",
		"IcebergSink.keepColumns": "Columns of the table that the query wrote before and does not write any more: they stay, and new rows have null.",
		"DeltaSink.keepColumns":   "Columns of the table that the query wrote before and does not write any more: they stay, and new rows have null.",
	})
}

// Renamed gives, by the name that a column of the table has now, the one that it
// had before.
func (q Query) Renamed() map[string]string {
	out := map[string]string{}
	for _, c := range q.Columns() {
		if c.RenamedFrom != "" {
			out[c.Name] = c.RenamedFrom
		}
	}
	return out
}

// FixedColumns says, by column of the main table, what stands on it: these keep
// their names and types for as long as the query has its name.
func (q Query) FixedColumns() map[string]string {
	out := map[string]string{}
	set := func(why string, names ...string) {
		for _, n := range names {
			if _, ok := out[n]; !ok && n != "" {
				out[n] = why
			}
		}
	}
	if n := len(q.Aggregate); n > 0 {
		last := q.Aggregate[n-1]
		start, end := last.bounds()
		set("the query groups by it", last.Keys...)
		set("it says when a group was", start, end)
		return out
	}
	set("dropDuplicatesWithinWatermark knows rows by it", q.DropDuplicatesWithinWatermark...)
	set("it is the event time", q.EventTime())
	if u := q.To.Upsert(); u != nil {
		set("it is one of the keys", u.Keys...)
		set("changes are ordered by it", u.OrderBy...)
	}
	for _, c := range q.Columns() {
		switch c.Source {
		case SourceTopic, SourceTopicID, SourcePartition, SourceOffset:
			set("it says where in Kafka a row came from", c.Name)
		}
	}
	for _, f := range q.To.PartitionBy() {
		set("the table is partitioned by it", f.Column)
	}
	return out
}

// DropColumns are the columns that go out of the main table.
func (t To) DropColumns() []string {
	if t.Iceberg != nil {
		return t.Iceberg.DropColumns
	}
	return nil
}

// KeepColumns are the columns of the main table that the query lets go of.
func (t To) KeepColumns() []string {
	switch {
	case t.Iceberg != nil:
		return t.Iceberg.KeepColumns
	case t.Delta != nil:
		return t.Delta.KeepColumns
	}
	return nil
}

// checkColumnsPast checks what the file says of the columns of before. key is
// the query's.
func (l *loader) checkColumnsPast(q *Query, key string) {
	if l.isBroken(key + ".parse") {
		return
	}
	if q.Parse != nil {
		for i, c := range q.Parse.Columns {
			l.checkRenamed(q, c.Name, c.RenamedFrom, fmt.Sprintf("%s.parse.columns[%d].renamedFrom", key, i))
		}
	}
	for s, a := range q.Aggregate {
		for i, c := range a.Columns {
			at := fmt.Sprintf("%s.aggregate[%d].columns[%d].renamedFrom", key, s, i)
			if c.RenamedFrom != "" && s < len(q.Aggregate)-1 {
				l.faultKey(at, "renamedFrom: %q is in no table; only the columns of the last stage are", c.Name)
				continue
			}
			l.checkRenamed(q, c.Name, c.RenamedFrom, at)
		}
	}
	sink := key + ".to.iceberg"
	if q.To.Delta != nil {
		sink = key + ".to.delta"
	}
	l.checkUnwritten(q, sink+".dropColumns", "dropColumns", q.To.DropColumns())
	l.checkUnwritten(q, sink+".keepColumns", "keepColumns", q.To.KeepColumns())
	for i, name := range q.To.KeepColumns() {
		if slices.Contains(q.To.DropColumns(), name) {
			l.faultKey(fmt.Sprintf("%s.keepColumns[%d]", sink, i), "%q is in dropColumns too; keep one", name)
		}
	}
}

func (l *loader) checkRenamed(q *Query, name, before, at string) {
	if before == "" || l.isBroken(at) {
		return
	}
	fixed := q.FixedColumns()
	twice := slices.ContainsFunc(q.Columns(), func(c Column) bool { return c.RenamedFrom == before && c.Name != name })
	declared := slices.ContainsFunc(q.Columns(), func(c Column) bool { return strings.EqualFold(c.Name, before) })
	switch {
	case q.To.Iceberg == nil && q.Parse != nil && len(q.To.kinds()) == 1:
		l.faultKey(at, "renamedFrom is for Iceberg tables: a column is renamed by its field id there, which %s has not; declare the new column and list %q under keepColumns where there is one",
			q.To.kinds()[0], before)
	case declared:
		l.faultKey(at, "renamedFrom: %q is declared too; a column cannot be renamed to %q and be there", before, name)
	case twice:
		l.faultKey(at, "renamedFrom: %q is the earlier name of two columns", before)
	case fixed[name] != "":
		l.faultKey(at, "renamedFrom: %q keeps its name: %s; with another name it would be another query, with a table of its own", name, fixed[name])
	case slices.Contains(q.To.DropColumns(), before), slices.Contains(q.To.KeepColumns(), before):
		l.faultKey(at, "renamedFrom: %q is renamed, and the sink drops or keeps it; do one of it", before)
	}
}

func (l *loader) checkUnwritten(q *Query, at, what string, names []string) {
	for i, name := range names {
		if c, ok := q.column(name); ok {
			l.faultKey(fmt.Sprintf("%s[%d]", at, i), "%s: the query writes column %q", what, c.Name)
		}
	}
}
