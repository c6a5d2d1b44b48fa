package s3

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go/logging"

	"github.com/weirlake/weir/internal/failure"
)

const (
	// attemptsMax bounds how often one request is sent. With backOffMax between
	// them an outage of more than half a minute ends in an error, and the
	// supervisor's restart goes on from there.
	attemptsMax = 8
	backOffMax  = 10 * time.Second
	// headerTimeout bounds the wait for an answer to begin, dialTimeout that for
	// a connection.
	headerTimeout = 60 * time.Second
	dialTimeout   = 10 * time.Second
	// connectionsIdleMax is how many connections are kept per client.
	connectionsIdleMax = 64
	// defaultRegion is signed for where an endpoint of one's own needs none.
	defaultRegion = "us-east-1"
)

// Server-side encryptions.
const (
	SSES3  = "AES256"
	SSEKMS = "aws:kms"
)

// Credentials are fixed keys. They print as [redacted].
type Credentials struct{ AccessKeyID, SecretAccessKey, SessionToken string }

// Format implements fmt.Formatter: no verb shows a key.
func (Credentials) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("[redacted]")) }

// MarshalText implements encoding.TextMarshaler.
func (Credentials) MarshalText() ([]byte, error) { return []byte("[redacted]"), nil }

// IsZero reports whether no key is given.
func (c Credentials) IsZero() bool { return c == Credentials{} }

// AssumeRole asks STS for credentials of a role, with those of the chain.
type AssumeRole struct{ RoleARN, ExternalID, SessionName string }

// Config is how buckets are reached. The zero value is AWS by the SDK's default
// chain: environment, shared files, web identity, SSO, container, instance.
type Config struct {
	// Bucket limits the settings to one bucket; empty is every other one.
	Bucket string
	// Endpoint is the URL of a compatible store; empty is AWS (or the SDK's
	// AWS_ENDPOINT_URL).
	Endpoint string
	Region   string
	// PathStyle puts the bucket into the path in place of the host name.
	PathStyle bool
	// CAFile is a PEM file of authorities to trust in place of the system's.
	CAFile string
	// Credentials are fixed keys; zero takes the default chain.
	Credentials Credentials
	// AssumeRole is nil where the credentials are used as they are.
	AssumeRole *AssumeRole
	// SSE is empty, SSES3 or SSEKMS; KMSKeyID goes with SSEKMS, empty is the
	// account's own key.
	SSE      string
	KMSKeyID string

	// Provider, if set, is asked for credentials before every request whose last
	// ones have expired, in place of Credentials and the chain.
	Provider aws.CredentialsProvider
	// PartBytes, PageKeys and BackOffMax replace the defaults where they are not
	// 0. Parts below 5 MiB are refused by every real store.
	PartBytes  int
	PageKeys   int
	BackOffMax time.Duration
}

// Validate names every conflict at once.
func (c Config) Validate() error {
	var errs []error
	if c.Endpoint != "" {
		u, err := url.Parse(c.Endpoint)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil {
			errs = append(errs, errors.New("endpoint is not an http or https URL without a user"))
		}
	}
	k := c.Credentials
	if (k.AccessKeyID == "") != (k.SecretAccessKey == "") {
		errs = append(errs, errors.New("accessKeyId and secretAccessKey go together"))
	}
	if k.SessionToken != "" && k.AccessKeyID == "" {
		errs = append(errs, errors.New("sessionToken goes with accessKeyId and secretAccessKey"))
	}
	if c.SSE != "" && c.SSE != SSES3 && c.SSE != SSEKMS {
		errs = append(errs, fmt.Errorf("sse %q is neither %s nor %s", c.SSE, SSES3, SSEKMS))
	}
	if c.KMSKeyID != "" && c.SSE != SSEKMS {
		errs = append(errs, fmt.Errorf("kmsKeyId goes with sse: %s", SSEKMS))
	}
	if c.AssumeRole != nil && c.AssumeRole.RoleARN == "" {
		errs = append(errs, errors.New("assumeRole needs roleArn"))
	}
	if len(errs) > 0 {
		return failure.Wrap(failure.Config, errors.Join(errs...), "store of bucket %q", cmp.Or(c.Bucket, "*"))
	}
	return nil
}

