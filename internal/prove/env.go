package prove

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/failure"
)

// Env is the isolated set-up of one scenario: a folder, topics of its own, the
// processes that it started, and what has been observed.
type Env struct {
	o      Options
	dir    string
	broker *broker
	kafka  *audit.Kafka
	client *kgo.Client
	rng    *rand.Rand
	say    func(format string, args ...any)

	// prefix makes the topics of this scenario its own on a shared broker.
	prefix string
	topics []string
	// catalog finds the tables; catalogFile is the file in which it lies, empty
	// where it lies in none.
	catalog     audit.Locator
	catalogFile string
	// sessionsGapMicros is the gap by which sessions are computed again.
	sessionsGapMicros int64
	// audited is the newest audit of the scenario's tables.
	audited  *audit.Report
	children []*process
	starts   atomic.Int64 // of processes, so far

	cleanup []func()
	// remarks go into the result as they are.
	remarks []string
	// servers took part, beside the broker, with their versions.
	servers []string

	// state is the scenario's own.
	state    any
	observed map[string]any

	mu       sync.Mutex
	began    time.Time
	kills    int
	recovery []float64
	timeline []Event
}

// newEnv makes an empty folder and connects to the broker.
func newEnv(o Options, b *broker, s *Scenario, repeat int, say func(string, ...any)) (*Env, error) {
	dir := filepath.Join(o.Dir, fmt.Sprintf("%s-%d", s.Name, repeat))
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	k, err := audit.NewKafka(b.bootstrap, o.Clock)
	if err != nil {
		return nil, err
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.bootstrap...), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	if err != nil {
		k.Close()
		return nil, failure.Wrap(failure.Config, err, "Kafka client for %v", b.bootstrap)
	}
	rng := generator(o.Seed, s.Name, repeat)
	catalogFile := filepath.Join(dir, "catalog.db")
	return &Env{
		o: o, dir: dir, broker: b, kafka: k, client: cl, rng: rng, say: say,
		// Not from the seed: a run that is repeated must not meet the topics of
		// the one before.
		prefix:  fmt.Sprintf("prove-%s-", o.nonce()),
		catalog: audit.SQLiteCatalog{Path: catalogFile}, catalogFile: catalogFile,
		sessionsGapMicros: sessionsMicro,
		observed:          map[string]any{}, recovery: []float64{}, began: o.Clock.Now(),
	}, nil
}

// close ends what still runs; topics are deleted unless they are evidence.
func (e *Env) close(keep bool) {
	for _, p := range e.children {
		p.abandon()
	}
	for _, f := range e.cleanup {
		f()
	}
	if !keep {
		ctx, cancel := context.WithTimeout(context.Background(), stopMax)
		if len(e.topics) > 0 {
			_, _ = kadm.NewClient(e.client).DeleteTopics(ctx, e.topics...)
		}
		cancel()
		_ = os.RemoveAll(e.dir)
	}
	e.client.Close()
	e.kafka.Close()
}

func (e *Env) path(name string) string { return filepath.Join(e.dir, name) }

// topic is the scenario's own name of a topic.
func (e *Env) topic(name string) string { return e.prefix + name }

// createTopic makes a topic of the scenario.
func (e *Env) createTopic(ctx context.Context, name string, partitions int32) error {
	return e.createTopicAs(ctx, name, partitions, nil)
}

// createTopicAs makes a topic with settings of its own.
func (e *Env) createTopicAs(ctx context.Context, name string, partitions int32, settings map[string]*string) error {
	full := e.topic(name)
	resp, err := kadm.NewClient(e.client).CreateTopic(ctx, partitions, 1, settings, full)
	if err = errors.Join(err, resp.Err); err != nil {
		return failure.Wrap(failure.Unreachable, err, "create topic %s", full)
	}
	e.topics = append(e.topics, full)
	return nil
}

// start runs the binary; env arms crash points.
func (e *Env) start(name string, env []string, args ...string) (*process, error) {
	p, err := spawn(e.o.Binary, args, env, e.path("weir.log"), name)
	if err != nil {
		return nil, err
	}
	e.children = append(e.children, p)
	e.starts.Add(1)
	e.mark("start", "process", 0, name)
	return p, nil
}

// mark puts a point on the timeline.
func (e *Env) mark(kind, lane string, rows int64, text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.timeline = append(e.timeline, Event{Seconds: e.o.Clock.Now().Sub(e.began).Seconds(), Kind: kind, Lane: lane, Rows: rows, Text: text})
}

// kill kills a process and starts the clock of its recovery.
func (e *Env) kill(ctx context.Context, p *process, grown probe) (settle func(), err error) {
	if err := p.kill9(); err != nil {
		return nil, err
	}
	return e.recover(ctx, grown)
}

// strike kills a process without measuring a recovery.
func (e *Env) strike(p *process, text string) error {
	if err := p.kill9(); err != nil {
		return err
	}
	e.kills++
	e.mark("kill", "process", 0, text)
	return nil
}

// dies waits for a process that is armed to kill itself, and starts the clock
// of its recovery. reached is false where it ended otherwise, or not in time.
func (e *Env) dies(ctx context.Context, p *process, limit time.Duration, grown probe) (settle func(), reached bool, err error) {
	ctxWait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-p.exited:
	case <-ctxWait.Done():
		p.abandon()
		return func() {}, false, ctx.Err()
	}
	if !p.killed() {
		return func() {}, false, nil
	}
	settle, err = e.recover(ctx, grown)
	return settle, true, err
}

