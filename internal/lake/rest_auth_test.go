package lake

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"
)

func TestAnOAuthTokenIsRenewedBeforeItEnds(t *testing.T) {
	given := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given++
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"token-%d","token_type":"bearer","expires_in":300}`, given)
	}))
	defer srv.Close()
	base, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	now := &jumping{now: time.UnixMilli(1_790_000_000_000)}
	a := newRESTAuth(base, REST{Credential: "weir:hunter2"}, newRESTTransport().base)
	a.clock = now
	for _, step := range []struct {
		after time.Duration
		want  string
	}{{0, "Bearer token-1"}, {269 * time.Second, "Bearer token-1"}, {2 * time.Second, "Bearer token-2"}, {269 * time.Second, "Bearer token-2"}} {
		now.now = now.now.Add(step.after)
		if _, got, err := a.AuthHeaderWithContext(t.Context()); err != nil || got != step.want {
			t.Errorf("after %s: %s, %v; want %s", step.after, got, err, step.want)
		}
	}
}
