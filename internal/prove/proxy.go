package prove

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/weirlake/weir/internal/clock"
)

// disturbance is what stands between a pipeline and a server and, while it is
// switched on, does to some requests what servers and networks do.
type disturbance struct {
	on atomic.Bool
	// hits chooses requests; n counts those that came while it was on.
	hits func(n int64, r *http.Request) bool
	// do answers a request that was chosen. forward lets the server have it.
	do func(w http.ResponseWriter, r *http.Request, forward http.Handler)

	seen, done atomic.Int64
}

// proxy puts a disturbance before a server that speaks HTTP, and gives the
// address to use instead. It keeps the Host header, which signatures cover.
func (e *Env) proxy(target string, d *disturbance) (string, error) {
	to, err := url.Parse(target)
	if err != nil {
		return "", err
	}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host
			r.Out.Host = r.In.Host
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !d.on.Load() || !d.hits(d.seen.Add(1), r) {
			forward.ServeHTTP(w, r)
			return
		}
		d.done.Add(1)
		d.do(w, r, forward)
	}))
	e.cleanup = append(e.cleanup, func() {
		// A request that a disturbance holds back must not hold back the end.
		srv.CloseClientConnections()
		srv.Close()
	})
	return srv.URL, nil
}

// loseAnswer lets the server do it and breaks the connection before it answers.
func loseAnswer(_ http.ResponseWriter, r *http.Request, forward http.Handler) {
	forward.ServeHTTP(httptest.NewRecorder(), r)
	panic(http.ErrAbortHandler)
}

// errorAfter lets the server do it and answers that it has failed.
func errorAfter(status int, contentType, body string) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(w http.ResponseWriter, r *http.Request, forward http.Handler) {
		forward.ServeHTTP(httptest.NewRecorder(), r)
		answer(w, status, contentType, body)
	}
}

// refuse answers in the server's place, which never hears of it.
func refuse(status int, contentType, body string) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { answer(w, status, contentType, body) }
}

// delayed lets the server do it after a while.
func delayed(by time.Duration) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(w http.ResponseWriter, r *http.Request, forward http.Handler) {
		_ = (clock.System{}).Sleep(r.Context(), by) // a client that leaves earlier is none of its business
		forward.ServeHTTP(w, r)
	}
}

// afterTheTimeout lets the server do it when the client waits no longer.
func afterTheTimeout(w http.ResponseWriter, r *http.Request, forward http.Handler) {
	body, err := io.ReadAll(r.Body) // a connection that is read from notices its end
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	<-r.Context().Done()
	late := r.Clone(context.WithoutCancel(r.Context()))
	late.Body = io.NopCloser(bytes.NewReader(body))
	forward.ServeHTTP(httptest.NewRecorder(), late)
}

func answer(w http.ResponseWriter, status int, contentType, body string) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body) // the client may be gone
}

// front stands between a pipeline and a server that speaks a protocol of its
// own, and while it is switched on disturbs every so many-th part that a client
// sends and that holds the needle (in lower case; empty: any).
type front struct {
	on     atomic.Bool
	needle []byte
	every  int64
	// delay makes the part wait. Without one the connection is cut instead,
	// after the server has got the part where forward is set.
	delay   time.Duration
	forward bool

	seen, done atomic.Int64
}

// listen serves connections to the target until the scenario ends, and gives
// the address to use instead.
func (f *front) listen(e *Env, target string) (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	e.cleanup = append(e.cleanup, func() { _ = ln.Close() })
	go func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			go f.serve(client, target)
		}
	}()
	return ln.Addr().String(), nil
}

// serve copies both ways. It ends with the client's side; the server's side is
// read to its end, so that what the server has got is done.
func (f *front) serve(client net.Conn, target string) {
	defer client.Close()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	answers := make(chan struct{})
	go func() {
		defer close(answers)
		_, _ = io.Copy(client, server)
		_ = client.Close()
		_, _ = io.Copy(io.Discard, server)
		_ = server.Close()
	}()
	f.requests(client, server)
	_ = client.Close()
	if half, ok := server.(*net.TCPConn); ok {
		_ = half.CloseWrite()
	}
	<-answers
}

// requests copies what the client sends, until it ends or is cut.
func (f *front) requests(client, server net.Conn) {
	part := make([]byte, 64<<10)
	for {
		n, err := client.Read(part)
		if err != nil {
			return
		}
		hit := f.on.Load() && bytes.Contains(bytes.ToLower(part[:n]), f.needle) && f.seen.Add(1)%f.every == 0
		if hit {
			f.done.Add(1)
			_ = (clock.System{}).Sleep(context.Background(), f.delay)
		}
		cut := hit && f.delay == 0
		if cut && !f.forward {
			return
		}
		if _, err := server.Write(part[:n]); err != nil || cut {
			return
		}
	}
}
