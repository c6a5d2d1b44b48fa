package app

import (
	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/cassandra"
)

// CassandraSink makes the sink over a table of a Cassandra.
func CassandraSink(s pipeline.CassandraSink, query string, shape *arrow.Schema, clk clock.Clock) (sink.Sink, error) {
	return cassandra.New(cassandra.Options{
		Hosts: s.Hosts, Username: s.Username.Reveal(), Password: s.Password.Reveal(), Keyspace: s.Keyspace, Table: s.Table,
		Name: s.Target(), Query: query, Arrow: shape, Keys: s.Keys, DeleteColumn: deleteColumn(pipeline.To{Cassandra: &s}),
		OnRejected: sink.OnRejected(s.OnRejected), Clock: clk, Limits: cassandra.Limits{BatchBytes: int64(s.MaxBatchBytes)},
	})
}
