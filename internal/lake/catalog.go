package lake

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	icebergio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore/cloud"
	"github.com/weirlake/weir/internal/objstore/s3"
)

// DefaultName is the catalog's name. PyIceberg and Spark must be configured
// with the same one to find the tables in a SQL catalog.
const DefaultName = "weir"

// Types of catalogs.
const (
	TypeSQL  = "sql"  // on SQLite or Postgres, by the address
	TypeREST = "rest" // an Iceberg REST catalog
	TypeGlue = "glue" // an AWS Glue Data Catalog
)

// maxLoadAttempts bounds how often a load is repeated because the metadata file
// that the catalog named was removed by a commit that came between.
const maxLoadAttempts = 5

// Config says where the tables are.
type Config struct {
	// Type is the kind of catalog; empty means TypeSQL.
	Type string
	// Name is the catalog's name; empty means DefaultName.
	Name string
	// URI is the catalog's address: for SQLite a file path, or sqlite:///path
	// as PyIceberg writes it; postgres://…; http(s)://… of a REST catalog.
	URI string
	// Warehouse is the folder of the tables: a path, an absolute file:// URI, or
	// s3://bucket/prefix.
	Warehouse string
	// Stores says how buckets of S3 are reached; nil is AWS by the default chain.
	// Cloud says it of Google Cloud Storage and Azure.
	Stores *s3.Stores
	Cloud  *cloud.Stores
	// Props are passed to the catalog and its file access.
	Props map[string]string
	// REST is how a REST catalog is talked to, Glue how a Glue catalog is reached.
	REST REST
	Glue Glue
	// ReadOnly makes nothing: a database without a catalog is refused.
	ReadOnly bool
	// NewName allows a name that a database with other catalogs does not have yet.
	NewName bool
	// OpenDeadline is how long Open waits for a server that does not answer; 0
	// means DefaultOpenDeadline. OnWait, if set, is told once what it waits for.
	OpenDeadline time.Duration
	OnWait       func(what string)
}

// Catalog finds, makes and commits tables. It is safe for use by several
// goroutines, and several processes may use the same catalog at once.
type Catalog struct {
	inner   catalog.Catalog
	pointer pointer
	props   iceberg.Properties
	parsed  *parsed
	hooks   CommitHooks
	closers []io.Closer
	// classify turns an error that no further try changes into a failure; nil
	// where there is none such.
	classify func(error) error
	// vended are the tables whose credentials a REST catalog hands out.
	vended *vendedTables
}

// maxParsed bounds the tables whose metadata stays parsed.
const maxParsed = 64

// parsed holds the metadata of the tables last used, by the location of the
// file that it stands in. It is not a cache of what is current: the catalog is
// asked for the location each time. A metadata file never changes (its name
// holds a UUID), and the library's Metadata is read-only (what it gives out is
// cloned), so the two agree; parsing the same file twice in each commit was
// three fifths of a commit's cost.
type parsed struct {
	mu      sync.Mutex
	byTable map[string]parsedMetadata

	texts metadataTexts
}

type parsedMetadata struct {
	location string
	meta     table.Metadata
}

func (p *parsed) get(ident table.Identifier, location string) table.Metadata {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.byTable[Name(ident)]; e.location == location {
		return e.meta
	}
	return nil
}

func (p *parsed) put(ident table.Identifier, location string, meta table.Metadata) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.byTable[Name(ident)]; !ok && len(p.byTable) >= maxParsed {
		clear(p.byTable)
	}
	p.byTable[Name(ident)] = parsedMetadata{location: location, meta: meta}
}

// pointer is the part of a catalog that decides a race: the location of the
// current metadata of each table. A catalog that swaps on its own side (REST)
// has none, and commits through the library.
type pointer interface {
	// location is that of the current metadata, or ErrNoTable.
	location(ctx context.Context, ident table.Identifier) (string, error)
	// swap replaces from by to. ErrConflict: it was not from; ErrUnknown: the
	// swap may have been made; any other error: it was not.
	swap(ctx context.Context, ident table.Identifier, from, to string) error
}

// CommitHooks stand around every commit, so that a test can make one fail that
// was made, or one that was not.
type CommitHooks struct {
	// Before is called before anything is written; its error is returned and
	// nothing is committed.
	Before func(ctx context.Context, ident table.Identifier) error
	// After is called when the commit is made; its error is returned as an
	// unknown outcome all the same.
	After func(ctx context.Context, ident table.Identifier) error
}

// WithHooks gives the same catalog with hooks around its commits.
func (c *Catalog) WithHooks(h CommitHooks) *Catalog {
	out := *c
	out.hooks = h
	out.closers = nil
	return &out
}

type hookKey struct{}

