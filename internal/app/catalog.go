package app

import (
	"context"
	"log/slog"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/objstore/cloud"
	"github.com/weirlake/weir/internal/objstore/s3"
	"github.com/weirlake/weir/internal/pipeline"
)

// CatalogConfig is how the pipeline's catalog is opened. While a server does
// not answer, log is told once what is waited for.
func CatalogConfig(p *pipeline.Pipeline, log *slog.Logger) lake.Config {
	c := p.Catalog
	cfg := lake.Config{
		Type: c.Type, Name: c.Name, URI: c.URI.Reveal(), Warehouse: p.Warehouse, NewName: c.NewName,
		OpenDeadline: c.StartTimeout, OnWait: func(what string) { log.Warn(what) },
	}
	if c.IsSQLite() {
		cfg.URI = c.SQLitePath()
	}
	if c.Type == pipeline.CatalogGlue {
		cfg.Glue = glueConfig(c.Glue)
	}
	if c.Type != pipeline.CatalogREST {
		return cfg
	}
	cfg.REST = lake.REST{
		Warehouse: c.Warehouse, Credential: c.Credential.Reveal(), Token: c.Token.Reveal(),
		OAuth2ServerURI: c.OAuth2ServerURI, Scope: c.Scope, Headers: map[string]string{},
	}
	for k, v := range c.Headers {
		cfg.REST.Headers[k] = v.Reveal()
	}
	if c.SigV4 != nil {
		cfg.REST.SigV4 = &lake.SigV4{Region: c.SigV4.Region, Name: c.SigV4.Service}
	}
	return cfg
}

func glueConfig(g *pipeline.Glue) lake.Glue {
	if g == nil {
		return lake.Glue{}
	}
	out := lake.Glue{CatalogID: g.CatalogID, Archive: g.Archive, AWS: s3.Config{Region: g.Region, Endpoint: g.Endpoint, CAFile: g.CAFile}}
	if r := g.AssumeRole; r != nil {
		out.AWS.AssumeRole = &s3.AssumeRole{RoleARN: r.RoleARN, ExternalID: r.ExternalID.Reveal(), SessionName: r.SessionName}
	}
	return out
}

// ReadCatalog opens the pipeline's catalog to read it: nothing is made, and
// nothing else of the pipeline is started.
func ReadCatalog(ctx context.Context, p *pipeline.Pipeline, log *slog.Logger) (*lake.Catalog, error) {
	if p.Catalog.Type == pipeline.CatalogREST {
		return nil, failure.New(failure.Config, "pipeline %s has a REST catalog already", p.Name).WithHint("attach the other engines to it")
	}
	cfg := CatalogConfig(p, log)
	cfg.ReadOnly = true
	stores, err := s3.NewStores(StoreConfigs(p)...)
	if err != nil {
		return nil, err
	}
	if cfg.Cloud, err = cloud.NewStores(CloudConfigs(p)...); err != nil {
		return nil, err
	}
	cfg.Stores = stores
	return lake.Open(ctx, cfg)
}
