package prove

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/failure"
)

// compactMax bounds the wait for the broker's log cleaner, which looks every 15
// seconds for work.
const compactMax = 90 * time.Second

// compactedState is what the scenario of a compacted topic knows.
type compactedState struct {
	*workload
	kept   int64 // records that the compaction has left
	before int64 // records that were published before it
	missed string
}

// topicCompacted is a topic in which the broker leaves only the newest record
// of each key: offsets without a record, in the middle of what is read.
func topicCompacted() Scenario {
	const strike = "publish, and wait until the broker has compacted it"
	return Scenario{
		Name: "topic-compacted", Group: groupBroker, RealKafka: true,
		Claim: "Offsets that compaction has taken out of a topic before they were read are neither missing nor read: every record that is left is there once.",
		Steps: []Step{
			{"make a topic that is compacted, and the pipeline file", compactedPrepare},
			{strike, compactedWait},
			{"run to the end, publish more, and run again", func(ctx context.Context, e *Env) error {
				publish := func(ctx context.Context, e *Env) error { return e.state.(*compactedState).publish(ctx, e) }
				return both(handsOnce, publish, handsOnce)(ctx, e)
			}},
			{"count", func(ctx context.Context, e *Env) error {
				st := e.state.(*compactedState)
				if _, err := e.verify(ctx, st.setup.Topic, bronzeTable, silverTable); err != nil {
					return err
				}
				e.gatherTimeline(ctx, bronzeTable, silverTable)
				return e.silverIDs(ctx, st.expected)
			}},
		},
		GuardAfter: strike,
		Guard:      func(e *Env) string { return e.state.(*compactedState).missed },
		Expect: func(e *Env) []Check {
			st := e.state.(*compactedState)
			left := st.kept + st.sent - st.before
			return []Check{
				{"kafka_messages", "Kafka messages that are left", left},
				{"bronze_rows", "bronze rows", left},
				{"bronze_distinct_offsets", "distinct (partition, offset)", left},
				{"silver_rows", "silver rows", int64(len(st.expected))},
				{"silver_ids_missing", "expected ids that silver lacks", int64(0)},
				{"silver_ids_unexpected", "ids in silver that were not expected", int64(0)},
				{"audit", "audit of both tables", audit.Exact},
			}
		},
	}
}

func compactedPrepare(ctx context.Context, e *Env) (err error) {
	st := &compactedState{}
	e.state = st
	settings := map[string]*string{}
	for key, value := range map[string]string{"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "min.compaction.lag.ms": "0", "max.compaction.lag.ms": "200"} {
		settings[key] = kadm.StringPtr(value)
	}
	st.workload, err = e.newWorkloadOn(ctx, setup{Name: "topic", MaxOffsets: crashMaxOffsets}, settings)
	return err
}

// compactedWait publishes, lets the broker compact, and ends that before
// anything more is published, so that what is left stays.
func compactedWait(ctx context.Context, e *Env) error {
	st := e.state.(*compactedState)
	for range 2 { // the newest segment is never compacted: the second begins one
		if err := st.publish(ctx, e); err != nil {
			return err
		}
		if err := e.o.Clock.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
	deadline := e.o.Clock.Now().Add(compactMax)
	for {
		n, err := e.messages(ctx, st.setup.Topic)
		if err != nil {
			return err
		}
		if n < st.sent {
			break
		}
		if e.o.Clock.Now().After(deadline) {
			st.missed = fmt.Sprintf("%s compacted nothing within %s", e.broker.name, compactMax)
			return nil
		}
		if err := e.o.Clock.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
	resp, err := kadm.NewClient(e.client).AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "cleanup.policy", Value: kadm.StringPtr("delete")}}, st.setup.Topic)
	if err == nil && len(resp) > 0 {
		err = resp[0].Err
	}
	if err != nil {
		return failure.Wrap(failure.Unreachable, err, "end the compaction of %s", st.setup.Topic)
	}
	// What is under way comes to its end: two counts alike.
	for last := int64(-1); st.kept != last; {
		last = st.kept
		if err := e.o.Clock.Sleep(ctx, 2*time.Second); err != nil {
			return err
		}
		if st.kept, err = e.messages(ctx, st.setup.Topic); err != nil {
			return err
		}
	}
	st.before = st.sent
	e.observed["offsets_without_a_record"] = st.before - st.kept
	return nil
}
