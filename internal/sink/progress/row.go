// Package progress appends one row a batch to ops.stream_progress.
//
// Rows are appended in groups, not one table commit a batch, and still exactly
// once: each commit sets, for every query that it has rows of, the table
// property weir.progress.<query> to the last batch id, and asserts the head
// that the property was read from. Rows at or below the recorded batch are
// dropped, so that whoever starts again may append everything that his commit
// log still holds.
package progress

import (
	"encoding/json"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"

	"github.com/weirlake/weir/internal/batch"
)

// Row is what one batch came to. The JSON names are the table's columns; they
// are Spark's StreamingQueryProgress in snake case where Spark has one.
type Row struct {
	QueryName              string           `json:"query_name"`
	QueryID                string           `json:"query_id"`
	BatchID                int64            `json:"batch_id"`
	Epoch                  int64            `json:"epoch"`
	StartedAt              time.Time        `json:"started_at"`
	CommittedAt            time.Time        `json:"committed_at"`
	InputRows              int64            `json:"input_rows"`
	OutputRows             int64            `json:"output_rows"`
	RowsFiltered           int64            `json:"rows_filtered"`
	RowsDuplicate          int64            `json:"rows_duplicate"`
	RowsDroppedByWatermark int64            `json:"rows_dropped_by_watermark"`
	RowsDeadLettered       int64            `json:"rows_dead_lettered"`
	Watermark              *time.Time       `json:"watermark"`
	FreshnessP50Ms         int64            `json:"freshness_p50_ms"`
	FreshnessP95Ms         int64            `json:"freshness_p95_ms"`
	FreshnessMaxMs         int64            `json:"freshness_max_ms"`
	DurationMs             map[string]int64 `json:"duration_ms"`
	// Position is where the batch ended, as JSON.
	Position   json.RawMessage `json:"position"`
	StateRows  int64           `json:"state_rows"`
	StateBytes int64           `json:"state_bytes"`
	LagOffsets int64           `json:"lag_offsets"`
}

// column ties a column's name and type to the value that a row has for it.
type column struct {
	name     string
	typ      iceberg.Type
	arrow    arrow.DataType
	nullable bool
	append   func(b array.Builder, r *Row)
}

func text(name string, get func(*Row) string) column {
	return column{name, iceberg.PrimitiveTypes.String, arrow.BinaryTypes.String, false, func(b array.Builder, r *Row) {
		b.(*array.StringBuilder).Append(get(r))
	}}
}

func long(name string, get func(*Row) int64) column {
	return column{name, iceberg.PrimitiveTypes.Int64, arrow.PrimitiveTypes.Int64, false, func(b array.Builder, r *Row) {
		b.(*array.Int64Builder).Append(get(r))
	}}
}

func instant(name string, get func(*Row) *time.Time) column {
	return column{name, iceberg.PrimitiveTypes.TimestampTz, batch.Timestamp, true, func(b array.Builder, r *Row) {
		if t := get(r); t != nil {
			b.(*array.TimestampBuilder).Append(arrow.Timestamp(t.UnixMicro()))
		} else {
			b.AppendNull()
		}
	}}
}

// Field ids of the map's parts; those of columns are 1, 2, ….
const (
	durationKeyID   = 101
	durationValueID = 102
)

var columns = []column{
	text("query_name", func(r *Row) string { return r.QueryName }),
	text("query_id", func(r *Row) string { return r.QueryID }),
	long("batch_id", func(r *Row) int64 { return r.BatchID }),
	long("epoch", func(r *Row) int64 { return r.Epoch }),
	instant("started_at", func(r *Row) *time.Time { return &r.StartedAt }),
	instant("committed_at", func(r *Row) *time.Time { return &r.CommittedAt }),
	long("input_rows", func(r *Row) int64 { return r.InputRows }),
	long("output_rows", func(r *Row) int64 { return r.OutputRows }),
	long("rows_filtered", func(r *Row) int64 { return r.RowsFiltered }),
	long("rows_duplicate", func(r *Row) int64 { return r.RowsDuplicate }),
	long("rows_dropped_by_watermark", func(r *Row) int64 { return r.RowsDroppedByWatermark }),
	long("rows_dead_lettered", func(r *Row) int64 { return r.RowsDeadLettered }),
	instant("watermark", func(r *Row) *time.Time { return r.Watermark }),
	long("freshness_p50_ms", func(r *Row) int64 { return r.FreshnessP50Ms }),
	long("freshness_p95_ms", func(r *Row) int64 { return r.FreshnessP95Ms }),
	long("freshness_max_ms", func(r *Row) int64 { return r.FreshnessMaxMs }),
	{
		"duration_ms",
		&iceberg.MapType{KeyID: durationKeyID, KeyType: iceberg.PrimitiveTypes.String,
			ValueID: durationValueID, ValueType: iceberg.PrimitiveTypes.Int64, ValueRequired: true},
		arrow.MapOfFields(arrow.Field{Name: "key", Type: arrow.BinaryTypes.String}, arrow.Field{Name: "value", Type: arrow.PrimitiveTypes.Int64}),
		true, appendDurations,
	},
	text("position", func(r *Row) string { return string(r.Position) }),
	long("state_rows", func(r *Row) int64 { return r.StateRows }),
	long("state_bytes", func(r *Row) int64 { return r.StateBytes }),
	long("lag_offsets", func(r *Row) int64 { return r.LagOffsets }),
}

// Schema is the table's schema.
func Schema() *iceberg.Schema {
	fields := make([]iceberg.NestedField, len(columns))
	for i, c := range columns {
		fields[i] = iceberg.NestedField{ID: i + 1, Name: c.name, Type: c.typ, Required: !c.nullable}
	}
	return iceberg.NewSchema(0, fields...)
}

func arrowSchema() *arrow.Schema {
	fields := make([]arrow.Field, len(columns))
	for i, c := range columns {
		fields[i] = arrow.Field{Name: c.name, Type: c.arrow, Nullable: c.nullable}
	}
	return arrow.NewSchema(fields, nil)
}

func record(rows []Row) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrowSchema())
	defer b.Release()
	for i := range rows {
		for c, col := range columns {
			col.append(b.Field(c), &rows[i])
		}
	}
	return b.NewRecordBatch()
}
