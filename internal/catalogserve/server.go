package catalogserve

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
)

const (
	// DefaultListen is where the catalog listens.
	DefaultListen = "127.0.0.1:8181"
	// minTokenBytes is the least length of a token that others may guess at.
	minTokenBytes = 16
	// headerTimeout and idleTimeout bound a client that says nothing.
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	// answerTimeout bounds one answer.
	answerTimeout = time.Minute
	// stopTimeout bounds the answers under way when the server is stopped.
	stopTimeout = 5 * time.Second
	// separator stands between the levels of a namespace in a path, as the
	// protocol has it.
	separator = "\x1f"
)

// Tables is what is served: a lake.Catalog.
type Tables interface {
	ListNamespaces(ctx context.Context, parent table.Identifier) ([]table.Identifier, error)
	NamespaceExists(ctx context.Context, namespace table.Identifier) (bool, error)
	NamespaceProperties(ctx context.Context, namespace table.Identifier) (iceberg.Properties, error)
	ListTables(ctx context.Context, namespace table.Identifier) ([]table.Identifier, error)
	MetadataLocation(ctx context.Context, ident table.Identifier) (string, error)
	Metadata(ctx context.Context, ident table.Identifier) (location string, body []byte, err error)
}

// Options make a Server.
type Options struct {
	Tables Tables
	// Listen is host:port; port 0 takes a free one. Empty is DefaultListen.
	Listen string
	// Token is asked of every client as a bearer token; empty asks nobody. An
	// address that is not a loopback one needs it.
	Token  string
	Logger *slog.Logger
}

// Server answers until it is stopped.
type Server struct {
	listener net.Listener
	http     *http.Server
}

// Listen opens the socket.
func Listen(o Options) (*Server, error) {
	if o.Listen == "" {
		o.Listen = DefaultListen
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if err := checkListen(o); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "catalog: listen on %s", o.Listen).WithHint("choose another address with --listen")
	}
	return &Server{listener: l, http: &http.Server{
		Handler:           http.TimeoutHandler(Handler(o), answerTimeout, `{"error":{"message":"the catalog took too long","type":"ServiceUnavailableException","code":503}}`),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		ErrorLog:          slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug),
	}}, nil
}

// URL is what clients are given.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() }

// Serve answers until ctx ends.
func (s *Server) Serve(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- s.http.Serve(s.listener) }()
	select {
	case err := <-done:
		return failure.Wrap(failure.Runtime, err, "catalog: serve on %s", s.listener.Addr())
	case <-ctx.Done():
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if err := s.http.Shutdown(stop); err != nil {
			return errors.Join(err, s.http.Close())
		}
		return nil
	}
}

func checkListen(o Options) error {
	host, port, err := net.SplitHostPort(o.Listen)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	switch {
	case err != nil:
		return failure.New(failure.Config, "catalog: %q is not an address", o.Listen).WithHint("give host:port, such as %s", DefaultListen)
	case localHost(host):
		return nil
	case o.Token == "":
		return failure.New(failure.Config, "catalog: %s is open to others, who would read what every table holds and where", o.Listen).
			WithHint("listen on %s, or give --token-file with a token that clients must send", DefaultListen)
	case len(o.Token) < minTokenBytes:
		return failure.New(failure.Config, "catalog: the token is shorter than %d characters, too short for %s, which others reach", minTokenBytes, o.Listen).
			WithHint("make one with: openssl rand -hex 24")
	}
	return nil
}

// localHost reports whether a host name means this machine and nobody else can
// own it.
func localHost(host string) bool {
	host = strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// endpoints are what a client may ask for; newer clients look before they try.
var endpoints = []string{
	"GET /v1/{prefix}/namespaces",
	"GET /v1/{prefix}/namespaces/{namespace}",
	"HEAD /v1/{prefix}/namespaces/{namespace}",
	"GET /v1/{prefix}/namespaces/{namespace}/tables",
	"GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
	"HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
}

// Handler answers the requests of the REST protocol.
func Handler(o Options) http.Handler {
	s := &server{tables: o.Tables, log: o.Logger}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/config", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"defaults": map[string]string{}, "overrides": map[string]string{}, "endpoints": endpoints})
	})
	mux.HandleFunc("GET /v1/namespaces", s.namespaces)
	mux.HandleFunc("GET /v1/namespaces/{ns}", s.namespace)
	mux.HandleFunc("HEAD /v1/namespaces/{ns}", s.namespaceExists)
	mux.HandleFunc("GET /v1/namespaces/{ns}/tables", s.list)
	mux.HandleFunc("GET /v1/namespaces/{ns}/tables/{table}", s.load)
	mux.HandleFunc("HEAD /v1/namespaces/{ns}/tables/{table}", s.tableExists)
	// No views, and no reports wanted: older clients ask and send without looking.
	mux.HandleFunc("GET /v1/namespaces/{ns}/views", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"identifiers": []any{}})
	})
	mux.HandleFunc("POST /v1/namespaces/{ns}/tables/{table}/metrics", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("/", s.others)
	return guard(o, mux)
}

