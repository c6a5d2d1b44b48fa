package lake

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/catalog/rest"
	icebergio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/failure"
)

const (
	// restCallTimeout bounds one load or look-up.
	restCallTimeout = 30 * time.Second
	// restCommitTimeout bounds one commit; a server may try it several times
	// on its own side before it answers.
	restCommitTimeout = 60 * time.Second
	// restDialTimeout bounds the way to a server's first byte of TLS.
	restDialTimeout = 10 * time.Second
)

// REST is how a REST catalog is talked to. Of Credential and Token at most one
// is set; neither is right for a server that lets everybody in.
type REST struct {
	// Warehouse is the server's own name of a warehouse, where it has several.
	Warehouse string
	// Credential is "id:secret" (or a secret alone) of the OAuth2 client
	// credentials flow; Token is a bearer token that is sent as it is.
	Credential string
	Token      string
	// OAuth2ServerURI is where tokens come from; empty is the catalog's own
	// v1/oauth/tokens. Scope is asked for; empty is "catalog".
	OAuth2ServerURI string
	Scope           string
	// Headers go with every request.
	Headers map[string]string
	// SigV4 signs the requests with the credentials of the AWS SDK's default
	// chain.
	SigV4 *SigV4
}

// SigV4 says what requests are signed for.
type SigV4 struct {
	Region string // empty is the SDK's own
	Name   string // of the service; empty is execute-api
}

// openREST opens a REST catalog. The server decides where tables lie and which
// of two commits wins: Catalog.pointer stays empty.
func openREST(ctx context.Context, cfg Config) (*Catalog, error) {
	r := cfg.REST
	base, err := url.Parse(cfg.URI)
	if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" {
		return nil, failure.New(failure.Config, "the address of the REST catalog is not an http or https URL").
			WithHint("write catalog.uri as https://HOST:PORT/PATH, without the /v1")
	}
	if base.User != nil {
		return nil, failure.New(failure.Config, "the address of the REST catalog holds a user or a password").WithHint("put them into catalog.credential")
	}
	where := "the REST catalog at " + base.Redacted()
	transport := newRESTTransport()
	opts := []rest.Option{rest.WithCustomTransport(transport)}
	if len(r.Headers) > 0 {
		opts = append(opts, rest.WithHeaders(r.Headers))
	}
	if r.Warehouse != "" {
		opts = append(opts, rest.WithWarehouseLocation(r.Warehouse))
	}
	if len(cfg.Props) > 0 {
		opts = append(opts, rest.WithAdditionalProps(cfg.Props))
	}
	if r.SigV4 != nil {
		opts = append(opts, rest.WithSigV4RegionSvc(r.SigV4.Region, r.SigV4.Name))
	}
	if auth := newRESTAuth(base, r, transport.base); auth != nil {
		transport.auth = auth
		opts = append(opts, rest.WithAuthManager(auth))
	}
	c := &restErrors{where: where, secrets: r.secrets()}
	var inner *rest.Catalog
	err = cfg.wait(ctx, where, func(ctx context.Context) error {
		ctx, seen := withAnswer(ctx)
		var err error
		inner, err = rest.NewCatalog(ctx, cfg.Name, base.String(), opts...)
		return c.opening(seen, err)
	})
	if err != nil {
		transport.base.CloseIdleConnections()
		return nil, redactedError(err, c.secrets...)
	}
	return &Catalog{
		inner:    inner,
		props:    iceberg.Properties(cfg.Props),
		closers:  []io.Closer{inner, closerFunc(transport.base.CloseIdleConnections)},
		classify: c.classify,
		vended:   &vendedTables{},
	}, nil
}

func (r REST) secrets() []string {
	out := []string{r.Credential, r.Token}
	if _, secret, ok := strings.Cut(r.Credential, ":"); ok {
		out = append(out, secret)
	}
	return out
}

type closerFunc func()

func (f closerFunc) Close() error { f(); return nil }

// loadREST loads a table through the server, with file access whose credentials
// the server renews.
func (c *Catalog) loadREST(ctx context.Context, ident table.Identifier) (*table.Table, error) {
	t, err := c.askREST(ctx, ident)
	if err != nil {
		return nil, err
	}
	return table.New(ident, t.Metadata(), t.MetadataLocation(), c.vendedFS(ctx, ident, t), c), nil
}

// askREST asks the server for a table. Only a catalog's own word counts as "no
// such table": a proxy's 404 in front of a server that is being replaced must
// not make a query begin again.
func (c *Catalog) askREST(ctx context.Context, ident table.Identifier) (*table.Table, error) {
	ctx, cancel := context.WithTimeout(ctx, restCallTimeout)
	defer cancel()
	ctx, seen := withAnswer(ctx)
	t, err := c.inner.LoadTable(ctx, ident)
	if err == nil {
		return t, nil
	}
	if errors.Is(err, catalog.ErrNoSuchTable) || errors.Is(err, catalog.ErrNoSuchNamespace) {
		if seen.json() {
			return nil, fmt.Errorf("%w: %s", ErrNoTable, Name(ident))
		}
	}
	return nil, fmt.Errorf("load %s: %w", Name(ident), c.answered(seen, err))
}

