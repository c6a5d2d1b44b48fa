package checkpoint

import (
	"fmt"
	"slices"
	"time"

	"github.com/weirlake/weir/internal/marker"
)

// timeLeft is a duration that counts down.
type timeLeft = time.Duration

// startOfLineage: the claim that opens a lineage carries no plan; every later
// marker names the plan that it was committed by, and a claim keeps that.
func startOfLineage(m *marker.Marker) bool { return m.PlanHash == "" }

// decide answers 4 to 6.
func (v *view) decide() Decision {
	if !v.main.Readable {
		return v.unreadableMain()
	}
	if !slices.ContainsFunc(v.sinks, func(s SinkFacts) bool { return s.Marker != nil }) {
		return v.noMarker()
	}
	if d, stop := v.oneLineage(); stop {
		return d
	}
	ref, d, stop := v.reference()
	if stop {
		return d
	}
	ahead, d, stop := v.besides(ref)
	if stop {
		return d
	}
	d = v.compare(ref, ahead)
	if v.lost() && !d.Outcome.Stops() && d.Outcome != OutcomeAdopt && d.Outcome != OutcomeRestart {
		what := "the checkpoint is gone"
		if v.f.Exists {
			what = "the checkpoint has lost its metadata"
		}
		return v.adopt(ref, ahead, nil, "%s", what)
	}
	return d
}

// noMarker: no sink knows the query.
func (v *view) noMarker() Decision {
	switch {
	case v.f.Commit != nil || v.f.Plan != nil:
		n := max(v.committed(), v.f.Plan.BatchID-1)
		return v.stop(OutcomeSinkRewound, v.main.Name, hintRewind,
			"sink %s holds no marker of the query, the checkpoint has got to batch %d: the table was dropped, or its properties were removed", v.main.Name, n)
	case v.f.Leftovers:
		return v.stop(OutcomeSinkRewound, v.main.Name, hintRewind,
			"sink %s holds no marker of the query, the checkpoint has logs of its earlier lineage %s", v.main.Name, v.f.Metadata.Predecessor)
	case v.f.Exists && v.f.Metadata == nil:
		return v.stop(OutcomeCorrupt, "", "remove the folder to start fresh, or restore it whole",
			"the checkpoint folder has files of a query but neither metadata nor logs, and no sink knows the query")
	}
	return v.fresh()
}

func (v *view) fresh() Decision {
	d := Decision{Outcome: OutcomeFresh, QueryID: v.self.NewQueryID, Reason: "no checkpoint and no marker: a new query"}
	if v.f.Metadata != nil { // made by a start that was killed before its claim
		d.QueryID, d.Predecessor = v.f.Metadata.QueryID, v.f.Metadata.Predecessor
	}
	return d
}

// 4. One lineage. Sinks that still hold the predecessor's marker, because a
// restart was killed between its claims, join.
func (v *view) oneLineage() (Decision, bool) {
	byID := map[string][]*SinkFacts{}
	for i := range v.sinks {
		if s := &v.sinks[i]; s.Marker != nil {
			byID[s.Marker.QueryID] = append(byID[s.Marker.QueryID], s)
		}
	}
	current, previous := v.lineage, ""
	if v.f.Metadata != nil {
		previous = v.f.Metadata.Predecessor
	}
	if current == "" {
		current, previous = youngest(byID)
	}
	for i := range v.sinks {
		s := &v.sinks[i]
		if m := s.Marker; m != nil && m.QueryID != current && (previous == "" || m.QueryID != previous) {
			return v.otherLineage(s, current), true
		}
	}
	old := byID[previous]
	if previous == "" || len(old) == 0 {
		return Decision{}, false
	}
	if v.f.Commit != nil || v.f.Plan != nil || slices.ContainsFunc(byID[current], func(s *SinkFacts) bool { return !startOfLineage(s.Marker) }) {
		return v.stop(OutcomeSinkRewound, old[0].Name, hintRewind, "sink %s holds query id %s at batch %d, from before the restart as %s, which has committed since: the table was restored",
			old[0].Name, previous, old[0].Marker.BatchID, current), true
	}
	if len(byID[current]) == 0 {
		return v.restart(current, previous, "a restart was interrupted before its first claim"), true
	}
	for _, s := range old {
		v.joins[s.Name] = true
	}
	return Decision{}, false
}

