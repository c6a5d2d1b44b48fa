package checkpoint

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

func decideWith(f Facts, sinks ...SinkFacts) Decision {
	return Decide(f, sinks, source(), Adopt, self())
}

func TestAQueryThatNobodyKnowsIsFresh(t *testing.T) {
	d := decideWith(Facts{}, mainSink(nil), sideSink(nil))
	wantOutcome(t, d, OutcomeFresh)
	if d.QueryID != fresh || d.BatchID != 0 || d.NextEpoch != 1 || d.Claims["lake.dead"].BatchID != -1 {
		t.Fatalf("%+v", d)
	}
}

func TestAStartKilledBeforeItsClaimKeepsItsQueryID(t *testing.T) {
	d := decideWith(after(-1), mainSink(nil), sideSink(nil))
	wantOutcome(t, d, OutcomeFresh)
	if d.QueryID != lineage {
		t.Fatalf("query id %s: the next start must not make a second lineage", d.QueryID)
	}
}

func TestAStartKilledBetweenItsClaimsIsRepeated(t *testing.T) {
	for name, sinks := range map[string][]SinkFacts{
		"main claimed": {mainSink(markerOf(-1)), sideSink(nil)},
		"side claimed": {mainSink(nil), sideSink(markerOf(-1))},
	} {
		d := decideWith(after(-1), sinks...)
		wantOutcome(t, d, OutcomeResume)
		for _, s := range sinks {
			if c := d.Claims[s.Name]; c == nil || c.BatchID != -1 || !samePlace(c.Position, at(-1)) || c.QueryID != lineage {
				t.Errorf("%s: claim of %s = %+v, want batch -1 at the position that was resolved first", name, s.Name, c)
			}
		}
	}
}

func TestARestartAfterACleanStopResumes(t *testing.T) {
	d := decideWith(after(7), mainSink(markerOf(7)), sideSink(markerOf(7)))
	wantOutcome(t, d, OutcomeResume)
	if d.BatchID != 8 || d.NextBatchID != 8 || d.NextEpoch != 4 || d.RebuildState {
		t.Fatalf("%+v", d)
	}
}

func TestACrashBeforeTheCommitRerunsThePlannedBatch(t *testing.T) {
	d := decideWith(planned(7), mainSink(markerOf(7)), sideSink(markerOf(7)))
	wantOutcome(t, d, OutcomeRerun)
	if d.BatchID != 8 || d.Plan == nil || d.Plan.BatchID != 8 || len(d.SinksDone) != 0 {
		t.Fatalf("%+v", d)
	}
}

func TestACrashBetweenSideAndMainCommitRerunsOnlyTheMainSink(t *testing.T) {
	d := decideWith(planned(7), mainSink(markerOf(7)), sideSink(markerOf(8)))
	wantOutcome(t, d, OutcomeRerun)
	if !slices.Equal(d.SinksDone, []string{"lake.dead"}) {
		t.Fatalf("sinks done: %v", d.SinksDone)
	}
}

func TestACrashBetweenCommitAndCommitLogIsNotCommittedTwice(t *testing.T) {
	d := decideWith(planned(7), mainSink(markerOf(8)), sideSink(markerOf(8)))
	wantOutcome(t, d, OutcomeAlreadyCommitted)
	if d.BatchID != 8 || d.NextBatchID != 9 || d.Marker.BatchID != 8 {
		t.Fatalf("%+v", d)
	}
}

func TestAClaimOnTopOfACommitStillCountsAsThatCommit(t *testing.T) {
	m := markerOf(8)
	m.Claim, m.Epoch, m.Attempt = true, marker.Epoch{Number: 9, Nonce: "nine"}, "claim"
	d := decideWith(planned(7), mainSink(m), sideSink(markerOf(8)))
	wantOutcome(t, d, OutcomeAlreadyCommitted)
	if d.NextEpoch != 10 {
		t.Fatalf("next epoch %d", d.NextEpoch)
	}
}

func TestARestoredFolderWithoutTheStateOfTheMarkerRebuildsIt(t *testing.T) {
	for _, f := range []Facts{planned(7), after(8), after(3)} {
		f.HasState = func(s marker.StateFile) bool { return s.Path != "state/dedup/8-a.delta" }
		d := decideWith(f, mainSink(markerOf(8)), sideSink(markerOf(8)))
		if !d.RebuildState || !strings.Contains(d.RebuildWhy, "state/dedup/8-a.delta") {
			t.Errorf("%s: rebuild %v, %q", d.Outcome, d.RebuildState, d.RebuildWhy)
		}
	}
}

