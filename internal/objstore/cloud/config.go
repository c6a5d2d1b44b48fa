package cloud

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

const (
	// attemptsMax bounds how often one request is sent. With backOffMax between
	// them an outage of more than half a minute ends in an error, and the
	// supervisor's restart goes on from there.
	attemptsMax  = 8
	backOffFirst = 100 * time.Millisecond
	backOffMax   = 10 * time.Second
	// headerTimeout bounds the wait for an answer to begin, dialTimeout that for
	// a connection, requestTimeout a whole request with its body.
	headerTimeout  = 60 * time.Second
	dialTimeout    = 10 * time.Second
	requestTimeout = 5 * time.Minute
	// connectionsIdleMax is how many connections are kept per client.
	connectionsIdleMax = 64
	// partBytesDefault is the size of a part, and so the most that an open file
	// holds back; what is smaller goes in one request. GCS wants a multiple of
	// 256 KiB.
	partBytesDefault = 8 << 20
	// partsInFlight bounds the parts that are being sent to Azure, over all files
	// of a client. GCS takes the parts of a file one after the other.
	partsInFlight = 8
)

// Config is how a bucket is reached. It prints without its secrets.
type Config struct {
	Kind Kind
	// Bucket limits the settings to one bucket of GCS, Account to one storage
	// account of Azure; empty is every other one.
	Bucket, Account string
	// Endpoint is the URL of a compatible store; empty is Google's or Azure's.
	Endpoint string
	// CAFile is a PEM file of authorities to trust in place of the system's.
	CAFile string
	// CredentialsFile is a service account's (or another of Google's JSON
	// files); empty takes Google's application default credentials.
	CredentialsFile string
	// AccountKey or SASToken are Azure's; without them it is Entra ID: the
	// workload's, the client's secret, or the managed identity.
	AccountKey, SASToken string
	// Anonymous sends no credentials.
	Anonymous bool

	// PartBytes, PageKeys and BackOffMax replace the defaults where they are not
	// 0; Clock is the system's where it is nil.
	PartBytes  int
	PageKeys   int
	BackOffMax time.Duration
	Clock      clock.Clock
}

// Format implements fmt.Formatter: no verb shows a key.
func (c Config) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "%s store %q", c.Kind, cmp.Or(c.Bucket, c.Account, "*"))
}

// Validate names every conflict at once.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Kind != GCS && c.Kind != Azure {
		bad("kind %q is neither %s nor %s", string(c.Kind), GCS, Azure)
	}
	if c.Endpoint != "" {
		if u, err := url.Parse(c.Endpoint); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil {
			bad("endpoint is not an http or https URL without a user")
		}
	}
	n := 0
	for _, set := range []bool{c.AccountKey != "", c.SASToken != "", c.CredentialsFile != "", c.Anonymous} {
		if set {
			n++
		}
	}
	if n > 1 {
		bad("more than one of accountKey, sasToken, credentialsFile and anonymous")
	}
	if _, err := base64.StdEncoding.DecodeString(c.AccountKey); err != nil {
		bad("accountKey is not base64")
	}
	if c.Kind == GCS && (c.AccountKey != "" || c.SASToken != "" || c.Account != "") {
		bad("account, accountKey and sasToken are Azure's")
	}
	if c.Kind == Azure && c.CredentialsFile != "" {
		bad("credentialsFile is Google's")
	}
	if c.Kind == GCS && c.PartBytes%(256<<10) != 0 {
		bad("parts of %d bytes are not a multiple of 256 KiB", c.PartBytes)
	}
	if len(errs) > 0 {
		return failure.Wrap(failure.Config, errors.Join(errs...), "%s", c)
	}
	return nil
}

// Client reaches the buckets of one Config. It is safe for use by several
// goroutines.
type Client struct {
	cfg   Config
	web   *http.Client
	auth  authorizer
	api   api
	clock clock.Clock
	// slots bounds the parts that are being uploaded, over all files.
	slots chan struct{}
}

// authorizer adds credentials to a request that is about to be sent, or to be
// sent again.
type authorizer interface {
	authorize(ctx context.Context, r *http.Request) error
	// refused says that the store did not accept what was added; another try is
	// of use where it reports true.
	refused() bool
}

type anonymous struct{}

func (anonymous) authorize(context.Context, *http.Request) error { return nil }
func (anonymous) refused() bool                                  { return false }

