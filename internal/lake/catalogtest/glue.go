package catalogtest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// GlueLine stands between clients and moto. It does what moto's Glue leaves out
// and AWS documents: an UpdateTable with a VersionId that is not the table's is
// refused with ConcurrentModificationException. And it loses requests and answers.
type GlueLine struct {
	armed
	server *httptest.Server
	target string
	update sync.Mutex
	// Refuse, if set, may answer a call of an operation with an error of Glue's.
	Refuse func(operation string) (status int, code string)
}

// NewGlueLine listens on the loopback interface for requests to a moto.
func NewGlueLine(t testing.TB, moto *Server) *GlueLine {
	t.Helper()
	l := &GlueLine{target: moto.Addr()}
	l.server = httptest.NewServer(l)
	t.Cleanup(l.server.Close)
	return l
}

// URL is where the line begins.
func (l *GlueLine) URL() string { return l.server.URL }

// LoseRequest cuts the line before the next update or creation of a table.
func (l *GlueLine) LoseRequest() { l.arm(cutRequest) }

// LoseAnswer cuts the line after the next update or creation of a table, before
// its answer.
func (l *GlueLine) LoseAnswer() { l.arm(cutAnswer) }

// ServeHTTP implements http.Handler.
func (l *GlueLine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	operation := strings.TrimPrefix(r.Header.Get("X-Amz-Target"), "AWSGlue.")
	if l.Refuse != nil {
		if status, code := l.Refuse(operation); code != "" {
			glueError(w, status, code)
			return
		}
	}
	f := none
	if operation == "UpdateTable" || operation == "CreateTable" {
		f = l.take()
	}
	if f == cutRequest {
		panic(http.ErrAbortHandler) // closes the connection without a word
	}
	if operation == "UpdateTable" {
		l.update.Lock()
		defer l.update.Unlock()
		if !l.isCurrent(r, body) {
			glueError(w, http.StatusBadRequest, "ConcurrentModificationException")
			return
		}
	}
	res := l.forward(r, r.Header.Get("X-Amz-Target"), body)
	defer res.Body.Close()
	if f == cutAnswer {
		panic(http.ErrAbortHandler)
	}
	for k, v := range res.Header {
		w.Header()[k] = v
	}
	w.WriteHeader(res.StatusCode)
	_, _ = io.Copy(w, res.Body)
}

// isCurrent reports whether the update's condition holds; without one it does.
func (l *GlueLine) isCurrent(r *http.Request, body []byte) bool {
	var in struct {
		DatabaseName, VersionID, CatalogID string
		TableInput                         struct{ Name string }
	}
	if json.Unmarshal(body, &in) != nil || in.VersionID == "" {
		return true
	}
	ask, err := json.Marshal(map[string]string{"DatabaseName": in.DatabaseName, "Name": in.TableInput.Name})
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	res := l.forward(r, "AWSGlue.GetTable", ask)
	defer res.Body.Close()
	var out struct {
		Table struct{ VersionID string }
	}
	return json.NewDecoder(res.Body).Decode(&out) != nil || out.Table.VersionID == in.VersionID
}

func (l *GlueLine) forward(r *http.Request, operation string, body []byte) *http.Response {
	u := *r.URL
	u.Scheme, u.Host = "http", l.target
	req, err := http.NewRequestWithContext(r.Context(), r.Method, u.String(), bytes.NewReader(body))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	req.Header = r.Header.Clone()
	req.Header.Set("X-Amz-Target", operation)
	req.Header.Set("Content-Length", strconv.Itoa(len(body)))
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		panic(http.ErrAbortHandler) // the server is down: the line is, too
	}
	return res
}

func glueError(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"__type": code, "Message": "the test says so"})
}

// GlueCall calls an operation of a moto's Glue as any client may.
func GlueCall(t testing.TB, moto *Server, operation string, in map[string]any) map[string]any {
	t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+moto.Addr(), bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Amz-Target", "AWSGlue."+operation)
	req.Header.Set("Content-Type", "application/x-amz-json-1.1")
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/glue/aws4_request, SignedHeaders=host, Signature=0")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: HTTP %d, %v: %s", operation, res.StatusCode, err, answer)
	}
	out := map[string]any{}
	if len(answer) > 0 {
		if err := json.Unmarshal(answer, &out); err != nil {
			t.Fatalf("%s: %v", operation, err)
		}
	}
	return out
}
