package delta_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	iceberggo "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
	sinkdelta "github.com/weirlake/weir/internal/sink/delta"
	"github.com/weirlake/weir/internal/sink/iceberg"
)

// benchRows is what one batch of the benchmark holds.
const benchRows = 20_000

var benchSchema = arrow.NewSchema([]arrow.Field{
	{Name: "offset", Type: arrow.PrimitiveTypes.Int64},
	{Name: "timestamp", Type: batch.Timestamp},
	{Name: "topic", Type: arrow.BinaryTypes.String},
	{Name: "value", Type: arrow.BinaryTypes.Binary, Nullable: true},
}, nil)

func benchRecord() arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, benchSchema)
	defer b.Release()
	for i := range int64(benchRows) {
		b.Field(0).(*array.Int64Builder).Append(i)
		b.Field(1).(*array.TimestampBuilder).Append(arrow.Timestamp(1_770_000_000_000_000 + i*1000))
		b.Field(2).(*array.StringBuilder).Append("wiki.recentchange")
		b.Field(3).(*array.BinaryBuilder).Append(fmt.Appendf(nil, `{"id":%d,"title":"Page %d","user":"User %d","comment":"%x","bot":%t}`, i*7919, i%997, i%313, i*i*2654435761, i%3 == 0))
	}
	return b.NewRecordBatch()
}

// Both sinks stage and commit the same batches. Run with -bench Append.
func BenchmarkAppend(b *testing.B) {
	b.Run("Delta", func(b *testing.B) {
		o := newFolder(b).options(b, "q", nil)
		o.Storage, o.Arrow, o.PartitionColumns = newFolder(b).storage(b), benchSchema, nil
		s, err := sinkdelta.New(o)
		if err != nil {
			b.Fatal(err)
		}
		benchSink(b, s)
	})
	b.Run("Iceberg", func(b *testing.B) {
		dir := b.TempDir()
		c, err := lake.Open(context.Background(), lake.Config{URI: filepath.Join(dir, "catalog.db"), Warehouse: filepath.Join(dir, "warehouse")})
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		s, err := iceberg.New(iceberg.Options{Catalog: c, Table: table.Identifier{"bronze", "events"}, Query: "q", Arrow: benchSchema, Clock: clock.System{},
			Schema: iceberggo.NewSchema(0,
				iceberggo.NestedField{ID: 1, Name: "offset", Type: iceberggo.PrimitiveTypes.Int64, Required: true},
				iceberggo.NestedField{ID: 2, Name: "timestamp", Type: iceberggo.PrimitiveTypes.TimestampTz, Required: true},
				iceberggo.NestedField{ID: 3, Name: "topic", Type: iceberggo.PrimitiveTypes.String, Required: true},
				iceberggo.NestedField{ID: 4, Name: "value", Type: iceberggo.PrimitiveTypes.Binary}),
			Partition: *iceberggo.UnpartitionedSpec})
		if err != nil {
			b.Fatal(err)
		}
		benchSink(b, s)
	})
}

func benchSink(b *testing.B, s sink.Sink) {
	ctx := context.Background()
	f, err := s.Facts(ctx, "q")
	if err != nil {
		b.Fatal(err)
	}
	cur := &marker.Marker{Format: marker.Format, Kind: marker.KindStream, QueryName: "q", QueryID: uuid.NewString(), BatchID: -1, Claim: true,
		Attempt: clock.Nonce(), Epoch: marker.Epoch{Number: 1, Nonce: clock.Nonce()}, Position: position(0), Instance: "bench"}
	p, _, err := s.Claim(ctx, f, cur)
	if err != nil {
		b.Fatal(err)
	}
	rec := benchRecord()
	var committing time.Duration
	b.ResetTimer()
	for b.Loop() {
		m := *cur
		m.Claim, m.BatchID, m.Attempt = false, cur.BatchID+1, clock.Nonce()
		m.Position, m.PlanHash = position((m.BatchID+1)*benchRows), marker.Hash(nil)
		st, err := s.Stage(ctx, m.BatchID, m.Attempt)
		if err != nil {
			b.Fatal(err)
		}
		rec.Retain()
		if err := st.Write(rec); err != nil {
			b.Fatal(err)
		}
		staged, err := st.Close(ctx)
		if err != nil {
			b.Fatal(err)
		}
		before := clock.System{}.Now()
		c, err := s.Commit(ctx, p, cur, staged, &m)
		if err != nil {
			b.Fatal(err)
		}
		committing += clock.System{}.Now().Sub(before)
		cur = c.Marker
	}
	b.ReportMetric(float64(benchRows)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric(float64(committing.Microseconds())/1000/float64(b.N), "commit-ms")
}
