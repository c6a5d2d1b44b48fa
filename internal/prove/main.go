package prove

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

// Options say what to prove, and with what.
type Options struct {
	// Names are scenarios, groups or patterns; none is every scenario.
	Names []string
	// Seed makes the events and the choices; 0 takes one from the clock. It is
	// in every result.
	Seed uint64
	// Repeat does every scenario so often; 0 is 1.
	Repeat int
	// Jobs is how many scenarios run side by side; 0 is 1. More of them take
	// the same machine longer to recover.
	Jobs int
	// Resume keeps results that an earlier run of the same binary in Dir came to
	// with the same kind of broker, inconclusive ones aside.
	Resume bool
	// Dir is the work folder.
	Dir string
	// Binary is the weir that is tested.
	Binary string
	// Kafka is a cluster that runs already; KafkaScript starts a real one
	// (scripts/kafka.sh). With neither it is the binary's embedded broker.
	Kafka       []string
	KafkaScript string
	// RealScript, where set, starts a real Kafka for the scenarios that ask for
	// one, while the others run on the embedded broker.
	RealScript string
	// StoreScript, where set, starts an S3 server for the scenarios of one that
	// fails (scripts/s3.sh).
	StoreScript string
	// Scripts, where set, is the folder of the scripts that start other servers
	// (scripts/postgres.sh, scripts/cassandra.sh).
	Scripts string
	// Port of a broker that is started; 0 takes a free one.
	Port int
	// Direct publishes to Kafka straight from here instead of through weir ingest.
	Direct bool
	// KillAt is one of the Kill moments, KillAfter and Trigger override the
	// reference scenario's 12 s and 2 s: for trying the guard.
	KillAt    string
	KillAfter time.Duration
	Trigger   time.Duration
	// Keep leaves the folders of proved scenarios as well.
	Keep bool
	// Python and Readers, where both are set, let PyIceberg and DuckDB count
	// too: an interpreter and the folder tests/readers.
	Python, Readers string
	// Spark, where set, lets Spark work on the tables: what scripts/spark.sh prints,
	// an interpreter and the jars, with a blank between.
	Spark string
	// Version and Revision of the binary, for the report.
	Version, Revision string
	// Progress receives lines while it runs; nil none.
	Progress io.Writer
	// Clock defaults to the system's.
	Clock clock.Clock
	// User, where set, is a pipeline of the user's own that is proved instead.
	User *User
	// Scenarios overrides the list, for tests.
	Scenarios []Scenario

	servers *servers
}

func (o *Options) triggerOr(d time.Duration) time.Duration {
	if o.Trigger > 0 {
		return o.Trigger
	}
	return d
}

func (o *Options) killAfterOr(d time.Duration) time.Duration {
	if o.KillAfter > 0 {
		return o.KillAfter
	}
	return d
}

func (o *Options) nonce() string { return clock.Nonce()[:8] }

// List is every scenario, in the order in which they run.
func List() []Scenario {
	return slices.Concat([]Scenario{reference()}, checkpoints(), ingestKills(), crashPoints(), cares(), sessions(), states(), golds(),
		foreachBatches(), instances(), brokerFaults(), storeFaults(), catalogs(), outside(), deltas(), upserts(),
		foreignHands(), limits(), memoryLimits(), clockJumps(), lates(), erases(), rebuilds(), storms())
}