// EndpointURL is where the store is: Endpoint, or what the SDK takes from the
// environment; empty is AWS.
func (c Config) EndpointURL() string {
	return cmp.Or(c.Endpoint, os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"))
}

// Client reaches the buckets of one Config. It is safe for use by several
// goroutines.
type Client struct {
	api       *awss3.Client
	cfg       Config
	partBytes int
	// slots bounds the parts that are being uploaded, over all files.
	slots chan struct{}
}

// Open makes a client. It asks nobody but the credential chain's own files;
// the first request shows whether the store can be reached.
func Open(ctx context.Context, cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	loaded, cache, err := load(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if loaded.Region == "" {
		if cfg.Endpoint == "" && loaded.BaseEndpoint == nil {
			return nil, failure.New(failure.Config, "no AWS region for bucket %q", cmp.Or(cfg.Bucket, "*")).
				WithHint("set region in the pipeline's stores, or AWS_REGION")
		}
		loaded.Region = defaultRegion
	}
	c := &Client{cfg: cfg, partBytes: cmp.Or(cfg.PartBytes, partBytesDefault), slots: make(chan struct{}, partsInFlight)}
	c.api = awss3.NewFromConfig(loaded, func(o *awss3.Options) {
		o.Credentials = cache
		o.UsePathStyle = cfg.PathStyle || hasNoSubdomains(cfg.Endpoint, loaded.BaseEndpoint)
		if cfg.Endpoint != "" {
			o.BaseEndpoint = &cfg.Endpoint
		}
		o.Retryer = newRetryer(cache, cmp.Or(cfg.BackOffMax, backOffMax))
		// A checksum header of our own goes with every write. The SDK's default
		// is a trailer in a chunked body, which many compatible stores refuse.
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.DisableLogOutputChecksumValidationSkipped = true
	})
	return c, nil
}

// hasNoSubdomains reports an endpoint that no bucket's name can stand in front
// of: an IP address, or this machine.
func hasNoSubdomains(endpoint string, fromEnv *string) bool {
	if endpoint == "" && fromEnv != nil {
		endpoint = *fromEnv
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		return false
	}
	return net.ParseIP(u.Hostname()) != nil || u.Hostname() == "localhost"
}

// load gives the SDK's configuration: region, credentials with one cache over
// them, and the HTTP client.
func load(ctx context.Context, cfg Config) (aws.Config, *aws.CredentialsCache, error) {
	web, err := httpClient(cfg.CAFile)
	if err != nil {
		return aws.Config{}, nil, err
	}
	options := []func(*config.LoadOptions) error{
		config.WithHTTPClient(web),
		config.WithLogger(logging.Nop{}), // errors come back as errors
	}
	if cfg.Region != "" {
		options = append(options, config.WithRegion(cfg.Region))
	}
	switch k := cfg.Credentials; {
	case cfg.Provider != nil:
		options = append(options, config.WithCredentialsProvider(cfg.Provider))
	case !k.IsZero():
		options = append(options, config.WithCredentialsProvider(
			credentials.NewStaticCredentialsProvider(k.AccessKeyID, k.SecretAccessKey, k.SessionToken)))
	}
	loaded, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return aws.Config{}, nil, failure.Wrap(failure.Config, err, "load the AWS configuration").
			WithHint("check the AWS_* variables and ~/.aws/config")
	}
	return loaded, credentialsOf(loaded, cfg.AssumeRole), nil
}

// AWS is the SDK's configuration for another service of the account that cfg
// names: the same region, credentials, role and authorities. The endpoint is that
// service's own affair.
func AWS(ctx context.Context, cfg Config) (aws.Config, error) {
	loaded, cache, err := load(ctx, cfg)
	if err != nil {
		return aws.Config{}, err
	}
	loaded.Credentials = cache
	if cfg.Endpoint != "" {
		loaded.BaseEndpoint = &cfg.Endpoint
	}
	loaded.Retryer = func() aws.Retryer { return newRetryer(cache, cmp.Or(cfg.BackOffMax, backOffMax)) }
	return loaded, nil
}

// credentialsOf is one cache over the chain: it refreshes before the expiry,
// and can be told that the store has refused what it holds.
func credentialsOf(loaded aws.Config, role *AssumeRole) *aws.CredentialsCache {
	if role != nil {
		return aws.NewCredentialsCache(stscreds.NewAssumeRoleProvider(sts.NewFromConfig(loaded), role.RoleARN, func(o *stscreds.AssumeRoleOptions) {
			o.RoleSessionName = cmp.Or(role.SessionName, "weir")
			if role.ExternalID != "" {
				o.ExternalID = &role.ExternalID
			}
		}))
	}
	if cache, ok := loaded.Credentials.(*aws.CredentialsCache); ok {
		return cache // the SDK has put one around the chain: a second would hide it
	}
	return aws.NewCredentialsCache(loaded.Credentials)
}

func httpClient(caFile string) (*awshttp.BuildableClient, error) {
	var roots *x509.CertPool
	if caFile != "" {
		pem, err := os.ReadFile(caFile) //nolint:gosec // the path is the user's own
		if err != nil {
			return nil, failure.Wrap(failure.Config, err, "caFile of a store")
		}
		roots = x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, failure.New(failure.Config, "caFile %s holds no certificate", caFile).WithHint("it has to be a PEM file")
		}
	}
	return awshttp.NewBuildableClient().
		WithDialerOptions(func(d *net.Dialer) { d.Timeout = dialTimeout }).
		WithTransportOptions(func(t *http.Transport) {
			t.ResponseHeaderTimeout = headerTimeout
			t.MaxIdleConns, t.MaxIdleConnsPerHost = connectionsIdleMax, connectionsIdleMax
			if roots != nil {
				t.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
			}
		}), nil
}

// newRetryer is the SDK's standard one, without its token bucket: a checkpoint
// must get through an outage as long as attempts are left, however many other
// requests fail meanwhile.
func newRetryer(cache *aws.CredentialsCache, backOff time.Duration) aws.Retryer {
	return retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts = attemptsMax
		o.MaxBackoff = backOff
		o.Backoff = retry.NewExponentialJitterBackoff(backOff)
		o.RateLimiter = ratelimit.None
		o.Retryables = append(o.Retryables, retry.IsErrorRetryableFunc(func(err error) aws.Ternary {
			switch codeOf(err) {
			case "ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired":
				// The next attempt asks the chain again and signs with what it
				// gives.
				cache.Invalidate()
				return aws.TrueTernary
			case "OperationAborted":
				return aws.TrueTernary
			}
			return aws.UnknownTernary
		}))
	})
}

func (c *Client) sse() types.ServerSideEncryption { return types.ServerSideEncryption(c.cfg.SSE) }

func (c *Client) kmsKey() *string {
	if c.cfg.KMSKeyID == "" {
		return nil
	}
	return &c.cfg.KMSKeyID
}
