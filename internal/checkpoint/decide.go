package checkpoint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/marker"
)

// Decide says what a start has to do, from what the checkpoint, the sinks and
// the source say. It is a pure function: it reads nothing, writes nothing and
// looks at no clock but Self.Now.
//
// The order of the questions is the order of the sections below, and the first
// that stops is the answer:
//
//  1. is another run in possession (Fenced)
//  2. does the checkpoint contradict itself (Corrupt)
//  3. has a sink lost what it had (SinkRewound)
//  4. do all speak of one lineage (Corrupt, Restart)
//  5. the main sink's marker against the logs, then the side sinks against the
//     main one
//  6. may a lost checkpoint be adopted (the policy)
//  7. does the source still fit, is anybody else on the same partitions
//
// What is delivered is what the main sink's marker says; no outcome that goes
// on starts anywhere else.
func Decide(f Facts, sinks []SinkFacts, src SourceFacts, policy OnLostCheckpoint, self Self) Decision {
	v := newView(f, sinks, src, policy, self)
	for _, ask := range []func() (Decision, bool){v.fenced, v.corrupt, v.rewound} {
		if d, stop := ask(); stop {
			return v.complete(d)
		}
	}
	d := v.decide()
	if self.Running != nil && (d.Outcome == OutcomeFresh || d.Outcome == OutcomeAdopt || d.Outcome == OutcomeRestart) {
		d = v.stop(OutcomeFenced, d.Sink, hintFenced, "what checkpoint and sinks say does not continue the running instance (%s: %s); a running instance never adopts", d.Outcome, d.Reason)
	}
	return v.complete(v.checkPartitions(v.checkSource(d)))
}

const (
	hintFenced = "leave the query to the other run; if there is none, start this one again"
	hintRewind = "restore the table to its newest snapshot; or accept its present contents with: weir checkpoint adopt --from-snapshot; or start over with: weir checkpoint reset"
)

// view is the facts of one decision in the form that the questions need.
type view struct {
	f       Facts
	src     SourceFacts
	policy  OnLostCheckpoint
	self    Self
	sinks   []SinkFacts // in order of name
	main    *SinkFacts
	mains   int
	sides   []*SinkFacts
	pending *Plan // the plan without a commit, if any
	// lineage is the checkpoint's query id, empty where there is none.
	lineage string
	// joins are the sinks that get the main sink's batch and position.
	joins map[string]bool
}

func newView(f Facts, sinks []SinkFacts, src SourceFacts, policy OnLostCheckpoint, self Self) *view {
	v := &view{f: f, src: src, policy: policy, self: self, sinks: slices.Clone(sinks), joins: map[string]bool{}}
	if policy == "" {
		v.policy = Adopt
	}
	slices.SortFunc(v.sinks, func(a, b SinkFacts) int { return strings.Compare(a.Name, b.Name) })
	for i := range v.sinks {
		s := &v.sinks[i]
		if !s.Readable {
			s.Marker = nil
		}
		if s.Main {
			v.main = s
			v.mains++
		} else {
			v.sides = append(v.sides, s)
		}
	}
	if f.Plan != nil && (f.Commit == nil || f.Plan.BatchID > f.Commit.BatchID) {
		v.pending = f.Plan
	}
	switch {
	case f.Metadata != nil:
		v.lineage = f.Metadata.QueryID
	case f.Plan != nil:
		v.lineage = f.Plan.QueryID
	case f.Commit != nil:
		v.lineage = f.Commit.QueryID
	}
	return v
}

// said is the sink's marker; of an unreadable one, what was written down.
func (s *SinkFacts) said() *marker.Marker {
	if s.Readable {
		return s.Marker
	}
	return s.Record
}

// committed is the batch id of the newest commits/N, -1 without one.
func (v *view) committed() int64 {
	if v.f.Commit == nil {
		return -1
	}
	return v.f.Commit.BatchID
}

// lost: no checkpoint, or one that has lost the file that says whose it is.
func (v *view) lost() bool { return !v.f.Exists || v.f.Metadata == nil }

func (v *view) unreadable() []string {
	var out []string
	for _, s := range v.sinks {
		if !s.Readable {
			out = append(out, s.Name)
		}
	}
	return out
}

func (v *view) stop(o Outcome, sink, hint, reason string, args ...any) Decision {
	return Decision{Outcome: o, Sink: sink, Hint: hint, Reason: fmt.Sprintf("query %s: ", v.self.QueryName) + fmt.Sprintf(reason, args...)}
}

