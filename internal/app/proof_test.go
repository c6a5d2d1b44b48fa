package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/prove"
)

func TestTheReportBesideTheCheckpointsIsFoundAndSummedUp(t *testing.T) {
	dir := t.TempDir()
	p := &pipeline.Pipeline{CheckpointLocation: filepath.Join(dir, "checkpoints")}
	read := proofFacts("", p)
	if got, err := read(t.Context()); got != nil || err != nil {
		t.Fatalf("without a report: %+v, %v", got, err)
	}
	began := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	r := prove.Report{
		Kills: 7, Recovery: prove.Recovery{Count: 7, P50Seconds: 0.5, P95Seconds: 1, MaxSeconds: 2}, About: prove.About{Weir: "1.2.3", Started: began},
		Scenarios: []*prove.Result{
			{Name: "a", Group: "g", Outcome: prove.Proved}, {Name: "b", Group: "g", Outcome: prove.Violated, Claim: "all rows", Reason: "2 missing"},
			{Name: "c", Group: "h", Outcome: prove.Inconclusive},
		},
	}
	f, err := os.Create(ProofFile(p))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WriteJSON(f); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := read(t.Context())
	if err != nil || got.Outcome != "violated" || got.Scenarios != 3 || got.Proved != 1 || got.Violated != 1 || got.Inconclusive != 1 || got.Kills != 7 ||
		got.Version != "1.2.3" || !got.At.Equal(began) || got.Recovery != [3]float64{0.5, 1, 2} {
		t.Errorf("%+v, %v", got, err)
	}
	if len(got.Groups) != 2 || got.Groups[0].Proved != 1 || got.Groups[0].Total != 2 || len(got.Failing) != 2 || got.Failing[0].Reason != "2 missing" {
		t.Errorf("%+v", got)
	}
}

func TestAProofThatWasAskedForAndIsNoneIsSaid(t *testing.T) {
	p := &pipeline.Pipeline{CheckpointLocation: "s3://bucket/checkpoints"}
	if proofFacts("", p) != nil {
		t.Error("a file is looked for beside a bucket")
	}
	missing := filepath.Join(t.TempDir(), "proof.json")
	if _, err := proofFacts(missing, p)(t.Context()); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("missing: %v", err)
	}
	if err := os.WriteFile(missing, []byte("<html>"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := proofFacts(missing, p)(t.Context()); err == nil || !strings.Contains(err.Error(), "not a report") {
		t.Errorf("broken: %v", err)
	}
}
