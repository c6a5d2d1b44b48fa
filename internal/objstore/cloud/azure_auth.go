package cloud

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirlake/weir/internal/clock"
)

const (
	azureResource  = "https://storage.azure.com/"
	azureAuthority = "https://login.microsoftonline.com"
	// azureInstance is where a virtual machine asks for its identity's tokens.
	azureInstance = "http://169.254.169.254/metadata/identity/oauth2/token"
	// tokenEarly is how long before its end a token is renewed.
	tokenEarly    = 5 * time.Minute
	tokenTimeout  = 30 * time.Second
	tokenBytesMax = 1 << 20
)

func azureAuth(cfg Config, clk clock.Clock) authorizer {
	sas, key := cfg.SASToken, cfg.AccountKey
	if sas == "" && key == "" && !cfg.Anonymous {
		// The Azure CLI's own variables.
		sas, key = os.Getenv("AZURE_STORAGE_SAS_TOKEN"), os.Getenv("AZURE_STORAGE_KEY")
	}
	switch {
	case cfg.Anonymous:
		return anonymous{}
	case key != "":
		raw, err := base64.StdEncoding.DecodeString(key)
		return &sharedKey{account: cfg.Account, key: raw, bad: err != nil, clock: clk}
	case sas != "":
		return sharedAccess(strings.TrimPrefix(sas, "?"))
	}
	return &entra{clock: clk, web: &http.Client{Timeout: tokenTimeout}}
}

// sharedAccess is a SAS token: it stands in each URL.
type sharedAccess string

func (s sharedAccess) authorize(_ context.Context, r *http.Request) error {
	if r.URL.RawQuery != "" {
		r.URL.RawQuery += "&"
	}
	r.URL.RawQuery += string(s)
	return nil
}

func (sharedAccess) refused() bool { return false }

// sharedKey signs each request with the account's key.
type sharedKey struct {
	account string
	key     []byte
	bad     bool
	clock   clock.Clock
}

func (s *sharedKey) refused() bool { return false }

func (s *sharedKey) authorize(_ context.Context, r *http.Request) error {
	if s.bad {
		return &authError{cause: errors.New("AZURE_STORAGE_KEY is not base64"), final: true}
	}
	account := s.account
	if account == "" {
		account, _, _ = strings.Cut(r.URL.Hostname(), ".")
	}
	r.Header.Set("X-Ms-Date", s.clock.Now().UTC().Format(http.TimeFormat))
	mac := hmac.New(sha256.New, s.key)
	_, _ = io.WriteString(mac, toSign(r, account))
	r.Header.Set("Authorization", "SharedKey "+account+":"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	return nil
}

// toSign is what a shared key signs: the method, the standard headers, Azure's
// own in order, the path and the query in order.
func toSign(r *http.Request, account string) string {
	length := ""
	if r.ContentLength > 0 {
		length = strconv.FormatInt(r.ContentLength, 10)
	}
	h := r.Header.Get
	lines := []string{r.Method, h("Content-Encoding"), h("Content-Language"), length, h("Content-Md5"), h("Content-Type"), "", // no Date: x-ms-date is there
		h("If-Modified-Since"), h("If-Match"), h("If-None-Match"), h("If-Unmodified-Since"), h("Range")}
	var own []string
	for k, v := range r.Header {
		if k = strings.ToLower(k); strings.HasPrefix(k, "x-ms-") {
			own = append(own, k+":"+strings.TrimSpace(strings.Join(v, ",")))
		}
	}
	slices.Sort(own)
	lines = append(lines, own...)
	lines = append(lines, "/"+account+r.URL.EscapedPath())
	var query []string
	for k, v := range r.URL.Query() {
		slices.Sort(v)
		query = append(query, strings.ToLower(k)+":"+strings.Join(v, ","))
	}
	slices.Sort(query)
	return strings.Join(append(lines, query...), "\n")
}

// entra are bearer tokens of Entra ID: of a workload (federated token), of a
// client's secret, or of the managed identity; by the SDKs' own variables.
type entra struct {
	clock clock.Clock
	web   *http.Client

	mu    sync.Mutex
	token string
	until time.Time
}

func (e *entra) refused() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.token = ""
	return true
}