// WithMetadataHook makes a commit under the returned context call hook between
// writing the new table metadata and swapping the catalog's pointer.
func WithMetadataHook(ctx context.Context, hook func()) context.Context {
	return context.WithValue(ctx, hookKey{}, hook)
}

func callMetadataHook(ctx context.Context) {
	if hook, ok := ctx.Value(hookKey{}).(func()); ok {
		hook()
	}
}

// Open opens a catalog, making it where it is local and missing.
func Open(ctx context.Context, cfg Config) (*Catalog, error) {
	registerIO()
	if cfg.Name == "" {
		cfg.Name = DefaultName
	}
	cfg, stores := withStores(cfg)
	c, err := open(ctx, cfg)
	if err != nil {
		_ = stores.Close()
		return nil, err
	}
	c.closers = append(c.closers, stores)
	return c, nil
}

func open(ctx context.Context, cfg Config) (*Catalog, error) {
	if cfg.Type == TypeREST {
		return openREST(ctx, cfg)
	}
	warehouse, err := WarehouseURI(cfg.Warehouse)
	if err != nil {
		return nil, err
	}
	props := iceberg.Properties{"warehouse": warehouse}
	for k, v := range cfg.Props {
		props[k] = v
	}
	switch cfg.Type {
	case "", TypeSQL, "sqlite":
		if IsPostgres(cfg.URI) {
			return openPostgres(ctx, cfg, props)
		}
		return openSQLite(ctx, cfg, props)
	case TypeGlue:
		return openGlue(ctx, cfg, props)
	default:
		return nil, failure.New(failure.Config, "catalog type %q is not supported", cfg.Type).
			WithHint("use type: %s with SQLite or Postgres, type: %s, or type: %s", TypeSQL, TypeREST, TypeGlue)
	}
}

// WarehouseURI is the warehouse as an absolute URI (file://, s3://, gs://,
// abfss://). A folder whose path
// would be escaped in a URI is refused: PyIceberg and Spark do not decode it
// again, and would look for the tables in another folder.
func WarehouseURI(warehouse string) (string, error) {
	if warehouse == "" {
		return "", failure.New(failure.Config, "the warehouse is not set").WithHint("set warehouse to a folder for the tables")
	}
	if s3.IsLocation(warehouse) || cloud.IsLocation(warehouse) {
		return warehouseOnStore(warehouse)
	}
	if strings.Contains(warehouse, "://") && !strings.HasPrefix(warehouse, "file:") {
		return "", unsupportedWarehouse(warehouse)
	}
	p, err := LocalPath(warehouse)
	if err != nil {
		return "", failure.Wrap(failure.Config, err, "warehouse %q", warehouse)
	}
	if p, err = filepath.Abs(p); err != nil {
		return "", failure.Wrap(failure.Config, err, "warehouse %q", warehouse)
	}
	p = filepath.ToSlash(p)
	if escaped := (&url.URL{Path: p}).EscapedPath(); escaped != p || strings.ContainsAny(p, "?#") {
		return "", failure.New(failure.Config, "warehouse %q: the path has characters that a URI escapes, and other Iceberg engines do not decode them", p).
			WithHint("use a folder whose path has only letters, digits and -_.~+@$&,:=")
	}
	return "file://" + p, nil
}

// Close releases the catalog's connections.
func (c *Catalog) Close() error {
	var errs []error
	for _, cl := range c.closers {
		errs = append(errs, cl.Close())
	}
	return errors.Join(errs...)
}

// LoadTable implements table.CatalogIO: the table as the catalog has it now.
// The error wraps ErrNoTable where there is none.
func (c *Catalog) LoadTable(ctx context.Context, ident table.Identifier) (*table.Table, error) {
	if c.pointer == nil {
		return c.loadREST(ctx, ident)
	}
	last := ""
	for attempt := 1; ; attempt++ {
		loc, err := c.pointer.location(ctx, ident)
		if err != nil {
			return nil, err
		}
		if meta := c.parsed.get(ident, loc); meta != nil {
			return table.New(ident, meta, loc, icebergio.LoadFSFunc(c.props, loc), c), nil
		}
		t, err := table.NewFromLocation(ctx, ident, loc, icebergio.LoadFSFunc(c.props, loc), c)
		if err == nil {
			c.parsed.put(ident, loc, t.Metadata())
			return t, nil
		}
		if !errors.Is(err, fs.ErrNotExist) || loc == last || attempt == maxLoadAttempts {
			return nil, fmt.Errorf("read metadata of %s: %w", Name(ident), err)
		}
		last = loc
	}
}

