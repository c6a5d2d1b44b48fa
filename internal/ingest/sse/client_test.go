package sse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

// taker takes events and resumes after the last one.
type taker struct {
	mu    sync.Mutex
	data  []string
	last  string
	since string
	stop  int // an error after so many; 0: never
}

var errEnough = errors.New("enough")

func (k *taker) Resume() (string, string) {
	if k.last == "" {
		return "", k.since
	}
	return k.last, ""
}

func (k *taker) Events(evs []Event, _ time.Time) error {
	for _, e := range evs {
		k.data = append(k.data, string(e.Data))
		k.last = string(e.ID)
	}
	if k.stop > 0 && len(k.data) >= k.stop {
		return errEnough
	}
	return nil
}

// script answers one request after the other with its steps, then with 204.
type script struct {
	mu    sync.Mutex
	steps []http.HandlerFunc
	seen  []*http.Request
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.seen = append(s.seen, r)
	var step http.HandlerFunc
	if len(s.steps) > 0 {
		step, s.steps = s.steps[0], s.steps[1:]
	}
	s.mu.Unlock()
	if step == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	step(w, r)
}

func text(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream;charset=UTF-8")
		_, _ = w.Write([]byte(body))
	}
}

func status(code int, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte("what the server says"))
	}
}

// waits is a clock that does not wait and notes how long it was asked to.
type waits struct {
	clock.System
	mu   sync.Mutex
	list []time.Duration
}

func (w *waits) Sleep(ctx context.Context, d time.Duration) error {
	w.mu.Lock()
	w.list = append(w.list, d)
	w.mu.Unlock()
	return ctx.Err()
}