// guard lets in who may.
func guard(o Options, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		if o.Token == "" {
			// A web site may make its name point at 127.0.0.1 (DNS rebinding) and
			// read through the visitor's browser; the name gives it away.
			host := r.Host
			if h, _, err := net.SplitHostPort(host); err == nil {
				host = h
			}
			if !localHost(host) {
				refuse(w, http.StatusForbidden, "ForbiddenException", "this catalog answers to localhost only; to serve it under another name, start it with --token-file")
				return
			}
		} else if !knows(r, o.Token) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="weir"`)
			refuse(w, http.StatusUnauthorized, "NotAuthorizedException", "a token is wanted: the client's setting is called token")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// knows compares in a time that does not depend on where the texts differ.
func knows(r *http.Request, token string) bool {
	scheme, given, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return false
	}
	x, y := sha256.Sum256([]byte(strings.TrimSpace(given))), sha256.Sum256([]byte(token))
	return hmac.Equal(x[:], y[:])
}

type server struct {
	tables Tables
	log    *slog.Logger
}

// others refuses what is not answered: changes, and what is not there.
func (s *server) others(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		message := "this catalog is read-only: tables are written by the pipeline"
		if strings.HasSuffix(r.URL.Path, "/oauth/tokens") {
			message = "this catalog hands out no tokens: give the client none, or the one that the catalog was started with, as token"
		}
		refuse(w, http.StatusMethodNotAllowed, "UnsupportedOperationException", message)
		return
	}
	refuse(w, http.StatusNotFound, "NotFoundException", "there is no "+r.URL.Path+" here: the catalog's address ends before /v1")
}

// identifier splits a path's namespace, and adds the table if there is one.
func identifier(r *http.Request) table.Identifier {
	ident := table.Identifier(strings.Split(r.PathValue("ns"), separator))
	if t := r.PathValue("table"); t != "" {
		ident = append(ident, t)
	}
	return ident
}

func (s *server) namespaces(w http.ResponseWriter, r *http.Request) {
	var parent table.Identifier
	if p := r.URL.Query().Get("parent"); p != "" {
		// Some clients escape the separator once more.
		if u, err := url.QueryUnescape(p); err == nil {
			p = u
		}
		parent = strings.Split(p, separator)
		if !s.mustExist(w, r, parent) {
			return
		}
	}
	all, err := s.tables.ListNamespaces(r.Context(), parent)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	answer(w, map[string]any{"namespaces": nonNil(all)})
}

func (s *server) mustExist(w http.ResponseWriter, r *http.Request, namespace table.Identifier) bool {
	ok, err := s.tables.NamespaceExists(r.Context(), namespace)
	if err == nil && !ok {
		err = noNamespace(namespace)
	}
	if err != nil {
		s.fail(w, r, err)
	}
	return err == nil
}

type missing struct{ namespace table.Identifier }

func noNamespace(ns table.Identifier) error { return &missing{ns} }

func (m *missing) Error() string { return lake.Name(m.namespace) }
func (m *missing) Unwrap() error { return lake.ErrNoNamespace }

func (s *server) namespace(w http.ResponseWriter, r *http.Request) {
	ns := identifier(r)
	if !s.mustExist(w, r, ns) {
		return
	}
	props, err := s.tables.NamespaceProperties(r.Context(), ns)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if props == nil {
		props = iceberg.Properties{}
	}
	answer(w, map[string]any{"namespace": ns, "properties": props})
}

func (s *server) namespaceExists(w http.ResponseWriter, r *http.Request) {
	if s.mustExist(w, r, identifier(r)) {
		w.WriteHeader(http.StatusNoContent)
	}
}

func (s *server) list(w http.ResponseWriter, r *http.Request) {
	ns := identifier(r)
	if !s.mustExist(w, r, ns) {
		return
	}
	all, err := s.tables.ListTables(r.Context(), ns)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	type name struct {
		Namespace table.Identifier `json:"namespace"`
		Name      string           `json:"name"`
	}
	out := make([]name, 0, len(all))
	for _, ident := range all {
		out = append(out, name{ident[:len(ident)-1], ident[len(ident)-1]})
	}
	answer(w, map[string]any{"identifiers": out})
}

func (s *server) load(w http.ResponseWriter, r *http.Request) {
	location, body, err := s.tables.Metadata(r.Context(), identifier(r))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	answer(w, map[string]any{"metadata-location": location, "metadata": json.RawMessage(body), "config": map[string]string{}})
}

func (s *server) tableExists(w http.ResponseWriter, r *http.Request) {
	if _, err := s.tables.MetadataLocation(r.Context(), identifier(r)); err != nil {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// fail answers an error. What went wrong inside is logged and not told.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	name := lake.Name(identifier(r))
	var none *missing
	switch {
	case errors.As(err, &none):
		refuse(w, http.StatusNotFound, "NoSuchNamespaceException", "namespace "+none.Error()+" does not exist")
	case errors.Is(err, lake.ErrNoNamespace):
		refuse(w, http.StatusNotFound, "NoSuchNamespaceException", "namespace "+name+" does not exist")
	case errors.Is(err, lake.ErrNoTable):
		refuse(w, http.StatusNotFound, "NoSuchTableException", "table "+name+" does not exist")
	default:
		s.log.Error("catalog", "path", r.URL.Path, "error", err)
		refuse(w, http.StatusServiceUnavailable, "ServiceUnavailableException", "the catalog cannot answer now; its log says why")
	}
}

func nonNil(ids []table.Identifier) []table.Identifier {
	if ids == nil {
		return []table.Identifier{}
	}
	return ids
}

func answer(w http.ResponseWriter, doc any) {
	body, err := json.Marshal(doc)
	if err != nil {
		refuse(w, http.StatusInternalServerError, "InternalServerError", "the answer cannot be encoded")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
}

// refuse answers with the protocol's error model.
func refuse(w http.ResponseWriter, status int, kind, message string) {
	body, _ := json.Marshal(map[string]any{"error": map[string]any{"message": message, "type": kind, "code": status}})
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
