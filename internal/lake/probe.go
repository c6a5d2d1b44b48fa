package lake

import (
	"context"
	"errors"
	"fmt"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

// probePrefix begins the names that Probe makes.
const probePrefix = "weir_probe_"

// Probe tries what a query needs of the catalog on a table of its own: make it,
// commit to it, commit on a stale base, drop it. It stands in the first of the
// namespaces that is there, else in one that Probe makes and drops. location is
// where its files are: the caller removes them, since who drops a table does not.
func (c *Catalog) Probe(ctx context.Context, namespaces []table.Identifier) (location string, err error) {
	name := probePrefix + clock.Nonce()
	home := table.Identifier{name}
	for _, ns := range namespaces {
		there, err := c.NamespaceExists(ctx, ns)
		if err != nil {
			return "", fmt.Errorf("look for namespace %s: %w", Name(ns), err)
		}
		if there {
			home = ns
			break
		}
	}
	ident := append(home[:len(home):len(home)], name)
	after := context.WithoutCancel(ctx)
	if home[0] == name {
		defer func() {
			if derr := c.inner.DropNamespace(after, home); derr != nil && !errors.Is(derr, catalog.ErrNoSuchNamespace) && err == nil {
				err = fmt.Errorf("drop namespace %s: %w", name, c.classified(derr))
			}
		}()
	}
	schema := iceberg.NewSchema(0, iceberg.NestedField{ID: 1, Name: "probe", Type: iceberg.PrimitiveTypes.String})
	made, err := c.createTable(ctx, ident, schema, *iceberg.UnpartitionedSpec, nil)
	if err != nil {
		return "", err
	}
	defer func() {
		if derr := c.DropTable(after, ident); derr != nil && err == nil {
			err = fmt.Errorf("drop table %s: %w", Name(ident), c.classified(derr))
		}
	}()
	location = made.Location()
	change := func(v string) Change { return Change{Properties: map[string]string{SummaryPrefix + "probe": v}} }
	if _, err := c.Commit(ctx, made, change("1")); err != nil {
		return location, fmt.Errorf("commit to table %s: %w", Name(ident), err)
	}
	// What exactly-once stands on: a writer that has not seen the newest commit
	// is refused.
	switch _, err := c.Commit(ctx, made, change("2")); {
	case err == nil:
		return location, failure.New(failure.Config, "the catalog takes a commit on a stale base: it cannot fence writers")
	case !errors.Is(err, ErrConflict):
		return location, fmt.Errorf("a commit on a stale base, which has to be refused as a conflict: %w", err)
	}
	return location, nil
}
