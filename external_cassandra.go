package weir

import (
	"context"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/sink"
)

// Cassandra is a table of a store that speaks Cassandra's protocol, made when it is
// missing. Rows are written by key under a timestamp that belongs to their batch,
// so that a batch that comes again changes nothing; there is no transaction around
// a batch, and readers may see parts of one.
type Cassandra struct {
	// Hosts are host or host:port.
	Hosts              []string
	Username, Password string
	Keyspace, Table    string
	// Keys are the primary key: the partition key, then the clustering columns.
	Keys []string
	// DeleteWhen and Debezium let rows delete their key, as in Upsert. The order is
	// that of arrival.
	DeleteWhen string
	Debezium   bool
	// Rejected is the table for rows that the store refuses. Without it such a row
	// stops the query before anything of its batch is written.
	Rejected Table
	// MaxBatchBytes is how large a batch may be in memory; 1 GiB where 0.
	MaxBatchBytes int64
}

func (t Cassandra) rejected() Table { return t.Rejected }

// upsert is nil where no row deletes its key.
func (t Cassandra) upsert() *Upsert {
	if t.DeleteWhen == "" && !t.Debezium {
		return nil
	}
	return &Upsert{Keys: t.Keys, DeleteWhen: t.DeleteWhen, Debezium: t.Debezium}
}

func (t Cassandra) open(_ context.Context, env tableEnv) (sink.Sink, func() error, error) {
	p := pipeline.CassandraSink{
		Hosts: t.Hosts, Username: pipeline.NewSecret(t.Username), Password: pipeline.NewSecret(t.Password), Keyspace: t.Keyspace, Table: t.Table,
		Keys: t.Keys, OnRejected: policyFor(t.Rejected), MaxBatchBytes: pipeline.Size(t.MaxBatchBytes),
	}
	if u := t.upsert().spec(); u != nil {
		p.DeleteWhen, p.Changes = u.DeleteWhen, u.Changes
	}
	s, err := app.CassandraSink(p, env.query, env.shape, env.clock)
	if err != nil {
		return nil, nil, err
	}
	return s, s.Close, nil
}
