package foreachbatch

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/sink"
)

// Stage implements sink.Sink. Rows are held in memory: the plan in the
// checkpoint, which reads the same rows again, is what survives a crash.
func (s *Sink) Stage(_ context.Context, batchID int64, attempt string) (sink.Stage, error) {
	return &stage{s: s, batchID: batchID, attempt: attempt}, nil
}

type stage struct {
	s       *Sink
	batchID int64
	attempt string
	records []arrow.RecordBatch
	rows    int64
	bytes   int64
}

// Write implements sink.Stage.
func (st *stage) Write(rec arrow.RecordBatch) error {
	if rec.NumRows() == 0 {
		rec.Release()
		return nil
	}
	st.records = append(st.records, rec)
	st.rows += rec.NumRows()
	st.bytes += sizeOf(rec)
	if limit := st.s.opts.Limits.BatchBytes; st.bytes > limit {
		return failure.New(failure.Config, "query %s, batch %d: its rows take more than %d bytes of memory; a function gets a batch whole", st.s.opts.Query, st.batchID, limit).
			WithHint("raise MaxBatchBytes for this batch, which is planned already; then lower MaxOffsetsPerTrigger for the next ones")
	}
	return nil
}

// Close implements sink.Stage.
func (st *stage) Close(context.Context) (sink.Staged, error) {
	return sink.Staged{Attempt: st.attempt, Rows: st.rows, Handle: st.records}, nil
}

// Abort implements sink.Stage.
func (st *stage) Abort() {
	release(st.records)
	st.records = nil
}

func release(records []arrow.RecordBatch) {
	for _, r := range records {
		r.Release()
	}
}

// sizeOf is the memory that a record's buffers take.
func sizeOf(rec arrow.RecordBatch) (n int64) {
	for _, c := range rec.Columns() {
		n += dataSize(c.Data())
	}
	return n
}

func dataSize(d arrow.ArrayData) (n int64) {
	for _, b := range d.Buffers() {
		if b != nil {
			n += int64(b.Len())
		}
	}
	for _, c := range d.Children() {
		n += dataSize(c)
	}
	return n
}
