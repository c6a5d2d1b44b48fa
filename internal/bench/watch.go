package bench

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the catalog's database

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/failure"
)

const (
	// lookEvery is the pause between two questions to the catalog; what is seen
	// is seen up to this much late.
	lookEvery = 3 * time.Millisecond
)

// eye asks the catalog where a table's metadata is: every time anew, over a
// connection that stays open, so that looking often costs the measured process
// little of the cores.
type eye struct{ db *sql.DB }

func (s setup) eye() (*eye, error) {
	u := url.URL{Scheme: "file", Opaque: (&url.URL{Path: filepath.Join(s.Dir, "catalog.db")}).EscapedPath(),
		RawQuery: "mode=rw&_pragma=busy_timeout(10000)&_pragma=query_only(true)"}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return nil, failure.Wrap(failure.Unreachable, err, "open the catalog")
	}
	return &eye{db}, nil
}

func (e *eye) close() { _ = e.db.Close() }

// MetadataLocation implements audit.Locator.
func (e *eye) MetadataLocation(ctx context.Context, name string) (string, error) {
	namespace, table, _ := strings.Cut(name, ".")
	var at string
	err := e.db.QueryRowContext(ctx, `SELECT metadata_location FROM iceberg_tables WHERE catalog_name = 'weir' AND table_namespace = ? AND table_name = ?`,
		namespace, table).Scan(&at)
	switch {
	case errors.Is(err, sql.ErrNoRows), err != nil && (strings.Contains(err.Error(), "no such table") || strings.Contains(err.Error(), "unable to open")):
		return "", &audit.NoTableError{Table: name, Catalog: "catalog.db"}
	case err != nil:
		return "", failure.Wrap(failure.Unreachable, err, "ask the catalog for %s", name)
	}
	return at, nil
}

// sighting is when another process first saw the table reach these offsets.
type sighting struct {
	at   time.Time
	ends map[int32]int64
}

func (s sighting) total() (n int64) {
	for _, e := range s.ends {
		n += e
	}
	return n
}

// watch looks at a table until see says that it has seen enough, or ctx ends.
// see is called for every new state of the table.
func (b *bench) watch(ctx context.Context, s setup, table string, see func(sighting) (enough bool)) error {
	e, err := s.eye()
	if err != nil {
		return err
	}
	defer e.close()
	last := ""
	for {
		at, err := e.MetadataLocation(ctx, table)
		var none *audit.NoTableError
		if err != nil && !errors.As(err, &none) {
			return err
		}
		if err == nil && at != last {
			h, err := audit.Glance(ctx, e, nil, table)
			if err != nil {
				return err
			}
			now := b.o.Clock.Now()
			last = h.MetadataLocation
			ends, err := h.Offsets(s.Topic)
			if err != nil {
				return err
			}
			if see(sighting{now, ends}) {
				return nil
			}
		}
		if err := b.o.Clock.Sleep(ctx, lookEvery); err != nil {
			return err
		}
	}
}

// until waits for a sighting, as long as the process runs.
func (b *bench) until(ctx context.Context, s setup, c *child, table, what string, see func(sighting) bool) (sighting, error) {
	ctx, cancel := context.WithTimeout(ctx, waitMax)
	defer cancel()
	alive, end := context.WithCancel(ctx)
	defer end()
	go func() {
		select {
		case <-c.exited:
			end()
		case <-alive.Done():
		}
	}()
	var got sighting
	err := b.watch(alive, s, table, func(at sighting) bool {
		got = at
		return see(at)
	})
	switch {
	case err == nil:
		return got, nil
	case !c.running():
		return got, failure.New(failure.Runtime, "%s ended before %s: %v\n%s", c.name, what, c.err, c.tail())
	case ctx.Err() != nil:
		return got, failure.New(failure.Runtime, "%s: no %s within %s", c.name, what, waitMax)
	}
	return got, err
}
