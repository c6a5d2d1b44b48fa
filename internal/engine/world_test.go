package engine_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/checkpoint"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/operator"
)

// errPower is what a process sees of the world once it is dead.
var errPower = errors.New("the process is dead")

// power counts every durable operation of a process, on the checkpoint and on
// the sinks, in their order. When left comes to zero the process is dead:
// nothing that it asks for happens any more.
type power struct {
	mu   sync.Mutex
	left int // negative: no limit
	dead bool
	ops  []string
	// at and nth: the process dies just before its nth operation named so.
	at  string
	nth int
}

func newPower() *power { return &power{left: -1} }

func (p *power) step(op string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at != "" && strings.Contains(op, p.at) {
		p.nth--
	}
	if p.left == 0 || (p.at != "" && p.nth == 0) {
		p.dead = true
	}
	if p.dead {
		return errPower
	}
	if p.left > 0 {
		p.left--
	}
	p.ops = append(p.ops, op)
	return nil
}

func (p *power) check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return errPower
	}
	return nil
}

func (p *power) restart(left int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left, p.dead, p.ops, p.at = left, false, nil, ""
}

// testClock moves by a millisecond with every look at it; sleeping takes no
// time at all.
type testClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(time.Millisecond)
	return c.now
}

func (c *testClock) Sleep(ctx context.Context, d time.Duration) error {
	c.set(func(t time.Time) time.Time { return t.Add(d) })
	return ctx.Err()
}

func (c *testClock) set(f func(time.Time) time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = f(c.now)
}

// memProgress is a progress table whose appender may die with rows queued.
type memProgress struct {
	mu     sync.Mutex
	queued []engine.Progress
	table  []engine.Progress
}

func (p *memProgress) Add(row engine.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queued = append(p.queued, row)
}

func (p *memProgress) Recorded(context.Context, string, string) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.table) == 0 {
		return -1, nil
	}
	return p.table[len(p.table)-1].BatchID, nil
}

// flush appends what is queued; die forgets it.
func (p *memProgress) flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.table, p.queued = append(p.table, p.queued...), nil
}

func (p *memProgress) die() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queued = nil
}

// ids are the batch ids of the visible rows, in order.
func (p *memProgress) ids() []int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []int64
	for _, row := range p.table {
		out = append(out, row.BatchID)
	}
	return out
}

// world is everything that outlives a process.
type world struct {
	t          *testing.T
	kafka      *fakeKafka
	power      *power
	disk       *objstore.Memory
	clock      *testClock
	main, side *memTable // side is nil for a query without dead letters
	progress   *memProgress
	transform  func() operator.Transform
	alerts     []string
	rows       []engine.Progress // of this world's batches, as OnProgress saw them
	limit      int64
}

const queryName = "edits"

// newWorld makes a world of two partitions with records each. The query is the
// raw one (passthrough, one sink).
func newWorld(t *testing.T, records int64) *world {
	p := newPower()
	w := &world{t: t, kafka: newFakeKafka(2, records), power: p, clock: &testClock{now: noon}, main: newMemTable("lake.main", p),
		progress: &memProgress{}, transform: func() operator.Transform { return operator.NewPassthrough(batch.KafkaSchema) }}
	w.disk = objstore.NewMemory(w.clock)
	w.plug()
	return w
}

// withDeadLetters makes the query the parsing one: state, and two sinks.
func (w *world) withDeadLetters() *world {
	w.side = newMemTable("lake.dead", w.power)
	w.transform = func() operator.Transform { return w.parsing(operator.Config{}) }
	return w
}

// parsing is the transform of silver; a column more changes its fingerprint.
func (w *world) parsing(cfg operator.Config, more ...operator.Column) operator.Transform {
	cfg.Columns = append([]operator.Column{
		{Name: "event_id", Path: "$.id", Type: "string", Required: true},
		{Name: "event_time", Path: "$.dt", Type: "timestamptz", Required: true},
		{Name: "kind", Path: "$.kind", Type: "string"},
		{Name: "kafka_partition", Source: "partition", Type: "int"},
		{Name: "kafka_offset", Source: "offset", Type: "long"},
		{Name: "processed_at", Source: "batchTime", Type: "timestamptz"},
	}, more...)
	cfg.Filter, cfg.Dedup, cfg.DeadLetter = "kind = 'edit'", []string{"event_id"}, true
	cfg.Watermark = &operator.Watermark{Column: "event_time", Delay: 10 * time.Minute, MaxFutureSkew: 24 * time.Hour}
	tr, err := operator.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return tr
}

// plug connects the checkpoint's disk to the power.
func (w *world) plug() {
	w.disk.Trace(func(op string) error { return w.power.step("checkpoint " + op) })
	w.disk.Fault(func(string, string, bool) error { return w.power.check() })
}

// reboot is the next process after a kill: what it finds is what was visible,
// or, with lose set, only what was durable.
func (w *world) reboot(lose bool) {
	w.disk.Trace(nil)
	if lose {
		w.disk.Crash(0)
	} else {
		w.disk = w.disk.Reopen()
	}
	w.progress.die()
	w.power.restart(-1)
	w.plug()
}