func TestALostCheckpointIsAdoptedInsteadOfDoublingEverything(t *testing.T) {
	d := decideWith(Facts{}, mainSink(markerOf(7)), sideSink(markerOf(7)))
	wantOutcome(t, d, OutcomeAdopt)
	if d.QueryID != lineage || d.NextBatchID != 8 || d.Alert == "" || !d.RebuildState || d.MustEndAt != nil {
		t.Fatalf("%+v", d)
	}
}

func TestALostCheckpointWithPolicyFailStops(t *testing.T) {
	d := Decide(Facts{}, []SinkFacts{mainSink(markerOf(7))}, source(), Fail, self())
	wantOutcome(t, d, OutcomeCorrupt)
	if !failure.Is(d.Err(), failure.Checkpoint) {
		t.Fatal(d.Err())
	}
}

func TestARestartNeverReusesABatchID(t *testing.T) {
	d := Decide(after(3), []SinkFacts{mainSink(markerOf(7)), sideSink(markerOf(8))}, source(), Restart, self())
	wantOutcome(t, d, OutcomeRestart)
	if d.NextBatchID != 9 || d.QueryID != fresh || d.Predecessor != lineage || d.Alert == "" {
		t.Fatalf("%+v", d)
	}
	c := d.Claims["lake.bronze"]
	if c.BatchID != 8 || c.PlanHash != "" || c.QueryID != fresh || c.Predecessor != lineage {
		t.Fatalf("claim %+v", c)
	}
}

func restarted(n int64) *marker.Marker {
	m := markerOf(n)
	m.QueryID, m.Predecessor, m.PlanHash, m.Claim, m.Position, m.State = fresh, lineage, "", true, at(-1), nil
	return m
}

func TestARestartKilledBeforeItsClaimsRestartsAgain(t *testing.T) {
	f := after(-1)
	f.Metadata.QueryID, f.Metadata.Predecessor = fresh, lineage
	for _, policy := range []OnLostCheckpoint{Adopt, Fail, Restart} {
		d := Decide(f, []SinkFacts{mainSink(markerOf(7)), sideSink(markerOf(7))}, source(), policy, self())
		wantOutcome(t, d, OutcomeRestart)
		if d.QueryID != fresh || d.Predecessor != lineage || d.NextBatchID != 8 {
			t.Fatalf("%+v", d)
		}
	}
}

func TestARestartKilledBetweenItsClaimsIsFinished(t *testing.T) {
	f := after(-1)
	f.Metadata.QueryID, f.Metadata.Predecessor = fresh, lineage
	for name, sinks := range map[string][]SinkFacts{
		"main claimed": {mainSink(restarted(8)), sideSink(markerOf(7))},
		"side claimed": {mainSink(markerOf(7)), sideSink(restarted(8))},
	} {
		d := decideWith(f, sinks...)
		wantOutcome(t, d, OutcomeResume)
		if d.NextBatchID != 9 || d.Claims["lake.dead"].QueryID != fresh || !samePlace(d.Claims["lake.bronze"].Position, at(-1)) {
			t.Fatalf("%s: %+v", name, d)
		}
	}
}

func TestASinkRestoredFromBeforeTheRestartIsRewound(t *testing.T) {
	f := after(-1)
	f.Metadata.QueryID, f.Metadata.Predecessor = fresh, lineage
	p := planOf(9)
	p.QueryID = fresh
	m := markerOf(9)
	m.QueryID, m.Predecessor = fresh, lineage
	f.Plan, f.PlanHash, f.Commit = &p, PlanHash(p), &CommitEntry{QueryID: fresh, BatchID: 9, Marker: m}
	wantOutcome(t, decideWith(f, mainSink(m), sideSink(markerOf(7))), OutcomeSinkRewound)
}

func TestACheckpointThatLostOnlyItsLogsIsAdopted(t *testing.T) {
	wantOutcome(t, decideWith(after(-1), mainSink(markerOf(7)), sideSink(markerOf(7))), OutcomeAdopt)
}

func TestACheckpointThatLostOnlyItsMetadataKeepsItsPlan(t *testing.T) {
	f := planned(7)
	f.Metadata = nil
	d := decideWith(f, mainSink(markerOf(7)), sideSink(markerOf(8)))
	wantOutcome(t, d, OutcomeAdopt)
	if d.Plan == nil || d.Plan.BatchID != 8 || d.MustEndBatchID != 8 || len(d.Supersede) != 0 {
		t.Fatalf("%+v", d)
	}
}

