package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/maintain"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore/cloud"
	"github.com/weirlake/weir/internal/objstore/s3"
	"github.com/weirlake/weir/internal/openlineage"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/tracing"
)

// Options are what a command adds to the pipeline file.
type Options struct {
	Logger *slog.Logger
	Clock  clock.Clock
	// Version is this program's, for traces and lineage.
	Version string
	// Executable runs the embedded broker; empty is this program.
	Executable string
	// TakeOver claims queries although another instance seems alive.
	TakeOver bool
	// NewState names queries that give up what they remember.
	NewState []string
	// OnProgress and OnAlert are called by the queries.
	OnProgress func(engine.Progress)
	OnAlert    func(query, text string)
	// Queries limits the queries that are built; nil builds all.
	Queries []string
	// finishing is set by a rebuild that makes its query go on.
	finishing bool
}

// App is an opened pipeline: a broker that answers, a catalog, queries that are
// ready to run.
type App struct {
	P       *pipeline.Pipeline
	Catalog *lake.Catalog
	Kafka   broker.Config

	opts     Options
	child    *broker.Child
	nodes    []*node
	progress *progressSink
	closers  []func() error
	notify   map[string]*notifier // by table
	stores   *s3.Stores           // how buckets are reached; openStores makes it
	clouds   *cloud.Stores        // the same on the other clouds
	// ingesters are those that Ingester made, for the status page; watch is nil
	// where there is none.
	ingesters []ingester
	watch     *watch
	// opsCare is the care of the engine's own tables, by name; opsCareFrom is when
	// it began.
	opsCare     map[string]*maintain.Care
	opsCareFrom time.Time
	jobs        *jobs // nil where the file has none
	jobsOff     bool  // the jobs are not run beside the queries
	stopping    stopping

	// planning: nothing is made, see Plan. noBroker: the embedded one is not there.
	planning, noBroker bool
	// tracer and lineageTo are nil where they are not asked for.
	tracer    *tracing.Tracer
	lineageTo *openlineage.Client
}

// Open starts what the pipeline needs and builds its queries. Nothing is
// claimed or read before Run.
func Open(ctx context.Context, p *pipeline.Pipeline, o Options) (a *App, err error) {
	a = &App{P: p, opts: o, notify: map[string]*notifier{}}
	a.fillOptions()
	opened := a // a return with an error has set a to nil by then
	defer func() {
		if err != nil {
			_ = opened.Close()
		}
	}()
	if err := a.openObservers(ctx); err != nil {
		return nil, err
	}
	if err := a.openKafka(ctx); err != nil {
		return nil, err
	}
	if err := a.openCatalog(ctx); err != nil {
		return nil, err
	}
	if err := a.openProgress(ctx); err != nil {
		return nil, err
	}
	if err := a.careForOps(ctx); err != nil {
		return nil, err
	}
	if err := a.buildQueries(ctx); err != nil {
		return nil, err
	}
	if err := a.openJobs(); err != nil {
		return nil, err
	}
	return a, a.probeCheckpoints(ctx)
}

func (a *App) fillOptions() {
	if a.opts.Clock == nil {
		a.opts.Clock = clock.System{}
	}
	if a.opts.Logger == nil {
		a.opts.Logger = slog.Default()
	}
}

// Close ends everything that Open began; the embedded broker last.
func (a *App) Close() error {
	var errs []error
	for i := len(a.closers) - 1; i >= 0; i-- {
		errs = append(errs, a.closers[i]())
	}
	a.closers = nil
	return errors.Join(errs...)
}

// Queries are the built queries, upstream first.
func (a *App) Queries() []*engine.Query {
	var out []*engine.Query
	for _, l := range levels(a.nodes) {
		for _, n := range l {
			out = append(out, n.query)
		}
	}
	return out
}

