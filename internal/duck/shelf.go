package duck

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
)

// namespacesMax bounds the namespaces of a catalog that are looked into.
const namespacesMax = 1_000

// Shelf is every table of a catalog, all pinned at the same moment, mounted in a
// session when a statement names them.
type Shelf struct {
	session *Session
	catalog *lake.Catalog
	asOf    AsOf
	tables  []*table.Table
	mounted map[string]bool
}

// NewShelf loads every table's metadata; no data file is touched. Tables that
// cannot be loaded are left out where another engine made them so.
func NewShelf(ctx context.Context, s *Session, c *lake.Catalog, asOf AsOf) (*Shelf, error) {
	sh := &Shelf{session: s, catalog: c, asOf: asOf, mounted: map[string]bool{}}
	todo := []table.Identifier{nil}
	for n := 0; len(todo) > 0; n++ {
		if n > namespacesMax {
			return nil, failure.New(failure.Config, "the catalog has more than %d namespaces", namespacesMax)
		}
		at := todo[0]
		todo = todo[1:]
		inner, err := c.ListNamespaces(ctx, at)
		if err != nil {
			return nil, fmt.Errorf("list namespaces: %w", err)
		}
		for _, ns := range inner {
			if len(ns) > len(at) {
				todo = append(todo, ns)
			}
		}
		if at == nil {
			continue
		}
		idents, err := c.ListTables(ctx, at)
		if err != nil {
			return nil, err
		}
		for _, id := range idents {
			t, err := c.LoadTable(ctx, id)
			if errors.Is(err, lake.ErrNoTable) {
				continue // dropped meanwhile
			}
			if err != nil {
				return nil, fmt.Errorf("load table %s: %w", lake.Name(id), err)
			}
			sh.tables = append(sh.tables, t)
		}
	}
	slices.SortFunc(sh.tables, func(a, b *table.Table) int {
		return strings.Compare(lake.Name(a.Identifier()), lake.Name(b.Identifier()))
	})
	if asOf.Snapshot != 0 && sh.holder(asOf.Snapshot) == nil {
		return nil, failure.New(failure.Config, "no table has a snapshot %d", asOf.Snapshot)
	}
	return sh, s.LockDown(ctx, sh.folders())
}

// folders are those of the tables on this machine.
func (sh *Shelf) folders() []string {
	var out []string
	for _, t := range sh.tables {
		for _, location := range []string{t.Location(), lake.DataLocation(t)} {
			if p, err := lake.LocalPath(location); err == nil && !slices.Contains(out, p) {
				out = append(out, filepath.Clean(p))
			}
		}
	}
	return out
}

// holder is the table that has the snapshot.
func (sh *Shelf) holder(id int64) *table.Table {
	for _, t := range sh.tables {
		if t.SnapshotByID(id) != nil {
			return t
		}
	}
	return nil
}

// Named is a table as the shelf shows it.
type Named struct {
	Name       string    `json:"name"`
	SnapshotID int64     `json:"snapshot_id"`
	At         time.Time `json:"at"`
	Rows       int64     `json:"rows"`
}

// Tables lists the tables with their pinned snapshots.
func (sh *Shelf) Tables() []Named {
	out := make([]Named, 0, len(sh.tables))
	for _, t := range sh.tables {
		n := Named{Name: lake.Name(t.Identifier())}
		p, err := sh.pin(t, sh.asOf)
		if err != nil {
			continue // not there yet at that time
		}
		n.SnapshotID = p.Snapshot
		if s := t.SnapshotByID(p.Snapshot); s != nil {
			n.At = time.UnixMilli(s.TimestampMs).UTC()
			_, _ = fmt.Sscan(lake.SummaryValue(s, "total-records"), &n.Rows)
		}
		out = append(out, n)
	}
	return out
}

// pin is a table at a point of history. A snapshot of another table stands for
// the time at which it was made.
func (sh *Shelf) pin(t *table.Table, at AsOf) (Pin, error) {
	if at.Snapshot != 0 && t.SnapshotByID(at.Snapshot) == nil && at == sh.asOf {
		other := sh.holder(at.Snapshot)
		at = AsOf{Time: time.UnixMilli(other.SnapshotByID(at.Snapshot).TimestampMs).UTC()}
	}
	return At(t, at)
}

// At pins a named table at another snapshot than the shelf's, before it is used.
func (sh *Shelf) At(ctx context.Context, name string, at AsOf) error {
	for _, t := range sh.tables {
		if lake.Name(t.Identifier()) == name {
			schema, short := split(t)
			return sh.mount(ctx, schema, short, t, at)
		}
	}
	return failure.New(failure.Config, "there is no table %s", name)
}

func split(t *table.Table) (schema, name string) {
	id := t.Identifier()
	return lake.Name(id[:len(id)-1]), id[len(id)-1]
}

// wide are words with which a statement may ask for tables without naming them.
var wide = []string{"show", "information_schema", "duckdb_tables", "duckdb_views", "duckdb_columns"}

// Prepare mounts what a statement reads, and returns it with its time travel
// rewritten.
func (sh *Shelf) Prepare(ctx context.Context, statement string) (string, error) {
	out, travels, err := Travels(statement)
	if err != nil {
		return "", err
	}
	for _, tr := range travels {
		t := sh.find(tr.Schema, tr.Name)
		if t == nil {
			return "", failure.New(failure.Config, "there is no table %s.%s", tr.Schema, tr.Name)
		}
		if err := sh.mount(ctx, tr.Place(), tr.Name, t, tr.At); err != nil {
			return "", err
		}
	}
	named := mentions(out)
	all := slices.ContainsFunc(wide, func(w string) bool { return named[w] })
	for _, t := range sh.tables {
		schema, name := split(t)
		if !all && !named[strings.ToLower(name)] {
			continue
		}
		if err := sh.mount(ctx, schema, name, t, sh.asOf); err != nil {
			if all {
				continue // a table that there was not yet
			}
			return "", err
		}
	}
	return out, nil
}

func (sh *Shelf) find(schema, name string) *table.Table {
	for _, t := range sh.tables {
		s, n := split(t)
		if strings.EqualFold(s, schema) && strings.EqualFold(n, name) {
			return t
		}
	}
	return nil
}

func (sh *Shelf) mount(ctx context.Context, schema, name string, t *table.Table, at AsOf) error {
	key := schema + "." + name
	if sh.mounted[key] {
		return nil
	}
	p, err := sh.pin(t, at)
	if err != nil {
		return err
	}
	if _, err := sh.session.Mount(ctx, schema, name, p); err != nil {
		return err
	}
	sh.mounted[key] = true
	return nil
}

// Find is a table by its name, nil where there is none.
func (sh *Shelf) Find(name string) *table.Table {
	for _, t := range sh.tables {
		if strings.EqualFold(lake.Name(t.Identifier()), name) {
			return t
		}
	}
	return nil
}
