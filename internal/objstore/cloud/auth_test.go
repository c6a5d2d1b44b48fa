package cloud_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore/cloud"
)

// tokens is a server that hands out a new token each time.
type tokens struct {
	*httptest.Server
	given  atomic.Int64
	mu     sync.Mutex
	asked  []string
	refuse bool
}

func newTokens(t *testing.T) *tokens {
	t.Helper()
	k := &tokens{}
	k.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		k.mu.Lock()
		k.asked = append(k.asked, r.URL.Path+" "+r.URL.RawQuery+" "+string(body)+" "+r.Header.Get("X-Identity-Header"))
		refuse := k.refuse
		k.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if refuse {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":"invalid_client"}`)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": fmt.Sprintf("token-%d", k.given.Add(1)), "token_type": "Bearer", "expires_in": 3600})
	}))
	t.Cleanup(k.Close)
	return k
}

// forgetful takes everything until a token is not the one that it wants, and
// notes the tokens.
type forgetful struct {
	*httptest.Server
	mu     sync.Mutex
	tokens map[string]int
	names  []string
}

func newForgetful(t *testing.T, expired func(token string, r *http.Request) bool) *forgetful {
	t.Helper()
	f := &forgetful{tokens: map[string]int{}}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		f.mu.Lock()
		f.tokens[token]++
		f.names = append(f.names, r.Method+" "+r.URL.RawQuery)
		f.mu.Unlock()
		if expired(token, r) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}))
	t.Cleanup(f.Close)
	return f
}

