package status

import (
	"encoding/json"
	"time"
)

// States of a query or an ingestion.
const (
	Starting = "starting" // lock, decision, claim: nothing read yet
	Running  = "running"
	Retrying = "retrying" // its store outside does not answer: it starts again by itself
	Done     = "done"     // its trigger ended it, or a clean stop
	Failed   = "failed"   // it ended with an error
)

// Model is everything that the page shows, as /api/status gives it.
type Model struct {
	Pipeline      string    `json:"pipeline"`
	Version       string    `json:"version"`
	Now           time.Time `json:"now"`
	StartedAt     time.Time `json:"started_at"`
	UptimeSeconds float64   `json:"uptime_seconds"`
	Health        Health    `json:"health"`
	// Warnings are what is red without the stream being held up: a failed check,
	// a failed job, table care that cannot work. The probes leave them out.
	Warnings []Reason `json:"warnings"`
	Ingests  []Ingest `json:"ingests"`
	Topics   []Topic  `json:"topics"`
	Queries  []Query  `json:"queries"`
	Tables   []Table  `json:"tables"`
	// DeadLetters are samples, newest first; the counts are the queries' and
	// the ingestions'.
	DeadLetters []DeadLetter `json:"dead_letters"`
	// SetAside are samples of late and duplicate rows of this run, newest first.
	SetAside []SetAside `json:"set_aside"`
	// Alerts are newest first; AlertsTotal counts those that were dropped too.
	Alerts      []Alert `json:"alerts"`
	AlertsTotal int64   `json:"alerts_total"`
	// Jobs is left out where the pipeline has none.
	Jobs *Jobs `json:"jobs,omitempty"`
	// Lineage is left out where no lineage server is named.
	Lineage *Lineage `json:"lineage,omitempty"`
	// Proof is the last report of weir prove that was found, if any.
	Proof *Proof `json:"proof,omitempty"`
	// Errors are what could not be looked up (a broker that does not answer).
	Errors []string `json:"errors,omitempty"`
}

// Health is what the probes answer.
type Health struct {
	Live  bool `json:"live"`
	Ready bool `json:"ready"`
	// Reasons say why not; empty where all is well.
	Reasons []Reason `json:"reasons"`
}

// Reason is one thing that is wrong.
type Reason struct {
	// Subject is the query, ingestion, table, job or check; empty for the whole
	// pipeline.
	Subject string `json:"subject,omitempty"`
	// Code is one of the Code constants; the page explains each.
	Code string `json:"code"`
	Text string `json:"text"`
	// Fatal is set where the process cannot mend it: /livez fails as well.
	Fatal bool `json:"fatal,omitempty"`
}

// Ingest is one stream that is read into a topic. Counts are of this run.
type Ingest struct {
	Name            string           `json:"name"`
	Source          string           `json:"source"` // URL without credentials
	Topic           string           `json:"topic"`
	DeadLetterTopic string           `json:"dead_letter_topic,omitempty"`
	Delivery        string           `json:"delivery"`
	State           string           `json:"state"`
	Error           string           `json:"error,omitempty"`
	Stats           IngestStats      `json:"stats"`
	Rates           IngestRates      `json:"rates"`
	Violations      map[string]int64 `json:"violations,omitempty"`
}

// IngestStats are an ingestion's counts since its start.
type IngestStats struct {
	Received     int64 `json:"received"`
	Published    int64 `json:"published"`
	Canaries     int64 `json:"canaries"`
	DeadLetters  int64 `json:"dead_letters"`
	Dropped      int64 `json:"duplicates_dropped"`
	InFlight     int64 `json:"in_flight"`
	Transactions int64 `json:"transactions"`
	Saves        int64 `json:"position_saves"`
	Reconnects   int64 `json:"reconnects"`
	Failures     int64 `json:"connection_failures"`
	Bytes        int64 `json:"received_bytes"`
	// LagMillis is the age of the newest event when it was received.
	LagMillis int64 `json:"lag_millis"`
	// Violations are the dead letters by reason.
	Violations map[string]int64 `json:"-"`
}

// IngestRates are per second, over the last few seconds.
type IngestRates struct {
	Received  float64 `json:"received"`
	Published float64 `json:"published"`
}

// Topic is a topic as the broker knows it.
type Topic struct {
	Name       string `json:"name"`
	Partitions int    `json:"partitions"`
	// Records is the number of offsets that the topic still holds.
	Records int64 `json:"records"`
}

