package checkpoint

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

// TestDecideHoldsItsInvariantsForEveryCombinationOfFacts goes through the whole
// product of what checkpoint, sinks, source, policy and state can say.
func TestDecideHoldsItsInvariantsForEveryCombinationOfFacts(t *testing.T) {
	const n = 7
	lostMetadata := planned(n - 1)
	lostMetadata.Metadata = nil
	planGone := after(n)
	planGone.Plan, planGone.PlanHash = nil, ""
	corrupt := after(n)
	corrupt.Corrupt = "a gap"
	checkpoints := map[string]Facts{
		"none": {}, "metadata only": after(-1), "committed N": after(n), "plan N pending": planned(n - 1), "plan N+1 pending": planned(n),
		"plan gone": planGone, "older by 5": after(n - 5), "older by 5, plan pending": planned(n - 5),
		"corrupt": corrupt, "metadata missing": lostMetadata,
	}
	otherHash, otherLineage, newerEpoch := otherPlan(n), markerOf(n), markerOf(n)
	otherLineage.QueryID = foreign
	newerEpoch.Epoch, newerEpoch.Claim = marker.Epoch{Number: 9, Nonce: "nine"}, true
	mains := map[string]*marker.Marker{
		"none": nil, "claimed": markerOf(-1), "N-1": markerOf(n - 1), "N": markerOf(n), "N other hash": otherHash,
		"N+1": markerOf(n + 1), "N+3": markerOf(n + 3), "other lineage": otherLineage, "newer epoch": newerEpoch,
	}
	sides := map[string]*SinkFacts{"no sink": nil}
	for name, m := range map[string]*marker.Marker{
		"none": nil, "claimed": markerOf(-1), "N-1": markerOf(n - 1), "N": markerOf(n), "N other hash": otherPlan(n), "N+1": markerOf(n + 1),
	} {
		s := sideSink(m)
		sides[name] = &s
	}
	combinations := 0
	seen := map[Outcome]int{}
	for ckName, f := range checkpoints {
		for mainName, m := range mains {
			for sideName, side := range sides {
				for _, changed := range []bool{false, true} {
					for _, policy := range []OnLostCheckpoint{Adopt, Fail, Restart} {
						for _, state := range []bool{false, true} {
							for _, running := range []bool{false, true} {
								c := combination{f: f, policy: policy, changed: changed, state: state, self: self(), src: source()}
								c.f.HasState = func(marker.StateFile) bool { return state }
								c.sinks = []SinkFacts{mainSink(m)}
								if side != nil {
									c.sinks = append(c.sinks, *side)
								}
								if changed {
									c.src.Changed = []string{"topic wiki is another one"}
								}
								if running {
									c.self.Running = &marker.Epoch{Number: 3, Nonce: "three"}
								}
								combinations++
								d := Decide(c.f, c.sinks, c.src, policy, c.self)
								seen[d.Outcome]++
								if fault := c.check(d); fault != "" {
									t.Errorf("checkpoint %s, main %s, side %s, source changed %v, policy %s, state %v, running %v: %s\n  %s: %s",
										ckName, mainName, sideName, changed, policy, state, running, fault, d.Outcome, d.Reason)
								}
							}
						}
					}
				}
			}
		}
	}
	t.Logf("%d combinations: %v", combinations, seen)
	for _, o := range []Outcome{OutcomeFresh, OutcomeResume, OutcomeRerun, OutcomeAlreadyCommitted, OutcomeAdopt, OutcomeRestart,
		OutcomeFenced, OutcomeSourceChanged, OutcomeSinkRewound, OutcomeCorrupt} {
		if seen[o] == 0 {
			t.Errorf("the product never gives %s: it does not cover what it claims to", o)
		}
	}
}

type combination struct {
	f              Facts
	sinks          []SinkFacts
	src            SourceFacts
	policy         OnLostCheckpoint
	self           Self
	changed, state bool
}

// check returns the first invariant that d breaks.
func (c combination) check(d Decision) string {
	for _, check := range []func(Decision) string{c.checkForm, c.checkExactness, c.checkIDs, c.checkPolicy, c.checkPurity} {
		if fault := check(d); fault != "" {
			return fault
		}
	}
	return ""
}

// checkForm: every decision explains itself, and stops or goes on, not both.
func (c combination) checkForm(d Decision) string {
	err := d.Err()
	switch {
	case d.Outcome < OutcomeFresh || d.Outcome > OutcomeOverlap:
		return "outside the closed set"
	case d.Reason == "":
		return "no reason"
	case d.Outcome.Stops() != (err != nil):
		return "stops without an error, or goes on with one"
	case err != nil && d.Hint == "":
		return "stops without a way out"
	case (d.Outcome == OutcomeAdopt || d.Outcome == OutcomeRestart) != (d.Alert != ""):
		return "an alert belongs to adopt and restart only"
	case d.Outcome == OutcomeSourceChanged && !failure.Is(err, failure.SourceChanged),
		d.Outcome == OutcomeFenced && !failure.Is(err, failure.Fenced),
		(d.Outcome == OutcomeCorrupt || d.Outcome == OutcomeSinkRewound) && !failure.Is(err, failure.Checkpoint):
		return fmt.Sprintf("class %s", failure.ClassOf(err))
	case d.Outcome.Stops() && (d.Claims != nil || d.Plan != nil):
		return "a stop that can be carried out"
	case !d.Outcome.Stops() && len(d.Claims) != len(c.sinks):
		return "a sink without a claim"
	case !d.Outcome.Stops() && d.QueryID == "":
		return "no query id"
	}
	return ""
}

