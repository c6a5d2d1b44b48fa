package lake_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/catalogtest"
)

// between stands between a client and a catalog: it may answer in its place,
// before or after the catalog has.
type between func(w http.ResponseWriter, r *http.Request, catalog http.Handler)

// says answers without asking the catalog.
func says(status int, contentType, body string) between {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func saysJSON(status int, kind string) between {
	return says(status, "application/json", fmt.Sprintf(`{"error":{"message":"hunter2","type":%q,"code":%d}}`, kind, status))
}

func saysHTML(status int) between { return says(status, "text/html", "<html>a proxy's page</html>") }

// after lets the catalog do it, and answers in its place.
func after(b between) between {
	return func(w http.ResponseWriter, r *http.Request, catalog http.Handler) {
		catalog.ServeHTTP(httptest.NewRecorder(), r)
		b(w, r, catalog)
	}
}

func cut(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }

// onlyFirst meets the first request alone.
func onlyFirst(b between) between {
	met := false
	return func(w http.ResponseWriter, r *http.Request, catalog http.Handler) {
		if met {
			catalog.ServeHTTP(w, r)
			return
		}
		met = true
		b(w, r, catalog)
	}
}

// tokens answers requests for tokens, and the rest by b.
func tokens(b between, catalog http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/oauth/tokens") {
			answerJSON(w, http.StatusOK, `{"access_token":"t","token_type":"bearer","expires_in":3600}`)
			return
		}
		b(w, r, catalog)
	})
}

func TestEachWayThatARESTCatalogCannotBeOpenedIsSaid(t *testing.T) {
	for _, tc := range []struct {
		name  string
		does  between
		class failure.Class
		want  []string // in the error: what, and the way out
	}{
		{"unknown warehouse", saysJSON(400, "BadRequestException"), failure.Config, []string{"refuses the warehouse", "check catalog.warehouse"}},
		{"unknown warehouse, as others say it", saysJSON(404, "NotFoundException"), failure.Config, []string{"refuses the warehouse", "check catalog.warehouse", "where /v1/config begins"}},
		{"wrong path", saysHTML(404), failure.Config, []string{"there is no Iceberg REST catalog (HTTP 404)", "where /v1/config begins"}},
		{"not a catalog", saysHTML(200), failure.Config, []string{"not that of an Iceberg REST catalog", "correct catalog.uri"}},
		{"unknown user", saysJSON(401, "NotAuthorizedException"), failure.Config, []string{"does not accept who we are", "check catalog.credential"}},
		{"unknown user, a proxy's page", saysHTML(401), failure.Config, []string{"does not accept who we are"}},
		{"no permission", saysJSON(403, "ForbiddenException"), failure.Config, []string{"refuses the permission", "ask the catalog's owner"}},
		{"no permission, a proxy's page", saysHTML(403), failure.Config, []string{"refuses the permission"}},
		{"broken", saysJSON(500, "InternalServerError"), failure.Unreachable, []string{"does not answer", "start it"}},
		{"no backend", saysHTML(502), failure.Unreachable, []string{"does not answer"}},
		{"overloaded", saysHTML(503), failure.Unreachable, []string{"does not answer"}},
		{"slow, says the proxy", saysHTML(504), failure.Unreachable, []string{"does not answer"}},
		{"too many requests", saysHTML(429), failure.Unreachable, []string{"does not answer"}},
		{"cut off", cut, failure.Unreachable, []string{"does not answer"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			srv := httptest.NewServer(tokens(tc.does, nil))
			defer srv.Close()
			for _, want := range tc.want {
				wrong(t, restAt(srv.URL), tc.class, want)
			}
		})
	}
}

func TestAddressesThatAreNoRESTCatalogsAreSaid(t *testing.T) {
	secured := httptest.NewUnstartedServer(http.NotFoundHandler())
	secured.Config.ErrorLog = log.New(io.Discard, "", 0)
	secured.StartTLS()
	defer secured.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	host := strings.TrimPrefix(secured.URL, "https://")
	wrong(t, restAt("ftp://x"), failure.Config, "not an http or https URL")
	wrong(t, restAt("http://weir:hunter2@x"), failure.Config, "catalog.credential")
	wrong(t, restAt("http://"+nobody(t)), failure.Unreachable, "does not answer")
	for address, want := range map[string]string{
		secured.URL: "its certificate is not trusted", "http://" + host: "there is no Iceberg REST catalog (HTTP 400)",
		strings.Replace(plain.URL, "http:", "https:", 1): "does not speak TLS",
	} {
		cfg := restAt(address)
		cfg.REST = lake.REST{}
		wrong(t, cfg, failure.Config, want)
	}
}

