package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/sink"
)

const (
	// swapTries bounds how often the head may move under the exchange.
	swapTries = 50
	// oldTagPrefix begins the tags of snapshots with the rows from before.
	oldTagPrefix = "before-"
)

// swapTable exchanges the rows of a live table for those beside it, in one commit
// that asserts the head: all files of the head go, all files of the new table come,
// the marker of the new rows takes the place of the old one, as the query's next
// batch. Once: the property of the rebuild says that it was made.
func (b *rebuilding) swapTable(ctx context.Context, name string, swap *swapPlan) error {
	ident, err := lake.ParseName(name)
	if err != nil {
		return err
	}
	besideIdent, err := lake.ParseName(b.beside(name))
	if err != nil {
		return err
	}
	var last error
	for n := range swapTries {
		if n > 1 {
			if err := b.a.opts.Clock.Sleep(ctx, min(5*time.Millisecond<<min(n, 10), time.Second)); err != nil {
				return errors.Join(err, last)
			}
		}
		live, err := b.a.Catalog.LoadTable(ctx, ident)
		if err != nil {
			last = err
			continue
		}
		done, err := marker.RebuiltOf(live.Properties())
		if err != nil {
			return failure.Wrap(failure.Checkpoint, err, "table %s", name)
		}
		if done != nil && done.ID == b.plan.ID {
			return b.count(live, name)
		}
		beside, err := b.a.Catalog.LoadTable(ctx, besideIdent)
		if err != nil {
			last = err
			continue
		}
		if last, err = b.trySwap(ctx, name, live, beside, swap); err != nil {
			return err
		}
	}
	class := failure.Unreachable
	if errors.Is(last, lake.ErrUnknown) {
		class = failure.CommitUnknown
	}
	return failure.Wrap(class, last, "exchange the rows of %s", name).WithHint("run the same command again: it finds out what happened")
}

// count notes what the exchange has come to.
func (b *rebuilding) count(live *table.Table, name string) error {
	if name != b.q.To.Iceberg.Table {
		return nil
	}
	b.report.Tag, b.report.Rows = oldTagPrefix+b.plan.ID, total(live.CurrentSnapshot())
	if before := live.Metadata().SnapshotByName(b.report.Tag); before != nil {
		b.report.RowsBefore, b.report.SnapshotBefore = total(before), before.SnapshotID
	}
	if m, err := marker.Decode(live.Properties()[marker.PropertyKey(b.q.Name)]); err == nil {
		b.report.Counters = m.Counters
	}
	return nil
}

func total(s *table.Snapshot) (n int64) {
	_, _ = fmt.Sscan(lake.SummaryValue(s, "total-records"), &n)
	return n
}

// trySwap makes one try. The first error is one that another try may mend.
func (b *rebuilding) trySwap(ctx context.Context, name string, live, beside *table.Table, swap *swapPlan) (retry, final error) {
	if marker.ErasuresOf(live.Properties()) != swap.Erasures[name] {
		return nil, errOutdated
	}
	if !alike(live, beside) {
		return nil, failure.New(failure.SchemaConflict, "the columns of %s were changed since the rebuild began", name).WithHint("weir rebuild --abort, then begin again")
	}
	m, since, err := b.swapMarker(live, beside, name, swap)
	if err != nil {
		return nil, err
	}
	if head := live.CurrentSnapshot(); head != nil {
		tag := oldTagPrefix + b.plan.ID
		if ref := live.Metadata().SnapshotByName(tag); ref == nil || ref.SnapshotID != head.SnapshotID {
			if err := b.a.Catalog.Tag(ctx, live, tag, head.SnapshotID); err != nil {
				return err, nil
			}
			if live, err = b.a.Catalog.LoadTable(ctx, live.Identifier()); err != nil {
				return err, nil
			}
			if live.CurrentSnapshot().SnapshotID != head.SnapshotID {
				return fmt.Errorf("%w: the head moved when it was tagged", lake.ErrConflict), nil
			}
			fault.Reach(rebuildScope, fault.RebuildKept)
		}
	}
	change, err := b.swapChange(live, m, since)
	if err != nil {
		return nil, err
	}
	r := lake.Replacement{Change: *change}
	var deletes []iceberg.DataFile
	if r.Remove, r.Deletes, err = lake.FilesOf(ctx, live); err != nil {
		return err, nil
	}
	if r.Files, deletes, err = lake.FilesOf(ctx, beside); err != nil {
		return err, nil
	}
	if len(deletes) > 0 {
		return nil, failure.New(failure.Checkpoint, "somebody has deleted rows of %s", lake.Name(beside.Identifier())).WithHint("weir rebuild --abort, then begin again")
	}
	ctx = lake.WithMetadataHook(ctx, func() { fault.Reach(rebuildScope, fault.CommitMetadata) })
	_, err = b.a.Catalog.Replace(ctx, live, r)
	return err, nil // the next look finds the rebuild's id where it was made
}