// Query is one streaming query. Totals are of this run; the identity and the
// position outlive it.
type Query struct {
	Name string `json:"name"`
	// Level is 0 for a query over Kafka and grows along the tables.
	Level  int    `json:"level"`
	Source string `json:"source"` // topics, or a table
	// SourceKind is kafka or table.
	SourceKind      string  `json:"source_kind"`
	Table           string  `json:"table"`
	DeadLetterTable string  `json:"dead_letter_table,omitempty"`
	TriggerSeconds  float64 `json:"trigger_seconds"`
	Watermarked     bool    `json:"watermarked"`
	State           string  `json:"state"`
	Error           string  `json:"error,omitempty"`
	ErrorClass      string  `json:"error_class,omitempty"`

	QueryID     string     `json:"query_id,omitempty"`
	Epoch       int64      `json:"epoch"`
	BatchID     int64      `json:"batch_id"` // -1 before the first
	CommittedAt *time.Time `json:"committed_at,omitempty"`
	Watermark   *time.Time `json:"watermark,omitempty"`

	Totals Totals `json:"totals"`
	Rates  Rates  `json:"rates"`
	// LagOffsets is nil while it is not known.
	LagOffsets *int64    `json:"lag_offsets"`
	Freshness  Freshness `json:"freshness"`
	StateKeys  int64     `json:"state_keys"`
	StateBytes int64     `json:"state_bytes"`
	Alerts     int64     `json:"alerts"`
	Last       *Batch    `json:"last_batch,omitempty"`
	// StalledSeconds is how long there has been lag without a commit.
	StalledSeconds float64 `json:"stalled_seconds"`
	Series         Series  `json:"series"`
}

// Totals are sums over the batches of this run.
type Totals struct {
	Batches      int64 `json:"batches"`
	InputRows    int64 `json:"input_rows"`
	OutputRows   int64 `json:"output_rows"`
	Filtered     int64 `json:"rows_filtered"`
	Late         int64 `json:"rows_late"`
	Duplicate    int64 `json:"rows_duplicate"`
	DeadLettered int64 `json:"rows_dead_lettered"`
}

// Rates are per second, over the last few seconds.
type Rates struct {
	Input  float64 `json:"input"`
	Output float64 `json:"output"`
}

// Freshness is commit time minus event time over a sample of the last batch
// that had rows with event times.
type Freshness struct {
	P50Seconds float64 `json:"p50_seconds"`
	P95Seconds float64 `json:"p95_seconds"`
	MaxSeconds float64 `json:"max_seconds"`
}

// Batch is one micro-batch, as /api/batches gives it.
type Batch struct {
	Query        string           `json:"query"`
	QueryID      string           `json:"query_id"`
	BatchID      int64            `json:"batch_id"`
	Epoch        int64            `json:"epoch"`
	StartedAt    time.Time        `json:"started_at"`
	CommittedAt  time.Time        `json:"committed_at"`
	InputRows    int64            `json:"input_rows"`
	OutputRows   int64            `json:"output_rows"`
	Filtered     int64            `json:"rows_filtered"`
	Late         int64            `json:"rows_late"`
	Duplicate    int64            `json:"rows_duplicate"`
	DeadLettered int64            `json:"rows_dead_lettered"`
	Watermark    *time.Time       `json:"watermark,omitempty"`
	Freshness    Freshness        `json:"freshness"`
	DurationMs   map[string]int64 `json:"duration_ms"`
	LagOffsets   int64            `json:"lag_offsets"`
	StateKeys    int64            `json:"state_keys"`
	StateBytes   int64            `json:"state_bytes"`
	// Position is for whoever computes lag; the JSON leaves it out.
	Position json.RawMessage `json:"-"`
}

// TotalMs is the time from plan to report.
func (b *Batch) TotalMs() int64 { return b.DurationMs[phaseTotal] }

// Table is one table's health, from its head's summary.
type Table struct {
	Name          string     `json:"name"`
	Role          string     `json:"role"` // main, dead-letter, progress, source
	Rows          int64      `json:"rows"`
	DataFiles     int64      `json:"data_files"`
	DeleteFiles   int64      `json:"delete_files"`
	DataBytes     int64      `json:"data_bytes"`
	Snapshots     int        `json:"snapshots"`
	MetadataBytes int64      `json:"metadata_bytes"`
	CommittedAt   *time.Time `json:"committed_at,omitempty"`
	// Missing is set where the table does not exist yet.
	Missing bool `json:"missing,omitempty"`
	// Care is left out where this process does not look after the table.
	Care *Care `json:"care,omitempty"`
}

