package lake

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

// SummaryPrefix is that of every summary key of our own. The library lets a
// user's summary overwrite what it computes (total-records and the like).
const SummaryPrefix = "weir."

// Change is what one commit does to a table.
type Change struct {
	// Files are appended; none makes a snapshot with the parent's files, which
	// still moves the head.
	Files []iceberg.DataFile
	// Removed are data files of the head that Files replace, rows and all: an
	// overwrite.
	Removed []iceberg.DataFile
	// Properties are set in the same commit.
	Properties map[string]string
	// Summary goes into the new snapshot's summary.
	Summary map[string]string
	// Schema, where set, changes the table's columns in the same commit; it was
	// planned against base.
	Schema *SchemaChange
	// Derived, where set, gives further properties, of the schema as the commit
	// leaves it.
	Derived func(*iceberg.Schema) map[string]string
}

// Commit adds one snapshot to base, asserting that base's head is still the
// table's head and that the table is still the same one (UUID). It is tried
// once. The error wraps ErrConflict or ErrUnknown, or nothing was committed.
//
// Every change makes a snapshot, also one that only sets properties: nothing
// but a moved head fences a commit that was prepared before.
func (c *Catalog) Commit(ctx context.Context, base *table.Table, ch Change) (*table.Table, error) {
	for k := range ch.Summary {
		if !strings.HasPrefix(k, SummaryPrefix) {
			return nil, fmt.Errorf("summary key %q has not the prefix %q", k, SummaryPrefix)
		}
	}
	// The library's transaction commits through the table's own catalog, which
	// may be this one without its hooks.
	files := base.FS
	if c.pointer == nil {
		files = keepMetadata(files)
	}
	txn := table.New(base.Identifier(), base.Metadata(), base.MetadataLocation(), files, c).NewTransaction()
	if err := txn.AssertRefSnapshotID(table.MainBranch); err != nil {
		return nil, fmt.Errorf("assert the head of %s: %w", Name(base.Identifier()), err)
	}
	if err := txn.SetProperties(ch.Properties); err != nil {
		return nil, fmt.Errorf("set properties of %s: %w", Name(base.Identifier()), err)
	}
	schema, err := changeSchema(txn, base, ch)
	if err != nil {
		return nil, fmt.Errorf("change the columns of %s: %w", Name(base.Identifier()), err)
	}
	if err := addSnapshot(ctx, txn, base, schema, ch); err != nil {
		return nil, err
	}
	// Commit adds AssertTableUUID. commit.retry.num-retries on the table does
	// nothing: ErrConflict is not the library's retryable error.
	after, err := txn.Commit(ctx)
	if err != nil {
		return nil, fmt.Errorf("commit to %s: %w", Name(base.Identifier()), err)
	}
	return table.New(after.Identifier(), after.Metadata(), after.MetadataLocation(), base.FS, c), nil
}

// changeSchema makes the change of columns, and what follows from it, a part of
// the transaction. It returns the schema that the commit leaves.
func changeSchema(txn *table.Transaction, base *table.Table, ch Change) (*iceberg.Schema, error) {
	schema := base.Schema()
	if ch.Schema.alters() {
		if err := ch.Schema.apply(txn); err != nil {
			return nil, err
		}
		staged, err := txn.StagedTable()
		if err != nil {
			return nil, err
		}
		schema = staged.Schema()
	}
	if ch.Derived == nil {
		return schema, nil
	}
	return schema, txn.SetProperties(ch.Derived(schema))
}

func addSnapshot(ctx context.Context, txn *table.Transaction, base *table.Table, schema *iceberg.Schema, ch Change) error {
	summary := iceberg.Properties(ch.Summary)
	if len(ch.Removed) > 0 {
		err := txn.ReplaceDataFilesWithDataFiles(ctx, ch.Removed, ch.Files, summary, table.WithoutDuplicateCheck(), table.WithoutAutoNameMapping())
		if err != nil {
			return fmt.Errorf("replace %d files of %s by %d: %w", len(ch.Removed), Name(base.Identifier()), len(ch.Files), err)
		}
		return nil
	}
	if len(ch.Files) > 0 {
		err := txn.AddDataFiles(ctx, ch.Files, summary, table.WithoutDuplicateCheck(), table.WithoutAutoNameMapping())
		if err != nil {
			return fmt.Errorf("add %d files to %s: %w", len(ch.Files), Name(base.Identifier()), err)
		}
		return nil
	}
	// AddDataFiles without files does nothing; appending a reader without
	// records makes a snapshot without files.
	rows, err := table.SchemaToArrowSchema(schema, nil, true, false)
	if err != nil {
		return fmt.Errorf("schema of %s: %w", Name(base.Identifier()), err)
	}
	empty, err := array.NewRecordReader(rows, nil)
	if err != nil {
		return err
	}
	defer empty.Release()
	if err := txn.Append(ctx, empty, summary); err != nil {
		return fmt.Errorf("add an empty snapshot to %s: %w", Name(base.Identifier()), err)
	}
	return nil
}

// IsConflict reports that a commit was certainly not made because the head had
// moved.
func IsConflict(err error) bool { return errors.Is(err, ErrConflict) }
