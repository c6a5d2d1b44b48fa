package lake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	icebergio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"
	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore/s3"
)

const (
	// vendedClientsMax bounds the clients that are kept for settings that a
	// catalog hands out with its tables, vendedTablesMax the tables.
	vendedClientsMax = 32
	vendedTablesMax  = 64
	// renewEarly is how long before their end credentials are renewed, at most
	// half of what is left of their life.
	renewEarly = 5 * time.Minute
	// renewUnknown is when temporary credentials are renewed whose end the catalog
	// does not tell, or tells by another clock than this machine's.
	renewUnknown = 15 * time.Minute
	// propS3TokenEnd is when a session token ends, in milliseconds since 1970.
	propS3TokenEnd = "s3.session-token-expires-at-ms"
)

// vendedClients are clients by the settings that make them differ.
type vendedClients struct {
	mu    sync.Mutex
	byKey map[string]*s3.Client
}

func (v *vendedClients) client(ctx context.Context, cfg s3.Config) (*s3.Client, error) {
	k := cfg.Credentials
	sum := sha256.Sum256([]byte(strings.Join([]string{cfg.Endpoint, cfg.Region, strconv.FormatBool(cfg.PathStyle), cfg.CAFile,
		cfg.SSE, cfg.KMSKeyID, k.AccessKeyID, k.SecretAccessKey, k.SessionToken}, "\x00")))
	key := hex.EncodeToString(sum[:])
	v.mu.Lock()
	defer v.mu.Unlock()
	if c, ok := v.byKey[key]; ok {
		return c, nil
	}
	c, err := s3.Open(context.WithoutCancel(ctx), cfg)
	if err != nil {
		return nil, err
	}
	if v.byKey == nil || len(v.byKey) >= vendedClientsMax {
		v.byKey = map[string]*s3.Client{}
	}
	v.byKey[key] = c
	return c, nil
}

// vendedTables are the tables of a REST catalog that have credentials of their
// own, by name.
type vendedTables struct {
	mu     sync.Mutex
	byName map[string]*vendedTable
}

func (v *vendedTables) of(name string, ask askFunc) *vendedTable {
	v.mu.Lock()
	defer v.mu.Unlock()
	t, ok := v.byName[name]
	if !ok {
		if v.byName == nil || len(v.byName) >= vendedTablesMax {
			v.byName = map[string]*vendedTable{}
		}
		t = &vendedTable{name: name, ask: ask, clock: clock.System{}}
		v.byName[name] = t
	}
	return t
}

// askFunc asks the catalog what it says of a table's storage now.
type askFunc func(ctx context.Context) (props map[string]string, err error)

// vendedTable gives the credentials that a catalog hands out with one table, and
// fresh ones when they end or the store refuses them, also in the middle of an
// upload: the clients that it keeps sign each request with what it gives.
type vendedTable struct {
	name    string
	ask     askFunc
	clock   clock.Clock
	clients vendedClients

	mu     sync.Mutex
	keys   vendedKeys
	unused bool // nobody was given keys yet
}

var _ aws.CredentialsProvider = (*vendedTable)(nil)

// vendedKeys are credentials and when they end; zero: the catalog does not say.
type vendedKeys struct {
	s3.Credentials
	end time.Time
}

func keysOf(props map[string]string) vendedKeys {
	k := vendedKeys{Credentials: s3.Credentials{AccessKeyID: props[icebergio.S3AccessKeyID],
		SecretAccessKey: props[icebergio.S3SecretAccessKey], SessionToken: props[icebergio.S3SessionToken]}}
	if ms, err := strconv.ParseInt(props[propS3TokenEnd], 10, 64); err == nil && ms > 0 {
		k.end = time.UnixMilli(ms)
	}
	return k
}

// offer takes what came with a load of the table.
func (v *vendedTable) offer(props map[string]string) {
	k := keysOf(props)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.unused = v.unused || k.Credentials != v.keys.Credentials
	v.keys = k // the same ones may live longer now
}

// take gives the keys that a load has brought since the last call, if they have
// not ended meanwhile.
func (v *vendedTable) take() (_ vendedKeys, fresh bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	fresh = v.unused && (v.keys.end.IsZero() || v.keys.end.After(v.clock.Now()))
	v.unused = false
	return v.keys, fresh
}

// Retrieve implements aws.CredentialsProvider. The SDK keeps what it is given
// until it ends or is refused: who asks again wants other keys.
func (v *vendedTable) Retrieve(ctx context.Context) (aws.Credentials, error) {
	keys, fresh := v.take()
	if fresh {
		return v.give(keys), nil
	}
	props, err := v.ask(ctx)
	if err == nil && keysOf(props).AccessKeyID == "" {
		err = failure.New(failure.Config, "the catalog hands out no credentials for %s any more", v.name).
			WithHint("let the catalog vend them, or set the bucket's keys in the pipeline's stores")
	}
	if err != nil {
		if keys.end.After(v.clock.Now()) {
			return v.give(keys), nil // they are good for a while, and asked for again
		}
		return aws.Credentials{}, &renewError{v.name, err}
	}
	v.offer(props)
	keys, _ = v.take()
	return v.give(keys), nil
}

// give says until when the SDK may keep the keys.
func (v *vendedTable) give(k vendedKeys) aws.Credentials {
	out := aws.Credentials{AccessKeyID: k.AccessKeyID, SecretAccessKey: k.SecretAccessKey, SessionToken: k.SessionToken, Source: "catalog"}
	now := v.clock.Now()
	switch left := k.end.Sub(now); {
	case left > 0:
		out.CanExpire, out.Expires = true, k.end.Add(-min(renewEarly, left/2))
	case !k.end.IsZero() || k.SessionToken != "":
		out.CanExpire, out.Expires = true, now.Add(renewUnknown)
	}
	return out
}

// renewError is fresh credentials that could not be had.
type renewError struct {
	table string
	cause error
}

func (e *renewError) Error() string {
	return "get fresh credentials for the files of " + e.table + ": " + e.cause.Error()
}

func (e *renewError) Unwrap() error { return e.cause }

// RetryableError tells the SDK whether its next attempt may have more luck.
func (e *renewError) RetryableError() bool {
	return !failure.Is(e.cause, failure.Config) && !errors.Is(e.cause, ErrNoTable)
}

// vendedFS is the file access of a table that was loaded from a REST catalog. It
// replaces the library's, which holds on to the context of its first use, and
// whose credentials end while a file is being written.
func (c *Catalog) vendedFS(ctx context.Context, ident table.Identifier, t *table.Table) table.FSysF {
	files, err := t.FS(ctx)
	loaded, ok := files.(*ObjectIO)
	if err != nil || !ok || keysOf(loaded.props).AccessKeyID == "" {
		return t.FS
	}
	vended := c.vended.of(Name(ident), func(ctx context.Context) (map[string]string, error) { return c.storageOf(ctx, ident) })
	vended.offer(loaded.props)
	return func(ctx context.Context) (icebergio.IO, error) {
		out := *loaded
		out.ctx, out.vended = ctx, vended
		return &out, nil
	}
}

// storageOf is what the catalog says of a table's storage now.
func (c *Catalog) storageOf(ctx context.Context, ident table.Identifier) (map[string]string, error) {
	t, err := c.askREST(ctx, ident)
	if err != nil {
		return nil, err
	}
	files, err := t.FS(ctx)
	if err != nil {
		return nil, err
	}
	if o, ok := files.(*ObjectIO); ok {
		return o.props, nil
	}
	return nil, failure.New(failure.Config, "table %s is not on an object store any more", Name(ident))
}
