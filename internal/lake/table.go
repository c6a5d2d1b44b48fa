package lake

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"syscall"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/failure"
)

// DefaultProperties are the properties of a table that Weir makes, over which
// the caller's own go. Metadata files beyond the last few are removed with each
// commit; manifests are merged as they come, so that a table with a commit a
// second stays readable without a maintenance job.
func DefaultProperties() iceberg.Properties {
	return iceberg.Properties{
		table.PropertyFormatVersion:               "2",
		table.MetadataDeleteAfterCommitEnabledKey: "true",
		table.MetadataPreviousVersionsMaxKey:      "10",
		table.ParquetCompressionKey:               "zstd",
		table.ParquetCompressionLevelKey:          "1",
		table.ManifestMergeEnabledKey:             "true",
		table.ManifestMinMergeCountKey:            "100",
	}
}

// Head is the main branch's head of a loaded table.
type Head struct {
	// ID and Sequence are 0 on an empty table.
	ID       int64
	Sequence int64
}

// HeadOf reads the head of a loaded table.
func HeadOf(t *table.Table) Head {
	s := t.CurrentSnapshot()
	if s == nil {
		return Head{}
	}
	return Head{ID: s.SnapshotID, Sequence: s.SequenceNumber}
}

// WalkEnd says how a walk down the chain of snapshots ended.
type WalkEnd int

// The ends of a walk.
const (
	Stopped  WalkEnd = iota // the visitor had seen enough
	AtFirst                 // the table's first snapshot was passed
	BrokenBy                // the parent of the last one is gone: ordinary expiry
)

// Walk visits the snapshots from the head down to the first, until visit
// returns false.
func Walk(t *table.Table, visit func(*table.Snapshot) bool) WalkEnd {
	s := t.CurrentSnapshot()
	if s == nil {
		return AtFirst
	}
	for {
		if !visit(s) {
			return Stopped
		}
		if s.ParentSnapshotID == nil {
			// Other people's expiry may clear the parent of what it leaves
			// (PyIceberg does): only the first sequence number is the start.
			if s.SequenceNumber > 1 {
				return BrokenBy
			}
			return AtFirst
		}
		parent := t.SnapshotByID(*s.ParentSnapshotID)
		// A parent with a number that is not smaller would be a loop.
		if parent == nil || parent.SequenceNumber >= s.SequenceNumber {
			return BrokenBy
		}
		s = parent
	}
}

// SummaryValue is one entry of a snapshot's summary, empty where it is missing.
func SummaryValue(s *table.Snapshot, key string) string {
	if s == nil || s.Summary == nil {
		return ""
	}
	return s.Summary.Properties[key]
}

// FindSnapshot is the newest snapshot on the main branch whose summary has the
// value under key, nil where there is none (any more).
func FindSnapshot(t *table.Table, key, value string) *table.Snapshot {
	var found *table.Snapshot
	Walk(t, func(s *table.Snapshot) bool {
		if SummaryValue(s, key) == value {
			found = s
		}
		return found == nil
	})
	return found
}

// DataLocation is the folder of a table's data files as a location.
func DataLocation(t *table.Table) string {
	if p := t.Properties().Get(table.WriteDataPathKey, ""); p != "" {
		return p
	}
	return t.Location() + "/data"
}

// EnsureTable loads the table, or makes it with its namespaces. Several
// processes may do so at once: one makes it, the others load it. A table that
// is there already keeps its partition spec and its properties, whatever is
// asked for; its schema must hold every wanted column with the same type, else
// the error is a failure.SchemaConflict that names the column.
func (c *Catalog) EnsureTable(ctx context.Context, ident table.Identifier, schema *iceberg.Schema, spec iceberg.PartitionSpec, props iceberg.Properties) (*table.Table, error) {
	t, err := c.LoadTable(ctx, ident)
	if errors.Is(err, ErrNoTable) {
		t, err = c.createTable(ctx, ident, schema, spec, props)
	}
	if err != nil {
		return nil, err
	}
	if err := CheckSchema(ident, t.Schema(), schema); err != nil {
		return nil, err
	}
	return t, nil
}