func (e *entra) authorize(ctx context.Context, r *http.Request) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.token == "" || e.clock.Now().After(e.until) {
		if err := e.renew(ctx); err != nil {
			return err
		}
	}
	r.Header.Set("Authorization", "Bearer "+e.token)
	r.Header.Set("X-Ms-Date", e.clock.Now().UTC().Format(http.TimeFormat))
	return nil
}

func (e *entra) renew(ctx context.Context) error {
	req, err := e.ask(ctx)
	if err != nil {
		return &authError{cause: err, final: true}
	}
	res, err := e.web.Do(req)
	if err != nil {
		// Nobody answers at the instance's address: this is no machine of Azure's.
		return &authError{cause: withoutQuery(err), final: strings.HasPrefix(req.URL.String(), azureInstance)}
	}
	defer res.Body.Close()
	var doc struct {
		Token     string      `json:"access_token"`
		ExpiresIn json.Number `json:"expires_in"`
		Error     string      `json:"error"`
	}
	err = json.NewDecoder(io.LimitReader(res.Body, tokenBytesMax)).Decode(&doc)
	if res.StatusCode != http.StatusOK || err != nil || doc.Token == "" {
		final := res.StatusCode >= 400 && res.StatusCode < 500 && res.StatusCode != http.StatusTooManyRequests && res.StatusCode != http.StatusRequestTimeout
		return &authError{cause: fmt.Errorf("Entra ID answers HTTP %d %s", res.StatusCode, doc.Error), final: final}
	}
	life := time.Hour
	if n, err := doc.ExpiresIn.Int64(); err == nil && n > 0 {
		life = time.Duration(n) * time.Second
	}
	e.token, e.until = doc.Token, e.clock.Now().Add(life-min(tokenEarly, life/2))
	return nil
}

// ask builds the request for a token.
func (e *entra) ask(ctx context.Context) (*http.Request, error) {
	tenant, client := os.Getenv("AZURE_TENANT_ID"), os.Getenv("AZURE_CLIENT_ID")
	form := url.Values{"grant_type": {"client_credentials"}, "client_id": {client}, "scope": {azureResource + ".default"}}
	switch file, secret := os.Getenv("AZURE_FEDERATED_TOKEN_FILE"), os.Getenv("AZURE_CLIENT_SECRET"); {
	case tenant != "" && client != "" && file != "":
		token, err := os.ReadFile(file) //nolint:gosec // read each time: it is renewed by whoever wrote it
		if err != nil {
			return nil, err
		}
		form.Set("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
		form.Set("client_assertion", strings.TrimSpace(string(token)))
	case tenant != "" && client != "" && secret != "":
		form.Set("client_secret", secret)
	default:
		return e.askInstance(ctx, client)
	}
	host := strings.TrimRight(os.Getenv("AZURE_AUTHORITY_HOST"), "/")
	if host == "" {
		host = azureAuthority
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, host+"/"+url.PathEscape(tenant)+"/oauth2/v2.0/token", strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return req, nil
}

// askInstance asks the managed identity: of a container app, or of a virtual
// machine.
func (e *entra) askInstance(ctx context.Context, client string) (*http.Request, error) {
	at, version := azureInstance, "2018-02-01"
	own := os.Getenv("IDENTITY_ENDPOINT")
	if own != "" {
		at, version = own, "2019-08-01"
	}
	q := url.Values{"api-version": {version}, "resource": {azureResource}}
	if client != "" {
		q.Set("client_id", client)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at+"?"+q.Encode(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Metadata", "true")
	if own != "" {
		req.Header.Set("X-Identity-Header", os.Getenv("IDENTITY_HEADER"))
	}
	return req, nil
}
