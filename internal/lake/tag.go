package lake

import (
	"context"
	"fmt"

	"github.com/apache/iceberg-go/table"
)

// Tag names a snapshot of a loaded table, so that expiry leaves it. A tag of that
// name is moved.
func (c *Catalog) Tag(ctx context.Context, t *table.Table, name string, snapshotID int64) error {
	_, _, err := c.CommitTable(ctx, t.Identifier(),
		[]table.Requirement{table.AssertTableUUID(t.Metadata().TableUUID())},
		[]table.Update{table.NewSetSnapshotRefUpdate(name, snapshotID, table.TagRef, 0, 0, 0)})
	if err != nil {
		return fmt.Errorf("tag snapshot %d of %s: %w", snapshotID, Name(t.Identifier()), err)
	}
	return nil
}

// Untag removes a tag of a loaded table.
func (c *Catalog) Untag(ctx context.Context, t *table.Table, name string) error {
	_, _, err := c.CommitTable(ctx, t.Identifier(),
		[]table.Requirement{table.AssertTableUUID(t.Metadata().TableUUID())},
		[]table.Update{table.NewRemoveSnapshotRefUpdate(name)})
	if err != nil {
		return fmt.Errorf("remove the tag %s of %s: %w", name, Name(t.Identifier()), err)
	}
	return nil
}
