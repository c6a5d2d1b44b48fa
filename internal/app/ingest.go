package app

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/ingest"
	"github.com/weirlake/weir/internal/ingest/contract"
	"github.com/weirlake/weir/internal/pipeline"
)

// Ingester makes the ingestion of that name, or the only one where name is
// empty.
func (a *App) Ingester(name string, client *http.Client) (*ingest.Ingester, error) {
	in, err := NewIngester(a.P, name, a.Kafka, a.opts, client)
	if err != nil {
		return nil, err
	}
	def, err := pickIngest(a.P, name)
	if err != nil {
		return nil, err
	}
	made := ingester{def: def, in: in}
	a.ingesters = append(a.ingesters, made)
	if a.watch != nil {
		a.watch.addIngest(made)
	}
	return in, nil
}

// NewIngester makes an ingestion of the pipeline for a broker that is reached.
func NewIngester(p *pipeline.Pipeline, name string, kafka broker.Config, o Options, client *http.Client) (*ingest.Ingester, error) {
	def, err := pickIngest(p, name)
	if err != nil {
		return nil, err
	}
	opts, err := broker.ClientOptions(kafka)
	if err != nil {
		return nil, err
	}
	cfg := IngestConfig(def, p.Kafka)
	cfg.Brokers = kafka.BootstrapServers
	in, err := ingest.New(cfg, ingest.Deps{
		Clock: o.Clock, Kafka: opts, HTTPClient: client, Logger: o.Logger,
		Explain: func(ctx context.Context, err error) error { return broker.Explain(ctx, kafka, err) },
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.File, err)
	}
	return in, nil
}

func pickIngest(p *pipeline.Pipeline, name string) (pipeline.Ingest, error) {
	if name == "" && len(p.Ingest) == 1 {
		return p.Ingest[0], nil
	}
	var names []string
	for _, in := range p.Ingest {
		if in.Name == name {
			return in, nil
		}
		names = append(names, in.Name)
	}
	switch {
	case len(names) == 0:
		return pipeline.Ingest{}, failure.New(failure.Config, "%s has no ingest section", p.File)
	case name == "":
		return pipeline.Ingest{}, failure.New(failure.Config, "%s has several ingests: %s", p.File, strings.Join(names, ", ")).WithHint("name one with --name")
	}
	return pipeline.Ingest{}, failure.New(failure.Config, "%s has no ingest %q; it has %s", p.File, name, strings.Join(names, ", "))
}

// IngestConfig is an ingest section as ingestion wants it; brokers are left to
// the caller.
func IngestConfig(in pipeline.Ingest, k *pipeline.Kafka) ingest.Config {
	cfg := ingest.Config{
		Name: in.Name, URL: in.SSE.URL, UserAgent: in.SSE.UserAgent, Since: in.SSE.Since,
		MaxEventBytes: int(in.SSE.MaxEventBytes), IdleTimeout: in.SSE.IdleTimeout, Overlap: in.SSE.Overlap,
		Schema: in.Contract.Schema, KeyPath: plainPath(in.Key),
		Header: reveal(in.SSE.Headers), MaxRecordBytes: int(in.MaxRecordBytes),
		Topic: in.Topic, DeadLetterTopic: in.DeadLetterTopic,
		Delivery: ingest.Delivery(in.Delivery), TransactionalID: in.TransactionalID, PositionPath: in.Position,
	}
	if cfg.Overlap == 0 {
		cfg.Overlap = -1 // zero in the file means none; zero in the config the default
	}
	if c := in.Contract.Canary; c != nil {
		cfg.Canary = &contract.Canary{Path: plainPath(c.Path), Equals: c.Equals}
	}
	if k != nil {
		for _, t := range k.Topics {
			if t.Name == in.Topic {
				cfg.Partitions, cfg.ReplicationFactor = t.Partitions, t.ReplicationFactor
			}
		}
	}
	return cfg
}

func reveal(m map[string]pipeline.Secret) map[string]string {
	out := map[string]string{}
	for k, v := range m {
		out[k] = v.Reveal()
	}
	return out
}

// plainPath drops the root of a JSON path: $.meta.id is meta.id.
func plainPath(p string) string { return strings.TrimPrefix(strings.TrimPrefix(p, "$"), ".") }