// youngest finds, without a checkpoint, the lineage that no other one names as
// its predecessor.
func youngest(byID map[string][]*SinkFacts) (current, previous string) {
	ids := make([]string, 0, len(byID))
	for id := range byID {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		for _, s := range byID[id] {
			if p := s.Marker.Predecessor; p != "" && byID[p] != nil {
				return id, p
			}
		}
	}
	return ids[0], ""
}

func (v *view) otherLineage(s *SinkFacts, current string) Decision {
	m := s.Marker
	switch {
	case v.lineage == "":
		return v.stop(OutcomeCorrupt, s.Name, hintRewind, "the sinks hold markers of two lineages: %s has query id %s, another one has %s", s.Name, m.QueryID, current)
	case m.Predecessor == current:
		return v.stop(OutcomeCorrupt, s.Name, hintMoveAway, "the checkpoint is of query id %s, an older lineage: the query was restarted as %s, which has got to batch %d in sink %s",
			current, m.QueryID, m.BatchID, s.Name)
	default:
		return v.stop(OutcomeCorrupt, s.Name, "give one of the two queries another name; if there is only one, "+hintMoveAway,
			"sink %s holds a query of the same name under query id %s (batch %d, instance %s), the checkpoint is of query id %s", s.Name, m.QueryID, m.BatchID, m.Instance, current)
	}
}

// reference is the marker that says what is delivered: the main sink's. Where
// the main sink was not claimed yet, because the first start or a restart was
// killed between its claims, a side sink's first claim stands for it.
func (v *view) reference() (*marker.Marker, Decision, bool) {
	if v.main.Marker != nil && !v.joins[v.main.Name] {
		return v.main.Marker, Decision{}, false
	}
	var ref *marker.Marker
	for _, s := range v.sides {
		if s.Marker == nil || v.joins[s.Name] {
			continue
		}
		if !startOfLineage(s.Marker) || v.f.Plan != nil || v.f.Commit != nil {
			return nil, v.stop(OutcomeSinkRewound, v.main.Name, hintRewind, "main sink %s holds no marker of the query, side sink %s is at batch %d: the main table was dropped, or its properties were removed",
				v.main.Name, s.Name, s.Marker.BatchID), true
		}
		ref = s.Marker
	}
	v.joins[v.main.Name] = true
	return ref, Decision{}, false
}

// besides compares the side sinks with the main one, whose marker is at batch
// N-1: each is there too, or at N, or joins. It returns those at N.
func (v *view) besides(ref *marker.Marker) ([]*SinkFacts, Decision, bool) {
	var ahead []*SinkFacts
	for _, s := range v.sides {
		m := s.Marker
		switch {
		case !s.Readable || v.joins[s.Name]:
		case m == nil:
			v.joins[s.Name] = true // added later; a recorded one was caught by rewound
		case m.BatchID == ref.BatchID:
			if m.PlanHash == ref.PlanHash && (skipped(m.Position, ref) || skipped(ref.Position, m)) {
				v.joins[s.Name] = true // killed between two claims that skip expired records
				continue
			}
			if !samePlace(m.Position, ref.Position) {
				return nil, v.stop(OutcomeCorrupt, s.Name, hintRewind, "sinks %s and %s are both at batch %d, at different positions: %s and %s",
					v.main.Name, s.Name, m.BatchID, ref.Position, m.Position), true
			}
		case m.BatchID < ref.BatchID:
			return nil, v.stop(OutcomeSinkRewound, s.Name, hintRewind, "side sink %s is at batch %d, main sink %s at batch %d; side sinks commit first, so %s has lost commits",
				s.Name, m.BatchID, v.main.Name, ref.BatchID, s.Name), true
		case m.BatchID == ref.BatchID+1:
			if len(ahead) > 0 && !samePlace(ahead[0].Marker.Position, m.Position) {
				return nil, v.stop(OutcomeCorrupt, s.Name, hintRewind, "side sinks %s and %s are both at batch %d, at different positions: %s and %s",
					ahead[0].Name, s.Name, m.BatchID, ahead[0].Marker.Position, m.Position), true
			}
			ahead = append(ahead, s)
		default:
			return nil, v.stop(OutcomeSinkRewound, v.main.Name, hintRewind, "main sink %s is at batch %d, side sink %s at batch %d; it can only be one ahead, so %s has lost commits",
				v.main.Name, ref.BatchID, s.Name, m.BatchID, v.main.Name), true
		}
	}
	return ahead, Decision{}, false
}

