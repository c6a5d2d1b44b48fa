package iceberg

import (
	"context"
	"errors"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
)

// Claim implements sink.Sink.
func (s *Sink) Claim(ctx context.Context, want sink.Facts, m *marker.Marker) (sink.Permit, bool, error) {
	if m.QueryName != s.opts.Query {
		return sink.Permit{}, false, failure.New(failure.Config, "sink %s belongs to query %s, not %s", s.Name(), s.opts.Query, m.QueryName)
	}
	if want.Marker != nil && !m.Epoch.Newer(want.Marker.Epoch) {
		return sink.Permit{}, false, failure.New(failure.Fenced, "table %s: epoch %s of query %s does not come after %s",
			s.Name(), m.Epoch, m.QueryName, want.Marker.Epoch)
	}
	t, moved, err := s.claimBase(ctx, want)
	if err != nil || moved {
		return sink.Permit{}, moved, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.Limits.CommitDeadline)
	defer cancel()
	var last error
	for n := 1; n <= s.opts.Limits.Errors; n++ {
		ch, err := s.claimChange(t, want, m)
		if err != nil {
			return sink.Permit{}, false, err
		}
		after, err := s.opts.Catalog.Commit(ctx, t, ch)
		if err == nil {
			s.remember(after)
			return sink.NewPermit(s, m.Epoch), false, nil
		}
		last = err
		fresh, lerr := s.opts.Catalog.LoadTable(ctx, s.opts.Table)
		switch {
		case errors.Is(lerr, lake.ErrNoTable):
			return sink.Permit{}, true, nil
		case lerr == nil:
			if landed(fresh, s.key, m) {
				s.remember(fresh)
				return sink.NewPermit(s, m.Epoch), false, nil
			}
			if !sameHead(fresh, t) || lake.IsConflict(err) {
				return sink.Permit{}, true, nil
			}
			t = fresh
		}
		if err := s.pause(ctx, n); err != nil {
			break
		}
	}
	class := failure.Unreachable
	if errors.Is(last, lake.ErrUnknown) {
		class = failure.CommitUnknown
	}
	return sink.Permit{}, false, failure.Wrap(class, last, "claim table %s for query %s", s.Name(), m.QueryName).
		WithHint("start again when the catalog answers; the next start finds out what happened")
}

// claimChange is the claim on the head of t: the marker, and what the query's
// columns ask of the table's. One commit makes both, so that no crash parts them.
func (s *Sink) claimChange(t *table.Table, want sink.Facts, m *marker.Marker) (lake.Change, error) {
	columns, err := s.evolve(t, want)
	if err != nil {
		return lake.Change{}, err
	}
	ch, _, err := s.change(t, m, nil)
	if err != nil {
		return ch, err
	}
	ch.Schema, ch.Derived = columns, s.written
	return ch, nil
}

// claimBase gives the table as want saw it, making it where want saw none.
func (s *Sink) claimBase(ctx context.Context, want sink.Facts) (_ *table.Table, moved bool, _ error) {
	if want.Exists {
		t, ok := want.Handle.(*table.Table)
		if !ok {
			return nil, false, errors.New("facts of another sink")
		}
		return t, false, nil
	}
	t, err := s.opts.Catalog.EnsureTable(ctx, s.opts.Table, s.opts.Schema, s.opts.Partition, s.opts.Properties)
	if err != nil {
		var classified *failure.Error
		if errors.As(err, &classified) {
			return nil, false, err
		}
		return nil, false, failure.Wrap(failure.Unreachable, err, "make table %s", s.Name())
	}
	// Somebody else may have made and used it since want was read.
	_, taken := t.Properties()[s.key]
	return t, taken || lake.HeadOf(t).ID != 0, nil
}

// landed reports whether the table's marker is m's very attempt.
func landed(t *table.Table, key string, m *marker.Marker) bool {
	got, err := marker.Decode(t.Properties()[key])
	return err == nil && got.QueryID == m.QueryID && got.Attempt == m.Attempt && got.Epoch == m.Epoch
}

func sameHead(a, b *table.Table) bool {
	return a.Metadata().TableUUID() == b.Metadata().TableUUID() && lake.HeadOf(a) == lake.HeadOf(b)
}
