package lake

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strconv"
	"strings"
	"sync"

	icebergio "github.com/apache/iceberg-go/io"
	"golang.org/x/sync/errgroup"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore/cloud"
	"github.com/weirlake/weir/internal/objstore/ranged"
	"github.com/weirlake/weir/internal/objstore/s3"
)

const (
	// storesProperty carries the number of a catalog's stores to the file access
	// that the library asks for by scheme. The settings themselves, with their
	// keys, stay out of properties.
	storesProperty = "weir.stores"
	// deletesInFlight bounds the objects that are deleted at once.
	deletesInFlight = 8
)

// Properties that Java's and PyIceberg's catalogs use beside the library's.
const (
	propPathStyle = "s3.path-style-access"
	propSSEType   = "s3.sse.type"
	propSSEKey    = "s3.sse.key"
)

// openStores are the stores of the catalogs that are open, by number.
var openStores = struct {
	mu     sync.Mutex
	next   int
	byID   map[string]catalogStores
	chain  *s3.Stores    // AWS's default chain, for catalogs without any
	clouds *cloud.Stores // the other clouds' default credentials
	vended vendedClients
}{byID: map[string]catalogStores{}}

// catalogStores are how the buckets of one catalog are reached.
type catalogStores struct {
	s3    *s3.Stores
	cloud *cloud.Stores
}

// storesID is held by a catalog while it is open.
type storesID string

func registerStores(s catalogStores) storesID {
	openStores.mu.Lock()
	defer openStores.mu.Unlock()
	openStores.next++
	id := strconv.Itoa(openStores.next)
	openStores.byID[id] = s
	return storesID(id)
}

// Close implements io.Closer.
func (id storesID) Close() error {
	openStores.mu.Lock()
	defer openStores.mu.Unlock()
	delete(openStores.byID, string(id))
	return nil
}

// registerObjectStores gives the library file access on object stores.
func registerObjectStores() {
	register := func(find func(*ObjectIO, string) (object, error), schemes ...string) {
		for _, scheme := range schemes {
			icebergio.Unregister(scheme)
			icebergio.Register(scheme, func(ctx context.Context, _ *url.URL, props map[string]string) (icebergio.IO, error) {
				f, err := newObjectIO(ctx, props)
				if err != nil {
					return nil, err
				}
				f.find = find
				return f, nil
			})
		}
	}
	register((*ObjectIO).onS3, "s3", "s3a", "s3n")
	register((*ObjectIO).onCloud, "gs", "gcs", "abfs", "abfss", "wasb", "wasbs")
}

// ObjectIO reads and writes objects for iceberg-go and for data files. A file is
// there, whole, when Close has returned, or not at all: a PUT is atomic, so
// there is no temporary name and no rename.
type ObjectIO struct {
	ctx    context.Context // the library's interfaces have none
	stores catalogStores
	props  map[string]string
	find   func(f *ObjectIO, location string) (object, error)
	vended *vendedTable // nil where the catalog hands out no credentials
}

// object is one object, or what lies below a prefix, in the store that it is in.
type object interface {
	open(ctx context.Context) (*ranged.Reader, error)
	read(ctx context.Context) ([]byte, error)
	write(ctx context.Context, data []byte) error
	create(ctx context.Context) objectWriter
	stat(ctx context.Context) (fs.FileInfo, error)
	remove(ctx context.Context) error
	// list calls visit with what is below, by its name from there on.
	list(ctx context.Context, visit func(rest string, info fs.FileInfo) error) error
	// kept is by what a copy in memory is known.
	kept() keptKey
}

// objectWriter is a file on its way.
type objectWriter interface {
	icebergio.FileWriter
	Abort()
}

func newObjectIO(ctx context.Context, props map[string]string) (*ObjectIO, error) {
	openStores.mu.Lock()
	defer openStores.mu.Unlock()
	stores := openStores.byID[props[storesProperty]]
	var err error
	if stores.s3 == nil {
		if openStores.chain == nil {
			if openStores.chain, err = s3.NewStores(); err != nil {
				return nil, err
			}
		}
		stores.s3 = openStores.chain
	}
	if stores.cloud == nil {
		if openStores.clouds == nil {
			if openStores.clouds, err = cloud.NewStores(); err != nil {
				return nil, err
			}
		}
		stores.cloud = openStores.clouds
	}
	return &ObjectIO{ctx: ctx, stores: stores, props: props}, nil
}