func (c *Catalog) createTable(ctx context.Context, ident table.Identifier, schema *iceberg.Schema, spec iceberg.PartitionSpec, props iceberg.Properties) (*table.Table, error) {
	asking, seen := withAnswer(ctx)
	for i := 1; i < len(ident); i++ {
		err := c.inner.CreateNamespace(asking, ident[:i], nil)
		if err != nil && !errors.Is(err, catalog.ErrNamespaceAlreadyExists) {
			// The same race shows as a broken uniqueness rule.
			if ok, cerr := c.inner.CheckNamespaceExists(ctx, ident[:i]); cerr != nil || !ok {
				return nil, fmt.Errorf("make namespace %s: %w", Name(ident[:i]), c.answered(seen, err))
			}
		}
	}
	all := DefaultProperties()
	maps.Copy(all, props)
	_, err := c.inner.CreateTable(asking, ident, schema, catalog.WithPartitionSpec(&spec), catalog.WithProperties(all))
	if err != nil && !errors.Is(err, catalog.ErrTableAlreadyExists) {
		// The answer may be all that was lost.
		if t, lerr := c.LoadTable(ctx, ident); lerr == nil {
			return t, nil
		}
		return nil, fmt.Errorf("make table %s: %w", Name(ident), c.answered(seen, err))
	}
	return c.LoadTable(ctx, ident)
}

func (c *Catalog) classified(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) && unwritable(err) {
		return failure.Wrap(failure.Config, err, "the warehouse cannot be written to").
			WithHint("warehouse in the pipeline file must be a folder that this user may write to, or may make")
	}
	if c.classify == nil {
		return err
	}
	return c.classify(err)
}

// unwritable reports whether err is of those that trying again does not change.
func unwritable(err error) bool {
	for _, e := range []error{fs.ErrPermission, fs.ErrNotExist, syscall.EROFS, syscall.ENOTDIR, syscall.ENAMETOOLONG} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// DropTable takes the table out of the catalog; its files stay.
func (c *Catalog) DropTable(ctx context.Context, ident table.Identifier) error {
	err := c.inner.DropTable(ctx, ident)
	if errors.Is(err, catalog.ErrNoSuchTable) || errors.Is(err, catalog.ErrNoSuchNamespace) {
		return fmt.Errorf("%w: %s", ErrNoTable, Name(ident))
	}
	return err
}

// ListTables names the tables of a namespace.
func (c *Catalog) ListTables(ctx context.Context, namespace table.Identifier) ([]table.Identifier, error) {
	var out []table.Identifier
	for ident, err := range c.inner.ListTables(c.listing(ctx), namespace) {
		if errors.Is(err, catalog.ErrNoSuchNamespace) || isGlueMissing(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list tables of %s: %w", Name(namespace), err)
		}
		out = append(out, ident)
	}
	return out, nil
}

// CheckSchema reports the first wanted column that the table cannot take.
// Columns that only the table has are fine as long as they may be null.
func CheckSchema(ident table.Identifier, have, want *iceberg.Schema) error {
	byName := map[string]iceberg.NestedField{}
	for _, f := range have.Fields() {
		byName[f.Name] = f
	}
	conflict := func(column, format string, args ...any) error {
		return failure.New(failure.SchemaConflict, "table %s, column %q: %s", Name(ident), column, fmt.Sprintf(format, args...)).
			WithHint("change the table (ALTER TABLE in any Iceberg engine) or the query's columns, or write to another table")
	}
	for _, w := range want.Fields() {
		h, ok := byName[w.Name]
		switch {
		case !ok:
			return conflict(w.Name, "the query writes it, the table does not have it")
		case !sameType(h.Type, w.Type):
			return conflict(w.Name, "the query writes %s, the table has %s", w.Type, h.Type)
		case h.Required && !w.Required:
			return conflict(w.Name, "the query may write nulls, the table requires a value")
		}
		delete(byName, w.Name)
	}
	for _, f := range have.Fields() {
		if _, left := byName[f.Name]; left && f.Required {
			return conflict(f.Name, "the table requires a value, the query does not write it")
		}
	}
	return nil
}

// sameType compares types by shape: field ids differ between the schema that a
// query brings and the one that the catalog assigned.
func sameType(a, b iceberg.Type) bool {
	switch x := a.(type) {
	case *iceberg.StructType:
		y, ok := b.(*iceberg.StructType)
		if !ok || len(x.FieldList) != len(y.FieldList) {
			return false
		}
		for i, f := range x.FieldList {
			g := y.FieldList[i]
			if f.Name != g.Name || (f.Required && !g.Required) || !sameType(f.Type, g.Type) {
				return false
			}
		}
		return true
	case *iceberg.ListType:
		y, ok := b.(*iceberg.ListType)
		return ok && (y.ElementRequired || !x.ElementRequired) && sameType(x.Element, y.Element)
	case *iceberg.MapType:
		y, ok := b.(*iceberg.MapType)
		return ok && (y.ValueRequired || !x.ValueRequired) && sameType(x.KeyType, y.KeyType) && sameType(x.ValueType, y.ValueType)
	default:
		return a.Equals(b)
	}
}
