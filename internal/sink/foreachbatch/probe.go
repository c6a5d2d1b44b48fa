package foreachbatch

import (
	"context"

	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/sink"
)

var _ sink.Prober = (*Sink)(nil)

// Probe implements sink.Prober: the record of deliveries, and what Options.Probe
// says of the receiver.
func (s *Sink) Probe(ctx context.Context) error {
	if p, ok := s.opts.Record.(interface{ Probe(context.Context) error }); ok {
		if err := p.Probe(ctx); err != nil {
			return err
		}
	} else if err := objstore.ProbeCreateOnce(ctx, s.opts.Record); err != nil {
		return err
	}
	if _, err := s.Facts(ctx, s.opts.Query); err != nil {
		return err
	}
	if s.opts.Probe == nil {
		return nil
	}
	return s.opts.Probe(ctx)
}
