package iceberg

import (
	"context"
	"errors"

	"github.com/weirlake/weir/internal/lake"
)

// Maintain takes old snapshots out of the table's metadata when enough have
// gathered (Options.Retention); it reads the table's location and returns when
// not. The engine calls it between batches, so it never races with a commit of
// the same sink; a race with another writer is no error, the next call tries
// again.
func (s *Sink) Maintain(ctx context.Context) error {
	t, err := s.opts.Catalog.LoadTable(ctx, s.opts.Table)
	if err != nil {
		return err
	}
	r := s.opts.Retention
	if s.opts.OldestReader != nil {
		oldest, err := s.opts.OldestReader(ctx)
		if err != nil {
			return err
		}
		if oldest > 0 && (r.OldestReader == 0 || oldest < r.OldestReader) {
			r.OldestReader = oldest
		}
	}
	if !r.Due(t) {
		return nil
	}
	if _, err := s.opts.Catalog.Expire(ctx, t, r); err != nil && !errors.Is(err, lake.ErrConflict) {
		return err
	}
	return nil
}