func TestAPlanThatNoSinkHasIsStillRunAfterTheMetadataWasLost(t *testing.T) {
	f := planned(7)
	f.Metadata = nil
	d := decideWith(f, mainSink(markerOf(7)), sideSink(markerOf(7)))
	wantOutcome(t, d, OutcomeAdopt)
	if d.Plan == nil || PlanHash(*d.Plan) != f.PlanHash || len(d.Supersede) != 0 {
		t.Fatalf("%+v", d)
	}
	// One that does not start where the marker stands is put aside.
	f.Plan.Start = pos(80, 79)
	f.PlanHash = PlanHash(*f.Plan)
	f.Commit = nil
	wantOutcome(t, decideWith(f, mainSink(markerOf(7))), OutcomeCorrupt)
}

func TestACommitThatAnotherRunReplacedIsPutAside(t *testing.T) {
	for _, f := range []Facts{after(7), planned(7)} {
		d := decideWith(f, mainSink(otherPlan(7)), sideSink(otherPlan(7)))
		wantOutcome(t, d, OutcomeAdopt)
		if d.Supersede[0] != 7 || d.Plan != nil || d.NextBatchID != 8 || !samePlace(d.Marker.Position, otherPlan(7).Position) {
			t.Fatalf("%+v", d)
		}
		if f.Plan.BatchID == 8 && !slices.Contains(d.Supersede, 8) {
			t.Fatal("a plan that starts where the replaced commit ended must go too")
		}
	}
}

func TestACopyFiveBatchesOldIsAdoptedInsteadOfRunningThemAgain(t *testing.T) {
	for _, f := range []Facts{after(2), planned(2)} {
		d := decideWith(f, mainSink(markerOf(7)), sideSink(markerOf(7)))
		wantOutcome(t, d, OutcomeAdopt)
		if d.NextBatchID != 8 || !samePlace(d.Marker.Position, at(7)) {
			t.Fatalf("%+v", d)
		}
	}
}

// otherPlan is batch n as another run planned it: one offset less.
func otherPlan(n int64) *marker.Marker {
	p := planOf(n)
	p.End = pos((n+1)*10, (n+1)*10-1)
	m := markerOf(n)
	m.Position, m.PlanHash = p.End, PlanHash(p)
	return m
}

func TestAPlanThatAnotherRunSupersededIsPutAsideNotRun(t *testing.T) {
	d := decideWith(planned(7), mainSink(otherPlan(8)), sideSink(otherPlan(8)))
	wantOutcome(t, d, OutcomeAdopt)
	if !slices.Equal(d.Supersede, []int64{8}) || d.NextBatchID != 9 {
		t.Fatalf("%+v", d)
	}
	// Only the side sink has the other plan's batch: ours must not be run either.
	d = decideWith(planned(7), mainSink(markerOf(7)), sideSink(otherPlan(8)))
	wantOutcome(t, d, OutcomeAdopt)
	if !slices.Equal(d.Supersede, []int64{8}) || d.MustEndAt == nil || !samePlace(*d.MustEndAt, otherPlan(8).Position) {
		t.Fatalf("%+v", d)
	}
}

func TestAfterAnAdoptionTheFirstPlanEndsAtTheFurthestSideMarker(t *testing.T) {
	d := decideWith(Facts{}, mainSink(markerOf(7)), sideSink(markerOf(8)))
	wantOutcome(t, d, OutcomeAdopt)
	if d.MustEndAt == nil || !samePlace(*d.MustEndAt, at(8)) || d.MustEndBatchID != 8 || d.NextBatchID != 8 {
		t.Fatalf("%+v", d)
	}
	if d.Plan == nil || PlanHash(*d.Plan) != markerOf(8).PlanHash {
		t.Fatal("the plan that the side sink holds can be rebuilt from the two markers")
	}
	// A partition that was added in that batch: its start is not known any more.
	side := markerOf(8)
	side.Position = pos(90, 90, 5)
	p := planOf(8)
	p.Start, p.End = pos(80, 80, 0), side.Position
	side.PlanHash = PlanHash(p)
	d = decideWith(Facts{}, mainSink(markerOf(7)), sideSink(side))
	wantOutcome(t, d, OutcomeAdopt)
	if d.Plan != nil || d.MustEndAt == nil || !samePlace(*d.MustEndAt, side.Position) {
		t.Fatalf("%+v", d)
	}
}