// CommitTable implements table.CatalogIO. See the package comment for the
// three outcomes; an error that is neither ErrConflict nor ErrUnknown means
// that nothing was committed.
func (c *Catalog) CommitTable(ctx context.Context, ident table.Identifier, reqs []table.Requirement, updates []table.Update) (table.Metadata, string, error) {
	if c.hooks.Before != nil {
		if err := c.hooks.Before(ctx, ident); err != nil {
			return nil, "", err
		}
	}
	meta, loc, err := c.commit(ctx, ident, reqs, updates)
	if err == nil && c.hooks.After != nil {
		if err := c.hooks.After(ctx, ident); err != nil {
			return nil, "", fmt.Errorf("%w: %w", ErrUnknown, err)
		}
	}
	return meta, loc, err
}

func (c *Catalog) commit(ctx context.Context, ident table.Identifier, reqs []table.Requirement, updates []table.Update) (table.Metadata, string, error) {
	if c.pointer == nil {
		return c.commitREST(ctx, ident, reqs, updates)
	}
	current, err := c.LoadTable(ctx, ident)
	if errors.Is(err, ErrNoTable) {
		return nil, "", fmt.Errorf("%w: %s was dropped", ErrConflict, Name(ident))
	}
	if err != nil {
		return nil, "", err
	}
	for _, r := range reqs {
		if err := r.Validate(current.Metadata()); err != nil {
			return nil, "", fmt.Errorf("%w: %s", ErrConflict, err.Error())
		}
	}
	detach(updates)
	meta, err := table.UpdateTableMetadata(current.Metadata(), updates, current.MetadataLocation())
	if err != nil {
		return nil, "", fmt.Errorf("build metadata of %s: %w", Name(ident), err)
	}
	loc, err := c.writeMetadata(ctx, meta, current.MetadataLocation())
	if err != nil {
		return nil, "", fmt.Errorf("write metadata of %s: %w", Name(ident), err)
	}
	callMetadataHook(ctx)
	if err := c.pointer.swap(ctx, ident, current.MetadataLocation(), loc); err != nil {
		if errors.Is(err, ErrConflict) {
			// Certainly referred to by nothing, and its name is ours alone.
			if f, ferr := icebergio.LoadFS(ctx, c.props, loc); ferr == nil {
				_ = f.Remove(loc)
			}
		}
		return nil, "", err
	}
	c.parsed.put(ident, loc, meta)
	return meta, loc, nil
}

// writeMetadata writes the metadata that follows the one at previous, durably.
func (c *Catalog) writeMetadata(ctx context.Context, meta table.Metadata, previous string) (_ string, err error) {
	provider, err := table.LoadLocationProvider(meta.Location(), meta.Properties())
	if err != nil {
		return "", err
	}
	loc, err := provider.NewTableMetadataFileLocation(metadataVersion(previous) + 1)
	if err != nil {
		return "", err
	}
	f, err := icebergio.LoadFS(ctx, c.props, loc)
	if err != nil {
		return "", err
	}
	wfs, ok := f.(icebergio.WriteFileIO)
	if !ok {
		return "", table.ErrWriteIORequired
	}
	body, err := c.parsed.texts.of(meta)
	if err != nil {
		return "", err
	}
	switch codec := meta.Properties().Get(table.MetadataCompressionKey, table.MetadataCompressionDefault); codec {
	case table.MetadataCompressionCodecNone:
		return loc, wfs.WriteFile(loc, body)
	case table.MetadataCompressionCodecGzip:
		var b strings.Builder
		z := gzip.NewWriter(&b)
		if _, err := z.Write(body); err != nil {
			return "", err
		}
		if err := z.Close(); err != nil {
			return "", err
		}
		return loc, wfs.WriteFile(loc, []byte(b.String()))
	default:
		return "", failure.New(failure.Config, "table property %s=%s is not supported", table.MetadataCompressionKey, codec).
			WithHint("set it to none or gzip")
	}
}

// metadataVersion is the number in a metadata file's name (00012-<uuid>… or
// v12…), 0 where there is none; the UUID makes names unique, not the number.
func metadataVersion(location string) int {
	name := strings.TrimPrefix(path.Base(location), "v")
	end := strings.IndexFunc(name, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(name)
	}
	n, err := strconv.Atoi(name[:end])
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// Name is the identifier as users write it.
func Name(ident table.Identifier) string { return strings.Join(ident, ".") }

// ParseName splits namespace.table.
func ParseName(name string) (table.Identifier, error) {
	ident := strings.Split(name, ".")
	if len(ident) < 2 {
		return nil, failure.New(failure.Config, "table %q has no namespace", name).WithHint("write it as namespace.table, for example bronze.recentchange")
	}
	for _, part := range ident {
		if part == "" || strings.ContainsAny(part, "/\\ %?#") {
			return nil, failure.New(failure.Config, "table name %q is not usable", name).
				WithHint("each part needs at least one character, and none of / \\ %% ? # or space")
		}
	}
	return ident, nil
}
