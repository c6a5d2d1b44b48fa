package broker

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

// firstMessage is what a mechanism sends first to a broker.
func firstMessage(t *testing.T, s SASL, host string) (string, error) {
	t.Helper()
	m, err := s.mechanism()
	if err != nil {
		return "", err
	}
	_, first, err := m.Authenticate(t.Context(), host)
	return string(first), err
}

// steps is a clock that a test moves.
type steps struct {
	clock.System
	now time.Time
}

func (s *steps) Now() time.Time { return s.now }

func TestATokenOfATokenEndpointIsKeptUntilMostOfItsLifeIsOver(t *testing.T) {
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, secret, ok := r.BasicAuth()
		if err := r.ParseForm(); err != nil || !ok || id != "weir" || secret != "s%2F3cret" ||
			r.Form.Get("grant_type") != "client_credentials" || r.Form.Get("scope") != "kafka" {
			http.Error(w, `{"error":"invalid_client"}`, http.StatusUnauthorized)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": fmt.Sprintf("token-%d", asked.Add(1)), "expires_in": 100})
	}))
	defer server.Close()
	clk := &steps{now: time.Unix(1_700_000_000, 0)}
	e := &tokenEndpoint{
		o:      OAuth{TokenURL: server.URL, ClientID: "weir", ClientSecret: "s/3cret", Scope: "kafka"},
		client: server.Client(), clk: clk,
	}
	for _, step := range []struct {
		after time.Duration
		want  string
	}{{0, "token-1"}, {79 * time.Second, "token-1"}, {2 * time.Second, "token-2"}, {79 * time.Second, "token-2"}, {time.Hour, "token-3"}} {
		clk.now = clk.now.Add(step.after)
		got, err := e.token(t.Context())
		if err != nil || got != step.want {
			t.Fatalf("%s later: %q (%v), want %q", step.after, got, err, step.want)
		}
	}
	refused := &tokenEndpoint{o: OAuth{TokenURL: server.URL, ClientID: "weir", ClientSecret: "another"}, client: server.Client(), clk: clk}
	_, err := refused.token(t.Context())
	if !failure.Is(err, failure.Config) || !strings.Contains(err.Error(), "invalid_client") || strings.Contains(err.Error(), "another") {
		t.Fatalf("a refused client: %v, want a configuration error that says why and holds no secret", err)
	}
}

func TestATokenEndpointThatIsDownIsWorthAnotherTry(t *testing.T) {
	answers := []int{http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusOK}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(answers[0])
		answers = answers[1:]
		_, _ = w.Write([]byte(`{"access_token":"t","expires_in":60}`))
	}))
	defer server.Close()
	e := &tokenEndpoint{o: OAuth{TokenURL: server.URL, ClientID: "a", ClientSecret: "b"}, client: server.Client(), clk: clock.System{}}
	for range 2 {
		if _, err := e.token(t.Context()); err == nil || failure.Is(err, failure.Config) {
			t.Fatalf("%v, want an error that is not the configuration's", err)
		}
	}
	if token, err := e.token(t.Context()); err != nil || token != "t" {
		t.Fatalf("%q, %v", token, err)
	}
}

func TestATokenFileIsReadForEachLogIn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	s := SASL{Mechanism: SASLOAuth, OAuth: &OAuth{TokenFile: path, Extensions: map[string]string{"logicalCluster": "lkc-1"}}}
	if _, err := s.mechanism(); !failure.Is(err, failure.Config) {
		t.Fatalf("without the file: %v, want a configuration error", err)
	}
	if err := os.WriteFile(path, []byte("first\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := s.mechanism()
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"first", "second"} {
		if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		_, first, err := m.Authenticate(t.Context(), "h:1")
		if want := "n,,\x01auth=Bearer " + token + "\x01logicalCluster=lkc-1\x01\x01"; err != nil || string(first) != want {
			t.Fatalf("%q (%v), want %q", first, err, want)
		}
	}
}

