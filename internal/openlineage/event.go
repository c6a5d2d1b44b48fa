package openlineage

import (
	"time"

	"github.com/google/uuid"
)

// Event is an OpenLineage run event (spec 2-0-2, RunEvent).
type Event struct {
	EventTime time.Time `json:"eventTime"`
	Producer  string    `json:"producer"`
	SchemaURL string    `json:"schemaURL"`
	EventType string    `json:"eventType"`
	Run       Run       `json:"run"`
	Job       Job       `json:"job"`
	Inputs    []Dataset `json:"inputs"`
	Outputs   []Dataset `json:"outputs"`
}

// Types of events.
const (
	Start    = "START"
	Complete = "COMPLETE"
	Fail     = "FAIL"
	Abort    = "ABORT"
)

// Run is one batch as one process runs it, or one model in one run of gold.
type Run struct {
	RunID  string         `json:"runId"`
	Facets map[string]any `json:"facets,omitempty"`
}

// Job is a query or a model.
type Job struct {
	Namespace string         `json:"namespace"`
	Name      string         `json:"name"`
	Facets    map[string]any `json:"facets,omitempty"`
}

// Dataset is a topic or a table, as an input or as an output.
type Dataset struct {
	Namespace    string         `json:"namespace"`
	Name         string         `json:"name"`
	Facets       map[string]any `json:"facets,omitempty"`
	InputFacets  map[string]any `json:"inputFacets,omitempty"`
	OutputFacets map[string]any `json:"outputFacets,omitempty"`
}

// Field is a column in the schema facet.
type Field struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

const (
	producer  = "https://github.com/weirlake/weir"
	schemaURL = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
	facets    = "https://openlineage.io/spec/facets/"
	// ownFacet is where the facets that are Weir's own are described.
	ownFacet = "https://github.com/weirlake/weir/blob/main/docs/operations.md"
)

// facet is a facet with what every facet has.
func facet(url string, fields map[string]any) map[string]any {
	fields["_producer"], fields["_schemaURL"] = producer, url
	return fields
}

func schemaFacet(f []Field) map[string]any {
	return facet(facets+"1-2-0/SchemaDatasetFacet.json#/$defs/SchemaDatasetFacet", map[string]any{"fields": f})
}

func versionFacet(version string) map[string]any {
	return facet(facets+"1-0-1/DatasetVersionDatasetFacet.json#/$defs/DatasetVersionDatasetFacet", map[string]any{"datasetVersion": version})
}

// symlinkFacet says by which name a table is known in its catalog.
func symlinkFacet(catalog, name string) map[string]any {
	return facet(facets+"1-0-1/SymlinksDatasetFacet.json#/$defs/SymlinksDatasetFacet", map[string]any{
		"identifiers": []map[string]any{{"namespace": catalog, "name": name, "type": "TABLE"}},
	})
}

func inputStatistics(rows int64) map[string]any {
	return facet(facets+"1-0-0/InputStatisticsInputDatasetFacet.json#/$defs/InputStatisticsInputDatasetFacet", map[string]any{"rowCount": rows})
}

func outputStatistics(rows, bytes, files int64) map[string]any {
	return facet(facets+"1-0-2/OutputStatisticsOutputDatasetFacet.json#/$defs/OutputStatisticsOutputDatasetFacet", map[string]any{
		"rowCount": rows, "size": bytes, "fileCount": files,
	})
}

func engineFacet(version string) map[string]any {
	return facet(facets+"1-1-1/ProcessingEngineRunFacet.json#/$defs/ProcessingEngineRunFacet", map[string]any{"name": "weir", "version": version})
}

func nominalTime(at time.Time) map[string]any {
	return facet(facets+"1-0-1/NominalTimeRunFacet.json#/$defs/NominalTimeRunFacet", map[string]any{"nominalStartTime": at.UTC()})
}

func errorFacet(message string) map[string]any {
	return facet(facets+"1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet", map[string]any{"message": message, "programmingLanguage": "Go"})
}

func jobType(processing, kind string) map[string]any {
	return facet(facets+"2-0-4/JobTypeJobFacet.json#/$defs/JobTypeJobFacet", map[string]any{"processingType": processing, "integration": "WEIR", "jobType": kind})
}

func sqlFacet(query string) map[string]any {
	return facet(facets+"1-1-0/SQLJobFacet.json#/$defs/SQLJobFacet", map[string]any{"query": query, "dialect": "duckdb"})
}

// runID is the same for the same parts, whoever computes it: the events of a run
// need no memory, and a start can close what a process that died had begun.
func runID(parts ...string) string {
	name := ""
	for _, p := range parts {
		name += p + "\x00"
	}
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte(producer+"\x00"+name)).String()
}
