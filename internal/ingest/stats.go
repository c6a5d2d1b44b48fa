package ingest

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/weirlake/weir/internal/ingest/sse"
)

// Stats is what one run did. Received = Canaries + Published + DeadLetters +
// Dropped + what is in flight.
type Stats struct {
	Received int64 `json:"received"`
	Canaries int64 `json:"canaries"`
	// Published events are acknowledged by Kafka (committed, in exactly-once mode).
	Published int64 `json:"published"`
	// DeadLetters are acknowledged as well; Violations are the same by reason,
	// counted when they are found.
	DeadLetters int64            `json:"dead_letters"`
	Violations  map[string]int64 `json:"violations"`
	// Dropped are events that a resume sent again.
	Dropped int64 `json:"dropped"`
	// InFlight events are read and not yet acknowledged.
	InFlight int64 `json:"in_flight"`
	// Overflow counts events forgotten too early to be dropped for sure.
	Overflow     int64 `json:"window_overflow"`
	Saves        int64 `json:"saves"`
	Transactions int64 `json:"transactions"`
	// LagMillis is the age of the newest position when it was received: the
	// time of receipt less the time in the event's id. 0 without such an id.
	LagMillis int64     `json:"lag_millis"`
	Stream    sse.Stats `json:"stream"`
}

// Reconnects is the number of connections after the first.
func (s Stats) Reconnects() int64 { return max(s.Stream.Connects-1, 0) }

type counters struct {
	received, canaries, published, dead, dropped, saves, txns, lag, overflow atomic.Int64

	mu         sync.Mutex
	violations map[string]int64
}

func (c *counters) violation(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.violations == nil {
		c.violations = map[string]int64{}
	}
	c.violations[reason]++
}

func (c *counters) snapshot() Stats {
	c.mu.Lock()
	v := maps.Clone(c.violations)
	c.mu.Unlock()
	if v == nil {
		v = map[string]int64{}
	}
	s := Stats{
		Received: c.received.Load(), Canaries: c.canaries.Load(), Published: c.published.Load(), DeadLetters: c.dead.Load(),
		Violations: v, Dropped: c.dropped.Load(), Saves: c.saves.Load(), Transactions: c.txns.Load(),
		LagMillis: c.lag.Load(), Overflow: c.overflow.Load(),
	}
	s.InFlight = max(s.Received-s.Canaries-s.Published-s.DeadLetters-s.Dropped, 0)
	return s
}
