package pipeline

import (
	"net/url"
	"strconv"
	"time"
)

// HTTPSink sends batches to an HTTP API, in chunks.
type HTTPSink struct {
	URL     Secret            `yaml:"url" weir:"required"`
	Method  string            `yaml:"method" weir:"enum=POST|PUT|PATCH"`
	Headers map[string]Secret `yaml:"headers"`
	TLS     *TLS              `yaml:"tls"`
	Format  string            `yaml:"format" weir:"enum=ndjson|json"`
	Gzip    bool              `yaml:"gzip"`
	// A chunk ends at ChunkRows rows or before it grows over ChunkBytes.
	ChunkRows   int  `yaml:"chunkRows" weir:"min=1,max=1000000"`
	ChunkBytes  Size `yaml:"chunkBytes" weir:"min=1024,max=1073741824"`
	Concurrency int  `yaml:"concurrency" weir:"min=1,max=64"`
	// RequestTimeout bounds one request, Deadline the tries of one chunk.
	RequestTimeout time.Duration `yaml:"requestTimeout" weir:"min=10ms"`
	Deadline       time.Duration `yaml:"deadline" weir:"min=0s"`
	// AlreadyApplied are statuses that say that a chunk was applied before.
	AlreadyApplied []string `yaml:"alreadyApplied" weir:"min=1"`
	RowResults     bool     `yaml:"rowResults"`
	RecordKey      bool     `yaml:"recordKey"`
	OnRejected     string   `yaml:"onRejected" weir:"enum=fail|deadLetter"`
	RejectedTable  string   `yaml:"rejectedTable" weir:"table"`
	RejectedMax    int      `yaml:"rejectedMax" weir:"min=1,max=10000"`
	MaxBatchBytes  Size     `yaml:"maxBatchBytes" weir:"min=1048576"`
}

func (s *HTTPSink) setDefaults() {
	s.Method, s.Format, s.ChunkRows, s.ChunkBytes, s.Concurrency = "POST", "ndjson", 1000, 4<<20, 1
	s.RequestTimeout, s.Deadline = 30*time.Second, 2*time.Minute
	s.OnRejected, s.RejectedMax, s.MaxBatchBytes = RejectFail, 1000, DefaultMaxBatchBytes
}

// Target implements External: the URL without what may be secret.
func (s *HTTPSink) Target() string {
	u, err := url.Parse(s.URL.Reveal())
	if err != nil || u.Host == "" {
		return "http"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// Rejects implements External.
func (s *HTTPSink) Rejects() (string, string) { return s.OnRejected, s.RejectedTable }

// Statuses are those of AlreadyApplied, nil where none is given.
func (s *HTTPSink) Statuses() (out []int) {
	for _, t := range s.AlreadyApplied {
		if n, err := strconv.Atoi(t); err == nil {
			out = append(out, n)
		}
	}
	return out
}

func (s *HTTPSink) check(l *loader, _ *Pipeline, q *Query, key string) {
	if u, err := url.Parse(s.URL.Reveal()); !l.isBroken(key+".url") && !s.URL.IsZero() && (err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "") {
		l.faultKey(key+".url", "url is not of the form https://host/path (it is not shown: it may hold a secret)")
	}
	for _, t := range s.AlreadyApplied {
		if n, err := strconv.Atoi(t); err != nil || n < 400 || n > 499 {
			l.faultKey(key+".alreadyApplied", "alreadyApplied: %q is not a status of 400 to 499", clip(t))
		}
	}
	l.checkTLS(s.TLS, key+".tls")
	if s.RecordKey {
		l.checkRecordKey(q, key+".recordKey")
	}
}
