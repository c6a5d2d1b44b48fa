package s3

import (
	"context"
	"sync"

	"github.com/weirlake/weir/internal/failure"
)

// Stores finds the client of a bucket among several Configs, opening each once.
// A bucket without a Config is on AWS, by the default chain.
type Stores struct {
	configs map[string]Config

	mu   sync.Mutex
	open map[string]*Client // by Config.Bucket
}

// NewStores checks the settings. At most one of them is for all buckets.
func NewStores(configs ...Config) (*Stores, error) {
	s := &Stores{configs: map[string]Config{}, open: map[string]*Client{}}
	for _, c := range configs {
		if _, twice := s.configs[c.Bucket]; twice {
			return nil, failure.New(failure.Config, "two stores for bucket %q", c.Bucket)
		}
		if err := c.Validate(); err != nil {
			return nil, err
		}
		s.configs[c.Bucket] = c
	}
	return s, nil
}

// Config is what a bucket is reached by.
func (s *Stores) Config(bucket string) Config {
	if c, ok := s.configs[bucket]; ok {
		return c
	}
	return s.configs[""]
}

// Client gives the client of a bucket.
func (s *Stores) Client(ctx context.Context, bucket string) (*Client, error) {
	c := s.Config(bucket)
	s.mu.Lock()
	defer s.mu.Unlock()
	if open, ok := s.open[c.Bucket]; ok {
		return open, nil
	}
	// Credentials are fetched long after this call, so its end must not end them.
	client, err := Open(context.WithoutCancel(ctx), c)
	if err != nil {
		return nil, err
	}
	s.open[c.Bucket] = client
	return client, nil
}
