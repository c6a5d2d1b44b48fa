package delta

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/delta"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/upsert"
)

// changesFolder holds the changes of attempts until they are merged. What is in
// it is not referred to by any version.
const changesFolder = folder + "changes/"

// changeStage is the staging area of a sink that merges: a file of changes, and
// the changes themselves.
type changeStage struct {
	s       *Sink
	key     string
	attempt string
	out     delta.Writer
	w       *upsert.StageWriter
}

func (s *Sink) stageChanges(ctx context.Context, batchID int64, attempt string) (sink.Stage, error) {
	key := fmt.Sprintf("%s%s-%d-%s.arrow", changesFolder, fileSafe(s.opts.Query), batchID, fileSafe(attempt))
	out, err := s.opts.Storage.Create(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("stage batch %d of table %s: %w", batchID, s.Name(), err)
	}
	sc := s.opts.Arrow
	if c := s.opts.Upsert.DeleteColumn; c != "" {
		sc = arrow.NewSchema(append(sc.Fields(), arrow.Field{Name: c, Type: arrow.FixedWidthTypes.Boolean}), nil)
	}
	return &changeStage{s: s, key: key, attempt: attempt, out: out, w: upsert.NewStageWriter(out, sc)}, nil
}

// Write implements sink.Stage.
func (st *changeStage) Write(rec arrow.RecordBatch) error { return st.w.Add(rec) }

// Abort implements sink.Stage.
func (st *changeStage) Abort() {
	st.out.Abort()
	st.w.Release()
}

// Close implements sink.Stage.
func (st *changeStage) Close(context.Context) (sink.Staged, error) {
	rows, bytes, sha, err := st.w.Finish()
	if err == nil && rows > 0 {
		err = st.out.Close()
	} else {
		st.out.Abort()
	}
	if err != nil {
		st.w.Release()
		return sink.Staged{}, fmt.Errorf("stage changes for table %s: %w", st.s.Name(), err)
	}
	out := sink.Staged{Attempt: st.attempt, Rows: rows, Handle: &changes{records: st.w.Records()}}
	if rows > 0 {
		out.Files = []sink.StagedFile{{Path: st.key, Rows: rows, Bytes: bytes, Encoded: []byte(strconv.Quote(sha))}}
		fault.Reach(st.s.opts.Query, fault.StageFile)
	}
	return out, nil
}

// changes are staged records, in this process's memory.
type changes struct{ records []arrow.RecordBatch }

// changesOf gives what was staged, by this process or another one.
func (s *Sink) changesOf(ctx context.Context, staged sink.Staged) ([]arrow.RecordBatch, error) {
	if c, ok := staged.Handle.(*changes); ok {
		out := c.records
		c.records = nil
		return out, nil
	}
	var out []arrow.RecordBatch
	for _, f := range staged.Files {
		in, err := s.opts.Storage.Open(ctx, f.Path)
		if errors.Is(err, objstore.ErrNotExist) {
			return nil, fmt.Errorf("%w: %s is gone", sink.ErrStale, f.Path)
		}
		if err != nil {
			return nil, failure.Wrap(failure.Unreachable, err, "staged changes %s of table %s", f.Path, s.Name())
		}
		sha, err := strconv.Unquote(string(f.Encoded))
		if err != nil {
			return nil, errors.Join(failure.Wrap(failure.Checkpoint, err, "staged changes %s of table %s", f.Path, s.Name()), in.Close())
		}
		records, err := upsert.ReadStage(io.Reader(in), sha)
		if err := errors.Join(err, in.Close()); err != nil {
			return nil, fmt.Errorf("%s of table %s: %w", f.Path, s.Name(), err)
		}
		out = append(out, records...)
	}
	return out, nil
}

// merge makes the merge of a commit's changes, nil for a sink that appends. The
// source is released by the caller.
func (s *Sink) merge(ctx context.Context, staged sink.Staged, m *marker.Marker) (*delta.Upsert, *upsert.Source, error) {
	records, err := s.changesOf(ctx, staged)
	if err != nil {
		return nil, nil, err
	}
	src, err := upsert.Reduce(records, *s.opts.Upsert)
	for _, r := range records {
		r.Release()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("merge into table %s: %w", s.Name(), err)
	}
	return delta.NewUpsert(s.table, src, delta.FileOptions{
		Prefix:   fmt.Sprintf("%s-%d-%s-", fileSafe(s.opts.Query), m.BatchID, fileSafe(m.Attempt)),
		Parallel: s.opts.Parallel, TargetBytes: s.opts.TargetBytes,
	}), src, nil
}

// dropChanges removes what is merged, and now and then what attempts of earlier
// batches have left.
func (s *Sink) dropChanges(ctx context.Context, staged sink.Staged, m *marker.Marker) {
	var err error
	for _, f := range staged.Files {
		err = errors.Join(err, s.opts.Storage.Delete(ctx, f.Path))
	}
	if m.BatchID%sidecarEvery == 0 {
		prefix := changesFolder + fileSafe(s.opts.Query) + "-"
		list, lerr := s.opts.Storage.List(ctx, prefix)
		err = errors.Join(err, lerr)
		for _, i := range list {
			n, _, _ := strings.Cut(strings.TrimPrefix(i.Key, prefix), "-")
			if id, perr := strconv.ParseInt(n, 10, 64); perr == nil && id <= m.BatchID {
				err = errors.Join(err, s.opts.Storage.Delete(ctx, i.Key))
			}
		}
	}
	if err != nil && s.opts.Warn != nil {
		s.opts.Warn(fmt.Errorf("remove merged changes of query %s beside table %s: %w", m.QueryName, s.Name(), err))
	}
}
