package lake

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

const (
	// loadDeadline is how long a running query waits for a catalog that stopped
	// answering. A fail-over or a restart of a database fits into it.
	loadDeadline = 60 * time.Second
	// loadTryMax bounds one try.
	loadTryMax = 20 * time.Second
)

// LoadTablePatiently is LoadTable for whoever reads outside of a commit: a
// catalog that does not answer is asked again until loadDeadline, and is
// failure.Unreachable then. A commit does not use it: its own rule decides
// after each single answer.
func (c *Catalog) LoadTablePatiently(ctx context.Context, ident table.Identifier, clk clock.Clock) (*table.Table, error) {
	began := clk.Now()
	for n := 0; ; n++ {
		tctx, cancel := context.WithTimeout(ctx, loadTryMax)
		t, err := c.LoadTable(tctx, ident)
		cancel()
		if err == nil || ctx.Err() != nil || !passing(err) {
			return t, err
		}
		pause := min(openPauseMin<<min(n, 10), openPauseMax)
		waited := clk.Now().Sub(began)
		if waited+pause > loadDeadline {
			return nil, failure.Wrap(failure.Unreachable, err, "load table %s: no answer from the catalog for %s", Name(ident), waited.Round(time.Second)).
				WithHint("nothing was lost; start again when the catalog answers")
		}
		if serr := clk.Sleep(ctx, pause); serr != nil {
			return nil, fmt.Errorf("load table %s: %w", Name(ident), errors.Join(serr, err))
		}
	}
}

// passing reports whether a later try may succeed where this one failed: not
// where the catalog answered that there is no such table, where its answer is
// classified as something else than an outage, nor where the metadata file
// that it names is gone.
func passing(err error) bool {
	if errors.Is(err, ErrNoTable) || errors.Is(err, fs.ErrNotExist) {
		return false
	}
	var classified *failure.Error
	return !errors.As(err, &classified) || classified.Class == failure.Unreachable
}
