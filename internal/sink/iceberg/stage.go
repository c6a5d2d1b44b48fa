package iceberg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/datafile"
	"github.com/weirlake/weir/internal/sink"
)

// Stage implements sink.Sink. Files are named by query, batch and attempt, so
// that an orphan tells where it came from.
func (s *Sink) Stage(ctx context.Context, batchID int64, attempt string) (sink.Stage, error) {
	t := s.remembered()
	if t == nil {
		return nil, fmt.Errorf("table %s: stage before claim", s.Name())
	}
	if s.opts.Upsert != nil {
		return s.stageChanges(ctx, t, batchID, attempt)
	}
	spec, err := s.spec(ctx, t)
	if err != nil {
		return nil, err
	}
	prefix := fmt.Sprintf("%s-%d-%s-", fileSafe(s.opts.Query), batchID, fileSafe(attempt))
	w, err := datafile.NewWriter(spec, prefix, func() { fault.Reach(s.opts.Query, fault.StageFile) })
	if err != nil {
		return nil, fmt.Errorf("stage batch %d of table %s: %w", batchID, s.Name(), err)
	}
	return &stage{s: s, w: w, batchID: batchID, attempt: attempt}, nil
}

// spec describes the table to the data file package.
func (s *Sink) spec(ctx context.Context, t *table.Table) (datafile.Spec, error) {
	fs, err := lake.DataFSOf(ctx, t)
	if err != nil {
		return datafile.Spec{}, err
	}
	return datafile.Spec{
		Schema:        t.Schema(),
		PartitionSpec: t.Spec(),
		FormatVersion: t.Metadata().Version(),
		Properties:    t.Properties(),
		Location:      lake.DataLocation(t),
		FS:            fs,
		Parallel:      s.opts.Parallel,
		TargetBytes:   s.opts.TargetBytes,
	}, nil
}

// fileSafe keeps what needs no escaping in a URI.
func fileSafe(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, name)
}

type stage struct {
	s       *Sink
	w       *datafile.Writer
	batchID int64
	attempt string
}

// Write implements sink.Stage.
func (st *stage) Write(rec arrow.RecordBatch) error { return st.w.Write(rec) }

// Abort implements sink.Stage.
func (st *stage) Abort() { st.w.Abort() }

// Close implements sink.Stage.
func (st *stage) Close(ctx context.Context) (sink.Staged, error) {
	files, err := st.w.Close(ctx)
	if err != nil {
		return sink.Staged{}, fmt.Errorf("stage batch %d of table %s: %w", st.batchID, st.s.Name(), err)
	}
	out := sink.Staged{Attempt: st.attempt}
	handle := make([]iceberg.DataFile, len(files))
	for i, f := range files {
		handle[i] = f.DataFile
		out.Rows += f.Rows
		out.Files = append(out.Files, sink.StagedFile{Path: f.Path, Rows: f.Rows, Bytes: f.Bytes, Encoded: f.Encoded})
	}
	out.Handle = handle
	return out, nil
}

// dataFiles gives the staged files as the library knows them: from the stage of
// this process, or from the descriptions of another one's.
func (s *Sink) dataFiles(ctx context.Context, t *table.Table, staged sink.Staged) ([]iceberg.DataFile, error) {
	if files, ok := staged.Handle.([]iceberg.DataFile); ok && len(files) == len(staged.Files) {
		return files, nil
	}
	if len(staged.Files) == 0 {
		return nil, nil
	}
	spec, err := s.spec(ctx, t)
	if err != nil {
		return nil, err
	}
	out := make([]iceberg.DataFile, len(staged.Files))
	for i, f := range staged.Files {
		df, err := datafile.Decode(spec, f.Encoded)
		if err != nil {
			return nil, failure.Wrap(failure.Checkpoint, err, "staged file %s of table %s", f.Path, s.Name())
		}
		if df.FilePath() != f.Path || df.Count() != f.Rows {
			return nil, failure.New(failure.Checkpoint, "staged file %s of table %s: its description speaks of %s with %d rows, not %d",
				f.Path, s.Name(), df.FilePath(), df.Count(), f.Rows)
		}
		out[i] = df
	}
	return out, nil
}

// checkStaged makes sure that no orphan removal can take a file between this
// check and the commit. It runs after the head that the commit asserts was
// loaded: a removal that begins later moves that head first, and one that began
// earlier deletes only files twice as old as those that pass here.
func (s *Sink) checkStaged(ctx context.Context, t *table.Table, staged sink.Staged) error {
	if len(staged.Files) == 0 {
		return nil
	}
	storage, err := lake.DataFSOf(ctx, t)
	if err != nil {
		return err
	}
	oldest := s.opts.Clock.Now().Add(-s.opts.Limits.OrphanAge / 2)
	for _, f := range staged.Files {
		modified, err := storage.Modified(f.Path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%w: %s is gone", sink.ErrStale, f.Path)
		case err != nil:
			return fmt.Errorf("look at staged file %s: %w", f.Path, err)
		case modified.Before(oldest):
			return fmt.Errorf("%w: %s is of %s", sink.ErrStale, f.Path, modified.UTC().Format("2006-01-02T15:04:05Z"))
		}
	}
	return nil
}
