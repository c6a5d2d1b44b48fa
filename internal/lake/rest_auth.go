package lake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/apache/iceberg-go/catalog/rest"

	"github.com/weirlake/weir/internal/clock"
)

const (
	// tokenEarly is how long before its end a token is renewed, at most half its life.
	tokenEarly = 30 * time.Second
	// tokenTimeout bounds one request for a token.
	tokenTimeout = 30 * time.Second
	// tokenBytesMax bounds an answer of a token endpoint.
	tokenBytesMax = 1 << 20
	// defaultScope is asked for where the configuration says none.
	defaultScope = "catalog"
)

// answer is what came back for the request under way: the library's errors do
// not tell an answer of the catalog from one of something in between, nor a
// request that was never sent from one whose answer was lost.
type answer struct {
	status      int // 0: no answer
	contentType string
}

type answerKey struct{}

func withAnswer(ctx context.Context) (context.Context, *answer) {
	a := &answer{}
	return context.WithValue(ctx, answerKey{}, a), a
}

func (a *answer) json() bool {
	mt, _, err := mime.ParseMediaType(a.contentType)
	return err == nil && (mt == "application/json" || strings.HasSuffix(mt, "+json"))
}

// typed adds what the status says to an error: of a proxy's page the library
// says nothing but that it could not read it.
func (a *answer) typed(err error) error {
	says := map[int]error{http.StatusUnauthorized: rest.ErrUnauthorized, http.StatusForbidden: rest.ErrForbidden}[a.status]
	if says == nil || errors.Is(err, says) {
		return err
	}
	return fmt.Errorf("%w: %w", says, err)
}

// refused reports that the request was certainly not carried out: it was never
// sent, or the server turned it down before it did anything.
func (a *answer) refused(err error) bool {
	switch a.status {
	case 0:
		var op *net.OpError
		var oauth *oauthError
		return errors.As(err, &oauth) || (errors.As(err, &op) && op.Op == "dial")
	case http.StatusRequestTimeout:
		return false
	case http.StatusNotImplemented:
		return true
	}
	return a.status >= 400 && a.status < 500
}

// restTransport notes the answers and renews a token that the server does not
// accept any more.
type restTransport struct {
	base *http.Transport
	auth *restAuth
}

// RoundTrip implements http.RoundTripper.
func (t *restTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := t.base.RoundTrip(r)
	if err == nil && res.StatusCode == http.StatusUnauthorized && t.auth != nil && t.auth.renewable() {
		// Turned away at the door, so it was not carried out: once more with a
		// new token. A server that was restarted may not know the old one.
		if again, ok := t.again(r); ok {
			_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, tokenBytesMax))
			_ = res.Body.Close()
			res, err = t.base.RoundTrip(again)
		}
	}
	if a, ok := r.Context().Value(answerKey{}).(*answer); ok {
		*a = answer{}
		if err == nil {
			*a = answer{status: res.StatusCode, contentType: res.Header.Get("Content-Type")}
		}
	}
	return res, err
}

