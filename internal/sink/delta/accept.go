package delta

import (
	"context"
	"errors"
	"fmt"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/delta"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

// AcceptHead makes the query's marker that of the newest commit whose rows the
// head still has, after a RESTORE that was meant. It reports false where the
// marker says that already, or where there is no table. Batch ids and positions
// go back with the rows; the epoch does not, so a run of before is fenced.
func (s *Sink) AcceptHead(ctx context.Context) (changed bool, err error) {
	var summary map[string]string
	r, err := delta.Commit(ctx, s.table, func(ctx context.Context, snap *delta.Snapshot) ([]delta.Action, error) {
		if snap.Version == delta.NoVersion {
			return nil, errFound
		}
		markers, err := s.markersOf(ctx, snap)
		if err != nil {
			return nil, retryable(err)
		}
		now := markers[s.opts.Query]
		if now == nil {
			return nil, failure.New(failure.Checkpoint, "table %s holds no marker of query %s", s.Name(), s.opts.Query)
		}
		found, err := s.present(ctx, snap)
		if err != nil {
			return nil, retryable(err)
		}
		if found.Attempt == now.Attempt {
			return nil, errFound // the head is what the marker speaks of
		}
		m := *found
		m.QueryID, m.Predecessor = now.QueryID, now.Predecessor
		m.Epoch = marker.Epoch{Number: now.Epoch.Number + 1, Nonce: clock.Nonce()}
		m.Attempt, m.Claim, m.RenewedAt = clock.Nonce(), true, s.opts.Clock.Now()
		if summary, err = s.summary(markers, &m); err != nil {
			return nil, err
		}
		return s.change(ctx, snap, markers, &m)
	}, delta.CommitOptions{Operation: "STREAMING UPDATE", Limits: delta.Limits{Errors: s.opts.Limits.Errors, Conflicts: s.opts.Limits.Conflicts},
		Info: func(_ *delta.Snapshot, i *delta.CommitInfo) { i.Weir = summary }})
	if errors.Is(err, errFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("accept the contents of table %s: %w", s.Name(), err)
	}
	s.remember(r.Snapshot)
	return true, nil
}

// present is the marker of the query's newest commit whose rows are in the
// snapshot: from the head down, and at a RESTORE on from the version that it went
// back to.
func (s *Sink) present(ctx context.Context, snap *delta.Snapshot) (*marker.Marker, error) {
	for v := snap.Version; v >= 0; {
		actions, err := s.table.CommitAt(ctx, v)
		if errors.Is(err, delta.ErrNoVersion) {
			break
		}
		if err != nil {
			return nil, err
		}
		next := v - 1
		for _, a := range actions {
			i := a.CommitInfo
			if i == nil {
				continue
			}
			if m, err := marker.Decode(i.Weir[marker.KeyMarker]); err == nil && m.QueryName == s.opts.Query {
				return m, nil
			}
			if i.Operation == "RESTORE" {
				var known bool
				if next, known = restoredTo(i); !known {
					if next, err = s.sameFiles(ctx, v); err != nil {
						return nil, err
					}
				}
			}
		}
		if next >= v {
			break
		}
		v = next
	}
	return nil, failure.New(failure.Checkpoint, "no version of table %s that is left names a batch of query %s whose rows it still has", s.Name(), s.opts.Query).
		WithHint("start over with: weir checkpoint reset")
}

// sameFiles is the newest version before a RESTORE that had the files that the
// RESTORE left: engines that went back to a time do not say to which version.
func (s *Sink) sameFiles(ctx context.Context, restore int64) (int64, error) {
	after, err := s.table.SnapshotAt(ctx, restore)
	if err != nil {
		return 0, err
	}
	for v := restore - 1; v >= 0; v-- {
		before, err := s.table.SnapshotAt(ctx, v)
		if errors.Is(err, delta.ErrNoVersion) {
			break
		}
		if err != nil {
			return 0, err
		}
		same := before.NumFiles() == after.NumFiles()
		for _, f := range after.Files() {
			if _, ok := before.File(f.Path); !ok {
				same = false
				break
			}
		}
		if same {
			return v, nil
		}
	}
	return -1, nil
}
