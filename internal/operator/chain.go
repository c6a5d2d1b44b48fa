package operator

import (
	"bytes"
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/event"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

const (
	// blockRows is how many rows are parsed at a time; it bounds the scratch
	// memory and the size of an emitted record.
	blockRows = 8192
	// aloneRows is the size of a block that is not worth a second goroutine.
	aloneRows = 256
)

// chain is the Transform that New makes.
type chain struct {
	cfg     Config
	k       *compiled
	print   string
	mem     memory.Allocator
	workers []*worker
	dedup   *dedup // nil for none
	outputs map[string]*arrow.Schema

	env       Env
	in        input
	undecoded map[int]*event.Error // by row of in, what the decoder said of it
	counters  marker.Counters
	maxEvent  int64
	seenEvent bool
	parts     partitionTimes
	sample    sample
	setAside  []SetAside
}

func newChain(cfg Config, k *compiled, print string) *chain {
	c := &chain{cfg: cfg, k: k, print: print, mem: cfg.Allocator}
	if c.mem == nil {
		c.mem = memory.DefaultAllocator
	}
	c.outputs = map[string]*arrow.Schema{Main: k.main}
	if cfg.DeadLetter {
		c.outputs[DeadLetter] = DeadLetterSchema
	}
	n := cfg.Parallelism
	if n == 0 {
		n = DefaultParallelism
	}
	for range n {
		c.workers = append(c.workers, newWorker(c))
	}
	if len(k.keys) > 0 {
		c.dedup = newDedup(k, cfg.Seed)
	}
	return c
}

// Outputs implements Transform.
func (c *chain) Outputs() map[string]*arrow.Schema { return maps.Clone(c.outputs) }

// Fingerprint implements Transform.
func (c *chain) Fingerprint() string { return c.print }

// State implements Transform.
func (c *chain) State() []Stateful {
	if c.dedup == nil {
		return nil
	}
	return []Stateful{c.dedup}
}

// Definitions implements Definer.
func (c *chain) Definitions() []Definition {
	if c.dedup == nil {
		return nil
	}
	d := Definition{
		Name: c.dedup.Name(), Kind: c.dedup.Name(), TimeColumn: c.dedup.timeName,
		Settings: map[string]string{"delay": durationText(c.k.delay)},
	}
	for _, i := range c.k.keys {
		d.Keys = append(d.Keys, c.k.columns[i].Name+" "+c.k.columns[i].typ.String())
	}
	return []Definition{d}
}

// Begin implements Transform.
func (c *chain) Begin(env Env) error {
	c.env = env
	c.counters = marker.Counters{}
	c.maxEvent, c.seenEvent, c.setAside = 0, false, nil
	c.parts.reset()
	c.sample.reset(c.cfg.Seed, env.BatchID)
	if c.dedup != nil {
		return c.dedup.begin(env.Watermark.Micros)
	}
	return nil
}

// Rollback implements Transform.
func (c *chain) Rollback() {
	c.counters = marker.Counters{}
	c.seenEvent, c.setAside = false, nil
	c.parts.reset()
	if c.dedup != nil {
		c.dedup.rollback()
	}
}

// Process implements Transform.
func (c *chain) Process(rec arrow.RecordBatch, emit Emit) error {
	defer rec.Release()
	in, err := inputOf(rec)
	if err != nil {
		return err
	}
	if c.cfg.Decoder != nil {
		if err := c.decode(&in); err != nil {
			return err
		}
		defer in.value.Release()
	}
	if u := c.k.unwrap; u != nil {
		b := array.NewBinaryBuilder(c.mem, arrow.BinaryTypes.Binary)
		defer b.Release()
		in.value = u.all(&in, b)
		defer in.value.Release()
	}
	c.in = in
	defer func() { c.in, c.undecoded = input{}, nil }()
	for lo := 0; lo < in.rows; lo += blockRows {
		if err := c.block(lo, min(lo+blockRows, in.rows), emit); err != nil {
			return err
		}
	}
	return nil
}

// block takes rows [lo, hi) of the input through all steps: parse in parallel,
// dedup in order, build in parallel, emit in order.
func (c *chain) block(lo, hi int, emit Emit) error {
	used := c.split(lo, hi)
	c.parallel(used, (*worker).parse)
	for _, w := range used {
		c.settle(w)
	}
	c.parallel(used, (*worker).build)
	for i, w := range used {
		if w.built == nil {
			continue
		}
		rec := w.built
		w.built = nil
		if err := emit(Main, rec); err != nil {
			for _, rest := range used[i+1:] {
				rest.drop()
			}
			return err
		}
	}
	if !c.cfg.DeadLetter {
		return nil
	}
	return c.emitDeadLetters(used, emit)
}

// split shares the rows out; each worker has a run of them.
func (c *chain) split(lo, hi int) []*worker {
	n := len(c.workers)
	if hi-lo <= aloneRows {
		n = 1
	}
	step := (hi - lo + n - 1) / n
	used := c.workers[:0:0]
	for i := 0; lo < hi; i++ {
		w := c.workers[i]
		w.lo, w.rows = lo, min(step, hi-lo)
		lo += w.rows
		used = append(used, w)
	}
	return used
}

func (c *chain) parallel(used []*worker, f func(*worker)) {
	var wg sync.WaitGroup
	for _, w := range used[1:] {
		wg.Go(func() { f(w) })
	}
	f(used[0])
	wg.Wait()
}

// settle decides what only the order of rows can decide, and counts.
func (c *chain) settle(w *worker) {
	w.keep = w.keep[:0]
	for i, o := range w.outcomes {
		if c.dedup != nil && i%aheadRows == 0 {
			c.dedup.ahead(w.keys[i:min(i+aheadRows, len(w.keys))])
		}
		switch o {
		case emitted:
			if c.dedup != nil && !c.dedup.add(&w.keys[i], w.ids, int64(w.cells[c.k.timeCol][i].bits)) {
				c.counters.Duplicate++
				c.note(w, i, true)
				continue
			}
			c.counters.Emitted++
			w.keep = append(w.keep, int32(i))
			if c.k.timeCol >= 0 {
				c.sample.add(int64(w.cells[c.k.timeCol][i].bits))
			} else {
				c.sample.add(int64(c.in.timestamp.Value(w.lo + i)))
			}
		case filtered:
			c.counters.Filtered++
		case late:
			c.counters.Late++
			c.note(w, i, false)
		case dead:
			c.counters.DeadLettered++
		}
	}
	c.counters.Read += int64(len(w.outcomes))
	if c.k.perPartition {
		c.parts.merge(&w.parts)
	}
	if w.seenEvent && (!c.seenEvent || w.maxEvent > c.maxEvent) {
		c.maxEvent, c.seenEvent = w.maxEvent, true
	}
}

// Bounds of Result.SetAside: rows of a kind, and bytes of a value.
const (
	setAsideMax   = 5
	setAsideBytes = 512
)

// note keeps row i of a worker for Result.SetAside, where there is room.
func (c *chain) note(w *worker, i int, duplicate bool) {
	n := c.counters.Late
	if duplicate {
		n = c.counters.Duplicate
	}
	if n > setAsideMax {
		return
	}
	row := w.lo + i
	value := c.in.value.Value(row)
	c.setAside = append(c.setAside, SetAside{
		Duplicate: duplicate, Topic: strings.Clone(c.in.topic.Value(row)), Partition: c.in.partition.Value(row), Offset: c.in.offset.Value(row),
		EventMicros: int64(w.cells[c.k.timeCol][i].bits), Value: bytes.Clone(value[:min(len(value), setAsideBytes)]),
	})
}

// Finish implements Transform.
func (c *chain) Finish(Emit) (Result, error) {
	if c.dedup != nil {
		if err := c.dedup.ids.fault(); err != nil {
			return Result{}, err
		}
	}
	if !c.counters.Balanced() {
		return Result{}, failure.New(failure.Runtime, "batch %d: the counts of the transform do not add up: %+v", c.env.BatchID, c.counters)
	}
	return Result{Counters: c.counters, Watermark: c.nextWatermark(), EventMicros: c.sample.values(), SetAside: c.setAside}, nil
}

// nextWatermark is max(current, greatest event time seen − delay): it never
// moves back, and rows of this batch were measured against the one before.
func (c *chain) nextWatermark() marker.Watermark {
	w := c.env.Watermark
	if c.k.perPartition {
		return byPartition(w, c.parts.max, c.env.Partitions, c.env.BatchTimeMicros, c.k.delay, c.k.idleAfter)
	}
	w.SeenMicros, w.Idle = nil, nil
	w.MaxEventMicros = maps.Clone(w.MaxEventMicros)
	if !c.seenEvent {
		return w
	}
	greatest := c.maxEvent
	if before, ok := w.MaxEventMicros[""]; ok && before > greatest {
		greatest = before
	}
	if w.MaxEventMicros == nil {
		w.MaxEventMicros = map[string]int64{}
	}
	w.MaxEventMicros[""] = greatest
	w.Micros = max(w.Micros, greatest-c.k.delay)
	return w
}

// sampleSize bounds Result.EventMicros.
const sampleSize = 4096

// sample is a uniform sample of a stream of unknown length (reservoir), the
// same for the same seed, batch and values.
type sample struct {
	seen  uint64
	state uint64
	kept  []int64
}

func (s *sample) reset(seed uint64, batchID int64) {
	s.seen, s.state, s.kept = 0, seed^uint64(batchID)*0x9e3779b97f4a7c15, nil
}

func (s *sample) add(v int64) {
	s.seen++
	if len(s.kept) < sampleSize {
		s.kept = append(s.kept, v)
		return
	}
	// splitmix64
	s.state += 0x9e3779b97f4a7c15
	z := s.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	if at := (z ^ z>>31) % s.seen; at < sampleSize {
		s.kept[at] = v
	}
}

func (s *sample) values() []int64 { return s.kept }

// errShape is the fault of a record that is not a Kafka record.
func errShape(name string, want string, got arrow.DataType) error {
	return failure.Wrap(failure.Runtime, fmt.Errorf("column %s is %s, not %s", name, got, want), "the transform was given a record of another shape")
}
