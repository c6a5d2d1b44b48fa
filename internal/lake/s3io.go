package lake

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
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
	"github.com/weirlake/weir/internal/objstore/s3"
)

const (
	// storesProperty carries the number of a catalog's stores to the file access
	// that the library asks for by scheme. The settings themselves, with their
	// keys, stay out of properties.
	storesProperty = "weir.stores"
	// vendedClientsMax bounds the clients that are kept for credentials that a
	// catalog hands out with its tables.
	vendedClientsMax = 32
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
	byID   map[string]*s3.Stores
	chain  *s3.Stores            // AWS's default chain, for catalogs without any
	vended map[string]*s3.Client // by what makes them differ
}{byID: map[string]*s3.Stores{}, vended: map[string]*s3.Client{}}

// storesID is held by a catalog while it is open.
type storesID string

func registerStores(s *s3.Stores) storesID {
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

// registerS3 gives the library file access on S3.
func registerS3() {
	for _, scheme := range []string{"s3", "s3a", "s3n"} {
		icebergio.Unregister(scheme)
		icebergio.Register(scheme, func(ctx context.Context, _ *url.URL, props map[string]string) (icebergio.IO, error) {
			return newS3IO(ctx, props)
		})
	}
}

// S3IO reads and writes objects for iceberg-go and for data files. A file is
// there, whole, when Close has returned, or not at all: a PUT is atomic, so
// there is no temporary name and no rename.
type S3IO struct {
	ctx    context.Context // the library's interfaces have none
	stores *s3.Stores
	props  map[string]string
}

func newS3IO(ctx context.Context, props map[string]string) (*S3IO, error) {
	openStores.mu.Lock()
	defer openStores.mu.Unlock()
	stores := openStores.byID[props[storesProperty]]
	if stores == nil {
		if openStores.chain == nil {
			var err error
			if openStores.chain, err = s3.NewStores(); err != nil {
				return nil, err
			}
		}
		stores = openStores.chain
	}
	return &S3IO{ctx: ctx, stores: stores, props: props}, nil
}

// at finds the object and the client for a location.
func (f *S3IO) at(name string) (*s3.Client, s3.Location, error) {
	l, err := s3.ParseLocation(name)
	if err != nil {
		return nil, l, err
	}
	base := f.stores.Config(l.Bucket)
	cfg, vended, err := withProperties(base, f.props)
	if err != nil {
		return nil, l, err
	}
	if !vended {
		c, err := f.stores.Client(f.ctx, l.Bucket)
		return c, l, err
	}
	c, err := vendedClient(f.ctx, cfg)
	return c, l, err
}

func vendedClient(ctx context.Context, cfg s3.Config) (*s3.Client, error) {
	k := cfg.Credentials
	sum := sha256.Sum256([]byte(strings.Join([]string{cfg.Endpoint, cfg.Region, strconv.FormatBool(cfg.PathStyle), cfg.CAFile,
		cfg.SSE, cfg.KMSKeyID, k.AccessKeyID, k.SecretAccessKey, k.SessionToken}, "\x00")))
	key := hex.EncodeToString(sum[:])
	openStores.mu.Lock()
	defer openStores.mu.Unlock()
	if c, ok := openStores.vended[key]; ok {
		return c, nil
	}
	c, err := s3.Open(context.WithoutCancel(ctx), cfg)
	if err != nil {
		return nil, err
	}
	if len(openStores.vended) >= vendedClientsMax {
		clear(openStores.vended)
	}
	openStores.vended[key] = c
	return c, nil
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
		cfg.Credentials = s3.Credentials{AccessKeyID: props[icebergio.S3AccessKeyID], SecretAccessKey: props[icebergio.S3SecretAccessKey],
			SessionToken: props[icebergio.S3SessionToken]}
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
func (f *S3IO) Open(name string) (icebergio.File, error) {
	c, l, err := f.at(name)
	if err != nil {
		return nil, err
	}
	open := func() (*s3.Reader, error) { return c.OpenReader(f.ctx, l) }
	if keeps(l) {
		return openKept(keptKey{c, l}, open)
	}
	r, err := open()
	if err != nil {
		return nil, err
	}
	return r, nil
}

// ReadFile implements icebergio.ReadFileIO.
func (f *S3IO) ReadFile(name string) ([]byte, error) {
	c, l, err := f.at(name)
	if err != nil {
		return nil, err
	}
	return c.Read(f.ctx, l)
}

// Stat implements icebergio.StatIO.
func (f *S3IO) Stat(name string) (fs.FileInfo, error) {
	c, l, err := f.at(name)
	if err != nil {
		return nil, err
	}
	i, err := c.Stat(f.ctx, l)
	if err != nil {
		return nil, err
	}
	return s3.FileInfo(l, i), nil
}

// Create implements icebergio.WriteFileIO. The writer has an Abort.
func (f *S3IO) Create(name string) (icebergio.FileWriter, error) {
	c, l, err := f.at(name)
	if err != nil {
		return nil, err
	}
	w := c.NewWriter(f.ctx, l)
	if keeps(l) {
		return &keepingWriter{Writer: w, key: keptKey{c, l}}, nil
	}
	return w, nil
}

// WriteFile implements icebergio.WriteFileIO.
func (f *S3IO) WriteFile(name string, content []byte) error {
	c, l, err := f.at(name)
	if err != nil {
		return err
	}
	return c.Write(f.ctx, l, bytes.Clone(content))
}

// Remove implements icebergio.IO; a missing object is no error.
func (f *S3IO) Remove(name string) error {
	c, l, err := f.at(name)
	if err != nil {
		return err
	}
	processKept.remove(keptKey{c, l})
	return c.Remove(f.ctx, l)
}

// DeleteFiles implements icebergio.BulkRemovableIO, an object at a time:
// compatible stores differ in what they want of a bulk request.
func (f *S3IO) DeleteFiles(ctx context.Context, paths []string) ([]string, error) {
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
func (f *S3IO) WalkDir(root string, fn fs.WalkDirFunc) error {
	c, l, err := f.at(root)
	if err != nil {
		return err
	}
	prefix := strings.TrimSuffix(root, "/")
	err = c.List(f.ctx, l, func(o s3.Location, i s3.Info) error {
		if strings.HasSuffix(o.Key, "/") {
			return nil // a console's "folder"
		}
		rest := strings.TrimPrefix(o.Key, l.Key)
		return fn(prefix+"/"+strings.TrimPrefix(rest, "/"), fs.FileInfoToDirEntry(s3.FileInfo(o, i)), nil)
	})
	if errors.Is(err, fs.SkipAll) {
		return nil
	}
	return err
}

// warehouseOnS3 is the warehouse as s3://bucket/prefix.
func warehouseOnS3(warehouse string) (string, error) {
	l, err := s3.ParseLocation(warehouse)
	if err != nil {
		return "", err
	}
	if u := (&url.URL{Path: l.Key}); u.EscapedPath() != l.Key || strings.ContainsAny(l.Key, "?#") {
		return "", failure.New(failure.Config, "warehouse %q: the prefix has characters that a URI escapes, and other Iceberg engines do not decode them", warehouse).
			WithHint("use a prefix of letters, digits and -_.~+@$&,:=/")
	}
	return l.String(), nil
}

// withStores registers the stores of a catalog, and gives the properties by
// which its file access finds them.
func withStores(cfg Config) (Config, storesID) {
	if cfg.Stores == nil {
		return cfg, ""
	}
	id := registerStores(cfg.Stores)
	props := map[string]string{storesProperty: string(id)}
	for k, v := range cfg.Props {
		props[k] = v
	}
	cfg.Props = props
	return cfg, id
}

var (
	_ icebergio.WriteFileIO     = (*S3IO)(nil)
	_ icebergio.ListableIO      = (*S3IO)(nil)
	_ icebergio.BulkRemovableIO = (*S3IO)(nil)
	_ icebergio.ReadFileIO      = (*S3IO)(nil)
	_ icebergio.StatIO          = (*S3IO)(nil)
)

// unsupportedWarehouse names the store that a warehouse asks for in vain.
func unsupportedWarehouse(warehouse string) error {
	return fmt.Errorf("warehouse: %w", s3.Unsupported(warehouse))
}
