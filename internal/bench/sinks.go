package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/sink"
)

// Names of the measurements of sinks.
const (
	sinkIceberg        = "sinks/iceberg"
	sinkDelta          = "sinks/delta"
	sinkPostgres       = "sinks/postgres"
	sinkPostgresUpsert = "sinks/postgres-upsert"
	sinkPSQL           = "sinks/psql-copy"
	sinkKafka          = "sinks/kafka"
	sinkCassandra      = "sinks/cassandra"
	sinkFile           = "sinks/file"
	sinkHTTP           = "sinks/http"
	sinkExec           = "sinks/exec"
)

// ratios are what a sink is held against: the rate of another in the same run.
var ratios = map[string]struct {
	of    string
	least float64
}{
	sinkDelta:    {sinkIceberg, 0.9},
	sinkPostgres: {sinkPSQL, 0.5},
	Gold:         {goldPlain, 1 / goldRatio},
	Large:        {largeLimit, largeShare},

	historyAfterCommits: {historyFirst, historyShare},
	historyAt(10):       {historyFirst, historyShare},
	historyAt(50):       {historyFirst, historyShare},
}

const (
	sinkBatchRows  = 100_000 // maxOffsetsPerTrigger of the shipped pipeline
	sinkRecordRows = 8192
)

// sinkSchema is the shape of edits as silver has them.
var sinkSchema = arrow.NewSchema([]arrow.Field{
	{Name: "event_id", Type: arrow.BinaryTypes.String},
	{Name: "event_time", Type: batch.Timestamp},
	{Name: "wiki", Type: arrow.BinaryTypes.String},
	{Name: "title", Type: arrow.BinaryTypes.String},
	{Name: "namespace", Type: arrow.PrimitiveTypes.Int32},
	{Name: "editor", Type: arrow.BinaryTypes.String},
	{Name: "bot", Type: arrow.FixedWidthTypes.Boolean},
	{Name: "comment", Type: arrow.BinaryTypes.String},
	{Name: "length_new", Type: arrow.PrimitiveTypes.Int64},
	{Name: "revision_new", Type: arrow.PrimitiveTypes.Int64},
	{Name: "kafka_offset", Type: arrow.PrimitiveTypes.Int64},
}, nil)

// sinks measures what a sink takes, in this process: staging and commit of
// batches that lie in memory. Nothing is read, parsed or checkpointed.
func (b *bench) sinks(ctx context.Context) ([]Result, error) {
	records, err := b.sinkRows()
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, r := range records {
			r.Release()
		}
	}()
	batches := int(max(1, b.o.Rows/sinkBatchRows))
	return b.each(ctx, Sinks, func(run int) ([]Result, error) {
		by := map[string]*Result{}
		var order []string
		add := func(name string, f func() (time.Duration, error)) error {
			took, err := f()
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			rows := int64(batches) * sinkBatchRows
			by[name] = &Result{Name: name, Rows: rows, RowsPerSecond: round(float64(rows) / took.Seconds()), Seconds: round(took.Seconds()), Commits: batches}
			order = append(order, name)
			return nil
		}
		for _, s := range b.sinkPlans(ctx, run, records, batches) {
			if err := add(s.name, s.run); err != nil {
				return nil, err
			}
		}
		var out []Result
		for _, name := range order {
			if r, ok := ratios[name]; ok && by[r.of] != nil {
				by[name].Ratio = round(by[name].RowsPerSecond / by[r.of].RowsPerSecond)
			}
			out = append(out, *by[name])
		}
		return out, nil
	})
}

// sinkPlan is one sink to measure.
type sinkPlan struct {
	name string
	run  func() (time.Duration, error)
}

