package prove

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/replay"
)

const (
	groupBroker = "broker"

	// exitSourceChanged is the exit code of a source that is another one, or
	// that has lost records.
	exitSourceChanged = 3

	outageLoops      = 24 // of the sample, in three equal parts
	outageViolations = 6
	outageMaxOffsets = 1000
	// outageDown is how long a killed broker stays away, outagePause how long a
	// suspended one does not answer.
	outageDown  = 4 * time.Second
	outagePause = 20 * time.Second
	// outageMax bounds the catching up after it.
	outageMax = 3 * time.Minute
)

// ownKafka gives the scenario a real Kafka that it may kill. done is false where
// there is none to be had.
func (e *Env) ownKafka(ctx context.Context) (dir, script string, err error) {
	script = e.o.KafkaScript
	if script == "" {
		script = e.o.RealScript
	}
	if script == "" {
		return "", "", failure.New(failure.Inconclusive, "no script to start a real Kafka with").
			WithHint("run it from a checkout of the project, or name the script: --kafka-script")
	}
	o := e.o
	o.Dir, o.KafkaScript, o.Kafka, o.Port = e.dir, script, nil, 0
	b, err := startBroker(ctx, o)
	if err != nil {
		return "", "", err
	}
	e.cleanup = append(e.cleanup, b.stop)
	e.client.Close()
	e.kafka.Close()
	e.broker = b
	if e.kafka, err = audit.NewKafka(b.bootstrap, e.o.Clock); err != nil {
		return "", "", err
	}
	if e.client, err = kgo.NewClient(kgo.SeedBrokers(b.bootstrap...), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil))); err != nil {
		return "", "", failure.Wrap(failure.Config, err, "Kafka client for %v", b.bootstrap)
	}
	return filepath.Join(e.dir, "kafka"), script, nil
}

// outageState is what a scenario of a broker that goes away knows.
type outageState struct {
	*ingestState
	queries     setup
	edits       map[string]bool
	dir, script string
	ingest, run *process
	missed      string
}

// brokerFaults makes the scenarios of a broker that fails, or whose topic is
// not what it was.
func brokerFaults() []Scenario {
	var out []Scenario
	for _, fault := range []string{"killed", "suspended"} {
		for _, delivery := range []string{pipeline.AtLeastOnce, pipeline.ExactlyOnce} {
			out = append(out, outage(fault, delivery))
		}
	}
	return append(out, topicFaults()...)
}

func outage(fault, delivery string) Scenario {
	how := "killed with SIGKILL and started again"
	if fault == "suspended" {
		how = fmt.Sprintf("suspended for %s", outagePause)
	}
	claim := fmt.Sprintf("A broker that is %s while events flow from the stream to silver (delivery %s): no process ends, and every layer is exact.", how, delivery)
	const strike = "the broker fails, and comes back"
	return Scenario{
		Name: "broker-" + fault + "-" + delivery, Group: groupBroker, Unaimed: true,
		Place: &Place{Matrix: "Failures of the broker", Row: fault, Column: delivery},
		Claim: claim,
		Steps: []Step{
			{"start a Kafka, make topics, stream and pipeline files", func(ctx context.Context, e *Env) error { return outagePrepare(ctx, e, delivery) }},
			{"ingest and run a third of the stream", outageBegin},
			{strike, func(ctx context.Context, e *Env) error { return outageStrike(ctx, e, fault) }},
			{"to the end of the stream", outageEnd},
			{"count", outageCount},
		},
		GuardAfter: strike,
		Guard: func(e *Env) string {
			return e.state.(*outageState).missed
		},
		Expect: func(e *Env) []Check {
			st := e.state.(*outageState)
			return append(st.ingestState.expect(),
				Check{"silver_rows", "silver rows", int64(len(st.edits))},
				Check{"silver_distinct_event_ids", "distinct event ids in silver", int64(len(st.edits))},
				Check{"silver_ids_missing", "expected ids that silver lacks", int64(0)},
				Check{"silver_ids_unexpected", "ids in silver that were not expected", int64(0)},
				Check{"audit", "audit of both tables", audit.Exact})
		},
	}
}

