// Package ingest reads a stream of server-sent events, holds each event against
// a contract and publishes it to Kafka, and remembers how far it is.
//
// An event passes these stages, in this order:
//
//	sse.Client      one goroutine   frames, reconnects       Ingester.Events
//	check           Workers         contract, canary, key    batch.check
//	prepare         one goroutine   position, repetitions    Ingester.prepare
//	deliver         the same        records to Kafka         atLeastOnce, exactlyOnce
//	acknowledge     Kafka client    prefix of receipt        tracker
//
// Batches keep the order of receipt from the first stage to the last; only the
// check is done side by side. What may be lost, doubled or skipped is decided
// in two places: package position says what a position is, and the two delivery
// files say when it may be kept.
//
// Memory is bounded: the data of all events that are read and not acknowledged
// stays below MaxInFlightBytes (one event may go beyond on its own), and when it
// is reached the stream is no longer read.
package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/semaphore"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/ingest/contract"
	"github.com/weirlake/weir/internal/ingest/position"
	"github.com/weirlake/weir/internal/ingest/sse"
)

const (
	scope           = "ingest"
	maxQueued       = 128  // batches between two stages
	eventOverhead   = 256  // bytes of bookkeeping for one event, roughly
	watchdogPerGap  = 8    // looks of the watchdog in one delivery time-out
	keptInFile      = 4096 // together with a full transaction they fit into one record
	largestBatch    = 64 << 20
	progressOverdue = "Kafka at %v has acknowledged nothing for %s"
)

// place is how far the stream was read at the end of a batch.
type place struct {
	vec      position.Vector
	seq      int64
	disorder time.Duration
	added    int64 // events remembered so far
}

// connection is one connection's beginning, for the filter of repetitions.
type connection struct {
	from    position.Vector
	receipt int64
}

// Ingester is one ingestion. Make it with New, run it once.
type Ingester struct {
	cfg      Config
	deps     Deps
	log      *slog.Logger
	contract *contract.Contract
	client   *sse.Client
	kafka    *kgo.Client
	types    map[string]bool
	eventMax atomic.Int64 // largest record for the topic
	deadMax  int64        // and for the dead-letter topic
	budget   *semaphore.Weighted
	c        counters

	work, ordered chan *batch

	runCtx context.Context
	cancel context.CancelCauseFunc

	// The prepare stage's own.
	parser     position.Parser
	disorder   position.Disorder
	prevParts  []position.Part
	ownKey     position.Key
	filter     *position.Filter
	filterConn *connection

	mu      sync.Mutex // guards what follows, and filterConn
	conn    *connection
	window  *position.Window
	current place // prepared
	durable place // acknowledged: nothing before it can be lost
	queue   []*batch
	drained *sync.Cond // on mu: durable moved, or the run failed
	handed  int64      // batches read
	settled int64      // batches acknowledged, in order
	advance chan struct{}
	asked   chan struct{}
	acks    atomic.Int64 // grows with every acknowledgement

	file     *position.File
	restored restored // exactly-once: what the position topic held
}