func TestABatchHalfVisibleIsNotFinishedByAnotherTransform(t *testing.T) {
	changed := self()
	changed.Transform = "transform-2"
	sinks := []SinkFacts{mainSink(markerOf(7)), sideSink(markerOf(8))}
	for _, f := range []Facts{planned(7), {}} {
		d := Decide(f, sinks, source(), Adopt, changed)
		wantOutcome(t, d, OutcomeCorrupt)
		f.Exists, f.Staged = true, &StagedManifest{QueryID: lineage, BatchID: 8, Transform: "transform-1", Marker: markerOf(8)}
		d = Decide(f, sinks, source(), Adopt, changed)
		if d.Outcome.Stops() || !d.UseStaged {
			t.Fatalf("%+v", d)
		}
		f.Staged.Transform = "transform-0"
		wantOutcome(t, Decide(f, sinks, source(), Adopt, changed), OutcomeCorrupt)
	}
}

func TestABatchOfWhichNothingIsVisibleMayRunWithTheNewTransform(t *testing.T) {
	changed := self()
	changed.Transform = "transform-2"
	d := Decide(planned(7), []SinkFacts{mainSink(markerOf(7)), sideSink(markerOf(7))}, source(), Adopt, changed)
	wantOutcome(t, d, OutcomeRerun)
	if d.UseStaged || len(d.Notes) != 1 {
		t.Fatalf("%+v", d)
	}
	// It was run so, the side sink has it, and the same code is here again.
	side := markerOf(8)
	side.Transform = "transform-2"
	d = Decide(planned(7), []SinkFacts{mainSink(markerOf(7)), sideSink(side)}, source(), Adopt, changed)
	wantOutcome(t, d, OutcomeRerun)
	if d.UseStaged {
		t.Fatal("the side sink's part was computed by the present transform")
	}
}

func TestATableRolledBackIsNotFilledTwice(t *testing.T) {
	for name, d := range map[string]Decision{
		"main older than the commit log": decideWith(after(7), mainSink(markerOf(6)), sideSink(markerOf(6))),
		"main older than the plan":       decideWith(planned(7), mainSink(markerOf(5)), sideSink(markerOf(5))),
		"side behind main":               decideWith(after(7), mainSink(markerOf(7)), sideSink(markerOf(6))),
		"side behind, after the commit":  decideWith(planned(7), mainSink(markerOf(8)), sideSink(markerOf(7))),
		"side two ahead of main":         decideWith(after(7), mainSink(markerOf(7)), sideSink(markerOf(9))),
		"lost checkpoint, side behind":   decideWith(Facts{}, mainSink(markerOf(7)), sideSink(markerOf(3))),
		"main without a marker":          decideWith(after(7), mainSink(nil), sideSink(markerOf(7))),
		"no marker anywhere":             decideWith(after(7), mainSink(nil), sideSink(nil)),
	} {
		if d.Outcome != OutcomeSinkRewound || !failure.Is(d.Err(), failure.Checkpoint) || d.Sink == "" {
			t.Errorf("%s: %s (%s), sink %q", name, d.Outcome, d.Reason, d.Sink)
		}
	}
	// Side sinks commit first: the one that is behind is the one that lost.
	if d := decideWith(after(7), mainSink(markerOf(7)), sideSink(markerOf(6))); d.Sink != "lake.dead" {
		t.Errorf("blamed %s", d.Sink)
	}
	if d := decideWith(after(7), mainSink(markerOf(7)), sideSink(markerOf(9))); d.Sink != "lake.bronze" {
		t.Errorf("blamed %s", d.Sink)
	}
	rolled := mainSink(markerOf(7))
	rolled.Rewound = "head sequence 3 is below the marker's 9"
	wantOutcome(t, decideWith(after(7), rolled, sideSink(markerOf(7))), OutcomeSinkRewound)
	wantOutcome(t, decideWith(Facts{}, rolled, sideSink(markerOf(7))), OutcomeSinkRewound)
}