// 5. The main sink's marker against the logs.
func (v *view) compare(ref *marker.Marker, ahead []*SinkFacts) Decision {
	m, c, p := ref.BatchID, v.f.Commit, v.pending
	switch {
	case c != nil && m < c.BatchID:
		return v.wentBack(ref, c.BatchID)
	case p != nil && (m < p.BatchID-1 || (p.Adopted && m < p.BatchID)):
		return v.wentBack(ref, p.BatchID-1)
	case c == nil && p == nil:
		if !startOfLineage(ref) && v.f.Exists {
			return v.adopt(ref, ahead, nil, "the checkpoint has lost its logs, sink %s is at batch %d", v.main.Name, m)
		}
	case c != nil && m == c.BatchID && !sameCommit(c.Marker, ref):
		return v.adopt(ref, ahead, []int64{m}, "sink %s has committed another plan of batch %d than the checkpoint", v.main.Name, m)
	case p == nil && m > c.BatchID, p != nil && m > p.BatchID:
		return v.adopt(ref, ahead, nil, "the checkpoint is older than sink %s: it ends at batch %d, the sink at batch %d", v.main.Name, v.f.Plan.BatchID, m)
	}
	if p == nil {
		if len(ahead) > 0 {
			return v.adopt(ref, ahead, nil, "the checkpoint has lost the plan of batch %d, which side sink %s holds", m+1, ahead[0].Name)
		}
		return Decision{Outcome: OutcomeResume, BatchID: m + 1, NextBatchID: m + 1, Marker: ref, Reason: fmt.Sprintf("batch %d is committed everywhere", m)}
	}
	if m == p.BatchID {
		return v.landed(ref, ahead)
	}
	return v.rerun(ref, ahead)
}

func (v *view) wentBack(ref *marker.Marker, known int64) Decision {
	return v.stop(OutcomeSinkRewound, v.main.Name, hintRewind, "sink %s is at batch %d, the checkpoint knows that batch %d was committed: the table was rolled back or restored from a copy", v.main.Name, ref.BatchID, known)
}

// sameCommit: the marker now is the one of the commit, or of a claim on it.
func sameCommit(commit, now *marker.Marker) bool {
	return commit.PlanHash == now.PlanHash && (samePlace(commit.Position, now.Position) || skipped(commit.Position, now))
}

// landed: the marker is at the batch whose plan has no commit.
func (v *view) landed(ref *marker.Marker, ahead []*SinkFacts) Decision {
	p := v.pending
	same := ref.PlanHash == v.f.PlanHash || (p.Adopted && samePlace(p.End, ref.Position))
	switch {
	case !same:
		return v.adopt(ref, ahead, []int64{p.BatchID}, "sink %s has committed another plan of batch %d than offsets/%d", v.main.Name, p.BatchID, p.BatchID)
	case len(ahead) > 0:
		return v.adopt(ref, ahead, nil, "the checkpoint has lost the plan of batch %d, which side sink %s holds", p.BatchID+1, ahead[0].Name)
	}
	return Decision{Outcome: OutcomeAlreadyCommitted, BatchID: p.BatchID, NextBatchID: p.BatchID + 1, Marker: ref,
		Reason: fmt.Sprintf("batch %d was committed to sink %s, commits/%d was not written", p.BatchID, v.main.Name, p.BatchID)}
}

// rerun: the marker is at the batch before the plan.
func (v *view) rerun(ref *marker.Marker, ahead []*SinkFacts) Decision {
	p := v.pending
	if v.src.Forgiven || skipped(p.Start, ref) {
		return v.putAside(ref, ahead)
	}
	if !startsAt(p.Start, ref.Position) {
		return v.stop(OutcomeCorrupt, v.main.Name, hintMoveAway, "the plan of batch %d starts at %s, sink %s is at %s after batch %d", p.BatchID, p.Start, v.main.Name, ref.Position, ref.BatchID)
	}
	for _, s := range ahead {
		if !v.holds(s.Marker) {
			return v.adopt(ref, ahead, []int64{p.BatchID}, "side sink %s has committed another plan of batch %d than offsets/%d", s.Name, p.BatchID, p.BatchID)
		}
	}
	d := Decision{Outcome: OutcomeRerun, BatchID: p.BatchID, NextBatchID: p.BatchID + 1, Plan: p, Marker: ref, SinksDone: names(ahead),
		Reason: fmt.Sprintf("batch %d was planned and is not in sink %s", p.BatchID, v.main.Name)}
	return v.checkTransform(d, ahead, p.Transform)
}

