package sse

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

// Defaults of Config.
const (
	DefaultIdleTimeout     = 60 * time.Second
	DefaultConnectDeadline = 15 * time.Minute
	DefaultBackoffMin      = time.Second
	DefaultBackoffMax      = 60 * time.Second

	maxRetryAfter    = 10 * time.Minute
	maxBatchEvents   = 256
	maxBatchBytes    = 1 << 20
	maxErrorBody     = 512
	idleChecksPerGap = 4 // the watchdog looks this often in one idle time-out
)

// Config is one stream and how to treat it.
type Config struct {
	URL string
	// UserAgent names the client and a contact; Wikimedia asks for both.
	UserAgent string
	// Header holds further request headers.
	Header map[string]string
	// MaxEventBytes bounds the data of one event.
	MaxEventBytes int
	// IdleTimeout is how long the server may send nothing, comments included,
	// before the connection is given up. It also bounds the wait for a response.
	IdleTimeout time.Duration
	// ConnectDeadline is how long it may take until a connection succeeds.
	ConnectDeadline time.Duration
	// BackoffMin and BackoffMax bound the wait before a reconnect. The server's
	// retry takes the place of BackoffMin.
	BackoffMin, BackoffMax time.Duration
	// Seed makes the jitter repeatable.
	Seed uint64
}

// Handler is what a Client feeds. Its methods are called from one goroutine.
type Handler interface {
	// Resume says where the next connection is to begin: the Last-Event-ID, and
	// the since parameter where there is none. Either may be empty.
	Resume() (lastEventID, since string)
	// Events takes the next events in the order of receipt, together with the
	// time at which they were read. It blocks to slow the stream down. An
	// error ends the client.
	Events(events []Event, receivedAt time.Time) error
}

// Stats counts what a client did. All fields only grow.
type Stats struct {
	Bytes        int64 `json:"bytes"`
	Connects     int64 `json:"connects"`
	Failures     int64 `json:"failures"` // connections that could not be made
	IdleTimeouts int64 `json:"idle_timeouts"`
	Comments     int64 `json:"comments"`
	BadIDs       int64 `json:"bad_ids"`
	Oversize     int64 `json:"oversize"`
}

// Client reads a stream and connects again whenever the connection ends.
type Client struct {
	cfg  Config
	http *http.Client
	clk  clock.Clock
	log  Logger
	rng  *rand.Rand

	bytes, connects, failures, idles, comments, badIDs, oversize atomic.Int64
}

// Logger is the part of slog.Logger that the client uses.
type Logger interface {
	Info(msg string, args ...any)
	Warn(msg string, args ...any)
}

// New makes a client. A nil httpClient is one without a total time-out and
// without compression, which would hold life signs back.
func New(cfg Config, httpClient *http.Client, clk clock.Clock, log Logger) *Client {
	if cfg.IdleTimeout <= 0 {
		cfg.IdleTimeout = DefaultIdleTimeout
	}
	if cfg.ConnectDeadline <= 0 {
		cfg.ConnectDeadline = DefaultConnectDeadline
	}
	if cfg.BackoffMin <= 0 {
		cfg.BackoffMin = DefaultBackoffMin
	}
	if cfg.BackoffMax < cfg.BackoffMin {
		cfg.BackoffMax = max(DefaultBackoffMax, cfg.BackoffMin)
	}
	if httpClient == nil {
		tr := http.DefaultTransport.(*http.Transport).Clone()
		tr.DisableCompression = true
		tr.ReadBufferSize = 64 << 10
		httpClient = &http.Client{Transport: tr}
	}
	if cfg.Seed == 0 {
		h := fnv.New64a()
		_, _ = io.WriteString(h, clock.Nonce())
		cfg.Seed = h.Sum64()
	}
	return &Client{cfg: cfg, http: httpClient, clk: clk, log: log, rng: rand.New(rand.NewPCG(cfg.Seed, 1))}
}

// Stats is what was counted so far. Safe for concurrent use.
func (c *Client) Stats() Stats {
	return Stats{
		Bytes: c.bytes.Load(), Connects: c.connects.Load(), Failures: c.failures.Load(),
		IdleTimeouts: c.idles.Load(), Comments: c.comments.Load(), BadIDs: c.badIDs.Load(), Oversize: c.oversize.Load(),
	}
}