// api is what differs between the stores.
type api interface {
	put(ctx context.Context, w write) error
	// get reads an object, whole where rng is nil. version, if given, must still
	// be its own.
	get(ctx context.Context, l Location, rng *span, version string) (object, error)
	head(ctx context.Context, l Location) (Info, error)
	list(ctx context.Context, l Location, prefix string, visit func(key string, i Info) error) error
	remove(ctx context.Context, l Location) error
	begin(ctx context.Context, w write) upload
}

// span is [from, end); a negative from is a suffix of -from bytes.
type span struct{ from, end int64 }

func (s *span) header() string {
	if s.from < 0 {
		return fmt.Sprintf("bytes=%d", s.from)
	}
	return fmt.Sprintf("bytes=%d-%d", s.from, s.end-1)
}

// upload is a file that is sent in parts. It is not there before complete, and
// abort gives up what was sent.
type upload interface {
	part(data []byte, last bool) error
	complete() error
	abort()
}

// write is one object on its way.
type write struct {
	at    Location
	data  []byte
	nonce string
	// once makes it conditional on there being nothing.
	once bool
}

// object is an object that was read, whole or in part.
type object struct {
	data    []byte
	nonce   string
	version string
	size    int64 // of the whole object
	first   int64 // where data begins in it
}

// Info is what a store says of an object without reading it.
type Info struct {
	Size     int64
	Modified time.Time
	nonce    string
}

// Open makes a client. Nobody is asked; the first request shows whether the
// store can be reached.
func Open(ctx context.Context, cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.PartBytes = cmp.Or(cfg.PartBytes, partBytesDefault)
	cfg.BackOffMax = cmp.Or(cfg.BackOffMax, backOffMax)
	c := &Client{cfg: cfg, clock: cfg.Clock, slots: make(chan struct{}, partsInFlight)}
	if c.clock == nil {
		c.clock = clock.System{}
	}
	roots, err := authorities(cfg.CAFile)
	if err != nil {
		return nil, err
	}
	d := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: d.DialContext, TLSHandshakeTimeout: dialTimeout, ResponseHeaderTimeout: headerTimeout,
		IdleConnTimeout: 90 * time.Second, MaxIdleConns: connectionsIdleMax, MaxIdleConnsPerHost: connectionsIdleMax,
		ForceAttemptHTTP2: true, DisableCompression: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	}
	// A redirect would carry a signed request somewhere else.
	c.web = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if cfg.Kind == GCS {
		c.auth, err = googleAuth(ctx, cfg)
		c.api = &gcs{c}
	} else {
		c.auth = azureAuth(cfg, c.clock)
		c.api = &azure{c}
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

func authorities(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file) //nolint:gosec // the path is the user's own
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "caFile of a store")
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, failure.New(failure.Config, "caFile %s holds no certificate", file).WithHint("it has to be a PEM file")
	}
	return roots, nil
}

// Stores finds the client of a location among several Configs, opening each
// once. A bucket without a Config is reached with the default credentials.
type Stores struct {
	configs map[string]Config

	mu   sync.Mutex
	open map[string]*Client
}

func (c Config) key() string { return string(c.Kind) + "/" + c.Bucket + c.Account }

// NewStores checks the settings. At most one of them is for all buckets of a
// kind.
func NewStores(configs ...Config) (*Stores, error) {
	s := &Stores{configs: map[string]Config{}, open: map[string]*Client{}}
	for _, c := range configs {
		if _, twice := s.configs[c.key()]; twice {
			return nil, failure.New(failure.Config, "two settings for the same store: %s", c)
		}
		if err := c.Validate(); err != nil {
			return nil, err
		}
		s.configs[c.key()] = c
	}
	return s, nil
}

// Config is what a location is reached by.
func (s *Stores) Config(at Location) Config {
	own := Config{Kind: at.Kind, Bucket: at.Bucket}
	if at.Kind == Azure {
		own = Config{Kind: at.Kind, Account: at.Account()}
	}
	if cfg, ok := s.configs[own.key()]; ok {
		return cfg
	}
	if cfg, ok := s.configs[Config{Kind: at.Kind}.key()]; ok {
		return cfg
	}
	return Config{Kind: at.Kind}
}

// Client gives the client of a location.
func (s *Stores) Client(ctx context.Context, at Location) (*Client, error) {
	cfg := s.Config(at)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.open[cfg.key()]; ok {
		return c, nil
	}
	c, err := Open(context.WithoutCancel(ctx), cfg)
	if err != nil {
		return nil, err
	}
	s.open[cfg.key()] = c
	return c, nil
}

// endpoint is a base URL without a slash at its end.
func endpoint(s string) string { return strings.TrimRight(s, "/") }
