package prove

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"path"
	"slices"
	"strings"

	"github.com/weirlake/weir/internal/failure"
)

// Outcomes of a scenario.
const (
	Proved       = "proved"
	Violated     = "violated"
	Inconclusive = "inconclusive"
)

// Scenario is one claim and how it is tried.
type Scenario struct {
	// Name is unique; Group selects many at once.
	Name, Group string
	// Claim is one sentence: what holds, whatever is done here.
	Claim string
	// Place is where the scenario stands in a matrix of many alike.
	Place *Place
	// RealKafka asks for a real Apache Kafka where one can be started, although
	// the others run on the embedded broker.
	RealKafka bool
	// Unaimed kills come at moments that no step of the protocol was reported for:
	// they count as landed only where the scenario itself has seen a batch under way
	// (landedKey).
	Unaimed bool
	// Alone keeps other scenarios from running at the same time: its load, or
	// the moments at which it strikes, would not be what they are.
	Alone bool
	// Differs says why the tables do not equal Kafka in the end, where that is the
	// claim: then the standing assertions about tables are not made.
	Differs string
	// Steps are done in order. The first that fails ends the scenario.
	Steps []Step
	// Guard says why nothing was shown, empty where the fault landed. It is
	// asked after the step named GuardAfter, and again at the end.
	Guard      func(*Env) string
	GuardAfter string
	// Expect is what must be observed at the end, in the order of the report.
	Expect func(*Env) []Check
}

// Place is a field of a matrix: a step of a protocol in a row, what it is done
// to in a column.
type Place struct {
	Matrix string `json:"matrix"`
	Row    string `json:"row"`
	Column string `json:"column"`
}

// Step is one thing that is done.
type Step struct {
	Name string
	Do   func(context.Context, *Env) error
}

// Check is one figure that must be as the scenario says.
type Check struct {
	Key  string `json:"key"`
	Text string `json:"text"`
	Want any    `json:"want"`
}

// violation is an error that refutes the claim, unlike one of the set-up.
type violation struct{ reason string }

func (v *violation) Error() string { return v.reason }

func violated(format string, args ...any) error { return &violation{fmt.Sprintf(format, args...)} }

// landedKey is observed by scenarios that look themselves whether a kill met a
// batch under way.
const landedKey = "kills_that_met_a_batch_under_way"

// landed is how many of a scenario's kills count as landed.
func (s *Scenario) landed(e *Env) int {
	if !s.Unaimed {
		return e.kills
	}
	n, _ := e.observed[landedKey].(int64)
	return int(n)
}

// Result is what became of one scenario. Its JSON is part of the public contract.
type Result struct {
	Name     string         `json:"name"`
	Group    string         `json:"group"`
	Claim    string         `json:"claim"`
	Place    *Place         `json:"place,omitempty"`
	Outcome  string         `json:"outcome"`
	Reason   string         `json:"reason,omitempty"`
	Observed map[string]any `json:"observed"`
	Expected map[string]any `json:"expected"`
	Checks   []Check        `json:"checks,omitempty"`
	Kills    int            `json:"kills"`
	// KillsLanded are those that met a named step, or a batch that was planned and
	// not committed.
	KillsLanded int `json:"kills_landed"`
	// RecoverySeconds is, per kill, from the SIGKILL to the first new commit
	// with rows that an independent reader could see.
	RecoverySeconds []float64 `json:"recovery_seconds"`
	ElapsedSeconds  float64   `json:"elapsed_seconds"`
	Seed            uint64    `json:"seed"`
	Repeat          int       `json:"repeat,omitempty"`
	Broker          string    `json:"broker"`
	BrokerKind      string    `json:"broker_kind"`
	// Servers are further ones that took part, with their versions.
	Servers []string `json:"servers,omitempty"`
	// Build is the digest of the binary that was tested.
	Build string `json:"build"`
	// Remarks say where the result ends.
	Remarks []string `json:"remarks,omitempty"`
	// Folder keeps the evidence where the scenario was not proved.
	Folder   string  `json:"folder,omitempty"`
	Timeline []Event `json:"timeline,omitempty"`
}

// Event is one point of a scenario's timeline, for the report.
type Event struct {
	Seconds float64 `json:"seconds"`
	Kind    string  `json:"kind"` // commit, kill, start
	Lane    string  `json:"lane"` // a table, or the process
	Rows    int64   `json:"rows,omitempty"`
	Text    string  `json:"text,omitempty"`
}

// Report is what a run of scenarios came to.
type Report struct {
	Scenarios []*Result `json:"scenarios"`
	// Kills, KillsLanded and Recovery are over all scenarios.
	Kills       int      `json:"kills"`
	KillsLanded int      `json:"kills_landed"`
	Recovery    Recovery `json:"recovery"`
	About       About    `json:"about"`
}

