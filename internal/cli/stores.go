package cli

import (
	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/objstore/cloud"
	"github.com/weirlake/weir/internal/pipeline"
)

// auditStores gives the audit, which shares no code with what writes the
// tables, the settings of the pipeline's buckets.
func auditStores(p *pipeline.Pipeline) audit.Store {
	var configs []audit.S3
	for _, s := range p.Stores {
		if s.Type != pipeline.StoreS3 && s.Type != "" {
			continue
		}
		c := audit.S3{
			Bucket: s.Bucket, Endpoint: s.Endpoint, Region: s.Region, CAFile: s.CAFile, PathStyle: s.PathStyle,
			AccessKeyID: s.AccessKeyID.Reveal(), SecretAccessKey: s.SecretAccessKey.Reveal(), SessionToken: s.SessionToken.Reveal(),
		}
		if r := s.AssumeRole; r != nil {
			c.AssumeRoleARN, c.ExternalID, c.AssumeSessionName = r.RoleARN, r.ExternalID.Reveal(), r.SessionName
		}
		configs = append(configs, c)
	}
	stores := audit.NewStores(configs...)
	// Settings that do not fit were refused when the pipeline's were opened.
	stores.Clouds, _ = cloud.NewStores(app.CloudConfigs(p)...)
	return stores
}
