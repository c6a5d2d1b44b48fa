package sim

import (
	"context"
	"fmt"
	"sync"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/lake"
)

// pointers is the database of the catalog: what it acknowledged is durable.
type pointers struct {
	mu sync.Mutex
	at map[string]string
	// swapped is called, where set, with each pointer that was moved.
	swapped func(table, location string)
}

func (c *pointers) get(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at[name]
}

func (c *pointers) swap(name, from, to string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at[name] != from {
		return fmt.Errorf("%w: another commit to %s came first", lake.ErrConflict, name)
	}
	c.at[name] = to
	return nil
}

// session is one process's connection to it.
type session struct {
	p  *process
	db *pointers
}

var _ lake.Pointers = session{}

// Location implements lake.Pointers.
func (s session) Location(ctx context.Context, ident table.Identifier) (loc string, err error) {
	name := lake.Name(ident)
	err = s.p.do(ctx, "catalog look up "+name, false, func(int) error {
		if loc = s.db.get(name); loc == "" {
			return fmt.Errorf("%w: %s", lake.ErrNoTable, name)
		}
		return nil
	})
	return loc, err
}

// Swap implements lake.Pointers. An answer that did not come leaves the
// outcome open, whatever it would have been.
func (s session) Swap(ctx context.Context, ident table.Identifier, from, to string) error {
	name := lake.Name(ident)
	answered := false
	err := s.p.do(ctx, "catalog swap "+name, true, func(cut int) error {
		if cut == 0 {
			return errDead
		}
		answered = true
		return s.db.swap(name, from, to)
	})
	switch {
	case err == errLost: //nolint:errorlint // as do returns it
		return fmt.Errorf("%w: %w", lake.ErrUnknown, err)
	case err == errAway && !answered: //nolint:errorlint // as do returns it
		return err
	}
	return err
}