func TestADroppedTableIsNotQuietlyStartedAgain(t *testing.T) {
	f := after(7)
	f.Metadata.Sinks = map[string]string{"lake.bronze": "uuid-main", "lake.dead": "uuid-dead"}
	wantOutcome(t, decideWith(f, mainSink(markerOf(7)), sideSink(markerOf(7))), OutcomeResume)

	gone := SinkFacts{Name: "lake.bronze", Main: true, Readable: true}
	wantOutcome(t, decideWith(f, gone, sideSink(markerOf(7))), OutcomeSinkRewound)
	sideGone := SinkFacts{Name: "lake.dead", Readable: true}
	wantOutcome(t, decideWith(f, mainSink(markerOf(7)), sideGone), OutcomeSinkRewound)
	wantOutcome(t, decideWith(f, mainSink(markerOf(7)), sideSink(nil)), OutcomeSinkRewound)
	again := mainSink(markerOf(7))
	again.Identity = "uuid-other"
	wantOutcome(t, decideWith(f, again, sideSink(markerOf(7))), OutcomeSinkRewound)
	// Nothing committed yet, but claimed: the start position is in the marker only.
	f = after(-1)
	f.Metadata.Sinks = map[string]string{"lake.bronze": "uuid-main"}
	wantOutcome(t, decideWith(f, gone, sideSink(nil)), OutcomeSinkRewound)
}

func TestASinkAddedLaterJoinsAtTheQuerysPlace(t *testing.T) {
	f := after(7)
	f.Metadata.Sinks = map[string]string{"lake.bronze": "uuid-main"}
	d := decideWith(f, mainSink(markerOf(7)), SinkFacts{Name: "lake.dead", Readable: true})
	wantOutcome(t, d, OutcomeResume)
	c := d.Claims["lake.dead"]
	if c.BatchID != 7 || !samePlace(c.Position, at(7)) || c.PlanHash != markerOf(7).PlanHash || !c.Claim {
		t.Fatalf("claim %+v", c)
	}
	// A place in a shared table that another query fills is no place to join.
	shared := sideSink(nil)
	shared.Others = map[string]*marker.Marker{"other": {Kind: marker.KindStream, QueryName: "other", Position: at(3)}}
	wantOutcome(t, decideWith(f, mainSink(markerOf(7)), shared), OutcomeOverlap)
}

func TestAChangedSourceStopsEveryOutcomeThatReads(t *testing.T) {
	src := source()
	src.Changed = []string{"topic wiki has id B, expected A"}
	for name, in := range map[string]struct {
		f           Facts
		main, side  *marker.Marker
		wantOutcome Outcome
	}{
		"resume":    {after(7), markerOf(7), markerOf(7), OutcomeSourceChanged},
		"rerun":     {planned(7), markerOf(7), markerOf(8), OutcomeSourceChanged},
		"committed": {planned(7), markerOf(8), markerOf(8), OutcomeSourceChanged},
		"adopt":     {Facts{}, markerOf(7), markerOf(7), OutcomeSourceChanged},
		"rewound":   {after(7), markerOf(6), markerOf(6), OutcomeSinkRewound},
	} {
		d := Decide(in.f, []SinkFacts{mainSink(in.main), sideSink(in.side)}, src, Adopt, self())
		if d.Outcome != in.wantOutcome {
			t.Errorf("%s: %s (%s)", name, d.Outcome, d.Reason)
		}
		if d.Outcome == OutcomeSourceChanged && (!failure.Is(d.Err(), failure.SourceChanged) || !strings.Contains(d.Reason, "topic wiki")) {
			t.Errorf("%s: %v", name, d.Err())
		}
	}
	// A restart resets the position, so it is the way out.
	wantOutcome(t, Decide(Facts{}, []SinkFacts{mainSink(markerOf(7))}, src, Restart, self()), OutcomeRestart)
}

func TestARunningInstanceThatMeetsANewerEpochStops(t *testing.T) {
	run := self()
	run.Running = &marker.Epoch{Number: 3, Nonce: "three"}
	same := markerOf(7)
	wantOutcome(t, Decide(after(7), []SinkFacts{mainSink(same)}, source(), Adopt, run), OutcomeResume)

	newer, rival, other := markerOf(7), markerOf(7), markerOf(7)
	newer.Epoch.Number = 4
	rival.Epoch.Nonce = "another"
	other.QueryID = foreign
	for name, m := range map[string]*marker.Marker{"newer": newer, "same number": rival, "other lineage": other} {
		d := Decide(after(7), []SinkFacts{mainSink(m)}, source(), Adopt, run)
		if d.Outcome != OutcomeFenced || !failure.Is(d.Err(), failure.Fenced) {
			t.Errorf("%s: %s", name, d.Outcome)
		}
	}
	// And one whose checkpoint was removed under it never adopts.
	wantOutcome(t, Decide(Facts{}, []SinkFacts{mainSink(markerOf(7))}, source(), Adopt, run), OutcomeFenced)
}

