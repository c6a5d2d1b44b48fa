package s3test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// Fault is what a proxy does to one request.
type Fault int

// The faults.
const (
	Pass         Fault = iota
	SlowDown           // answer 503 SlowDown; the server does not see it
	LoseAnswer         // the server does it, and the connection breaks before the answer
	BreakBody          // the answer's body breaks off half-way
	ExpiredToken       // answer 400 ExpiredToken; the server does not see it
)

// Proxy stands between a client and a server. It keeps the Host header, which
// the signature covers.
type Proxy struct {
	*httptest.Server
	mu   sync.Mutex
	rule func(r *http.Request) Fault
	seen []*http.Request
}

// NewProxy starts a proxy on the loopback interface. rule decides what happens
// to each request, one at a time; nil lets everything pass.
func NewProxy(t testing.TB, target string, rule func(r *http.Request) Fault) *Proxy {
	t.Helper()
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{rule: rule}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host
			r.Out.Host = r.In.Host
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch p.decide(r) {
		case SlowDown:
			refuse(w, r, http.StatusServiceUnavailable, "SlowDown")
		case ExpiredToken:
			refuse(w, r, http.StatusBadRequest, "ExpiredToken")
		case LoseAnswer:
			forward.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		case BreakBody:
			rec := httptest.NewRecorder()
			forward.ServeHTTP(rec, r)
			for k, v := range rec.Header() {
				w.Header()[k] = v
			}
			w.WriteHeader(rec.Code)
			_, _ = w.Write(rec.Body.Bytes()[:rec.Body.Len()/2])
			panic(http.ErrAbortHandler)
		default:
			forward.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *Proxy) decide(r *http.Request) Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, r.Clone(r.Context()))
	if p.rule == nil {
		return Pass
	}
	return p.rule(r)
}

// Seen are the requests so far, without their bodies.
func (p *Proxy) Seen() []*http.Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*http.Request(nil), p.seen...)
}

// First makes a rule: the first n requests that match meet the fault.
func First(n int, f Fault, match func(r *http.Request) bool) func(*http.Request) Fault {
	return func(r *http.Request) Fault {
		if n == 0 || !match(r) {
			return Pass
		}
		n--
		return f
	}
}

// Method makes a matcher for one method.
func Method(m string) func(*http.Request) bool {
	return func(r *http.Request) bool { return r.Method == m }
}

// Complete matches the request that completes a multipart upload.
func Complete(r *http.Request) bool {
	return r.Method == http.MethodPost && r.URL.Query().Has("uploadId")
}

// KeyOf is the access key that a request was signed with.
func KeyOf(r *http.Request) string {
	_, rest, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	key, _, _ := strings.Cut(rest, "/")
	return key
}

func refuse(w http.ResponseWriter, r *http.Request, status int, code string) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>`+code+`</Code><Message>the test says so</Message></Error>`)
}
