package prove

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/failure"
)

const (
	groupStorm = "storm"

	// stormKills is how often a storm kills at least, and stormLanded how many of
	// those must have met a batch that was planned and not committed. On a fast
	// machine fewer of them do, for the batches are short: the storm then goes on,
	// up to stormMost kills.
	stormKills  = 130
	stormLanded = 100
	stormMost   = 3 * stormKills
	// stormMaxOffsets is the normal size of a batch.
	stormMaxOffsets = 100_000
	stormPartitions = 4
	// stormBacklog is what a process finds waiting at least, stormFeed what is
	// published at once when there is less.
	stormBacklog = 250_000
	stormFeed    = 300_000
	// The kill comes between these after a plan was seen that has no commit, or
	// after as long without one.
	stormWaitMax  = 20 * time.Second
	stormDelayMax = 700 * time.Millisecond
	stormEvents   = 3 // in how many events the third is an edit again
)

// stormState is what a storm knows.
type stormState struct {
	setup  setup
	query  string // whose batches are to be met
	sent   int64
	edits  int64
	kills  int
	landed int
}

// storms kill at moments that nobody chose.
func storms() []Scenario {
	var out []Scenario
	for _, query := range []string{"bronze", "silver"} {
		s := Scenario{
			Name: "storm-" + query, Group: groupStorm, Alone: true, Unaimed: true,
			Claim: fmt.Sprintf("A pipeline whose process is killed %d times or more at random moments, during batches of %d offsets of %s, one life after the other, is exact.", stormKills, stormMaxOffsets, query),
			Steps: []Step{
				{"make the topic and the pipeline file", func(ctx context.Context, e *Env) error { return stormPrepare(ctx, e, query) }},
				{fmt.Sprintf("publish as it is read, and SIGKILL until %d have met a batch under way", stormLanded), stormKill},
				{"start again, and run to the end", stormRest},
				{"count", stormCount},
			},
			Guard: func(e *Env) string {
				if st := e.state.(*stormState); st.kills >= stormMost && st.landed < stormLanded {
					return fmt.Sprintf("only %d of %d kills met a batch of %s that was planned and not committed", st.landed, st.kills, st.query)
				}
				return ""
			},
			Expect: func(e *Env) []Check {
				st := e.state.(*stormState)
				return []Check{
					{"kafka_messages", "Kafka messages", st.sent},
					{"bronze_rows", "bronze rows", st.sent},
					{"bronze_distinct_offsets", "distinct (partition, offset)", st.sent},
					{"silver_rows", "silver rows", st.edits},
					{"silver_distinct_event_ids", "distinct event ids in silver", st.edits},
					{"audit", "audit of both tables", audit.Exact},
				}
			},
		}
		out = append(out, s)
	}
	return out
}

func stormPrepare(ctx context.Context, e *Env, query string) error {
	st := &stormState{query: query}
	e.state = st
	st.setup = setup{Name: "storm", Dir: e.dir, Brokers: e.broker.bootstrap, Topic: e.topic("events"), MaxOffsets: stormMaxOffsets, Trigger: e.o.triggerOr(0)}
	if err := e.createTopic(ctx, "events", stormPartitions); err != nil {
		return err
	}
	return st.setup.write()
}