func TestTwoInstancesDoNotTakeTheQueryFromEachOtherForEver(t *testing.T) {
	m := markerOf(7)
	m.Instance, m.RenewedAt = "instance-2", noon.Add(-10*time.Second)
	d := decideWith(after(7), mainSink(m))
	wantOutcome(t, d, OutcomeFenced)
	if d.RetryAfter != 20*time.Second {
		t.Fatalf("retry after %s", d.RetryAfter)
	}
	take := self()
	take.TakeOver = true
	wantOutcome(t, Decide(after(7), []SinkFacts{mainSink(m)}, source(), Adopt, take), OutcomeResume)
	m.RenewedAt = noon.Add(-time.Minute)
	wantOutcome(t, decideWith(after(7), mainSink(m)), OutcomeResume)
	m.RenewedAt = noon.Add(time.Hour) // clocks differ
	if d := decideWith(after(7), mainSink(m)); d.RetryAfter != 30*time.Second {
		t.Fatalf("retry after %s", d.RetryAfter)
	}
	waited := self()
	waited.Waited = map[string]time.Time{mainSink(m).Name: m.RenewedAt}
	wantOutcome(t, Decide(after(7), []SinkFacts{mainSink(m)}, source(), Adopt, waited), OutcomeResume)
	m.RenewedAt = m.RenewedAt.Add(time.Second) // it lives
	wantOutcome(t, Decide(after(7), []SinkFacts{mainSink(m)}, source(), Adopt, waited), OutcomeFenced)
}

func TestACheckpointOfAnOlderLineageIsExplained(t *testing.T) {
	m := markerOf(9)
	m.QueryID, m.Predecessor = foreign, lineage
	d := decideWith(after(7), mainSink(m))
	wantOutcome(t, d, OutcomeCorrupt)
	if !strings.Contains(d.Reason, "older lineage") || !strings.Contains(d.Hint, "move the checkpoint folder away") {
		t.Fatalf("%s / %s", d.Reason, d.Hint)
	}
	m.Predecessor = ""
	wantOutcome(t, decideWith(after(7), mainSink(m)), OutcomeCorrupt)
	wantOutcome(t, decideWith(Facts{}, mainSink(m), sideSink(markerOf(7))), OutcomeCorrupt)
}

func TestAPartitionAddedWhileRunningDoesNotStopTheRerun(t *testing.T) {
	f := planned(7)
	f.Plan.Start, f.Plan.End = pos(80, 80, 0), pos(90, 90, 4)
	f.PlanHash = PlanHash(*f.Plan)
	wantOutcome(t, decideWith(f, mainSink(markerOf(7))), OutcomeRerun)
	// But one that does not start where the marker stands is a contradiction.
	f.Plan.Start = pos(80, 79, 0)
	f.PlanHash = PlanHash(*f.Plan)
	wantOutcome(t, decideWith(f, mainSink(markerOf(7))), OutcomeCorrupt)
}

func TestAPartitionHandedAwayIsNotReadByAnOldPlan(t *testing.T) {
	m := markerOf(7)
	p, _ := m.Position.Kafka.Get("wiki", 1)
	p.HandedTo = "other"
	m.Position.Kafka.Set("wiki", topicID, 1, p)
	wantOutcome(t, decideWith(planned(7), mainSink(m)), OutcomeCorrupt)
	f := planned(7)
	f.Plan.Start, f.Plan.End = pos(80), pos(90)
	f.PlanHash = PlanHash(*f.Plan)
	wantOutcome(t, decideWith(f, mainSink(m)), OutcomeRerun)
}

func TestACorruptCheckpointStopsWhateverTheMarkersSay(t *testing.T) {
	f := after(7)
	f.Corrupt = "a gap: offsets/3 and offsets/5"
	gone := after(7)
	gone.Plan, gone.PlanHash = nil, ""
	ahead := planned(7)
	p := planOf(9)
	ahead.Plan, ahead.PlanHash = &p, PlanHash(p)
	for _, f := range []Facts{f, gone, ahead} {
		for _, policy := range []OnLostCheckpoint{Adopt, Fail, Restart} {
			wantOutcome(t, Decide(f, []SinkFacts{mainSink(markerOf(7))}, source(), policy, self()), OutcomeCorrupt)
		}
	}
}

func TestSinksAtOneBatchAndTwoPositionsAreRefused(t *testing.T) {
	wantOutcome(t, decideWith(after(7), mainSink(markerOf(7)), sideSink(otherPlan(7))), OutcomeCorrupt)
}

