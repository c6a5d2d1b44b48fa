package pipeline

import "time"

// Lineage is the OpenLineage server that hears of every batch and every model.
type Lineage struct {
	URL       string        `yaml:"url" weir:"required,url"`
	Endpoint  string        `yaml:"endpoint"`
	Namespace string        `yaml:"namespace"`
	APIKey    Secret        `yaml:"apiKey"`
	Timeout   time.Duration `yaml:"timeout" weir:"min=100ms"`
}

// Defaults of lineage. Those of the endpoint and of the timeout are what
// OpenLineage's own clients use.
const (
	DefaultLineageEndpoint  = "api/v1/lineage"
	DefaultLineageNamespace = "default"
	DefaultLineageTimeout   = 5 * time.Second
)

func (l *Lineage) setDefaults() {
	l.Endpoint, l.Namespace, l.Timeout = DefaultLineageEndpoint, DefaultLineageNamespace, DefaultLineageTimeout
}