// feed publishes until there is a backlog: two edits, one change of another
// kind, and of every hundred edits one again.
func (st *stormState) feed(ctx context.Context, e *Env) error {
	read := int64(0)
	h, err := e.peek(ctx, bronzeTable)
	if err != nil {
		return err
	}
	if h.Exists {
		offsets, err := h.Offsets(st.setup.Topic)
		if err != nil {
			return err
		}
		for _, n := range offsets {
			read += n
		}
	}
	if st.sent-read >= stormBacklog {
		return nil
	}
	var failed error
	now := e.o.Clock.Now().UTC()
	for range stormFeed {
		n := st.sent
		st.sent++
		kind := "log"
		if n%stormEvents != 0 {
			kind = "edit"
		}
		id := n
		if kind == "edit" {
			if n%100 == 1 && n > 100 {
				id = n - stormEvents*33 // an edit that was sent before
			} else {
				st.edits++
			}
		}
		value := fmt.Appendf(nil, `{"meta":{"id":"%08x-0000-4000-8000-%012x","dt":%q},"type":%q,"wiki":"enwiki","title":"Page %d","namespace":0,"user":"u%d","bot":false}`,
			uint32(id), id, now.Add(time.Duration(id%1000)*time.Millisecond).Format(time.RFC3339Nano), kind, id%5000, id%977)
		e.client.Produce(ctx, &kgo.Record{Topic: st.setup.Topic, Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed = err
			}
		})
	}
	if err := errors.Join(e.client.Flush(ctx), failed); err != nil {
		return failure.Wrap(failure.Unreachable, err, "publish to %s", st.setup.Topic)
	}
	return nil
}

// inFlight reports whether the query has planned a batch that it has not
// written down as committed.
func (e *Env) inFlight(query string) (bool, error) {
	plan, err := newestCommitLog(filepath.Join(e.checkpointDir(), query, "offsets"))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	done, err := newestCommitLog(filepath.Join(e.checkpointDir(), query, "commits"))
	if errors.Is(err, os.ErrNotExist) {
		return plan >= 0, nil
	}
	return plan > done, err
}

func stormKill(ctx context.Context, e *Env) error {
	st := e.state.(*stormState)
	table := queryTables[st.query]
	settle := func() {}
	defer func() { settle() }()
	for st.kills < stormKills || st.landed < stormLanded && st.kills < stormMost {
		if err := st.feed(ctx, e); err != nil {
			return err
		}
		p, err := e.start("weir run", nil, "run", e.path(queriesFileName))
		if err != nil {
			return err
		}
		// The batch that is met may be the one that the last life left behind,
		// or a later one.
		skip := e.rng.IntN(2)
		if err := st.meet(ctx, e, p, skip); err != nil {
			return err
		}
		settle()
		if settle, err = e.kill(ctx, p, e.tableRows(table)); err != nil {
			return err
		}
		st.kills++
		there, err := e.inFlight(st.query)
		if err != nil {
			return err
		}
		if there {
			st.landed++
		}
		if st.kills%10 == 0 {
			e.say("%d kills, %d met a batch under way, %d messages so far", st.kills, st.landed, st.sent)
		}
	}
	e.observed[landedKey] = int64(st.landed)
	return nil
}

// meet waits until the query has a batch under way (after skip commits of this
// life) and a random while more.
func (st *stormState) meet(ctx context.Context, e *Env, p *process, skip int) error {
	commits := filepath.Join(e.checkpointDir(), st.query, "commits")
	before, _ := newestCommitLog(commits)
	deadline := e.o.Clock.Now().Add(stormWaitMax)
	for e.o.Clock.Now().Before(deadline) {
		if !p.running() {
			return violated("%s ended with %s\n%s", p.name, p.ending(), p.tail())
		}
		now, _ := newestCommitLog(commits)
		there, err := e.inFlight(st.query)
		if err != nil {
			return err
		}
		if there && now >= before+int64(skip) {
			break
		}
		if err := e.o.Clock.Sleep(ctx, 2*time.Millisecond); err != nil {
			return err
		}
	}
	return e.o.Clock.Sleep(ctx, time.Duration(e.rng.Int64N(int64(stormDelayMax))))
}

func stormRest(ctx context.Context, e *Env) error {
	p, err := e.start("weir run --once", nil, "run", e.path(queriesFileName), "--once")
	if err != nil {
		return err
	}
	return p.wait(ctx, stormRestMax)
}

// stormRestMax bounds the working off of the backlog in the end.
const stormRestMax = 5 * time.Minute

func stormCount(ctx context.Context, e *Env) error {
	st := e.state.(*stormState)
	if _, err := e.verify(ctx, st.setup.Topic, bronzeTable, silverTable); err != nil {
		return err
	}
	e.gatherTimeline(ctx, bronzeTable, silverTable)
	return nil
}
