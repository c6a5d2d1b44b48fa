package sink

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/marker"
)

// OnRejected says what becomes of a row that a store refuses: a constraint of a
// database, an HTTP API's 4xx, a record that is too large for a broker.
type OnRejected string

// The policies. Fail is the default: nothing of the batch becomes visible and
// the query stops.
const (
	RejectFail       OnRejected = "fail"
	RejectDeadLetter OnRejected = "deadLetter"
)

// RejectedMax bounds the rows of one batch that may be rejected: beyond it the
// store, not the rows, is at fault, and the query stops (exit code 9).
const RejectedMax = 10_000

// Rejection is a row that the store refused.
type Rejection struct {
	// Row is the row's place in the batch as it was staged, from 0. A batch that
	// is run again has the same rows in the same places.
	Row int64 `json:"row"`
	// Reason is a short code (a SQLSTATE, an HTTP status), Detail the store's text.
	Reason string `json:"reason"`
	Detail string `json:"detail"`
}

// RejectedSchema is the shape of a table of rejected rows. The row itself is
// JSON, because a table of one shape takes the rows of every sink.
var RejectedSchema = arrow.NewSchema([]arrow.Field{
	{Name: "query_name", Type: arrow.BinaryTypes.String},
	{Name: "query_id", Type: arrow.BinaryTypes.String},
	{Name: "sink", Type: arrow.BinaryTypes.String},
	{Name: "batch_id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "batch_row", Type: arrow.PrimitiveTypes.Int64},
	{Name: "reason", Type: arrow.BinaryTypes.String},
	{Name: "detail", Type: arrow.BinaryTypes.String},
	{Name: "value", Type: arrow.BinaryTypes.String},
	{Name: "processed_at", Type: batch.Timestamp},
}, nil)

// Preparer is a sink that learns only from the store which rows it refuses. The
// engine asks it before the side sinks commit, because the table of rejected rows
// is one of them.
type Preparer interface {
	// Prepare does all of a commit but its last step, which makes the batch
	// visible, and says which rows the store refuses. Commit, called with the same
	// attempt and with these rows in Staged.Rejected, takes that step; it does the
	// whole again where what was prepared has been lost meanwhile.
	//
	// decided is what an earlier attempt found, where a side sink has committed it:
	// these rows are left out, and the refusal of any other is an error, because
	// its place in the table of rejected rows is gone. Nil decides anew.
	Prepare(ctx context.Context, p Permit, prev *marker.Marker, staged Staged, m *marker.Marker, decided []Rejection) (Prepared, error)
	// Discard gives up what was prepared, where Commit will not be called.
	Discard()
}

// Prepared is what Prepare found.
type Prepared struct {
	// Rejected are the refused rows, by ascending place.
	Rejected []Rejection
	// Records are these rows in the shape of RejectedSchema; the caller's.
	Records []arrow.RecordBatch
}
