package weir

import (
	"context"
	"fmt"
	"time"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/sink"
)

// delivered is a store that cannot be asked what it holds. What was handed over is
// written down beside the checkpoint, and a checkpoint that is lost stops the
// query: see Query.Deliveries.
type delivered interface {
	Table
	deadline() time.Duration
}

// HTTP is an API that takes batches in chunks of rows, at least once, each chunk
// always under the same Idempotency-Key header. See docs/stores.md for what its
// answers mean.
type HTTP struct {
	// URL takes the requests, by Method (POST where empty).
	URL, Method string
	// Headers are sent along; they are kept out of messages.
	Headers map[string]string
	// Format is ndjson (also where empty) or json.
	Format string
	Gzip   bool
	// A chunk ends at ChunkRows rows (1000 where 0) or before it grows over
	// ChunkBytes (4 MiB). Concurrency is how many are under way (1).
	ChunkRows   int
	ChunkBytes  int64
	Concurrency int
	// RequestTimeout bounds one request (30 s), Deadline the tries of a chunk (2 min).
	RequestTimeout, Deadline time.Duration
	// RowResults: answers name the rows that they refuse.
	RowResults bool
	// RecordKey adds weir_key to each row, its place in Kafka (cluster/topic
	// id/partition/offset), for receivers that keep rows rather than batch ids. The
	// rows need columns of Source partition and offset, and topic where the query
	// reads several.
	RecordKey bool
	// CAFile is a PEM file of authorities to trust in place of the system's.
	CAFile string
	// Rejected takes the rows that the API refuses with a 4xx; without it they stop
	// the query.
	Rejected Table
}

func (h HTTP) open(ctx context.Context, env tableEnv) (sink.Sink, func() error, error) {
	if env.side {
		return nil, nil, fmt.Errorf("query %s: an HTTP API cannot take dead letters", env.query)
	}
	d, err := env.delivery(ctx, h.RecordKey)
	if err != nil {
		return nil, nil, err
	}
	headers := map[string]pipeline.Secret{}
	for k, v := range h.Headers {
		headers[k] = pipeline.NewSecret(v)
	}
	p := &pipeline.HTTPSink{
		URL: pipeline.NewSecret(h.URL), Method: h.Method, Headers: headers, Format: h.Format, Gzip: h.Gzip, ChunkRows: h.ChunkRows,
		ChunkBytes: pipeline.Size(h.ChunkBytes), Concurrency: h.Concurrency, RequestTimeout: h.RequestTimeout, Deadline: h.Deadline,
		RowResults: h.RowResults, OnRejected: pipeline.RejectFail,
	}
	if h.CAFile != "" {
		p.TLS = &pipeline.TLS{CAFile: h.CAFile}
	}
	if h.Rejected != nil {
		p.OnRejected = pipeline.RejectDeadLetter
	}
	s, err := app.HTTPSink(d, p)
	return s, func() error { return nil }, err
}

func (h HTTP) rejected() Table { return h.Rejected }

func (h HTTP) deadline() time.Duration { return app.HTTPCommitDeadline(h.Deadline) }

// Exec is a program that takes each batch on its standard input, at least once,
// with the batch's ids in its environment: WEIR_BATCH_KEY names what must be
// written once. Exit code 0 is done, 75 asks for another try.
type Exec struct {
	// Command is the program and its arguments. There is no shell.
	Command []string
	Dir     string
	// Env is added to the process's own environment.
	Env map[string]string
	// Format is ndjson (also where empty) or arrow, an Arrow IPC stream.
	Format string
	// AckRows: the last line of standard output is the number of rows, and has to
	// match.
	AckRows bool
	// RecordKey adds weir_key to each row of ndjson, as HTTP's does.
	RecordKey bool
	// Timeout bounds one run (1 min), Deadline the tries of a batch (2 min), Grace
	// the time between SIGTERM and SIGKILL (5 s).
	Timeout, Deadline, Grace time.Duration
}

func (e Exec) pipeline() *pipeline.ExecSink {
	env := map[string]pipeline.Secret{}
	for k, v := range e.Env {
		env[k] = pipeline.NewSecret(v)
	}
	return &pipeline.ExecSink{Command: e.Command, Dir: e.Dir, Env: env, Format: e.Format, AckRows: e.AckRows, Timeout: e.Timeout, Deadline: e.Deadline, Grace: e.Grace}
}

func (e Exec) open(ctx context.Context, env tableEnv) (sink.Sink, func() error, error) {
	if env.side {
		return nil, nil, fmt.Errorf("query %s: a program cannot take dead letters", env.query)
	}
	if e.RecordKey && e.Format != "" && e.Format != "ndjson" {
		return nil, nil, failure.New(failure.Config, "query %s: RecordKey is for ndjson; Arrow rows have their columns", env.query)
	}
	d, err := env.delivery(ctx, e.RecordKey)
	if err != nil {
		return nil, nil, err
	}
	s, err := app.ExecSink(d, e.pipeline())
	return s, func() error { return nil }, err
}

func (e Exec) deadline() time.Duration { return app.ExecCommitDeadline(e.pipeline()) }

// delivery is what a store without a readable marker is made from.
func (env tableEnv) delivery(ctx context.Context, key bool) (app.Delivery, error) {
	record, err := app.OpenStore(ctx, env.deliveries, env.clock)
	if err != nil {
		return app.Delivery{}, fmt.Errorf("query %s: record of deliveries: %w", env.query, err)
	}
	d := app.Delivery{Query: env.query, Shape: env.shape, Record: record, Clock: env.clock, Logger: env.log, Stopping: env.stopping}
	if key {
		err = d.KeyRows(env.rows)
	}
	return d, err
}

// rows are the query's columns and topics as a pipeline file has them.
func (q *Query) rows() pipeline.Query {
	out := pipeline.Query{Name: q.name}
	if k, ok := q.source.(Kafka); ok {
		out.From.Kafka = &pipeline.KafkaSource{Topics: k.Topics, TopicPattern: k.TopicPattern}
	}
	if q.parse != nil {
		out.Parse = &pipeline.Parse{}
		for _, c := range q.parse.Columns {
			out.Parse.Columns = append(out.Parse.Columns, pipeline.Column{Name: c.Name, Path: c.Path, Source: c.Source, Type: c.Type})
		}
	}
	return out
}

// Files is a folder that files are dropped into, exactly once: each is made once
// and never changed, and a manifest says when a batch is complete. The folder
// holds the query's memory, so that a lost checkpoint is adopted from it.
type Files struct {
	// Path is the folder, local or s3://bucket/prefix.
	Path string
	// Format is ndjson (also where empty), csv or parquet; Gzip is for the first
	// two.
	Format string
	Gzip   bool
	// FileBytes is the size at which a file ends (64 MiB where 0).
	FileBytes int64
}

func (f Files) open(ctx context.Context, env tableEnv) (sink.Sink, func() error, error) {
	store, err := app.OpenStore(ctx, f.Path, env.clock)
	if err != nil {
		return nil, nil, fmt.Errorf("query %s: folder %s: %w", env.query, f.Path, err)
	}
	p := &pipeline.FileSink{Path: f.Path, Format: f.Format, MaxFileSize: pipeline.Size(f.FileBytes)}
	if f.Gzip {
		p.Compression = pipeline.CompressionGzip
	}
	s, err := app.FileSink(store, env.query, env.shape, p, env.clock)
	return s, func() error { return nil }, err
}
