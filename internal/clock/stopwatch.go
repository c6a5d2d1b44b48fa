package clock

import "time"

// Stopwatch measures how long something takes by a clock that may be set while
// it runs. Whoever waits looks again and again; what passed from one look to the
// next counts as nothing where the clock was set back, and as stepMax at most
// where it was set forward. One goroutine uses it.
type Stopwatch struct {
	clk     Clock
	stepMax time.Duration
	last    time.Time
	passed  time.Duration
}

// NewStopwatch starts one. A longer time than stepMax between two looks is
// counted as stepMax.
func NewStopwatch(clk Clock, stepMax time.Duration) *Stopwatch {
	return &Stopwatch{clk: clk, stepMax: stepMax, last: clk.Now()}
}

// Passed is the time since the start or the last Reset.
func (s *Stopwatch) Passed() time.Duration {
	now := s.clk.Now()
	s.passed += min(max(now.Sub(s.last), 0), s.stepMax)
	s.last = now
	return s.passed
}

// Reset starts anew.
func (s *Stopwatch) Reset() { s.last, s.passed = s.clk.Now(), 0 }
