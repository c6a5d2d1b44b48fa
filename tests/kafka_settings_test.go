package tests

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/weirlake/weir/internal/kafkatest"
)

const settingsFile = `name: lab
catalog: {type: sql, name: weir, uri: "sqlite:%[1]s/catalog.db"}
warehouse: "%[1]s/warehouse"
checkpointLocation: "%[1]s/checkpoints"
kafka: %[2]s
ingest:
  - name: stream
    sse: {url: %[3]q}
    topic: stream
queries:
  - name: bronze
    from: {kafka: {topics: [stream], startingOffsets: earliest}}
    to: {iceberg: {table: bronze.events}}
status: {listen: none}
`

// TestWrongSettingsOfKafkaEndWithTheExitCodeThatSaysWhetherToTryAgain: whoever
// restarts a process has to know which of the two it is.
func TestWrongSettingsOfKafkaEndWithTheExitCodeThatSaysWhetherToTryAgain(t *testing.T) {
	if os.Getenv("WEIR_TEST_SECURE") == "" {
		t.Skip("waits out the minute that an outage is given, so it is part of make secure: set WEIR_TEST_SECURE=1")
	}
	weirBin(t)
	stream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	t.Cleanup(stream.Close)
	conf, ca := serverCertificate(t)
	other := otherAuthority(t)
	cluster := func(opts ...kfake.Opt) string {
		t.Helper()
		c, err := kfake.NewCluster(append(opts, kfake.NumBrokers(1))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c.ListenAddrs()[0]
	}
	plain, secure := cluster(), cluster(kfake.TLS(conf))
	login := cluster(kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-256", "u", "right"))
	// What listens and never answers, and what hangs up on everybody, may be a
	// broker that starts.
	silent, closing := front(t, false), front(t, true)
	endsWith(t, stream.URL, []wrongKafka{
		{"plaintext to TLS", fmt.Sprintf("{bootstrapServers: [%q]}", secure), exitConfig, "kafka.tls"},
		{"TLS to plaintext", fmt.Sprintf("{bootstrapServers: [%q], tls: {caFile: %q}}", plain, ca), exitConfig, "kafka.tls"},
		{"another authority", fmt.Sprintf("{bootstrapServers: [%q], tls: {caFile: %q}}", secure, other), exitConfig, "kafka.tls.caFile"},
		{"another name", fmt.Sprintf("{bootstrapServers: [%q], tls: {caFile: %q, serverName: kafka.elsewhere}}", secure, ca), exitConfig, "serverName"},
		{"no file of the authority", fmt.Sprintf("{bootstrapServers: [%q], tls: {caFile: %q}}", secure, ca+".none"), exitConfig, "no such file"},
		{"no log-in", fmt.Sprintf("{bootstrapServers: [%q]}", login), exitConfig, "kafka.sasl"},
		{"no host of that name", `{bootstrapServers: ["no-such-host.invalid:9092"]}`, exitUnreachable, "kafka.bootstrapServers"},
		{"nobody listens", `{bootstrapServers: ["127.0.0.1:1"]}`, exitUnreachable, "kafka.bootstrapServers"},
		{"who listens never answers", fmt.Sprintf("{bootstrapServers: [%q]}", silent), exitUnreachable, "kafka.bootstrapServers"},
		{"who listens hangs up", fmt.Sprintf("{bootstrapServers: [%q]}", closing), exitUnreachable, "kafka.bootstrapServers"},
		{"not host and port", `{bootstrapServers: ["nowhere"]}`, exitConfig, "bootstrapServers"},
	})
}

func TestWrongLogInsToASecuredKafkaEndWithTheExitCodeOfAFaultOfTheFile(t *testing.T) {
	if os.Getenv("WEIR_TEST_SECURE") == "" {
		t.Skip("log-ins that a real Kafka refuses are part of make secure: set WEIR_TEST_SECURE=1")
	}
	weirBin(t)
	k := kafkatest.StartSecure(t)
	at := func(addr, mechanism, user, password string) string {
		return fmt.Sprintf("{bootstrapServers: [%q], tls: {caFile: %q}, sasl: {mechanism: %s, username: %s, password: %q}}", addr, k.CA, mechanism, user, password)
	}
	endsWith(t, "http://127.0.0.1:1/stream", []wrongKafka{
		{"a wrong password", at(k.LoginTLS, "SCRAM-SHA-512", kafkatest.User, "planted-wrong"), exitConfig, "kafka.sasl"},
		{"no such user", at(k.LoginTLS, "SCRAM-SHA-512", "nobody", k.Password), exitConfig, "kafka.sasl"},
		{"another mechanism", at(k.LoginTLS, "OAUTHBEARER", kafkatest.User, k.Password), exitConfig, "oauth"},
		{"a log-in where there is none", at(k.TLS, "SCRAM-SHA-512", kafkatest.User, k.Password), exitConfig, "kafka.sasl"},
		{"a user without rights", at(k.LoginTLS, "SCRAM-SHA-512", kafkatest.Guest, k.Password), exitConfig, "rights"},
		{"no client certificate", fmt.Sprintf("{bootstrapServers: [%q], tls: {caFile: %q}}", k.MTLS, k.CA), exitConfig, "kafka.tls.certFile"},
	})
}

type wrongKafka struct {
	name, kafka string
	code        int
	want        string // in what it says
}

// endsWith runs both commands that go on until they are stopped with each of the
// settings, all at once: most of them wait.
func endsWith(t *testing.T, stream string, cases []wrongKafka) {
	t.Helper()
	type running struct {
		wrongKafka
		command string
		p       *process
	}
	var all []running
	for _, c := range cases {
		for _, command := range []string{"run", "ingest"} {
			dir := t.TempDir()
			file := filepath.Join(dir, "pipeline.yaml")
			if err := os.WriteFile(file, fmt.Appendf(nil, settingsFile, dir, c.kafka, stream), 0o600); err != nil {
				t.Fatal(err)
			}
			all = append(all, running{c, command, start(t, nil, command, file)})
		}
	}
	for _, r := range all {
		code := r.p.wait()
		out, errs := r.p.out.String(), r.p.errs.String()
		if code != r.code || !strings.Contains(errs, r.want) || strings.Contains(out+errs, "planted") {
			t.Errorf("weir %s, %s: exit %d, want %d with %q and no password\n%s", r.command, r.name, code, r.code, r.want, tail(errs))
		}
	}
}

// serverCertificate is a TLS server's own, for 127.0.0.1, and the file to trust.
func serverCertificate(t *testing.T) (*tls.Config, string) {
	t.Helper()
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: s.TLS.Certificates, MinVersion: tls.VersionTLS12}, file
}

// otherAuthority is the file of an authority that has signed nothing.
func otherAuthority(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	raw := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, raw, raw, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "other.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// front is an address where somebody listens who says nothing, or hangs up.
func front(t *testing.T, hangUp bool) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		var held []net.Conn // or a collection would close them
		defer func() {
			for _, c := range held {
				_ = c.Close()
			}
		}()
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if hangUp {
				_ = c.Close()
				continue
			}
			held = append(held, c)
		}
	}()
	return ln.Addr().String()
}