// sinkPlans are the sinks in the order of measurement: those that are compared
// lie next to each other.
func (b *bench) sinkPlans(ctx context.Context, run int, records []arrow.RecordBatch, batches int) []sinkPlan {
	folder := filepath.Join(b.dir, fmt.Sprintf("sinks-%d", run))
	spec := app.SinkSpec{Query: "bench", Shape: sinkSchema, Clock: clock.System{}}
	plans := []sinkPlan{
		{sinkIceberg, func() (time.Duration, error) {
			c, err := lake.Open(ctx, lake.Config{Type: pipeline.CatalogSQL, Name: pipeline.DefaultCatalogName, URI: "sqlite:" + filepath.Join(folder, "catalog.db"), Warehouse: filepath.Join(folder, "warehouse")})
			if err != nil {
				return 0, err
			}
			defer func() { _ = c.Close() }()
			spec.Table = "bench.edits"
			s, err := app.IcebergSink(c, spec)
			return b.drive(ctx, s, err, records, batches)
		}},
		{sinkDelta, func() (time.Duration, error) {
			store, err := app.DeltaStorage(ctx, filepath.Join(folder, "delta"), clock.System{})
			if err != nil {
				return 0, err
			}
			spec.Table = "delta.edits"
			s, err := app.DeltaSink(store, spec, app.DeltaSettings{})
			return b.drive(ctx, s, err, records, batches)
		}},
		{sinkKafka, func() (time.Duration, error) {
			s, err := app.KafkaSink(pipeline.KafkaSink{Topic: fmt.Sprintf("sinks-%d", run), Partitions: 4, Key: "event_id"},
				broker.Config{BootstrapServers: b.kafka.bootstrap}, "bench", sinkSchema, clock.System{})
			return b.drive(ctx, s, err, records, batches)
		}},
	}
	plans = append(plans, b.deliveredPlans(ctx, folder, records, batches)...)
	if b.o.Cassandra != "" {
		plans = append(plans, b.cassandraPlan(ctx, records, batches))
	} else {
		b.say("Cassandra is not measured: say where one is, --cassandra host:port/an_empty_keyspace")
	}
	if b.o.Postgres == "" {
		b.say("Postgres is not measured: say where one is, --postgres postgres://…/an_empty_database")
		return plans
	}
	toPostgres := func(table string, mode string, keys ...string) func() (time.Duration, error) {
		return func() (time.Duration, error) {
			if err := b.dropTable(ctx, table); err != nil {
				return 0, err
			}
			s, err := app.PostgresSink(pipeline.PostgresSink{URL: pipeline.NewSecret(b.o.Postgres), Table: table, Mode: mode, Keys: keys}, "bench", sinkSchema, clock.System{})
			return b.drive(ctx, s, err, records, batches)
		}
	}
	return append(plans,
		sinkPlan{sinkPSQL, func() (time.Duration, error) { return b.psql(ctx, folder, records, batches) }},
		sinkPlan{sinkPostgres, toPostgres("weir_bench", pipeline.ModeAppend)},
		sinkPlan{sinkPostgresUpsert, toPostgres("weir_bench_upsert", pipeline.ModeUpsert, "event_id")})
}

// sinkRows makes one batch of rows; every batch has the same ones.
func (b *bench) sinkRows() ([]arrow.RecordBatch, error) {
	rnd := rand.New(rand.NewPCG(b.o.Seed, 1)) //nolint:gosec // rows of a benchmark
	words := []string{"added", "section", "reverted", "citation", "needed", "typo", "category", "talk", "stub", "image"}
	text := func(n int) string {
		s := ""
		for range n {
			s += words[rnd.IntN(len(words))] + " "
		}
		return s
	}
	var out []arrow.RecordBatch
	builder := array.NewRecordBuilder(memory.DefaultAllocator, sinkSchema)
	defer builder.Release()
	id := make([]byte, 16)
	for i := range sinkBatchRows {
		for j := range id {
			id[j] = byte(rnd.Uint32())
		}
		u, err := uuid.FromBytes(id)
		if err != nil {
			return nil, err
		}
		builder.Field(0).(*array.StringBuilder).Append(u.String())
		builder.Field(1).(*array.TimestampBuilder).Append(arrow.Timestamp(1_767_225_600_000_000 + int64(i)*1_000))
		builder.Field(2).(*array.StringBuilder).Append(words[rnd.IntN(3)] + "wiki")
		builder.Field(3).(*array.StringBuilder).Append(text(1 + rnd.IntN(4)))
		builder.Field(4).(*array.Int32Builder).Append(int32(rnd.IntN(4)))
		builder.Field(5).(*array.StringBuilder).Append(fmt.Sprintf("Editor%d", rnd.IntN(20_000)))
		builder.Field(6).(*array.BooleanBuilder).Append(rnd.IntN(5) == 0)
		builder.Field(7).(*array.StringBuilder).Append(text(rnd.IntN(14)))
		builder.Field(8).(*array.Int64Builder).Append(rnd.Int64N(100_000))
		builder.Field(9).(*array.Int64Builder).Append(1_300_000_000 + int64(i))
		builder.Field(10).(*array.Int64Builder).Append(int64(i))
		if (i+1)%sinkRecordRows == 0 || i+1 == sinkBatchRows {
			out = append(out, builder.NewRecordBatch())
		}
	}
	return out, nil
}

