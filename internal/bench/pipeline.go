package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/pipeline"
)

// The tables of a benchmark's pipeline.
const (
	bronzeTable = "bronze.recentchange"
	silverTable = "silver.edits"
)

// setup is a pipeline file: the shape that the Wikimedia example ships with,
// on a topic and in a folder of its own.
type setup struct {
	Dir        string
	Brokers    []string
	Topic      string
	MaxOffsets int64
	Trigger    time.Duration
	Silver     bool
	// Store is where silver keeps its state: memory or pebble; empty is the default.
	Store string
	// URL, where set, makes a file of ingestion only.
	URL string
}

const pipelineFile = `name: bench
catalog: {type: sql, name: weir, uri: {{q (print "sqlite:" .Dir "/catalog.db")}}}
warehouse: {{q (print .Dir "/warehouse")}}
checkpointLocation: {{q (print .Dir "/checkpoints")}}
kafka:
  bootstrapServers: [{{range $i, $b := .Brokers}}{{if $i}}, {{end}}{{q $b}}{{end}}]
{{if .URL}}ingest:
  - name: recentchange
    sse: {url: {{q .URL}}, since: "0", maxEventBytes: 32MiB, overlap: 10s}
    topic: {{q .Topic}}
    deadLetterTopic: {{q (print .Topic "-dlq")}}
    key: $.meta.id
    contract:
      schema: builtin:wikimedia/recentchange
      canary: {path: $.meta.domain, equals: canary}
    delivery: at-least-once
    position: {{q (print .Dir "/ingest.json")}}
{{else}}queries:
  - name: bronze
    from:
      kafka:
        topics: [{{q .Topic}}]
        startingOffsets: earliest
        maxOffsetsPerTrigger: {{.MaxOffsets}}
        failOnDataLoss: true
    trigger: {processingTime: {{.Trigger}}}
    to:
      iceberg: {table: bronze.recentchange, partitionBy: ["day(timestamp)"]}
{{if .Silver}}  - name: silver
    from:
      table: {name: bronze.recentchange, maxOffsetsPerTrigger: {{.MaxOffsets}}}
    trigger: {processingTime: {{.Trigger}}}
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
{{if .Store}}    state: {store: {{.Store}}}
{{end}}    filter: "type IN ('edit','new')"
    watermark: {column: event_time, delay: 10m, maxFutureSkew: 1h}
    dropDuplicatesWithinWatermark: [event_id]
    deadLetter: {table: silver.edits_dead_letter}
    to:
      iceberg: {table: silver.edits, partitionBy: ["day(event_time)"]}
{{end}}ops: {progressTable: ops.stream_progress, flushInterval: 5s}
{{end}}status: {listen: none}
`

var pipelineTemplate = template.Must(template.New("pipeline").Funcs(template.FuncMap{"q": quote}).Parse(pipelineFile))

// quote writes a YAML text in single quotes; a dollar sign is doubled, so that
// a folder's name is never taken for a variable.
func quote(s string) string {
	return "'" + strings.ReplaceAll(strings.ReplaceAll(s, "'", "''"), "${", "$${") + "'"
}

// write makes the pipeline file and checks it as the binary will.
func (s setup) write() (string, error) {
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return "", err
	}
	var text strings.Builder
	if err := pipelineTemplate.Execute(&text, s); err != nil {
		return "", err
	}
	path := filepath.Join(s.Dir, "pipeline.yaml")
	if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
		return "", err
	}
	if _, faults := pipeline.Load(path, os.LookupEnv); len(faults) > 0 {
		return "", fmt.Errorf("the benchmark's own pipeline file is refused: %w", faults[0])
	}
	return path, nil
}

// catalog asks the pipeline's catalog as a foreign reader does.
func (s setup) catalog() audit.Locator {
	return audit.SQLiteCatalog{Path: filepath.Join(s.Dir, "catalog.db")}
}

// setup is a pipeline in a new folder.
func (b *bench) setup(topic string, silver bool) setup {
	b.setups++
	return setup{Dir: filepath.Join(b.dir, fmt.Sprintf("data-%03d", b.setups)), Brokers: b.kafka.bootstrap, Topic: topic,
		MaxOffsets: b.o.MaxOffsets, Silver: silver}
}

// discard removes a pipeline's folder.
func (b *bench) discard(s setup) {
	if !b.o.Keep {
		_ = os.RemoveAll(s.Dir)
	}
}