// swapMarker is what the table will remember: the position, watermark and state of
// the rows beside, as the live query's batch of the exchange.
func (b *rebuilding) swapMarker(live, beside *table.Table, name string, swap *swapPlan) (*marker.Marker, map[string]int64, error) {
	had, err := marker.FromProperties(live.Properties())
	if err != nil {
		return nil, nil, failure.Wrap(failure.Checkpoint, err, "table %s", name)
	}
	made, err := marker.FromProperties(beside.Properties())
	if err != nil {
		return nil, nil, failure.Wrap(failure.Checkpoint, err, "table %s", lake.Name(beside.Identifier()))
	}
	cur, next := had[b.q.Name], made[b.q.Name]
	switch {
	case cur == nil || next == nil:
		return nil, nil, failure.New(failure.Checkpoint, "table %s, or the one beside it, has lost the marker of query %s", name, b.q.Name)
	case cur.QueryID != next.QueryID:
		return nil, nil, failure.New(failure.Checkpoint, "query %s was started over since the rebuild began", b.q.Name).WithHint("weir rebuild --abort, then begin again")
	case cur.Epoch.Number >= swap.Epoch.Number:
		return nil, nil, failure.New(failure.Fenced, "query %s was started since its tables are being exchanged (epoch %s, instance %s)", b.q.Name, cur.Epoch, cur.Instance).
			WithHint("stop it; weir rebuild --abort removes what stands beside, then begin again")
	case next.Position.Offsets(cur.Position) > 0:
		return nil, nil, failure.New(failure.Fenced, "query %s has read further (%s) than the rebuild (%s): it runs somewhere", b.q.Name, cur.Position, next.Position).
			WithHint("stop it and run the same command again")
	}
	since := map[string]int64{}
	for n, o := range had {
		switch {
		case n == b.q.Name:
			since[n] = swap.BatchID
		case o.Kind == marker.KindStream:
			return nil, nil, failure.New(failure.Config, "query %s feeds table %s as well: its rows would go with the exchange", n, name)
		default: // replays into the table: their rows are gone, and can be replayed again
			since[n] = o.BatchID + 1
		}
	}
	m := *next
	m.BatchID, m.Epoch, m.Attempt, m.Claim = swap.BatchID, swap.Epoch, clock.Nonce(), false
	m.PlanHash, m.BaseSequence = marker.Hash([]byte(b.plan.ID)), lake.HeadOf(live).Sequence
	m.Instance, m.RenewedAt = instanceID(CheckpointDir(b.a.P, b.q), b.q.Name), b.a.opts.Clock.Now()
	if m.Counters, err = b.sums(beside); err != nil {
		return nil, nil, err
	}
	return &m, since, nil
}

