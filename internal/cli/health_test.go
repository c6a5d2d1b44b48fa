package cli

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestHealthIsZeroOnlyForASuccessfulAnswer(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/livez" {
			return
		}
		http.Error(w, "stalled: bronze", http.StatusServiceUnavailable)
	}))
	defer srv.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for url, want := range map[string]struct {
		code int
		said string
	}{
		srv.URL + "/livez":  {0, "answers 200"},
		srv.URL + "/readyz": {8, "503 stalled: bronze"},
		gone.URL + "/livez": {8, "no answer from " + gone.URL},
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), []string{"health", "--url", url}, &out, &errs); code != want.code {
			t.Errorf("%s: exit %d, want %d", url, code, want.code)
		}
		if said := out.String() + errs.String(); !strings.Contains(said, want.said) {
			t.Errorf("%s: it does not say %q: %q", url, want.said, said)
		}
	}
}
