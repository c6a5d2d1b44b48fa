package app

import (
	"context"

	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/registry"
)

// registryOf is the decoder of a query's values, nil where they are JSON. It asks
// nothing yet.
func registryOf(p *pipeline.Parse) (*registry.Decoder, error) {
	if p == nil || p.SchemaRegistry == nil {
		return nil, nil //nolint:nilnil // there is nothing to decode
	}
	r := p.SchemaRegistry
	conf, err := tlsConfig(r.TLS)
	if err != nil {
		return nil, err
	}
	return registry.New(registry.Config{
		URLs: []string{r.URL}, Format: p.Format,
		Username: r.Username.Reveal(), Password: r.Password.Reveal(), Token: r.Token.Reveal(), TLS: conf,
	})
}

// connectRegistries asks the schema registries.
func (a *App) connectRegistries(ctx context.Context, r *ConnectReport) {
	for _, q := range a.P.Queries {
		d, err := registryOf(q.Parse)
		if err == nil && d == nil {
			continue
		}
		if err == nil {
			err = a.reachRegistry(ctx, d)
		}
		r.add("schema registry", "query "+q.Name, err)
	}
}

func (a *App) reachRegistry(ctx context.Context, d *registry.Decoder) error {
	ctx, cancel := context.WithTimeout(ctx, connectMax)
	defer cancel()
	return d.Reach(ctx)
}