// setup changes a query before it runs.
type setup func(*engine.Query, *fakeSource)

// query is a process's query.
func (w *world) query(mods ...setup) *engine.Query {
	src := &fakeSource{k: w.kafka}
	q := &engine.Query{
		Name: queryName, Source: src, Transform: w.transform(), Checkpoint: w.disk, Clock: w.clock,
		Outputs: []engine.Output{{Name: operator.Main, Sink: &memSink{t: w.main, query: queryName}}},
		Options: engine.Options{Trigger: engine.Trigger{AvailableNow: true}, MaxOffsetsPerTrigger: w.limit, FailOnDataLoss: true,
			InstanceID: "here"},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Progress: w.progress,
		OnProgress: func(p engine.Progress) { w.rows = append(w.rows, p) },
		OnAlert:    func(text string) { w.alerts = append(w.alerts, text) },
	}
	if w.side != nil {
		q.Outputs = append(q.Outputs, engine.Output{Name: operator.DeadLetter, Sink: &memSink{t: w.side, query: queryName, side: true}})
	}
	for _, m := range mods {
		m(q, src)
	}
	return q
}

// run is a process that runs the query to its end and flushes its progress.
func (w *world) run(mods ...setup) error {
	return w.runCtx(w.t.Context(), mods...)
}

func (w *world) runCtx(ctx context.Context, mods ...setup) error {
	err := w.query(mods...).Run(ctx)
	if w.power.check() == nil {
		w.progress.flush()
	}
	return err
}

// must runs the query, which must end well.
func (w *world) must(mods ...setup) {
	w.t.Helper()
	if err := w.run(mods...); err != nil {
		w.t.Fatal(err)
	}
}

// killedAt runs the query until just before its n-th operation that contains
// what, and reboots.
func (w *world) killedAt(what string, n int, mods ...setup) {
	w.t.Helper()
	w.power.restart(-1)
	w.power.at, w.power.nth = what, n
	if err := w.run(mods...); err == nil || !w.power.dead {
		w.t.Fatalf("the kill at %q (%d) did not land: %v\n%s", what, n, err, strings.Join(w.power.ops, "\n"))
	}
	w.reboot(false)
}

// place is the key of a row: partition/offset.
func place(rec arrow.RecordBatch, row int) string {
	at := func(names ...string) arrow.Array {
		for _, n := range names {
			if i := rec.Schema().FieldIndices(n); len(i) > 0 {
				return rec.Column(i[0])
			}
		}
		panic("no place in " + rec.Schema().String())
	}
	return fmt.Sprintf("%d/%d", at("kafka_partition", "partition").(*array.Int32).Value(row), at("kafka_offset", "offset").(*array.Int64).Value(row))
}

// exactRaw checks that the raw query's table holds each offset once.
func (w *world) exactRaw() {
	w.t.Helper()
	want := map[string]int{}
	for i, p := range w.kafka.parts {
		for off := int64(0); off < p.end; off++ {
			want[fmt.Sprintf("%d/%d", i, off)] = 1
		}
	}
	wantRows(w.t, "main", w.main.keys(place), want)
}

func wantRows(t *testing.T, what string, got, want map[string]int) {
	t.Helper()
	if maps.Equal(got, want) {
		return
	}
	var missing, extra []string
	for k, n := range want {
		if got[k] < n {
			missing = append(missing, k)
		}
	}
	for k, n := range got {
		if n > want[k] {
			extra = append(extra, fmt.Sprintf("%s×%d", k, n))
		}
	}
	slices.Sort(missing)
	slices.Sort(extra)
	t.Fatalf("%s: missing %v, extra %v", what, clip(missing), clip(extra))
}

func clip(s []string) []string { return s[:min(len(s), 20)] }

// plan and commit read the checkpoint.
func (w *world) plan(n int64) *checkpoint.Plan {
	w.t.Helper()
	p, err := checkpoint.Open(w.disk, queryName).ReadPlan(w.t.Context(), n)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *world) commits() []checkpoint.CommitEntry {
	w.t.Helper()
	c, err := checkpoint.Open(w.disk, queryName).Commits(w.t.Context(), 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// completeLog checks that batches 0 to last are planned and committed.
func (w *world) completeLog(last int64) {
	w.t.Helper()
	var ids []int64
	for _, c := range w.commits() {
		ids = append(ids, c.BatchID)
		if p := w.plan(c.BatchID); !p.Adopted && checkpoint.PlanHash(*p) != c.Marker.PlanHash {
			w.t.Fatalf("commits/%d is of another plan", c.BatchID)
		}
	}
	var want []int64
	for n := int64(0); n <= last; n++ {
		want = append(want, n)
	}
	if !slices.Equal(ids, want) {
		w.t.Fatalf("commit log %v, want %v", ids, want)
	}
}

func (w *world) counters() (sum marker.Counters) {
	for _, c := range w.commits() {
		sum.Add(c.Marker.Counters)
	}
	return sum
}

func wantClass(t *testing.T, err error, c failure.Class) {
	t.Helper()
	if !failure.Is(err, c) {
		t.Fatalf("want a failure of class %s, got %v", c, err)
	}
}
