package replay

import (
	"fmt"
	"time"
)

// Plan says which specials a stream has, per block of BlockSize base events.
type Plan struct {
	// Canaries are artificial events, bare ones and full ones.
	Canaries int `json:"canaries"`
	// Violations break the contract, each in one of six ways.
	Violations int `json:"violations"`
	// Duplicates are earlier base events once more: same event id, same time.
	Duplicates int `json:"duplicates"`
	// Late are fresh edits whose event time is LateBy before their arrival.
	Late   int           `json:"late"`
	LateBy time.Duration `json:"late_by"`
}

// BlockSize is the number of base events over which a plan's specials are
// spread: ten loops.
const BlockSize = 10 * SampleSize

// DefaultPlan is what the demo plays: every kind of special, each rare.
func DefaultPlan() Plan {
	return Plan{Canaries: 4, Violations: 4, Duplicates: 8, Late: 4, LateBy: DefaultLateBy}
}

// Defaults of a GeneratorConfig.
const (
	// DefaultLateBy is far beyond a ten-minute watermark.
	DefaultLateBy = 30 * time.Minute
	// DefaultRate is the event time's own rate in events per second.
	DefaultRate = 1000
	// DefaultBackward is the greatest step backwards, and DefaultBackwardShare
	// the share of events that make one, as reported of the live stream.
	DefaultBackward      = time.Second
	DefaultBackwardShare = 0.013
	// maxBackward keeps disorder within the usual watermark.
	maxBackward = 10 * time.Minute
	// specialsMax is how many specials a block may have: every one stands in a
	// stretch of its own.
	specialsMax = BlockSize / 4
)

// DefaultStart is the event time of the first event.
var DefaultStart = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// GeneratorConfig is all that a stream depends on.
type GeneratorConfig struct {
	Seed uint64 `json:"seed"`
	// Start is the event time of the first event; zero is DefaultStart.
	Start time.Time `json:"start"`
	// Rate is how many base events there are in a second of event time; 0 is
	// DefaultRate. Events far in the future of the reader's clock would be dead
	// letters, so a start at the present wants a rate not below the real one.
	Rate float64 `json:"rate"`
	// Backward is the greatest step backwards of event times, less than ten
	// minutes; 0 is DefaultBackward, negative is none.
	Backward time.Duration `json:"backward"`
	// BackwardShare is the share of events that step back; 0 is
	// DefaultBackwardShare.
	BackwardShare float64 `json:"backward_share"`
	// SwitchEvery changes the data centre after so many frames; 0 is never.
	SwitchEvery int64 `json:"switch_every"`
	Plan        Plan  `json:"plan"`
	// Script, where given, says frame by frame what comes, in place of Plan;
	// the stream then has an end.
	Script Script `json:"script,omitempty"`
}

// withDefaults fills in what was left out.
func (c GeneratorConfig) withDefaults() GeneratorConfig {
	if c.Start.IsZero() {
		c.Start = DefaultStart
	}
	if c.Rate == 0 {
		c.Rate = DefaultRate
	}
	if c.Backward == 0 {
		c.Backward = DefaultBackward
	}
	if c.BackwardShare == 0 {
		c.BackwardShare = DefaultBackwardShare
	}
	if c.Plan.LateBy == 0 {
		c.Plan.LateBy = DefaultLateBy
	}
	return c
}

// Validate names everything that is wrong at once.
func (c GeneratorConfig) Validate() []error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Rate < 0 {
		bad("the event rate %v is negative", c.Rate)
	}
	if c.Backward >= maxBackward {
		bad("a step backwards of %s is not below %s", c.Backward, maxBackward)
	}
	if c.BackwardShare < 0 || c.BackwardShare > 1 {
		bad("the share of steps backwards %v is not between 0 and 1", c.BackwardShare)
	}
	if c.SwitchEvery < 0 {
		bad("the data centre cannot change every %d frames", c.SwitchEvery)
	}
	p := c.Plan
	for name, n := range map[string]int{"canaries": p.Canaries, "violations": p.Violations, "duplicates": p.Duplicates, "late events": p.Late} {
		if n < 0 {
			bad("%d %s", n, name)
		}
	}
	if p.specials() > specialsMax {
		bad("%d specials in %d events are more than %d", p.specials(), BlockSize, specialsMax)
	}
	if p.LateBy < 0 {
		bad("late events cannot be late by %s", p.LateBy)
	}
	if len(c.Script) > 0 && p.specials() > 0 {
		bad("a script says itself where the specials are; leave the plan's numbers out")
	}
	return append(errs, c.Script.validate()...)
}

