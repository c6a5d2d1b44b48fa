package delta

import (
	"context"
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/upsert"
)

// mergeTries bounds how often a merge is done again because others changed rows
// that it had read.
const mergeTries = 50

// MergeOptions of Merge.
type MergeOptions struct {
	// Keys are the columns that name a row.
	Keys []string
	// OrderBy reduces the source to the last row of each key by these columns;
	// of rows that are equal in them the later one in the source counts. Empty
	// means the order of the source.
	OrderBy []string
	// DeleteColumn is a boolean column of the source that is not a column of the
	// table: where it is true the row's key is deleted.
	DeleteColumn string
	// Delete makes every source row delete its key; only key columns (and
	// OrderBy) are then needed.
	Delete bool
	// IgnoreOlder leaves a row of the table alone where it comes after the
	// source's by OrderBy, so that batches may arrive in any order.
	IgnoreOlder bool
	// TxnAppID, TxnVersion, Lineage, OnReusedAppID: see AppendOptions.
	TxnAppID      string
	TxnVersion    int64
	Lineage       string
	OnReusedAppID ReusedPolicy
	// Create makes a missing table for the source's columns.
	Create *CreateOptions
	Files  FileOptions
	Limits Limits
}

// MergeResult says what a merge did.
type MergeResult struct {
	Version int64
	// Skipped is true where the table remembered the transaction.
	Skipped bool
	Rebound bool
	// Inserted, Updated and Deleted count rows of the table; Ignored counts keys
	// whose row in the table is newer (IgnoreOlder).
	Inserted, Updated, Deleted, Ignored int64
	// FilesRewritten were replaced; RowsCopied stood in them and did not change.
	FilesRewritten int
	RowsCopied     int64
}

// Merge brings a table's rows up to the source's by key: a key that is there is
// replaced, one that is not is inserted, one that the source deletes goes. Files
// that hold no key of the source are not touched; the others are written again
// without the replaced rows.
//
// Merging the same source again changes no row, and neither does merging it
// after later sources if IgnoreOlder is set or the transaction is remembered.
func Merge(ctx context.Context, t *Table, source []arrow.RecordBatch, o MergeOptions) (MergeResult, error) {
	if len(o.Keys) == 0 {
		return MergeResult{}, failure.New(failure.Config, "merge into Delta table %s: no key columns", t.Location())
	}
	if o.IgnoreOlder && len(o.OrderBy) == 0 {
		return MergeResult{}, failure.New(failure.Config, "merge into Delta table %s: older rows can only be told by an order", t.Location())
	}
	src, err := upsert.Reduce(source, upsert.Spec{Keys: o.Keys, OrderBy: o.OrderBy, DeleteColumn: o.DeleteColumn, Delete: o.Delete, KeepNewer: o.IgnoreOlder})
	if err != nil {
		return MergeResult{}, fmt.Errorf("merge into Delta table %s: %w", t.Location(), err)
	}
	defer src.Release()
	var last error
	for n := 1; n <= mergeTries && t.pause(ctx, n-1, clock.Nonce()) == nil; n++ {
		m := &merging{t: t, o: o, up: NewUpsert(t, src, o.Files), txn: Transaction{AppID: o.TxnAppID, Version: o.TxnVersion, Lineage: o.Lineage, OnReused: o.OnReusedAppID}}
		out, err := m.once(ctx)
		if !errors.Is(err, ErrConflict) {
			return out, err
		}
		last = err
	}
	if err := ctx.Err(); err != nil {
		return MergeResult{}, err
	}
	return MergeResult{}, failure.Wrap(failure.Runtime, last, "merge into Delta table %s: others changed what it had read, %d times", t.Location(), mergeTries).
		WithHint("let fewer writers change the same rows at once")
}

// Delete removes the rows whose keys are given; see Merge.
func Delete(ctx context.Context, t *Table, keys []arrow.RecordBatch, o MergeOptions) (MergeResult, error) {
	o.Delete = true
	return Merge(ctx, t, keys, o)
}

// merging is one try of a merge.
type merging struct {
	t   *Table
	o   MergeOptions
	up  *Upsert
	txn Transaction
	out MergeResult
}

func (m *merging) once(ctx context.Context) (MergeResult, error) {
	base, err := m.t.refresh(ctx)
	if err != nil {
		return MergeResult{}, err
	}
	if _, _, err := m.txn.actions(m.t, base); errors.Is(err, errSkip) {
		return MergeResult{Version: base.Version, Skipped: true}, nil
	} else if err != nil {
		return MergeResult{}, err
	}
	shaped, shape, err := m.shape(base)
	if err != nil {
		return MergeResult{}, err
	}
	if err := m.up.On(ctx, base, shaped); err != nil {
		return MergeResult{}, err
	}
	c := m.up.Counts()
	m.out = MergeResult{Inserted: c.Inserted, Updated: c.Updated, Deleted: c.Deleted, Ignored: c.Ignored, FilesRewritten: c.Rewritten, RowsCopied: c.Copied}
	return m.commit(ctx, base, append(shape, m.up.Actions()...))
}

func (m *merging) shape(s *Snapshot) (*Snapshot, []Action, error) {
	var sc *arrow.Schema
	if len(m.up.src.Records) > 0 && !m.o.Delete {
		sc = m.up.src.Records[0].Schema()
	}
	return appendShape(m.t, s, sc, AppendOptions{Create: m.o.Create})
}

func (m *merging) commit(ctx context.Context, base *Snapshot, actions []Action) (MergeResult, error) {
	r, err := Commit(ctx, m.t, func(_ context.Context, s *Snapshot) ([]Action, error) {
		mark, rebound, err := m.txn.actions(m.t, s)
		if err != nil {
			return nil, err
		}
		if base.Version == NoVersion && s.Version != NoVersion {
			return nil, ErrConflict
		}
		m.out.Rebound = rebound
		all := append(append([]Action{}, actions...), mark...)
		if len(all) == 0 {
			return nil, errSkip
		}
		return all, nil
	}, CommitOptions{Operation: "MERGE", Parameters: map[string]any{"matchedPredicates": "[]", "keys": fmt.Sprint(m.o.Keys)},
		Metrics: m.up.Metrics(), Limits: m.o.Limits, Reads: Reads{Base: base.Version, Files: m.up.paths(), Added: m.up.mayHold, Shape: true}})
	if errors.Is(err, errSkip) {
		m.out.Version = base.Version
		m.out.Skipped = m.o.TxnAppID != ""
		if m.out.Skipped {
			return MergeResult{Version: base.Version, Skipped: true}, nil
		}
		return m.out, nil
	}
	m.out.Version = r.Version
	return m.out, err
}
