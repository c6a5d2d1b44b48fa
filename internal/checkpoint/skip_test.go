package checkpoint

import (
	"slices"
	"testing"

	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
)

// skipClaim is a claim on batch n that moved forward past expired records.
func skipClaim(n int64) *marker.Marker {
	m := markerOf(n)
	m.Claim, m.Position = true, pos((n+1)*10+5, (n+1)*10)
	return m
}

func TestAClaimThatSkippedExpiredRecordsIsNoLostCheckpoint(t *testing.T) {
	for _, policy := range []OnLostCheckpoint{Adopt, Fail, Restart} {
		d := Decide(after(7), []SinkFacts{mainSink(skipClaim(7)), sideSink(skipClaim(7))}, source(), policy, self())
		wantOutcome(t, d, OutcomeResume)
	}
	// Killed between two such claims.
	for _, sinks := range [][]SinkFacts{
		{mainSink(skipClaim(7)), sideSink(markerOf(7))},
		{mainSink(markerOf(7)), sideSink(skipClaim(7))},
	} {
		d := decideWith(after(7), sinks...)
		wantOutcome(t, d, OutcomeResume)
		if !samePlace(d.Claims["lake.dead"].Position, sinks[0].Marker.Position) {
			t.Fatal("both sinks must be claimed at the main sink's place")
		}
	}
	// A commit (no claim) further on, or a claim further back, is something else.
	further, back := skipClaim(7), skipClaim(7)
	further.Claim = false
	back.Position = pos(75, 80)
	for _, m := range []*marker.Marker{further, back} {
		wantOutcome(t, decideWith(after(7), mainSink(m), sideSink(m)), OutcomeAdopt)
	}
}

func TestAPlanWhoseRecordsExpiredIsPutAsideIfNobodyHoldsIt(t *testing.T) {
	forgiven := source()
	forgiven.Forgiven = true
	for name, d := range map[string]Decision{
		"before the claim": Decide(planned(7), []SinkFacts{mainSink(markerOf(7)), sideSink(markerOf(7))}, forgiven, Fail, self()),
		"after the claim":  Decide(planned(7), []SinkFacts{mainSink(skipClaim(7)), sideSink(skipClaim(7))}, source(), Fail, self()),
	} {
		if d.Outcome != OutcomeAdopt || !slices.Equal(d.Supersede, []int64{8}) || d.NextBatchID != 8 || d.Plan != nil || d.Alert == "" {
			t.Fatalf("%s: %+v", name, d)
		}
		m := objstore.NewMemory(still{})
		l := Open(m, query)
		if _, err := l.CreateMetadata(t.Context(), Metadata{QueryID: lineage}); err != nil {
			t.Fatal(err)
		}
		fill(t, l, 0, 7)
		if _, err := l.WritePlan(t.Context(), planOf(8)); err != nil {
			t.Fatal(err)
		}
		if err := l.Adopt(t.Context(), d, "instance-1", noon); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if f := gather(t, l); f.Corrupt != "" || f.Plan.BatchID != 7 || f.Commit.BatchID != 7 {
			t.Fatalf("%s: %+v", name, f)
		}
	}
}

func TestAPlanWhoseRecordsExpiredIsFinishedFromWhatIsStagedOrStops(t *testing.T) {
	forgiven := source()
	forgiven.Forgiven = true
	f := planned(7)
	sinks := []SinkFacts{mainSink(markerOf(7)), sideSink(markerOf(8))}
	wantOutcome(t, Decide(f, sinks, forgiven, Adopt, self()), OutcomeSourceChanged)
	f.Staged = &StagedManifest{QueryID: lineage, BatchID: 8, Transform: "transform-1", Marker: markerOf(8)}
	d := Decide(f, sinks, forgiven, Adopt, self())
	wantOutcome(t, d, OutcomeRerun)
	if !d.UseStaged || !slices.Equal(d.SinksDone, []string{"lake.dead"}) {
		t.Fatalf("%+v", d)
	}
}