// drive claims a sink and commits the batches; the claim is not counted.
func (b *bench) drive(ctx context.Context, s sink.Sink, err error, records []arrow.RecordBatch, batches int) (time.Duration, error) {
	if err != nil {
		return 0, err
	}
	defer func() { _ = s.Close() }()
	f, err := s.Facts(ctx, "bench")
	if err != nil {
		return 0, err
	}
	position := func(next int64) batch.Position {
		k := &batch.KafkaPosition{ClusterID: "bench", Topics: map[string]batch.TopicPosition{}}
		k.Set("bench", "bench", 0, batch.PartitionPosition{NextOffset: next, LastOffset: next - 1})
		return batch.Position{Kafka: k}
	}
	m := &marker.Marker{Format: marker.Format, Kind: marker.KindStream, QueryName: "bench", QueryID: uuid.NewString(), BatchID: -1, Claim: true,
		Attempt: clock.Nonce(), Epoch: marker.Epoch{Number: 1, Nonce: clock.Nonce()}, Position: position(0), Watermark: marker.Watermark{Micros: marker.MinTime}}
	permit, moved, err := s.Claim(ctx, f, m)
	if err != nil || moved {
		return 0, errors.Join(err, fmt.Errorf("claim %s (moved: %t)", s.Name(), moved))
	}
	began := b.o.Clock.Now()
	for i := range batches {
		next := *m
		next.Claim, next.BatchID, next.Attempt, next.PlanHash = false, int64(i), clock.Nonce(), fmt.Sprint(i)
		next.Position = position(int64(i+1) * sinkBatchRows)
		st, err := s.Stage(ctx, next.BatchID, next.Attempt)
		if err != nil {
			return 0, err
		}
		for _, r := range records {
			r.Retain()
			if err := st.Write(r); err != nil {
				return 0, err
			}
		}
		staged, err := st.Close(ctx)
		if err != nil {
			return 0, err
		}
		c, err := s.Commit(ctx, permit, m, staged, &next)
		if err != nil {
			return 0, err
		}
		m = c.Marker
	}
	return b.o.Clock.Now().Sub(began), nil
}

func (b *bench) dropTable(ctx context.Context, table string) error {
	conn, err := pgx.Connect(ctx, b.o.Postgres)
	if err != nil {
		return failure.New(failure.Unreachable, "the Postgres of the benchmark cannot be reached") // the text may hold the password
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, "DROP TABLE IF EXISTS "+pgx.Identifier{table}.Sanitize())
	return err
}

// psql loads the same rows as psql's \copy does, a transaction a batch.
func (b *bench) psql(ctx context.Context, folder string, records []arrow.RecordBatch, batches int) (time.Duration, error) {
	program, err := exec.LookPath("psql")
	if err != nil {
		return 0, failure.New(failure.Config, "psql is missing, against which the Postgres sink is measured")
	}
	file := filepath.Join(folder, "rows.copy")
	if err := writeCopy(file, records); err != nil {
		return 0, err
	}
	if err := b.dropTable(ctx, "weir_bench_psql"); err != nil {
		return 0, err
	}
	args := []string{"--no-psqlrc", "--quiet", "-v", "ON_ERROR_STOP=1", b.o.Postgres}
	create := exec.CommandContext(ctx, program, append(slices.Clone(args), "-c", `CREATE TABLE weir_bench_psql (event_id text NOT NULL, event_time timestamptz NOT NULL,
		wiki text NOT NULL, title text NOT NULL, namespace integer NOT NULL, editor text NOT NULL, bot boolean NOT NULL, comment text NOT NULL,
		length_new bigint NOT NULL, revision_new bigint NOT NULL, kafka_offset bigint NOT NULL)`)...)
	if err := create.Run(); err != nil {
		return 0, fmt.Errorf("psql: make the table: %w", err)
	}
	for range batches {
		args = append(args, "-c", `\copy weir_bench_psql FROM '`+file+`'`)
	}
	began := b.o.Clock.Now()
	if err := exec.CommandContext(ctx, program, args...).Run(); err != nil { //nolint:gosec // psql, by name
		return 0, fmt.Errorf("psql: copy: %w", err)
	}
	return b.o.Clock.Now().Sub(began), nil
}

// writeCopy writes rows in COPY's text format; none holds a tab or a backslash.
func writeCopy(path string, records []arrow.RecordBatch) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	for _, r := range records {
		for i := range int(r.NumRows()) {
			for c, col := range r.Columns() {
				if c > 0 {
					_ = w.WriteByte('\t')
				}
				_, _ = w.WriteString(col.ValueStr(i))
			}
			_ = w.WriteByte('\n')
		}
	}
	return errors.Join(w.Flush(), f.Close())
}