// prepare fills in defaults and checks the options.
func (o *Options) prepare() error {
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	if o.Seed == 0 {
		o.Seed = uint64(o.Clock.Now().UnixNano())
	}
	if o.Repeat < 1 {
		o.Repeat = 1
	}
	if o.Jobs < 1 {
		o.Jobs = 1
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	o.Progress = &lines{w: o.Progress}
	if o.Scenarios == nil && o.User != nil {
		var err error
		if o.Scenarios, err = o.User.scenarios(); err != nil {
			return err
		}
	}
	if o.Scenarios == nil {
		o.Scenarios = List()
	}
	if o.KillAt == "" {
		o.KillAt = KillMid
	}
	var errs []error
	if o.Binary == "" {
		errs = append(errs, errors.New("no binary to test"))
	}
	if o.Dir == "" {
		errs = append(errs, errors.New("no work folder"))
	}
	if len(o.Kafka) > 0 && o.KafkaScript != "" {
		errs = append(errs, errors.New("a running Kafka and a script to start one"))
	}
	switch o.KillAt {
	case KillMid, KillBeforeFirstCommit, KillAfterLast:
	default:
		errs = append(errs, fmt.Errorf("kill at %q: want %s, %s or %s", o.KillAt, KillMid, KillBeforeFirstCommit, KillAfterLast))
	}
	if len(errs) > 0 {
		return failure.Wrap(failure.Config, errors.Join(errs...), "prove")
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return err
	}
	o.Dir = dir
	return os.MkdirAll(dir, 0o755)
}

// Main runs the scenarios. The error is for what kept them from running; what
// they came to is in the report, and Report.Err classifies it.
func Main(ctx context.Context, o Options) (*Report, error) {
	if err := o.prepare(); err != nil {
		return nil, err
	}
	scenarios, err := Select(o.Scenarios, o.Names)
	if err != nil {
		return nil, err
	}
	unlock, err := lockDir(o.Dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	build, err := Digest(o.Binary)
	if err != nil {
		return nil, err
	}
	results, err := openResults(filepath.Join(o.Dir, "results.jsonl"), build, o.Resume)
	if err != nil {
		return nil, err
	}
	defer results.close()
	brokers := &brokers{o: o}
	defer brokers.stop()
	o.servers = &servers{o: o, running: map[string]*server{}}
	defer o.servers.stop()
	report := &Report{About: o.about(ctx)}
	began := o.Clock.Now()
	err = runAll(ctx, o, scenarios, brokers, results, report)
	report.About.ElapsedSeconds = o.Clock.Now().Sub(began).Seconds()
	report.sum()
	return report, err
}

func runScenario(ctx context.Context, o Options, b *broker, s *Scenario, repeat int, label string) *Result {
	res := &Result{Name: s.Name, Group: s.Group, Claim: s.Claim, Place: s.Place, Seed: o.Seed, Repeat: repeat, Broker: b.name, BrokerKind: b.kind,
		Observed: map[string]any{}, Expected: map[string]any{}, RecoverySeconds: []float64{}}
	began := o.Clock.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(o.Progress, "%s  %6.1fs  %s\n", label, o.Clock.Now().Sub(began).Seconds(), fmt.Sprintf(format, args...))
	}
	e, err := newEnv(o, b, s, repeat, say)
	if err != nil {
		res.Outcome, res.Reason = Inconclusive, err.Error()
		return res
	}
	res.Outcome, res.Reason, res.Checks = s.perform(ctx, e)
	for _, c := range res.Checks {
		res.Expected[c.Key] = c.Want
	}
	keep := o.Keep || res.Outcome != Proved
	e.close(keep)
	if keep {
		res.Folder = e.dir
	}
	res.Observed, res.Remarks, res.Servers = e.observed, e.remarks, e.servers
	res.Kills, res.KillsLanded, res.RecoverySeconds, res.Timeline = e.kills, s.landed(e), e.recovery, e.timeline
	res.ElapsedSeconds = o.Clock.Now().Sub(began).Seconds()
	say("%s", outcomeLine(res))
	return res
}

func outcomeLine(r *Result) string {
	if r.Reason != "" {
		return r.Outcome + ": " + r.Reason
	}
	return r.Outcome
}

// lockDir keeps two runs out of one work folder.
func lockDir(dir string) (func(), error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, failure.New(failure.Config, "another proof runs in %s", dir).WithHint("give each its own work folder")
	}
	return func() { f.Close() }, nil
}
