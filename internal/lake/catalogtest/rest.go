package catalogtest

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// RESTLine stands between a client and a REST catalog, as a proxy does, and
// does to one commit or creation what proxies and networks do.
type RESTLine struct {
	armed
	server *httptest.Server
	target string
	// Intercept, if set, may answer a request itself.
	Intercept func(w http.ResponseWriter, r *http.Request) bool
}

// NewRESTLine listens on the loopback interface for requests to target
// (host:port).
func NewRESTLine(t testing.TB, target string) *RESTLine {
	t.Helper()
	l := &RESTLine{target: target}
	l.server = httptest.NewServer(l)
	t.Cleanup(l.server.Close)
	return l
}

// URL is where the line begins.
func (l *RESTLine) URL() string { return l.server.URL }

// LoseRequest cuts the line before the next POST to a table.
func (l *RESTLine) LoseRequest() { l.arm(cutRequest) }

// LoseAnswer cuts the line after the next POST to a table, before its answer.
func (l *RESTLine) LoseAnswer() { l.arm(cutAnswer) }

// FailAfter answers 503 after the next POST to a table has been carried out.
func (l *RESTLine) FailAfter() { l.arm(garbleError) }

// SendTwice sends the next POST to a table again after it has been carried
// out, and gives the second answer: what a proxy does that repeats requests.
func (l *RESTLine) SendTwice() { l.arm(sendTwice) }

// ServeHTTP implements http.Handler.
func (l *RESTLine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if l.Intercept != nil && l.Intercept(w, r) {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	f := none
	if r.Method == http.MethodPost && strings.Contains(r.URL.Path, "/tables") {
		f = l.take()
	}
	if f == cutRequest {
		panic(http.ErrAbortHandler) // closes the connection without a word
	}
	res := l.forward(r, body)
	if f == sendTwice {
		_ = res.Body.Close()
		res = l.forward(r, body)
	}
	defer res.Body.Close()
	switch f {
	case cutAnswer:
		panic(http.ErrAbortHandler)
	case garbleError:
		http.Error(w, "upstream timed out", http.StatusServiceUnavailable)
		return
	}
	for k, v := range res.Header {
		w.Header()[k] = v
	}
	w.WriteHeader(res.StatusCode)
	_, _ = io.Copy(w, res.Body)
}

func (l *RESTLine) forward(r *http.Request, body []byte) *http.Response {
	u := *r.URL
	u.Scheme, u.Host = "http", l.target
	req, err := http.NewRequestWithContext(r.Context(), r.Method, u.String(), bytes.NewReader(body))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	req.Header = r.Header.Clone()
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		panic(http.ErrAbortHandler) // the server is down: the line is, too
	}
	return res
}