func (f *ObjectIO) object(location string) (object, error) { return f.find(f, location) }

// onCloud finds an object of Google Cloud Storage or Azure.
func (f *ObjectIO) onCloud(name string) (object, error) {
	l, err := cloud.ParseLocation(name)
	if err != nil {
		return nil, err
	}
	c, err := f.stores.cloud.Client(f.ctx, l)
	return cloudObject{c, l}, err
}

// onS3 finds an object of S3.
func (f *ObjectIO) onS3(name string) (object, error) {
	l, err := s3.ParseLocation(name)
	if err != nil {
		return nil, err
	}
	base := f.stores.s3.Config(l.Bucket)
	cfg, vended, err := withProperties(base, f.props)
	if err != nil {
		return nil, err
	}
	clients := &openStores.vended
	switch {
	case !vended:
		c, err := f.stores.s3.Client(f.ctx, l.Bucket)
		return s3Object{c, l}, err
	case f.vended != nil && cfg.Credentials != base.Credentials:
		cfg.Credentials, cfg.Provider = s3.Credentials{}, f.vended
		clients = &f.vended.clients
	}
	c, err := clients.client(f.ctx, cfg)
	return s3Object{c, l}, err
}

// withProperties adds what a catalog says of its tables' storage (endpoint,
// region, vended credentials) to the settings of the pipeline, which win.
func withProperties(cfg s3.Config, props map[string]string) (_ s3.Config, changed bool, err error) {
	before := cfg
	if e := props[icebergio.S3EndpointURL]; e != "" && cfg.Endpoint == "" {
		cfg.Endpoint = e
		// As PyIceberg and the library have it: a store of one's own is
		// addressed by path unless it is said otherwise.
		cfg.PathStyle = props[icebergio.S3ForceVirtualAddressing] != "true"
		if p := props[propPathStyle]; p != "" {
			cfg.PathStyle = p == "true"
		}
	}
	cfg.Region = cmp.Or(cfg.Region, props[icebergio.S3Region], props[icebergio.S3ClientRegion])
	if cfg.Credentials.IsZero() && cfg.AssumeRole == nil && cfg.Provider == nil {
		cfg.Credentials = keysOf(props).Credentials
		if cfg.Credentials.AccessKeyID == "" && props[icebergio.S3RemoteSigningEnabled] == "true" {
			return cfg, false, failure.New(failure.Config, "the catalog wants requests to S3 signed by itself, which this build does not do").
				WithHint("let the catalog vend credentials, or set the bucket's keys in the pipeline's stores")
		}
	}
	if cfg.SSE == "" {
		switch props[propSSEType] {
		case "s3":
			cfg.SSE = s3.SSES3
		case "kms":
			cfg.SSE, cfg.KMSKeyID = s3.SSEKMS, props[propSSEKey]
		}
	}
	changed = cfg.Endpoint != before.Endpoint || cfg.Region != before.Region || cfg.Credentials != before.Credentials || cfg.SSE != before.SSE
	return cfg, changed, nil
}