// KafkaConfig is how the pipeline's broker is reached. For an embedded broker
// bootstrap is the address that it answers at.
func KafkaConfig(k *pipeline.Kafka, bootstrap string) broker.Config {
	c := broker.Config{BootstrapServers: k.BootstrapServers, ClientID: k.ClientID, Rack: k.Rack}
	if bootstrap != "" {
		c.BootstrapServers = []string{bootstrap}
	}
	if k.TLS != nil {
		c.TLS = broker.TLS{
			Enabled: true, CAFile: k.TLS.CAFile, CertFile: k.TLS.CertFile, KeyFile: k.TLS.KeyFile,
			ServerName: k.TLS.ServerName, InsecureSkipVerify: k.TLS.InsecureSkipVerify,
		}
	}
	if k.SASL != nil {
		c.SASL = saslConfig(k.SASL)
	}
	return c
}

func (a *App) openKafka(ctx context.Context) error {
	k := a.P.Kafka
	if k == nil {
		return nil
	}
	if err := a.spawnBroker(ctx); err != nil {
		return err
	}
	return a.createTopics(ctx, k.Topics)
}

// spawnBroker starts the embedded broker where the pipeline has one, and says how
// the broker is reached.
func (a *App) spawnBroker(ctx context.Context) error {
	k := a.P.Kafka
	bootstrap := ""
	if k.Embedded != nil {
		exe := a.opts.Executable
		if exe == "" {
			var err error
			if exe, err = os.Executable(); err != nil {
				return fmt.Errorf("find this program, to run the embedded broker: %w", err)
			}
		}
		child, err := broker.Spawn(ctx, exe, broker.EmbeddedConfig{DataDir: k.Embedded.DataDir, Port: k.Embedded.Port})
		if err != nil {
			return failure.Wrap(failure.Unreachable, err, "start the embedded broker in %s", k.Embedded.DataDir)
		}
		a.child = child
		a.closers = append(a.closers, func() error { return child.Stop(context.WithoutCancel(ctx)) })
		bootstrap = child.Bootstrap()
		if from := child.Ready.MovedFrom; from != 0 {
			a.opts.Logger.Warn("another program listens on the embedded broker's port: it took another one", "port", from, "now_at", bootstrap)
		}
	}
	a.Kafka = KafkaConfig(k, bootstrap)
	return nil
}

// KafkaOptions are the client options of the pipeline's broker.
func (a *App) KafkaOptions() ([]kgo.Opt, error) { return broker.ClientOptions(a.Kafka) }

func (a *App) openCatalog(ctx context.Context) error {
	return a.openCatalogAs(ctx, CatalogConfig(a.P, a.opts.Logger))
}

// openCatalogToRead makes nothing; the catalog is nil where there is none yet.
func (a *App) openCatalogToRead(ctx context.Context) error {
	cfg := CatalogConfig(a.P, a.opts.Logger)
	cfg.ReadOnly = true
	err := a.openCatalogAs(ctx, cfg)
	if errors.Is(err, lake.ErrNoCatalog) {
		return nil
	}
	return err
}

func (a *App) openCatalogAs(ctx context.Context, cfg lake.Config) error {
	if err := a.openStores(); err != nil {
		return err
	}
	cfg.Stores, cfg.Cloud = a.stores, a.clouds
	c, err := lake.Open(ctx, cfg)
	if err != nil {
		return err
	}
	a.Catalog = c
	a.closers = append(a.closers, c.Close)
	return nil
}

// instanceID names this deployment of a query: the same checkpoint on the same
// host is the same instance, restarted.
func instanceID(checkpointDir, query string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	abs := checkpointDir
	if !pipeline.Remote(abs) {
		if p, err := filepath.Abs(abs); err == nil {
			abs = p
		}
	}
	return host + "-" + marker.Hash([]byte(host + "\x00" + abs + "\x00" + query))[:12]
}

// notifier tells the readers of a table that a batch was committed to it. It
// never blocks the writer: a reader that has not looked yet will see the newest
// head anyway.
type notifier struct {
	mu   sync.Mutex
	subs []chan struct{}
}

func (n *notifier) subscribe() <-chan struct{} {
	ch := make(chan struct{}, 1)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.subs = append(n.subs, ch)
	return ch
}

func (n *notifier) signal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, ch := range n.subs {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

func (a *App) notifierOf(table string) *notifier {
	n, ok := a.notify[table]
	if !ok {
		n = &notifier{}
		a.notify[table] = n
	}
	return n
}
