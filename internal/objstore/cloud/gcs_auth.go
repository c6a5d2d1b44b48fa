package cloud

import (
	"context"
	"errors"
	"net/http"
	"os"
	"sync"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"github.com/weirlake/weir/internal/failure"
)

const googleScope = "https://www.googleapis.com/auth/devstorage.read_write"

// googleTokens are bearer tokens of Google's credentials, renewed before their
// end, and where the store refuses one.
type googleTokens struct {
	fresh func() (oauth2.TokenSource, error)

	mu     sync.Mutex
	source oauth2.TokenSource
}

func googleAuth(ctx context.Context, cfg Config) (authorizer, error) {
	if cfg.Anonymous {
		return anonymous{}, nil
	}
	ctx = context.WithoutCancel(ctx)
	t := &googleTokens{}
	if cfg.CredentialsFile == "" {
		t.fresh = func() (oauth2.TokenSource, error) {
			c, err := google.FindDefaultCredentials(ctx, googleScope)
			if err != nil {
				return nil, err
			}
			return c.TokenSource, nil
		}
		return t, nil
	}
	data, err := os.ReadFile(cfg.CredentialsFile)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "credentialsFile of a store")
	}
	t.fresh = func() (oauth2.TokenSource, error) {
		c, err := google.CredentialsFromJSON(ctx, data, googleScope) //nolint:staticcheck // the file is the operator's own
		if err != nil {
			return nil, errors.New("credentialsFile is not one of Google's JSON files") // the library's word may quote it
		}
		return c.TokenSource, nil
	}
	if t.source, err = t.fresh(); err != nil {
		return nil, failure.Wrap(failure.Config, err, "credentialsFile %s", cfg.CredentialsFile)
	}
	return t, nil
}

func (t *googleTokens) authorize(_ context.Context, r *http.Request) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.source == nil {
		s, err := t.fresh()
		if err != nil {
			return &authError{cause: err, final: true}
		}
		t.source = s
	}
	token, err := t.source.Token()
	if err != nil {
		var re *oauth2.RetrieveError
		final := errors.As(err, &re) && re.Response != nil && re.Response.StatusCode >= 400 && re.Response.StatusCode < 500 &&
			re.Response.StatusCode != http.StatusTooManyRequests
		return &authError{cause: err, final: final}
	}
	token.SetAuthHeader(r)
	return nil
}

func (t *googleTokens) refused() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.source = nil
	return true
}
