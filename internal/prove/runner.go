package prove

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
)

// runAll runs the scenarios, Jobs of them side by side, and puts the results
// into the report in the order of the list. The error is for what kept one of
// them from running.
func runAll(ctx context.Context, o Options, scenarios []Scenario, brokers *brokers, results *results, report *Report) error {
	total := len(scenarios) * o.Repeat
	out := make([]*Result, total)
	// Held for reading by each scenario, for writing by one that must be alone.
	var alone sync.RWMutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(o.Jobs)
	for n := range total {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			s, repeat := &scenarios[n%len(scenarios)], n/len(scenarios)
			if s.Alone {
				alone.Lock()
				defer alone.Unlock()
			} else {
				alone.RLock()
				defer alone.RUnlock()
			}
			label := fmt.Sprintf("[%d/%d] %s", n+1, total, s.Name)
			if old := results.done(s.Name, repeat, brokers.kindOf(s)); old != nil {
				fmt.Fprintf(o.Progress, "%s: %s, by an earlier run\n", label, old.Outcome)
				out[n] = old
				return nil
			}
			b, err := brokers.of(ctx, s)
			if err != nil {
				return err
			}
			res := runScenario(ctx, o, b, s, repeat, label)
			if ctx.Err() != nil {
				return ctx.Err() // stopped: not a result
			}
			out[n] = res
			return results.add(res)
		})
	}
	err := g.Wait()
	report.Scenarios = slices.DeleteFunc(out, func(r *Result) bool { return r == nil })
	return err
}

// Digest names the content of a binary.
func Digest(binary string) (string, error) {
	f, err := os.Open(binary)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// lines lets scenarios that run side by side write whole lines.
type lines struct {
	mu sync.Mutex
	w  io.Writer
}

// Write implements io.Writer; each call is a whole line.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
