package prove

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"github.com/weirlake/weir/internal/pipeline"
)

// The tables of every scenario's pipeline.
const (
	bronzeTable     = "bronze.recentchange"
	silverTable     = "silver.edits"
	deadLetterTable = "silver.edits_dead_letter"
	progressTable   = "ops.stream_progress"
)

// filterEdits is silver's filter.
const filterEdits = "type IN ('edit','new')"

// queryTables are the main tables of the queries.
var queryTables = map[string]string{"bronze": bronzeTable, "silver": silverTable}

// setup is what differs between the pipeline files of scenarios.
type setup struct {
	Name       string
	Dir        string
	Brokers    []string
	Topic      string
	DLQ        string
	MaxOffsets int64
	Trigger    time.Duration
	// Ingest, where set, makes a file of ingestion only, from this URL.
	Ingest string
	// Delivery of ingestion.
	Delivery string
	// Checkpoints and File are other names than the usual ones, for a second
	// instance.
	Checkpoints, File string
	// Warehouse is another folder than the usual one.
	Warehouse string
	// Catalog is another one than the file in Dir, as the pipeline file names it;
	// PlacedByCatalog leaves out the warehouse, because it says where tables lie.
	Catalog         string
	PlacedByCatalog bool
	// Store is the endpoint of the S3 server on which they lie, where they do.
	Store string
	// OnLost is onLostCheckpoint of every query.
	OnLost string
	// Extra are further queries, Delay is silver's watermark's.
	Extra, Delay string
	// Filter is silver's, where it is not the usual one.
	Filter string
	// Care is what is set of the table care of both queries.
	Care string
	// Queries, where set, are in the place of bronze and silver.
	Queries string
}

// The pipeline files of a scenario: queries and ingestion apart, so that each
// is started, killed and finished on its own.
const (
	queriesFileName = "pipeline.yaml"
	ingestFileName  = "ingest.yaml"
)

// ingestFile and queriesFile are the shape that the wikimedia example ships
// with, small batches aside. JSON's quoting of texts is YAML's as well.
const ingestFile = `name: {{.Name}}
catalog: {type: sql, name: weir, uri: {{q (print "sqlite:" .Dir "/catalog.db")}}}
warehouse: {{q (print .Dir "/warehouse")}}
checkpointLocation: {{q (print .Dir "/checkpoints")}}
kafka:
  bootstrapServers: [{{range $i, $b := .Brokers}}{{if $i}}, {{end}}{{q $b}}{{end}}]
ingest:
  - name: recentchange
    sse: {url: {{q .Ingest}}}
    topic: {{q .Topic}}
    deadLetterTopic: {{q .DLQ}}
    key: $.meta.id
    contract:
      schema: builtin:wikimedia/recentchange
      canary: {path: $.meta.domain, equals: canary}
    delivery: {{.Delivery}}
    position: {{q (print .Dir "/ingest/position.json")}}
status: {listen: none}
`

const queriesFile = `name: {{.Name}}
catalog: {{if .Catalog}}{{.Catalog}}{{else}}{type: sql, name: weir, uri: {{q (print "sqlite:" .Dir "/catalog.db")}}}{{end}}
{{- if not .PlacedByCatalog}}
warehouse: {{q .Warehouse}}
{{- end}}
checkpointLocation: {{q .Checkpoints}}
{{- if .Store}}
stores: [{endpoint: {{q .Store}}, region: us-east-1, pathStyle: true, accessKeyId: weir-prove, secretAccessKey: weir-prove-secret}]
{{- end}}
kafka:
  bootstrapServers: [{{range $i, $b := .Brokers}}{{if $i}}, {{end}}{{q $b}}{{end}}]
queries:
{{if .Queries}}{{.Queries}}{{else}}  - name: bronze
    from:
      kafka:
        topics: [{{q .Topic}}]
        startingOffsets: earliest
        maxOffsetsPerTrigger: {{.MaxOffsets}}
        failOnDataLoss: true
    trigger: {processingTime: {{.Trigger}}}
    onLostCheckpoint: {{.OnLost}}
    to:
      iceberg: {table: bronze.recentchange, partitionBy: ["day(timestamp)"]}
{{- if .Care}}
    care: {{.Care}}
{{- end}}
  - name: silver
    from:
      table: {name: bronze.recentchange, maxOffsetsPerTrigger: {{.MaxOffsets}}}
    trigger: {processingTime: {{.Trigger}}}
    onLostCheckpoint: {{.OnLost}}
    parse:
      format: json
      columns:
        - {name: event_id, path: $.meta.id, type: string, required: true}
        - {name: event_time, path: $.meta.dt, type: timestamptz, required: true}
        - {name: type, path: $.type, type: string}
        - {name: wiki, path: $.wiki, type: string}
        - {name: title, path: $.title, type: string}
        - {name: namespace, path: $.namespace, type: int}
        - {name: user, path: $.user, type: string}
        - {name: bot, path: $.bot, type: boolean}
        - {name: minor, path: $.minor, type: boolean}
        - {name: comment, path: $.comment, type: string}
        - {name: length_old, path: $.length.old, type: long}
        - {name: length_new, path: $.length.new, type: long}
        - {name: revision_old, path: $.revision.old, type: long}
        - {name: revision_new, path: $.revision.new, type: long}
        - {name: kafka_partition, source: partition, type: int}
        - {name: kafka_offset, source: offset, type: long}
        - {name: processed_at, source: batchTime, type: timestamptz}
    filter: "{{.Filter}}"
    watermark: {column: event_time, delay: {{.Delay}}, maxFutureSkew: 1h}
    dropDuplicatesWithinWatermark: [event_id]
    deadLetter: {table: silver.edits_dead_letter}
    to:
      iceberg: {table: silver.edits, partitionBy: ["day(event_time)"]}
{{- if .Care}}
    care: {{.Care}}
{{- end}}
{{end}}{{.Extra}}ops: {progressTable: ops.stream_progress, flushInterval: 500ms}
status: {listen: none}
`

var templates = template.Must(template.Must(template.New("queries").Funcs(template.FuncMap{"q": quote}).Parse(queriesFile)).
	New("ingest").Parse(ingestFile))

// quote writes a YAML text in single quotes; a dollar sign is doubled, so that
// a folder's name is never taken for a variable.
func quote(s string) string {
	return "'" + strings.ReplaceAll(strings.ReplaceAll(s, "'", "''"), "${", "$${") + "'"
}

// write makes the pipeline file and checks it as the binary will.
func (s setup) write() error {
	name, path := "queries", filepath.Join(s.Dir, queriesFileName)
	if s.Ingest != "" {
		name, path = "ingest", filepath.Join(s.Dir, ingestFileName)
	}
	if s.Checkpoints == "" {
		s.Checkpoints = filepath.Join(s.Dir, "checkpoints")
	}
	if s.Warehouse == "" {
		s.Warehouse = filepath.Join(s.Dir, "warehouse")
	}
	if s.File != "" {
		path = filepath.Join(s.Dir, s.File)
	}
	if s.OnLost == "" {
		s.OnLost = pipeline.OnLostAdopt
	}
	if s.Delay == "" {
		s.Delay = "10m"
	}
	if s.Filter == "" {
		s.Filter = filterEdits
	}
	if s.Delivery == "" {
		s.Delivery = pipeline.AtLeastOnce
	}
	var b strings.Builder
	if err := templates.ExecuteTemplate(&b, name, s); err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		return err
	}
	if _, faults := pipeline.Load(path, os.LookupEnv); len(faults) > 0 {
		return fmt.Errorf("the scenario's own pipeline file is refused: %w", faults[0])
	}
	return nil
}