func TestATokenThatEndsInMidUploadIsRenewedAndTheFileIsWritten(t *testing.T) {
	k := newTokens(t)
	t.Setenv("AZURE_AUTHORITY_HOST", k.URL)
	t.Setenv("AZURE_TENANT_ID", "tenant")
	t.Setenv("AZURE_CLIENT_ID", "weir")
	t.Setenv("AZURE_CLIENT_SECRET", "hunter2")
	srv := newForgetful(t, func(token string, r *http.Request) bool {
		return token == "token-1" && r.URL.Query().Get("comp") == "blocklist"
	})
	c, err := cloud.Open(t.Context(), cloud.Config{Kind: cloud.Azure, Account: "a", Endpoint: srv.URL, PartBytes: partBytes, BackOffMax: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	at := cloud.Location{Kind: cloud.Azure, Bucket: "c@a.dfs.core.windows.net", Key: "k"}
	if err := c.Write(t.Context(), at, make([]byte, 3*partBytes)); err != nil {
		t.Fatal(err)
	}
	if srv.tokens["token-1"] != 4 || srv.tokens["token-2"] != 1 || len(srv.tokens) != 2 {
		t.Errorf("requests by token: %v", srv.tokens)
	}
	if !strings.Contains(k.asked[0], "/tenant/oauth2/v2.0/token") || !strings.Contains(k.asked[0], "client_secret=hunter2") || !strings.Contains(k.asked[0], "storage.azure.com") {
		t.Errorf("Entra ID was asked %q", k.asked[0])
	}
}

func TestAzureTakesTheIdentityThatTheEnvironmentGives(t *testing.T) {
	srv := newForgetful(t, func(string, *http.Request) bool { return false })
	at := cloud.Location{Kind: cloud.Azure, Bucket: "c@a.dfs.core.windows.net", Key: "k"}
	write := func(t *testing.T, change func(*cloud.Config)) error {
		t.Helper()
		cfg := cloud.Config{Kind: cloud.Azure, Account: "a", Endpoint: srv.URL, BackOffMax: time.Millisecond}
		if change != nil {
			change(&cfg)
		}
		c, err := cloud.Open(t.Context(), cfg)
		if err != nil {
			return err
		}
		return c.Write(t.Context(), at, []byte("v"))
	}
	t.Run("workload", func(t *testing.T) {
		k := newTokens(t)
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte("federated\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("AZURE_AUTHORITY_HOST", k.URL)
		t.Setenv("AZURE_TENANT_ID", "tenant")
		t.Setenv("AZURE_CLIENT_ID", "weir")
		t.Setenv("AZURE_FEDERATED_TOKEN_FILE", file)
		if err := write(t, nil); err != nil || !strings.Contains(k.asked[0], "client_assertion=federated") {
			t.Errorf("%v, asked %q", err, k.asked)
		}
	})
	t.Run("managed identity", func(t *testing.T) {
		k := newTokens(t)
		t.Setenv("IDENTITY_ENDPOINT", k.URL+"/msi/token")
		t.Setenv("IDENTITY_HEADER", "secret-header")
		t.Setenv("AZURE_CLIENT_ID", "the-identity")
		if err := write(t, nil); err != nil || !strings.Contains(k.asked[0], "resource=https%3A%2F%2Fstorage.azure.com%2F") ||
			!strings.Contains(k.asked[0], "client_id=the-identity") || !strings.Contains(k.asked[0], "secret-header") {
			t.Errorf("%v, asked %q", err, k.asked)
		}
	})
	t.Run("refused", func(t *testing.T) {
		k := newTokens(t)
		k.refuse = true
		t.Setenv("IDENTITY_ENDPOINT", k.URL)
		if err := write(t, nil); !failure.Is(err, failure.Config) || len(k.asked) != 1 {
			t.Errorf("%v after %d questions", err, len(k.asked))
		}
	})
	t.Run("shared access signature", func(t *testing.T) {
		before := len(srv.names)
		if err := write(t, func(c *cloud.Config) { c.SASToken = "?sv=1&sig=abc%2B" }); err != nil || !strings.HasSuffix(srv.names[before], "sv=1&sig=abc%2B") {
			t.Errorf("%v, requests %v", err, srv.names[before:])
		}
	})
	t.Run("a signature is in no error", func(t *testing.T) {
		err := write(t, func(c *cloud.Config) { c.SASToken, c.Endpoint = "sig=planted-secret", "http://127.0.0.1:1" })
		if err == nil || strings.Contains(fmt.Sprintf("%v %+v", err, err), "planted-secret") {
			t.Errorf("%v", err)
		}
	})
}

func TestAServiceAccountSignsForItsTokenAndARefusedOneIsRenewed(t *testing.T) {
	k := newTokens(t)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "weir@test", "private_key_id": "1", "token_uri": k.URL + "/token",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key.json")
	if err := os.WriteFile(file, doc, 0o600); err != nil {
		t.Fatal(err)
	}
	srv := newForgetful(t, func(token string, _ *http.Request) bool { return token == "token-1" })
	c, err := cloud.Open(t.Context(), cloud.Config{Kind: cloud.GCS, Endpoint: srv.URL, CredentialsFile: file, BackOffMax: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Write(t.Context(), cloud.Location{Kind: cloud.GCS, Bucket: "b", Key: "k"}, []byte("v")); err != nil {
		t.Fatal(err)
	}
	if srv.tokens["token-1"] != 1 || srv.tokens["token-2"] != 1 || !strings.Contains(k.asked[0], "assertion=") {
		t.Errorf("requests by token: %v; asked %q", srv.tokens, k.asked)
	}
	// Without any credentials it is said so, at once.
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", filepath.Join(t.TempDir(), "none.json"))
	c, err = cloud.Open(t.Context(), cloud.Config{Kind: cloud.GCS, Endpoint: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Write(t.Context(), cloud.Location{Kind: cloud.GCS, Bucket: "b", Key: "k"}, nil); !failure.Is(err, failure.Config) {
		t.Errorf("no credentials: %v", err)
	}
}

func TestStoresThatIgnoreConditionsAreRefused(t *testing.T) {
	// Everything is taken, nothing is looked at, and nothing is kept but the body.
	for kind, at := range map[cloud.Kind]cloud.Location{
		cloud.GCS: {Kind: cloud.GCS, Bucket: "b"}, cloud.Azure: {Kind: cloud.Azure, Bucket: "c@a.dfs.core.windows.net"},
	} {
		var mu sync.Mutex
		var last []byte
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			mu.Lock()
			defer mu.Unlock()
			switch r.Method {
			case http.MethodPut, http.MethodPost:
				last = body
				w.WriteHeader(http.StatusCreated)
			case http.MethodGet:
				_, _ = w.Write(last)
			}
		}))
		c, err := cloud.Open(t.Context(), cloud.Config{Kind: kind, Endpoint: srv.URL, Anonymous: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.NewStore(at, nil).Probe(t.Context()); !failure.Is(err, failure.Config) {
			t.Errorf("%s: %v", kind, err)
		}
		srv.Close()
	}
}

func TestSettingsPrintWithoutTheirKeys(t *testing.T) {
	c := cloud.Config{Kind: cloud.Azure, Account: "a", AccountKey: "planted-key", SASToken: "planted-sas"}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(verb, c); strings.Contains(text, "planted") {
			t.Errorf("%s shows %s", verb, text)
		}
	}
}
