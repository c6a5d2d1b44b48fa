package lake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	icebergio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"
)

// Pointers is what decides a race in a catalog, kept by somebody else: the
// location of the current metadata of each table. A simulation puts its own in
// the place of a database and keeps everything above as it ships.
type Pointers interface {
	// Location is that of the table's current metadata, or ErrNoTable.
	Location(ctx context.Context, ident table.Identifier) (string, error)
	// Swap replaces from by to; from is empty for a table that is made.
	// ErrConflict: it was not from; ErrUnknown: the swap may have been made;
	// any other error: it was not.
	Swap(ctx context.Context, ident table.Identifier, from, to string) error
}

// Over is a catalog on the given pointers. props say where the tables lie
// ("warehouse") and go to the file access that is registered for its scheme.
func Over(p Pointers, props iceberg.Properties) *Catalog {
	registerIO()
	return &Catalog{
		inner:   overCatalog{pointers: p, props: props},
		pointer: overPointer{p},
		props:   props,
		parsed:  &parsed{byTable: map[string]parsedMetadata{}},
	}
}

type overPointer struct{ p Pointers }

func (o overPointer) location(ctx context.Context, ident table.Identifier) (string, error) {
	return o.p.Location(ctx, ident)
}

func (o overPointer) swap(ctx context.Context, ident table.Identifier, from, to string) error {
	return o.p.Swap(ctx, ident, from, to)
}

// overCatalog has only what this package asks of the library's catalogs where
// the pointers are its own: namespaces, which are always there, and the making
// of a table.
type overCatalog struct {
	catalog.Catalog
	pointers Pointers
	props    iceberg.Properties
}

func (o overCatalog) CreateNamespace(context.Context, table.Identifier, iceberg.Properties) error {
	return nil
}

func (o overCatalog) CheckNamespaceExists(context.Context, table.Identifier) (bool, error) {
	return true, nil
}

func (o overCatalog) CreateTable(ctx context.Context, ident table.Identifier, schema *iceberg.Schema, opts ...catalog.CreateTableOpt) (*table.Table, error) {
	var cfg catalog.CreateTableCfg
	for _, opt := range opts {
		opt(&cfg)
	}
	where := strings.TrimRight(o.props.Get("warehouse", ""), "/") + "/" + strings.Join(ident, "/")
	meta, err := table.NewMetadata(schema, cfg.PartitionSpec, table.UnsortedSortOrder, where, maps.Clone(cfg.Properties))
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(meta)
	if err != nil {
		return nil, err
	}
	loc := fmt.Sprintf("%s/metadata/00000-%s.metadata.json", where, uuid.NewString())
	files, err := icebergio.LoadFS(ctx, o.props, loc)
	if err != nil {
		return nil, err
	}
	w, ok := files.(icebergio.WriteFileIO)
	if !ok {
		return nil, table.ErrWriteIORequired
	}
	if err := w.WriteFile(loc, body); err != nil {
		return nil, err
	}
	if err := o.pointers.Swap(ctx, ident, "", loc); err != nil {
		if errors.Is(err, ErrConflict) {
			return nil, fmt.Errorf("%w: %s", catalog.ErrTableAlreadyExists, Name(ident))
		}
		return nil, err
	}
	return table.New(ident, meta, loc, icebergio.LoadFSFunc(o.props, loc), nil), nil
}
