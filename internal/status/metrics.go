package status

import (
	"context"
	"net/http"
	"runtime"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// phaseNames are the values of the label phase, by the names in DurationMs. The
// phases before total add up to it, but for rounding.
var phaseNames = map[string]string{
	"plan": "plan", "read_transform": "read_transform", "stage": "stage", phaseCommit: "commit", phaseTotal: "total",
}

// metrics is the Prometheus side of a board: one histogram that is fed by every
// batch; everything else is read from the model when it is scraped, so that
// page and metrics cannot disagree.
type metrics struct {
	board     *Board
	registry  *prometheus.Registry
	durations *prometheus.HistogramVec
	descs     map[string]*prometheus.Desc
}

// metricHelp names every metric that is read from the model: name, help, labels.
var metricHelp = []struct {
	name, help string
	labels     []string
}{
	{"weir_build_info", "Version of the binary and of Go; always 1.", []string{"version", "goversion"}},
	{"weir_ready", "1 where /readyz answers ready, 0 where it does not.", nil},
	{"weir_live", "1 where /livez answers live, 0 where a query or an ingestion has failed.", nil},
	{"weir_query_up", "1 while the query runs or has ended as told, 0 while it starts or has failed.", []string{"query"}},
	{"weir_query_input_rows_total", "Rows read by committed batches since the start of the process.", []string{"query"}},
	{"weir_query_output_rows_total", "Rows written to the query's table by committed batches.", []string{"query"}},
	{"weir_query_rows_filtered_total", "Rows dropped by the query's filter.", []string{"query"}},
	{"weir_query_rows_late_total", "Rows dropped because their event time was before the watermark.", []string{"query"}},
	{"weir_query_rows_duplicate_total", "Rows dropped as duplicates within the watermark.", []string{"query"}},
	{"weir_query_rows_dead_lettered_total", "Rows written to the dead-letter table.", []string{"query"}},
	{"weir_query_batches_total", "Micro-batches committed since the start of the process.", []string{"query"}},
	{"weir_query_batch_id", "Id of the last committed batch, -1 before the first.", []string{"query"}},
	{"weir_query_epoch", "Epoch of the running instance; it grows by one with each start.", []string{"query"}},
	{"weir_query_last_commit_timestamp_seconds", "Time of the last commit, in seconds since 1970.", []string{"query"}},
	{"weir_query_trigger_interval_seconds", "Interval between the starts of batches, in seconds; 0 without one.", []string{"query"}},
	{"weir_query_freshness_seconds", "Commit time minus event time over a sample of the last batch, in seconds (stat: p50, p95, max).", []string{"query", "stat"}},
	{"weir_query_lag_offsets", "Offsets that wait to be read: the source's end minus the query's position.", []string{"query"}},
	{"weir_query_stalled_seconds", "Seconds without a commit while offsets are waiting; 0 where there is progress or nothing to do.", []string{"query"}},
	{"weir_query_watermark_seconds", "Watermark of the query, as event time in seconds since 1970.", []string{"query"}},
	{"weir_query_state_keys", "Keys in the query's operator state.", []string{"query"}},
	{"weir_query_state_bytes", "Size of the query's operator state, in bytes.", []string{"query"}},
	{"weir_ingest_up", "1 while the ingestion runs or has ended as told, 0 while it starts or has failed.", []string{"ingest"}},
	{"weir_ingest_events_received_total", "Events read from the stream.", []string{"ingest"}},
	{"weir_ingest_events_published_total", "Events that Kafka has acknowledged.", []string{"ingest"}},
	{"weir_ingest_events_canary_total", "Artificial events that were dropped.", []string{"ingest"}},
	{"weir_ingest_events_dead_lettered_total", "Events in the dead-letter topic, acknowledged.", []string{"ingest"}},
	{"weir_ingest_events_duplicate_total", "Events dropped because a resume sent them again.", []string{"ingest"}},
	{"weir_ingest_violations_total", "Events that break the contract, by reason, counted when they are found.", []string{"ingest", "reason"}},
	{"weir_ingest_events_in_flight", "Events read and not yet acknowledged.", []string{"ingest"}},
	{"weir_ingest_transactions_total", "Kafka transactions committed (exactly-once delivery).", []string{"ingest"}},
	{"weir_ingest_position_saves_total", "Times that the resume position was saved.", []string{"ingest"}},
	{"weir_ingest_reconnects_total", "Connections to the stream after the first.", []string{"ingest"}},
	{"weir_ingest_connection_failures_total", "Connections to the stream that could not be made.", []string{"ingest"}},
	{"weir_ingest_received_bytes_total", "Bytes read from the stream.", []string{"ingest"}},
	{"weir_ingest_lag_seconds", "Age of the newest event when it was received, in seconds.", []string{"ingest"}},
	{"weir_topic_records", "Offsets that the topic still holds.", []string{"topic"}},
	{"weir_topic_partitions", "Partitions of the topic.", []string{"topic"}},
	{"weir_alerts_total", "Alerts raised since the start of the process: adoptions, restarts, rebuilt state, losses.", []string{"query"}},
	{"weir_query_retrying", "1 while the query waits for a store outside that does not answer, else 0.", []string{"query"}},
	{"weir_warnings", "Things that are red without the stream being held up, by code: failed checks, jobs, models, table care, a proof that does not stand.", []string{"code"}},
	{"weir_lineage_events_total", "OpenLineage events by what became of them: sent, or dropped because the server or the queue did not take them.", []string{"outcome"}},
	{"weir_proof_scenarios", "Scenarios of the last report of weir prove, by outcome.", []string{"outcome"}},
	{"weir_proof_timestamp_seconds", "Begin of the run that the last report of weir prove is of, in seconds since 1970.", nil},
	{"weir_table_rows", "Rows of the table's head, deletes not taken off.", []string{"table"}},
	{"weir_table_data_files", "Data files of the table's head.", []string{"table"}},
	{"weir_table_delete_files", "Delete files of the table's head.", []string{"table"}},
	{"weir_table_data_bytes", "Size of the data files of the table's head, in bytes.", []string{"table"}},
	{"weir_table_snapshots", "Snapshots in the table's metadata.", []string{"table"}},
	{"weir_table_metadata_bytes", "Size of the table's current metadata file, in bytes.", []string{"table"}},
	{"weir_table_last_commit_timestamp_seconds", "Time of the table's newest snapshot, in seconds since 1970.", []string{"table"}},
	{"weir_table_care_last_timestamp_seconds", "End of the last step of table care, in seconds since 1970.", []string{"table"}},
	{"weir_table_care_steps_total", "Steps of table care since the start of the process.", []string{"table"}},
	{"weir_table_care_failures_total", "Steps of table care that ended with an error.", []string{"table"}},
	{"weir_table_small_files", "Data files that could be put together, as of the last step of care.", []string{"table"}},
	{"weir_table_small_files_per_partition_max", "The most of them in one partition.", []string{"table"}},
	{"weir_table_manifests", "Manifests of the table's head, as of the last step of care.", []string{"table"}},
	{"weir_table_manifest_bytes", "Size of the manifests of the table's head, in bytes, as of the last step of care.", []string{"table"}},
	{"weir_table_care_waiting_files", "Files that nothing refers to and that are removed when their grace is over.", []string{"table"}},
	{"weir_table_care_compacted_files_total", "Small files that care has put together.", []string{"table"}},
	{"weir_table_care_expired_snapshots_total", "Snapshots that care has expired.", []string{"table"}},
	{"weir_table_care_merged_manifests_total", "Manifests that care has merged.", []string{"table"}},
	{"weir_table_care_removed_files_total", "Files that care has removed.", []string{"table"}},
}

func collectProof(p *Proof, gauge func(string, float64, ...string)) {
	if p == nil {
		return
	}
	gauge("weir_proof_scenarios", float64(p.Proved), "proved")
	gauge("weir_proof_scenarios", float64(p.Violated), "violated")
	gauge("weir_proof_scenarios", float64(p.Inconclusive), "inconclusive")
	gauge("weir_proof_timestamp_seconds", float64(p.At.UnixMilli())/1000)
}

func collectCare(t *Table, gauge func(string, float64, ...string), total func(string, int64, ...string)) {
	c := t.Care
	if c == nil {
		return
	}
	total("weir_table_care_steps_total", c.Steps, t.Name)
	total("weir_table_care_failures_total", c.Failures, t.Name)
	total("weir_table_care_compacted_files_total", c.CompactedFiles, t.Name)
	total("weir_table_care_expired_snapshots_total", c.ExpiredSnapshots, t.Name)
	total("weir_table_care_merged_manifests_total", c.MergedManifests, t.Name)
	total("weir_table_care_removed_files_total", c.RemovedFiles, t.Name)
	if c.At == nil {
		return // what a step counts is not known yet
	}
	gauge("weir_table_care_last_timestamp_seconds", float64(c.At.UnixMilli())/1000, t.Name)
	gauge("weir_table_small_files", float64(c.SmallFiles), t.Name)
	gauge("weir_table_small_files_per_partition_max", float64(c.SmallFilesMax), t.Name)
	gauge("weir_table_manifests", float64(c.Manifests), t.Name)
	gauge("weir_table_manifest_bytes", float64(c.ManifestBytes), t.Name)
	gauge("weir_table_care_waiting_files", float64(c.WaitingFiles), t.Name)
}

func newMetrics(b *Board) *metrics {
	m := &metrics{
		board: b, registry: prometheus.NewRegistry(), descs: map[string]*prometheus.Desc{},
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "weir_query_batch_duration_seconds",
			Help:    "Time that micro-batches took, in seconds, by phase; phase total is the whole batch.",
			Buckets: []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"query", "phase"}),
	}
	for _, h := range slices.Concat(metricHelp, jobMetricHelp) {
		m.descs[h.name] = prometheus.NewDesc(h.name, h.help, h.labels, nil)
	}
	for _, q := range b.o.Queries {
		for _, phase := range phaseNames {
			m.durations.WithLabelValues(q.Name, phase)
		}
	}
	m.registry.MustRegister(m, m.durations, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// observe records a batch's durations.
func (m *metrics) observe(b *Batch) {
	for name, phase := range phaseNames {
		if ms, ok := b.DurationMs[name]; ok {
			m.durations.WithLabelValues(b.Query, phase).Observe(float64(ms) / 1000)
		}
	}
}

// handler serves /metrics. Tables and lags are looked up first, within the
// lookups' limits.
func (m *metrics) handler() http.Handler {
	h := promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{EnableOpenMetrics: true})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.board.broker.get(r.Context())
		m.board.tables.get(r.Context())
		m.board.proof.get(r.Context())
		h.ServeHTTP(w, r)
	})
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range m.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	model := m.board.model(context.Background(), nothing)
	put := func(kind prometheus.ValueType, name string, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(m.descs[name], kind, v, labels...)
	}
	gauge := func(name string, v float64, labels ...string) { put(prometheus.GaugeValue, name, v, labels...) }
	total := func(name string, v int64, labels ...string) {
		put(prometheus.CounterValue, name, float64(v), labels...)
	}
	gauge("weir_build_info", 1, model.Version, runtime.Version())
	gauge("weir_ready", truth(model.Health.Ready))
	gauge("weir_live", truth(model.Health.Live))
	for i := range model.Queries {
		collectQuery(&model.Queries[i], gauge, total)
	}
	for i := range model.Ingests {
		collectIngest(&model.Ingests[i], gauge, total)
	}
	if model.Jobs != nil {
		collectJobs(model.Jobs, gauge, total)
	}
	codes := map[string]int{}
	for _, w := range model.Warnings {
		codes[w.Code]++
	}
	for _, code := range warningCodes {
		gauge("weir_warnings", float64(codes[code]), code)
	}
	collectProof(model.Proof, gauge)
	if l := model.Lineage; l != nil {
		total("weir_lineage_events_total", l.Sent, "sent")
		total("weir_lineage_events_total", l.Dropped, "dropped")
	}
	for _, t := range model.Topics {
		gauge("weir_topic_records", float64(t.Records), t.Name)
		gauge("weir_topic_partitions", float64(t.Partitions), t.Name)
	}
	for _, t := range model.Tables {
		if t.Missing {
			continue
		}
		gauge("weir_table_rows", float64(t.Rows), t.Name)
		gauge("weir_table_data_files", float64(t.DataFiles), t.Name)
		gauge("weir_table_delete_files", float64(t.DeleteFiles), t.Name)
		gauge("weir_table_data_bytes", float64(t.DataBytes), t.Name)
		gauge("weir_table_snapshots", float64(t.Snapshots), t.Name)
		gauge("weir_table_metadata_bytes", float64(t.MetadataBytes), t.Name)
		if t.CommittedAt != nil {
			gauge("weir_table_last_commit_timestamp_seconds", float64(t.CommittedAt.UnixMilli())/1000, t.Name)
		}
		collectCare(&t, gauge, total)
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func collectQuery(q *Query, gauge func(string, float64, ...string), total func(string, int64, ...string)) {
	gauge("weir_query_retrying", truth(q.State == Retrying), q.Name)
	gauge("weir_query_up", truth(q.State == Running || q.State == Done), q.Name)
	total("weir_query_input_rows_total", q.Totals.InputRows, q.Name)
	total("weir_query_output_rows_total", q.Totals.OutputRows, q.Name)
	total("weir_query_rows_filtered_total", q.Totals.Filtered, q.Name)
	total("weir_query_rows_late_total", q.Totals.Late, q.Name)
	total("weir_query_rows_duplicate_total", q.Totals.Duplicate, q.Name)
	total("weir_query_rows_dead_lettered_total", q.Totals.DeadLettered, q.Name)
	total("weir_query_batches_total", q.Totals.Batches, q.Name)
	total("weir_alerts_total", q.Alerts, q.Name)
	gauge("weir_query_batch_id", float64(q.BatchID), q.Name)
	gauge("weir_query_epoch", float64(q.Epoch), q.Name)
	gauge("weir_query_trigger_interval_seconds", q.TriggerSeconds, q.Name)
	gauge("weir_query_stalled_seconds", q.StalledSeconds, q.Name)
	gauge("weir_query_state_keys", float64(q.StateKeys), q.Name)
	gauge("weir_query_state_bytes", float64(q.StateBytes), q.Name)
	if q.CommittedAt != nil {
		gauge("weir_query_last_commit_timestamp_seconds", float64(q.CommittedAt.UnixMilli())/1000, q.Name)
	}
	if q.LagOffsets != nil {
		gauge("weir_query_lag_offsets", float64(*q.LagOffsets), q.Name)
	}
	if q.Watermark != nil {
		gauge("weir_query_watermark_seconds", float64(q.Watermark.UnixMilli())/1000, q.Name)
	}
	if q.Last != nil {
		gauge("weir_query_freshness_seconds", q.Freshness.P50Seconds, q.Name, "p50")
		gauge("weir_query_freshness_seconds", q.Freshness.P95Seconds, q.Name, "p95")
		gauge("weir_query_freshness_seconds", q.Freshness.MaxSeconds, q.Name, "max")
	}
}

func collectIngest(in *Ingest, gauge func(string, float64, ...string), total func(string, int64, ...string)) {
	s := in.Stats
	gauge("weir_ingest_up", truth(in.State == Running || in.State == Done), in.Name)
	total("weir_ingest_events_received_total", s.Received, in.Name)
	total("weir_ingest_events_published_total", s.Published, in.Name)
	total("weir_ingest_events_canary_total", s.Canaries, in.Name)
	total("weir_ingest_events_dead_lettered_total", s.DeadLetters, in.Name)
	total("weir_ingest_events_duplicate_total", s.Dropped, in.Name)
	for reason, n := range in.Violations {
		total("weir_ingest_violations_total", n, in.Name, reason)
	}
	gauge("weir_ingest_events_in_flight", float64(s.InFlight), in.Name)
	total("weir_ingest_transactions_total", s.Transactions, in.Name)
	total("weir_ingest_position_saves_total", s.Saves, in.Name)
	total("weir_ingest_reconnects_total", s.Reconnects, in.Name)
	total("weir_ingest_connection_failures_total", s.Failures, in.Name)
	total("weir_ingest_received_bytes_total", s.Bytes, in.Name)
	gauge("weir_ingest_lag_seconds", float64(s.LagMillis)/1000, in.Name)
}
