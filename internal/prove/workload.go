package prove

import (
	"context"
	"fmt"
	"slices"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/replay"
)

const (
	workLoops      = 2 // of the sample, each time that something is published
	workPublished  = 5 // how often at most
	workDuplicates = 50
	workBroken     = 10
	workPartitions = 2
)

// workload is what the small scenarios publish straight to Kafka, and what the
// tables must hold of it: fresh events, events of earlier ones again, and
// values that no parser accepts.
type workload struct {
	setup    setup
	stream   *stream
	next     int64 // the frame to publish next
	expected map[string]bool
	sent     int64
	broken   int64
	earlier  []event
	// times is how often each id was sent.
	times map[string]int64
	// leave, where set, says which events are not sent.
	leave func(event) bool
}

// newWorkload makes the topic and the pipeline file.
func (e *Env) newWorkload(ctx context.Context, s setup) (*workload, error) {
	return e.newWorkloadOn(ctx, s, nil)
}

// newWorkloadOn makes the topic with settings of its own.
func (e *Env) newWorkloadOn(ctx context.Context, s setup, settings map[string]*string) (*workload, error) {
	w := &workload{expected: map[string]bool{}, times: map[string]int64{}, setup: s}
	w.setup.Dir, w.setup.Brokers, w.setup.Topic, w.setup.Trigger = e.dir, e.broker.bootstrap, e.topic("events"), e.o.triggerOr(0)
	var err error
	if w.stream, err = e.newStream(replay.Script{{Kind: replay.SegmentLoops, Count: workPublished * workLoops}}, 0); err != nil {
		return nil, err
	}
	if err := e.createTopicAs(ctx, "events", workPartitions, settings); err != nil {
		return nil, err
	}
	return w, w.setup.write()
}

// publish sends the next part.
func (w *workload) publish(ctx context.Context, e *Env) error {
	to := w.next + workLoops*replay.SampleSize
	events, err := w.stream.events(w.next, to)
	if err != nil {
		return err
	}
	w.next = to
	if w.leave != nil {
		events = slices.DeleteFunc(events, w.leave)
	}
	again := append(append([]event{}, w.earlier...), events...)
	for range workDuplicates {
		events = append(events, again[e.rng.IntN(len(again))])
	}
	for i := range workBroken {
		events = append(events, event{id: fmt.Sprintf("broken-%d", i), class: replay.ContractViolation, payload: []byte(`{"meta":{"id":`)})
	}
	for _, ev := range events {
		if ev.edit() {
			w.expected[ev.id] = true
		}
	}
	w.earlier = again
	w.broken += workBroken
	return w.send(ctx, e, events)
}

// send publishes events as they are, and counts them.
func (w *workload) send(ctx context.Context, e *Env, events []event) error {
	for _, ev := range events {
		w.times[ev.id]++
	}
	w.sent += int64(len(events))
	return e.produce(ctx, w.setup.Topic, events)
}

// count counts every layer.
func (w *workload) count(ctx context.Context, e *Env) error {
	if _, err := e.verify(ctx, w.setup.Topic, bronzeTable, silverTable); err != nil {
		return err
	}
	if err := e.silverIDs(ctx, w.expected); err != nil {
		return err
	}
	dead, err := e.rows(ctx, deadLetterTable)
	if err != nil {
		return err
	}
	e.observed["dead_letter_rows"] = dead
	e.gatherTimeline(ctx, bronzeTable, silverTable)
	return nil
}

// expect is what must have been counted.
func (w *workload) expect() []Check {
	return []Check{
		{"kafka_messages", "Kafka messages", w.sent},
		{"bronze_rows", "bronze rows", w.sent},
		{"bronze_distinct_offsets", "distinct (partition, offset)", w.sent},
		{"silver_rows", "silver rows", int64(len(w.expected))},
		{"silver_distinct_event_ids", "distinct event ids in silver", int64(len(w.expected))},
		{"silver_ids_missing", "expected ids that silver lacks", int64(0)},
		{"silver_ids_unexpected", "ids in silver that were not expected", int64(0)},
		{"dead_letter_rows", "rows in the dead-letter table", w.broken},
		{"audit", "audit of both tables", audit.Exact},
	}
}
