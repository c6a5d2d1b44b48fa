package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/sink"
	sinkhttp "github.com/weirlake/weir/internal/sink/http"
	"github.com/weirlake/weir/internal/sink/rowjson"
)

// deliveries is where a query whose sink has no readable marker writes down what
// it has handed over: beside the checkpoint, which it has to outlive.
func (a *App) deliveries(ctx context.Context, q pipeline.Query) (objstore.Store, error) {
	store, err := a.openCheckpoint(ctx, strings.TrimRight(CheckpointDir(a.P, q), "/")+".deliveries")
	if err != nil {
		return nil, fmt.Errorf("query %s: record of deliveries: %w", q.Name, err)
	}
	return store, nil
}

// recordKey is the key to add to each row, nil where none is asked for.
func recordKey(q pipeline.Query, asked bool) *rowjson.Key {
	topic, partition, offset, ok := q.RecordKey()
	if !asked || !ok {
		return nil
	}
	return &rowjson.Key{Topic: topic, Partition: partition, Offset: offset, Field: pipeline.RecordKeyField}
}

func (a *App) httpSink(ctx context.Context, q pipeline.Query, h *pipeline.HTTPSink, shape *arrow.Schema) (sink.Sink, error) {
	record, err := a.deliveries(ctx, q)
	if err != nil {
		return nil, err
	}
	conf, err := tlsConfig(h.TLS)
	if err != nil {
		return nil, err
	}
	return sinkhttp.New(sinkhttp.Options{
		Name: h.Target(), Query: q.Name, Shape: shape, URL: h.URL.Reveal(), Method: h.Method, Headers: reveal(h.Headers),
		Format: h.Format, Gzip: h.Gzip, ChunkRows: h.ChunkRows, ChunkBytes: int64(h.ChunkBytes), Concurrency: h.Concurrency,
		RequestTimeout: h.RequestTimeout, Deadline: h.Deadline, AlreadyApplied: h.Statuses(), RowResults: h.RowResults,
		OnRejected: sink.OnRejected(h.OnRejected), RejectedMax: h.RejectedMax, Key: recordKey(q, h.RecordKey), TLS: conf,
		Record: record, Clock: a.opts.Clock, Logger: a.opts.Logger, Stopping: a.stopping.channel(), BatchBytes: int64(h.MaxBatchBytes),
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
