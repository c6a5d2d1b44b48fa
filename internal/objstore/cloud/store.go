package cloud

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore"
)

const (
	// createAttemptsMax bounds how often a create-once is sent whose outcome the
	// object itself could not tell.
	createAttemptsMax = 6
	createPause       = 200 * time.Millisecond
)

// Store is one prefix of a bucket as an objstore.Store.
type Store struct {
	c      *Client
	at     Location
	prefix string // of the keys: empty, or with its slash
	clock  clock.Clock
}

var _ objstore.Store = (*Store)(nil)

// NewStore gives the prefix at a location. Nothing is asked or written.
func (c *Client) NewStore(at Location, clk clock.Clock) *Store {
	s := &Store{c: c, at: at, clock: clk}
	if at.Key != "" {
		s.prefix = at.Key + "/"
	}
	if s.clock == nil {
		s.clock = clock.System{}
	}
	return s
}

// Location implements objstore.Store.
func (s *Store) Location() string { return s.at.String() }

func (s *Store) check(ctx context.Context, key string) error {
	if err := objstore.CheckKey(key); err != nil {
		return err
	}
	return ctx.Err()
}

func (s *Store) location(key string) Location {
	return Location{s.at.Kind, s.at.Bucket, s.prefix + key}
}

// CreateOnce implements objstore.Store. Whatever a request's answer was, what
// decides is the object: it names the call that wrote it.
func (s *Store) CreateOnce(ctx context.Context, key string, data []byte) (created bool, existing []byte, err error) {
	if err := s.check(ctx, key); err != nil {
		return false, nil, err
	}
	l := s.location(key)
	w := write{at: l, data: data, nonce: clock.Nonce(), once: true}
	for attempt := 1; ; attempt++ {
		err := s.c.put(ctx, w)
		if err == nil {
			return true, nil, nil
		}
		if ctx.Err() != nil || refused(err) {
			return false, nil, classify(err, "create", l)
		}
		o, gerr := s.c.api.get(ctx, l, nil, "")
		switch {
		case gerr == nil && o.nonce == w.nonce:
			return true, nil, nil // the answer to our own request was lost
		case gerr == nil:
			return false, o.data, nil
		case !isNoObject(gerr):
			return false, nil, classify(errors.Join(err, gerr), "create", l)
		case attempt == createAttemptsMax:
			if isTaken(err) {
				return false, nil, failure.Wrap(failure.Unreachable, err, "create %s: the store says that something is there, and there is nothing", l)
			}
			return false, nil, classify(err, "create", l)
		}
		// Not there: taken and deleted since, or never arrived. Should it arrive
		// late, the next attempt meets it.
		if err := s.clock.Sleep(ctx, time.Duration(attempt)*createPause); err != nil {
			return false, nil, err
		}
	}
}

// refused: the store has answered that it will not do this at all.
func refused(err error) bool {
	var ae *authError
	if errors.As(err, &ae) && ae.final {
		return true
	}
	s := statusOf(err)
	return s >= 400 && s < 500 && !isTaken(err) && !isNoObject(err)
}

// Put implements objstore.Store.
func (s *Store) Put(ctx context.Context, key string, data []byte) error {
	if err := s.check(ctx, key); err != nil {
		return err
	}
	return s.c.Write(ctx, s.location(key), data)
}

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	if err := s.check(ctx, key); err != nil {
		return nil, err
	}
	return s.c.Read(ctx, s.location(key))
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix string) ([]objstore.Info, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var out []objstore.Info
	err := s.c.api.list(ctx, s.at, s.prefix+prefix, func(key string, i Info) error {
		rest := strings.TrimPrefix(key, s.prefix)
		// Consoles make "folders": empty objects whose name ends in a slash.
		if rest != "" && !strings.HasSuffix(rest, "/") {
			out = append(out, objstore.Info{Key: rest, Size: i.Size, Modified: i.Modified})
		}
		return nil
	})
	if err != nil {
		return nil, classify(err, "list", s.location(prefix))
	}
	slices.SortFunc(out, func(a, b objstore.Info) int { return strings.Compare(a.Key, b.Key) })
	return out, nil
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := s.check(ctx, key); err != nil {
		return err
	}
	return s.c.Remove(ctx, s.location(key))
}

// Probe refuses a store that a checkpoint cannot stand on: one that ignores
// conditions, or that loses the user metadata by which a lost answer is told
// from somebody else's object.
func (s *Store) Probe(ctx context.Context) error {
	l := s.location(objstore.ProbePrefix + clock.Nonce())
	w := write{at: l, data: []byte("probe"), nonce: clock.Nonce()}
	if err := s.c.put(ctx, w); err != nil {
		return classify(err, "write", l)
	}
	defer func() { _ = s.c.Remove(context.WithoutCancel(ctx), l) }()
	o, err := s.c.api.get(ctx, l, nil, "")
	if err != nil {
		return named(err, "read", l)
	}
	if o.nonce != w.nonce {
		return failure.New(failure.Config, "the store %s does not keep an object's user metadata", s.at).
			WithHint("checkpoints need it to tell a lost answer from another writer; use another store for the checkpoint location")
	}
	if err := objstore.ProbeCreateOnce(ctx, s); err != nil {
		return fmt.Errorf("probe %s: %w", s.at, err)
	}
	return nil
}
