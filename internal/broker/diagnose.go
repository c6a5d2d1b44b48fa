package broker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirlake/weir/internal/failure"
)

// A client takes a closed connection for an outage and waits it out, for a
// broker that dies looks like that. A wrong port or a missing setting looks the
// same. So whoever meets the cluster for the first time, and gets no answer,
// asks Diagnose: it tries the layers one by one and names only what the broker
// itself has shown, never a guess.
const (
	// contactMax bounds the first try of Contact.
	contactMax = 3 * time.Second
	// probeMax bounds one connection of Diagnose, and probesMax the bootstrap
	// servers that it asks.
	probeMax  = 2 * time.Second
	probesMax = 3
	// answerMax bounds an answer to Diagnose: anything larger is no Kafka.
	answerMax = 1 << 20
)

// Contact meets the cluster once: nil where it answers a client that is
// configured like this. The error is classified where the configuration can
// never work, and plain where the cluster is merely out of reach.
func Contact(ctx context.Context, c Config) error {
	opts, err := ClientOptions(c)
	if err != nil {
		return err
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return failure.Wrap(failure.Config, err, "make a Kafka client")
	}
	defer cl.Close()
	attempt, cancel := context.WithTimeout(ctx, contactMax)
	defer cancel()
	// Not cl.Ping: it asks for ApiVersions, which needs no log-in.
	_, err = kmsg.NewPtrMetadataRequest().RequestWith(attempt, cl)
	if err == nil {
		return nil
	}
	return Explain(ctx, c, err)
}

// Explain turns an error of a first contact into one that names the setting,
// where the settings are at fault; any other error comes back as it is.
func Explain(ctx context.Context, c Config, err error) error {
	var known *failure.Error
	if err == nil || ctx.Err() != nil || errors.As(err, &known) {
		return err
	}
	if found := Diagnose(ctx, c); errors.As(found, &known) {
		return found
	}
	if Misconfigured(err) {
		return Refused(err, c)
	}
	return err
}

// Refused is a broker's own refusal, with the way out.
func Refused(err error, c Config) *failure.Error {
	out := failure.Wrap(failure.Config, err, "Kafka at %s refuses the connection as it is configured", strings.Join(c.servers(), ","))
	switch {
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		return out.WithHint("check user name, password or token, and mechanism in kafka.sasl")
	case isAuthError(err):
		return out.WithHint("give this user the rights that are missing, or check kafka.sasl")
	}
	return out.WithHint("check kafka.tls")
}

// Diagnose tells whether the cluster can ever be reached as it is configured. A
// nil error says nothing more than that nothing contradicts the configuration:
// the brokers may be down.
func Diagnose(ctx context.Context, c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	servers := c.servers()
	for _, addr := range servers[:min(len(servers), probesMax)] {
		f := c.diagnose(ctx, addr)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case f != nil:
			return f
		}
	}
	return nil
}

// diagnose returns a bare nil where nothing is found.
func (c Config) diagnose(ctx context.Context, addr string) *failure.Error {
	conn, f := c.probe(ctx, addr)
	if conn == nil {
		return f
	}
	defer conn.Close()
	if _, err := ask(conn, kmsg.NewPtrApiVersionsRequest(), 0); err != nil {
		switch {
		case c.TLS.Enabled && isAlert(err):
			return clientCertificate(err, addr, c)
		case !c.TLS.Enabled && c.speaksTLS(ctx, addr):
			return failure.New(failure.Config, "Kafka at %s speaks TLS, and this client does not", addr).
				WithHint("add kafka.tls (tls: {} trusts the system's authorities, caFile: PATH another one), or use the plaintext port")
		}
		return nil //nolint:nilerr // nothing that settings explain: the broker may be dying
	}
	if c.SASL.Mechanism == "" {
		if _, err := ask(conn, kmsg.NewPtrMetadataRequest(), 1); err == nil {
			return nil
		}
	}
	return c.diagnoseLogin(ctx, addr)
}

// connect opens a connection that closes after probeMax by itself.
func (c Config) connect(ctx context.Context, addr string) (net.Conn, error) {
	dial := c.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: probeMax}).DialContext
	}
	conn, err := dial(ctx, "tcp", addr)
	if err == nil {
		time.AfterFunc(probeMax, func() { _ = conn.Close() })
	}
	return conn, err
}

// probe connects as the client would; where it cannot, the failure says why, or
// is nil where the broker may just be down.
func (c Config) probe(ctx context.Context, addr string) (net.Conn, *failure.Error) {
	conn, err := c.connect(ctx, addr)
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // out of reach is no fault of the settings
	}
	if !c.TLS.Enabled {
		return conn, nil
	}
	conf, err := c.TLS.config()
	if err != nil {
		_ = conn.Close()
		return nil, failure.Wrap(failure.Config, err, "kafka.tls")
	}
	if conf.ServerName == "" {
		conf.ServerName, _, _ = net.SplitHostPort(addr)
	}
	secure := tls.Client(conn, conf)
	if err = secure.HandshakeContext(ctx); err == nil {
		return secure, nil
	}
	_ = conn.Close()
	switch {
	case wrongCertificate(err):
		return nil, failure.Wrap(failure.Config, err, "the certificate of Kafka at %s is not accepted", addr).
			WithHint("%s", certificateHint(err))
	case isAlert(err):
		return nil, clientCertificate(err, addr, c)
	case c.speaksPlaintext(ctx, addr):
		return nil, failure.New(failure.Config, "Kafka at %s speaks plaintext, and this client is configured for TLS", addr).
			WithHint("use the broker's TLS port in kafka.bootstrapServers, or remove kafka.tls")
	}
	return nil, nil
}

