package lake

import (
	"context"
	"errors"
	"fmt"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/table"
)

// ErrNoNamespace says that there is no such namespace in the catalog.
var ErrNoNamespace = errors.New("the namespace does not exist")

// ListNamespaces lists the namespaces one level below parent; a nil parent is
// the catalog itself. The error wraps ErrNoNamespace where there is no parent.
func (c *Catalog) ListNamespaces(ctx context.Context, parent table.Identifier) ([]table.Identifier, error) {
	if _, flat := c.pointer.(*gluePointer); flat && len(parent) > 0 {
		if ok, err := c.NamespaceExists(ctx, parent); err != nil || ok {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %s", ErrNoNamespace, Name(parent))
	}
	all, err := c.inner.ListNamespaces(c.listing(ctx), parent)
	if errors.Is(err, catalog.ErrNoSuchNamespace) {
		return nil, fmt.Errorf("%w: %s", ErrNoNamespace, Name(parent))
	}
	if err != nil {
		return nil, fmt.Errorf("list the namespaces of the catalog: %w", c.classified(err))
	}
	// Some catalogs give every descendant, and give it several times.
	seen := map[string]bool{}
	var out []table.Identifier
	for _, ns := range all {
		if len(ns) <= len(parent) {
			continue
		}
		ns = ns[:len(parent)+1]
		if key := Name(ns); !seen[key] {
			seen[key] = true
			out = append(out, ns)
		}
	}
	return out, nil
}

// NamespaceExists reports whether there is such a namespace.
func (c *Catalog) NamespaceExists(ctx context.Context, namespace table.Identifier) (bool, error) {
	if _, flat := c.pointer.(*gluePointer); flat && len(namespace) != 1 {
		return false, nil
	}
	ok, err := c.inner.CheckNamespaceExists(ctx, namespace)
	if err != nil && !errors.Is(err, catalog.ErrNoSuchNamespace) {
		return false, fmt.Errorf("look up namespace %s: %w", Name(namespace), c.classified(err))
	}
	return ok, nil
}

// NamespaceProperties gives a namespace's properties; the error wraps
// ErrNoNamespace where there is none such.
func (c *Catalog) NamespaceProperties(ctx context.Context, namespace table.Identifier) (iceberg.Properties, error) {
	props, err := c.inner.LoadNamespaceProperties(ctx, namespace)
	if errors.Is(err, catalog.ErrNoSuchNamespace) {
		return nil, fmt.Errorf("%w: %s", ErrNoNamespace, Name(namespace))
	}
	if err != nil {
		return nil, fmt.Errorf("look up namespace %s: %w", Name(namespace), c.classified(err))
	}
	return props, nil
}