// putAside: the records of the planned batch have expired, and the query may go
// on without them. A plan that no sink holds is put aside and planned anew; one
// that a side sink holds can only be finished from what is staged.
func (v *view) putAside(ref *marker.Marker, ahead []*SinkFacts) Decision {
	p, st := v.pending, v.f.Staged
	if len(ahead) > 0 {
		if st == nil || st.BatchID != p.BatchID || st.QueryID != p.QueryID || !v.holds(ahead[0].Marker) || !startsAt(p.Start, ref.Position) {
			return v.stop(OutcomeSourceChanged, ahead[0].Name, "bring the records back; or start over with: weir checkpoint reset",
				"records of batch %d have expired; side sink %s holds it, main sink %s does not, and staged/%d, which could finish it, is not there", p.BatchID, ahead[0].Name, v.main.Name, p.BatchID)
		}
		return Decision{Outcome: OutcomeRerun, BatchID: p.BatchID, NextBatchID: p.BatchID + 1, Plan: p, Marker: ref, SinksDone: names(ahead), UseStaged: true,
			Reason: fmt.Sprintf("batch %d was planned and is not in sink %s; its records have expired, its staged files are there", p.BatchID, v.main.Name)}
	}
	reason := fmt.Sprintf("records of the planned batch %d have expired; the plan is put aside and the query goes on at the log start", p.BatchID)
	return Decision{Outcome: OutcomeAdopt, BatchID: ref.BatchID, NextBatchID: ref.BatchID + 1, Marker: ref, Supersede: []int64{p.BatchID}, Reason: reason,
		Hint: "failOnDataLoss is false: the lost range is named by the source", Alert: fmt.Sprintf("query %s: %s", v.self.QueryName, reason)}
}

// holds reports whether a side marker at the pending plan's batch is a commit
// of that plan, or of one with the same end.
func (v *view) holds(m *marker.Marker) bool {
	return m.PlanHash == v.f.PlanHash || samePlace(m.Position, v.pending.End)
}

// checkTransform: what side sinks hold of a batch was computed by one
// transform; the rest must be computed by the same, or be staged already.
func (v *view) checkTransform(d Decision, done []*SinkFacts, planned string) Decision {
	now := v.self.Transform
	if len(done) == 0 {
		if planned != "" && now != "" && planned != now {
			d.Notes = append(d.Notes, fmt.Sprintf("the transform has changed since batch %d was planned; nothing of the batch is visible yet, so it is run with the new one", d.Plan.BatchID))
		}
		return d
	}
	for _, s := range done {
		used, n := s.Marker.Transform, s.Marker.BatchID
		if used == "" {
			used = planned
		}
		if used == "" || now == "" || used == now {
			continue
		}
		st := v.f.Staged
		if st == nil || st.BatchID != n || st.QueryID != s.Marker.QueryID || st.Transform != used {
			return v.stop(OutcomeCorrupt, s.Name, "start once with the configuration and version that planned the batch, then change them",
				"side sink %s holds batch %d computed by another transform (%.12s…, now %.12s…), and staged/%d, which could finish it, is not there", s.Name, n, used, now, n)
		}
		d.UseStaged = true
		d.Notes = append(d.Notes, fmt.Sprintf("the transform has changed since side sink %s committed batch %d: the staged files are committed as they are", s.Name, n))
	}
	return d
}

