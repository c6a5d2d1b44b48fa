package pipeline

import (
	"slices"
	"strings"
)

// Glue is how a glue catalog is reached. Credentials come from the AWS SDK's
// default chain: environment, profile, web identity, container, instance.
type Glue struct {
	Region string `yaml:"region"`
	// Endpoint is the URL of a compatible server or of a VPC endpoint; empty is
	// AWS.
	Endpoint string `yaml:"endpoint" weir:"url"`
	// CatalogID is the account whose catalog it is; empty is the caller's own.
	CatalogID  string      `yaml:"catalogId"`
	CAFile     string      `yaml:"caFile" weir:"path"`
	AssumeRole *AssumeRole `yaml:"assumeRole"`
	// Archive keeps a version of the table's entry for every commit.
	Archive bool `yaml:"archive"`
}

// CatalogGlue is the value of Catalog.Type for an AWS Glue Data Catalog.
const CatalogGlue = "glue"

// checkGlue checks what only a glue catalog has, and that the rest fits one.
func (l *loader) checkGlue(p *Pipeline) {
	c := &p.Catalog
	if c.Type != CatalogGlue {
		if _, ok := l.places["catalog.glue"]; ok {
			l.faultKey("catalog.glue", "glue is for a catalog of type %s; this one is of type %s", CatalogGlue, c.Type)
		}
		_, given := l.places["catalog"]
		if _, ok := l.places["catalog.uri"]; given && !ok && !slices.Contains(l.opaque, "catalog") && !slices.Contains(l.broken, "catalog") {
			l.fault(l.places.nearest("catalog"), "catalog.uri", "catalog: missing key %q", "uri")
		}
		return
	}
	if _, ok := l.places["catalog.uri"]; ok {
		l.faultKey("catalog.uri", "uri: a glue catalog is found by catalog.glue.region and catalog.glue.catalogId; remove it")
	}
	if c.Glue != nil {
		l.mustExist("catalog.glue.caFile", c.Glue.CAFile)
		if id := c.Glue.CatalogID; id != "" && !l.isBroken("catalog.glue.catalogId") && strings.ContainsAny(id, " /") {
			l.faultKey("catalog.glue.catalogId", "catalogId %q: want the number of the account", id)
		}
	}
	if !l.isBroken("warehouse") && p.Warehouse != "" && !Remote(p.Warehouse) {
		l.warn("warehouse", "the catalog is Glue and the warehouse a local folder: other engines that ask Glue will not find the files")
	}
}
