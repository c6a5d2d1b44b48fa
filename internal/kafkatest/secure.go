package kafkatest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// securePorts are the ports of a secure broker, the plaintext one first.
const securePorts = 6

// Users of a secure broker; both have the same password.
const (
	User  = "weir"  // may do everything
	Guest = "guest" // may do nothing
)

// Secure is a Broker that also listens with TLS and log-in. The methods of
// Broker use its plaintext port.
type Secure struct {
	*Broker
	// TLS, MTLS, Login and LoginTLS are addresses: TLS, TLS with a client
	// certificate, SASL without TLS and SASL over TLS.
	TLS, MTLS, Login, LoginTLS string
	Password                   string
	// Files in PEM: the authority, one that signed nothing, the client's.
	CA, OtherCA, ClientCert, ClientKey string
}

// StartSecure is Start for a broker with TLS and log-in; openssl is needed too.
func StartSecure(t testing.TB, extra ...string) *Secure {
	t.Helper()
	b := launch(t, true, extra)
	at := func(n int) string { return fmt.Sprintf("127.0.0.1:%d", b.port+n) }
	s := &Secure{Broker: b, TLS: at(2), MTLS: at(3), Login: at(4), LoginTLS: at(5)}
	s.CA, s.OtherCA, s.ClientCert, s.ClientKey = s.file("ca.pem"), s.file("other-ca.pem"), s.file("client.pem"), s.file("client.key")
	password, err := os.ReadFile(s.file("password"))
	if err != nil {
		t.Fatalf("password of the test's Kafka: %v", err)
	}
	s.Password = string(password)
	return s
}

func (s *Secure) file(name string) string { return filepath.Join(s.dir, "secure", name) }

// NewClientCert makes another client certificate that the broker trusts. The
// name has to be client2 to have client's permissions.
func (s *Secure) NewClientCert(name string) (cert, key string) {
	s.t.Helper()
	if out, err := s.script("client", name); err != nil {
		s.t.Fatalf("make a client certificate: %v\n%s", err, out)
	}
	return s.file(name + ".pem"), s.file(name + ".key")
}