// Care is how a table's care stands. Counts are of this run, sizes as of the
// last step.
type Care struct {
	// At is the end of the last step; nil before the first.
	At *time.Time `json:"at,omitempty"`
	// NextInBatches is after how many more batches of its query the next step
	// comes, NextAt when: one of them is set.
	NextInBatches *int64     `json:"next_in_batches,omitempty"`
	NextAt        *time.Time `json:"next_at,omitempty"`
	Steps         int64      `json:"steps"`
	Failures      int64      `json:"failures"`
	// Error is the last step's; Skipped says why files are not put together.
	Error   string `json:"error,omitempty"`
	Skipped string `json:"skipped,omitempty"`
	// SmallFiles could be put together; SmallFilesMax is the most of them in one
	// partition.
	SmallFiles       int64 `json:"small_files"`
	SmallFilesMax    int64 `json:"small_files_per_partition_max"`
	Manifests        int64 `json:"manifests"`
	ManifestBytes    int64 `json:"manifest_bytes"`
	WaitingFiles     int64 `json:"waiting_files"` // to be removed when their grace is over
	CompactedFiles   int64 `json:"compacted_files"`
	ExpiredSnapshots int64 `json:"expired_snapshots"`
	MergedManifests  int64 `json:"merged_manifests"`
	RemovedFiles     int64 `json:"removed_files"`
}

// DeadLetter is one record that could not be used. Key and Snippet hold at most
// maxSnippetBytes of what was sent.
type DeadLetter struct {
	// Where is the table or topic that the dead letter lies in.
	Where     string    `json:"where"`
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"`
	Reason    string    `json:"reason"`
	Detail    string    `json:"detail"`
	Key       string    `json:"key,omitempty"`
	Snippet   string    `json:"snippet"`
	At        time.Time `json:"at"`
}

// Kinds of rows that are set aside without being kept.
const (
	LateRow      = "late"
	DuplicateRow = "duplicate"
)

// SetAside is one row that a query counted and did not write.
type SetAside struct {
	Query     string    `json:"query"`
	Kind      string    `json:"kind"` // late or duplicate
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"`
	EventTime time.Time `json:"event_time"`
	// Watermark is what the batch measured the row against.
	Watermark *time.Time `json:"watermark,omitempty"`
	Snippet   string     `json:"snippet"`
	At        time.Time  `json:"at"`
}

// Lineage is what became of the lineage events of this run.
type Lineage struct {
	Sent int64 `json:"sent"`
	// Dropped are those that the server did not take, or that the queue had no
	// room for.
	Dropped int64 `json:"dropped"`
}

// Proof is a report of weir prove in short.
type Proof struct {
	File string `json:"file"`
	// At is when the run began, Version the binary that was proved.
	At           time.Time  `json:"at"`
	Version      string     `json:"version"`
	Revision     string     `json:"revision,omitempty"`
	Outcome      string     `json:"outcome"` // proved, violated or inconclusive
	Scenarios    int        `json:"scenarios"`
	Proved       int        `json:"proved"`
	Violated     int        `json:"violated"`
	Inconclusive int        `json:"inconclusive"`
	Kills        int        `json:"kills"`
	Recovery     [3]float64 `json:"recovery_seconds_p50_p95_max"`
	// Groups are the scenarios by group, Failing those that are not proved.
	Groups  []ProofGroup `json:"groups"`
	Failing []ProofCase  `json:"failing"`
}

// ProofGroup is how many scenarios of a group were proved.
type ProofGroup struct {
	Name   string `json:"name"`
	Proved int    `json:"proved"`
	Total  int    `json:"total"`
}

// ProofCase is a scenario that was not proved.
type ProofCase struct {
	Name    string `json:"name"`
	Outcome string `json:"outcome"`
	Claim   string `json:"claim"`
	Reason  string `json:"reason,omitempty"`
}

// Alert is what a person must see: an adoption, a restart, rebuilt state.
type Alert struct {
	At    time.Time `json:"at"`
	Query string    `json:"query"`
	Text  string    `json:"text"`
}