// TestASlowRESTCatalogIsAnOutage: it never answers, and the caller's patience ends.
func TestASlowRESTCatalogIsAnOutage(t *testing.T) {
	srv := httptest.NewServer(tokens(func(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() }, nil))
	defer srv.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := lake.Open(ctx, restAt(srv.URL)); !failure.Is(err, failure.Unreachable) || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("class %s: %v", failure.ClassOf(err), err)
	}
}

// restFront is a table of a REST catalog behind a front that can be told what to do.
type restFront struct {
	does    between
	catalog *lake.Catalog
}

func newRESTFront(t *testing.T) *restFront {
	t.Helper()
	dir := t.TempDir()
	behind := open(t, lake.Config{URI: filepath.Join(dir, "catalog.db"), Warehouse: dir})
	if _, err := behind.EnsureTable(t.Context(), events, catalogtest.Schema, catalogtest.Spec(), nil); err != nil {
		t.Fatal(err)
	}
	f := &restFront{}
	catalog := newVendor(t, behind, "")
	srv := httptest.NewServer(tokens(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if f.does == nil || !strings.Contains(r.URL.Path, "/tables") {
			next.ServeHTTP(w, r)
			return
		}
		f.does(w, r, next)
	}, catalog))
	t.Cleanup(srv.Close)
	f.catalog = open(t, restAt(srv.URL))
	return f
}

func TestEachWayThatARESTCatalogCanFailALoadIsSaid(t *testing.T) {
	f := newRESTFront(t)
	unreachable := func(err error) bool { return failure.Is(err, failure.Unreachable) && !errors.Is(err, lake.ErrNoTable) }
	config := func(err error) bool { return failure.Is(err, failure.Config) && !errors.Is(err, lake.ErrNoTable) }
	for _, tc := range []struct {
		name string
		does between
		ok   func(error) bool
		want string
	}{
		{"no table", saysJSON(404, "NoSuchTableException"), func(err error) bool { return errors.Is(err, lake.ErrNoTable) }, ""},
		{"no namespace", saysJSON(404, "NoSuchNamespaceException"), func(err error) bool { return errors.Is(err, lake.ErrNoTable) }, ""},
		{"wrong prefix, or a proxy without its backend", saysHTML(404), unreachable, "correct catalog.uri"},
		{"a page in place of a table", saysHTML(200), unreachable, "not the catalog's own"},
		{"unknown user", saysJSON(401, "NotAuthorizedException"), config, "check catalog.credential"},
		{"unknown user, a proxy's page", saysHTML(401), config, "check catalog.credential"},
		{"no permission", saysJSON(403, "ForbiddenException"), config, "ask the catalog's owner"},
		{"broken", saysJSON(500, "InternalServerError"), unreachable, "start again when it answers"},
		{"no backend", saysHTML(502), unreachable, "start again when it answers"},
		{"overloaded", saysHTML(503), unreachable, "start again when it answers"},
		{"too many requests", saysHTML(429), unreachable, "start again when it answers"},
		{"cut off", cut, unreachable, "start again when it answers"},
		{"the token has expired", onlyFirst(saysJSON(401, "AuthenticationTimeoutException")), func(err error) bool { return err == nil }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f.does = tc.does
			_, err := f.catalog.LoadTable(t.Context(), events)
			if !tc.ok(err) || !strings.Contains(fmt.Sprint(err), tc.want) || strings.Contains(fmt.Sprint(err), "a-secret") {
				t.Errorf("class %s: %v", failure.ClassOf(err), err)
			}
		})
	}
	// A table that cannot be made says the same.
	f.does = saysHTML(404)
	if _, err := f.catalog.EnsureTable(t.Context(), append(events[:1:1], "new"), catalogtest.Schema, catalogtest.Spec(), nil); !unreachable(err) {
		t.Errorf("class %s: %v", failure.ClassOf(err), err)
	}
}

