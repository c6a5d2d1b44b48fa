package weir

import (
	"context"
	"time"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/sink"
)

// outside is a Table over a store outside, which may refuse rows.
type outside interface {
	// rejected is the table for refused rows, nil where they stop the query.
	rejected() Table
}

// policyFor is what becomes of refused rows.
func policyFor(rejected Table) string {
	if rejected == nil {
		return pipeline.RejectFail
	}
	return pipeline.RejectDeadLetter
}

// Postgres is a table of a Postgres database, made when it is missing. Rows and
// the query's marker are written in one transaction: exactly once.
type Postgres struct {
	// URL is postgres://user:password@host:port/database.
	URL string
	// Table is table or schema.table.
	Table string
	// Keys, where given, make it an upsert: one row per key, the last by OrderBy
	// or, without it, the last one that was read.
	Keys, OrderBy []string
	// DeleteWhen and Debezium, with Keys, let rows delete their key, and
	// RememberDeletes keeps the order of deleted keys, as in Upsert.
	DeleteWhen      string
	Debezium        bool
	RememberDeletes time.Duration
	// JSONB are text columns that the table holds as jsonb.
	JSONB []string
	// Rejected is the table for rows that the database refuses (a constraint, a NUL
	// character, a number that is too large). Without it such a row stops the
	// query, and nothing of its batch is written.
	Rejected Table
	// MaxBatchBytes is how large a batch may be in memory; 1 GiB where 0.
	MaxBatchBytes int64
}

func (t Postgres) rejected() Table { return t.Rejected }

// upsert is nil where no row deletes its key.
func (t Postgres) upsert() *Upsert {
	if t.DeleteWhen == "" && !t.Debezium {
		return nil
	}
	return &Upsert{Keys: t.Keys, OrderBy: t.OrderBy, DeleteWhen: t.DeleteWhen, Debezium: t.Debezium, RememberDeletes: t.RememberDeletes}
}

func (t Postgres) open(_ context.Context, env tableEnv) (sink.Sink, func() error, error) {
	p := pipeline.PostgresSink{
		URL: pipeline.NewSecret(t.URL), Table: t.Table, Mode: pipeline.ModeAppend, Keys: t.Keys, OrderBy: t.OrderBy, JSONB: t.JSONB,
		OnRejected: policyFor(t.Rejected), MaxBatchBytes: pipeline.Size(t.MaxBatchBytes),
	}
	if len(t.Keys) > 0 {
		p.Mode = pipeline.ModeUpsert
	}
	if u := t.upsert().spec(); u != nil {
		p.DeleteWhen, p.Changes = u.DeleteWhen, u.Changes
	}
	s, err := app.PostgresSink(p, env.query, env.shape, env.clock)
	if err != nil {
		return nil, nil, err
	}
	return s, s.Close, nil
}
