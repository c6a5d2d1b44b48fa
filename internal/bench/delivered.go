package bench

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/pipeline"
)

// deliveredPlans are files, an HTTP API and a program. The API is a server in this
// process that reads what it gets and keeps nothing, the program is cat: what is
// measured is the way there.
func (b *bench) deliveredPlans(ctx context.Context, folder string, records []arrow.RecordBatch, batches int) []sinkPlan {
	delivery := func(name string) (app.Delivery, error) {
		record, err := app.OpenStore(ctx, filepath.Join(folder, name+".deliveries"), clock.System{})
		return app.Delivery{Query: "bench", Shape: sinkSchema, Record: record, Clock: clock.System{}}, err
	}
	return []sinkPlan{
		{sinkFile, func() (time.Duration, error) {
			store, err := app.OpenStore(ctx, filepath.Join(folder, "files"), clock.System{})
			if err != nil {
				return 0, err
			}
			s, err := app.FileSink(store, "bench", sinkSchema, &pipeline.FileSink{Path: filepath.Join(folder, "files")}, clock.System{})
			return b.drive(ctx, s, err, records, batches)
		}},
		{sinkHTTP, func() (time.Duration, error) {
			srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
			defer srv.Close()
			d, err := delivery("http")
			if err != nil {
				return 0, err
			}
			s, err := app.HTTPSink(d, &pipeline.HTTPSink{URL: pipeline.NewSecret(srv.URL), OnRejected: pipeline.RejectFail})
			return b.drive(ctx, s, err, records, batches)
		}},
		{sinkExec, func() (time.Duration, error) {
			d, err := delivery("exec")
			if err != nil {
				return 0, err
			}
			s, err := app.ExecSink(d, &pipeline.ExecSink{Command: []string{"sh", "-c", "cat > /dev/null"}})
			return b.drive(ctx, s, err, records, batches)
		}},
	}
}

// cassandraPlan is a keyspace of a Cassandra, host:port/keyspace. The table goes
// when it is measured.
func (b *bench) cassandraPlan(ctx context.Context, records []arrow.RecordBatch, batches int) sinkPlan {
	return sinkPlan{sinkCassandra, func() (took time.Duration, err error) {
		host, keyspace, ok := strings.Cut(b.o.Cassandra, "/")
		if !ok {
			return 0, failure.New(failure.Config, "--cassandra %q is not of the form host:port/keyspace", b.o.Cassandra)
		}
		table := "weir_bench_" + clock.Nonce()[:8]
		s, err := app.CassandraSink(pipeline.CassandraSink{Hosts: []string{host}, Keyspace: keyspace, Table: table, Keys: []string{"event_id"}}, "bench", sinkSchema, clock.System{})
		if took, err = b.drive(ctx, s, err, records, batches); err != nil {
			return 0, err
		}
		session, err := gocql.NewCluster(host).CreateSession()
		if err != nil {
			return 0, fmt.Errorf("remove the table: %w", err)
		}
		defer session.Close()
		return took, session.Query(fmt.Sprintf("DROP TABLE %q.%q", keyspace, table)).ExecContext(ctx)
	}}
}
