package pipeline

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// ChangesDebezium is the value of changes.
const ChangesDebezium = "debezium"

// DefaultRememberDeletes is how long the order of a deleted key is kept.
const DefaultRememberDeletes = 7 * 24 * time.Hour

func init() {
	for _, s := range []string{"IcebergSink", "DeltaSink"} {
		maps.Copy(descriptions, map[string]string{
			s + ".mode":            "`append` adds rows; `upsert` keeps one row per key, the last, and rewrites the files that hold the keys of a batch. See [changes by key](upsert.md).",
			s + ".keys":            "`upsert`: columns that name a row; they have to be `required`.",
			s + ".orderBy":         "`upsert`: columns that say which of two rows of a key is the later one. A row that comes before the table's by them is left out. Default: the order in which rows come.",
			s + ".deleteWhen":      "`upsert`: an expression like `filter`; a row for which it is true deletes its key.",
			s + ".changes":         "`upsert`: `debezium` reads values as envelopes of Debezium: `parse` then leads into the row itself, with `$.__op`, `$.__ts_ms` and `$.__source` beside it, and op `d` deletes.",
			s + ".rememberDeletes": "`upsert` with `orderBy`: how long the order of a deleted key is remembered, so that a late change does not bring it back; `0s` does not.",
		})
	}
}

func (s *IcebergSink) setDefaults() { s.Mode, s.RememberDeletes = ModeAppend, DefaultRememberDeletes }

// Upsert is how rows are merged by key.
type Upsert struct {
	Keys, OrderBy   []string
	DeleteWhen      string
	Changes         string
	RememberDeletes time.Duration
}

// Upsert is nil for a sink that appends, and for a store outside where no row
// deletes its key.
func (t To) Upsert() *Upsert {
	var u Upsert
	switch {
	case t.Iceberg != nil && t.Iceberg.Mode == ModeUpsert:
		s := t.Iceberg
		u = Upsert{s.Keys, s.OrderBy, s.DeleteWhen, s.Changes, s.RememberDeletes}
	case t.Delta != nil && t.Delta.Mode == ModeUpsert:
		s := t.Delta
		u = Upsert{s.Keys, s.OrderBy, s.DeleteWhen, s.Changes, s.RememberDeletes}
	case t.Postgres != nil && t.Postgres.Mode == ModeUpsert && t.Postgres.DeleteWhen+t.Postgres.Changes != "":
		s := t.Postgres
		u = Upsert{s.Keys, s.OrderBy, s.DeleteWhen, s.Changes, s.RememberDeletes}
	case t.Cassandra != nil && t.Cassandra.DeleteWhen+t.Cassandra.Changes != "":
		s := t.Cassandra
		u = Upsert{Keys: s.Keys, DeleteWhen: s.DeleteWhen, Changes: s.Changes}
	default:
		return nil
	}
	if len(u.OrderBy) == 0 {
		u.RememberDeletes = 0
	}
	return &u
}

// checkUpsert checks what a table's sink says of merging. query is the query's
// key, key the sink's.
func (l *loader) checkUpsert(q *Query, query, key string) {
	u := q.To.Upsert()
	if u == nil {
		for _, name := range []string{"keys", "orderBy", "deleteWhen", "changes", "rememberDeletes"} {
			if _, given := l.places[key+"."+name]; given && !l.isBroken(key+".mode") {
				l.faultKey(key+"."+name, "%s is for mode: upsert", name)
			}
		}
		return
	}
	if q.Parse == nil {
		if !l.isBroken(query + ".parse") {
			l.faultKey(key+".mode", "mode: upsert merges declared columns: add parse")
		}
		return
	}
	if len(u.Keys) == 0 && !l.isBroken(key+".keys") {
		l.faultKey(key, "mode: upsert needs keys: the columns that name a row")
	}
	if _, given := l.places[key+".rememberDeletes"]; given && len(u.OrderBy) == 0 && !l.isBroken(key+".orderBy") {
		l.faultKey(key+".rememberDeletes", "rememberDeletes without orderBy: without an order no change is late")
	}
	if len(q.Aggregate) > 0 {
		l.faultKey(query+".aggregate", "aggregate with mode: upsert: groups are put out once, by another query that appends")
	}
	if len(q.DropDuplicatesWithinWatermark) > 0 {
		l.faultKey(query+".dropDuplicatesWithinWatermark", "dropDuplicatesWithinWatermark with mode: upsert: the key makes rows unique already, and lost state could not be rebuilt from the table")
	}
	if l.isBroken(query + ".parse") {
		return
	}
	for what, names := range map[string][]string{"keys": u.Keys, "orderBy": u.OrderBy} {
		for i, name := range names {
			l.checkUpsertColumn(q, fmt.Sprintf("%s.%s[%d]", key, what, i), what, name)
		}
	}
	if u.Changes != ChangesDebezium {
		return
	}
	for i, c := range q.Parse.Columns {
		if c.Required && c.Path != "" && !slices.Contains(u.Keys, c.Name) && !slices.Contains(u.OrderBy, c.Name) {
			l.faultKey(fmt.Sprintf("%s.parse.columns[%d].required", query, i), "column %q is required, and a delete of Debezium may have no more than its key: leave required to keys and orderBy", c.Name)
		}
	}
}

// checkDeletes checks what a store outside says of rows that delete their key.
func (l *loader) checkDeletes(q *Query, query, key string) {
	if q.To.Upsert() != nil {
		l.checkUpsert(q, query, key)
		return
	}
	for _, name := range []string{"deleteWhen", "changes", "rememberDeletes"} {
		if _, given := l.places[key+"."+name]; !given || l.isBroken(key+".mode") {
			continue
		}
		if q.To.Postgres != nil && q.To.Postgres.Mode != ModeUpsert {
			l.faultKey(key+"."+name, "%s is for mode: upsert", name)
		} else if name == "rememberDeletes" {
			l.faultKey(key+"."+name, "rememberDeletes is for rows that delete: set deleteWhen or changes")
		}
	}
}

func (l *loader) checkUpsertColumn(q *Query, at, what, name string) {
	c, ok := q.column(name)
	switch {
	case name == "" || l.isBroken(at):
	case !ok:
		l.unknownColumn(q, at, what, name)
	case inexact(c.Type):
		l.faultKey(at, "%s: %q is a %s, which has no exact order", what, name, c.Type)
	case !c.Required:
		l.faultKey(at, "%s: column %q has to be required", what, name)
	}
}
