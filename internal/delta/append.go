package delta

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

// restageMax bounds how often rows are written again because the table's
// partitioning changed, or what a rewrite had read.
const restageMax = 10

// AppendOptions of Append.
type AppendOptions struct {
	// TxnAppID and TxnVersion make the append idempotent: a version that is not
	// above the one that the table remembers of the app id is skipped. Empty for
	// a plain append.
	TxnAppID   string
	TxnVersion int64
	// Lineage names who counts the versions: a query id that stays the same
	// through every restart and changes when versions start again. With it an app
	// id belongs to one lineage, and another one that comes with it is met with
	// OnReusedAppID before a row is dropped. Without it a writer whose versions
	// start again loses rows in silence, as with any Delta writer.
	Lineage       string
	OnReusedAppID ReusedPolicy
	// Create makes a missing table for the rows.
	Create *CreateOptions
	// MergeSchema adds columns that the table lacks.
	MergeSchema bool
	Files       FileOptions
	Limits      Limits
}

// AppendResult says what an append did.
type AppendResult struct {
	Version int64
	// Skipped is true where the table remembered this version or a later one;
	// nothing was written.
	Skipped bool
	// Rebound is true where the app id was taken over from another lineage.
	Rebound bool
	Rows    int64
	Files   int
}

// errSkip ends a build whose transaction is in the table already.
var errSkip = errors.New("already in the table")

// Append adds rows to a table. It keeps the records.
func Append(ctx context.Context, t *Table, records []arrow.RecordBatch, o AppendOptions) (AppendResult, error) {
	rows := int64(0)
	for _, r := range records {
		rows += r.NumRows()
	}
	for range restageMax {
		out, err := appendOnce(ctx, t, records, rows, o)
		if errors.Is(err, ErrConflict) {
			continue
		}
		return out, err
	}
	return AppendResult{}, failure.New(failure.Runtime, "append to Delta table %s: its shape changed %d times meanwhile", t.Location(), restageMax)
}

func appendOnce(ctx context.Context, t *Table, records []arrow.RecordBatch, rows int64, o AppendOptions) (AppendResult, error) {
	txn := Transaction{AppID: o.TxnAppID, Version: o.TxnVersion, Lineage: o.Lineage, OnReused: o.OnReusedAppID}
	base, err := t.refresh(ctx)
	if err != nil {
		return AppendResult{}, err
	}
	_, _, err = txn.actions(t, base)
	if errors.Is(err, errSkip) {
		return AppendResult{Version: base.Version, Skipped: true}, nil
	}
	if err != nil {
		return AppendResult{}, err
	}
	var sc *arrow.Schema
	if len(records) > 0 {
		sc = records[0].Schema()
	}
	shaped, _, err := appendShape(t, base, sc, o)
	if err != nil {
		return AppendResult{}, err
	}
	adds, err := t.stageRecords(ctx, shaped, records, o.Files)
	if err != nil {
		return AppendResult{}, err
	}
	out := AppendResult{Rows: rows, Files: len(adds)}
	r, err := Commit(ctx, t, func(_ context.Context, s *Snapshot) ([]Action, error) {
		mark, rebound, err := txn.actions(t, s)
		if err != nil {
			return nil, err
		}
		now, shape, err := appendShape(t, s, sc, o)
		if err != nil {
			return nil, err
		}
		if !samePartitioning(now, shaped) {
			return nil, ErrConflict
		}
		out.Rebound = rebound
		actions := slices.Concat(shape, mark)
		for _, a := range adds {
			actions = append(actions, Action{Add: a})
		}
		if len(actions) == 0 {
			return nil, errSkip // nothing to say
		}
		return actions, nil
	}, CommitOptions{Operation: "WRITE", Parameters: map[string]any{"mode": "Append"}, Metrics: writeMetrics(adds, rows), Limits: o.Limits})
	if errors.Is(err, errSkip) {
		s, serr := t.Snapshot(ctx)
		if serr != nil {
			return AppendResult{}, serr
		}
		return AppendResult{Version: s.Version, Skipped: true}, nil
	}
	out.Version = r.Version
	return out, err
}

// appendShape gives the table as it will be for the append, and the actions that
// make it so.
func appendShape(t *Table, s *Snapshot, sc *arrow.Schema, o AppendOptions) (*Snapshot, []Action, error) {
	switch {
	case s.Version == NoVersion && (o.Create == nil || sc == nil):
		return nil, nil, fmt.Errorf("%w in %s", ErrNoTable, t.Location())
	case s.Version == NoVersion:
		actions, err := t.CreateActions(sc, *o.Create)
		if err != nil {
			return nil, nil, err
		}
		made, err := s.apply(0, actions, nil)
		return made, actions, err
	}
	if err := checkProtocol(t.Location(), s.Protocol, s.Metadata); err != nil {
		return nil, nil, err
	}
	if sc == nil {
		return s, nil, nil
	}
	if !o.MergeSchema {
		return s, nil, t.Fits(s, sc)
	}
	change, err := t.Evolve(s, sc)
	if err != nil || change == nil {
		return s, nil, err
	}
	evolved, err := s.apply(s.Version, []Action{*change}, s.head)
	return evolved, []Action{*change}, err
}

// stageRecords writes records as data files; it keeps the records.
func (t *Table) stageRecords(ctx context.Context, s *Snapshot, records []arrow.RecordBatch, o FileOptions) ([]*Add, error) {
	if o.Prefix == "" {
		o.Prefix = "part-" + clock.Nonce() + "-"
	}
	w, err := t.NewFiles(ctx, s, o)
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		r.Retain()
		if err := w.Write(r); err != nil {
			w.Abort()
			return nil, err
		}
	}
	return w.Close(ctx)
}

func writeMetrics(adds []*Add, rows int64) map[string]any {
	var bytes int64
	for _, a := range adds {
		bytes += a.Size
	}
	return map[string]any{"numFiles": strconv.Itoa(len(adds)), "numOutputRows": strconv.FormatInt(rows, 10), "numOutputBytes": strconv.FormatInt(bytes, 10)}
}