// 1. Another run in possession.
func (v *view) fenced() (Decision, bool) {
	run := v.self.Running
	var alive Decision
	for _, s := range v.sinks {
		m := s.said()
		if m == nil {
			continue
		}
		if run != nil {
			if m.Epoch.Newer(*run) || (m.Epoch.Number == run.Number && m.Epoch.Nonce != run.Nonce) {
				return v.stop(OutcomeFenced, s.Name, hintFenced, "sink %s was claimed by epoch %s (instance %s), this run is epoch %s", s.Name, m.Epoch, m.Instance, run), true
			}
			if v.lineage != "" && m.QueryID != v.lineage {
				return v.stop(OutcomeFenced, s.Name, hintFenced, "sink %s now holds query id %s, this run is %s", s.Name, m.QueryID, v.lineage), true
			}
			continue
		}
		if left := v.leaseLeft(s.Name, m); left > alive.RetryAfter {
			alive = v.stop(OutcomeFenced, s.Name, "stop the other instance; or wait out its lease; or start with --take-over, which fences it",
				"instance %s wrote to sink %s %s ago and may be alive (this is instance %s)", m.Instance, s.Name, v.self.Now.Sub(m.RenewedAt), v.self.InstanceID)
			alive.RetryAfter = left
		}
	}
	if alive.RetryAfter > 0 {
		return alive, true
	}
	if run != nil && v.pending != nil && v.pending.Epoch.Newer(*run) {
		return v.stop(OutcomeFenced, "", hintFenced, "batch %d was planned by epoch %s, this run is epoch %s", v.pending.BatchID, v.pending.Epoch, run), true
	}
	return Decision{}, false
}

// leaseLeft is how long another instance's marker still counts as alive. A
// renewal in the future (clocks differ, or one was set back) counts as one just
// now; once a whole lease has been waited without another, it counts no more.
func (v *view) leaseLeft(sink string, m *marker.Marker) (left timeLeft) {
	if v.self.TakeOver || v.self.Lease <= 0 || m.Instance == "" || m.Instance == v.self.InstanceID {
		return 0
	}
	if before, ok := v.self.Waited[sink]; ok && before.Equal(m.RenewedAt) {
		return 0
	}
	return min(v.self.Lease, v.self.Lease-v.self.Now.Sub(m.RenewedAt))
}

// 2. Contradictions within the checkpoint.
func (v *view) corrupt() (Decision, bool) {
	stop := func(format string, args ...any) (Decision, bool) {
		return v.stop(OutcomeCorrupt, "", hintMoveAway, "the checkpoint is corrupt: "+format, args...), true
	}
	c, p := v.f.Commit, v.f.Plan
	switch {
	case v.mains != 1:
		return v.stop(OutcomeCorrupt, "", "name exactly one main sink", "%d main sinks", v.mains), true
	case v.f.Corrupt != "":
		return stop("%s", v.f.Corrupt)
	case c != nil && c.Marker == nil:
		return stop("commits/%d has no marker", c.BatchID)
	case c != nil && (p == nil || p.BatchID < c.BatchID):
		return stop("commits/%d is there, offsets/%d is not", c.BatchID, c.BatchID)
	case c != nil && v.pending != nil && !v.pending.Adopted && v.pending.BatchID != c.BatchID+1:
		return stop("offsets/%d follows commits/%d", v.pending.BatchID, c.BatchID)
	}
	for _, id := range v.logLineages() {
		if id != v.lineage {
			return stop("files of query id %s and of %s", v.lineage, id)
		}
	}
	return Decision{}, false
}

func (v *view) logLineages() []string {
	var out []string
	if v.f.Plan != nil {
		out = append(out, v.f.Plan.QueryID)
	}
	if v.f.Commit != nil {
		out = append(out, v.f.Commit.QueryID, v.f.Commit.Marker.QueryID)
	}
	return out
}

// 3. Sinks that lost what they had.
func (v *view) rewound() (Decision, bool) {
	for _, s := range v.sinks {
		if !s.Readable {
			continue
		}
		if s.Rewound != "" {
			return v.stop(OutcomeSinkRewound, s.Name, hintRewind, "sink %s was rewound: %s", s.Name, s.Rewound), true
		}
		if v.f.Metadata == nil {
			continue
		}
		id, recorded := v.f.Metadata.Sinks[s.Name]
		switch {
		case !recorded:
		case !s.Exists:
			return v.stop(OutcomeSinkRewound, s.Name, hintRewind, "sink %s (table %s) does not exist any more; the checkpoint says that batch %d is in it", s.Name, id, v.committed()), true
		case id != "" && s.Identity != id:
			return v.stop(OutcomeSinkRewound, s.Name, hintRewind, "sink %s is table %s; the checkpoint was written for table %s: it was dropped and created again", s.Name, s.Identity, id), true
		case s.Marker == nil:
			return v.stop(OutcomeSinkRewound, s.Name, hintRewind, "sink %s holds no marker of the query any more; the checkpoint says that batch %d is in it", s.Name, v.committed()), true
		}
	}
	return Decision{}, false
}

