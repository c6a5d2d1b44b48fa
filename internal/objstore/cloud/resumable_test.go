package cloud_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/objstore/cloud"
	"github.com/weirlake/weir/internal/s3test"
)

// sessions is a server of GCS's resumable uploads as Google documents them: a
// chunk is taken in part or whole, a session asked with "bytes */*" says how far
// it is, one that is complete answers 200 again, a cancelled one 499.
// fake-gcs-server takes such a question for the end of the upload.
type sessions struct {
	*httptest.Server
	mu        sync.Mutex
	data      []byte
	meta      map[string]string
	complete  bool
	cancelled bool
	short     int // takes that many bytes less of the next chunk
}

func newSessions(t *testing.T) *sessions {
	t.Helper()
	s := &sessions{}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *sessions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch q := r.URL.Query(); {
	case q.Get("uploadType") == "resumable":
		var head struct{ Metadata map[string]string }
		_ = json.Unmarshal(body, &head)
		s.meta, s.data, s.complete = head.Metadata, nil, false
		w.Header().Set("Location", "http://"+r.Host+"/session?upload_id=1")
	case r.Method == http.MethodDelete && q.Has("upload_id"):
		s.cancelled = true
		w.WriteHeader(499)
	case q.Has("upload_id"):
		s.chunk(w, r, body)
	case !s.complete:
		w.WriteHeader(http.StatusNotFound)
	case q.Get("alt") == "media":
		_, _ = w.Write(s.data)
	default:
		s.describe(w)
	}
}

func (s *sessions) describe(w http.ResponseWriter) {
	_ = json.NewEncoder(w).Encode(map[string]any{"size": strconv.Itoa(len(s.data)), "metadata": s.meta, "updated": time.Unix(1, 0)})
}

func (s *sessions) chunk(w http.ResponseWriter, r *http.Request, body []byte) {
	var from, last int
	total := ""
	rng := r.Header.Get("Content-Range")
	if _, err := fmt.Sscanf(rng, "bytes %d-%d/%s", &from, &last, &total); err != nil {
		total = strings.TrimPrefix(rng, "bytes */")
	} else if from != len(s.data) || last-from+1 != len(body) {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if !s.complete {
		n := max(0, len(body)-s.short)
		s.short = 0
		s.data = append(s.data, body[:n]...)
		s.complete = total == strconv.Itoa(len(s.data))
	}
	if s.complete {
		s.describe(w)
		return
	}
	if len(s.data) > 0 {
		w.Header().Set("Range", fmt.Sprintf("bytes=0-%d", len(s.data)-1))
	}
	w.WriteHeader(http.StatusPermanentRedirect)
}

func TestAResumableUploadGoesOnWhereTheStoreSaysThatItIs(t *testing.T) {
	data := make([]byte, 4*partBytes+777)
	for i := range data {
		data[i] = byte(i * 31)
	}
	chunks := func(r *http.Request) bool { return r.Method == http.MethodPut && r.ContentLength > 0 }
	for name, rule := range map[string]func() func(*http.Request) s3test.Fault{
		"nothing happens":           func() func(*http.Request) s3test.Fault { return nil },
		"every answer is lost once": func() func(*http.Request) s3test.Fault { return alternating(chunks, s3test.LoseAnswer) },
		"every chunk is refused":    func() func(*http.Request) s3test.Fault { return alternating(chunks, s3test.SlowDown) },
		"every question is throttled": func() func(*http.Request) s3test.Fault {
			n := 0
			return func(r *http.Request) s3test.Fault {
				n++
				return []s3test.Fault{s3test.Pass, s3test.LoseAnswer, s3test.SlowDown}[n%3]
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := newSessions(t)
			srv.short = 256 << 10 // and one chunk is taken in part
			p := s3test.NewProxy(t, srv.URL, rule())
			c, err := cloud.Open(t.Context(), cloud.Config{Kind: cloud.GCS, Endpoint: p.URL, Anonymous: true, PartBytes: partBytes, BackOffMax: time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			w := c.NewWriter(t.Context(), cloud.Location{Kind: cloud.GCS, Bucket: "b", Key: "k"})
			if _, err := io.Copy(w, bytes.NewReader(data)); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if !srv.complete || srv.cancelled || !bytes.Equal(srv.data, data) {
				t.Fatalf("complete %v, cancelled %v, %d of %d bytes", srv.complete, srv.cancelled, len(srv.data), len(data))
			}
		})
	}
}

// alternating meets every second request that matches with a fault.
func alternating(match func(*http.Request) bool, f s3test.Fault) func(*http.Request) s3test.Fault {
	n := 0
	return func(r *http.Request) s3test.Fault {
		if !match(r) {
			return s3test.Pass
		}
		if n++; n%2 == 1 {
			return f
		}
		return s3test.Pass
	}
}

func TestAResumableUploadThatFailsIsCancelled(t *testing.T) {
	srv := newSessions(t)
	p := s3test.NewProxy(t, srv.URL, s3test.First(-1, s3test.SlowDown, func(r *http.Request) bool {
		return r.Method == http.MethodPut && strings.HasPrefix(r.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", 2*partBytes))
	}))
	c, err := cloud.Open(t.Context(), cloud.Config{Kind: cloud.GCS, Endpoint: p.URL, Anonymous: true, PartBytes: partBytes, BackOffMax: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	at := cloud.Location{Kind: cloud.GCS, Bucket: "b", Key: "k"}
	w := c.NewWriter(t.Context(), at)
	_, werr := w.Write(make([]byte, 4*partBytes))
	if cerr := w.Close(); werr == nil && cerr == nil {
		t.Fatal("a file whose third part never arrived was closed")
	}
	if !srv.cancelled || srv.complete {
		t.Errorf("cancelled %v, complete %v", srv.cancelled, srv.complete)
	}
	if _, err := c.Stat(t.Context(), at); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is there: %v", err)
	}
}
