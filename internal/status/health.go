package status

import (
	"fmt"
	"time"
)

// Codes of a Reason; the page has a paragraph of advice for each.
const (
	CodeFailed      = "failed"
	CodeStarting    = "starting"
	CodeStalled     = "stalled"
	CodeUnreachable = "unreachable"
	CodeRetrying    = "retrying"
)

// Codes of warnings: red, and no fault of the stream.
const (
	CodeCheck             = "check-failed"
	CodeJob               = "job-failed"
	CodeModel             = "model-failed"
	CodeModelTest         = "model-test-failed"
	CodeCare              = "care-failed"
	CodeProofViolated     = "proof-violated"
	CodeProofInconclusive = "proof-inconclusive"
)

// warningCodes are those that warn gives.
var warningCodes = []string{CodeCheck, CodeJob, CodeModel, CodeModelTest, CodeCare, CodeProofViolated, CodeProofInconclusive}

// warn says what else is red.
func warn(tables []Table, j *Jobs, p *Proof) []Reason {
	out := []Reason{}
	for _, t := range tables {
		if t.Care != nil && t.Care.Error != "" {
			out = append(out, Reason{Subject: t.Name, Code: CodeCare, Text: "table " + t.Name + ": its care failed: " + t.Care.Error})
		}
	}
	if j != nil {
		out = append(out, j.warnings()...)
	}
	switch {
	case p == nil:
	case p.Violated > 0:
		out = append(out, Reason{Code: CodeProofViolated, Text: fmt.Sprintf("the last proof found %d of %d claims violated", p.Violated, p.Scenarios)})
	case p.Inconclusive > 0:
		out = append(out, Reason{Code: CodeProofInconclusive, Text: fmt.Sprintf("%d of %d scenarios of the last proof are inconclusive", p.Inconclusive, p.Scenarios)})
	}
	return out
}

// Rules of readiness.
const (
	// stallTriggers and stallGrace: a query that has something to read and has
	// committed nothing for so many trigger intervals and so long on top is
	// stalled.
	stallTriggers = 3
	stallGrace    = 30 * time.Second
	// unreachableGrace is how long the lag may be unknown before that counts.
	unreachableGrace = 30 * time.Second
)

// stallLimit is how long a query may have lag without a commit.
func stallLimit(trigger time.Duration) time.Duration { return stallTriggers*trigger + stallGrace }

// judge says whether the pipeline is live and ready. It looks at nothing but
// its arguments: failing is how long the lag could not be looked up, and why.
func judge(queries []Query, ingests []Ingest, failing time.Duration, why error) Health {
	h := Health{Live: true, Ready: true, Reasons: []Reason{}}
	bad := func(r Reason) {
		h.Reasons = append(h.Reasons, r)
		h.Ready = false
		h.Live = h.Live && !r.Fatal
	}
	for _, in := range ingests {
		switch in.State {
		case Failed:
			bad(Reason{Subject: in.Name, Code: CodeFailed, Fatal: true, Text: "ingestion " + in.Name + " has failed: " + in.Error})
		case Starting:
			bad(Reason{Subject: in.Name, Code: CodeStarting, Text: "ingestion " + in.Name + " has not started yet"})
		}
	}
	for _, q := range queries {
		limit := stallLimit(seconds(q.TriggerSeconds))
		switch {
		case q.State == Failed:
			bad(Reason{Subject: q.Name, Code: CodeFailed, Fatal: true, Text: "query " + q.Name + " has failed: " + q.Error})
		case q.State == Retrying:
			bad(Reason{Subject: q.Name, Code: CodeRetrying, Text: "query " + q.Name + " waits for the store that it writes to: " + q.Error})
		case q.State == Starting:
			bad(Reason{Subject: q.Name, Code: CodeStarting, Text: "query " + q.Name + " is starting: it has not claimed its tables yet"})
		case q.State == Running && seconds(q.StalledSeconds) > limit:
			bad(Reason{Subject: q.Name, Code: CodeStalled, Text: fmt.Sprintf(
				"query %s has committed nothing for %s although %s offsets are waiting (limit %s)",
				q.Name, ago(seconds(q.StalledSeconds)), count(*q.LagOffsets), ago(limit))})
		}
	}
	if why != nil && failing > unreachableGrace {
		bad(Reason{Code: CodeUnreachable, Text: fmt.Sprintf("the lag has been unknown for %s: %v", ago(failing), why)})
	}
	return h
}

func seconds(f float64) time.Duration { return time.Duration(f * float64(time.Second)) }
