// Package statustest makes boards for tests of the status page.
package statustest

import (
	"context"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/status"
)

// Hostile is text that must come out as text wherever it is shown.
const Hostile = `<img src=x onerror="alert(1)"></pre><script>alert(2)</script>&amp;` + "\x00\u202e"

var queries = []status.QueryInfo{
	{Name: "bronze", Source: "wiki.recentchange", SourceKind: "kafka", Table: "bronze.recentchange", Trigger: time.Second},
	{Name: "silver", Level: 1, Source: "bronze.recentchange", SourceKind: "table", Table: "silver.edits",
		DeadLetterTable: "silver.edits_dead_letter", Trigger: time.Second, Watermarked: true},
}

// commit feeds a batch that committed at a time.
func commit(b *status.Board, at time.Time, query string, id int64) {
	mark := at.Add(-10 * time.Minute)
	b.Batch(status.Batch{
		Query: query, QueryID: "id-of-" + query, BatchID: id, Epoch: 3, StartedAt: at.Add(-100 * time.Millisecond), CommittedAt: at,
		InputRows: 900 + id*37%200, OutputRows: 500, Filtered: 380, Late: 3, Duplicate: 2, DeadLettered: 1, Watermark: &mark,
		Freshness:  status.Freshness{P50Seconds: 0.5, P95Seconds: 1.5, MaxSeconds: 2.5},
		DurationMs: map[string]int64{"plan": 5, "read_transform": 40, "stage": 15, "commit": 30, "triggerExecution": 100},
		StateKeys:  50, StateBytes: 2048, Position: []byte(`{"kafka":{}}`),
	})
}

