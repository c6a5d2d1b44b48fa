package status

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strconv"
	"syscall"
	"time"

	"github.com/weirlake/weir/internal/failure"
)

// Limits of the server.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	writeTimeout      = 30 * time.Second // of everything but events and profiles
	shutdownTimeout   = 3 * time.Second
	maxHeaderBytes    = 16 << 10
	batchesDefault    = 100
	// minTokenBytes is what a token needs before it may guard an address that
	// others reach.
	minTokenBytes = 16
)

// ServeOptions say where and for whom a board is served.
type ServeOptions struct {
	// Listen is host:port; port 0 takes a free one.
	Listen string
	// FreePort takes a free port of the same host where the port is in use.
	FreePort bool
	// Token is asked of every reader, empty asks nobody. An address that is
	// not a loopback one needs it.
	Token string
	// PProf adds /debug/pprof.
	PProf  bool
	Logger *slog.Logger
}

// Server serves a board until it is closed.
type Server struct {
	board *Board
	o     ServeOptions
	guard guard
	hub   *hub
	http  *http.Server
	addr  *net.TCPAddr
	done  chan struct{}
}

// Serve opens the address and serves the board in the background. Errors are
// failure.Config: an address that is not one, that is in use, or that others
// reach without a token.
func Serve(b *Board, o ServeOptions) (*Server, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := checkListen(o); err != nil {
		return nil, err
	}
	l, err := listen(o)
	if err != nil {
		return nil, err
	}
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok || (o.Token == "" && !addr.IP.IsLoopback()) {
		_ = l.Close()
		return nil, needsToken(o.Listen)
	}
	s := &Server{board: b, o: o, addr: addr, done: make(chan struct{}), hub: newHub(b)}
	s.guard = newGuard(o.Token, addr.Port)
	s.http = &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug),
	}
	go func() {
		defer close(s.done)
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			o.Logger.Error("the status page has stopped", "error", err)
		}
	}()
	return s, nil
}

// URL is where the page is, without a token.
func (s *Server) URL() string {
	host := s.addr.IP.String()
	if s.addr.IP.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, strconv.Itoa(s.addr.Port)) + "/"
}

// Close tells the open pages that it was the last word, and ends.
func (s *Server) Close() error {
	s.hub.close()
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close()
	}
	<-s.done
	return err
}

// Handler is everything that is served, with its guards.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	limited := func(h http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			// A reader that does not read must not hold a goroutine for ever.
			_ = http.NewResponseController(w).SetWriteDeadline(s.board.o.Clock.Now().Add(writeTimeout))
			h(w, r)
		}
	}
	mux.HandleFunc("GET /{$}", limited(s.page))
	mux.HandleFunc("GET /assets/{name}", limited(s.asset))
	mux.HandleFunc("GET /events", s.hub.serve)
	mux.HandleFunc("GET /api/status", limited(s.apiStatus))
	mux.HandleFunc("GET /api/batches", limited(s.apiBatches))
	mux.HandleFunc("GET /api/jobs", limited(s.apiJobs))
	mux.HandleFunc("GET /livez", limited(s.livez))
	mux.HandleFunc("GET /readyz", limited(s.readyz))
	mux.Handle("GET /metrics", limited(s.board.metrics.handler().ServeHTTP))
	if s.o.PProf {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return s.guard.wrap(mux)
}

// checkListen refuses addresses that are not safe to open.
func checkListen(o ServeOptions) error {
	host, port, err := net.SplitHostPort(o.Listen)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return failure.New(failure.Config, "status page: %q is not an address", o.Listen).WithHint("give host:port, such as 127.0.0.1:8080, or none")
	}
	if loopback(host) {
		return nil
	}
	if o.Token == "" {
		return needsToken(o.Listen)
	}
	if len(o.Token) < minTokenBytes {
		return failure.New(failure.Config, "status page: the token is shorter than %d characters, too short for %s, which others reach", minTokenBytes, o.Listen).
			WithHint("make one with: openssl rand -hex 24")
	}
	return nil
}

func needsToken(addr string) error {
	return failure.New(failure.Config, "status page: %s is not a loopback address, and no token is set", addr).
		WithHint("set status.token in the pipeline file (or WEIR_STATUS_TOKEN), or listen on 127.0.0.1 and reach it through an SSH tunnel")
}

// loopback reports whether a host of a listen address is this machine only. An
// empty host is every interface.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func listen(o ServeOptions) (net.Listener, error) {
	l, err := net.Listen("tcp", o.Listen)
	if errors.Is(err, syscall.EADDRINUSE) && o.FreePort {
		host, _, splitErr := net.SplitHostPort(o.Listen)
		if splitErr != nil {
			return nil, fmt.Errorf("status page: %w", splitErr)
		}
		l, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, failure.Wrap(failure.Config, err, "status page").
			WithHint("another program listens at %s: choose another address with --listen or status.listen, or none", o.Listen)
	}
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "status page: listen at %s", o.Listen)
	}
	return l, nil
}
