package clock

import (
	"context"
	"testing"
	"time"
)

// hand is a clock that is set by hand.
type hand struct{ now time.Time }

func (h *hand) Now() time.Time                             { return h.now }
func (h *hand) Sleep(context.Context, time.Duration) error { return nil }

func TestAStopwatchGoesOnWhereItsClockIsSet(t *testing.T) {
	h := &hand{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	w := NewStopwatch(h, 10*time.Second)
	for _, step := range []struct{ by, want time.Duration }{
		{time.Second, time.Second},
		{-time.Hour, time.Second},       // set back
		{time.Second, 2 * time.Second},  // and on from there
		{time.Hour, 12 * time.Second},   // set forward
		{time.Second, 13 * time.Second}, // and on
	} {
		h.now = h.now.Add(step.by)
		if got := w.Passed(); got != step.want {
			t.Errorf("after a step of %s: %s, want %s", step.by, got, step.want)
		}
	}
	w.Reset()
	h.now = h.now.Add(time.Second)
	if got := w.Passed(); got != time.Second {
		t.Errorf("a second after a reset: %s", got)
	}
}