// answered classifies an error of a request that is no commit: with a REST
// catalog everything is an outage that nobody has to decide about.
func (c *Catalog) answered(seen *answer, err error) error {
	err = c.classified(seen.typed(err))
	var known *failure.Error
	if c.pointer != nil || errors.As(err, &known) || errors.Is(err, context.Canceled) {
		return err
	}
	switch s := seen.status; {
	case s == http.StatusOK, s == http.StatusNotFound && !seen.json():
		return failure.Wrap(failure.Unreachable, err, "the answer (HTTP %d) is not the catalog's own", s).
			WithHint("something in front of the catalog answers in its place: start the catalog, or correct catalog.uri")
	case s == 0, s >= 500, s == http.StatusTooManyRequests, s == http.StatusRequestTimeout:
		return failure.Wrap(failure.Unreachable, err, "the catalog does not answer").
			WithHint("nothing was lost; start again when it answers")
	}
	return err
}

// commitREST commits through the server, once.
//
// The requirements go along, so the server checks them against the head that
// it commits on, also when it tries again on its own side. What it answers is
// not always what happened: a server, or a proxy before it, that repeats a
// commit which was made finds the head moved by that very commit, and reports a
// conflict. Each snapshot's id is ours alone, so the table itself tells.
func (c *Catalog) commitREST(ctx context.Context, ident table.Identifier, reqs []table.Requirement, updates []table.Update) (table.Metadata, string, error) {
	callMetadataHook(ctx)
	ids, err := addedSnapshots(updates)
	if err != nil {
		return nil, "", err
	}
	cctx, cancel := context.WithTimeout(ctx, restCommitTimeout)
	defer cancel()
	cctx, seen := withAnswer(cctx)
	meta, loc, err := c.inner.CommitTable(cctx, ident, reqs, updates)
	switch {
	case err == nil && holds(meta, ids):
		return meta, loc, nil
	case err == nil:
		return nil, "", fmt.Errorf("%w: the server reports success, and its answer has not the snapshot", ErrUnknown)
	case errors.Is(err, catalog.ErrNoSuchTable) && seen.json():
		return nil, "", fmt.Errorf("%w: %s was dropped", ErrConflict, Name(ident))
	case errors.Is(err, table.ErrCommitFailed):
		return c.settleConflict(ctx, ident, reqs, ids, err)
	case seen.refused(err), errors.Is(err, rest.ErrEndpointNotSupported):
		return nil, "", fmt.Errorf("commit to %s: %w", Name(ident), c.classified(seen.typed(err)))
	default:
		return nil, "", fmt.Errorf("%w: %w", ErrUnknown, err)
	}
}

// settleConflict says what a conflict that the server reports amounts to.
func (c *Catalog) settleConflict(ctx context.Context, ident table.Identifier, reqs []table.Requirement, ids []int64, cause error) (table.Metadata, string, error) {
	t, err := c.loadREST(ctx, ident)
	switch {
	case errors.Is(err, ErrNoTable):
		return nil, "", fmt.Errorf("%w: %s was dropped", ErrConflict, Name(ident))
	case err != nil:
		return nil, "", fmt.Errorf("%w: the server reports a conflict and cannot be asked: %w", ErrUnknown, err)
	case len(ids) > 0 && holds(t.Metadata(), ids):
		return t.Metadata(), t.MetadataLocation(), nil
	}
	for _, r := range reqs {
		if r.Validate(t.Metadata()) != nil {
			// The asserted head is gone: no copy of the request that is still
			// under way can be made any more.
			return nil, "", fmt.Errorf("%w: %s", ErrConflict, cause.Error())
		}
	}
	return nil, "", fmt.Errorf("%w: the server reports a conflict, and the table has not moved: %s", ErrUnknown, cause.Error())
}

// addedSnapshots lists the ids of the snapshots that the updates add.
func addedSnapshots(updates []table.Update) ([]int64, error) {
	var ids []int64
	for _, u := range updates {
		if u.Action() != table.UpdateAddSnapshot {
			continue
		}
		// The update's type is the library's own; its JSON is the protocol's.
		var doc struct {
			Snapshot struct {
				ID int64 `json:"snapshot-id"`
			} `json:"snapshot"`
		}
		body, err := json.Marshal(u)
		if err == nil {
			err = json.Unmarshal(body, &doc)
		}
		if err != nil || doc.Snapshot.ID == 0 {
			return nil, fmt.Errorf("find the id of a new snapshot: %w", err)
		}
		ids = append(ids, doc.Snapshot.ID)
	}
	return ids, nil
}