// Open implements icebergio.IO.
func (f *ObjectIO) Open(name string) (icebergio.File, error) {
	o, err := f.object(name)
	if err != nil {
		return nil, err
	}
	if keeps(name) {
		return openKept(f.ctx, o)
	}
	r, err := o.open(f.ctx)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// ReadFile implements icebergio.ReadFileIO.
func (f *ObjectIO) ReadFile(name string) ([]byte, error) {
	o, err := f.object(name)
	if err != nil {
		return nil, err
	}
	return o.read(f.ctx)
}

// Stat implements icebergio.StatIO.
func (f *ObjectIO) Stat(name string) (fs.FileInfo, error) {
	o, err := f.object(name)
	if err != nil {
		return nil, err
	}
	return o.stat(f.ctx)
}

// Create implements icebergio.WriteFileIO. The writer has an Abort.
func (f *ObjectIO) Create(name string) (icebergio.FileWriter, error) {
	o, err := f.object(name)
	if err != nil {
		return nil, err
	}
	w := o.create(f.ctx)
	if keeps(name) {
		return &keepingWriter{objectWriter: w, key: o.kept()}, nil
	}
	return w, nil
}

// WriteFile implements icebergio.WriteFileIO.
func (f *ObjectIO) WriteFile(name string, content []byte) error {
	o, err := f.object(name)
	if err != nil {
		return err
	}
	return o.write(f.ctx, bytes.Clone(content))
}

// Remove implements icebergio.IO; a missing object is no error.
func (f *ObjectIO) Remove(name string) error {
	o, err := f.object(name)
	if err != nil {
		return err
	}
	processKept.remove(o.kept())
	return o.remove(f.ctx)
}

// DeleteFiles implements icebergio.BulkRemovableIO, an object at a time:
// compatible stores differ in what they want of a bulk request.
func (f *ObjectIO) DeleteFiles(ctx context.Context, paths []string) ([]string, error) {
	errs := make([]error, len(paths))
	var g errgroup.Group
	g.SetLimit(deletesInFlight)
	for i, p := range paths {
		g.Go(func() error {
			if errs[i] = ctx.Err(); errs[i] == nil {
				errs[i] = f.Remove(p)
			}
			return nil
		})
	}
	_ = g.Wait()
	var deleted []string
	for i, p := range paths {
		if errs[i] == nil {
			deleted = append(deleted, p)
		}
	}
	return deleted, errors.Join(errs...)
}

// WalkDir implements icebergio.ListableIO. Paths have the root's own form.
func (f *ObjectIO) WalkDir(root string, fn fs.WalkDirFunc) error {
	o, err := f.object(root)
	if err != nil {
		return err
	}
	prefix := strings.TrimSuffix(root, "/")
	err = o.list(f.ctx, func(rest string, info fs.FileInfo) error {
		if strings.HasSuffix(rest, "/") {
			return nil // a console's "folder"
		}
		return fn(prefix+"/"+strings.TrimPrefix(rest, "/"), fs.FileInfoToDirEntry(info), nil)
	})
	if errors.Is(err, fs.SkipAll) {
		return nil
	}
	return err
}

// warehouseOnStore is the warehouse as s3://bucket/prefix, gs://bucket/prefix or
// abfss://container@account/prefix.
func warehouseOnStore(warehouse string) (string, error) {
	var location, key string
	if cloud.IsLocation(warehouse) {
		l, err := cloud.ParseLocation(warehouse)
		if err != nil {
			return "", err
		}
		location, key = l.String(), l.Key
	} else {
		l, err := s3.ParseLocation(warehouse)
		if err != nil {
			return "", err
		}
		location, key = l.String(), l.Key
	}
	if u := (&url.URL{Path: key}); u.EscapedPath() != key || strings.ContainsAny(key, "?#") {
		return "", failure.New(failure.Config, "warehouse %q: the prefix has characters that a URI escapes, and other Iceberg engines do not decode them", warehouse).
			WithHint("use a prefix of letters, digits and -_.~+@$&,:=/")
	}
	return location, nil
}

// withStores registers the stores of a catalog, and gives the properties by
// which its file access finds them.
func withStores(cfg Config) (Config, storesID) {
	if cfg.Stores == nil && cfg.Cloud == nil {
		return cfg, ""
	}
	id := registerStores(catalogStores{cfg.Stores, cfg.Cloud})
	props := map[string]string{storesProperty: string(id)}
	for k, v := range cfg.Props {
		props[k] = v
	}
	cfg.Props = props
	return cfg, id
}

var (
	_ icebergio.WriteFileIO     = (*ObjectIO)(nil)
	_ icebergio.ListableIO      = (*ObjectIO)(nil)
	_ icebergio.BulkRemovableIO = (*ObjectIO)(nil)
	_ icebergio.ReadFileIO      = (*ObjectIO)(nil)
	_ icebergio.StatIO          = (*ObjectIO)(nil)
)

// unsupportedWarehouse names the store that a warehouse asks for in vain.
func unsupportedWarehouse(warehouse string) error {
	return fmt.Errorf("warehouse: %w", s3.Unsupported(warehouse))
}
