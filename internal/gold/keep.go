package gold

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/weirlake/weir/internal/duck"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
)

// keep writes the DuckDB file: a copy of every published table. It is made
// beside the old one and renamed over it, so that a reader has one or the other.
func (r *run) keep(ctx context.Context, order []*Model) error {
	if r.Keep == "" {
		return nil
	}
	if _, err := os.Stat(r.Keep); err == nil && r.nothingToDo() {
		return nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failure.Wrap(failure.Config, err, "the DuckDB file of gold")
	}
	temp := r.Keep + ".new"
	for _, f := range []string{temp, temp + ".wal"} { // of a run that was killed
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return failure.Wrap(failure.Config, err, "the DuckDB file of gold")
		}
	}
	if err := os.MkdirAll(filepath.Dir(r.Keep), 0o755); err != nil {
		return failure.Wrap(failure.Config, err, "the folder of gold's DuckDB file")
	}
	if err := r.writeKept(ctx, order, temp); err != nil {
		return failure.Wrap(failure.ClassOf(err), err, "write %s", r.Keep)
	}
	if err := replaceFile(temp, r.Keep); err != nil {
		return failure.Wrap(failure.Runtime, err, "write %s", r.Keep)
	}
	fault.Reach(faultScope, fault.GoldKept)
	return nil
}

// writeKept fills a new file. The tables lie in its main schema: the file is
// called gold as a rule, and a schema of the same name could not be told from it
// (so gold.top_pages finds the table as well).
func (r *run) writeKept(ctx context.Context, order []*Model, path string) (err error) {
	s, err := duck.Open(ctx, duck.Options{Threads: r.Threads, MemoryLimit: r.MemoryLimit})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	const file = "weir_kept"
	if err := s.Exec(ctx, "ATTACH "+duck.Quote(path)+" AS "+file); err != nil {
		return err
	}
	for _, m := range order {
		if !m.Published() {
			continue
		}
		// As published: a model that failed has its last good rows.
		t, err := loadTarget(ctx, r.Catalog, r.g.Schema, m)
		if err != nil {
			return err
		}
		if t.table == nil || t.record == nil {
			continue
		}
		if _, err := s.Mount(ctx, "published", m.Name, duck.Head(t.table)); err != nil {
			return err
		}
		if err := s.Exec(ctx, "CREATE TABLE "+file+".main."+duck.Ident(m.Name)+" AS FROM "+duck.Relation("published", m.Name)); err != nil {
			return err
		}
	}
	return s.Exec(ctx, "DETACH "+file) // writes everything into the file
}

// replaceFile renames a file over another, durably.
func replaceFile(from, to string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(to))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Attach writes the pinned sources into a DuckDB file as views, for dbt and
// other tools that run the same folder: one set of snapshots, chosen now.
func (g *Graph) Attach(ctx context.Context, o Options, path string) (inputs []Input, err error) {
	r, err := g.begin(o)
	if err != nil {
		return nil, err
	}
	r.Test = true // sources that only tests read are there too
	order, err := r.selected()
	if err != nil {
		return nil, err
	}
	if err := r.pin(ctx, order); err != nil {
		return nil, err
	}
	s, err := duck.Open(ctx, duck.Options{Path: path})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for k, p := range r.pins {
		if err := attach(ctx, s, g.Project, k, p); err != nil {
			return nil, err
		}
	}
	return r.inputs(), s.Exec(ctx, "CHECKPOINT")
}

// attach is mountSource for a file that outlives the session: rows that are not
// read from the table's own files are copied in.
func attach(ctx context.Context, s *duck.Session, p *Project, k Key, pin *duck.Pin) error {
	if pin == nil {
		return mountSource(ctx, s, p, k, nil)
	}
	m, err := s.Mount(ctx, k.Schema, k.Name, *pin)
	if err != nil || !m.Copied {
		return err
	}
	rel := duck.Relation(k.Schema, k.Name)
	copied := duck.Relation(k.Schema, k.Name+" copied")
	for _, statement := range []string{
		"CREATE OR REPLACE TABLE " + copied + " AS FROM " + rel,
		"DROP VIEW " + rel,
		"ALTER TABLE " + copied + " RENAME TO " + duck.Ident(k.Name),
	} {
		if err := s.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}
