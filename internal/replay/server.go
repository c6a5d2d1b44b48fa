package replay

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlake/weir/internal/failure"
)

// Path is where the service has the stream; the server answers on any path.
const Path = "/v2/stream/recentchange"

// CountsPath answers with Report as JSON.
const CountsPath = "/replay/counts"

// Server plays a stream to any number of clients.
type Server struct {
	cfg    Config
	stream stream
	gen    *Generator // nil where a file is played
	// end is the number of frames that are played.
	end       int64
	endMillis int64
	endCentre int

	limit atomic.Int64
	stats struct{ connections, frames, cuts, stalls, refused, finished, highest atomic.Int64 }

	mu sync.Mutex
	// head frames were available at headAt; since then rate more a second.
	head   int64
	headAt time.Time
	// unavailable is how many connections are still to be refused.
	unavailable int
}

// Stats is what a server did.
type Stats struct {
	Connections int64 `json:"connections"`
	// Frames counts frames handed to the network, repeated ones again.
	Frames int64 `json:"frames"`
	// Highest is the number of frames that were sent at least once.
	Highest  int64 `json:"highest"`
	Cuts     int64 `json:"cuts"`
	Stalls   int64 `json:"stalls"`
	Refused  int64 `json:"refused"`
	Finished int64 `json:"finished"`
}

// Report is what CountsPath answers.
type Report struct {
	Config Config `json:"config"`
	// Counts are those of the whole stream, or of what was sent so far of one
	// without an end. Absent for a file.
	Counts *Counts `json:"counts,omitempty"`
	Stats  Stats   `json:"stats"`
}

// NewServer checks the configuration and prepares the stream.
func NewServer(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if errs := cfg.Validate(); len(errs) > 0 {
		return nil, configError("the replay server", errs)
	}
	s := &Server{cfg: cfg}
	if cfg.File != "" {
		rec, err := openRecording(cfg.File)
		if err != nil {
			return nil, err
		}
		s.stream, s.end = rec, rec.Length()
	} else {
		g, err := NewGenerator(cfg.Generator)
		if err != nil {
			return nil, err
		}
		s.cfg.Generator = g.Config()
		s.stream, s.gen, s.end = g, g, g.Length()
		if cfg.Total > 0 {
			s.end = g.FramesFor(cfg.Total)
		}
	}
	if s.end != endless {
		s.endMillis, s.endCentre = s.endPosition()
	}
	s.limit.Store(math.MaxInt64)
	s.headAt = cfg.Clock.Now()
	return s, nil
}

// Generator is the stream's generator, nil where a file is played.
func (s *Server) Generator() *Generator { return s.gen }

// Frames is the number of frames of the whole stream, 0 for one without an end.
func (s *Server) Frames() int64 {
	if s.end == endless {
		return 0
	}
	return s.end
}

// SetLimit holds the stream back after so many frames, until the limit is set
// higher: what a scenario in phases needs. Connections stay open meanwhile.
func (s *Server) SetLimit(frames int64) { s.limit.Store(frames) }

// Report says what was played so far.
func (s *Server) Report() Report {
	st := &s.stats
	r := Report{Config: s.cfg, Stats: Stats{
		Connections: st.connections.Load(), Frames: st.frames.Load(), Highest: st.highest.Load(), Cuts: st.cuts.Load(),
		Stalls: st.stalls.Load(), Refused: st.refused.Load(), Finished: st.finished.Load(),
	}}
	if s.gen != nil {
		frames := s.end
		if frames == endless {
			frames = r.Stats.Highest
		}
		c := s.gen.Counts(frames)
		r.Counts = &c
	}
	return r
}

// Handler serves the stream on every path but CountsPath.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+CountsPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.Report())
	})
	mux.HandleFunc("GET /", s.serve)
	return mux
}

// serve answers one connection.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if s.refuse() {
		s.stats.refused.Add(1)
		http.Error(w, "upstream connect error or disconnect/reset before headers", http.StatusServiceUnavailable)
		return
	}
	rd := s.stream.reader()
	b, err := s.resume(r, rd)
	if err != nil {
		http.Error(w, "Last-Event-ID or since is "+err.Error(), http.StatusBadRequest)
		return
	}
	if s.finished(b) {
		s.stats.finished.Add(1)
		w.WriteHeader(http.StatusNoContent)
		return
	}
	b.frame = min(b.frame, s.end-1)
	c := &connection{s: s, rd: rd, w: w, ctl: http.NewResponseController(w), begin: b, number: s.stats.connections.Add(1)}
	c.plain = r.Header.Get("Accept") == "application/json"
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	if c.plain {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
	}
	w.WriteHeader(http.StatusOK)
	c.run(r.Context())
}

// refuse takes one of the 503 answers that a cut has left behind.
func (s *Server) refuse() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unavailable == 0 {
		return false
	}
	s.unavailable--
	return true
}

// available is how many frames may be sent by now.
func (s *Server) available() int64 {
	limit := min(s.limit.Load(), s.end)
	if s.cfg.Rate == 0 {
		return limit
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return min(limit, s.head+int64(float64(s.cfg.Clock.Now().Sub(s.headAt).Seconds()*s.cfg.Rate)))
}

// reach makes the frames before n available: a client that resumes there has
// seen them from a server that ran before this one.
func (s *Server) reach(n int64) {
	if s.cfg.Rate == 0 || s.available() >= n {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.head, s.headAt = n, s.cfg.Clock.Now()
}

// Running is a server that listens.
type Running struct {
	// URL is the stream's address.
	URL    string
	Server *Server
	http   *http.Server
	done   chan error
}

// Listen serves a stream on addr (host:port; port 0 takes a free one) until
// ctx is done or Close is called.
func Listen(ctx context.Context, cfg Config, addr string) (*Running, error) {
	s, err := NewServer(cfg)
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "the replay server cannot listen on %s", addr).
			WithHint("choose another address; port 0 takes a free one")
	}
	r := &Running{
		URL: fmt.Sprintf("http://%s%s", ln.Addr(), Path), Server: s, done: make(chan error, 1),
		http: &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second},
	}
	stop := context.AfterFunc(ctx, func() { _ = r.http.Close() })
	go func() {
		defer stop()
		err := r.http.Serve(ln)
		if err == http.ErrServerClosed { //nolint:errorlint // Serve returns it as it is
			err = nil
		}
		r.done <- err
	}()
	return r, nil
}

// Close ends all connections.
func (r *Running) Close() error { return r.http.Close() }

// Wait returns when the server has stopped.
func (r *Running) Wait() error {
	err := <-r.done
	r.done <- err
	return err
}