// diagnoseLogin asks which log-in the port wants.
func (c Config) diagnoseLogin(ctx context.Context, addr string) *failure.Error {
	conn, f := c.probe(ctx, addr)
	if conn == nil {
		return f
	}
	defer conn.Close()
	req := kmsg.NewPtrSASLHandshakeRequest()
	if req.Mechanism = c.SASL.Mechanism; req.Mechanism == "" {
		req.Mechanism = SASLPlain
	}
	answer, err := ask(conn, req, 1)
	if err != nil {
		return nil
	}
	resp := req.ResponseKind().(*kmsg.SASLHandshakeResponse)
	resp.Version = 1
	if resp.ReadFrom(answer) != nil {
		return nil
	}
	code := kerr.ErrorForCode(resp.ErrorCode)
	offers := strings.Join(slices.Sorted(slices.Values(resp.SupportedMechanisms)), ", ")
	if offers == "" {
		offers = req.Mechanism
	}
	switch {
	case errors.Is(code, kerr.IllegalSaslState) && c.SASL.Mechanism != "":
		return failure.New(failure.Config, "Kafka at %s does not let anybody log in on this port, and kafka.sasl is given", addr).
			WithHint("use the broker's SASL port in kafka.bootstrapServers, or remove kafka.sasl")
	case c.SASL.Mechanism == "" && (code == nil || errors.Is(code, kerr.UnsupportedSaslMechanism)):
		return failure.New(failure.Config, "Kafka at %s wants a log-in (%s), and kafka.sasl is missing", addr, offers).
			WithHint("add kafka.sasl with mechanism, username and password, or use a port without log-in")
	case errors.Is(code, kerr.UnsupportedSaslMechanism):
		return failure.New(failure.Config, "Kafka at %s does not offer the log-in %s; it offers %s", addr, c.SASL.Mechanism, offers).
			WithHint("set kafka.sasl.mechanism to one that it offers")
	}
	return nil
}

// ask sends one request that has no flexible header and returns the body of
// the answer.
func ask(conn io.ReadWriter, req kmsg.Request, version int16) ([]byte, error) {
	req.SetVersion(version)
	const id = 1
	if _, err := conn.Write(kmsg.NewRequestFormatter(kmsg.FormatterClientID(clientName)).AppendRequest(nil, req, id)); err != nil {
		return nil, err
	}
	var head [8]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return nil, err
	}
	size := int64(binary.BigEndian.Uint32(head[:4])) - 4
	if size < 0 || size > answerMax || binary.BigEndian.Uint32(head[4:]) != id {
		return nil, errors.New("the answer is not Kafka's")
	}
	body := make([]byte, size)
	_, err := io.ReadFull(conn, body)
	return body, err
}

// speaksTLS and speaksPlaintext look at the port with the other protocol.
// Nothing but a greeting is sent.
func (c Config) speaksTLS(ctx context.Context, addr string) bool {
	conn, _ := Config{Dial: c.Dial, TLS: TLS{Enabled: true, InsecureSkipVerify: true}}.greet(ctx, addr)
	if conn != nil {
		_ = conn.Close()
	}
	return conn != nil
}

func (c Config) speaksPlaintext(ctx context.Context, addr string) bool {
	conn, err := Config{Dial: c.Dial}.greet(ctx, addr)
	if err != nil {
		return false
	}
	defer conn.Close()
	_, err = ask(conn, kmsg.NewPtrApiVersionsRequest(), 0)
	return err == nil
}

// greet connects and finishes a TLS handshake where one is configured; the
// server's certificate is somebody else's question.
func (c Config) greet(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := c.connect(ctx, addr)
	if err != nil {
		return nil, err
	}
	if !c.TLS.Enabled {
		return conn, nil
	}
	secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10})
	if err := secure.HandshakeContext(ctx); err != nil && !isAlert(err) {
		_ = conn.Close()
		return nil, err
	}
	return secure, nil
}

// isAlert reports whether the peer ended a TLS handshake in TLS's own words: a
// dead broker does not.
func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

func clientCertificate(err error, addr string, c Config) *failure.Error {
	f := failure.Wrap(failure.Config, err, "Kafka at %s refuses this client's TLS connection", addr)
	if c.TLS.CertFile == "" {
		return f.WithHint("the broker wants a client certificate: set kafka.tls.certFile and keyFile")
	}
	return f.WithHint("the certificate in kafka.tls.certFile is not one that the broker trusts; check who signed it and until when it is valid")
}

// wrongCertificate tells the faults of the server's certificate.
func wrongCertificate(err error) bool {
	var verification *tls.CertificateVerificationError
	return errors.As(err, &verification)
}

func certificateHint(err error) string {
	var wrongHost x509.HostnameError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &wrongHost):
		return "use a host name that the certificate names in kafka.bootstrapServers, or set kafka.tls.serverName"
	case errors.As(err, &unknown):
		return "set kafka.tls.caFile to the PEM file of the authority that signed the broker's certificate"
	}
	return fmt.Sprintf("the broker needs another certificate, or this host another clock: %v", err)
}