func outagePrepare(ctx context.Context, e *Env, delivery string) error {
	dir, script, err := e.ownKafka(ctx)
	if err != nil {
		return err
	}
	st := &outageState{ingestState: &ingestState{delivery: delivery, events: map[string]string{}, dead: map[string]string{}},
		edits: map[string]bool{}, dir: dir, script: script}
	e.state = st
	parts := replay.Script{
		{Kind: replay.SegmentLoops, Count: outageLoops / 3}, {Kind: replay.SegmentViolations, Count: outageViolations / 3},
		{Kind: replay.SegmentLoops, Count: outageLoops / 3}, {Kind: replay.SegmentViolations, Count: outageViolations / 3},
		{Kind: replay.SegmentLoops, Count: outageLoops / 3}, {Kind: replay.SegmentViolations, Count: outageViolations / 3},
	}
	if st.stream, err = e.newStream(parts, ingestDataCentre); err != nil {
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
			if ev.edit() {
				st.edits[ev.id] = true
			}
		case replay.ContractViolation:
			st.dead[string(ev.payload)] = ""
		}
	}
	if err := e.createTopic(ctx, "events", ingestPartitions); err != nil {
		return err
	}
	if err := e.createTopic(ctx, "events.dlq", 1); err != nil {
		return err
	}
	if err := e.serve(ctx, st.stream); err != nil {
		return err
	}
	st.setup = setup{Name: e.topic("outage"), Dir: e.dir, Brokers: e.broker.bootstrap, Topic: e.topic("events"), DLQ: e.topic("events.dlq"),
		Delivery: delivery, Ingest: st.stream.server.URL}
	if err := st.setup.write(); err != nil {
		return err
	}
	st.queries = setup{Name: "outage", Dir: e.dir, Brokers: e.broker.bootstrap, Topic: e.topic("events"), MaxOffsets: outageMaxOffsets, Trigger: e.o.triggerOr(0)}
	return st.queries.write()
}

func outageBegin(ctx context.Context, e *Env) (err error) {
	st := e.state.(*outageState)
	if st.ingest, err = e.start("weir ingest", nil, "ingest", e.path(ingestFileName)); err != nil {
		return err
	}
	if st.run, err = e.start("weir run", nil, "run", e.path(queriesFileName)); err != nil {
		return err
	}
	third := st.stream.frames() / 3
	st.stream.server.Server.SetLimit(third)
	want := third - outageViolations
	return e.until(ctx, st.run, outageMax, fmt.Sprintf("%d rows in bronze", want), func() (bool, error) {
		n, err := e.rows(ctx, bronzeTable)
		return n >= want, err
	})
}

func outageStrike(ctx context.Context, e *Env, fault string) error {
	st := e.state.(*outageState)
	before, err := e.size(ctx, st.setup.Topic)
	if err != nil {
		return err
	}
	st.stream.server.Server.SetLimit(2 * st.stream.frames() / 3)
	// Something of the second third is on its way.
	if err := e.until(ctx, st.ingest, outageMax, "events of the second third in Kafka", func() (bool, error) {
		n, err := e.size(ctx, st.setup.Topic)
		return n > before, err
	}); err != nil {
		return err
	}
	if err := st.fail(ctx, e, fault); err != nil {
		return err
	}
	for _, p := range []*process{st.ingest, st.run} {
		if !p.running() {
			return violated("%s ended with %s while the broker was away\n%s", p.name, p.ending(), p.tail())
		}
	}
	return nil
}

func (st *outageState) fail(ctx context.Context, e *Env, fault string) error {
	if fault == "killed" {
		e.mark("kill", "broker", 0, "SIGKILL")
		if out, err := runScript(ctx, e.dir, st.script, "kill", st.dir); err != nil {
			return fmt.Errorf("kill the broker: %w: %s", err, out)
		}
		e.kills++
		if err := e.o.Clock.Sleep(ctx, outageDown); err != nil {
			return err
		}
		out, err := runScript(ctx, e.dir, st.script, "start", st.dir)
		if err != nil {
			return failure.Wrap(failure.Unreachable, err, "start the broker again: %s", out)
		}
		e.mark("start", "broker", 0, "")
		return nil
	}
	out, err := runScript(ctx, e.dir, st.script, "pid", st.dir)
	if err != nil {
		return fmt.Errorf("the broker's pid: %w: %s", err, out)
	}
	pid, err := strconv.Atoi(out)
	if err != nil {
		return fmt.Errorf("the broker has no pid: %q", out)
	}
	e.mark("kill", "broker", 0, "SIGSTOP")
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	err = e.o.Clock.Sleep(ctx, outagePause)
	e.mark("start", "broker", 0, "SIGCONT")
	if cerr := syscall.Kill(pid, syscall.SIGCONT); err == nil {
		err = cerr
	}
	return err
}