// New checks the configuration and makes an ingestion. Nothing is opened.
func New(cfg Config, deps Deps) (*Ingester, error) {
	if errs := cfg.Validate(); len(errs) > 0 {
		return nil, failure.Wrap(failure.Config, errors.Join(errs...), "ingest %s", orElse(cfg.Name, cfg.Topic))
	}
	cfg = cfg.withDefaults()
	if deps.Clock == nil {
		deps.Clock = clock.System{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Workers == 0 {
		cfg.Workers = min(runtime.GOMAXPROCS(0), maxWorkers)
	}
	con, err := contract.Compile(contract.Options{Schema: cfg.Schema, KeyPath: cfg.KeyPath, Canary: cfg.Canary})
	if err != nil {
		return nil, err
	}
	in := &Ingester{
		cfg: cfg, deps: deps, contract: con,
		log:     deps.Logger.With("ingest", cfg.Name),
		types:   map[string]bool{},
		budget:  semaphore.NewWeighted(cfg.MaxInFlightBytes),
		work:    make(chan *batch, maxQueued),
		ordered: make(chan *batch, maxQueued),
		window:  position.NewWindow(cfg.Window),
		advance: make(chan struct{}, 1),
		asked:   make(chan struct{}, 1),
	}
	in.drained = sync.NewCond(&in.mu)
	for _, t := range cfg.EventTypes {
		in.types[t] = true
	}
	in.client = sse.New(sse.Config{
		URL: cfg.URL, UserAgent: cfg.UserAgent, Header: cfg.Header, MaxEventBytes: cfg.MaxEventBytes,
		IdleTimeout: cfg.IdleTimeout, ConnectDeadline: cfg.ConnectDeadline,
		BackoffMin: cfg.BackoffMin, BackoffMax: cfg.BackoffMax, Seed: cfg.Seed,
	}, deps.HTTPClient, deps.Clock, in.log)
	if ok, why := con.Compiled(); !ok {
		in.log.Warn("the contract uses a keyword that is checked by the generic validator, about twenty times slower", "keyword", why)
	}
	return in, nil
}

// Run is New and Run in one.
func Run(ctx context.Context, cfg Config, deps Deps) (Stats, error) {
	in, err := New(cfg, deps)
	if err != nil {
		return Stats{Violations: map[string]int64{}}, err
	}
	err = in.Run(ctx)
	return in.Stats(), err
}

// Stats is what was done so far. Safe for concurrent use.
func (in *Ingester) Stats() Stats {
	s := in.c.snapshot()
	s.Stream = in.client.Stats()
	return s
}

// Position is what is acknowledged; for status pages.
func (in *Ingester) Position() position.Vector {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.durable.vec.Clone()
}

var errStop = errors.New("stopped as asked")

// Run ingests until the server ends the stream (204), StopWhen says so or ctx
// is done; then everything read is delivered, the position kept, and the result
// is nil. Failures have the classes of package failure.
func (in *Ingester) Run(ctx context.Context) error {
	in.runCtx, in.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	defer in.cancel(nil)
	defer context.AfterFunc(in.runCtx, func() {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.drained.Broadcast()
	})()

	limits, err := ensureTopics(ctx, in.cfg, in.deps)
	if ctx.Err() != nil {
		return nil // stopped before anything was begun
	}
	if err != nil {
		return err
	}
	batchLimit := min(limits[in.cfg.Topic], limits[in.cfg.DeadLetterTopic], in.cfg.MaxRecordBytes+recordSlackBytes, largestBatch)
	batchLimit = max(batchLimit, smallestLimit)
	in.eventMax.Store(int64(batchLimit))
	in.deadMax = int64(batchLimit)
	if in.kafka, err = newProducer(in.cfg, in.deps, batchLimit); err != nil {
		return err
	}
	defer in.kafka.Close()

	stop, err := in.open(ctx)
	if err != nil {
		return err
	}
	defer stop()
	return in.run(ctx)
}

// open takes the position; in exactly-once mode only after the broker has
// fenced whoever used the transactional id before.
func (in *Ingester) open(ctx context.Context) (stop func(), err error) {
	stop = func() {}
	var saved *position.State
	if in.cfg.PositionPath != "" {
		if in.file, err = position.Open(in.cfg.PositionPath); err != nil {
			return stop, err
		}
		stop = in.file.Close
		if saved, err = in.file.Load(); err == nil && saved != nil {
			err = saved.Belongs(in.cfg.URL, in.cfg.Topic, in.file.Path())
		}
		if err != nil {
			stop()
			return func() {}, err
		}
	}
	if err = in.load(ctx, saved); err != nil {
		stop()
		return func() {}, err
	}
	return stop, nil
}

// restore begins where a saved state says.
func (in *Ingester) restore(s *position.State) error {
	if err := in.window.Load(s.Recent); err != nil {
		return failure.Wrap(failure.Checkpoint, err, "the saved position of %s", in.cfg.Name).
			WithHint("restore it from a copy, or empty its field recent: then some events are sent again")
	}
	in.disorder.Most = time.Duration(s.DisorderMillis) * time.Millisecond
	in.current = place{vec: s.Position.Clone(), seq: s.Seq, disorder: in.disorder.Most, added: int64(in.window.Len())}
	in.durable = in.current
	in.durable.vec = s.Position.Clone()
	in.log.Info("resuming", "position", s.Position.LastEventID(), "saved_at", s.SavedAt, "remembered", in.window.Len())
	return nil
}

func (in *Ingester) run(ctx context.Context) error {
	readCtx, stopReading := context.WithCancelCause(ctx)
	defer stopReading(nil)
	defer context.AfterFunc(in.runCtx, func() { stopReading(context.Cause(in.runCtx)) })()
	defer context.AfterFunc(ctx, func() {
		if in.deps.Clock.Sleep(in.runCtx, in.cfg.StopTimeout) == nil {
			in.fail(failure.New(failure.Unreachable, "Kafka at %v did not acknowledge everything within %s of the stop", in.cfg.Brokers, in.cfg.StopTimeout).
				WithHint("nothing is lost: what was not acknowledged is read again at the next start"))
		}
	})()

	var helpers, side sync.WaitGroup
	for range in.cfg.Workers {
		helpers.Go(in.check)
	}
	sideCtx, stopSide := context.WithCancel(in.runCtx)
	defer stopSide()
	side.Go(func() { in.watchdog(sideCtx) })
	side.Go(func() { in.askToStop(sideCtx, stopReading) })
	var deliver func()
	var finish func() error
	if in.cfg.Delivery == ExactlyOnce {
		eo := newExactlyOnce(in)
		deliver, finish = eo.run, func() error { return nil }
		side.Go(func() { eo.tick(sideCtx) })
	} else {
		alo := newAtLeastOnce(in)
		deliver, finish = alo.run, alo.save
		side.Go(func() { alo.keepSaving(sideCtx) })
		side.Go(func() { alo.reroute(sideCtx) })
	}
	helpers.Go(deliver)

	end := in.client.Run(readCtx, in)
	close(in.work)
	close(in.ordered)
	helpers.Wait()
	in.drain()
	stopSide()
	side.Wait()
	saveErr := finish()

	if in.runCtx.Err() != nil {
		return context.Cause(in.runCtx)
	}
	switch {
	case saveErr != nil:
		return saveErr
	case end == nil, errors.Is(context.Cause(readCtx), errStop), ctx.Err() != nil:
		return nil
	default:
		return end
	}
}

// fail ends the run: the first cause counts.
func (in *Ingester) fail(err error) { in.cancel(err) }

// drain waits until everything is acknowledged or the run has failed.
func (in *Ingester) drain() {
	in.mu.Lock()
	defer in.mu.Unlock()
	for len(in.queue) > 0 && in.runCtx.Err() == nil {
		in.drained.Wait()
	}
}

// watchdog fails the run when records wait and the broker acknowledges nothing.
// The Kafka client would wait for ever: it may not give up what is in flight.
func (in *Ingester) watchdog(ctx context.Context) {
	last, since := in.acks.Load(), in.deps.Clock.Now()
	for in.deps.Clock.Sleep(ctx, max(in.cfg.DeliveryTimeout/watchdogPerGap, time.Millisecond)) == nil {
		in.mu.Lock()
		waiting := len(in.queue) > 0
		in.mu.Unlock()
		now, acks := in.deps.Clock.Now(), in.acks.Load()
		if !waiting || acks != last {
			last, since = acks, now
			continue
		}
		if now.Sub(since) >= in.cfg.DeliveryTimeout {
			in.fail(failure.New(failure.Unreachable, progressOverdue, in.cfg.Brokers, in.cfg.DeliveryTimeout).
				WithHint("check the broker; a restart goes on from the saved position, nothing is lost"))
			return
		}
	}
}

// Resume implements sse.Handler.
func (in *Ingester) Resume() (lastEventID, since string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	// Without a position the server begins at its end, and what it sent since
	// the last connection would be lost: wait for the first one.
	for in.durable.vec.Empty() && in.handed > in.settled && in.runCtx.Err() == nil {
		in.drained.Wait()
	}
	d := in.durable
	in.conn = &connection{from: in.resumeAt(d), receipt: d.seq + 1}
	if in.conn.from.Empty() {
		return "", in.cfg.Since
	}
	return in.conn.from.LastEventID(), ""
}

// resumeAt is where a connection begins that must send everything after p. In
// exactly-once mode it never begins before what is remembered.
func (in *Ingester) resumeAt(p place) position.Vector {
	s := position.State{DisorderMillis: p.disorder.Milliseconds()}
	var low map[position.Key]int64
	if in.cfg.Delivery == ExactlyOnce {
		low = in.window.Low()
	}
	return p.vec.Resume(s.Overlap(in.cfg.Overlap), low)
}

// Events implements sse.Handler.
func (in *Ingester) Events(events []sse.Event, receivedAt time.Time) error {
	b := newBatch(in, events, receivedAt)
	if err := in.budget.Acquire(in.runCtx, b.weight); err != nil {
		return context.Cause(in.runCtx)
	}
	in.mu.Lock()
	in.handed++
	in.mu.Unlock()
	for range events {
		fault.Reach(scope, fault.IngestReceived)
	}
	for _, ch := range []chan *batch{in.work, in.ordered} {
		select {
		case ch <- b:
		case <-in.runCtx.Done():
			return context.Cause(in.runCtx)
		}
	}
	in.nudge()
	return nil
}

// nudge has StopWhen asked again.
func (in *Ingester) nudge() {
	select {
	case in.asked <- struct{}{}:
	default:
	}
}

// askToStop stops the reading when StopWhen says so.
func (in *Ingester) askToStop(ctx context.Context, stopReading context.CancelCauseFunc) {
	for in.deps.StopWhen != nil {
		select {
		case <-ctx.Done():
			return
		case <-in.asked:
		}
		if in.deps.StopWhen(in.Stats()) {
			stopReading(errStop)
			return
		}
	}
}

// state is the saved form of a place, without remembered events.
func (in *Ingester) state(p place) *position.State {
	return &position.State{
		Version: position.StateVersion, URL: position.StreamURL(in.cfg.URL), Topic: in.cfg.Topic,
		SavedAt: in.deps.Clock.Now().Format(time.RFC3339Nano), Seq: p.seq,
		DisorderMillis: p.disorder.Milliseconds(), Position: p.vec,
	}
}

// trim forgets what no resume from p can bring again. It waits while a
// connection was made of which no event was prepared yet: what that one repeats
// is found in the window.
func (in *Ingester) trim(p place) {
	if in.conn == in.filterConn {
		in.window.Trim(in.resumeAt(p), p.seq+1)
	}
}

// enqueue puts a prepared batch in the order of receipt.
func (in *Ingester) enqueue(b *batch) {
	in.mu.Lock()
	in.queue = append(in.queue, b)
	in.mu.Unlock()
}

// acknowledged marks a batch and moves the durable place over the acknowledged
// prefix. It is called from the Kafka client's goroutines.
func (in *Ingester) acknowledged(b *batch) {
	in.mu.Lock()
	b.done = true
	moved := 0
	for moved < len(in.queue) && in.queue[moved].done {
		moved++
	}
	if moved == 0 {
		in.mu.Unlock()
		return
	}
	gone := append([]*batch(nil), in.queue[:moved]...)
	in.queue = append(in.queue[:0], in.queue[moved:]...)
	clear(in.queue[len(in.queue):cap(in.queue)])
	in.durable = gone[moved-1].end
	in.settled += int64(moved)
	in.drained.Broadcast()
	in.mu.Unlock()
	for _, g := range gone {
		in.release(g)
	}
	in.nudge()
	select {
	case in.advance <- struct{}{}:
	default:
	}
}

// release counts a batch that is done and gives its memory back.
func (in *Ingester) release(b *batch) {
	moved := b.moved.Load()
	in.c.published.Add(b.nEvents - moved)
	in.c.dead.Add(b.nDead + moved)
	in.budget.Release(b.weight)
}

// describe is a batch for an error.
func (b *batch) describe() string {
	return fmt.Sprintf("publish events %d to %d", b.end.seq-int64(len(b.events))+1, b.end.seq)
}
