package pipeline

import (
	"fmt"
	"strings"
)

// External is a sink over a store outside: not a table of the catalog or the
// warehouse. Each kind is a file of its own here and in package app.
type External interface {
	// Target names what is written, in logs, checkpoints and messages; two sinks
	// of one target write to the same place.
	Target() string
	// Rejects is what becomes of rows that the store refuses, and the table for
	// them.
	Rejects() (onRejected, table string)
	check(l *loader, p *Pipeline, q *Query, key string)
}

// The values of onRejected, spelled as in package sink.
const (
	RejectFail       = "fail"
	RejectDeadLetter = "deadLetter"
)

// External is the sink outside that is set, with its key; nil where the query
// writes a table.
func (t To) External() (key string, e External) {
	switch {
	case t.Postgres != nil:
		return "postgres", t.Postgres
	case t.Kafka != nil:
		return "kafka", t.Kafka
	case t.Cassandra != nil:
		return "cassandra", t.Cassandra
	case t.HTTP != nil:
		return "http", t.HTTP
	case t.File != nil:
		return "file", t.File
	case t.Exec != nil:
		return "exec", t.Exec
	}
	return "", nil
}

// kinds are the keys of To that are set.
func (t To) kinds() (out []string) {
	set := map[string]bool{"iceberg": t.Iceberg != nil, "delta": t.Delta != nil, "postgres": t.Postgres != nil, "kafka": t.Kafka != nil, "cassandra": t.Cassandra != nil,
		"http": t.HTTP != nil, "file": t.File != nil, "exec": t.Exec != nil}
	for _, key := range sinkKeys {
		if set[key] {
			out = append(out, key)
		}
	}
	return out
}

// RejectedTable is the table for rows that the query's sink refuses, empty where
// there is none.
func (q Query) RejectedTable() string {
	_, e := q.To.External()
	if e == nil {
		return ""
	}
	if policy, table := e.Rejects(); policy == RejectDeadLetter {
		return table
	}
	return ""
}

// checkExternal checks what every sink outside has, then what only this one has.
func (l *loader) checkExternal(p *Pipeline, q *Query, to string) {
	name, e := q.To.External()
	key := to + "." + name
	policy, table := e.Rejects()
	at := key + ".rejectedTable"
	switch {
	case l.isBroken(at), l.isBroken(key + ".onRejected"):
	case policy == RejectDeadLetter && table == "":
		l.faultKey(key, "%s: onRejected: deadLetter needs rejectedTable, a table of the catalog for the rows that are refused", name)
	case policy != RejectDeadLetter && table != "":
		l.faultKey(at, "rejectedTable without onRejected: deadLetter: a refused row stops the query")
	case table == "":
	case sameTable(table, p.Ops.ProgressTable):
		l.faultKey(at, "rejectedTable %q is ops.progressTable", table)
	case q.DeadLetter != nil && sameTable(table, q.DeadLetter.Table):
		l.faultKey(at, "rejectedTable %q is the query's deadLetter.table, whose rows have other columns", table)
	}
	e.check(l, p, q, key)
}

// checkRejectedTables: a table of rejected rows has one query, because its marker
// covers all that the query reads.
func (l *loader) checkRejectedTables(p *Pipeline) {
	for i, q := range p.Queries {
		table := q.RejectedTable()
		if table == "" {
			continue
		}
		name, _ := q.To.External()
		at := fmt.Sprintf("queries[%d].to.%s.rejectedTable", i, name)
		for j, o := range p.Queries {
			switch {
			case sameTable(table, o.To.Table()):
				l.faultKey(at, "rejectedTable %q is the main table of query %s", table, o.Name)
			case j < i && sameTable(table, o.RejectedTable()):
				l.faultKey(at, "rejectedTable %q is that of query %s; each query needs its own", table, o.Name)
			case j != i && o.DeadLetter != nil && sameTable(table, o.DeadLetter.Table):
				l.faultKey(at, "rejectedTable %q is the dead-letter table of query %s", table, o.Name)
			}
		}
	}
}

// checkColumnsKnown: names that must be columns of the query.
func (l *loader) checkColumnsKnown(q *Query, key, what string, names []string) {
	for i, n := range names {
		if _, ok := q.column(n); !ok && n != "" {
			l.unknownColumn(q, fmt.Sprintf("%s[%d]", key, i), what, n)
		}
	}
}

// oneOf is a list of keys for a message: a, b or c.
func oneOf(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

// sinkKeys are the keys of To, in the order of the documentation.
var sinkKeys = []string{"iceberg", "delta", "postgres", "kafka", "cassandra", "http", "file", "exec"}