// Only the shape: the signature is franz-go's, and nobody here is MSK.
func TestMSKIAMSignsWithTheCredentialsOfTheDefaultChain(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "planted-secret")
	t.Setenv("AWS_SESSION_TOKEN", "session")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
	host := "b-1.name.abc123.c2.kafka.eu-central-1.amazonaws.com"
	first, err := firstMessage(t, SASL{Mechanism: SASLMSKIAM}, net.JoinHostPort(host, "9098"))
	if err != nil {
		t.Fatal(err)
	}
	var payload map[string]string
	if err := json.Unmarshal([]byte(first), &payload); err != nil {
		t.Fatalf("the first message is not JSON: %v", err)
	}
	for key, want := range map[string]string{
		"version": "2020_10_22", "host": host, "action": "kafka-cluster:Connect",
		"x-amz-algorithm": "AWS4-HMAC-SHA256", "x-amz-security-token": "session", "x-amz-signedheaders": "host",
	} {
		if payload[key] != want {
			t.Errorf("%s is %q, want %q", key, payload[key], want)
		}
	}
	if c := payload["x-amz-credential"]; !strings.HasPrefix(c, "AKIDEXAMPLE/") || !strings.HasSuffix(c, "/eu-central-1/kafka-cluster/aws4_request") {
		t.Errorf("the credential's scope is %q", c)
	}
	if len(payload["x-amz-signature"]) != 64 || strings.Contains(first, "planted-secret") {
		t.Errorf("the signature is %q", payload["x-amz-signature"])
	}
}

func TestLogInSettingsThatDoNotFitTogetherAreNamedAtOnce(t *testing.T) {
	for _, tt := range []struct {
		s    SASL
		want []string
	}{
		{SASL{Mechanism: SASLOAuth, Username: "u"}, []string{"token, tokenFile or tokenUrl", "no username"}},
		{SASL{Mechanism: SASLOAuth, OAuth: &OAuth{Token: "t", TokenURL: "ftp://x"}}, []string{"exactly one", "clientId and clientSecret", "not an http"}},
		{SASL{Mechanism: SASLOAuth, OAuth: &OAuth{Token: "t", Scope: "s"}}, []string{"go with tokenUrl"}},
		{SASL{Mechanism: SASLMSKIAM, OAuth: &OAuth{Token: "t"}}, []string{"needs tls", "oauth goes with"}},
		{SASL{Mechanism: SASLPlain, Username: "u", Password: "p", AWS: &AWS{}}, []string{"aws goes with"}},
	} {
		all := strings.Join(tt.s.Faults(false), "; ")
		for _, w := range tt.want {
			if !strings.Contains(all, w) {
				t.Errorf("%s: %q does not say %q", tt.s.Mechanism, all, w)
			}
		}
	}
}

// The connection of a running client is cut after its certificates were
// replaced: it comes back with the new ones.
func TestARunningClientTakesReplacedCertificatesForNewConnections(t *testing.T) {
	dir := t.TempDir()
	conf, ca := selfSigned(t, dir)
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(conf))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	trusted, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	_, other := selfSigned(t, t.TempDir())
	wrong, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "trusted.pem")
	put := func(b []byte) {
		t.Helper()
		if err := os.WriteFile(path+".new", b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	put(wrong)
	cl := func() *kgo.Client {
		opts, err := ClientOptions(Config{BootstrapServers: c.ListenAddrs(), TLS: TLS{Enabled: true, CAFile: path}})
		if err != nil {
			t.Fatal(err)
		}
		cl, err := kgo.NewClient(append(opts, kgo.RequestRetries(0))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cl.Close)
		return cl
	}()
	if err := cl.Ping(t.Context()); !Misconfigured(err) {
		t.Fatalf("with another authority: %v, want a refusal", err)
	}
	put(trusted)
	if err := cl.Ping(t.Context()); err != nil {
		t.Fatalf("with the right authority in the same file: %v", err)
	}
}
