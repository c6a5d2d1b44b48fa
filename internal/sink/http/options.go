package http

import (
	"crypto/tls"
	"errors"
	"log/slog"
	nethttp "net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/foreachbatch"
	"github.com/weirlake/weir/internal/sink/rowjson"
)

// Formats of a request's body.
const (
	NDJSON = "ndjson"
	JSON   = "json"
)

// Defaults of a zero Options.
const (
	DefaultChunkRows      = 1000
	DefaultChunkBytes     = 4 << 20
	DefaultConcurrency    = 1
	DefaultRequestTimeout = 30 * time.Second
	DefaultDeadline       = 2 * time.Minute
	DefaultRejectedMax    = 1000

	backoffMin = 200 * time.Millisecond
	backoffMax = 15 * time.Second
	// concurrencyMax bounds the requests under way.
	concurrencyMax = 64
	// answerMax bounds what is read of an answer, and messageMax what is shown.
	answerMax  = 16 << 20
	messageMax = 300
)

// Options make a sink.
type Options struct {
	Name, Query string
	// Shape is the rows'.
	Shape *arrow.Schema
	// URL takes the requests, by Method (POST where empty).
	URL, Method string
	// Headers are sent along. Their values, and everything of the URL beyond its
	// path, are kept out of messages.
	Headers map[string]string
	Format  string
	Gzip    bool
	// A chunk ends at ChunkRows rows or before it grows over ChunkBytes.
	ChunkRows  int
	ChunkBytes int64
	// Concurrency is how many chunks may be under way. Rows of a chunk are in
	// order; chunks are only where it is 1.
	Concurrency int
	// RequestTimeout bounds one request, Deadline the tries of one chunk.
	RequestTimeout, Deadline time.Duration
	// AlreadyApplied are the statuses that say so; 409 where nil.
	AlreadyApplied []int
	// RowResults: answers that say "applied" carry {"rejected":[{"row":N,
	// "error":"…"}]}, N counting from 0 within the chunk.
	RowResults bool
	OnRejected sink.OnRejected
	// RejectedMax is how many rows of a batch may be refused before the query
	// stops: a receiver that refuses everything is another problem.
	RejectedMax int
	// Key, if set, adds each row's place in Kafka.
	Key *rowjson.Key
	// TLS is the client's; nil for the system's roots.
	TLS *tls.Config

	Record   objstore.Store
	Clock    clock.Clock
	Logger   *slog.Logger
	Stopping <-chan struct{}
	// BatchBytes is how large a batch may be in memory; 0 for the default.
	BatchBytes int64
}

func (o *Options) defaults() {
	set(&o.Name, "http")
	set(&o.Method, nethttp.MethodPost)
	set(&o.Format, NDJSON)
	set(&o.ChunkRows, DefaultChunkRows)
	set(&o.ChunkBytes, DefaultChunkBytes)
	set(&o.Concurrency, DefaultConcurrency)
	set(&o.RequestTimeout, DefaultRequestTimeout)
	set(&o.Deadline, DefaultDeadline)
	set(&o.OnRejected, sink.RejectFail)
	set(&o.RejectedMax, DefaultRejectedMax)
	if o.AlreadyApplied == nil {
		o.AlreadyApplied = []int{nethttp.StatusConflict}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

func set[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// validate names every conflict at once.
func (o *Options) validate() error {
	var faults []string
	u, err := url.Parse(o.URL)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		faults = append(faults, "url must be http:// or https:// with a host")
	}
	if o.Format != NDJSON && o.Format != JSON {
		faults = append(faults, "format is ndjson or json")
	}
	if o.ChunkRows < 1 || o.ChunkBytes < 1 || o.RequestTimeout < 0 || o.Deadline < 0 || o.RejectedMax < 0 {
		faults = append(faults, "limits must be positive")
	}
	if o.Concurrency < 1 || o.Concurrency > concurrencyMax {
		faults = append(faults, "concurrency is 1 to 64")
	}
	if o.OnRejected != sink.RejectFail && o.OnRejected != sink.RejectDeadLetter {
		faults = append(faults, "onRejected is fail or deadLetter")
	}
	for name := range o.Headers {
		if slices.Contains(ownHeaders, nethttp.CanonicalHeaderKey(name)) {
			faults = append(faults, "header "+name+" is set by weir")
		}
	}
	if len(faults) > 0 {
		slices.Sort(faults)
		return failure.New(failure.Config, "query %s, HTTP sink: %s", o.Query, strings.Join(faults, "; "))
	}
	return nil
}

// New makes the sink: a sink with a record of deliveries whose function sends
// requests.
func New(o Options) (*foreachbatch.Sink, error) {
	o.defaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.Shape == nil || o.Clock == nil {
		return nil, errors.New("an HTTP sink needs the rows' shape and a clock")
	}
	if _, err := rowjson.New(o.Shape, nil, nil); err != nil {
		return nil, err
	}
	if err := o.Key.Check(o.Shape); err != nil {
		return nil, err
	}
	transport := &nethttp.Transport{
		Proxy: nethttp.ProxyFromEnvironment, TLSClientConfig: o.TLS, MaxIdleConnsPerHost: o.Concurrency, ForceAttemptHTTP2: true,
		IdleConnTimeout: time.Minute,
	}
	s := &sender{o: o, client: &nethttp.Client{
		Transport: transport,
		// A redirect would turn a POST into a GET, or send rows and secrets to
		// another host.
		CheckRedirect: func(*nethttp.Request, []*nethttp.Request) error { return nethttp.ErrUseLastResponse },
	}}
	first := note{Format: noteFormat, Body: o.Format, Rows: o.ChunkRows, Bytes: o.ChunkBytes}
	return foreachbatch.New(foreachbatch.Options{
		Name: o.Name, Query: o.Query, Handler: s.deliver, Record: o.Record, Clock: o.Clock, Stopping: o.Stopping,
		Limits: foreachbatch.Limits{BatchBytes: o.BatchBytes}, Note: first.encode(), Probe: s.probe,
	})
}