func (p Plan) specials() int { return p.Canaries + p.Violations + p.Duplicates + p.Late }

// Class is what a frame is.
type Class uint8

// The classes of frames.
const (
	Base Class = iota
	Canary
	ContractViolation
	Duplicate
	Late
)

// String is the class's name.
func (c Class) String() string {
	return [...]string{"base", "canary", "violation", "duplicate", "late"}[c]
}

// Generator is a stream without an end. It is read-only after New: any number
// of cursors may share it.
type Generator struct {
	cfg   GeneratorConfig
	s     *sample
	start int64 // milliseconds
	// period is the event time between two base events in milliseconds.
	period   float64
	backward int64
	share    uint64 // of 1<<32
	lateBy   int64
	block    int64 // frames in a block
	kinds    []Class
	seeds    seeds
	// script is the frames of a scripted stream, nil for one by plan.
	script []frame
}

// seeds keep the generator's different uses of randomness apart.
type seeds struct{ id, request, variant, detail, disorder, user, special uint64 }

// NewGenerator checks the configuration and builds the templates.
func NewGenerator(c GeneratorConfig) (*Generator, error) {
	c = c.withDefaults()
	if errs := c.Validate(); len(errs) > 0 {
		return nil, configError("the generator", errs)
	}
	r := newRNG(mix(c.Seed ^ 0x77656972))
	g := &Generator{
		cfg: c, start: c.Start.UnixMilli(), period: 1000 / c.Rate,
		backward: max(c.Backward, 0).Milliseconds(), share: uint64(c.BackwardShare * (1 << 32)),
		lateBy: c.Plan.LateBy.Milliseconds(),
		block:  int64(BlockSize + c.Plan.specials()),
		seeds:  seeds{r.next(), r.next(), r.next(), r.next(), r.next(), r.next(), r.next()},
	}
	for class, n := range map[Class]int{Canary: c.Plan.Canaries, ContractViolation: c.Plan.Violations, Duplicate: c.Plan.Duplicates, Late: c.Plan.Late} {
		for range n {
			g.kinds = append(g.kinds, class)
		}
	}
	sortClasses(g.kinds)
	g.s = newSample(r.next())
	g.script = c.Script.frames()
	return g, nil
}

// sortClasses makes the order independent of the map's.
func sortClasses(k []Class) {
	for i := range k {
		for j := i; j > 0 && k[j] < k[j-1]; j-- {
			k[j], k[j-1] = k[j-1], k[j]
		}
	}
}

// Config is the configuration with defaults filled in.
func (g *Generator) Config() GeneratorConfig { return g.cfg }

// head is the first base event of the group of base event k.
func (g *Generator) head(k int64) int64 { return k - int64(g.s.seats[k%SampleSize].back) }

// arrival is the time at which base event k reaches the stream, in order.
func (g *Generator) arrival(k int64) int64 {
	return g.start + int64(float64(g.head(k))*g.period)
}

// baseTime is the event time of base event k: its arrival, for a small share
// a little before.
func (g *Generator) baseTime(k int64) int64 {
	t := g.arrival(k)
	if h := hash(g.seeds.disorder, k); g.backward > 0 && h&(1<<32-1) < g.share {
		t -= 1 + int64(h>>32)%g.backward
	}
	return t
}

// frame is a frame's class and the number that its content follows from: the
// base event's for base frames and duplicates, the frame's own otherwise.
type frame struct {
	class Class
	n     int64
	// next is the base event at this frame or the first one after it.
	next int64
}

// Cursor reads frames. It remembers the last block, so reading in order is
// cheap. It is used by one goroutine.
type Cursor struct {
	g     *Generator
	block int64
	// at are the places of the specials of the block, in order, and kinds what
	// stands there.
	at    []int32
	kinds []Class
	v     values
}

