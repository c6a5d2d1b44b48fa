package external

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/rowjson"
)

const (
	// detailBytesMax cuts the store's text in the table of rejected rows.
	detailBytesMax = 2000
	// recordRowsMax is the size of a record of rejected rows.
	recordRowsMax = 1024
)

// Rejections collects what a store refuses of one batch under a policy.
type Rejections struct {
	// Who names the sink in messages, Policy says what a refusal means.
	Who    string
	Policy sink.OnRejected
	// Decided, if not nil, are the only rows that may be refused.
	Decided []sink.Rejection

	rows map[int64]sink.Rejection
}

// Add notes a refused row, or says why the batch fails for it: the policy, the
// bound, or a decision that is made already.
func (r *Rejections) Add(m *marker.Marker, row int64, reason, detail string) error {
	batchOf := fmt.Sprintf("%s refuses row %d of batch %d of query %s (%s): %s", r.Who, row, m.BatchID, m.QueryName, reason, clip(detail))
	switch {
	case r.Policy != sink.RejectDeadLetter:
		return failure.New(failure.SchemaConflict, "%s", batchOf).
			WithHint("nothing of the batch was written. Correct the rows or the store, or set onRejected: deadLetter, which puts such rows into a table of their own")
	case r.Decided != nil && !r.decided(row):
		return failure.New(failure.SchemaConflict, "%s. It was not refused when the batch's rejected rows were committed, and cannot join them now", batchOf).
			WithHint("make the store take the row, as it did before: a constraint or another writer's row has come since")
	case len(r.rows) >= sink.RejectedMax:
		return failure.New(failure.SchemaConflict, "%s; that is more than %d rejected rows in one batch: the store is at fault rather than the rows", batchOf, sink.RejectedMax).
			WithHint("compare the store's table with the query's columns")
	}
	if r.rows == nil {
		r.rows = map[int64]sink.Rejection{}
	}
	r.rows[row] = sink.Rejection{Row: row, Reason: reason, Detail: clip(detail)}
	return nil
}

func (r *Rejections) decided(row int64) bool {
	return slices.ContainsFunc(r.Decided, func(d sink.Rejection) bool { return d.Row == row })
}

// List is what was noted, by ascending place; with a decision made already, that.
func (r *Rejections) List() []sink.Rejection {
	if r.Decided != nil {
		return r.Decided
	}
	out := make([]sink.Rejection, 0, len(r.rows))
	for _, x := range r.rows {
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b sink.Rejection) int { return int(a.Row - b.Row) })
	return out
}

// Has reports whether a row is left out.
func (r *Rejections) Has(row int64) bool {
	if r.Decided != nil {
		return r.decided(row)
	}
	_, ok := r.rows[row]
	return ok
}

func clip(s string) string {
	if len(s) <= detailBytesMax {
		return s
	}
	s = s[:detailBytesMax]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "…"
}

// RejectedRecords are rejected rows in the shape of sink.RejectedSchema. name is
// the sink's.
func RejectedRecords(name string, rows *Rows, rejected []sink.Rejection, m *marker.Marker) ([]arrow.RecordBatch, error) {
	var out []arrow.RecordBatch
	for len(rejected) > 0 {
		n := min(len(rejected), recordRowsMax)
		rec, err := rejectedRecord(name, rows, rejected[:n], m)
		if err != nil {
			for _, r := range out {
				r.Release()
			}
			return nil, err
		}
		out, rejected = append(out, rec), rejected[n:]
	}
	return out, nil
}

func rejectedRecord(name string, rows *Rows, rejected []sink.Rejection, m *marker.Marker) (arrow.RecordBatch, error) {
	b := array.NewRecordBuilder(memory.DefaultAllocator, sink.RejectedSchema)
	defer b.Release()
	text := func(i int, s string) { b.Field(i).(*array.StringBuilder).Append(s) }
	number := func(i int, n int64) { b.Field(i).(*array.Int64Builder).Append(n) }
	var enc *rowjson.Encoder // every record has one shape
	for _, r := range rejected {
		rec, at, ok := rows.At(r.Row)
		if !ok {
			return nil, fmt.Errorf("%s: row %d of batch %d was rejected, the batch has %d", name, r.Row, m.BatchID, rows.Rows)
		}
		if enc == nil {
			var err error
			if enc, err = rowjson.New(rec.Schema(), nil, nil); err != nil {
				return nil, err
			}
		}
		text(0, m.QueryName)
		text(1, m.QueryID)
		text(2, name)
		number(3, m.BatchID)
		number(4, r.Row)
		text(5, r.Reason)
		text(6, r.Detail)
		text(7, string(enc.AppendRow(nil, rec, at)))
		b.Field(8).(*array.TimestampBuilder).Append(arrow.Timestamp(m.BatchTime.UnixMicro()))
	}
	return b.NewRecordBatch(), nil
}

// At finds a row by its place in the batch.
func (r *Rows) At(row int64) (rec arrow.RecordBatch, at int, ok bool) {
	for _, rec := range r.Records {
		if row < rec.NumRows() {
			return rec, int(row), row >= 0
		}
		row -= rec.NumRows()
	}
	return nil, 0, false
}