func TestAnInterruptedAdoptionIsFinishedWithoutAnotherAlert(t *testing.T) {
	f := after(2)
	p := Plan{QueryID: lineage, BatchID: 7, Start: at(7), End: at(7), BatchTime: markerOf(7).BatchTime, Adopted: true}
	f.Plan, f.PlanHash = &p, PlanHash(p)
	for _, policy := range []OnLostCheckpoint{Adopt, Fail, Restart} {
		d := Decide(f, []SinkFacts{mainSink(markerOf(7))}, source(), policy, self())
		wantOutcome(t, d, OutcomeAlreadyCommitted)
		if d.NextBatchID != 8 || d.Alert != "" {
			t.Fatalf("%+v", d)
		}
	}
	wantOutcome(t, decideWith(f, mainSink(markerOf(6))), OutcomeSinkRewound)
}

func TestASinkThatCannotBeReadIsNotAdoptedFrom(t *testing.T) {
	http := SinkFacts{Name: "http", Readable: false}
	wantOutcome(t, decideWith(Facts{}, mainSink(markerOf(7)), http), OutcomeCorrupt)
	wantOutcome(t, decideWith(after(2), mainSink(markerOf(7)), http), OutcomeCorrupt)
	wantOutcome(t, decideWith(after(7), mainSink(markerOf(7)), http), OutcomeResume)
	wantOutcome(t, decideWith(planned(7), mainSink(markerOf(7)), http), OutcomeRerun)
	wantOutcome(t, decideWith(planned(7), mainSink(markerOf(8)), http), OutcomeAlreadyCommitted)
}

func TestAMainSinkThatCannotBeReadFollowsTheCommitLog(t *testing.T) {
	http := SinkFacts{Name: "http", Main: true}
	wantOutcome(t, decideWith(Facts{}, http), OutcomeFresh)
	wantOutcome(t, decideWith(after(-1), http), OutcomeFresh)
	d := decideWith(after(7), http, sideSink(markerOf(7)))
	wantOutcome(t, d, OutcomeResume)
	if d.BatchID != 8 || d.Marker.BatchID != 7 || d.QueryID != lineage {
		t.Fatalf("%+v", d)
	}
	d = decideWith(planned(7), http, sideSink(markerOf(8)))
	wantOutcome(t, d, OutcomeRerun)
	if !slices.Equal(d.SinksDone, []string{"lake.dead"}) || d.Claims["lake.dead"].BatchID != 8 || d.Claims["http"].BatchID != 7 {
		t.Fatalf("%+v", d)
	}
	wantOutcome(t, decideWith(Facts{}, http, sideSink(markerOf(7))), OutcomeCorrupt)
	wantOutcome(t, decideWith(after(3), http, sideSink(markerOf(7))), OutcomeCorrupt)
	wantOutcome(t, decideWith(after(7), http, sideSink(markerOf(6))), OutcomeSinkRewound)
	wantOutcome(t, decideWith(after(-1), http, sideSink(markerOf(-1))), OutcomeResume)
}

// handed is a main sink that cannot be read and was last given the batch of m.
func handed(m *marker.Marker) SinkFacts { return SinkFacts{Name: "function", Main: true, Record: m} }

func TestAFirstBatchThatWasNotRecordedIsHandedToAnUnreadableSinkAgain(t *testing.T) {
	for name, s := range map[string]SinkFacts{"never begun": handed(nil), "claimed": handed(markerOf(-1)), "begun": handed(markerOf(0))} {
		d := decideWith(planned(-1), s)
		wantOutcome(t, d, OutcomeRerun)
		c := d.Claims["function"]
		if d.BatchID != 0 || c == nil || c.BatchID != -1 || !c.Position.SameOffsets(d.Plan.Start) || d.QueryID != lineage {
			t.Fatalf("%s: %+v", name, d)
		}
	}
}