// 6. Adoption, if the policy lets it.
func (v *view) adopt(ref *marker.Marker, ahead []*SinkFacts, supersede []int64, why string, args ...any) Decision {
	reason := fmt.Sprintf(why, args...)
	switch {
	case v.policy == Restart:
		return v.restart(v.self.NewQueryID, ref.QueryID, reason)
	case len(v.unreadable()) > 0:
		return v.stop(OutcomeCorrupt, v.unreadable()[0], "restore the checkpoint; or start over with onLostCheckpoint: restart, which repeats rows",
			"%s, and sink %s has no readable marker to adopt from", reason, v.unreadable()[0])
	case v.policy == Fail:
		return v.stop(OutcomeCorrupt, "", "restore the checkpoint; or go on from the sink's marker with onLostCheckpoint: adopt", "%s, and onLostCheckpoint is fail", reason)
	}
	d := Decision{Outcome: OutcomeAdopt, BatchID: ref.BatchID, NextBatchID: ref.BatchID + 1, Marker: ref, SinksDone: names(ahead),
		Supersede: supersede, Reason: reason, Hint: "find out who removed or replaced the checkpoint folder; no row was lost or repeated"}
	planned := ""
	if p := v.pending; p != nil && p.BatchID == ref.BatchID+1 {
		fits := startsAt(p.Start, ref.Position) && !slices.ContainsFunc(ahead, func(s *SinkFacts) bool { return !v.holds(s.Marker) })
		if fits {
			d.Plan, planned = p, p.Transform
		} else if !slices.Contains(d.Supersede, p.BatchID) {
			d.Supersede = append(d.Supersede, p.BatchID)
		}
	}
	if len(ahead) > 0 {
		m := ahead[0].Marker
		end := m.Position.Clone()
		d.MustEnd, d.MustEndAt, d.MustEndBatchID = m, &end, m.BatchID
		if d.Plan == nil {
			d.Plan = rebuildPlan(ref, m)
		}
	}
	d.Alert = fmt.Sprintf("query %s: %s; adopted batch %d at %s from the marker in sink %s", v.self.QueryName, reason, ref.BatchID, ref.Position, v.main.Name)
	for _, s := range v.sides {
		if v.joins[s.Name] {
			d.Alert += fmt.Sprintf("; side sink %s holds no marker and joins here: if it held earlier batches, they are missing from it", s.Name)
		}
	}
	return v.checkTransform(d, ahead, planned)
}

// rebuildPlan makes the plan of a batch that a side sink holds and the main one
// does not, if it can be made exactly (no partition was added in it).
func rebuildPlan(ref, side *marker.Marker) *Plan {
	p := &Plan{QueryID: side.QueryID, BatchID: side.BatchID, Epoch: side.Epoch, Start: ref.Position.Clone(), End: side.Position.Clone(),
		BatchTime: side.BatchTime, Watermark: ref.Watermark, Transform: side.Transform}
	if PlanHash(*p) != side.PlanHash {
		return nil
	}
	return p
}

// restart opens a new lineage above every batch id that any sink or log has.
func (v *view) restart(queryID, predecessor, why string) Decision {
	newest := max(v.committed(), -1)
	if v.f.Plan != nil {
		newest = max(newest, v.f.Plan.BatchID)
	}
	for i := range v.sinks {
		if m := v.sinks[i].said(); m != nil {
			newest = max(newest, m.BatchID)
		}
	}
	return Decision{Outcome: OutcomeRestart, BatchID: newest + 1, NextBatchID: newest + 1, QueryID: queryID, Predecessor: predecessor, Reason: why,
		Hint: "rows that the earlier lineage delivered are delivered again",
		Alert: fmt.Sprintf("query %s: %s; restarted from startingOffsets as query id %s (before: %s) at batch %d: rows already delivered are delivered again",
			v.self.QueryName, why, queryID, predecessor, newest+1)}
}

func names(sinks []*SinkFacts) []string {
	var out []string
	for _, s := range sinks {
		out = append(out, s.Name)
	}
	return out
}

