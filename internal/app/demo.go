package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/ingest"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/replay"
)

// Fixed parts of the demo.
const (
	demoFile      = "demo.json"
	demoStreamURL = "http://stream.demo.localhost/v2/stream/recentchange"
	demoTrigger   = "500ms"
	// demoPastRate is the event time's rate where the stream is played as fast
	// as it is read: events then lie in the past, never in the future. It is a few
	// times that of the live stream, so that hours pass by in seconds and sessions
	// end; and not less, because what is in flight at the same time, some ten
	// thousand events, must not lie further apart than the watermark's delay.
	demoPastRate = 100
	// demoSessionGap ends a session sooner than in the shipped pipeline: nobody
	// watches a demo for an hour.
	demoSessionGap = "5m"
)

// DemoConfig says what the demo plays and where it keeps it.
type DemoConfig struct {
	Data string
	// Events ends the stream after so many distinct events; 0 never ends it.
	Events int64
	// Rate is events a second; 0 is as fast as they are taken.
	Rate float64
	Seed uint64
	// Delivery is at-least-once or exactly-once.
	Delivery string
	// Once ends the demo when everything is in silver.
	Once bool
	DemoPlaces
	// Audit is how a pipeline's tables are counted.
	Audit func(*pipeline.Pipeline) (audit.Locator, audit.Store, error)
}

// demoState is what a folder remembers, so that the next run plays the same
// stream on.
type demoState struct {
	Seed      uint64    `json:"seed"`
	Start     time.Time `json:"start"`
	EventRate float64   `json:"event_rate"`
	Delivery  string    `json:"delivery"`
	// Events is the greatest end that was asked for so far.
	Events int64 `json:"events,omitempty"`
	// Places are where everything was put, without a password.
	Places DemoPlaces `json:"places"`
}

// Demo is the whole pipeline on a generated stream.
type Demo struct {
	*App
	cfg    DemoConfig
	server *replay.Server
	in     *ingest.Ingester
	began  time.Time
	// ingested is set when the stream has ended and all of it is in Kafka.
	ingested atomic.Bool
}

// OpenDemo prepares the demo in its folder, or goes on with what is there.
func OpenDemo(ctx context.Context, cfg DemoConfig, o Options) (*Demo, error) {
	if err := os.MkdirAll(cfg.Data, 0o755); err != nil {
		return nil, failure.Wrap(failure.Config, err, "make the demo's folder")
	}
	data, err := filepath.Abs(cfg.Data)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "the demo's folder")
	}
	cfg.Data = data
	a0 := App{opts: o}
	a0.fillOptions()
	p, err := demoPipeline(cfg)
	if err != nil {
		return nil, err
	}
	st, err := a0.loadDemoState(cfg)
	if err != nil {
		return nil, err
	}
	a, err := Open(ctx, p, a0.opts)
	if err != nil {
		return nil, err
	}
	d := &Demo{App: a, cfg: cfg, began: a.opts.Clock.Now()}
	if err := d.openStream(st); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return d, nil
}

// demoPipeline is the built-in Wikimedia pipeline in the demo's folder.
func demoPipeline(cfg DemoConfig) (*pipeline.Pipeline, error) {
	env := map[string]string{
		"WEIR_DATA": cfg.Data, "WEIR_SSE_URL": demoStreamURL, "WEIR_SSE_SINCE": "0", "WEIR_TRIGGER": demoTrigger,
		"WEIR_SESSION_GAP": demoSessionGap,
		"WEIR_DELIVERY":    cfg.Delivery, "WEIR_LISTEN": "none",
	}
	text, err := cfg.put([]byte(pipeline.Example(pipeline.ExampleWikimedia)))
	if err != nil {
		return nil, err
	}
	p, faults := pipeline.LoadBytes("examples/wikimedia.yaml", cfg.Data, text,
		func(name string) (string, bool) { v, ok := env[name]; return v, ok && v != "" })
	if len(faults) > 0 {
		return nil, failure.Wrap(failure.Config, faults[0], "the demo's pipeline")
	}
	return p, nil
}

