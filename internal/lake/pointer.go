package lake

import (
	"context"

	"github.com/apache/iceberg-go/table"
)

// MetadataLocation is where the table's current metadata lies, without reading
// it: what a reader polls while it waits for news. ErrNoTable where there is no
// such table.
func (c *Catalog) MetadataLocation(ctx context.Context, ident table.Identifier) (string, error) {
	if c.pointer != nil {
		return c.pointer.location(ctx, ident)
	}
	t, err := c.LoadTable(ctx, ident)
	if err != nil {
		return "", err
	}
	return t.MetadataLocation(), nil
}
