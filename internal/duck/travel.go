package duck

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
)

// AsOf is a point in a table's history: a snapshot id, or a time. The zero value
// is the head.
type AsOf struct {
	Snapshot int64
	Time     time.Time
}

// IsHead reports whether nothing was asked for.
func (a AsOf) IsHead() bool { return a.Snapshot == 0 && a.Time.IsZero() }

// timeLayouts are how a time may be written; without a zone it is UTC.
var timeLayouts = []string{
	time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999",
	"2006-01-02 15:04", "2006-01-02T15:04", time.DateOnly,
}

// ParseAsOf reads a snapshot id or a time.
func ParseAsOf(s string) (AsOf, error) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil && n > 0 {
		return AsOf{Snapshot: n}, nil
	}
	for _, l := range timeLayouts {
		if t, err := time.Parse(l, s); err == nil {
			return AsOf{Time: t.UTC()}, nil
		}
	}
	return AsOf{}, failure.New(failure.Config, "%q is neither a snapshot id nor a time", s).
		WithHint("write a snapshot's number, or a time such as 2026-01-31T12:00:00Z or '2026-01-31 12:00'")
}

// snapshotsListed bounds the snapshots that an error names.
const snapshotsListed = 5

// At pins a table as it was. Among snapshots of a time, the last one that was
// made by then counts.
func At(t *table.Table, at AsOf) (Pin, error) {
	if at.IsHead() {
		return Head(t), nil
	}
	name := lake.Name(t.Identifier())
	if at.Snapshot != 0 {
		if t.SnapshotByID(at.Snapshot) == nil {
			return Pin{}, failure.New(failure.Config, "table %s has no snapshot %d", name, at.Snapshot).WithHint("%s", newest(t))
		}
		return Pin{Table: t, Snapshot: at.Snapshot}, nil
	}
	var found *table.Snapshot
	var oldest time.Time
	lake.Walk(t, func(s *table.Snapshot) bool {
		oldest = time.UnixMilli(s.TimestampMs).UTC()
		if !oldest.After(at.Time) {
			found = s
		}
		return found == nil
	})
	if found == nil {
		if oldest.IsZero() {
			return Pin{Table: t}, nil // empty then and now
		}
		return Pin{}, failure.New(failure.Config, "table %s has no snapshot from %s or before: its oldest is from %s",
			name, at.Time.Format(time.RFC3339), oldest.Format(time.RFC3339Nano))
	}
	return Pin{Table: t, Snapshot: found.SnapshotID}, nil
}

func newest(t *table.Table) string {
	var ids []string
	lake.Walk(t, func(s *table.Snapshot) bool {
		ids = append(ids, fmt.Sprintf("%d (%s)", s.SnapshotID, time.UnixMilli(s.TimestampMs).UTC().Format(time.RFC3339)))
		return len(ids) < snapshotsListed
	})
	if len(ids) == 0 {
		return "the table is empty"
	}
	return "its newest are " + strings.Join(ids, ", ")
}

// Travel is one table of a statement that is to be read as it was.
type Travel struct {
	Schema, Name string
	At           AsOf
}

// Place is the schema in which that view of the table is mounted: the table
// keeps its name, so that the statement's columns still find it.
func (t Travel) Place() string {
	if t.At.Snapshot != 0 {
		return t.Schema + "@" + strconv.FormatInt(t.At.Snapshot, 10)
	}
	return t.Schema + "@" + t.At.Time.Format(time.RFC3339Nano)
}

// Travels rewrites the time travel of a statement, which DuckDB knows for its
// own catalogs only: schema.table AT (VERSION => 1), AT (TIMESTAMP => '…'), FOR
// VERSION AS OF 1, FOR SYSTEM_TIME AS OF TIMESTAMP '…' (also SYSTEM_VERSION and
// TIMESTAMP). What comes back reads Travel.Place of each.
func Travels(statement string) (string, []Travel, error) {
	all := lex(statement)
	var toks []token
	for _, t := range all {
		if t.kind != space {
			toks = append(toks, t)
		}
	}
	var out strings.Builder
	var found []Travel
	from := 0
	for i := 0; i < len(toks); i++ {
		schema, name, n := relationAt(toks[i:])
		if n == 0 {
			continue
		}
		at, m, err := asOfAt(toks[i+n:])
		if err != nil {
			return "", nil, err
		}
		if m == 0 {
			i += n - 1
			continue
		}
		t := Travel{Schema: schema, Name: name, At: at}
		found = append(found, t)
		out.WriteString(statement[from:toks[i].from])
		out.WriteString(Relation(t.Place(), t.Name))
		from = toks[i+n+m-1].to
		i += n + m - 1
	}
	out.WriteString(statement[from:])
	return out.String(), found, nil
}

// relationAt reads name.name, and how many tokens it takes; a namespace with
// parts is one name with dots.
func relationAt(toks []token) (schema, name string, n int) {
	var parts []string
	for n < len(toks) && (toks[n].kind == word || toks[n].kind == quoted) {
		parts = append(parts, toks[n].val)
		n++
		if n >= len(toks) || toks[n].kind != sign || toks[n].val != "." {
			break
		}
		n++
	}
	if len(parts) < 2 {
		return "", "", 0
	}
	return strings.Join(parts[:len(parts)-1], "."), parts[len(parts)-1], n
}

// asOfAt reads a time travel clause, and how many tokens it takes.
func asOfAt(toks []token) (AsOf, int, error) {
	get := func(i int) token {
		if i < len(toks) {
			return toks[i]
		}
		return token{kind: space}
	}
	signs := func(i int, s string) bool { t := get(i); return t.kind == sign && t.val == s }
	switch {
	case get(0).is("AT") && signs(1, "(") && (get(2).is("VERSION") || get(2).is("TIMESTAMP")) && signs(3, "=") && signs(4, ">"):
		at, n, err := valueAt(toks, 5)
		if err == nil && !signs(n, ")") {
			err = failure.New(failure.Config, "Parser Error: AT (%s => …) has no closing bracket", strings.ToUpper(get(2).val))
		}
		return at, n + 1, err
	case get(0).is("FOR") && get(2).is("AS") && get(3).is("OF"):
		for _, w := range []string{"VERSION", "SYSTEM_VERSION", "TIMESTAMP", "SYSTEM_TIME"} {
			if get(1).is(w) {
				return valueAt(toks, 4)
			}
		}
	}
	return AsOf{}, 0, nil
}

// valueAt reads the snapshot or the time at toks[i]; TIMESTAMP before it may
// stand there.
func valueAt(toks []token, i int) (AsOf, int, error) {
	if i < len(toks) && (toks[i].is("TIMESTAMP") || toks[i].is("TIMESTAMPTZ")) {
		i++
	}
	if i >= len(toks) || (toks[i].kind != number && toks[i].kind != text) {
		return AsOf{}, 0, failure.New(failure.Config, "Parser Error: time travel needs a snapshot id or a time in quotes")
	}
	at, err := ParseAsOf(toks[i].val)
	return at, i + 1, err
}
