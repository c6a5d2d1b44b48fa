package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

const (
	// tokenMax bounds one question to a token endpoint, tokenBytesMax its answer.
	tokenMax      = 10 * time.Second
	tokenBytesMax = 1 << 20
	// tokenLeft is the part of a token's life in which it is replaced, so that a
	// connection never begins with one that expires on its way.
	tokenLeft = 0.2
)

// tokenEndpoint asks for tokens with the client credentials grant and keeps one
// until most of its life is over. All connections of a client share it.
type tokenEndpoint struct {
	o      OAuth
	client *http.Client
	clk    clock.Clock

	mu    sync.Mutex // one question at a time
	kept  string
	until time.Time
}

func (e *tokenEndpoint) token(ctx context.Context) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.clk.Now()
	if e.kept != "" && now.Before(e.until) {
		return e.kept, nil
	}
	token, life, err := e.ask(ctx)
	if err != nil {
		return "", err
	}
	e.kept, e.until = token, now.Add(life-time.Duration(float64(life)*tokenLeft))
	return token, nil
}

// ask makes one request (RFC 6749, section 4.4). A refusal is a fault of the
// settings; anything else is worth another try. No error holds the secret, and
// none holds the answer's body beyond the two fields that the RFC names.
func (e *tokenEndpoint) ask(ctx context.Context) (token string, life time.Duration, err error) {
	form := url.Values{"grant_type": {"client_credentials"}}
	if e.o.Scope != "" {
		form.Set("scope", e.o.Scope)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.o.TokenURL, strings.NewReader(form.Encode()))
	if err != nil {
		return "", 0, failure.Wrap(failure.Config, err, "kafka.sasl.oauth.tokenUrl")
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	req.SetBasicAuth(url.QueryEscape(e.o.ClientID), url.QueryEscape(e.o.ClientSecret))
	resp, err := e.client.Do(req)
	if err != nil {
		return "", 0, fmt.Errorf("ask the token endpoint %s: %w", e.o.TokenURL, err)
	}
	defer resp.Body.Close()
	var answer struct {
		AccessToken string  `json:"access_token"`
		ExpiresIn   float64 `json:"expires_in"`
		Error       string  `json:"error"`
		Description string  `json:"error_description"`
	}
	decoded := json.NewDecoder(io.LimitReader(resp.Body, tokenBytesMax)).Decode(&answer)
	switch {
	case resp.StatusCode >= 400 && resp.StatusCode < 500 && resp.StatusCode != http.StatusTooManyRequests:
		return "", 0, failure.New(failure.Config, "the token endpoint %s refuses the client %q: %s %s", e.o.TokenURL, e.o.ClientID,
			resp.Status, strings.TrimSpace(answer.Error+" "+answer.Description)).
			WithHint("check kafka.sasl.oauth: tokenUrl, clientId, clientSecret, scope")
	case resp.StatusCode != http.StatusOK:
		return "", 0, fmt.Errorf("the token endpoint %s answers %s", e.o.TokenURL, resp.Status)
	case decoded != nil || answer.AccessToken == "":
		return "", 0, failure.New(failure.Config, "the token endpoint %s answers without an access_token", e.o.TokenURL).
			WithHint("check kafka.sasl.oauth.tokenUrl")
	}
	return answer.AccessToken, time.Duration(answer.ExpiresIn * float64(time.Second)), nil
}

// lazy makes a value with its first use; a failure is tried again.
type lazy[T any] struct {
	mu   sync.Mutex
	made bool
	v    T
}

func (l *lazy[T]) get(makeIt func() (T, error)) (T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.made {
		v, err := makeIt()
		if err != nil {
			return v, err
		}
		l.v, l.made = v, true
	}
	return l.v, nil
}
