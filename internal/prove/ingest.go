package prove

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/replay"
)

const (
	groupIngest = "ingest"

	// ingestPhases of the stream: one run of ingestion is killed in each but
	// the last. The server holds each phase back until the kill before it has
	// landed, so that every run has work at its armed step.
	ingestPhases     = 4
	ingestViolations = 2 // of each phase
	ingestCanaries   = 1
	ingestPhase      = replay.SampleSize + ingestViolations + ingestCanaries
	// ingestEventMax bounds at which event of a phase the steps that come with
	// every event are armed.
	ingestEventMax = 300
	// ingestDataCentre changes the data centre in mid-phase, so that positions
	// of both are in play.
	ingestDataCentre = 250
	ingestPartitions = 4
)

// embeddedTransactions is where exactly-once ingestion ends on the embedded
// broker.
const embeddedTransactions = "on the embedded broker this shows crashes of weir ingest only: it writes a transaction's markers partition by partition without a log of its own, so a crash of that broker at the very commit can leave half a transaction; a real Kafka finishes it"

// ingestPoints are the steps of each delivery.
var ingestPoints = map[string][]string{
	pipeline.AtLeastOnce: {fault.IngestReceived, fault.IngestProduced, fault.IngestAcked, fault.IngestSaveTemp, fault.IngestSaved},
	pipeline.ExactlyOnce: {fault.IngestReceived, fault.IngestTxnBegin, fault.IngestProduced, fault.IngestAcked, fault.IngestTxnCommit},
}

// ingestState is what one scenario of ingestion knows.
type ingestState struct {
	delivery, point string
	setup           setup
	stream          *stream
	events, dead    map[string]string // payload to key
	missed          string
	killed          int
	settle          func()
}

// ingestKills makes a scenario for every step of ingestion in both deliveries.
func ingestKills() []Scenario {
	var out []Scenario
	for _, delivery := range []string{pipeline.AtLeastOnce, pipeline.ExactlyOnce} {
		for _, point := range ingestPoints[delivery] {
			out = append(out, ingestKill(delivery, point))
		}
	}
	return out
}

func ingestKill(delivery, point string) Scenario {
	s := Scenario{
		Name: delivery + "-" + point, Group: groupIngest,
		Place:     &Place{Matrix: "Steps of ingestion", Row: point, Column: delivery},
		RealKafka: delivery == pipeline.ExactlyOnce,
		Claim:     fmt.Sprintf("weir ingest (%s), killed three times at %s (%s): ", delivery, point, pointText(point)),
		Steps: []Step{
			{"make topics, stream and pipeline file", func(ctx context.Context, e *Env) error { return ingestPrepare(ctx, e, delivery, point) }},
			{"ingest; SIGKILL while it is held at the step", ingestHeld},
			{"ingest again; SIGKILL at the step", ingestArmed},
			{"ingest again; SIGKILL at the step", ingestArmed},
			{"ingest to the end of the stream", ingestRest},
			{"count", ingestCount},
		},
		Guard: func(e *Env) string {
			st := e.state.(*ingestState)
			if st.killed < ingestPhases-1 {
				return fmt.Sprintf("kill %d did not land at %s: %s", st.killed+1, point, st.missed)
			}
			return ""
		},
		Expect: ingestExpect,
	}
	s.Claim += "every event is in the topic and every contract violation in the dead-letter topic."
	if delivery == pipeline.ExactlyOnce {
		s.Claim = fmt.Sprintf("weir ingest (%s), killed three times at %s (%s): a read_committed reader gets every event and every contract violation exactly once.", delivery, point, pointText(point))
	}
	return s
}

// pointText says what is durable at a crash point.
func pointText(name string) string {
	for _, p := range fault.Points() {
		if p.Name == name {
			return p.Text
		}
	}
	return ""
}

func ingestPrepare(ctx context.Context, e *Env, delivery, point string) error {
	st := &ingestState{delivery: delivery, point: point, events: map[string]string{}, dead: map[string]string{}}
	e.state = st
	if delivery == pipeline.ExactlyOnce && e.broker.kind == BrokerEmbedded {
		e.remarks = append(e.remarks, embeddedTransactions)
	}
	var script replay.Script
	for range ingestPhases {
		script = append(script, replay.Segment{Kind: replay.SegmentLoops, Count: 1},
			replay.Segment{Kind: replay.SegmentViolations, Count: ingestViolations},
			replay.Segment{Kind: replay.SegmentCanaries, Count: ingestCanaries})
	}
	var err error
	if st.stream, err = e.newStream(script, ingestDataCentre); err != nil {
		return err
	}
	events, err := st.stream.events(0, st.stream.frames())
	if err != nil {
		return err
	}
	for _, ev := range events {
		switch ev.class {
		case replay.Base:
			st.events[string(ev.payload)] = ev.id
		case replay.ContractViolation:
			st.dead[string(ev.payload)] = ""
		}
	}
	// The pipeline's name is in the transactional id: one of the scenario's own.
	st.setup = setup{Name: e.topic("ingest"), Dir: e.dir, Brokers: e.broker.bootstrap, Topic: e.topic("events"), DLQ: e.topic("events.dlq"), Delivery: delivery}
	if err := e.createTopic(ctx, "events", ingestPartitions); err != nil {
		return err
	}
	if err := e.createTopic(ctx, "events.dlq", 1); err != nil {
		return err
	}
	// Ingestion's own topic, where it keeps the position of its transactions.
	e.topics = append(e.topics, e.topic("events.weir-position"))
	if err := e.serve(ctx, st.stream); err != nil {
		return err
	}
	st.setup.Ingest = st.stream.server.URL
	return st.setup.write()
}

