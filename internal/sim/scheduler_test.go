package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
)

// What a process sees of a world that does not do what it asks for.
var (
	errDead = errors.New("the process is dead")
	errAway = errors.New("the other side does not answer")
	errLost = errors.New("the connection broke before the answer came")
)

// fault is what happens to one operation.
type fault int

const (
	none      fault = iota
	refused         // it is not applied, and the process sees an error
	lost            // it is applied, and the process sees an error
	late            // the process sees an error; it is applied later, if it still can be
	dieBefore       // the process dies, and it is not applied
	dieWithin       // the process dies within it, after some of its steps
	dieAfter        // it is applied, and the process dies
	dieLate         // the process dies; it is applied later, if it still can be
	cut             // a broker's answer does not come, and the connection is gone
	refusal         // a broker answers with an error for one partition
	partial         // a broker's answer holds a part of the records that it could
)

func (f fault) String() string {
	return [...]string{"", "refused", "answer lost", "applied late", "killed before", "killed within", "killed after", "killed, applied late", "connection cut", "refused by the broker", "cut short"}[f]
}

// verdict is the scheduler's answer to an operation.
type verdict struct {
	fault fault
	cut   int // dieWithin: the steps of the disk that are made
	pick  int // refusal, partial: what of it
}

// process is one life of one instance.
type process struct {
	name   string
	s      *scheduler
	ctx    context.Context
	dead   atomic.Bool
	ended  atomic.Bool
	cancel context.CancelFunc
	err    error // why it ended, when ended
	held   bool  // suspended: the scheduler lets none of its operations go on
	// durable counts its operations that change the world.
	durable int
}

// kill is SIGKILL: nothing that the process asks for happens from now on.
func (p *process) kill() {
	if p.dead.CompareAndSwap(false, true) {
		p.cancel()
	}
}

// do is one operation on the world. apply makes it happen; with cut at 0 or
// more only so many steps of it, where it has steps.
func (p *process) do(ctx context.Context, op string, changes bool, apply func(cut int) error) error {
	if p == nil { // who only looks, after the end
		return apply(-1)
	}
	if err := ctx.Err(); err != nil && !p.dead.Load() {
		return err
	}
	switch v := p.s.ask(p, op, changes); v.fault {
	case none:
		return apply(-1)
	case refused:
		return errAway
	case lost:
		_ = apply(-1)
		return errLost
	case late:
		p.s.later = append(p.s.later, func() { _ = apply(-1) })
		return errLost
	case dieWithin:
		_ = apply(v.cut)
		p.kill()
	case dieAfter:
		_ = apply(-1)
		p.kill()
	case dieLate:
		p.s.later = append(p.s.later, func() { _ = apply(-1) })
		p.kill()
	case dieBefore:
		p.kill()
	}
	return errDead
}

// call is an operation that waits at the gate.
type call struct {
	p       *process
	op      string
	changes bool
	seq     int
	node    int // the broker that answers, -1 for none
	answer  chan verdict
}

// scheduler decides which operation comes next and what becomes of it.
type scheduler struct {
	mu      sync.Mutex
	seq     int
	waiting []*call
	trace   []string
	later   []func() // operations that are still on their way
	// paused are the brokers that do not answer.
	paused [nodes]bool
}

// names are what differs from run to run in an operation's name.
var names = regexp.MustCompile(`[0-9a-f]{8,}(-[0-9a-f]{4,})*|\d{13,}`)

func (s *scheduler) ask(p *process, op string, changes bool) verdict {
	if p.dead.Load() {
		return verdict{fault: dieBefore}
	}
	c := s.queue(p, op, changes, -1)
	return <-c.answer
}

// await is the gate of a broker's answer; it is false where done comes first.
func (s *scheduler) await(p *process, op string, node int, done <-chan struct{}) (verdict, bool) {
	if p.dead.Load() {
		return verdict{fault: dieBefore}, true
	}
	c := s.queue(p, op, false, node)
	select {
	case v := <-c.answer:
		return v, true
	case <-done:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = slices.DeleteFunc(s.waiting, func(o *call) bool { return o == c })
	return verdict{}, false
}

func (s *scheduler) queue(p *process, op string, changes bool, node int) *call {
	c := &call{p: p, op: names.ReplaceAllString(op, "#"), changes: changes, node: node, answer: make(chan verdict, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	c.seq = s.seq
	s.waiting = append(s.waiting, c)
	return c
}

// ready are the operations that can go on, in an order that is the same in
// every run: by process and name; equal ones are as good as each other. Those
// of dead processes are answered on the way.
func (s *scheduler) ready() []*call {
	for {
		synctest.Wait()
		s.mu.Lock()
		var alive, gone []*call
		for _, c := range s.waiting {
			if c.p.dead.Load() {
				gone = append(gone, c)
			} else {
				alive = append(alive, c)
			}
		}
		s.waiting = alive
		s.mu.Unlock()
		if len(gone) == 0 {
			break
		}
		for _, c := range gone {
			c.answer <- verdict{fault: dieBefore}
		}
	}
	var out []*call
	for _, c := range s.waiting {
		if !c.p.held && (c.node < 0 || !s.paused[c.node]) {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b *call) int {
		return cmp.Or(strings.Compare(a.p.name, b.p.name), strings.Compare(a.op, b.op), cmp.Compare(a.node, b.node), cmp.Compare(a.seq, b.seq))
	})
	return out
}

// let answers a waiting operation and writes it down.
func (s *scheduler) let(c *call, v verdict) {
	s.mu.Lock()
	s.waiting = slices.DeleteFunc(s.waiting, func(o *call) bool { return o == c })
	s.mu.Unlock()
	if c.changes {
		c.p.durable++
	}
	s.note("%s %s %s", c.p.name, c.op, v.fault)
	c.answer <- v
}

func (s *scheduler) note(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf(format, args...))
}

// hash names the schedule: two with the same hash did the same.
func (s *scheduler) hash() uint64 {
	h := fnv.New64a()
	for _, t := range s.trace {
		_, _ = h.Write([]byte(t))
		_, _ = h.Write([]byte{0})
	}
	return h.Sum64()
}