// TestWhatHappensToACommitOnItsWayIsToldApart: whatever answers, an error says
// "not made" only of a commit that was not made.
func TestWhatHappensToACommitOnItsWayIsToldApart(t *testing.T) {
	f := newRESTFront(t)
	made := func(err error) bool { return err == nil }
	config := func(err error) bool { return failure.Is(err, failure.Config) }
	again := func(w http.ResponseWriter, r *http.Request, catalog http.Handler) { // a proxy that repeats the request
		body, _ := io.ReadAll(r.Body)
		for _, w := range []http.ResponseWriter{httptest.NewRecorder(), w} {
			r.Body = io.NopCloser(strings.NewReader(string(body)))
			catalog.ServeHTTP(w, r)
		}
	}
	for _, tc := range []struct {
		name    string
		does    between
		ok      func(error) bool
		applied bool
	}{
		{"nothing happens to it", func(w http.ResponseWriter, r *http.Request, next http.Handler) { next.ServeHTTP(w, r) }, made, true},
		{"500 after it", after(saysJSON(500, "CommitStateUnknownException")), unknown, true},
		{"500 before it", saysJSON(500, "CommitStateUnknownException"), unknown, false},
		{"502 after it", after(saysHTML(502)), unknown, true},
		{"502 before it", saysHTML(502), unknown, false},
		{"503 after it", after(saysHTML(503)), unknown, true},
		{"503 before it", saysHTML(503), unknown, false},
		{"504 after it", after(saysHTML(504)), unknown, true},
		{"504 before it", saysHTML(504), unknown, false},
		{"408 after it", after(saysHTML(408)), unknown, true},
		{"cut off after it", after(cut), unknown, true},
		{"cut off before it", cut, unknown, false},
		{"a page in place of the answer", after(saysHTML(200)), unknown, true},
		{"409 of its own repetition", again, made, true},
		{"409, and the table stands still", saysJSON(409, "CommitFailedException"), unknown, false},
		{"401", saysJSON(401, "NotAuthorizedException"), config, false},
		{"403", saysJSON(403, "ForbiddenException"), config, false},
		{"403, a proxy's page", saysHTML(403), config, false},
		{"400", saysJSON(400, "BadRequestException"), notMade, false},
		{"404, a proxy's page", saysHTML(404), notMade, false},
		{"404, dropped", saysJSON(404, "NoSuchTableException"), lake.IsConflict, false},
		{"429", saysHTML(429), notMade, false},
		{"the token has expired", onlyFirst(saysJSON(401, "AuthenticationTimeoutException")), made, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f.does = nil
			base, err := f.catalog.LoadTable(t.Context(), events)
			if err != nil {
				t.Fatal(err)
			}
			f.does = func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if r.Method != http.MethodPost {
					next.ServeHTTP(w, r)
					return
				}
				tc.does(w, r, next)
			}
			_, err = f.catalog.Commit(t.Context(), base, lake.Change{Properties: map[string]string{"last": tc.name}})
			if !tc.ok(err) {
				t.Errorf("class %s: %v", failure.ClassOf(err), err)
			}
			f.does = nil
			cur, err := f.catalog.LoadTable(t.Context(), events)
			if err != nil || (cur.Properties()["last"] == tc.name) != tc.applied {
				t.Errorf("applied: %v, want %v; %v", cur.Properties()["last"] == tc.name, tc.applied, err)
			}
		})
	}
}

// TestACommitThatIsGivenUpBeforeItsAnswerIsOpen: the caller's patience ends
// when the catalog has made it.
func TestACommitThatIsGivenUpBeforeItsAnswerIsOpen(t *testing.T) {
	f := newRESTFront(t)
	base, err := f.catalog.LoadTable(t.Context(), events)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f.does = after(func(_ http.ResponseWriter, r *http.Request, _ http.Handler) { cancel(); <-r.Context().Done() })
	_, err = f.catalog.Commit(ctx, base, lake.Change{Properties: map[string]string{"last": "slow"}})
	if !errors.Is(err, lake.ErrUnknown) {
		t.Errorf("class %s: %v", failure.ClassOf(err), err)
	}
	f.does = nil
	if cur, err := f.catalog.LoadTable(t.Context(), events); err != nil || cur.Properties()["last"] != "slow" {
		t.Errorf("the commit is not there: %v", err)
	}
}
