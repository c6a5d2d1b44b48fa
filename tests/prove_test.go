package tests

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/weirlake/weir/internal/kafkatest"
)

// proof is what `weir prove --output json` prints.
type proof struct {
	Scenarios []struct {
		Name            string         `json:"name"`
		Outcome         string         `json:"outcome"`
		Reason          string         `json:"reason"`
		Observed        map[string]any `json:"observed"`
		Expected        map[string]any `json:"expected"`
		Kills           int            `json:"kills"`
		RecoverySeconds []float64      `json:"recovery_seconds"`
		ElapsedSeconds  float64        `json:"elapsed_seconds"`
	} `json:"scenarios"`
	Kills    int `json:"kills"`
	Recovery struct {
		Count      int     `json:"count"`
		P50Seconds float64 `json:"p50_seconds"`
		P95Seconds float64 `json:"p95_seconds"`
	} `json:"recovery"`
	About struct {
		Go        string `json:"go"`
		Cores     int    `json:"cores"`
		Libraries []any  `json:"libraries"`
	} `json:"about"`
}

// prove runs scenarios with the built binary; the exit code must be want.
func prove(t *testing.T, want int, args ...string) proof {
	t.Helper()
	args = append([]string{"prove", "--dir", t.TempDir(), "--output", "json"}, args...)
	out, errs, code := weir(t, nil, args...)
	if code != want {
		t.Fatalf("weir %v: exit %d, want %d\n%s\n%s", args, code, want, tail(out), tail(errs))
	}
	var p proof
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		t.Fatalf("%v\n%s", err, tail(out))
	}
	for _, s := range p.Scenarios {
		t.Logf("%-34s %s: %d kills, recovery %.2f s, %.1f s", s.Name, s.Outcome, s.Kills, s.RecoverySeconds, s.ElapsedSeconds)
	}
	return p
}

// proved checks that scenarios of these names, in this order, are proved.
func (p proof) proved(t *testing.T, names ...string) {
	t.Helper()
	if len(p.Scenarios) != len(names) {
		t.Fatalf("%d scenarios, want %v", len(p.Scenarios), names)
	}
	for i, s := range p.Scenarios {
		if s.Name != names[i] || s.Outcome != "proved" || s.Kills < 1 {
			t.Errorf("%s: %s after %d kills (%s), want %s proved", s.Name, s.Outcome, s.Kills, s.Reason, names[i])
		}
	}
}

// referenceFigures are the six of the scenario that Weir is measured against.
func (p proof) referenceFigures(t *testing.T) {
	t.Helper()
	s := p.Scenarios[0]
	for key, want := range map[string]float64{
		"kafka_messages": 20_500, "bronze_rows": 20_500, "bronze_distinct_offsets": 20_500,
		"silver_rows": 9_800, "silver_distinct_event_ids": 9_800, "late_events_in_silver": 0, "dead_letter_messages": 25,
	} {
		if s.Observed[key] != want || s.Expected[key] != want {
			t.Errorf("%s: %v observed, %v expected, must be %v", key, s.Observed[key], s.Expected[key], want)
		}
	}
	if crash, ok := s.Observed["bronze_rows_at_crash"].(float64); !ok || crash <= 0 || crash >= 20_400 {
		t.Errorf("bronze held %v rows at the crash: the kill was not in mid-stream", s.Observed["bronze_rows_at_crash"])
	}
}

func TestProveGivesTheReferencesFiguresOnTheEmbeddedBroker(t *testing.T) {
	p := prove(t, 0, "reference", "--embedded-only")
	p.proved(t, "reference")
	p.referenceFigures(t)
	if p.Kills != 1 || p.Recovery.Count != 1 || p.Recovery.P50Seconds <= 0 {
		t.Errorf("one kill and its recovery: %d, %+v", p.Kills, p.Recovery)
	}
	if p.About.Go == "" || p.About.Cores == 0 || len(p.About.Libraries) == 0 {
		t.Errorf("the report does not say with what it was made: %+v", p.About)
	}
}

func TestProveGivesTheReferencesFiguresOnARealKafkaAndKillsIngestionThere(t *testing.T) {
	weirBin(t)
	kafka := kafkatest.Start(t)
	p := prove(t, 0, "--kafka", kafka.Bootstrap(), "--trigger", "500ms", "--kill-after", "3s",
		"reference", "at-least-once-ingest.acked", "exactly-once-ingest.acked", "exactly-once-ingest.txn-commit")
	p.proved(t, "reference", "at-least-once-ingest.acked", "exactly-once-ingest.acked", "exactly-once-ingest.txn-commit")
	p.referenceFigures(t)
}

func TestProveIsInconclusiveWhereTheKillLandsOutsideTheWork(t *testing.T) {
	const inconclusive = 10
	for _, at := range []string{"before-first-commit", "after-last"} {
		t.Run(at, func(t *testing.T) {
			p := prove(t, inconclusive, "reference", "--embedded-only", "--kill-at", at, "--trigger", "10ms")
			if s := p.Scenarios[0]; s.Outcome != "inconclusive" || s.Kills != 1 {
				t.Errorf("%s after %d kills: %s", s.Outcome, s.Kills, s.Reason)
			}
		})
	}
}

func TestProveKillsAtNamedStepsAndLosesTheCheckpoint(t *testing.T) {
	names := []string{"checkpoint-lost", "checkpoint-restored-old", "boundary"}
	for _, query := range []string{"bronze", "silver"} {
		for _, point := range []string{"plan.written", "stage.done", "commit.metadata", "commit.swapped"} {
			names = append(names, fmt.Sprintf("%s-%s", query, point))
		}
	}
	page := filepath.Join(t.TempDir(), "report.html")
	p := prove(t, 0, append([]string{"--embedded-only", "--report", page}, names...)...)
	p.proved(t, names...)
	if p.Kills != len(names) {
		t.Errorf("%d kills in %d scenarios", p.Kills, len(names))
	}
	if fi, err := os.Stat(page); err != nil || fi.Size() == 0 {
		t.Errorf("no report page: %v", err)
	}
}

func TestProveKillsDeliveriesOutsideAndIntoDelta(t *testing.T) {
	names := []string{"outside-file-publish.file", "outside-http-deliver.chunk", "outside-exec-commit.swapped", "delta-landing-commit.swapped", "upsert-delta-commit.swapped"}
	prove(t, 0, append([]string{"--embedded-only"}, names...)...).proved(t, names...)
}
