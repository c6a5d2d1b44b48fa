package lake

import (
	"context"
	"fmt"
	"slices"

	icebergio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/marker"
)

const (
	// DefaultKeepSnapshots is how many snapshots a table keeps: metadata grows
	// by about the size of a marker with each, and is written whole by every
	// commit.
	DefaultKeepSnapshots = 200
	// DefaultKeepSnapshotsMax bounds what slow readers can hold back. A reader
	// that is slower still reads by offset from the head.
	DefaultKeepSnapshotsMax = 2_000
)

// Retention says which snapshots expiry leaves.
type Retention struct {
	// Keep is the number of newest snapshots that stay; 0 means
	// DefaultKeepSnapshots.
	Keep int
	// KeepMax is the most that stay however slow a reader is; 0 means
	// DefaultKeepSnapshotsMax.
	KeepMax int
	// OldestReader is the sequence number of the oldest snapshot that a
	// registered reader still needs, 0 where there is none.
	OldestReader int64
}

// Expired is what an expiry took out of the metadata. The files stay: the
// orphan removal deletes them when no reader can hold them any more.
type Expired struct {
	Snapshots []int64
}

// Due reports whether the table has enough snapshots for an expiry to be worth
// its commit: a quarter of Keep beyond what stays.
func (r Retention) Due(t *table.Table) bool {
	r = r.withDefaults()
	extra := max(1, r.Keep/4)
	return len(t.Metadata().Snapshots()) >= r.Keep+extra && len(r.victims(t)) >= extra
}

// Expire takes snapshots out of the metadata in one commit that asserts the
// head. It adds no snapshot, changes no property and deletes no file, and is
// meant to run between the batches of the table's writer. The error wraps
// ErrConflict or ErrUnknown as Commit's does; both are harmless here, the next
// call tries again.
//
// What stays: the newest Keep; whatever a tag or another branch points at; the
// snapshot of every query's marker, by which a rolled-back table is told from
// an expired one; everything from OldestReader on, up to KeepMax.
func (c *Catalog) Expire(ctx context.Context, t *table.Table, r Retention) (Expired, error) {
	ids := r.withDefaults().victims(t)
	if len(ids) == 0 {
		return Expired{}, nil
	}
	head := HeadOf(t).ID
	before := t.Metadata()
	after, _, err := c.CommitTable(ctx, t.Identifier(),
		[]table.Requirement{table.AssertTableUUID(before.TableUUID()), table.AssertRefSnapshotID(table.MainBranch, &head)},
		[]table.Update{table.NewRemoveSnapshotsUpdate(ids, false)})
	if err != nil {
		return Expired{}, fmt.Errorf("expire %d snapshots of %s: %w", len(ids), Name(t.Identifier()), err)
	}
	c.removeOldMetadata(ctx, before, after)
	return Expired{Snapshots: ids}, nil
}

func (r Retention) withDefaults() Retention {
	if r.Keep <= 0 {
		r.Keep = DefaultKeepSnapshots
	}
	if r.KeepMax <= 0 {
		r.KeepMax = DefaultKeepSnapshotsMax
	}
	return r
}

func (r Retention) victims(t *table.Table) []int64 {
	keep := map[int64]bool{}
	for _, ref := range t.Metadata().Refs() {
		keep[ref.SnapshotID] = true
	}
	attempts := map[string]bool{}
	if markers, err := marker.FromProperties(t.Properties()); err == nil {
		for _, m := range markers {
			attempts[m.Attempt] = true
		}
	} else {
		return nil // a marker of a later version: not ours to judge
	}
	n := 0
	Walk(t, func(s *table.Snapshot) bool {
		if n < r.Keep || (n < r.KeepMax && r.OldestReader > 0 && s.SequenceNumber >= r.OldestReader) {
			keep[s.SnapshotID] = true
		}
		n++
		return true
	})
	// Not by the walk: an earlier expiry may have cut the chain above.
	for _, s := range t.Metadata().Snapshots() {
		if a := SummaryValue(&s, marker.KeyAttempt); a != "" && attempts[a] {
			keep[s.SnapshotID] = true
		}
	}
	var out []int64
	for _, s := range mainChain(t) {
		if !keep[s] {
			out = append(out, s)
		}
	}
	slices.Sort(out)
	return out
}

// mainChain lists the snapshots of the main branch and those that expiry cut
// off from it; snapshots of other branches are left to whoever made them.
func mainChain(t *table.Table) []int64 {
	other := map[int64]bool{}
	for name, ref := range t.Metadata().Refs() {
		if name == table.MainBranch || ref.SnapshotRefType != table.BranchRef {
			continue
		}
		for s := t.SnapshotByID(ref.SnapshotID); s != nil && !other[s.SnapshotID]; {
			other[s.SnapshotID] = true
			if s.ParentSnapshotID == nil {
				break
			}
			s = t.SnapshotByID(*s.ParentSnapshotID)
		}
	}
	var out []int64
	for _, s := range t.Metadata().Snapshots() {
		if !other[s.SnapshotID] {
			out = append(out, s.SnapshotID)
		}
	}
	return out
}

// removeOldMetadata deletes the metadata files that fell out of the log, as the
// library does after its own commits.
func (c *Catalog) removeOldMetadata(ctx context.Context, before, after table.Metadata) {
	if c.pointer == nil || !after.Properties().GetBool(table.MetadataDeleteAfterCommitEnabledKey, false) {
		return // a REST server does it itself
	}
	live := map[string]bool{}
	for e := range after.PreviousFiles() {
		live[e.MetadataFile] = true
	}
	f, err := icebergio.LoadFS(ctx, c.props, after.Location())
	if err != nil {
		return
	}
	for e := range before.PreviousFiles() {
		if !live[e.MetadataFile] {
			_ = f.Remove(e.MetadataFile) // best effort: an orphan otherwise
		}
	}
}
