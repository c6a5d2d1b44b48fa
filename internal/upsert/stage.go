package upsert

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"

	"github.com/weirlake/weir/internal/failure"
)

// StageWriter writes the changes of one attempt to a file (an Arrow IPC stream),
// so that they can be merged by another process, and keeps them for this one.
type StageWriter struct {
	out     io.Writer
	sum     hash.Hash
	ipc     *ipc.Writer
	bytes   int64
	rows    int64
	records []arrow.RecordBatch
}

// NewStageWriter writes records of the schema to w.
func NewStageWriter(w io.Writer, sc *arrow.Schema) *StageWriter {
	s := &StageWriter{out: w, sum: sha256.New()}
	s.ipc = ipc.NewWriter(s, ipc.WithSchema(sc), ipc.WithLZ4())
	return s
}

// Write implements io.Writer for the encoder.
func (s *StageWriter) Write(b []byte) (int, error) {
	s.sum.Write(b)
	s.bytes += int64(len(b))
	return s.out.Write(b)
}

// Add takes a record over.
func (s *StageWriter) Add(rec arrow.RecordBatch) error {
	s.records = append(s.records, rec)
	s.rows += rec.NumRows()
	return s.ipc.Write(rec)
}

// Finish ends the stream. The caller closes the file.
func (s *StageWriter) Finish() (rows, bytes int64, sha string, err error) {
	if err := s.ipc.Close(); err != nil {
		return 0, 0, "", err
	}
	return s.rows, s.bytes, hex.EncodeToString(s.sum.Sum(nil)), nil
}

// Records are those that were added; whoever takes them releases them.
func (s *StageWriter) Records() []arrow.RecordBatch {
	out := s.records
	s.records = nil
	return out
}

// Release lets go of records that nobody has taken.
func (s *StageWriter) Release() {
	for _, r := range s.Records() {
		r.Release()
	}
}

// ReadStage reads what a StageWriter wrote and holds it against the checksum. The
// caller releases the records.
func ReadStage(r io.Reader, sha string) (out []arrow.RecordBatch, err error) {
	sum := sha256.New()
	tee := io.TeeReader(r, sum)
	in, err := ipc.NewReader(tee)
	if err != nil {
		return nil, failure.Wrap(failure.Checkpoint, err, "staged changes")
	}
	defer in.Release()
	defer func() {
		if err != nil {
			for _, rec := range out {
				rec.Release()
			}
			out = nil
		}
	}()
	for in.Next() {
		rec := in.RecordBatch()
		rec.Retain()
		out = append(out, rec)
	}
	if err := in.Err(); err != nil {
		return out, failure.Wrap(failure.Checkpoint, err, "staged changes")
	}
	if _, err := io.Copy(io.Discard, tee); err != nil {
		return out, fmt.Errorf("staged changes: %w", err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != sha {
		return out, failure.New(failure.Checkpoint, "staged changes: the checksum is %s, not %s", got, sha)
	}
	return out, nil
}