// Recovery is how long it took, after a SIGKILL, until an independent reader
// saw something new.
type Recovery struct {
	// Count is of how many kills it was measured: a kill after which nothing was
	// left to do has no figure.
	Count      int     `json:"count"`
	P50Seconds float64 `json:"p50_seconds"`
	P95Seconds float64 `json:"p95_seconds"`
	MaxSeconds float64 `json:"max_seconds"`
}

// sum fills in what is over all scenarios.
func (r *Report) sum() {
	var all []float64
	r.Kills, r.KillsLanded = 0, 0
	for _, s := range r.Scenarios {
		r.Kills += s.Kills
		r.KillsLanded += s.KillsLanded
		all = append(all, s.RecoverySeconds...)
	}
	slices.Sort(all)
	r.Recovery = Recovery{Count: len(all), P50Seconds: percentile(all, 50), P95Seconds: percentile(all, 95), MaxSeconds: percentile(all, 100)}
}

// percentile of sorted values, by nearest rank; 0 of none.
func percentile(sorted []float64, p int) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max((len(sorted)*p+99)/100, 1)-1]
}

// Outcome is the whole report's: a violation outranks what is inconclusive.
func (r *Report) Outcome() string {
	out := Proved
	for _, s := range r.Scenarios {
		switch s.Outcome {
		case Violated:
			return Violated
		case Inconclusive:
			out = Inconclusive
		}
	}
	return out
}

// Err is the classified error of the report's outcome, nil where all is proved.
func (r *Report) Err() error {
	var n, bad int
	for _, s := range r.Scenarios {
		n++
		if s.Outcome == r.Outcome() {
			bad++
		}
	}
	switch r.Outcome() {
	case Violated:
		return failure.New(failure.Mismatch, "%d of %d scenarios violated their claim", bad, n)
	case Inconclusive:
		return failure.New(failure.Inconclusive, "%d of %d scenarios are inconclusive", bad, n)
	}
	return nil
}

// judge compares what was observed with what was expected.
func judge(checks []Check, observed map[string]any) (outcome, reason string) {
	var wrong []string
	for _, c := range checks {
		if got, ok := observed[c.Key]; !ok {
			return Inconclusive, fmt.Sprintf("%s was not observed", c.Key)
		} else if fmt.Sprint(got) != fmt.Sprint(c.Want) {
			wrong = append(wrong, fmt.Sprintf("%s is %v, must be %v", c.Key, got, c.Want))
		}
	}
	if len(wrong) > 0 {
		return Violated, strings.Join(wrong, "; ")
	}
	return Proved, ""
}

// perform runs the steps and concludes.
func (s *Scenario) perform(ctx context.Context, e *Env) (outcome, reason string, checks []Check) {
	for _, step := range s.Steps {
		e.say("%s", step.Name)
		if err := step.Do(ctx, e); err != nil {
			var v *violation
			if errors.As(err, &v) {
				return Violated, fmt.Sprintf("%s: %s", step.Name, v.reason), nil
			}
			return Inconclusive, fmt.Sprintf("%s: %v", step.Name, err), nil
		}
		if s.Guard != nil && step.Name == s.GuardAfter {
			if why := s.Guard(e); why != "" {
				return Inconclusive, why, nil
			}
		}
	}
	if s.Guard != nil {
		if why := s.Guard(e); why != "" {
			return Inconclusive, why, nil
		}
	}
	stands, err := e.stand(ctx, s)
	if err != nil {
		return Inconclusive, fmt.Sprintf("standing assertions: %v", err), nil
	}
	checks = append(s.Expect(e), Check{standingKey, "standing assertions that are broken", standingNone})
	outcome, reason = judge(checks, e.observed)
	if outcome == Proved && stands.stale != "" {
		return Inconclusive, stands.stale, checks
	}
	return outcome, reason, checks
}

// everything is the name that stands for every scenario.
const everything = "all"

// Select picks scenarios by name, group, or pattern (path.Match); none is all,
// and so is "all". The order is that of the list.
func Select(all []Scenario, names []string) ([]Scenario, error) {
	if len(names) == 0 || slices.Contains(names, everything) {
		return all, nil
	}
	taken := map[int]bool{}
	for _, name := range names {
		found := false
		for i, s := range all {
			ok, err := path.Match(name, s.Name)
			if err != nil {
				return nil, failure.Wrap(failure.Config, err, "scenario %q", name)
			}
			if ok || s.Group == name {
				taken[i], found = true, true
			}
		}
		if !found {
			return nil, failure.New(failure.Config, "no scenario or group %q", name).WithHint("weir prove --list")
		}
	}
	var out []Scenario
	for i, s := range all {
		if taken[i] {
			out = append(out, s)
		}
	}
	return out, nil
}

// Groups lists the groups in the order of the list.
func Groups(all []Scenario) []string {
	var out []string
	for _, s := range all {
		if !slices.Contains(out, s.Group) {
			out = append(out, s.Group)
		}
	}
	return out
}

// generator is the scenario's own random source: the same seed, name and
// repetition give the same one.
func generator(seed uint64, name string, repeat int) *rand.Rand {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s/%d", name, repeat)
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}