// Cursor makes a reader of the stream.
func (g *Generator) Cursor() *Cursor {
	return &Cursor{g: g, block: -1, at: make([]int32, len(g.kinds)), kinds: make([]Class, len(g.kinds))}
}

// load lays out the specials of a block: one in each of as many stretches, so
// that they never meet, in an order of the block's own. The first frame of a
// block is a base frame, so a duplicate has something to repeat.
func (c *Cursor) load(block int64) {
	if c.block == block || len(c.at) == 0 {
		return
	}
	c.block = block
	copy(c.kinds, c.g.kinds)
	r := newRNG(hash(c.g.seeds.special, block))
	r.shuffle(len(c.kinds), func(i, j int) { c.kinds[i], c.kinds[j] = c.kinds[j], c.kinds[i] })
	for i := range c.at {
		from := int(c.g.block) * i / len(c.at)
		to := int(c.g.block) * (i + 1) / len(c.at)
		c.at[i] = int32(from + 1 + r.n(to-from-1))
	}
}

// before counts the specials of the loaded block that stand before place r.
func (c *Cursor) before(r int32) int {
	lo, hi := 0, len(c.at)
	for lo < hi {
		if m := (lo + hi) / 2; c.at[m] < r {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo
}

// frame says what frame n is.
func (c *Cursor) frame(n int64) frame {
	if c.g.script != nil {
		return c.g.script[n]
	}
	block, r := n/c.g.block, int32(n%c.g.block)
	c.load(block)
	j := c.before(r)
	next := block*BlockSize + int64(r) - int64(j)
	if j == len(c.at) || c.at[j] != r {
		return frame{Base, next, next}
	}
	if c.kinds[j] == Duplicate {
		// One of the last base events, never one that is still to come.
		back := int64(hash(c.g.seeds.special^golden, n)%duplicateReach) + 1
		return frame{Duplicate, max(next-back, 0), next}
	}
	return frame{c.kinds[j], n, next}
}

// duplicateReach is how many base events back a duplicate may lie.
const duplicateReach = 300

// Class says what frame n is.
func (c *Cursor) Class(n int64) Class { return c.frame(n).class }

// Append appends the JSON of frame n, without a line end.
func (c *Cursor) Append(dst []byte, n int64) []byte {
	f := c.frame(n)
	switch f.class {
	case Base, Duplicate:
		return c.appendBase(dst, f.n, n)
	case Late:
		return c.appendLate(dst, n, c.g.arrival(f.next))
	default:
		return c.appendOther(dst, f.class, n, c.g.arrival(f.next))
	}
}

// Position gives the position of frame n in milliseconds, and its data centre.
func (c *Cursor) Position(n int64) (ms int64, centre int) {
	f := c.frame(n)
	ms = c.g.arrival(f.next)
	if f.class == Base {
		ms = c.g.baseTime(f.n)
	}
	return ms, c.g.centre(n)
}

// centre is the data centre that sends frame n.
func (g *Generator) centre(n int64) int {
	if g.cfg.SwitchEvery == 0 {
		return 0
	}
	return int(n / g.cfg.SwitchEvery % 2)
}

// endless is the length of a stream by plan.
const endless = int64(1) << 50

// Length is the number of frames, endless for a stream by plan.
func (g *Generator) Length() int64 {
	if g.script != nil {
		return int64(len(g.script))
	}
	return endless
}

// FirstAt gives the first frame with a position of at least ms; Length where
// there is none.
func (c *Cursor) FirstAt(ms int64) int64 {
	// The arrival never goes back, and no position is after its arrival. So the
	// frame is at or behind the first one that arrives at ms or later.
	end := c.g.Length()
	lo, hi := int64(0), min(end, 1)
	for hi < end && c.g.arrival(c.frame(hi).next) < ms {
		hi = min(2*hi, end)
	}
	for lo < hi {
		if m := (lo + hi) / 2; c.g.arrival(c.frame(m).next) < ms {
			lo = m + 1
		} else {
			hi = m
		}
	}
	for lo < end {
		if at, _ := c.Position(lo); at >= ms {
			break
		}
		lo++
	}
	return lo
}
