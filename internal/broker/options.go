// Package broker is how the project reaches a Kafka-compatible broker: the
// client options that every client of it shares, and the embedded broker that
// the demo and the tests run as a child process.
package broker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/failure"
)

// SASL mechanisms that ClientOptions knows.
const (
	SASLPlain    = "PLAIN"
	SASLScram256 = "SCRAM-SHA-256"
	SASLScram512 = "SCRAM-SHA-512"
	SASLOAuth    = "OAUTHBEARER"
	SASLMSKIAM   = "AWS_MSK_IAM"
)

const (
	// dialTimeout bounds one connection attempt; callers retry.
	dialTimeout = 5 * time.Second
	// maxReadBytes bounds one response. A fetch is normally far smaller; one
	// record may be as large as the broker accepts (20 MiB is tested), and
	// batches above the fetch limit are still sent whole.
	maxReadBytes = 256 << 20
	// clientName is what brokers and their metrics see where no client id is set.
	clientName = "weir"
)

// Config says how to reach a cluster. The zero value of everything but
// BootstrapServers is a plaintext connection.
type Config struct {
	// BootstrapServers are host:port pairs, comma-separated entries allowed.
	BootstrapServers []string
	// ClientID is what the broker's quotas and metrics see; default "weir".
	ClientID string
	// Rack is the client's rack (KIP-392); empty fetches from leaders.
	Rack string

	TLS  TLS
	SASL SASL

	// Dial opens connections in the place of the machine's network, where set; it
	// goes with plaintext only. A simulation has connections of its own.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// Logger takes the clients' own log at debug level; default slog.Default.
	Logger *slog.Logger
}

// TLS of the connection. Files are PEM; they are read again for a new connection
// when they have changed, so certificates can be replaced under a running client.
type TLS struct {
	Enabled bool
	// CAFile replaces the system's roots where set.
	CAFile string
	// CertFile and KeyFile are the client's certificate; both or neither.
	CertFile, KeyFile string
	// ServerName overrides the name that the server's certificate is checked for.
	ServerName string
	// InsecureSkipVerify accepts any server certificate; for tests only.
	InsecureSkipVerify bool
}

// SASL credentials; an empty Mechanism means none.
type SASL struct {
	Mechanism string
	Username  string
	Password  string
	// OAuth goes with OAUTHBEARER, AWS with AWS_MSK_IAM.
	OAuth *OAuth
	AWS   *AWS
}

// Validate names every fault of the configuration at once.
func (c Config) Validate() error {
	var faults []string
	add := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	servers := c.servers()
	if len(servers) == 0 {
		add("bootstrapServers is empty")
	}
	for _, s := range servers {
		if _, _, err := net.SplitHostPort(s); err != nil {
			add("bootstrapServers: %q is not host:port", s)
		}
	}
	if !c.TLS.Enabled && (c.TLS.CAFile != "" || c.TLS.CertFile != "" || c.TLS.KeyFile != "" || c.TLS.ServerName != "" || c.TLS.InsecureSkipVerify) {
		add("tls settings are given, but tls is not enabled")
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		add("tls needs both a client certificate and its key, or neither")
	}
	if c.TLS.Enabled && c.Dial != nil {
		add("tls and connections of one's own exclude each other")
	}
	for _, f := range c.SASL.Faults(c.TLS.Enabled) {
		add("%s", f)
	}
	if len(faults) == 0 {
		return nil
	}
	return failure.New(failure.Config, "kafka connection: %s", strings.Join(faults, "; "))
}

// ClientOptions are the options that every client of the cluster shares.
func ClientOptions(c Config) ([]kgo.Opt, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	id := c.ClientID
	if id == "" {
		id = clientName
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.servers()...),
		kgo.ClientID(id),
		kgo.SoftwareNameAndVersion(clientName, "1"),
		kgo.BrokerMaxReadBytes(maxReadBytes),
		// Client metrics are pushed to the cluster otherwise; nobody asked.
		kgo.DisableClientMetrics(),
		// A broker that dies on a connection's first request is an outage to
		// wait out. The client would otherwise take it for a missing SASL
		// setting and fail every record that waits for a producer id.
		kgo.AlwaysRetryEOF(),
	}
	log := c.Logger
	if log == nil {
		log = slog.Default()
	}
	opts = append(opts, kgo.WithLogger(clientLog{log}))
	if c.Rack != "" {
		opts = append(opts, kgo.Rack(c.Rack))
	}
	switch {
	case c.TLS.Enabled:
		files, err := newTLSFiles(c.TLS)
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.Dialer(files.dial))
	case c.Dial != nil:
		opts = append(opts, kgo.Dialer(c.Dial))
	default:
		opts = append(opts, kgo.DialTimeout(dialTimeout))
	}
	m, err := c.SASL.mechanism()
	if err != nil {
		return nil, err
	}
	if m != nil {
		opts = append(opts, kgo.SASL(m))
	}
	return opts, nil
}

func (c Config) servers() []string {
	var out []string
	for _, entry := range c.BootstrapServers {
		for _, s := range strings.Split(entry, ",") {
			if s = strings.TrimSpace(s); s != "" {
				out = append(out, s)
			}
		}
	}
	return out
}

func (t TLS) config() (*tls.Config, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, failure.Wrap(failure.Config, err, "read the tls CA file")
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, failure.New(failure.Config, "tls CA file %s holds no PEM certificate", t.CAFile)
		}
	}
	if t.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, failure.Wrap(failure.Config, err, "load the tls client certificate")
		}
		conf.Certificates = []tls.Certificate{cert}
	}
	return conf, nil
}

// Exhausted says that a connection failed because this process, or the machine,
// has no file descriptor left; nil for any other error. Waiting does not help.
func Exhausted(err error) *failure.Error {
	if !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE) {
		return nil
	}
	return failure.Wrap(failure.Runtime, err, "no connection to Kafka can be opened: too many open files").
		WithHint("raise the limit of open files (ulimit -n; LimitNOFILE of a service) and start again")
}

// Misconfigured reports whether err says that the connection can never work as
// it is configured (credentials, certificates), so that retrying is pointless.
func Misconfigured(err error) bool {
	var unknownCA x509.UnknownAuthorityError
	var wrongHost x509.HostnameError
	var invalid x509.CertificateInvalidError
	return isAuthError(err) || errors.As(err, &unknownCA) || errors.As(err, &wrongHost) || errors.As(err, &invalid)
}