// checkExactness: what goes on starts where the main sink says, or nowhere.
func (c combination) checkExactness(d Decision) string {
	main := c.sinks[0].Marker
	anyMarker := slices.ContainsFunc(c.sinks, func(s SinkFacts) bool { return s.Marker != nil })
	goesOn := !d.Outcome.Stops()
	switch {
	case d.Outcome == OutcomeFresh && (anyMarker || c.f.Plan != nil || c.f.Commit != nil):
		return "fresh although something is known of the query"
	case goesOn && c.changed && d.Outcome != OutcomeRestart:
		return "reads from a source that changed"
	case goesOn && c.f.Corrupt != "":
		return "goes on from a corrupt checkpoint"
	case goesOn && d.Outcome != OutcomeFresh && d.Outcome != OutcomeRestart && main != nil && d.Marker != main:
		return "starts elsewhere than the main sink's marker"
	case goesOn && d.Outcome != OutcomeRestart && c.f.Metadata != nil && anyMarker && d.QueryID != c.f.Metadata.QueryID:
		return "changes lineage"
	case goesOn && c.f.Commit != nil && main != nil && main.BatchID < c.f.Commit.BatchID && d.Outcome != OutcomeRestart:
		return "goes on although the sink lost a commit"
	case d.Outcome == OutcomeAlreadyCommitted && (c.f.Plan == nil || main.BatchID != c.f.Plan.BatchID || main.PlanHash != c.f.PlanHash):
		return "already committed, but not this plan"
	case d.Outcome == OutcomeResume && len(c.sinks) > 1 && c.sinks[1].Marker != nil && main != nil && c.sinks[1].Marker.BatchID != main.BatchID:
		return "resumes with sinks at different batches"
	case goesOn && d.Marker != nil && len(d.Marker.State) > 0 && d.RebuildState == c.state:
		return "state and rebuilding do not fit"
	}
	if d.Outcome == OutcomeRerun {
		switch {
		case d.Plan == nil || d.Plan != c.f.Plan || d.BatchID != d.Plan.BatchID:
			return "a rerun of no plan or another one"
		case main.BatchID != d.Plan.BatchID-1 || !startsAt(d.Plan.Start, main.Position):
			return "a rerun that does not continue the main sink"
		}
	}
	return c.checkSides(d)
}

// checkSides: sinks that are skipped hold the batch; those that hold it are
// skipped; and an adoption ends its first batch where they stand.
func (c combination) checkSides(d Decision) string {
	if d.Outcome != OutcomeRerun && d.Outcome != OutcomeAdopt {
		return ""
	}
	for _, s := range c.sinks[1:] {
		if s.Marker == nil {
			continue
		}
		ahead := s.Marker.BatchID == d.Marker.BatchID+1
		if ahead != slices.Contains(d.SinksDone, s.Name) {
			return "sinks done do not match the side markers"
		}
		if ahead && d.Outcome == OutcomeAdopt && (d.MustEndAt == nil || !samePlace(*d.MustEndAt, s.Marker.Position)) {
			return "an adoption that may end its first batch elsewhere than the side sink"
		}
		if ahead && d.Plan != nil && !samePlace(d.Plan.End, s.Marker.Position) {
			return "a plan that ends elsewhere than the side sink that is skipped"
		}
	}
	return ""
}

// checkIDs: batch ids never start again, epochs only grow.
func (c combination) checkIDs(d Decision) string {
	for _, s := range c.sinks {
		if s.Marker == nil {
			continue
		}
		if d.NextEpoch <= s.Marker.Epoch.Number {
			return "an epoch that does not fence a sink"
		}
		if d.Outcome.Stops() {
			continue
		}
		atMostOne := d.Outcome == OutcomeAdopt && s.Marker.BatchID == d.MustEndBatchID
		if d.NextBatchID <= s.Marker.BatchID && !atMostOne {
			return fmt.Sprintf("next batch %d, sink %s is at %d", d.NextBatchID, s.Name, s.Marker.BatchID)
		}
	}
	return ""
}

// checkPolicy: adopting and restarting are the policy's to allow.
func (c combination) checkPolicy(d Decision) string {
	switch {
	case c.self.Running != nil && (d.Outcome == OutcomeFresh || d.Outcome == OutcomeAdopt || d.Outcome == OutcomeRestart):
		return "a running instance adopts"
	case d.Outcome == OutcomeAdopt && c.policy != Adopt:
		return "adopts against the policy"
	case d.Outcome == OutcomeRestart && c.policy != Restart:
		return "restarts against the policy"
	}
	return ""
}

// checkPurity: the same facts in another order give the same decision.
func (c combination) checkPurity(d Decision) string {
	turned := slices.Clone(c.sinks)
	slices.Reverse(turned)
	again := Decide(c.f, turned, c.src, c.policy, c.self)
	if !reflect.DeepEqual(d, again) {
		return fmt.Sprintf("with the sinks in another order: %s: %s", again.Outcome, again.Reason)
	}
	return ""
}