func run(t *testing.T, cfg Config, clk clock.Clock, k *taker, steps ...http.HandlerFunc) (*script, *Client, error) {
	t.Helper()
	s := &script{steps: steps}
	srv := httptest.NewServer(s)
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	cfg.URL = srv.URL + "/stream?x=1"
	cfg.Seed = 1
	if clk == nil {
		clk = clock.System{}
		cfg.BackoffMin, cfg.BackoffMax = time.Millisecond, 2*time.Millisecond
	}
	c := New(cfg, nil, clk, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err := c.Run(ctx, k)
	return s, c, err
}

func TestTheClientConnectsAgainUntilTheServerSays204(t *testing.T) {
	k := &taker{since: "1700000000000"}
	s, c, err := run(t, Config{UserAgent: "weir-test (a@example.org)"}, nil, k,
		text("id: 1\ndata: a\n\n"), text("data: lost half"), text("id: 2\ndata: b\n\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(k.data, ","); got != "a,b" {
		t.Error(got)
	}
	if c.Stats().Connects != 3 {
		t.Errorf("%+v", c.Stats())
	}
	var ids []string
	for _, r := range s.seen {
		ids = append(ids, r.Header.Get("Last-Event-ID")+"/"+r.URL.Query().Get("since"))
		if r.Header.Get("User-Agent") != "weir-test (a@example.org)" || r.Header.Get("Accept") != "text/event-stream" || r.URL.Query().Get("x") != "1" {
			t.Errorf("%v %v", r.Header, r.URL)
		}
	}
	if got := strings.Join(ids, " "); got != "/1700000000000 1/ 1/ 2/" {
		t.Error(got)
	}
}

func TestRefusalsThatCannotHealEndTheClient(t *testing.T) {
	for _, code := range []int{400, 401, 403, 404, 405, 406, 410, 422} {
		_, _, err := run(t, Config{}, nil, &taker{}, status(code))
		if !failure.Is(err, failure.Config) || !strings.Contains(err.Error(), fmt.Sprint(code)) || !strings.Contains(err.Error(), "what the server says") {
			t.Errorf("%d: %v", code, err)
		}
	}
	_, _, err := run(t, Config{}, nil, &taker{}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<p>log in"))
	})
	if !failure.Is(err, failure.Config) || !strings.Contains(err.Error(), "text/html") {
		t.Error(err)
	}
}

func TestErrorsThatMayHealAreTriedAgainAndRetryAfterIsKept(t *testing.T) {
	w := &waits{}
	k := &taker{}
	_, c, err := run(t, Config{BackoffMin: time.Second, BackoffMax: time.Minute, IdleTimeout: time.Hour}, &quietWatch{w: w}, k,
		status(503), status(429, "Retry-After", "77"), status(500), status(408), status(425), status(502, "Retry-After", "999999999"), text("id: 1\ndata: a\n\n"))
	if err != nil || len(k.data) != 1 {
		t.Fatalf("%v %v", err, k.data)
	}
	if w.list[1] != 77*time.Second {
		t.Errorf("Retry-After was not kept: %v", w.list)
	}
	if w.list[5] != maxRetryAfter {
		t.Errorf("Retry-After is not bounded: %v", w.list)
	}
	if c.Stats().Failures != 6 {
		t.Errorf("%+v", c.Stats())
	}
}

// quietWatch passes the waits of the reconnect loop on and never fires the
// watchdog, which sleeps a quarter of the idle time-out.
type quietWatch struct {
	clock.System
	w *waits
}

func (q *quietWatch) Sleep(ctx context.Context, d time.Duration) error {
	if d == 15*time.Minute {
		<-ctx.Done()
		return ctx.Err()
	}
	return q.w.Sleep(ctx, d)
}

func TestBackOffGrowsWithJitterAndStartsAgainAfterAnEvent(t *testing.T) {
	w := &waits{}
	steps := []http.HandlerFunc{}
	for range 8 {
		steps = append(steps, status(500))
	}
	steps = append(steps, text("id: 1\ndata: a\n\n"), status(500))
	_, _, err := run(t, Config{BackoffMin: time.Second, BackoffMax: 30 * time.Second, IdleTimeout: time.Hour}, &quietWatch{w: w}, &taker{}, steps...)
	if err != nil {
		t.Fatal(err)
	}
	want := []float64{1, 2, 4, 8, 16, 30, 30, 30, 1, 2}
	for i, d := range w.list {
		if s := d.Seconds(); s < want[i]/2 || s > want[i] {
			t.Errorf("wait %d is %v, want within %v of %v s", i, d, want[i]/2, want[i])
		}
	}
}

func TestTheServersRetryTakesThePlaceOfTheFirstWait(t *testing.T) {
	w := &waits{}
	_, _, err := run(t, Config{BackoffMin: time.Millisecond, BackoffMax: 30 * time.Second, IdleTimeout: time.Hour}, &quietWatch{w: w}, &taker{},
		text("retry: 8000\nid: 1\ndata: a\n\n"), text("id: 2\ndata: a\n\n"))
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range w.list {
		if d < 4*time.Second || d > 8*time.Second {
			t.Errorf("wait %d is %v", i, d)
		}
	}
}

func TestAnUnreachableServerEndsTheClientAfterTheDeadline(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	url := srv.URL
	srv.Close()
	c := New(Config{URL: url, ConnectDeadline: 30 * time.Millisecond, BackoffMin: time.Millisecond, BackoffMax: 4 * time.Millisecond, Seed: 1},
		nil, clock.System{}, slog.New(slog.DiscardHandler))
	err := c.Run(context.Background(), &taker{})
	if !failure.Is(err, failure.Unreachable) {
		t.Fatal(err)
	}
}

func TestAStalledConnectionIsGivenUpAndCommentsAreLifeSigns(t *testing.T) {
	stall := func(w http.ResponseWriter, r *http.Request) {
		text(":ok\n\nid: 1\ndata: a\n\n")(w, r)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	alive := func(w http.ResponseWriter, r *http.Request) {
		text(":ok\n\n")(w, r)
		for range 12 {
			_, _ = w.Write([]byte(":\n\n"))
			_ = http.NewResponseController(w).Flush()
			time.Sleep(150 * time.Millisecond) // longer in sum than the time-out
		}
		_, _ = w.Write([]byte("id: 2\ndata: b\n\n"))
	}
	noHeaders := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	k := &taker{}
	_, c, err := run(t, Config{IdleTimeout: time.Second}, nil, k, stall, noHeaders, alive)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(k.data, ","); got != "a,b" {
		t.Error(got)
	}
	if s := c.Stats(); s.IdleTimeouts != 2 || s.Comments < 13 {
		t.Errorf("%+v", s)
	}
}

func TestAHandlerThatBlocksIsNoIdleServer(t *testing.T) {
	k := &slow{taker: taker{}, d: 200 * time.Millisecond}
	srv := httptest.NewServer(&script{steps: []http.HandlerFunc{text("id: 1\ndata: a\n\n")}})
	defer srv.Close()
	c := New(Config{URL: srv.URL, IdleTimeout: 50 * time.Millisecond, BackoffMin: time.Millisecond, Seed: 1}, nil, clock.System{}, slog.New(slog.DiscardHandler))
	if err := c.Run(context.Background(), k); err != nil || c.Stats().IdleTimeouts != 0 {
		t.Errorf("%v %+v", err, c.Stats())
	}
}

type slow struct {
	taker
	d time.Duration
}

func (s *slow) Events(evs []Event, at time.Time) error {
	time.Sleep(s.d)
	return s.taker.Events(evs, at)
}

func TestRedirectsAreFollowedWithThePosition(t *testing.T) {
	target := &script{steps: []http.HandlerFunc{text("id: 2\ndata: b\n\n")}}
	dst := httptest.NewServer(target)
	defer dst.Close()
	k := &taker{last: "1"}
	for _, code := range []int{301, 302, 307, 308} {
		target.steps = []http.HandlerFunc{text("id: 2\ndata: b\n\n")}
		target.seen = nil
		k.last = "1"
		_, _, err := run(t, Config{}, nil, k, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, dst.URL, code) })
		if err != nil {
			t.Fatal(err)
		}
		if got := target.seen[0].Header.Get("Last-Event-ID"); got != "1" {
			t.Errorf("%d: the position was lost on the way: %q", code, got)
		}
	}
}

func TestTheHandlersErrorEndsTheClient(t *testing.T) {
	_, _, err := run(t, Config{}, nil, &taker{stop: 1}, text("id: 1\ndata: a\n\n"))
	if !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
}

func TestACancelledContextEndsTheClient(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text(":ok\n\n")(w, r)
		_ = http.NewResponseController(w).Flush()
		cancel()
		<-r.Context().Done()
	}))
	defer srv.Close()
	c := New(Config{URL: srv.URL}, nil, clock.System{}, slog.New(slog.DiscardHandler))
	if err := c.Run(ctx, &taker{}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
