package delta

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/delta"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/sink"
)

// Stage implements sink.Sink. Files are named by query, batch and attempt, so
// that an orphan tells where it came from.
func (s *Sink) Stage(ctx context.Context, batchID int64, attempt string) (sink.Stage, error) {
	snap := s.remembered()
	if snap == nil {
		return nil, fmt.Errorf("table %s: stage before claim", s.Name())
	}
	if s.opts.Upsert != nil {
		return s.stageChanges(ctx, batchID, attempt)
	}
	w, err := s.table.NewFiles(ctx, snap, delta.FileOptions{
		Prefix:   fmt.Sprintf("%s-%d-%s-", fileSafe(s.opts.Query), batchID, fileSafe(attempt)),
		OnFile:   func() { fault.Reach(s.opts.Query, fault.StageFile) },
		Parallel: s.opts.Parallel, TargetBytes: s.opts.TargetBytes,
	})
	if err != nil {
		return nil, fmt.Errorf("stage batch %d of table %s: %w", batchID, s.Name(), err)
	}
	return &stage{s: s, w: w, batchID: batchID, attempt: attempt}, nil
}

// fileSafe keeps what needs no escaping in a URI.
func fileSafe(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, strings.TrimLeft(name, "_"))
}

type stage struct {
	s       *Sink
	w       *delta.FileWriter
	batchID int64
	attempt string
}

// Write implements sink.Stage.
func (st *stage) Write(rec arrow.RecordBatch) error { return st.w.Write(rec) }

// Abort implements sink.Stage.
func (st *stage) Abort() { st.w.Abort() }

// Close implements sink.Stage.
func (st *stage) Close(ctx context.Context) (sink.Staged, error) {
	adds, err := st.w.Close(ctx)
	if err != nil {
		return sink.Staged{}, fmt.Errorf("stage batch %d of table %s: %w", st.batchID, st.s.Name(), err)
	}
	out := sink.Staged{Attempt: st.attempt, Handle: adds}
	for _, a := range adds {
		encoded, err := json.Marshal(a)
		if err != nil {
			return sink.Staged{}, fmt.Errorf("describe data file %s of table %s: %w", a.Path, st.s.Name(), err)
		}
		out.Rows += a.Rows()
		out.Files = append(out.Files, sink.StagedFile{Path: a.Path, Rows: a.Rows(), Bytes: a.Size, Encoded: encoded})
	}
	return out, nil
}

// addsOf gives the staged files as they go into the log: from the stage of this
// process, or from the descriptions of another one's.
func (s *Sink) addsOf(staged sink.Staged) ([]*delta.Add, error) {
	if adds, ok := staged.Handle.([]*delta.Add); ok && len(adds) == len(staged.Files) {
		return adds, nil
	}
	out := make([]*delta.Add, len(staged.Files))
	for i, f := range staged.Files {
		a := &delta.Add{}
		if err := json.Unmarshal(f.Encoded, a); err != nil {
			return nil, failure.Wrap(failure.Checkpoint, err, "staged file %s of table %s", f.Path, s.Name())
		}
		if a.Path != f.Path || a.Rows() != f.Rows {
			return nil, failure.New(failure.Checkpoint, "staged file %s of table %s: its description speaks of %s with %d rows, not %d",
				f.Path, s.Name(), a.Path, a.Rows(), f.Rows)
		}
		out[i] = a
	}
	return out, nil
}

// checkStaged makes sure that no vacuum can take a file between this check and
// the commit: one that begins later moves the head first (our own does), and one
// that began earlier deletes only files twice as old as those that pass here.
// Files that were staged under another partitioning are staged again.
func (s *Sink) checkStaged(ctx context.Context, adds []*delta.Add, snap *delta.Snapshot) error {
	oldest := s.opts.Clock.Now().Add(-s.opts.Limits.OrphanAge / 2)
	for _, a := range adds {
		if len(a.PartitionValues) != len(snap.Metadata.PartitionColumns) || slices.ContainsFunc(snap.Metadata.PartitionColumns, func(c string) bool {
			_, ok := a.PartitionValues[c]
			return !ok
		}) {
			return fmt.Errorf("%w: the table is partitioned in another way than %s", sink.ErrStale, a.Path)
		}
		key, err := a.Key()
		if err != nil {
			return failure.Wrap(failure.Checkpoint, err, "staged file of table %s", s.Name())
		}
		i, err := s.opts.Storage.Stat(ctx, key)
		switch {
		case errors.Is(err, objstore.ErrNotExist):
			return fmt.Errorf("%w: %s is gone", sink.ErrStale, key)
		case err != nil:
			return delta.Again(fmt.Errorf("look at staged file %s: %w", key, err))
		case i.Modified.Before(oldest):
			return fmt.Errorf("%w: %s is of %s", sink.ErrStale, key, i.Modified.UTC().Format("2006-01-02T15:04:05Z"))
		}
	}
	return nil
}
