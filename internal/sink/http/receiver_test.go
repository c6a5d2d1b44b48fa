package http

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	nethttp "net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/clock"
)

// receiver is an API that remembers Idempotency-Keys, on a real server.
type receiver struct {
	t   *testing.T
	srv *httptest.Server

	mu     sync.Mutex
	seen   map[string]bool
	ids    []int64
	asked  []request
	active int
	most   int
	// fault, if set, may answer instead of the API: before it applies a chunk, or
	// after. It returns true where it has.
	before, after func(w nethttp.ResponseWriter, r request) bool
}

// request is what the API was asked.
type request struct {
	key    string
	header nethttp.Header
	ids    []int64
	rows   []map[string]any
	body   []byte
	nth    int // of this key, from 1
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{t: t, seen: map[string]bool{}}
	r.srv = httptest.NewServer(r)
	t.Cleanup(r.srv.Close)
	return r
}

func (r *receiver) ServeHTTP(w nethttp.ResponseWriter, q *nethttp.Request) {
	req := r.read(q)
	r.mu.Lock()
	req.nth = 1
	for _, a := range r.asked {
		if a.key == req.key {
			req.nth++
		}
	}
	r.asked = append(r.asked, req)
	r.active++
	r.most = max(r.most, r.active)
	before, after := r.before, r.after
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.active--
		r.mu.Unlock()
	}()
	if before != nil && before(w, req) {
		return
	}
	r.mu.Lock()
	known := r.seen[req.key]
	if !known {
		r.seen[req.key] = true
		r.ids = append(r.ids, req.ids...)
	}
	r.mu.Unlock()
	if after != nil && after(w, req) {
		return
	}
	if known {
		w.WriteHeader(nethttp.StatusConflict)
		return
	}
	w.WriteHeader(nethttp.StatusNoContent)
}

func (r *receiver) read(q *nethttp.Request) request {
	body := io.Reader(q.Body)
	if q.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(q.Body)
		if err != nil {
			r.t.Error(err)
			return request{}
		}
		body = z
	}
	text, err := io.ReadAll(body)
	if err != nil {
		r.t.Error(err)
	}
	req := request{key: q.Header.Get("Idempotency-Key"), header: q.Header, body: text}
	if q.Header.Get("Content-Type") == "application/json" {
		err = json.Unmarshal(text, &req.rows)
	} else {
		err = lines(text, func(row map[string]any) { req.rows = append(req.rows, row) })
	}
	if err != nil {
		r.t.Errorf("body %q: %v", text, err)
	}
	for _, row := range req.rows {
		if id, ok := row["id"].(float64); ok {
			req.ids = append(req.ids, int64(id))
		}
	}
	return req
}

func lines(text []byte, f func(map[string]any)) error {
	sc := bufio.NewScanner(bytesReader(text))
	sc.Buffer(nil, 1<<24)
	for sc.Scan() {
		var row map[string]any
		if err := json.Unmarshal(sc.Bytes(), &row); err != nil {
			return err
		}
		f(row)
	}
	return sc.Err()
}

// kill cuts the connection without an answer.
func kill(w nethttp.ResponseWriter) bool {
	c, _, err := w.(nethttp.Hijacker).Hijack()
	if err == nil {
		_ = c.Close()
	}
	return true
}

// testClock moves by what is slept, and takes no time.
type testClock struct {
	mu  sync.Mutex
	now time.Time
}

var _ clock.Clock = (*testClock)(nil)

func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *testClock) Sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	return ctx.Err()
}

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

var shape = arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil)

func recordOf(ids []int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, shape)
	defer b.Release()
	b.Field(0).(*array.Int64Builder).AppendValues(ids, nil)
	return b.NewRecordBatch()
}