// loadDemoState reads what the folder remembers, or decides it: event times
// begin now where the stream is played at a rate, and in the past otherwise.
func (a *App) loadDemoState(cfg DemoConfig) (demoState, error) {
	path := filepath.Join(cfg.Data, demoFile)
	b, err := os.ReadFile(path)
	if err == nil {
		var st demoState
		if err := json.Unmarshal(b, &st); err != nil {
			return st, failure.Wrap(failure.Checkpoint, err, "read %s", path)
		}
		if st.Seed != cfg.Seed || st.Delivery != cfg.Delivery {
			return st, failure.New(failure.Config, "%s holds a demo with --seed %d --delivery %s", cfg.Data, st.Seed, st.Delivery).
				WithHint("give the same flags to go on with it, or another --data folder")
		}
		if st.Places != cfg.redacted() {
			return st, failure.New(failure.Config, "%s holds a demo that lies elsewhere: %s", cfg.Data, st.Places).
				WithHint("give the same flags to go on with it, or another --data folder")
		}
		if cfg.Events > 0 && cfg.Events < st.Events {
			return st, failure.New(failure.Config, "%s holds a demo of %d events already, --events %d is fewer", cfg.Data, st.Events, cfg.Events).
				WithHint("give --events %d or more to go on with it, or another --data folder", st.Events)
		}
		if cfg.Events > st.Events {
			st.Events = cfg.Events
			return st, saveDemoState(path, st)
		}
		return st, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return demoState{}, failure.Wrap(failure.Config, err, "read %s", path)
	}
	st := demoState{Seed: cfg.Seed, Start: a.opts.Clock.Now(), EventRate: cfg.Rate, Delivery: cfg.Delivery, Events: cfg.Events, Places: cfg.redacted()}
	if cfg.Rate == 0 {
		st.EventRate = demoPastRate
		st.Start = st.Start.Add(-time.Duration(float64(cfg.Events) / demoPastRate * float64(time.Second)))
	}
	return st, saveDemoState(path, st)
}

func saveDemoState(path string, st demoState) error {
	b, err := json.MarshalIndent(st, "", "  ")
	if err == nil {
		tmp := path + ".tmp"
		if err = os.WriteFile(tmp, append(b, '\n'), 0o644); err == nil {
			err = os.Rename(tmp, path)
		}
	}
	if err != nil {
		return failure.Wrap(failure.Config, err, "write %s", path)
	}
	return nil
}

// openStream starts the stream's server on a free port of the loopback
// interface, and an ingestion that reaches it under a fixed name: the resume
// position belongs to the name, whatever port the server has this time.
func (d *Demo) openStream(st demoState) error {
	// A client that has everything resumes its own overlap before the last
	// event's time, which is a millisecond before its position.
	overlap := d.P.Ingest[0].SSE.Overlap + time.Millisecond
	server, err := replay.NewServer(replay.Config{
		Generator: replay.GeneratorConfig{Seed: st.Seed, Start: st.Start, Rate: st.EventRate, Plan: replay.DefaultPlan()},
		Total:     d.cfg.Events, Rate: d.cfg.Rate, Overlap: overlap, Clock: d.opts.Clock,
	})
	if err != nil {
		return err
	}
	d.server = server
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return failure.Wrap(failure.Runtime, err, "listen for the demo's stream")
	}
	web := &http.Server{Handler: server.Handler(), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = web.Serve(l) }()
	d.closers = append(d.closers, web.Close)
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "tcp", l.Addr().String())
		},
	}}
	d.in, err = d.Ingester("", client)
	return err
}

// Run plays the stream through the pipeline until ctx ends or, with Once and an
// end, until everything is in silver.
func (d *Demo) Run(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	drained := make(chan struct{})
	g.Go(func() error {
		err := d.RunIngester(gctx, d.in)
		if err != nil || gctx.Err() != nil {
			return err
		}
		d.ingested.Store(true)
		if d.cfg.Once {
			close(drained)
		}
		return nil
	})
	d.jobsOff = d.cfg.Once // then they run once, when everything is there
	g.Go(func() error { return d.App.Run(gctx, drained) })
	err := g.Wait()
	if err == nil && d.cfg.Once && ctx.Err() == nil {
		err = d.runJobsOnce(ctx)
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return nil //nolint:nilerr // the stop that was asked for is a clean end
	}
	return err
}

// DemoProgress is how far the demo is.
type DemoProgress struct {
	Ingest   ingest.Stats
	Frames   int64 // of the whole stream, 0 without an end
	Ingested bool
}

// Progress is how far the demo is.
func (d *Demo) Progress() DemoProgress {
	return DemoProgress{Ingest: d.in.Stats(), Frames: d.server.Frames(), Ingested: d.ingested.Load()}
}

// Elapsed is the time since the demo was opened.
func (d *Demo) Elapsed() time.Duration { return d.opts.Clock.Now().Sub(d.began) }

// String describes the stream.
func (c DemoConfig) String() string {
	n := "an endless stream"
	if c.Events > 0 {
		n = strconv.FormatInt(c.Events, 10) + " events"
	}
	if c.Rate > 0 {
		n += fmt.Sprintf(" at %g a second", c.Rate)
	}
	return n
}