func holds(meta table.Metadata, ids []int64) bool {
	for _, id := range ids {
		if meta.SnapshotByID(id) == nil {
			return false
		}
	}
	return true
}

// listing asks a REST catalog for a list in one piece: the library sends a page
// size without a first page's token, which Iceberg's own server refuses.
func (c *Catalog) listing(ctx context.Context) context.Context {
	if r, ok := c.inner.(*rest.Catalog); ok {
		return r.SetPageSize(ctx, 0)
	}
	return ctx
}

// metadataKeeper leaves old metadata files to the server, which removes them
// with the commit; the library would do it a second time.
type metadataKeeper struct{ icebergio.WriteFileIO }

// Remove implements icebergio.IO.
func (k metadataKeeper) Remove(name string) error {
	if strings.Contains(path.Base(name), ".metadata.json") {
		return nil
	}
	return k.WriteFileIO.Remove(name)
}

func keepMetadata(load table.FSysF) table.FSysF {
	return func(ctx context.Context) (icebergio.IO, error) {
		f, err := load(ctx)
		if err != nil {
			return nil, err
		}
		if w, ok := f.(icebergio.WriteFileIO); ok {
			return metadataKeeper{w}, nil
		}
		return f, nil
	}
}

// restErrors turns a server's answers into failures.
type restErrors struct {
	where   string
	secrets []string
}

// classify gives a failure for what no further try changes.
func (c *restErrors) classify(err error) error {
	fail := func(hint, format string, args ...any) error {
		return failure.Wrap(failure.Config, redactedError(err, c.secrets...), "%s %s", c.where, fmt.Sprintf(format, args...)).WithHint("%s", hint)
	}
	var oauth *oauthError
	switch {
	case errors.As(err, &oauth) && oauth.refused():
		return fail("check catalog.credential, catalog.scope and catalog.oauth2ServerUri", "gets no token")
	case errors.Is(err, rest.ErrUnauthorized):
		return fail("check catalog.credential or catalog.token; a token given as it is may have expired", "does not accept who we are")
	case errors.Is(err, rest.ErrForbidden):
		return fail("ask the catalog's owner for the permission: to read, create and commit tables, and to create namespaces that are missing", "refuses the permission")
	}
	return err
}

// opening classifies an error of the first contact.
func (c *restErrors) opening(seen *answer, err error) error {
	if err == nil {
		return nil
	}
	if err = c.classify(seen.typed(err)); failure.Is(err, failure.Config) {
		return err
	}
	var untrusted *tls.CertificateVerificationError
	var noTLS tls.RecordHeaderError
	switch {
	case errors.As(err, &untrusted):
		return failure.Wrap(failure.Config, err, "%s: its certificate is not trusted", c.where).
			WithHint("add its authority to the system's, or name a PEM file with it in the environment: SSL_CERT_FILE")
	case errors.As(err, &noTLS), strings.Contains(err.Error(), "HTTP response to HTTPS client"):
		return failure.Wrap(failure.Config, err, "%s does not speak TLS", c.where).WithHint("write catalog.uri with http://, or let the server speak TLS")
	case seen.status == http.StatusOK:
		return failure.Wrap(failure.Config, err, "%s: the answer is not that of an Iceberg REST catalog", c.where).
			WithHint("correct catalog.uri: it ends where /v1/config begins")
	case seen.status >= 400 && seen.status < 500 && seen.status != http.StatusTooManyRequests && seen.status != http.StatusRequestTimeout:
		if !seen.json() {
			return failure.Wrap(failure.Config, err, "%s: there is no Iceberg REST catalog (HTTP %d)", c.where, seen.status).
				WithHint("correct catalog.uri: it ends where /v1/config begins")
		}
		return failure.Wrap(failure.Config, err, "%s refuses the warehouse or the request (HTTP %d)", c.where, seen.status).
			WithHint("check catalog.warehouse, which is the server's name of a warehouse, and that catalog.uri ends where /v1/config begins")
	}
	return failure.Wrap(failure.Unreachable, err, "%s does not answer", c.where).
		WithHint("start it, or correct catalog.uri")
}

// newRESTTransport is the HTTP transport of a REST catalog.
func newRESTTransport() *restTransport {
	d := &net.Dialer{Timeout: restDialTimeout, KeepAlive: 30 * time.Second}
	return &restTransport{base: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           d.DialContext,
		TLSHandshakeTimeout:   restDialTimeout,
		ResponseHeaderTimeout: restCommitTimeout,
		IdleConnTimeout:       90 * time.Second,
		MaxIdleConnsPerHost:   maxConnections,
		ForceAttemptHTTP2:     true,
	}}
}
