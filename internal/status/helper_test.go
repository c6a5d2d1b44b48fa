package status

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// handClock stands still until it is moved; Sleep takes a moment of real time.
type handClock struct {
	mu  sync.Mutex
	now time.Time
}

func newHandClock() *handClock {
	return &handClock{now: time.Date(2026, 3, 4, 5, 6, 8, 0, time.UTC)}
}

func (c *handClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *handClock) move(d time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	return c.now
}

func (c *handClock) Sleep(ctx context.Context, _ time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Millisecond):
		return nil
	}
}

var errBroker = errors.New("no broker answers")

// stats are the counts of the test's ingestion.
var stats = IngestStats{
	Received: 1010, Published: 1000, Canaries: 4, DeadLetters: 6, Dropped: 3, InFlight: 2, Transactions: 7, Saves: 8,
	Reconnects: 9, Failures: 10, Bytes: 4096, LagMillis: 1500, Violations: map[string]int64{"invalid_json": 6},
}

// hostile is text that must come out as text wherever it is shown.
const hostile = `<img src=x onerror="alert(1)"></pre><script>alert(2)</script>&amp;` + "\x00\u202e"

// newTestBoard is the shipped pipeline's shape: bronze over Kafka, silver over
// bronze.
func newTestBoard(t *testing.T, f Facts) (*Board, *handClock) {
	t.Helper()
	clk := newHandClock()
	b := NewBoard(Options{Pipeline: "wikimedia", Version: "1.2.3", Clock: clk, Facts: f, Queries: []QueryInfo{
		{Name: "bronze", Level: 0, Source: "wiki.recentchange", SourceKind: "kafka", Table: "bronze.recentchange", Trigger: time.Second},
		{Name: "silver", Level: 1, Source: "bronze.recentchange", SourceKind: "table", Table: "silver.edits",
			DeadLetterTable: "silver.edits_dead_letter", Trigger: time.Second, Watermarked: true},
	}})
	t.Cleanup(b.Close)
	b.AddIngest(IngestInfo{
		Name: "recentchange", Source: "https://user:secret@example.org/v2/stream?key=secret", Topic: "wiki.recentchange",
		DeadLetterTopic: "wiki.recentchange.dlq", Delivery: "at-least-once", Stats: func() IngestStats { return stats },
	})
	return b, clk
}

// commit feeds a batch that commits now.
func commit(b *Board, clk *handClock, query string, id, rows int64) Batch {
	now := clk.Now()
	mark := now.Add(-10 * time.Minute)
	x := Batch{
		Query: query, QueryID: "id-of-" + query, BatchID: id, Epoch: 3, StartedAt: now.Add(-100 * time.Millisecond), CommittedAt: now,
		InputRows: rows, OutputRows: rows / 2, Filtered: rows / 4, Late: 1, Duplicate: 2, DeadLettered: 3, Watermark: &mark,
		Freshness:  Freshness{P50Seconds: 0.5, P95Seconds: 1.5, MaxSeconds: 2.5},
		DurationMs: map[string]int64{"plan": 5, "read_transform": 40, "stage": 15, "commit": 30, "triggerExecution": 100, "unknown": 1},
		StateKeys:  50, StateBytes: 2048, Position: []byte(`{"kafka":{}}`),
	}
	b.Batch(x)
	return x
}

// request asks a handler; the host is localhost unless the header says more.
func request(t *testing.T, h http.Handler, method, path string, header map[string]string) *http.Response {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	r.Host = "localhost:8080"
	for k, v := range header {
		if k == "Host" {
			r.Host = v
			continue
		}
		r.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// handler is a server's handler without a listener.
func handler(b *Board, token string, pprof bool) http.Handler {
	s := &Server{board: b, o: ServeOptions{Token: token, PProf: pprof}, hub: newHub(b), guard: newGuard(token, 8080)}
	return s.Handler()
}
