package file

import (
	"context"

	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/sink"
)

var _ sink.Prober = (*Sink)(nil)

// Probe implements sink.Prober: it writes, creates once, reads and deletes on
// names of its own.
func (s *Sink) Probe(ctx context.Context) error {
	if s.opts.Probe != nil {
		if err := s.opts.Probe(ctx); err != nil {
			return err
		}
	} else if err := objstore.ProbeCreateOnce(ctx, s.opts.Store); err != nil {
		return err
	}
	_, err := s.Facts(ctx, s.opts.Query)
	return err
}
