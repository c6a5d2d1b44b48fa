package prove

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
)

// quick is a scenario that needs nothing but a broker.
func quick(name string, do func()) Scenario {
	return Scenario{Name: name, Group: "quick", Steps: []Step{{"work", func(context.Context, *Env) error { do(); return nil }}},
		Expect: func(*Env) []Check { return nil }}
}

func TestScenariosSideBySideComeOutInTheOrderOfTheList(t *testing.T) {
	var running, together atomic.Int64
	both := make(chan struct{})
	meet := func() {
		if running.Add(1) == 2 {
			close(both)
		}
		<-both
		running.Add(-1)
	}
	alone := quick("alone", func() { together.Store(running.Load()) })
	alone.Alone = true
	rep := prove(t, fakeExact, Options{Jobs: 2, Names: []string{everything}, Scenarios: []Scenario{quick("a", meet), quick("b", meet), alone, quick("c", func() {})}})
	var names []string
	for _, r := range rep.Scenarios {
		names = append(names, r.Name)
	}
	if want := []string{"a", "b", "alone", "c"}; !slices.Equal(names, want) || rep.Outcome() != Proved {
		t.Errorf("%v, %s; want %v", names, rep.Outcome(), want)
	}
	if together.Load() != 0 {
		t.Error("others ran beside the scenario that must be alone")
	}
}

func TestResultsOfAnotherBuildOrBrokerAreDoneAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.jsonl")
	open := func(build string) *results {
		r, err := openResults(path, build, true)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.close)
		return r
	}
	if err := open("one").add(&Result{Name: "a", Outcome: Proved, BrokerKind: BrokerEmbedded}); err != nil {
		t.Fatal(err)
	}
	if open("one").done("a", 0, BrokerEmbedded) == nil {
		t.Error("the same build does it again")
	}
	if open("two").done("a", 0, BrokerEmbedded) != nil || open("one").done("a", 0, BrokerScript) != nil {
		t.Error("a result of another build or broker stands")
	}
}

func TestADigestIsOfTheContent(t *testing.T) {
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	for path, text := range map[string]string{a: "x", b: "y"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	first, err := Digest(a)
	second, err2 := Digest(b)
	if err != nil || err2 != nil || first == second {
		t.Errorf("%q, %q: %v, %v", first, second, err, err2)
	}
}