// probe is a figure that an independent reader sees: rows of a table, records
// of a topic. It only grows.
type probe func(context.Context) (int64, error)

// tableRows is the probe of a table's rows.
func (e *Env) tableRows(table string) probe {
	return func(ctx context.Context) (int64, error) { return e.rows(ctx, table) }
}

// recover measures, from right after a kill, the time until the figure has
// grown. settle ends the measuring and waits for that; a process that added
// nothing more, because nothing was left, gives no figure.
func (e *Env) recover(ctx context.Context, grown probe) (settle func(), err error) {
	at := e.o.Clock.Now()
	e.kills++
	e.mark("kill", "process", 0, "SIGKILL")
	before, err := grown(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	dead := e.starts.Load()
	go func() {
		defer close(done)
		for e.o.Clock.Sleep(ctx, pollEvery) == nil {
			alive := e.starts.Load() > dead
			n, err := grown(ctx)
			switch {
			case err != nil:
			case !alive:
				// The dead process's last transaction may become visible only now.
				before = n
			case n > before:
				e.mu.Lock()
				e.recovery = append(e.recovery, e.o.Clock.Now().Sub(at).Seconds())
				e.mu.Unlock()
				return
			}
		}
	}()
	return func() { cancel(); <-done }, nil
}

// pollEvery is how often tables are looked at.
const pollEvery = 25 * time.Millisecond

// peek reads what a table says right now, from the catalog's newest metadata.
func (e *Env) peek(ctx context.Context, table string) (*audit.Head, error) {
	if e.catalogFile != "" {
		if _, err := os.Stat(e.catalogFile); errors.Is(err, os.ErrNotExist) {
			return &audit.Head{}, nil
		}
	}
	return audit.Peek(ctx, e.catalog, nil, table)
}

// rows is how many rows a table has by its manifests.
func (e *Env) rows(ctx context.Context, table string) (int64, error) {
	h, err := e.peek(ctx, table)
	if err != nil {
		return 0, err
	}
	return h.Rows, nil
}

// until polls a condition while the process runs; limit bounds the wait.
func (e *Env) until(ctx context.Context, p *process, limit time.Duration, what string, cond func() (bool, error)) error {
	deadline := e.o.Clock.Now().Add(limit)
	for {
		ok, err := cond()
		if err != nil {
			return err
		}
		if ok {
			return nil
		}
		if !p.running() {
			return violated("%s ended with %s before %s\n%s", p.name, p.ending(), what, p.tail())
		}
		if e.o.Clock.Now().After(deadline) {
			return violated("%s did not come within %s\n%s", what, limit, p.tail())
		}
		if err := e.o.Clock.Sleep(ctx, pollEvery); err != nil {
			return err
		}
	}
}

// caughtUp reports whether a table says that it holds the topic to its end.
func (e *Env) caughtUp(ctx context.Context, table, topic string) (bool, error) {
	h, err := e.peek(ctx, table)
	if err != nil || !h.Exists {
		return false, err
	}
	offsets, err := h.Offsets(topic)
	if err != nil {
		return false, err
	}
	b, err := e.kafka.Bounds(ctx, topic)
	if err != nil {
		return false, err
	}
	for p, pb := range b.Partitions {
		if offsets[p] < pb.Stable {
			return false, nil
		}
	}
	return true, nil
}

// messages counts the records that a read_committed reader of the topic gets.
func (e *Env) messages(ctx context.Context, topic string) (n int64, err error) {
	err = e.scan(ctx, topic, func(*audit.Record) error { n++; return nil })
	return n, err
}

// produce writes events to a topic, keyed by their id.
func (e *Env) produce(ctx context.Context, topic string, events []event) error {
	recs := make([]*kgo.Record, len(events))
	for i, ev := range events {
		recs[i] = &kgo.Record{Topic: topic, Value: ev.payload}
		if ev.id != "" {
			recs[i].Key = []byte(ev.id)
		}
	}
	if err := e.client.ProduceSync(ctx, recs...).FirstErr(); err != nil {
		return failure.Wrap(failure.Unreachable, err, "publish to %s", topic)
	}
	return nil
}

// gatherTimeline adds the commits of the tables, as their snapshots date them.
func (e *Env) gatherTimeline(ctx context.Context, tables ...string) {
	for _, table := range tables {
		h, err := e.peek(ctx, table)
		if err != nil || !h.Exists {
			continue
		}
		e.mu.Lock()
		for _, c := range h.Commits {
			text := strings.TrimSpace(fmt.Sprintf("%s batch %s", c.Operation, c.BatchID))
			e.timeline = append(e.timeline, Event{Seconds: c.At.Sub(e.began).Seconds(), Kind: "commit", Lane: table, Rows: c.Added, Text: text})
		}
		e.mu.Unlock()
	}
	slices.SortStableFunc(e.timeline, func(a, b Event) int {
		switch {
		case a.Seconds < b.Seconds:
			return -1
		case a.Seconds > b.Seconds:
			return 1
		}
		return 0
	})
}