func outageEnd(ctx context.Context, e *Env) error {
	st := e.state.(*outageState)
	st.stream.server.Server.SetLimit(st.stream.frames())
	if err := st.ingest.wait(ctx, outageMax); err != nil {
		return err
	}
	if err := e.until(ctx, st.run, outageMax, "bronze at the topic's end", func() (bool, error) { return e.caughtUp(ctx, bronzeTable, st.setup.Topic) }); err != nil {
		return err
	}
	if err := st.run.stop(ctx); err != nil {
		return err
	}
	_, err := e.runOnce(ctx)
	return err
}

func outageCount(ctx context.Context, e *Env) error {
	st := e.state.(*outageState)
	if err := st.ingestState.count(ctx, e); err != nil {
		return err
	}
	if _, err := e.verify(ctx, st.setup.Topic, bronzeTable, silverTable); err != nil {
		return err
	}
	e.gatherTimeline(ctx, bronzeTable, silverTable)
	return e.silverIDs(ctx, st.edits)
}

// topicState is what a scenario of a changed topic knows.
type topicState struct {
	*workload
}

// topicFaults makes the scenarios of a topic that changes under its query.
func topicFaults() []Scenario {
	prepare := Step{"make the topic and the pipeline file", func(ctx context.Context, e *Env) (err error) {
		st := &topicState{}
		e.state = st
		st.workload, err = e.newWorkload(ctx, setup{Name: "topic", MaxOffsets: crashMaxOffsets})
		return err
	}}
	publish := func(ctx context.Context, e *Env) error { return e.state.(*topicState).publish(ctx, e) }
	once := func(ctx context.Context, e *Env) error { _, err := e.runOnce(ctx); return err }
	count := Step{"count", func(ctx context.Context, e *Env) error { return e.state.(*topicState).count(ctx, e) }}
	refused := Step{"run: it must refuse", topicRefused}
	stops := func(e *Env) []Check {
		return []Check{
			{"exit_code", "exit code", int64(exitSourceChanged)},
			{"bronze_rows", "bronze rows: as before", e.observed["bronze_rows_before"]},
			{"silver_rows", "silver rows: as before", e.observed["silver_rows_before"]},
		}
	}
	return []Scenario{{
		Name: "topic-recreated", Group: groupBroker, RealKafka: true,
		Differs: "the topic is another one",
		Claim:   fmt.Sprintf("A topic that was deleted and made again under its name is another topic: the query stops with exit code %d and mixes nothing.", exitSourceChanged),
		Steps: []Step{prepare, {"publish, and run to the end", both(publish, once)},
			{"delete the topic, make it again, and publish more than it had", topicRecreate}, refused},
		Expect: stops,
	}, {
		Name: "retention-overtakes", Group: groupBroker, RealKafka: true,
		Differs: "the topic has lost what was not read",
		Claim:   fmt.Sprintf("Records that retention removed before they were read stop the query with exit code %d: nothing is skipped in silence.", exitSourceChanged),
		Steps: []Step{prepare, {"publish, and run to the end", both(publish, once)},
			{"publish more, and let retention remove it", both(publish, topicExpire)}, refused},
		Expect: stops,
	}, {
		Name: "partitions-added", Group: groupBroker, RealKafka: true,
		Claim: "Partitions that are added while a query is stopped are read from their first record.",
		Steps: []Step{prepare, {"publish, and run to the end", both(publish, once)},
			{"add two partitions, and publish", both(topicGrow, publish)},
			{"run to the end", once}, count},
		Expect: func(e *Env) []Check { return e.state.(*topicState).expect() },
	}, topicCompacted(), {
		Name: "transactions-aborted", Group: groupBroker, RealKafka: true,
		Claim: "Aborted transactions and their markers leave offsets without a record: they are neither missing nor read.",
		Steps: []Step{prepare, {"publish", publish},
			{"publish in transactions, and abort every other one", topicAbort},
			{"publish, and run to the end", both(publish, once)},
			{"abort again, and run to the end", both(topicAbort, once)},
			{"publish, and run to the end", both(publish, once)}, count},
		Expect: func(e *Env) []Check {
			st := e.state.(*topicState)
			checks := st.expect()
			return append(checks, Check{"offsets_without_a_record", "offsets without a record, at least one", true})
		},
	}}
}