// Red is a board on which everything is wrong that can be while the process
// lives. Close ends it.
func Red(clk clock.Clock) *status.Board {
	at := clk.Now().Add(-6 * time.Minute)
	next := int64(12)
	later := at.Add(11 * time.Minute)
	b := status.NewBoard(status.Options{Pipeline: "wikimedia", Version: "1.2.3", Clock: clk, Queries: queries, Facts: status.Facts{
		Tables: func(context.Context) ([]status.Table, error) {
			return []status.Table{
				{Name: "bronze.recentchange", Role: "main", Rows: 1_234_567, DataFiles: 812, DataBytes: 3 << 30, Snapshots: 61, MetadataBytes: 58_000, CommittedAt: &at,
					Care: &status.Care{At: &at, NextInBatches: &next, Steps: 40, SmallFiles: 31, SmallFilesMax: 7, Manifests: 14, ManifestBytes: 120_000, CompactedFiles: 900, ExpiredSnapshots: 1200, MergedManifests: 80, RemovedFiles: 2100, WaitingFiles: 64}},
				{Name: "silver.edits", Role: "main", Rows: 400_000, DataFiles: 90, DeleteFiles: 3, DataBytes: 1 << 28, Snapshots: 60, MetadataBytes: 57_000, CommittedAt: &at,
					Care: &status.Care{At: &at, NextInBatches: &next, Steps: 4, Failures: 2, Error: "read manifest <x>: permission denied"}},
				{Name: "silver.edits_dead_letter", Role: "dead letters", Missing: true},
				{Name: "ops.runs", Role: "runs", Rows: 10, DataFiles: 2, DataBytes: 9000, Snapshots: 4, MetadataBytes: 4000, CommittedAt: &at, Care: &status.Care{NextAt: &later}},
				{Name: "other.source", Role: "source", Rows: 10, DataFiles: 2, DataBytes: 9000, Snapshots: 4, MetadataBytes: 4000, CommittedAt: &at},
			}, nil
		},
		Proof: func(context.Context) (*status.Proof, error) {
			return &status.Proof{
				File: "/data/proof.json", At: at.Add(-72 * time.Hour), Version: "1.2.2", Outcome: "violated", Scenarios: 40, Proved: 38, Violated: 1, Inconclusive: 1,
				Kills: 120, Recovery: [3]float64{0.4, 1.2, 2.5}, Groups: []status.ProofGroup{{Name: "crash-points", Proved: 30, Total: 31}, {Name: "checkpoint", Proved: 8, Total: 9}},
				Failing: []status.ProofCase{{Name: "bronze-commit.swapped", Outcome: "violated", Claim: "a kill there loses nothing", Reason: "2 rows missing <b>"}, {Name: "checkpoint-lost", Outcome: "inconclusive", Claim: "goes on exactly"}},
			}, nil
		},
	}, Jobs: func() *status.Jobs {
		return &status.Jobs{
			Jobs: []status.Job{
				{Name: "marts", What: "gold build", When: "after commits of silver", State: "failed", Started: &at, Seconds: 1.5, Runs: 3, Failures: 1, Error: "test failed"},
				{Name: "hourly", What: "command", When: "cron 0 * * * *", State: "failed", Started: &at, Error: "exit status 3"},
				{Name: "guard", What: "checks", When: "every 1m0s", State: "succeeded", Started: &at, Runs: 9},
			},
			Models: []status.Mart{
				{Name: "stg_edits", Kind: "view", State: "built", Reads: []string{"silver.edits"}},
				{Name: "edits_per_wiki_minute", Kind: "incremental", State: "failed", Rows: 120, Seconds: 0.4, Reads: []string{"stg_edits"}, TestsPassed: 2, TestsFailed: []string{"unique_edits_per_wiki_minute_wiki"}},
				{Name: "top_pages", Kind: "table", State: "published", Mode: "full", Rows: 12_345, Seconds: 0.2, Reads: []string{"stg_edits"}, TestsPassed: 4},
				{Name: "editor_activity_and_sessions", Kind: "table", State: "failed", Error: "Binder Error: no column <gone>", Reads: []string{"stg_edits", "silver.editor_sessions"}},
				{Name: "summary", Kind: "table", State: "blocked", Error: "top_pages failed", Reads: []string{"top_pages", "editor_activity_and_sessions"}},
			},
			Checks: []status.Check{
				{Name: "bronze_once", Kind: "duplicates", Severity: "error", State: "failed", Observed: "2 values", Expected: "none", At: at},
				{Name: "fresh", Kind: "freshness", Severity: "warn", State: "warned", Observed: "3 m", Expected: "1 m", At: at},
				{Name: "whole", Kind: "completeness", Severity: "error", State: "passed", Observed: "all", Expected: "all", At: at},
			},
			TestsPassed: 6, TestsFailed: 1,
		}
	}})
	b.AddIngest(status.IngestInfo{
		Name: "recentchange", Source: "https://example.org/v2/stream", Topic: "wiki.recentchange", DeadLetterTopic: "wiki.recentchange.dlq",
		Delivery: "at-least-once", Stats: func() status.IngestStats {
			return status.IngestStats{Received: 12_000, Published: 11_900, DeadLetters: 14}
		},
	})
	b.IngestStarted("recentchange")
	for id := range int64(40) {
		for _, q := range queries {
			commit(b, clk.Now().Add(time.Duration(id-40)*2*time.Second), q.Name, id)
		}
	}
	mark := clk.Now().Add(-10 * time.Minute)
	b.SetAside("silver", []status.SetAside{
		{Query: "silver", Kind: status.LateRow, Topic: "wiki.recentchange", Partition: 3, Offset: 77, EventTime: mark.Add(-4 * time.Minute), Watermark: &mark, Snippet: `{"meta":{"id":"` + Hostile, At: clk.Now()},
		{Query: "silver", Kind: status.DuplicateRow, Topic: "wiki.recentchange", Partition: 1, Offset: 9, EventTime: mark.Add(time.Minute), Watermark: &mark, Snippet: `{"meta":{}}`, At: clk.Now()},
	})
	b.Alert("silver", "the checkpoint was missing; went on from the table's own memory")
	b.Retrying("silver", failure.New(failure.Unreachable, "Postgres at db:5432 does not answer"))
	return b
}
