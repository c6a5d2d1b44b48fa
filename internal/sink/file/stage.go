package file

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
)

// Stage implements sink.Sink.
func (s *Sink) Stage(ctx context.Context, batchID int64, attempt string) (sink.Stage, error) {
	return &stage{ctx: ctx, s: s, batchID: batchID, attempt: attempt}, nil
}

type stage struct {
	ctx     context.Context //nolint:containedctx // sink.Stage's Write has none
	s       *Sink
	batchID int64
	attempt string
	w       writer
	rows    int64 // of the file under way
	files   []File
}

// Write implements sink.Stage. A file ends when it has grown to its size; a
// record is never split.
func (st *stage) Write(rec arrow.RecordBatch) error {
	defer rec.Release()
	if rec.NumRows() == 0 {
		return nil
	}
	if st.w == nil {
		w, err := st.s.opts.newWriter()
		if err != nil {
			return err
		}
		st.w, st.rows = w, 0
	}
	if err := st.w.write(rec); err != nil {
		return failure.Wrap(failure.Runtime, err, "query %s, batch %d: write a %s file", st.s.opts.Query, st.batchID, st.s.opts.Format)
	}
	st.rows += rec.NumRows()
	if int64(st.w.size()) >= st.s.opts.FileBytes {
		return st.finish(st.ctx)
	}
	return nil
}

// finish makes the file under way durable under its staging name.
func (st *stage) finish(ctx context.Context) error {
	data, err := st.w.close()
	if err != nil {
		return failure.Wrap(failure.Runtime, err, "query %s, batch %d: write a %s file", st.s.opts.Query, st.batchID, st.s.opts.Format)
	}
	ext := st.s.opts.extension()
	f := File{
		Name: fmt.Sprintf("%04d%s", len(st.files), ext), Rows: st.rows, Bytes: int64(len(data)), SHA256: marker.Hash(data),
		Staged: fmt.Sprintf("%s%s-%s-%04d%s", st.s.log.staged(), number(st.batchID), st.attempt, len(st.files), ext),
	}
	if err := st.s.again(ctx, func() error { return st.s.opts.Store.Put(ctx, f.Staged, data) }); err != nil {
		return fmt.Errorf("stage a file of batch %d: %w", st.batchID, err)
	}
	st.w = nil
	st.files = append(st.files, f)
	fault.Reach(st.s.opts.Query, fault.StageFile)
	return nil
}

// Close implements sink.Stage.
func (st *stage) Close(ctx context.Context) (sink.Staged, error) {
	if st.w != nil {
		if err := st.finish(ctx); err != nil {
			return sink.Staged{}, err
		}
	}
	out := sink.Staged{Attempt: st.attempt, Handle: st.files}
	for _, f := range st.files {
		enc, err := json.Marshal(f)
		if err != nil {
			return sink.Staged{}, fmt.Errorf("encode a staged file: %w", err)
		}
		out.Rows += f.Rows
		out.Files = append(out.Files, sink.StagedFile{Path: f.Staged, Rows: f.Rows, Bytes: f.Bytes, Encoded: enc})
	}
	return out, nil
}

// Abort implements sink.Stage.
func (st *stage) Abort() { st.w = nil }

// filesOf are the files of a staged batch. Those that another process staged are
// read once: they may be gone.
func (s *Sink) filesOf(ctx context.Context, staged sink.Staged) ([]File, error) {
	if files, ok := staged.Handle.([]File); ok {
		return files, nil
	}
	out := make([]File, 0, len(staged.Files))
	for _, x := range staged.Files {
		f := File{}
		if err := json.Unmarshal(x.Encoded, &f); err != nil || f.Staged != x.Path {
			return nil, failure.New(failure.Checkpoint, "query %s: the staged manifest does not describe file %s", s.opts.Query, x.Path)
		}
		data, err := s.opts.Store.Get(ctx, f.Staged)
		if err != nil || marker.Hash(data) != f.SHA256 {
			return nil, fmt.Errorf("%w: %s", sink.ErrStale, f.Staged)
		}
		out = append(out, f)
	}
	if len(out) == 0 && staged.Rows > 0 {
		return nil, fmt.Errorf("%w: nothing says which files hold the rows", sink.ErrStale)
	}
	return out, nil
}