// unreadableMain: the main sink cannot say what it holds (HTTP, exec). The
// commit log has to do, and rows may be delivered again after a crash; side
// sinks are held to it.
func (v *view) unreadableMain() Decision {
	marked := slices.ContainsFunc(v.sinks, func(s SinkFacts) bool { return s.Marker != nil })
	if d, stop := v.unrecorded(marked); stop {
		return d
	}
	if d, stop := v.oneLineage(); stop {
		return d
	}
	base, ref := v.committed(), (*marker.Marker)(nil)
	if v.f.Commit != nil {
		ref = v.f.Commit.Marker
	} else if v.pending != nil {
		base = v.pending.BatchID - 1
	}
	var done []*SinkFacts
	for _, s := range v.sides {
		m := s.Marker
		switch {
		case !s.Readable || v.joins[s.Name]:
		case m == nil:
			v.joins[s.Name] = true
		case m.BatchID < base:
			return v.stop(OutcomeSinkRewound, s.Name, hintRewind, "side sink %s is at batch %d, the checkpoint has committed batch %d", s.Name, m.BatchID, base)
		case m.BatchID == base, v.f.Plan == nil && startOfLineage(m):
			if ref == nil {
				ref, base = m, m.BatchID
			}
			if !samePlace(m.Position, ref.Position) {
				return v.stop(OutcomeCorrupt, s.Name, hintRewind, "side sink %s is at %s after batch %d, the checkpoint at %s", s.Name, m.Position, base, ref.Position)
			}
		case v.pending != nil && m.BatchID == v.pending.BatchID && v.holds(m):
			done = append(done, s)
		default:
			return v.stop(OutcomeCorrupt, s.Name, "restore the newer checkpoint; or start over with: weir checkpoint reset, which repeats rows",
				"side sink %s is at batch %d, beyond the checkpoint (%d), and main sink %s has no readable marker to adopt from", s.Name, m.BatchID, base, v.main.Name)
		}
	}
	if p := v.pending; p != nil {
		d := Decision{Outcome: OutcomeRerun, BatchID: p.BatchID, NextBatchID: p.BatchID + 1, Plan: p, Marker: ref, SinksDone: names(done), QueryID: v.lineage,
			Reason: fmt.Sprintf("batch %d was planned and not recorded as committed", p.BatchID)}
		return v.checkTransform(d, done, p.Transform)
	}
	return Decision{Outcome: OutcomeResume, BatchID: base + 1, NextBatchID: base + 1, Marker: ref, QueryID: v.lineage, Reason: fmt.Sprintf("batch %d is recorded as committed", base)}
}

// unrecorded compares an unreadable main sink's record with the checkpoint: what
// was handed over must be known to the logs, as a commit or as the very plan.
func (v *view) unrecorded(marked bool) (Decision, bool) {
	rec := v.main.Record
	delivered := rec != nil && !startOfLineage(rec)
	logged := v.f.Plan != nil || v.f.Commit != nil
	p := v.pending
	switch {
	case v.lost() && (marked || logged || delivered):
		return v.startOver("the checkpoint is lost, and main sink %s has no readable marker to adopt from", v.main.Name), true
	case rec != nil && rec.QueryID != v.lineage && v.lineage != "" && delivered:
		m := v.f.Metadata
		if m.Predecessor == rec.QueryID && !logged {
			return v.restart(v.lineage, rec.QueryID, "a restart was interrupted before its first claim"), true
		}
		return v.otherLineage(&SinkFacts{Name: v.main.Name, Marker: rec}, v.lineage), true
	case v.f.Leftovers:
		return v.restart(v.lineage, v.f.Metadata.Predecessor, "a restart was interrupted before its first claim"), true
	case !marked && !logged && !delivered:
		d := v.noMarker()
		if rec != nil && !d.Outcome.Stops() {
			d.NextBatchID = rec.BatchID + 1 // of a lineage that has delivered nothing
			d.BatchID = d.NextBatchID
		}
		return d, true
	case !delivered || rec.BatchID < v.committed():
	case rec.BatchID == v.committed():
		if had := v.f.Commit.Marker.PlanHash; had != rec.PlanHash {
			return v.startOver("main sink %s was given another plan of batch %d than the checkpoint has committed", v.main.Name, rec.BatchID), true
		}
	case p == nil || rec.BatchID != p.BatchID || rec.PlanHash != v.f.PlanHash:
		return v.startOver("batch %d was handed to main sink %s, and the checkpoint, which ends at batch %d, has lost its plan: it was restored from an older copy",
			rec.BatchID, v.main.Name, v.committed()), true
	}
	return Decision{}, false
}

// startOver stops, or begins a new lineage where the policy says so: nothing can
// be adopted from an unreadable sink.
func (v *view) startOver(why string, args ...any) Decision {
	if v.policy != Restart {
		return v.stop(OutcomeCorrupt, v.main.Name, "restore the newest checkpoint; or start over with onLostCheckpoint: restart, which delivers rows again under a new query id", why, args...)
	}
	before := v.lineage
	if v.main.Record != nil {
		before = v.main.Record.QueryID
	}
	for _, s := range v.sinks {
		if before == "" && s.Marker != nil {
			before = s.Marker.QueryID
		}
	}
	return v.restart(v.self.NewQueryID, before, fmt.Sprintf(why, args...))
}