// nth is at which time of reaching the step a run is killed.
func (st *ingestState) nth(e *Env) int {
	if st.point == fault.IngestReceived || st.point == fault.IngestProduced {
		return 1 + e.rng.IntN(ingestEventMax)
	}
	return 1
}

// release lets the server send the next phase, ends the measuring of the kill
// before, and gives the probe of the next one.
func (st *ingestState) release(e *Env) probe {
	st.stream.server.Server.SetLimit(int64(st.killed+1) * ingestPhase)
	return func(ctx context.Context) (int64, error) { return e.messages(ctx, st.setup.Topic) }
}

// landed counts a kill.
func (st *ingestState) landed(settle func(), why string) {
	if st.settle != nil {
		st.settle()
	}
	st.settle = settle
	if why != "" {
		st.missed = why
		return
	}
	st.killed++
}

func ingestHeld(ctx context.Context, e *Env) error {
	st := e.state.(*ingestState)
	grown := st.release(e)
	p, why, err := e.hold(ctx, "ingest/"+st.point, st.nth(e), "ingest", e.path(ingestFileName))
	if err != nil || p == nil {
		st.missed = why
		return err
	}
	settle, err := e.kill(ctx, p, grown)
	if err != nil {
		return err
	}
	st.landed(settle, "")
	return nil
}

func ingestArmed(ctx context.Context, e *Env) error {
	st := e.state.(*ingestState)
	grown := st.release(e)
	settle, why, err := e.selfKill(ctx, "ingest/"+st.point, st.nth(e), grown, "ingest", e.path(ingestFileName))
	if err != nil {
		return err
	}
	st.landed(settle, why)
	return nil
}

func ingestRest(ctx context.Context, e *Env) error {
	st := e.state.(*ingestState)
	st.stream.server.Server.SetLimit(st.stream.frames())
	err := e.ingestToTheEnd(ctx)
	if st.settle != nil {
		st.settle()
	}
	return err
}

func ingestCount(ctx context.Context, e *Env) error { return e.state.(*ingestState).count(ctx, e) }

// visibleMax bounds the wait for transactions that have ended to be seen.
const visibleMax = time.Minute

// visible waits until nothing of a topic stands behind an open transaction. A
// broker answers a commit when it is decided; the markers by which a
// read_committed reader sees the records follow, later where it is busy.
func (e *Env) visible(ctx context.Context, topic string) error {
	admin := kadm.NewClient(e.client)
	deadline := e.o.Clock.Now().Add(visibleMax)
	for {
		ends, err := admin.ListEndOffsets(ctx, topic)
		if err != nil {
			return failure.Wrap(failure.Unreachable, err, "the end of %s", topic)
		}
		stable, err := admin.ListCommittedOffsets(ctx, topic)
		if err != nil {
			return failure.Wrap(failure.Unreachable, err, "the last stable offset of %s", topic)
		}
		open := false
		ends.Each(func(o kadm.ListedOffset) {
			at, ok := stable.Lookup(o.Topic, o.Partition)
			open = open || !ok || at.Offset < o.Offset
		})
		if !open || e.o.Clock.Now().After(deadline) {
			return nil
		}
		if err := e.o.Clock.Sleep(ctx, pollEvery); err != nil {
			return err
		}
	}
}

func (st *ingestState) count(ctx context.Context, e *Env) error {
	for _, topic := range []string{st.setup.Topic, st.setup.DLQ} {
		if err := e.visible(ctx, topic); err != nil {
			return err
		}
	}
	for _, t := range []struct {
		key, topic string
		want       map[string]string
	}{{"events", st.setup.Topic, st.events}, {"dead_letters", st.setup.DLQ, st.dead}} {
		seen := map[string]int64{}
		var unexpected, repeated, badKeys int64
		err := e.scan(ctx, t.topic, func(r *audit.Record) error {
			key, ok := t.want[string(r.Value)]
			if !ok {
				unexpected++
				return nil
			}
			if key != "" && key != string(r.Key) {
				badKeys++
			}
			if seen[string(r.Value)]++; seen[string(r.Value)] > 1 {
				repeated++
			}
			return nil
		})
		if err != nil {
			return err
		}
		e.observed[t.key+"_present"] = int64(len(seen))
		e.observed[t.key+"_unexpected"] = unexpected
		e.observed[t.key+"_repeated"] = repeated
		if t.key == "events" {
			e.observed["events_with_another_key"] = badKeys
		}
	}
	return nil
}

// scan reads a topic as a read_committed reader does.
func (e *Env) scan(ctx context.Context, topic string, f func(*audit.Record) error) error {
	b, err := e.kafka.Bounds(ctx, topic)
	if err != nil {
		return err
	}
	for _, p := range slices.Sorted(maps.Keys(b.Partitions)) {
		pb := b.Partitions[p]
		if err := e.kafka.Scan(ctx, topic, p, pb.LogStart, pb.Stable, f); err != nil {
			return err
		}
	}
	return nil
}

func ingestExpect(e *Env) []Check { return e.state.(*ingestState).expect() }

func (st *ingestState) expect() []Check {
	checks := []Check{
		{"events_present", "distinct events in the topic, byte for byte", int64(len(st.events))},
		{"events_unexpected", "records that are no event of the stream (canaries, torn ones)", int64(0)},
		{"events_with_another_key", "events under another key than their id", int64(0)},
		{"dead_letters_present", "contract violations in the dead-letter topic, byte for byte", int64(len(st.dead))},
		{"dead_letters_unexpected", "dead letters that are none", int64(0)},
	}
	if st.delivery == pipeline.ExactlyOnce {
		checks = append(checks,
			Check{"events_repeated", "events that are there more than once", int64(0)},
			Check{"dead_letters_repeated", "dead letters that are there more than once", int64(0)})
	}
	return checks
}
