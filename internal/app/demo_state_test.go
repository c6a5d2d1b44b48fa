package app

import (
	"testing"

	"github.com/weirlake/weir/internal/failure"
)

func TestADemoGoesOnToMoreEventsAndNotBackToFewer(t *testing.T) {
	a := App{}
	a.fillOptions()
	cfg := DemoConfig{Data: t.TempDir(), Events: 100, Seed: 1, Delivery: "at-least-once"}
	first, err := a.loadDemoState(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		events int64
		fine   bool
	}{{100, true}, {99, false}, {150, true}, {100, false}, {0, true}, {149, false}, {150, true}} {
		cfg.Events = c.events
		st, err := a.loadDemoState(cfg)
		if (err == nil) != c.fine || (err != nil && !failure.Is(err, failure.Config)) {
			t.Errorf("--events %d: %v", c.events, err)
		}
		if err == nil && !st.Start.Equal(first.Start) {
			t.Errorf("--events %d: the stream begins at another time", c.events)
		}
	}
	cfg.Seed = 2
	if _, err := a.loadDemoState(cfg); !failure.Is(err, failure.Config) {
		t.Errorf("another seed: %v", err)
	}
}
