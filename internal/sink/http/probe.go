package http

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	nethttp "net/http"
	"net/url"
	"time"

	"github.com/weirlake/weir/internal/failure"
)

// probeTimeout bounds the way to the receiver.
const probeTimeout = 15 * time.Second

// probe connects to the receiver, over TLS where the URL says so, and sends
// nothing: whatever a request means to a receiver, even a HEAD may count. Behind
// a proxy it is the proxy that is connected to.
func (s *sender) probe(ctx context.Context) error {
	u, err := url.Parse(s.o.URL)
	if err != nil {
		return failure.New(failure.Config, "query %s, HTTP sink: the URL cannot be read", s.o.Query)
	}
	at, own := u, true
	if proxy, err := nethttp.ProxyFromEnvironment(&nethttp.Request{URL: u}); err == nil && proxy != nil {
		at, own = proxy, false
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var conn net.Conn
	if at.Scheme == "https" && own {
		conn, err = (&tls.Dialer{Config: s.o.TLS}).DialContext(ctx, "tcp", address(at))
	} else {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address(at))
	}
	if err == nil {
		return conn.Close()
	}
	class := failure.Unreachable
	hint := "check to.http.url, and that the receiver runs"
	var unknown *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	if errors.As(err, &unknown) || errors.As(err, &record) {
		class, hint = failure.Config, "check to.http.url and to.http.tls: the receiver's certificate is not accepted, or it does not speak TLS"
	}
	return failure.Wrap(class, err, "query %s, HTTP sink: connect to %s", s.o.Query, at.Host).WithHint("%s", hint)
}

func address(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443"}[u.Scheme]
	}
	if port == "" {
		port = "80"
	}
	return net.JoinHostPort(u.Hostname(), port)
}
