// Package openlineage tells an OpenLineage server what each batch read and wrote, and
// each model of gold: run events START, COMPLETE, FAIL and ABORT over HTTP.
//
// Events go through a bounded queue and are sent by one goroutine, in order. Where
// the server is slow or away, the queue fills and events are dropped and counted:
// no batch waits for it.
package openlineage

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

// Bounds of sending.
const (
	queueMax = 1000
	triesMax = 3
	// pauseFirst is the pause before the second try; it doubles.
	pauseFirst = 500 * time.Millisecond
	// closePatience is how long an end of the process waits for the last events.
	closePatience = 3 * time.Second
	// complainEvery bounds what is logged of a server that does not answer.
	complainEvery = time.Minute
	answerMax     = 512 // bytes of a refusal that are logged
)

// Defaults.
const (
	DefaultEndpoint  = "api/v1/lineage"
	DefaultNamespace = "default"
	DefaultTimeout   = 5 * time.Second
)

// Options say where events go.
type Options struct {
	// URL is the server's, Endpoint the path below it.
	URL      string
	Endpoint string
	// APIKey goes out as a bearer token, where it is set.
	APIKey string
	// Namespace is the jobs'.
	Namespace string
	Timeout   time.Duration
	// Version is this program's.
	Version string
	Clock   clock.Clock
	Logger  *slog.Logger
}

// Stats are what became of the events so far.
type Stats struct{ Sent, Dropped int64 }

// Client sends events.
type Client struct {
	o      Options
	target string
	http   *http.Client
	queue  chan Event
	stop   context.CancelFunc
	done   chan struct{}

	sent, dropped atomic.Int64

	mu     sync.Mutex
	closed bool
	told   time.Time
}

// New checks the options and starts the sender. Nothing is sent yet. Errors are
// failure.Config.
func New(o Options) (*Client, error) {
	u, err := url.Parse(o.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, failure.New(failure.Config, "lineage: %q is not an http or https URL", o.URL).WithHint("set lineage.url, or OPENLINEAGE_URL")
	}
	if o.Endpoint == "" {
		o.Endpoint = DefaultEndpoint
	}
	if o.Namespace == "" {
		o.Namespace = DefaultNamespace
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	ctx, stop := context.WithCancel(context.Background())
	c := &Client{
		o: o, target: u.JoinPath(strings.TrimPrefix(o.Endpoint, "/")).String(), http: &http.Client{Timeout: o.Timeout},
		queue: make(chan Event, queueMax), stop: stop, done: make(chan struct{}),
	}
	go c.run(ctx)
	return c, nil
}

// Emit queues an event, or drops it where the queue is full. It never blocks.
func (c *Client) Emit(e Event) {
	e.Producer, e.SchemaURL = producer, schemaURL
	if e.Inputs == nil {
		e.Inputs = []Dataset{}
	}
	if e.Outputs == nil {
		e.Outputs = []Dataset{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		c.dropped.Add(1)
		return
	}
	select {
	case c.queue <- e:
	default:
		c.dropped.Add(1)
		c.complain("the queue of lineage events is full: events are dropped; the pipeline goes on", nil)
	}
}

// Stats are what became of the events so far.
func (c *Client) Stats() Stats { return Stats{Sent: c.sent.Load(), Dropped: c.dropped.Load()} }

// Close sends what is queued, for closePatience at most.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	close(c.queue)
	c.mu.Unlock()
	late, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		if c.o.Clock.Sleep(late, closePatience) == nil {
			c.stop()
		}
	}()
	<-c.done
	c.stop()
	return nil
}

func (c *Client) run(ctx context.Context) {
	defer close(c.done)
	for e := range c.queue {
		if err := c.deliver(ctx, e); err != nil {
			c.dropped.Add(1)
			c.mu.Lock()
			c.complain("a lineage event could not be sent; the pipeline goes on", err)
			c.mu.Unlock()
			continue
		}
		c.sent.Add(1)
	}
}

// complain logs now and then; c.mu is held.
func (c *Client) complain(text string, err error) {
	now := c.o.Clock.Now()
	if !c.told.IsZero() && now.Sub(c.told) < complainEvery {
		return
	}
	c.told = now
	c.o.Logger.Warn(text, "dropped", c.dropped.Load(), "error", err)
}

// deliver tries an event until it is taken, refused, or tried often enough.
func (c *Client) deliver(ctx context.Context, e Event) error {
	body, err := json.Marshal(e)
	if err != nil {
		return err
	}
	pause := pauseFirst
	for try := 1; ; try++ {
		again, err := c.post(ctx, body)
		if err == nil || !again || try == triesMax || ctx.Err() != nil {
			return err
		}
		if c.o.Clock.Sleep(ctx, pause) != nil {
			return err
		}
		pause *= 2
	}
}

// post sends it once; again is set where another try may help.
func (c *Client) post(ctx context.Context, body []byte) (again bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.target, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	req.Header.Set("Content-Type", "application/json")
	if c.o.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.o.APIKey)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return true, err
	}
	defer res.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(res.Body, answerMax))
	if res.StatusCode < http.StatusMultipleChoices {
		return false, nil
	}
	return res.StatusCode >= http.StatusInternalServerError || res.StatusCode == http.StatusTooManyRequests,
		fmt.Errorf("%s answers %s: %s", c.target, res.Status, said)
}
