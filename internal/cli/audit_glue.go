package cli

import (
	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/pipeline"
)

// auditGlue is a Glue catalog as the audit asks it, by itself.
func auditGlue(g *pipeline.Glue) audit.Locator {
	if g == nil {
		return audit.GlueCatalog{}
	}
	out := audit.GlueCatalog{CatalogID: g.CatalogID, AWS: audit.S3{Region: g.Region, Endpoint: g.Endpoint, CAFile: g.CAFile}}
	if r := g.AssumeRole; r != nil {
		out.AWS.AssumeRoleARN, out.AWS.ExternalID, out.AWS.AssumeSessionName = r.RoleARN, r.ExternalID.Reveal(), r.SessionName
	}
	return out
}