// again is the request with a new token.
func (t *restTransport) again(r *http.Request) (*http.Request, bool) {
	t.auth.drop(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	_, header, err := t.auth.AuthHeaderWithContext(r.Context())
	if err != nil {
		return nil, false
	}
	out := r.Clone(r.Context())
	if r.Body != nil && r.Body != http.NoBody {
		if r.GetBody == nil {
			return nil, false
		}
		if out.Body, err = r.GetBody(); err != nil {
			return nil, false
		}
	}
	out.Header.Set("Authorization", header)
	return out, true
}

// restAuth gives the bearer token: a fixed one, or one from client credentials.
type restAuth struct {
	client   *http.Client
	endpoint string
	id       string
	secret   string
	scope    string
	clock    clock.Clock

	mu    sync.Mutex
	token string
	until time.Time // when to renew it; zero: no end is known
}

var _ rest.ContextAuthManager = (*restAuth)(nil)

// newRESTAuth is nil where nothing is to be sent.
func newRESTAuth(base *url.URL, r REST, transport *http.Transport) *restAuth {
	a := &restAuth{client: &http.Client{Transport: transport, Timeout: tokenTimeout}, scope: r.Scope, clock: clock.System{}}
	switch {
	case r.Token != "":
		a.token = r.Token
		return a
	case r.Credential == "":
		return nil
	}
	id, secret, found := strings.Cut(r.Credential, ":")
	if !found {
		id, secret = "", r.Credential
	}
	a.id, a.secret = id, secret
	a.endpoint = r.OAuth2ServerURI
	if a.endpoint == "" {
		a.endpoint = base.JoinPath("v1/oauth/tokens").String()
	}
	if a.scope == "" {
		a.scope = defaultScope
	}
	return a
}

// renewable reports whether another token can be had.
func (a *restAuth) renewable() bool { return a.secret != "" }

// drop forgets the token, unless it was renewed already.
func (a *restAuth) drop(token string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.token == token {
		a.token = ""
	}
}

// AuthHeader implements rest.AuthManager.
func (a *restAuth) AuthHeader() (string, string, error) {
	return a.AuthHeaderWithContext(context.Background())
}

// AuthHeaderWithContext implements rest.ContextAuthManager.
func (a *restAuth) AuthHeaderWithContext(ctx context.Context) (string, string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.renewable() && (a.token == "" || (!a.until.IsZero() && a.clock.Now().After(a.until))) {
		if err := a.renew(ctx); err != nil {
			return "", "", err
		}
	}
	return "Authorization", "Bearer " + a.token, nil
}

// oauthError is a token that could not be had. Its text holds no secret.
type oauthError struct {
	endpoint string
	status   int
	code     string // OAuth2's own, such as invalid_client
	cause    error
}

func (e *oauthError) Error() string {
	switch {
	case e.cause != nil:
		return fmt.Sprintf("no token from %s: %v", e.endpoint, e.cause)
	case e.code != "":
		return fmt.Sprintf("no token from %s: %s (HTTP %d)", e.endpoint, e.code, e.status)
	default:
		return fmt.Sprintf("no token from %s: HTTP %d", e.endpoint, e.status)
	}
}

func (e *oauthError) Unwrap() error { return e.cause }

// refused reports that asking again is no use.
func (e *oauthError) refused() bool {
	return e.status >= 400 && e.status < 500 && e.status != http.StatusTooManyRequests && e.status != http.StatusRequestTimeout
}

// renew asks for a token (RFC 6749, section 4.4), with the client's credentials
// in the form, where the REST catalogs' own endpoint expects them.
func (a *restAuth) renew(ctx context.Context) error {
	shown := a.endpoint
	if u, err := url.Parse(a.endpoint); err == nil {
		shown = u.Redacted()
	}
	form := url.Values{"grant_type": {"client_credentials"}, "client_secret": {a.secret}, "scope": {a.scope}}
	if a.id != "" {
		form.Set("client_id", a.id)
	}
	// The answer that the caller's context notes is the catalog's, not this one.
	ctx = context.WithValue(ctx, answerKey{}, nil)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.endpoint, strings.NewReader(form.Encode()))
	if err != nil {
		return &oauthError{endpoint: shown, cause: err}
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	res, err := a.client.Do(req)
	if err != nil {
		return &oauthError{endpoint: shown, cause: err}
	}
	defer res.Body.Close()
	var doc struct {
		Token     string          `json:"access_token"`
		ExpiresIn json.Number     `json:"expires_in"`
		Error     json.RawMessage `json:"error"`
	}
	err = json.NewDecoder(io.LimitReader(res.Body, tokenBytesMax)).Decode(&doc)
	if res.StatusCode != http.StatusOK {
		e := &oauthError{endpoint: shown, status: res.StatusCode}
		_ = json.Unmarshal(doc.Error, &e.code)
		return e
	}
	if err != nil || doc.Token == "" {
		return &oauthError{endpoint: shown, status: res.StatusCode, code: "the answer holds no access_token"}
	}
	a.token, a.until = doc.Token, time.Time{}
	if n, err := doc.ExpiresIn.Int64(); err == nil && n > 0 {
		life := time.Duration(n) * time.Second
		a.until = a.clock.Now().Add(life - min(tokenEarly, life/2))
	}
	return nil
}
