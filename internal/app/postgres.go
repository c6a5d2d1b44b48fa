package app

import (
	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/postgres"
)

// PostgresSink makes the sink over a table of a Postgres.
func PostgresSink(s pipeline.PostgresSink, query string, shape *arrow.Schema, clk clock.Clock) (sink.Sink, error) {
	return postgres.New(postgres.Options{
		URL: s.URL.Reveal(), Name: pipeline.PostgresTarget("", s.Table), Table: s.Table, Query: query, Arrow: shape,
		Upsert: s.Mode == pipeline.ModeUpsert, Keys: s.Keys, OrderBy: s.OrderBy, JSONB: s.JSONB,
		DeleteColumn: deleteColumn(pipeline.To{Postgres: &s}),
		OnRejected:   sink.OnRejected(s.OnRejected), Clock: clk, Limits: postgres.Limits{BatchBytes: int64(s.MaxBatchBytes)},
	})
}
