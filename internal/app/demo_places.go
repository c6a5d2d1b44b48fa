package app

import (
	"cmp"
	"net/url"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/pipeline"
)

// DemoPlaces are where a demo keeps what it does not keep in its folder. The
// broker, and how far ingestion has come, always stay there: a Kafka with its TLS
// and log-in is a section of a pipeline file, not a flag.
type DemoPlaces struct {
	// S3 is s3://bucket/prefix of tables and checkpoints; empty is the folder.
	S3 string `json:"s3,omitempty"`
	// S3Endpoint is the URL of a compatible store; empty is AWS. Credentials and
	// region come from the SDK's default chain.
	S3Endpoint string `json:"s3_endpoint,omitempty"`
	// Catalog is the address of a SQL catalog; empty is a file in the folder.
	Catalog string `json:"catalog,omitempty"`
}

// String says where a demo's tables are.
func (p DemoPlaces) String() string {
	p = p.redacted()
	return "tables in " + cmp.Or(p.S3, "its folder") + ", the catalog in " + cmp.Or(p.Catalog, "catalog.db")
}

// redacted is the places without the catalog's password.
func (p DemoPlaces) redacted() DemoPlaces {
	if u, err := url.Parse(p.Catalog); err == nil {
		p.Catalog = u.Redacted()
	} else {
		p.Catalog = "[redacted]"
	}
	return p
}

// put makes the demo's pipeline file one that uses the places.
func (p DemoPlaces) put(file []byte) ([]byte, error) {
	if p == (DemoPlaces{}) {
		return file, nil
	}
	var doc map[string]any
	if err := yaml.Unmarshal(file, &doc); err != nil {
		return nil, err
	}
	switch {
	case p.S3 == "" && p.S3Endpoint != "":
		return nil, failure.New(failure.Config, "--s3-endpoint goes with --s3").WithHint("add --s3 s3://BUCKET/PREFIX")
	case p.S3 != "" && (!pipeline.OnS3(p.S3) || strings.HasPrefix(p.S3, "s3:///") || p.S3 == "s3://"):
		return nil, failure.New(failure.Config, "--s3 %s names no bucket of S3", p.S3).WithHint("write it as s3://BUCKET/PREFIX")
	case p.S3 != "":
		doc["warehouse"] = pipeline.JoinLocation(p.S3, "warehouse")
		doc["checkpointLocation"] = pipeline.JoinLocation(p.S3, "checkpoints")
		if p.S3Endpoint != "" {
			doc["stores"] = []any{map[string]any{"endpoint": p.S3Endpoint, "pathStyle": true}}
		}
	}
	if p.Catalog != "" {
		doc["catalog"] = map[string]any{"type": pipeline.CatalogSQL, "uri": p.Catalog}
	}
	return yaml.Marshal(doc)
}