// 7a. The source, for every outcome that will read from a position.
func (v *view) checkSource(d Decision) Decision {
	if d.Outcome.Stops() || d.Outcome == OutcomeRestart || len(v.src.Changed) == 0 {
		return d
	}
	at := "its starting offsets"
	if d.Marker != nil {
		at = d.Marker.Position.String()
	}
	return v.stop(OutcomeSourceChanged, "",
		"bring the source back as it was; or accept the loss with failOnDataLoss: false (only where records expired); or start over with: weir checkpoint reset",
		"the source does not fit the position %s any more: %s", at, strings.Join(v.src.Changed, "; "))
}

// 7b. Other queries on the same partitions of the same table.
func (v *view) checkPartitions(d Decision) Decision {
	if d.Outcome.Stops() {
		return d
	}
	for _, s := range v.sinks {
		assigned := v.src.Assigned
		switch {
		case d.Outcome == OutcomeFresh, d.Outcome == OutcomeRestart:
		case v.joins[s.Name] && d.Marker != nil:
			assigned = d.Marker.Position.Vector()
		default:
			continue
		}
		if shared := Overlap(s.Others, assigned, v.self.QueryName); len(shared) > 0 {
			o := shared[0]
			return v.stop(OutcomeOverlap, s.Name,
				fmt.Sprintf("if this is query %s under a new name, give it its old name back; if it is to take the partition over, hand it over first; else leave the partition out, or write to another table", o.Query),
				"sink %s is already fed from topic %s partition %d by query %s (up to offset %d; %d partitions in all): rows would be there twice",
				s.Name, o.Topic, o.Partition, o.Query, o.NextOffset, len(shared))
		}
		if d.Outcome == OutcomeFresh || d.Outcome == OutcomeRestart {
			d.HandedOver = handedOver(d.HandedOver, s.Others, assigned, v.self.QueryName)
		}
	}
	return d
}

// complete fills in what every decision carries.
func (v *view) complete(d Decision) Decision {
	if d.MustEnd == nil {
		d.MustEndBatchID = -1
	}
	d.NextEpoch = v.newestEpoch() + 1
	if d.Outcome.Stops() {
		d.QueryID = v.lineage
		return d
	}
	if d.Marker != nil {
		d.QueryID, d.Predecessor = d.Marker.QueryID, d.Marker.Predecessor
		v.checkState(&d)
	}
	d.Claims = v.claims(d)
	return d
}

func (v *view) newestEpoch() int64 {
	var n int64
	for _, s := range v.sinks {
		if m := s.said(); m != nil {
			n = max(n, m.Epoch.Number)
		}
	}
	if v.f.Metadata != nil {
		n = max(n, v.f.Metadata.Epoch.Number)
	}
	if v.f.Plan != nil {
		n = max(n, v.f.Plan.Epoch.Number)
	}
	if v.f.Commit != nil && v.f.Commit.Marker != nil {
		n = max(n, v.f.Commit.Marker.Epoch.Number)
	}
	return n
}

// checkState: state can be rebuilt at any time, so what is not known to be
// there is rebuilt.
func (v *view) checkState(d *Decision) {
	for _, file := range d.Marker.State {
		if v.f.HasState == nil || !v.f.HasState(file) {
			d.RebuildState = true
			d.RebuildWhy = fmt.Sprintf("state file %s of operator %s (batch %d) is missing or has another checksum", file.Path, file.Operator, d.Marker.BatchID)
			return
		}
	}
}

func (v *view) claims(d Decision) map[string]*marker.Marker {
	out := map[string]*marker.Marker{}
	for _, s := range v.sinks {
		var m marker.Marker
		switch {
		case d.Outcome == OutcomeFresh, d.Outcome == OutcomeRestart:
			m = marker.Marker{BatchID: d.NextBatchID - 1, Watermark: marker.Watermark{Micros: marker.MinTime}}
			if d.HandedOver != nil {
				m.Position = batch.Position{Kafka: d.HandedOver.Clone()}
			}
		case s.Marker != nil && !v.joins[s.Name]:
			m = copyMarker(s.Marker)
		case d.Marker != nil:
			m = copyMarker(d.Marker)
		case d.Plan != nil: // an unreadable main sink before its first commit
			m = marker.Marker{BatchID: d.Plan.BatchID - 1, Position: d.Plan.Start.Clone(), Watermark: d.Plan.Watermark}
		default:
			m = marker.Marker{BatchID: d.NextBatchID - 1, Watermark: marker.Watermark{Micros: marker.MinTime}}
		}
		m.Format, m.Kind, m.Claim = marker.Format, marker.KindStream, true
		m.QueryName, m.QueryID, m.Predecessor = v.self.QueryName, d.QueryID, d.Predecessor
		out[s.Name] = &m
	}
	return out
}

func copyMarker(m *marker.Marker) marker.Marker {
	out := *m
	out.Position = m.Position.Clone()
	out.State = slices.Clone(m.State)
	return out
}