func both(f ...func(context.Context, *Env) error) func(context.Context, *Env) error {
	return func(ctx context.Context, e *Env) error {
		for _, g := range f {
			if err := g(ctx, e); err != nil {
				return err
			}
		}
		return nil
	}
}

// topicRefused runs the pipeline, which must end by itself with an error.
func topicRefused(ctx context.Context, e *Env) error {
	for _, t := range []string{bronzeTable, silverTable} {
		n, err := e.rows(ctx, t)
		if err != nil {
			return err
		}
		e.observed[layer(t)+"_rows_before"] = n
	}
	p, err := e.start("weir run --once", nil, "run", e.path(queriesFileName), "--once")
	if err != nil {
		return err
	}
	code, err := p.endsBy(ctx, runOnceMax)
	if err != nil {
		return err
	}
	e.observed["exit_code"] = code
	for _, t := range []string{bronzeTable, silverTable} {
		n, err := e.rows(ctx, t)
		if err != nil {
			return err
		}
		e.observed[layer(t)+"_rows"] = n
	}
	return nil
}

// layer is the namespace of a table.
func layer(table string) string { return strings.SplitN(table, ".", 2)[0] }

func topicRecreate(ctx context.Context, e *Env) error {
	st := e.state.(*topicState)
	admin := kadm.NewClient(e.client)
	if _, err := admin.DeleteTopics(ctx, st.setup.Topic); err != nil {
		return failure.Wrap(failure.Unreachable, err, "delete topic %s", st.setup.Topic)
	}
	// The broker forgets it a little later than it says.
	var last error
	for range 50 {
		if last = e.createTopic(ctx, "events", workPartitions); last == nil {
			break
		}
		if err := e.o.Clock.Sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	if last != nil {
		return last
	}
	// A client that knows nothing of the topic's past.
	e.client.Close()
	var err error
	if e.client, err = kgo.NewClient(kgo.SeedBrokers(e.broker.bootstrap...), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil))); err != nil {
		return err
	}
	for range 2 {
		if err := st.publish(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// topicExpire removes everything, as retention does.
func topicExpire(ctx context.Context, e *Env) error {
	st := e.state.(*topicState)
	admin := kadm.NewClient(e.client)
	ends, err := admin.ListEndOffsets(ctx, st.setup.Topic)
	if err != nil {
		return failure.Wrap(failure.Unreachable, err, "the end of %s", st.setup.Topic)
	}
	resp, err := admin.DeleteRecords(ctx, ends.Offsets())
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		return failure.Wrap(failure.Unreachable, err, "remove the records of %s", st.setup.Topic)
	}
	return nil
}

func topicGrow(ctx context.Context, e *Env) error {
	st := e.state.(*topicState)
	resp, err := kadm.NewClient(e.client).CreatePartitions(ctx, 2, st.setup.Topic)
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		return failure.Wrap(failure.Unreachable, err, "add partitions to %s", st.setup.Topic)
	}
	e.client.Close()
	e.client, err = kgo.NewClient(kgo.SeedBrokers(e.broker.bootstrap...), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	return err
}

// topicAbort publishes six transactions of edits that nobody must see, and
// leaves the offsets of their records and markers behind.
func topicAbort(ctx context.Context, e *Env) error {
	st := e.state.(*topicState)
	tx, err := kgo.NewClient(kgo.SeedBrokers(e.broker.bootstrap...), kgo.TransactionalID(e.topic("aborts")))
	if err != nil {
		return err
	}
	defer tx.Close()
	for i := range 6 {
		if err := tx.BeginTransaction(); err != nil {
			return err
		}
		for j := range 20 {
			value := fmt.Appendf(nil, `{"meta":{"id":"aborted-%d-%d","dt":%q},"type":"edit"}`, i, j, e.o.Clock.Now().UTC().Format(time.RFC3339))
			if err := tx.ProduceSync(ctx, &kgo.Record{Topic: st.setup.Topic, Value: value}).FirstErr(); err != nil {
				return failure.Wrap(failure.Unreachable, err, "publish to %s", st.setup.Topic)
			}
		}
		if err := tx.EndTransaction(ctx, kgo.TryAbort); err != nil {
			return failure.Wrap(failure.Unreachable, err, "abort a transaction")
		}
	}
	size, err := e.size(ctx, st.setup.Topic)
	if err != nil {
		return err
	}
	e.observed["offsets_without_a_record"] = size > st.sent
	return nil
}
