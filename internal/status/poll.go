package status

import (
	"context"
	"sync"
	"time"

	"github.com/weirlake/weir/internal/clock"
)

// Limits on asking for what nobody reports.
const (
	lagEvery      = 2 * time.Second
	tablesEvery   = 5 * time.Second
	samplesEvery  = 10 * time.Second
	proofEvery    = 10 * time.Second
	lookupTimeout = 10 * time.Second
	// lookupPatience is how long a reader of the page waits for fresh facts;
	// after that it gets those of the last time.
	lookupPatience = 2 * time.Second
)

// lookup asks for facts when somebody wants them and those at hand are old. One
// question runs at a time, in the background: a broker that hangs delays a
// reader by lookupPatience and no query at all.
type lookup[T any] struct {
	every time.Duration
	ask   func(context.Context) (T, error)
	clk   clock.Clock
	base  context.Context //nolint:containedctx // the board's life, which outlasts each reader's
	group *sync.WaitGroup

	mu      sync.Mutex
	value   T
	asked   time.Time // when the last question began
	got     time.Time // when the last answer came
	failing time.Time // since when answers are errors, zero while they are not
	err     error
	busy    chan struct{} // closed when the running question has ended
}

// answer is what is known, and how well.
type answer[T any] struct {
	value T
	// got is zero while there has been no answer.
	got time.Time
	err error
	// failing is since when it cannot be looked up, zero while it can.
	failing time.Time
}

// get gives the facts, at most `every` old if they can be had in time.
func (l *lookup[T]) get(ctx context.Context) answer[T] {
	if l.ask == nil {
		return answer[T]{}
	}
	l.mu.Lock()
	now := l.clk.Now()
	if l.busy == nil && l.base.Err() == nil && (l.asked.IsZero() || now.Sub(l.asked) >= l.every || now.Before(l.asked)) {
		l.asked, l.busy = now, make(chan struct{})
		l.group.Add(1)
		go l.run(l.busy)
	}
	busy := l.busy
	l.mu.Unlock()
	if busy != nil {
		wait, cancel := context.WithTimeout(ctx, lookupPatience)
		defer cancel()
		select {
		case <-busy:
		case <-wait.Done():
		}
	}
	return l.peek()
}

// peek gives what is at hand without asking.
func (l *lookup[T]) peek() answer[T] {
	l.mu.Lock()
	defer l.mu.Unlock()
	return answer[T]{value: l.value, got: l.got, err: l.err, failing: l.failing}
}

func (l *lookup[T]) run(busy chan struct{}) {
	defer l.group.Done()
	ctx, cancel := context.WithTimeout(l.base, lookupTimeout)
	defer cancel()
	v, err := l.ask(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.value, l.got, l.failing = v, l.clk.Now(), time.Time{}
	} else if l.failing.IsZero() {
		l.failing = l.clk.Now()
	}
	l.err = err
	l.busy = nil
	close(busy)
}
