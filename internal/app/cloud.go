package app

import (
	"context"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/objstore/cloud"
	"github.com/weirlake/weir/internal/pipeline"
)

// CloudConfigs are the settings of the pipeline's buckets on Google Cloud
// Storage and Azure.
func CloudConfigs(p *pipeline.Pipeline) []cloud.Config {
	var out []cloud.Config
	for _, s := range p.Stores {
		c := cloud.Config{Endpoint: s.Endpoint, CAFile: s.CAFile, Anonymous: s.Anonymous}
		switch s.Type {
		case pipeline.StoreGCS:
			c.Kind, c.Bucket, c.CredentialsFile = cloud.GCS, s.Bucket, s.CredentialsFile
		case pipeline.StoreAzure:
			c.Kind, c.Account, c.AccountKey, c.SASToken = cloud.Azure, s.Account, s.AccountKey.Reveal(), s.SASToken.Reveal()
		default:
			continue
		}
		out = append(out, c)
	}
	return out
}

// openCloud opens a store at a location on Google Cloud Storage or Azure.
func openCloud(ctx context.Context, stores *cloud.Stores, location string, clk clock.Clock) (objstore.Store, error) {
	at, err := cloud.ParseLocation(location)
	if err != nil {
		return nil, err
	}
	c, err := stores.Client(ctx, at)
	if err != nil {
		return nil, err
	}
	return c.NewStore(at, clk), nil
}