// sums adds up what the batches of a table beside have counted.
func (b *rebuilding) sums(beside *table.Table) (out marker.Counters, err error) {
	seen := map[int64]bool{}
	for _, s := range beside.Metadata().Snapshots() {
		raw := lake.SummaryValue(&s, marker.KeyMarker)
		if raw == "" {
			continue
		}
		m, err := marker.Decode(raw)
		if err != nil {
			return out, failure.Wrap(failure.Checkpoint, err, "table %s, snapshot %d", lake.Name(beside.Identifier()), s.SnapshotID)
		}
		if !m.Claim && m.BatchID >= 0 && !seen[m.BatchID] {
			seen[m.BatchID] = true
			out.Add(m.Counters)
		}
	}
	return out, nil
}

// swapChange is the commit's properties and summary.
func (b *rebuilding) swapChange(live *table.Table, m *marker.Marker, since map[string]int64) (*lake.Change, error) {
	offsets, err := sink.MergeOffsets(nil, m)
	if err != nil {
		return nil, err
	}
	summary, err := m.Summary(offsets)
	if err != nil {
		return nil, err
	}
	whole, err := m.Encode()
	if err != nil {
		return nil, err
	}
	rebuilt, err := json.Marshal(marker.Rebuilt{ID: b.plan.ID, At: b.a.opts.Clock.Now().UTC(), Since: since})
	if err != nil {
		return nil, err
	}
	props := map[string]string{marker.PropertyKey(b.q.Name): whole, marker.RebuiltKey: string(rebuilt)}
	declared, err := marker.DeclaredDeletes(live.Properties())
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "table %s", lake.Name(live.Identifier()))
	}
	if len(declared) > 0 {
		// The new rows were never more: only the ids stay, by which a query knows
		// which erasures the table has seen.
		ids, seen := []marker.DeclaredDelete{}, map[string]bool{}
		for _, d := range declared {
			if d.Erasure != "" && !seen[d.Erasure] {
				seen[d.Erasure] = true
				ids = append(ids, marker.DeclaredDelete{Erasure: d.Erasure})
			}
		}
		raw, err := json.Marshal(ids)
		if err != nil {
			return nil, err
		}
		props[marker.DeclaredDeletesKey] = string(raw)
	}
	summary[marker.RebuiltKey] = b.plan.ID
	return &lake.Change{Properties: props, Summary: summary}, nil
}

// dropOld removes the tags of one table.
func (a *App) dropOld(ctx context.Context, name string) (dropped []string, err error) {
	t, err := a.loadNamed(ctx, name)
	if err != nil || t == nil {
		return nil, err
	}
	for ref := range t.Metadata().Refs() {
		if !strings.HasPrefix(ref, oldTagPrefix+"rebuild-") {
			continue
		}
		if t, err = a.loadNamed(ctx, name); err != nil {
			return dropped, err
		}
		if err := a.Catalog.Untag(ctx, t, ref); err != nil {
			return dropped, err
		}
		dropped = append(dropped, ref)
	}
	return dropped, nil
}

// DroppedTags are the tags that were removed from a table.
type DroppedTags struct {
	Table string   `json:"table"`
	Tags  []string `json:"tags"`
}

// DropOld removes the tags that keep the rows from before rebuilds of the queries;
// ordinary expiry takes the snapshots then.
func DropOld(ctx context.Context, p *pipeline.Pipeline, queries []string, o Options) ([]DroppedTags, error) {
	a := &App{P: p, opts: o, notify: map[string]*notifier{}}
	a.fillOptions()
	if err := a.openCatalog(ctx); err != nil {
		return nil, err
	}
	defer a.Close()
	out := []DroppedTags{}
	for _, n := range queries {
		q, err := QueryByName(p, n)
		if err != nil {
			return out, err
		}
		if err := rebuildable(p, q); err != nil {
			return out, err
		}
		for _, name := range (&rebuilding{q: q}).tables() {
			tags, err := a.dropOld(ctx, name)
			if err != nil {
				return out, err
			}
			if len(tags) > 0 {
				out = append(out, DroppedTags{name, tags})
			}
		}
	}
	return out, nil
}