// outcome is how one connection ended.
type outcome struct {
	connected bool
	ended     bool          // 204: the server wants no further connection
	fatal     error         // no further connection can help
	cause     error         // for the log
	wait      time.Duration // the server's Retry-After; 0 where it gave none
	events    int64
	retry     time.Duration // the server's retry field; negative where it gave none
}

// Run reads until the server ends the stream with 204 (nil), ctx is done
// (ctx's error), the handler fails (its error), the server refuses for good
// (failure.Config) or cannot be reached before the deadline
// (failure.Unreachable).
func (c *Client) Run(ctx context.Context, h Handler) error {
	base := c.cfg.BackoffMin
	tries := 0
	since := c.clk.Now()
	for {
		out := c.connection(ctx, h)
		switch {
		case out.fatal != nil:
			return out.fatal
		case ctx.Err() != nil:
			return ctx.Err()
		case out.ended:
			return nil
		}
		if out.retry >= 0 {
			base = min(out.retry, c.cfg.BackoffMax)
		}
		if out.connected {
			since = c.clk.Now()
		} else {
			c.failures.Add(1)
			if down := c.clk.Now().Sub(since); down >= c.cfg.ConnectDeadline {
				return failure.Wrap(failure.Unreachable, out.cause, "the event stream %s could not be reached for %s", redact(c.cfg.URL), down.Round(time.Second)).
					WithHint("check the network and the server; a restart goes on from the saved position")
			}
		}
		if out.events > 0 {
			tries = 0
		}
		wait := c.backoff(base, tries)
		if out.wait > wait {
			wait = min(out.wait, maxRetryAfter)
		}
		tries++
		c.log.Info("event stream connection ended; connecting again", "url", redact(c.cfg.URL),
			"cause", out.cause, "events", out.events, "wait", wait)
		if err := c.clk.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// backoff doubles from base, within the maximum, and takes half of it for
// jitter, so that many clients do not come back in step.
func (c *Client) backoff(base time.Duration, tries int) time.Duration {
	d := base
	for range min(tries, 32) {
		if d >= c.cfg.BackoffMax/2 {
			d = c.cfg.BackoffMax
			break
		}
		d *= 2
	}
	half := d / 2
	if half <= 0 {
		return d
	}
	return half + time.Duration(c.rng.Int64N(int64(half)+1))
}

var errIdle = errors.New("nothing was received within the idle time-out")

func (c *Client) connection(parent context.Context, h Handler) outcome {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	w := &watched{clk: c.clk}
	w.begin()
	go c.watchdog(ctx, cancel, w)

	out := outcome{retry: -1}
	req, err := c.request(ctx, h)
	if err != nil {
		out.fatal = err
		return out
	}
	resp, err := c.http.Do(req)
	if err != nil {
		out.cause = causeOf(ctx, err)
		return out
	}
	defer func() { _ = resp.Body.Close() }()
	w.end()
	if done := c.judge(resp, &out); done {
		return out
	}
	out.connected = true
	c.connects.Add(1)
	w.body, w.count = resp.Body, &c.bytes
	c.read(ctx, w, h, &out)
	return out
}

func (c *Client) request(ctx context.Context, h Handler) (*http.Request, error) {
	last, since := h.Resume()
	u, err := url.Parse(c.cfg.URL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, failure.New(failure.Config, "%q is not an http or https URL", redact(c.cfg.URL))
	}
	if since != "" {
		q := u.Query()
		q.Set("since", since)
		u.RawQuery = q.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "request to %s", redact(c.cfg.URL))
	}
	for k, v := range c.cfg.Header {
		req.Header.Set(k, v)
	}
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("Cache-Control", "no-store")
	req.Header.Set("User-Agent", c.cfg.UserAgent)
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	return req, nil
}

// judge looks at the status and the content type; true means that there is
// nothing to read.
func (c *Client) judge(resp *http.Response, out *outcome) bool {
	code := resp.StatusCode
	switch {
	case code == http.StatusNoContent:
		out.ended = true
		return true
	case code == http.StatusOK:
		ct := resp.Header.Get("Content-Type")
		mt, _, err := mime.ParseMediaType(ct)
		if err == nil && strings.EqualFold(mt, "text/event-stream") {
			return false
		}
		out.fatal = failure.New(failure.Config, "%s answers with content type %q, which is not a stream of server-sent events", redact(c.cfg.URL), ct).
			WithHint("check sse.url; a proxy's login page looks like this too")
		return true
	}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	said := strings.TrimSpace(string(body))
	if code >= 500 || code == http.StatusTooManyRequests || code == http.StatusRequestTimeout || code == http.StatusTooEarly {
		out.cause = fmt.Errorf("the server answered %s: %q", resp.Status, said)
		out.wait = c.retryAfter(resp.Header.Get("Retry-After"))
		return true
	}
	out.fatal = failure.New(failure.Config, "%s refused the request with %s: %q", redact(c.cfg.URL), resp.Status, said).
		WithHint("%s", refusalHint(code))
	return true
}

func refusalHint(code int) string {
	switch code {
	case http.StatusUnauthorized, http.StatusForbidden:
		return "check credentials and sse.userAgent: some servers turn away clients without a contact"
	case http.StatusNotFound, http.StatusGone:
		return "check sse.url: there is no such stream"
	case http.StatusBadRequest:
		return "the server does not take the request as it is: check sse.url and sse.since, and the saved position (Last-Event-ID)"
	default:
		return "trying again cannot help: check sse.url"
	}
}

func (c *Client) retryAfter(v string) time.Duration {
	if v == "" {
		return 0
	}
	if s, err := strconv.Atoi(v); err == nil && s >= 0 {
		return time.Duration(min(s, int(maxRetryAfter/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(at.Sub(c.clk.Now()), 0)
	}
	return 0
}

// read hands complete events on in groups: a group is passed on when it is
// full or when the next event would have to be waited for.
func (c *Client) read(ctx context.Context, w *watched, h Handler, out *outcome) {
	rd := NewReader(w, c.cfg.MaxEventBytes)
	var seen Counts
	for {
		var group []Event
		size := 0
		for len(group) < maxBatchEvents && size < maxBatchBytes {
			ev, ok := rd.TryNext()
			if !ok {
				break
			}
			if group == nil {
				group = make([]Event, 0, maxBatchEvents/4)
			}
			group = append(group, ev)
			size += len(ev.Data)
		}
		seen = c.note(rd, seen)
		if len(group) > 0 {
			out.events += int64(len(group))
			if err := h.Events(group, c.clk.Now()); err != nil {
				out.fatal = err
				return
			}
			continue
		}
		if err := rd.Fill(); err != nil {
			out.retry = rd.Retry()
			out.cause = causeOf(ctx, err)
			return
		}
	}
}

func (c *Client) note(rd *Reader, seen Counts) Counts {
	now := rd.Counts()
	if now == seen {
		return now
	}
	c.comments.Add(now.Comments - seen.Comments)
	c.badIDs.Add(now.BadIDs - seen.BadIDs)
	c.oversize.Add(now.Oversize - seen.Oversize)
	return now
}

// watched is a body whose reads the watchdog can time. Only time spent waiting
// for the server counts: a handler that blocks is not an idle server.
type watched struct {
	body  io.Reader
	count *atomic.Int64
	clk   clock.Clock
	since atomic.Int64 // microseconds; 0 while nothing is waited for
}

func (w *watched) begin() { w.since.Store(w.clk.Now().UnixMicro()) }
func (w *watched) end()   { w.since.Store(0) }

// Read implements io.Reader.
func (w *watched) Read(p []byte) (int, error) {
	w.begin()
	n, err := w.body.Read(p)
	w.end()
	w.count.Add(int64(n))
	return n, err
}

func (c *Client) watchdog(ctx context.Context, cancel context.CancelCauseFunc, w *watched) {
	for {
		if c.clk.Sleep(ctx, max(c.cfg.IdleTimeout/idleChecksPerGap, time.Millisecond)) != nil {
			return
		}
		since := w.since.Load()
		if since != 0 && c.clk.Now().Sub(time.UnixMicro(since)) >= c.cfg.IdleTimeout {
			c.idles.Add(1)
			cancel(errIdle)
			return
		}
	}
}

// causeOf tells an idle time-out from the cancellation that it looks like.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if errors.Is(err, io.EOF) {
		return errors.New("the server closed the connection")
	}
	return err
}

// redact leaves user information out of a URL that is shown.
func redact(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "(unreadable URL)"
	}
	return u.Redacted()
}
