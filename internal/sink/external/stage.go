package external

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/sink"
)

// DefaultBatchBytes is how large a batch may be in memory where nothing is said.
const DefaultBatchBytes = 1 << 30

// Rows are the rows of a staged batch.
type Rows struct {
	Records []arrow.RecordBatch
	Rows    int64
	Bytes   int64
}

// Release lets go of the records.
func (r *Rows) Release() {
	for _, rec := range r.Records {
		rec.Release()
	}
	r.Records = nil
}

// Stage holds rows in memory until the commit. The plan in the checkpoint, which
// reads the same rows again, is what survives a crash.
type Stage struct {
	query   string
	batchID int64
	attempt string
	limit   int64
	rows    Rows
}

var _ sink.Stage = (*Stage)(nil)

// NewStage opens the staging area of one attempt; limit bounds its bytes, 0 is
// DefaultBatchBytes.
func NewStage(query string, batchID int64, attempt string, limit int64) *Stage {
	if limit <= 0 {
		limit = DefaultBatchBytes
	}
	return &Stage{query: query, batchID: batchID, attempt: attempt, limit: limit}
}

// Write implements sink.Stage.
func (s *Stage) Write(rec arrow.RecordBatch) error {
	if rec.NumRows() == 0 {
		rec.Release()
		return nil
	}
	s.rows.Records = append(s.rows.Records, rec)
	s.rows.Rows += rec.NumRows()
	s.rows.Bytes += sizeOf(rec)
	if s.rows.Bytes > s.limit {
		return failure.New(failure.Config, "query %s, batch %d: its rows take more than %d bytes of memory; this sink gets a batch whole", s.query, s.batchID, s.limit).
			WithHint("raise maxBatchBytes for this batch, which is planned already; then lower maxOffsetsPerTrigger for the next ones")
	}
	return nil
}

// Close implements sink.Stage.
func (s *Stage) Close(context.Context) (sink.Staged, error) {
	return sink.Staged{Attempt: s.attempt, Rows: s.rows.Rows, Handle: &s.rows}, nil
}

// Abort implements sink.Stage.
func (s *Stage) Abort() { s.rows.Release() }

// RowsOf are the rows of a staged batch. They are not there where another process
// staged it (a staged manifest that outlived a crash): sink.ErrStale.
func RowsOf(st sink.Staged) (*Rows, error) {
	if r, ok := st.Handle.(*Rows); ok {
		return r, nil
	}
	if st.Rows > 0 {
		return nil, fmt.Errorf("%w: the rows were in the memory of another process", sink.ErrStale)
	}
	return &Rows{}, nil
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
