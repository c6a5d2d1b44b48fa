package pipeline

import "github.com/weirlake/weir/examples"

// Kinds of examples.
const (
	// ExampleWikimedia is the built-in pipeline: ingestion, bronze, silver. Its
	// variables (WEIR_DATA, WEIR_SSE_URL, WEIR_KAFKA_PORT, WEIR_LISTEN) are
	// what weir demo sets; each has a default.
	ExampleWikimedia = "wikimedia"
	// ExampleMinimal is the smallest useful file: one topic into one table.
	ExampleMinimal = "minimal"
)

// Examples lists the kinds.
func Examples() []string { return []string{ExampleMinimal, ExampleWikimedia} }

// Example is the commented file that weir init writes, empty for an unknown
// kind.
func Example(kind string) string {
	switch kind {
	case ExampleWikimedia:
		return examples.Wikimedia
	case ExampleMinimal:
		return examples.Minimal
	}
	return ""
}
