package lake

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

// Replacement exchanges rows of a table, and its columns if need be, in one
// commit.
type Replacement struct {
	// Remove are data files of the asserted head that go, Deletes the delete files
	// that applied to them.
	Remove  []iceberg.DataFile
	Deletes []iceberg.DataFile
	// Change.Files come in their place, under the columns of Columns where those
	// are given.
	Change
	Columns *iceberg.Schema
}

// Replace commits a replacement on base, as Commit does an addition: asserted
// on base's head, tried once, always a snapshot. Where every row goes and none
// comes, the snapshot has no files.
func (c *Catalog) Replace(ctx context.Context, base *table.Table, r Replacement) (*table.Table, error) {
	for k := range r.Summary {
		if !strings.HasPrefix(k, SummaryPrefix) {
			return nil, fmt.Errorf("summary key %q has not the prefix %q", k, SummaryPrefix)
		}
	}
	txn, err := c.transaction(base)
	if err != nil {
		return nil, err
	}
	if err := txn.SetProperties(r.Properties); err != nil {
		return nil, fmt.Errorf("set properties of %s: %w", Name(base.Identifier()), err)
	}
	if r.Columns != nil {
		if u := columnChanges(txn, base.Schema(), r.Columns); u != nil {
			if err := u.Commit(); err != nil {
				return nil, fmt.Errorf("change the columns of %s: %w", Name(base.Identifier()), err)
			}
		}
	}
	if len(r.Remove) == 0 {
		err = addSnapshot(ctx, txn, base, base.Schema(), r.Change)
	} else {
		err = txn.ReplaceFiles(ctx, r.Remove, r.Files, r.Deletes, iceberg.Properties(r.Summary), table.WithoutDuplicateCheck(), table.WithoutAutoNameMapping())
	}
	if err != nil {
		return nil, fmt.Errorf("replace %d files of %s by %d: %w", len(r.Remove), Name(base.Identifier()), len(r.Files), err)
	}
	after, err := txn.Commit(ctx)
	if err != nil {
		return nil, fmt.Errorf("commit to %s: %w", Name(base.Identifier()), err)
	}
	return table.New(after.Identifier(), after.Metadata(), after.MetadataLocation(), base.FS, c), nil
}

// transaction begins one that commits through this catalog and asserts base's
// head.
func (c *Catalog) transaction(base *table.Table) (*table.Transaction, error) {
	files := base.FS
	if c.pointer == nil {
		files = keepMetadata(files)
	}
	txn := table.New(base.Identifier(), base.Metadata(), base.MetadataLocation(), files, c).NewTransaction()
	if err := txn.AssertRefSnapshotID(table.MainBranch); err != nil {
		return nil, fmt.Errorf("assert the head of %s: %w", Name(base.Identifier()), err)
	}
	return txn, nil
}

// ColumnsAfter is the schema that base has once Replace has given it the wanted
// columns: those that stay keep their field ids, also where they are found in
// another order.
func (c *Catalog) ColumnsAfter(base *table.Table, want *iceberg.Schema) (_ *iceberg.Schema, changed bool, err error) {
	txn, err := c.transaction(base)
	if err != nil {
		return nil, false, err
	}
	u := columnChanges(txn, base.Schema(), want)
	if u == nil {
		return base.Schema(), false, nil
	}
	sc, err := u.Apply()
	if err != nil {
		return nil, false, fmt.Errorf("change the columns of %s: %w", Name(base.Identifier()), err)
	}
	return sc, true, nil
}

// columnChanges is what leads from one set of columns to another, nil where
// nothing does. A column whose type changed is another column.
func columnChanges(txn *table.Transaction, have, want *iceberg.Schema) *table.UpdateSchema {
	u := txn.UpdateSchema(true, true)
	changed := false
	kept := func(f iceberg.NestedField, in *iceberg.Schema) bool {
		g, ok := in.FindFieldByName(f.Name)
		return ok && sameType(f.Type, g.Type) && sameType(g.Type, f.Type)
	}
	for _, f := range have.Fields() {
		if !kept(f, want) {
			u.DeleteColumn([]string{f.Name})
			changed = true
		}
	}
	for _, f := range want.Fields() {
		if !kept(f, have) {
			u.AddColumn([]string{f.Name}, f.Type, f.Doc, false, nil)
			changed = true
		}
	}
	if !changed {
		return nil
	}
	return u
}

// FilesOf are the data files of a loaded table's head and the delete files that
// apply to them.
func FilesOf(ctx context.Context, t *table.Table) (data, deletes []iceberg.DataFile, err error) {
	head := t.CurrentSnapshot()
	if head == nil {
		return nil, nil, nil
	}
	scan := t.Scan(table.WithSnapshotID(head.SnapshotID))
	defer scan.Close()
	tasks, err := scan.PlanFiles(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("plan the files of %s: %w", Name(t.Identifier()), err)
	}
	seen := map[string]bool{}
	add := func(to *[]iceberg.DataFile, files ...iceberg.DataFile) {
		for _, f := range files {
			if !seen[f.FilePath()] {
				seen[f.FilePath()] = true
				*to = append(*to, f)
			}
		}
	}
	for _, task := range tasks {
		add(&data, task.File)
		add(&deletes, slices.Concat(task.DeleteFiles, task.EqualityDeleteFiles, task.DeletionVectorFiles)...)
	}
	return data, deletes, nil
}
