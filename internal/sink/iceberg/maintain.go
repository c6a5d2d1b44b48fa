package iceberg

import (
	"context"

	"github.com/weirlake/weir/internal/maintain"
)

// Maintain does a bounded part of what is due in the care of the table (package
// maintain, by Options.Care and Options.Retention). The engine calls it between
// batches, so it never races with a commit of the same sink; a race with another
// writer is no error, the next call tries again.
func (s *Sink) Maintain(ctx context.Context) error { return s.care.Step(ctx) }

// Settle commits what Maintain has begun and is ready; with wait it waits for it.
// Like Maintain it is called between batches.
func (s *Sink) Settle(ctx context.Context, wait bool) error { return s.care.Settle(ctx, wait) }

// Health is how the table stood when Maintain last looked.
func (s *Sink) Health() maintain.Health { return s.care.Health() }

// careOf completes the settings of the care with what the sink knows.
func careOf(o Options) maintain.Settings {
	c := o.Care
	c.Beside = true
	c.Retention, c.OldestReader, c.Clock, c.Scope = o.Retention, o.OldestReader, o.Clock, o.Query
	// Staged files that are older than half of it are staged again (checkStaged).
	c.OrphanAge = max(c.OrphanAge, o.Limits.OrphanAge)
	return c
}
