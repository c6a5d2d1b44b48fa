// Package conformance runs the suites that every implementation of an interface
// passes, and lists what each passed and skipped, with the reason. It is for
// tests.
package conformance

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
)

// EnvReport names a file to which each suite adds its list: go test shows what
// a passing test prints only under -v.
const EnvReport = "WEIR_CONFORMANCE"

// Case is one thing that every implementation does.
type Case struct {
	Name string
	Run  func(t *testing.T)
}

// reasons has why a case was skipped, by the name of its test.
var reasons sync.Map

// Skip skips the case. Without a reason nothing is skipped.
func Skip(t testing.TB, reason string) {
	t.Helper()
	if strings.TrimSpace(reason) == "" {
		t.Fatal("skipped without a reason")
	}
	reasons.Store(t.Name(), reason)
	t.Skip(reason)
}

// Run runs a suite on an implementation and lists the outcome.
func Run(t *testing.T, suite, implementation string, cases []Case) {
	t.Helper()
	var lines []string
	passed := 0
	t.Cleanup(func() {
		head := fmt.Sprintf("%s on %s: %d of %d passed", suite, implementation, passed, len(cases))
		report(t, head+"\n"+strings.Join(lines, ""))
	})
	for _, c := range cases {
		outcome := "not run"
		t.Run(c.Name, func(t *testing.T) {
			defer func() {
				switch {
				case t.Failed():
					outcome = "FAILED"
				case t.Skipped():
					reason, ok := reasons.Load(t.Name())
					if !ok {
						t.Error("skipped without a reason: use conformance.Skip")
					}
					outcome = fmt.Sprintf("skipped: %v", reason)
				default:
					outcome = "passed"
				}
			}()
			c.Run(t)
		})
		if outcome == "passed" {
			passed++
		}
		lines = append(lines, fmt.Sprintf("  %-62s %s\n", c.Name, outcome))
	}
}

func report(t *testing.T, text string) {
	t.Log(text)
	path := os.Getenv(EnvReport)
	if path == "" {
		return
	}
	// Packages are tested by several processes; a line in one write stays whole.
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // the path is the tester's own
	if err != nil {
		t.Errorf("%s: %v", EnvReport, err)
		return
	}
	defer f.Close()
	if _, err := f.WriteString(text + "\n"); err != nil {
		t.Errorf("%s: %v", EnvReport, err)
	}
}
