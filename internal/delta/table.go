package delta

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/failure"
)

// CreateOptions say what a new table is like.
type CreateOptions struct {
	Name             string
	PartitionColumns []string
	// Configuration are table properties.
	Configuration map[string]string
}

// CreateActions are the protocol and metadata of a new table, for a commit that
// makes it together with its first rows or markers.
func (t *Table) CreateActions(sc *arrow.Schema, o CreateOptions) ([]Action, error) {
	text, err := SchemaString(sc)
	if err != nil {
		return nil, err
	}
	for _, c := range o.PartitionColumns {
		if len(sc.FieldIndices(c)) == 0 {
			return nil, failure.New(failure.Config, "Delta table %s: partition column %q is not a column", t.Location(), c)
		}
	}
	m := &Metadata{ID: newID(), Name: o.Name, Format: Format{Provider: "parquet", Options: map[string]string{}}, SchemaString: text,
		PartitionColumns: append([]string{}, o.PartitionColumns...), Configuration: maps.Clone(o.Configuration), CreatedTime: t.nowMillis()}
	if m.Configuration == nil {
		m.Configuration = map[string]string{}
	}
	p := &Protocol{MinReaderVersion: readerVersion, MinWriterVersion: writerVersion}
	if err := checkProtocol(t.Location(), p, m); err != nil {
		return nil, err
	}
	if err := checkSettings(t.Location(), m); err != nil {
		return nil, err
	}
	return []Action{{Protocol: p}, {Metadata: m}}, nil
}

// Create makes an empty table; one that is there is left as it is, if rows of
// sc fit into it.
func (t *Table) Create(ctx context.Context, sc *arrow.Schema, o CreateOptions) (*Snapshot, error) {
	errThere := errors.New("there")
	r, err := Commit(ctx, t, func(_ context.Context, s *Snapshot) ([]Action, error) {
		if s.Version >= 0 {
			return nil, errThere
		}
		return t.CreateActions(sc, o)
	}, CommitOptions{Operation: "CREATE TABLE"})
	if !errors.Is(err, errThere) {
		return r.Snapshot, err
	}
	s, err := t.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return s, t.Fits(s, sc)
}

// Fits checks that rows of sc can be stored in the table as it is.
func (t *Table) Fits(s *Snapshot, sc *arrow.Schema) error {
	missing, err := checkRows(s.Schema, sc)
	if err != nil {
		return failure.Wrap(failure.SchemaConflict, err, "Delta table %s", t.Location())
	}
	if len(missing) > 0 {
		return failure.New(failure.SchemaConflict, "Delta table %s has no column %q", t.Location(), missing[0].Name).
			WithHint("add the column to the table (columns that may be null can be added), or leave it out of the query")
	}
	return nil
}

// Evolve gives the metadata action that adds the columns of sc which the table
// lacks, nil where it lacks none. They must be allowed to be null.
func (t *Table) Evolve(s *Snapshot, sc *arrow.Schema) (*Action, error) {
	missing, err := checkRows(s.Schema, sc)
	if err != nil {
		return nil, failure.Wrap(failure.SchemaConflict, err, "Delta table %s", t.Location())
	}
	if len(missing) == 0 {
		return nil, nil
	}
	text, changed, err := addFields(s.Metadata.SchemaString, missing)
	if err != nil {
		return nil, failure.Wrap(failure.SchemaConflict, err, "Delta table %s", t.Location())
	}
	if !changed {
		return nil, nil
	}
	m := *s.Metadata
	m.SchemaString = text
	return &Action{Metadata: &m}, nil
}

// AddColumns adds nullable columns to the table; those that are there already
// must have the same type.
func (t *Table) AddColumns(ctx context.Context, fields ...arrow.Field) (*Snapshot, error) {
	errNone := errors.New("nothing to add")
	var at *Snapshot
	r, err := Commit(ctx, t, func(_ context.Context, s *Snapshot) ([]Action, error) {
		if s.Version < 0 {
			return nil, fmt.Errorf("%w in %s", ErrNoTable, t.Location())
		}
		text, changed, err := addFields(s.Metadata.SchemaString, fields)
		if err != nil {
			return nil, failure.Wrap(failure.SchemaConflict, err, "Delta table %s", t.Location())
		}
		if !changed {
			at = s
			return nil, errNone
		}
		m := *s.Metadata
		m.SchemaString = text
		return []Action{{Metadata: &m}}, nil
	}, CommitOptions{Operation: "ADD COLUMNS"})
	if errors.Is(err, errNone) {
		return at, nil
	}
	return r.Snapshot, err
}

// samePartitioning reports whether two versions of a table cut rows into files
// in the same way and hold the same columns, so that files staged for the one
// fit into the other.
func samePartitioning(a, b *Snapshot) bool {
	return slices.Equal(a.Metadata.PartitionColumns, b.Metadata.PartitionColumns)
}
