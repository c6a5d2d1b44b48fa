package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/sink"
	sinkhttp "github.com/weirlake/weir/internal/sink/http"
	"github.com/weirlake/weir/internal/sink/rowjson"
)

// Delivery is what every sink without a readable marker is made from.
type Delivery struct {
	Query string
	Shape *arrow.Schema
	// Record is where deliveries are written down: beside the checkpoint, which it
	// has to outlive.
	Record objstore.Store
	// Key is each row's place in Kafka, nil where it is not asked for.
	Key      *rowjson.Key
	Clock    clock.Clock
	Logger   *slog.Logger
	Stopping <-chan struct{}
}

func (a *App) delivery(ctx context.Context, q pipeline.Query, shape *arrow.Schema, key bool) (Delivery, error) {
	store, err := a.openCheckpoint(ctx, DeliveriesLocation(CheckpointDir(a.P, q)))
	if err != nil {
		return Delivery{}, fmt.Errorf("query %s: record of deliveries: %w", q.Name, err)
	}
	return Delivery{Query: q.Name, Shape: shape, Record: store, Key: recordKey(q, key), Clock: a.opts.Clock, Logger: a.opts.Logger, Stopping: a.stopping.channel()}, nil
}

// DeliveriesLocation is the record's place beside a checkpoint.
func DeliveriesLocation(checkpoint string) string {
	return strings.TrimRight(checkpoint, "/") + ".deliveries"
}

// recordKey is the key to add to each row, nil where none is asked for.
func recordKey(q pipeline.Query, asked bool) *rowjson.Key {
	topic, partition, offset, ok := q.RecordKey()
	if !asked || !ok {
		return nil
	}
	return &rowjson.Key{Topic: topic, Partition: partition, Offset: offset, Field: pipeline.RecordKeyField}
}

// KeyRows lets every row carry its place in Kafka, of which q's columns and topics
// tell.
func (d *Delivery) KeyRows(q pipeline.Query) error {
	if faults := q.RecordKeyFaults(); len(faults) > 0 {
		return failure.New(failure.Config, "query %s: the record key %s", d.Query, strings.Join(faults, "; and "))
	}
	d.Key = recordKey(q, true)
	return nil
}

func (a *App) httpSink(ctx context.Context, q pipeline.Query, h *pipeline.HTTPSink, shape *arrow.Schema) (sink.Sink, error) {
	d, err := a.delivery(ctx, q, shape, h.RecordKey)
	if err != nil {
		return nil, err
	}
	return HTTPSink(d, h)
}

// HTTPSink makes the sink over an HTTP API.
func HTTPSink(d Delivery, h *pipeline.HTTPSink) (sink.Sink, error) {
	conf, err := tlsConfig(h.TLS)
	if err != nil {
		return nil, err
	}
	return sinkhttp.New(sinkhttp.Options{
		Name: h.Target(), Query: d.Query, Shape: d.Shape, URL: h.URL.Reveal(), Method: h.Method, Headers: reveal(h.Headers),
		Format: h.Format, Gzip: h.Gzip, ChunkRows: h.ChunkRows, ChunkBytes: int64(h.ChunkBytes), Concurrency: h.Concurrency,
		RequestTimeout: h.RequestTimeout, Deadline: h.Deadline, AlreadyApplied: h.Statuses(), RowResults: h.RowResults,
		OnRejected: sink.OnRejected(h.OnRejected), RejectedMax: h.RejectedMax, Key: d.Key, TLS: conf,
		Record: d.Record, Clock: d.Clock, Logger: d.Logger, Stopping: d.Stopping, BatchBytes: int64(h.MaxBatchBytes),
	})
}

// tlsConfig reads the files; nil where the system's roots do.
func tlsConfig(t *pipeline.TLS) (*tls.Config, error) {
	if t == nil {
		return nil, nil //nolint:nilnil // no settings are the client's own
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify} //nolint:gosec // the user's word, warned about
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, failure.Wrap(failure.Config, err, "read tls.caFile")
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, failure.New(failure.Config, "tls.caFile %s holds no certificate", t.CAFile)
		}
	}
	if t.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, failure.Wrap(failure.Config, err, "read tls.certFile and tls.keyFile")
		}
		conf.Certificates = []tls.Certificate{cert}
	}
	return conf, nil
}
