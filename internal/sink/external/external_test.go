package external

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
)

func sample(t *testing.T) arrow.RecordBatch {
	t.Helper()
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "te\"xt", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "f", Type: arrow.PrimitiveTypes.Float64}, {Name: "at", Type: batch.Timestamp}, {Name: "b", Type: arrow.BinaryTypes.Binary, Nullable: true},
		{Name: "ok", Type: arrow.FixedWidthTypes.Boolean},
	}, nil))
	defer b.Release()
	b.Field(0).(*array.Int64Builder).AppendValues([]int64{math.MaxInt64, math.MinInt64}, nil)
	b.Field(1).(*array.StringBuilder).AppendValues([]string{"a\x00\n\"\\\u2028ü\xff", ""}, []bool{true, false})
	b.Field(2).(*array.Float64Builder).AppendValues([]float64{0.1, math.Inf(-1)}, nil)
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	b.Field(3).(*array.TimestampBuilder).AppendValues([]arrow.Timestamp{arrow.Timestamp(at.UnixMicro()), 0}, nil)
	b.Field(4).(*array.BinaryBuilder).AppendValues([][]byte{{0, 255}, nil}, []bool{true, false})
	b.Field(5).(*array.BooleanBuilder).AppendValues([]bool{true, false}, nil)
	return b.NewRecordBatch()
}

func TestRejectedRowsHaveTheirPlacesAcrossRecordsAndTheRowAsJSON(t *testing.T) {
	rec := sample(t)
	rec.Retain()
	rows := &Rows{Records: []arrow.RecordBatch{rec, rec}, Rows: 4}
	defer rows.Release()
	m := &marker.Marker{QueryName: "q", QueryID: "id", BatchID: 7, BatchTime: time.Unix(5, 0)}
	r := Rejections{Who: "store", Policy: sink.RejectDeadLetter}
	for _, row := range []int64{3, 0, 3} {
		if err := r.Add(m, row, "23505", strings.Repeat("é", detailBytesMax)); err != nil {
			t.Fatal(err)
		}
	}
	if !r.Has(3) || !r.Has(0) || r.Has(1) {
		t.Fatalf("rejected %+v", r.List())
	}
	out, err := RejectedRecords("store", rows, r.List(), m)
	if err != nil || len(out) != 1 || out[0].NumRows() != 2 || !out[0].Schema().Equal(sink.RejectedSchema) {
		t.Fatalf("%v, %v", out, err)
	}
	defer out[0].Release()
	var row map[string]any
	if err := json.Unmarshal([]byte(out[0].Column(7).(*array.String).Value(1)), &row); err != nil || row["f"] != "-Infinity" {
		t.Fatalf("row %v, %v", row, err)
	}
}

func TestARefusedRowFailsTheBatchUnlessItMayBeSetAside(t *testing.T) {
	m := &marker.Marker{QueryName: "q", BatchID: 7}
	r := Rejections{Who: "store", Policy: sink.RejectFail}
	if err := r.Add(m, 1, "x", "y"); !failure.Is(err, failure.SchemaConflict) {
		t.Fatal(err)
	}
	r = Rejections{Who: "store", Policy: sink.RejectDeadLetter, Decided: []sink.Rejection{{Row: 1}}}
	if err := r.Add(m, 1, "x", "y"); err != nil {
		t.Fatal(err)
	}
	if err := r.Add(m, 2, "x", "y"); !failure.Is(err, failure.SchemaConflict) {
		t.Fatal(err)
	}
	r = Rejections{Who: "store", Policy: sink.RejectDeadLetter}
	for i := range int64(sink.RejectedMax) {
		if err := r.Add(m, i, "x", "y"); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Add(m, sink.RejectedMax, "x", "y"); !failure.Is(err, failure.SchemaConflict) {
		t.Fatal(err)
	}
}

func TestAClaimThatStartsBatchIDsAgainIsRefused(t *testing.T) {
	cur := &marker.Marker{QueryName: "q", QueryID: "a", BatchID: 5, Epoch: marker.Epoch{Number: 3}}
	next := func(change func(*marker.Marker)) *marker.Marker {
		m := *cur
		m.Epoch.Number++
		change(&m)
		return &m
	}
	for name, c := range map[string]struct {
		m    *marker.Marker
		want failure.Class
	}{
		"the same":             {next(func(*marker.Marker) {}), 0},
		"an older epoch":       {next(func(m *marker.Marker) { m.Epoch.Number = 3 }), failure.Fenced},
		"a stranger":           {next(func(m *marker.Marker) { m.QueryID = "b" }), failure.Checkpoint},
		"ids that start again": {next(func(m *marker.Marker) { m.BatchID = -1 }), failure.Checkpoint},
		"a restart":            {next(func(m *marker.Marker) { m.QueryID, m.Predecessor = "b", "a" }), 0},
	} {
		err := ClaimFollows("store", cur, c.m)
		if (c.want == 0) != (err == nil) || (err != nil && !failure.Is(err, c.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
