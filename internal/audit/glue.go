package audit

import (
	"context"
	"errors"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/glue"
	"github.com/aws/aws-sdk-go-v2/service/glue/types"

	"github.com/weirlake/weir/internal/failure"
)

// GlueCatalog is an AWS Glue Data Catalog, asked with the credentials of the
// SDK's default chain.
type GlueCatalog struct {
	// AWS says region, endpoint, role and authorities; of buckets it says nothing.
	AWS S3
	// CatalogID is the account whose catalog it is; empty is the caller's own.
	CatalogID string
}

// MetadataLocation implements Locator.
func (c GlueCatalog) MetadataLocation(ctx context.Context, table string) (string, error) {
	database, name, ok := strings.Cut(table, ".")
	if !ok || strings.Contains(name, ".") {
		return "", failure.New(failure.Config, "table %q: want database.table", table)
	}
	ctx, cancel := context.WithTimeout(ctx, locateTimeout)
	defer cancel()
	loaded, err := c.AWS.config(ctx)
	if err != nil {
		return "", err
	}
	in := &glue.GetTableInput{DatabaseName: &database, Name: &name}
	if c.CatalogID != "" {
		in.CatalogId = &c.CatalogID
	}
	out, err := glue.NewFromConfig(loaded, func(o *glue.Options) {
		if c.AWS.Endpoint != "" {
			o.BaseEndpoint = &c.AWS.Endpoint
		}
	}).GetTable(ctx, in)
	if errors.As(err, new(*types.EntityNotFoundException)) {
		return "", &NoTableError{Table: table, Catalog: "of Glue"}
	}
	if err != nil {
		return "", failure.Wrap(failure.Unreachable, err, "Glue, table %s", table)
	}
	if out.Table == nil || out.Table.Parameters["metadata_location"] == "" {
		return "", failure.New(failure.Config, "table %s in Glue is not an Iceberg table", table)
	}
	return out.Table.Parameters["metadata_location"], nil
}
