package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
)

// Adopt writes what OutcomeAdopt decided: metadata of the marker's lineage
// where it is missing, plans that contradict the markers put aside, and
// offsets/N and commits/N flagged adopted. Each step can be repeated; a crash
// in between leads to the same decision again, or to AlreadyCommitted with the
// adopted plan.
func (l *Log) Adopt(ctx context.Context, d Decision, instanceID string, now time.Time) error {
	if d.Outcome != OutcomeAdopt || d.Marker == nil {
		return fmt.Errorf("adopt called for the decision %s", d.Outcome)
	}
	if _, err := l.CreateMetadata(ctx, Metadata{
		QueryID: d.QueryID, Predecessor: d.Predecessor, InstanceID: instanceID, CreatedAt: now,
	}); err != nil {
		return err
	}
	for _, n := range d.Supersede {
		if err := l.supersede(ctx, n); err != nil {
			return err
		}
	}
	m := d.Marker
	if startOfLineage(m) {
		return nil // nothing was committed under this lineage yet: no batch to write
	}
	if err := l.adoptPlan(ctx, m); err != nil {
		return err
	}
	return l.writeCommit(ctx, CommitEntry{QueryID: m.QueryID, BatchID: m.BatchID, Marker: m, Adopted: true})
}

// adoptPlan writes offsets/N from a marker. Where the batch began is not known
// any more: start and end are both the marker's position. The plan that the
// marker's batch was run by stays if it is still there.
func (l *Log) adoptPlan(ctx context.Context, m *marker.Marker) error {
	b, err := encode(Plan{
		QueryID: m.QueryID, BatchID: m.BatchID, Epoch: m.Epoch,
		Start: m.Position, End: m.Position, BatchTime: m.BatchTime,
		Watermark: m.Watermark, Transform: m.Transform, Adopted: true,
	})
	if err != nil {
		return err
	}
	key := OffsetsKey(m.BatchID)
	created, existing, err := l.store.CreateOnce(ctx, key, b)
	if err != nil || created {
		return err
	}
	there, err := l.checkPlan(key, m.BatchID, existing)
	if err != nil {
		return err
	}
	if there.QueryID != m.QueryID || (PlanHash(*there) != m.PlanHash && !samePlace(there.End, m.Position) && !skipped(there.End, m)) {
		return l.contradiction("%s ends at %s, the marker of batch %d at %s", key, there.End, m.BatchID, m.Position)
	}
	return nil
}

// supersede puts commits/n and offsets/n aside: copied, then removed, the
// commit first.
func (l *Log) supersede(ctx context.Context, n int64) error {
	for _, prefix := range []string{commitsPrefix, offsetsPrefix} {
		key := fmt.Sprintf("%s%d", prefix, n)
		b, err := l.store.Get(ctx, key)
		if errors.Is(err, objstore.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if _, _, err := l.store.CreateOnce(ctx, supersededKey(prefix, n, marker.Hash(b)), b); err != nil {
			return err
		}
		if err := l.store.Delete(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

// Restart makes the checkpoint a new lineage's (OutcomeRestart): metadata is
// replaced first, naming its predecessor, then the old logs are removed, oldest
// first. Until the last of them is gone Gather reports leftovers, and the
// decision is Restart again. Operator state is left to package state.
func (l *Log) Restart(ctx context.Context, m Metadata) error {
	m.QueryName = l.queryName
	there, err := l.Metadata(ctx)
	if err != nil {
		return err
	}
	if there == nil || there.QueryID != m.QueryID {
		if err := l.put(ctx, metadataKey, m); err != nil {
			return err
		}
	}
	l.adopted(m.QueryID)
	for _, prefix := range []string{stagedPrefix, commitsPrefix, offsetsPrefix} {
		if err := l.remove(ctx, prefix, math.MaxInt64); err != nil {
			return err
		}
	}
	return nil
}