func TestADeliveryThatTheCheckpointDoesNotKnowStopsAnUnreadableSink(t *testing.T) {
	wantOutcome(t, decideWith(after(7), handed(markerOf(7))), OutcomeResume)
	wantOutcome(t, decideWith(after(7), handed(markerOf(5))), OutcomeResume) // the record is what is old
	wantOutcome(t, decideWith(planned(7), handed(markerOf(8))), OutcomeRerun)
	other := markerOf(8)
	other.PlanHash = "another"
	for name, c := range map[string]struct {
		f Facts
		m *marker.Marker
	}{
		"the checkpoint is gone":                 {Facts{}, markerOf(7)},
		"the checkpoint is an older copy":        {after(3), markerOf(7)},
		"the plan of the batch is gone":          {after(7), markerOf(8)},
		"the batch was planned in another way":   {planned(7), other},
		"the batch was committed in another way": {after(8), other},
	} {
		d := decideWith(c.f, handed(c.m))
		wantOutcome(t, d, OutcomeCorrupt)
		d = Decide(c.f, []SinkFacts{handed(c.m)}, source(), Restart, self())
		wantOutcome(t, d, OutcomeRestart)
		// Ids go on above what the receiver has seen, under another query id.
		if d.NextBatchID <= c.m.BatchID || d.QueryID != fresh || d.Predecessor != lineage || d.NextEpoch <= c.m.Epoch.Number {
			t.Fatalf("%s: %+v", name, d)
		}
	}
	foreignRecord := markerOf(7)
	foreignRecord.QueryID = foreign
	wantOutcome(t, decideWith(after(7), handed(foreignRecord)), OutcomeCorrupt)
}

func TestARestartOfAnUnreadableSinkThatWasKilledGoesOnWithTheSameLineage(t *testing.T) {
	f := after(-1)
	f.Metadata.QueryID, f.Metadata.Predecessor = fresh, lineage
	d := decideWith(f, handed(markerOf(7)))
	wantOutcome(t, d, OutcomeRestart)
	if d.NextBatchID != 8 || d.QueryID != fresh {
		t.Fatalf("%+v", d)
	}
	claimed := markerOf(-1)
	claimed.QueryID, claimed.Predecessor, claimed.BatchID = fresh, lineage, 7
	d = decideWith(f, handed(claimed))
	wantOutcome(t, d, OutcomeFresh)
	if d.NextBatchID != 8 || d.QueryID != fresh || d.Claims["function"].BatchID != 7 {
		t.Fatalf("%+v", d)
	}
}

func TestALiveInstanceOfAnUnreadableSinkIsSeenInItsRecord(t *testing.T) {
	m := markerOf(7)
	m.Instance, m.RenewedAt = "somebody-else", noon.Add(-time.Second)
	d := decideWith(after(7), handed(m))
	wantOutcome(t, d, OutcomeFenced)
	if d.RetryAfter <= 0 {
		t.Fatalf("%+v", d)
	}
}

func TestAPlanHashDoesNotDependOnOrderOrOnWhatReadingFillsIn(t *testing.T) {
	a := planOf(7)
	a.Watermark = marker.Watermark{Micros: 5, MaxEventMicros: map[string]int64{"wiki-0": 1, "wiki-1": 2}, Idle: []string{"wiki-1", "wiki-0"}}
	b := a
	b.Start, b.End = a.Start.Clone(), batch.Position{Kafka: &batch.KafkaPosition{ClusterID: "cluster-1"}}
	for part := int32(1); part >= 0; part-- {
		b.End.Kafka.Set("wiki", topicID, part, batch.PartitionPosition{NextOffset: 80, LastOffset: -1, LeaderEpoch: -1, Rows: -1})
	}
	b.Epoch = marker.Epoch{Number: 99}
	b.BatchTime = a.BatchTime.In(time.FixedZone("elsewhere", 3600))
	b.Watermark.Idle = []string{"wiki-0", "wiki-1"}
	if PlanHash(a) != PlanHash(b) {
		t.Fatal("two descriptions of the same batch have two hashes")
	}
	for name, change := range map[string]func(*Plan){
		"query id": func(p *Plan) { p.QueryID = foreign },
		"batch id": func(p *Plan) { p.BatchID++ },
		"start":    func(p *Plan) { p.Start = pos(70, 69) },
		"end":      func(p *Plan) { p.End = pos(80, 81) },
		"topic id": func(p *Plan) {
			p.End.Kafka.Topics["wiki"] = batch.TopicPosition{ID: "x", Partitions: p.End.Kafka.Topics["wiki"].Partitions}
		},
		"cluster":    func(p *Plan) { p.End.Kafka.ClusterID = "x" },
		"batch time": func(p *Plan) { p.BatchTime = p.BatchTime.Add(time.Microsecond) },
		"watermark":  func(p *Plan) { p.Watermark.Micros++ },
		"idle":       func(p *Plan) { p.Watermark.Idle = nil },
		"transform":  func(p *Plan) { p.Transform = "x" },
	} {
		c := a
		c.Start, c.End = a.Start.Clone(), a.End.Clone()
		change(&c)
		if PlanHash(a) == PlanHash(c) {
			t.Errorf("another %s has the same hash", name)
		}
	}
}
