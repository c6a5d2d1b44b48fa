package app

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/sink"
)

// connectMax bounds each part of Connect: whoever asks wants an answer, not to
// wait until a server comes back.
const connectMax = 30 * time.Second

// Connection is one thing that a pipeline needs of somebody else.
type Connection struct {
	// Of is kafka, store, catalog or sink; Need says what is needed of which.
	Of   string `json:"of"`
	Need string `json:"need"`
	OK   bool   `json:"ok"`
	// Error and Hint say what is missing and the way out, Class what kind of
	// failure it is. Note is set where something could not be tried.
	Class string `json:"class,omitempty"`
	Error string `json:"error,omitempty"`
	Hint  string `json:"hint,omitempty"`
	Note  string `json:"note,omitempty"`
}

// ConnectReport is everything that was tried.
type ConnectReport struct {
	OK          bool         `json:"ok"`
	Connections []Connection `json:"connections"`
	class       failure.Class
}

// ExitCode is 0, 8 where everything that fails is merely out of reach, else 2.
func (r *ConnectReport) ExitCode() int { return int(r.class) }

func (r *ConnectReport) add(of, need string, err error, note ...string) {
	c := Connection{Of: of, Need: need, OK: err == nil, Note: strings.Join(note, "; ")}
	if err != nil {
		class := failure.ClassOf(err)
		c.Class = class.String()
		c.Error, c.Hint, _ = strings.Cut(err.Error(), "\n  hint: ")
		if errors.Is(err, context.DeadlineExceeded) {
			class, c.Class = failure.Unreachable, failure.Unreachable.String()
		}
		switch {
		case class != failure.Unreachable:
			r.class = failure.Config
		case r.class == 0:
			r.class = failure.Unreachable
		}
	}
	r.Connections = append(r.Connections, c)
}

// Connect tries every connection and permission that the pipeline needs, on
// names of its own, and leaves nothing behind. No query is claimed and no data
// moves. What fails does not keep the rest from being tried.
func Connect(ctx context.Context, p *pipeline.Pipeline, o Options) *ConnectReport {
	a := &App{P: p, opts: o, notify: map[string]*notifier{}}
	a.fillOptions()
	defer a.Close()
	r := &ConnectReport{}
	for _, part := range []func(context.Context, *ConnectReport){a.connectKafka, a.connectStores, a.connectCatalog, a.connectRegistries, a.connectSinks} {
		part(ctx, r)
	}
	r.OK = r.class == 0
	return r
}

// locations are the folders and prefixes that the pipeline writes to, with what
// lies there.
func (a *App) locations() (out []string, of map[string]string) {
	of = map[string]string{}
	add := func(location, what string) {
		if location == "" {
			return
		}
		if of[location] == "" {
			out = append(out, location)
			of[location] = what
		}
	}
	if a.P.Catalog.Type == pipeline.CatalogSQL {
		add(a.P.Warehouse, "warehouse")
	}
	for _, q := range a.P.Queries {
		add(CheckpointDir(a.P, q), "checkpoint of "+q.Name)
		add(MainLocation(a.P, q), "table of "+q.Name)
		add(DeadLetterLocation(a.P, q), "dead letters of "+q.Name)
	}
	return out, of
}

func (a *App) connectStores(ctx context.Context, r *ConnectReport) {
	locations, of := a.locations()
	for _, location := range locations {
		ctx, cancel := context.WithTimeout(ctx, connectMax)
		r.add("store", of[location]+" at "+location+": create once, read, list, replace, delete", a.probeStore(ctx, location))
		cancel()
	}
}

// probeStore tries what a checkpoint and a table need, on a name of its own.
func (a *App) probeStore(ctx context.Context, location string) error {
	if !pipeline.OnS3(location) {
		defer leave(location)()
	}
	s, err := a.openCheckpoint(ctx, location)
	if err != nil {
		return err
	}
	if p, ok := s.(interface{ Probe(context.Context) error }); ok {
		err = p.Probe(ctx)
	} else {
		err = objstore.ProbeCreateOnce(ctx, s)
	}
	if err != nil {
		return err
	}
	key := objstore.ProbePrefix + clock.Nonce()
	defer func() { _ = s.Delete(context.WithoutCancel(ctx), key) }()
	if err := s.Put(ctx, key, []byte("probe")); err != nil {
		return err
	}
	found, err := s.List(ctx, objstore.ProbePrefix)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(found, func(i objstore.Info) bool { return i.Key == key }) {
		return failure.New(failure.Config, "%s does not list an object that was just written", location).
			WithHint("a store whose listings lag cannot hold checkpoints")
	}
	if err := s.Delete(ctx, key); err != nil {
		return err
	}
	if _, err := s.Get(ctx, key); !errors.Is(err, objstore.ErrNotExist) {
		return failure.New(failure.Config, "%s still has an object that was just deleted (%v)", location, err)
	}
	return nil
}

// leave notes which folders above a local location are missing; the function
// that it gives removes those that are there and empty then.
func leave(location string) func() {
	var missing []string
	for dir := location; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			break
		}
		missing = append(missing, dir)
	}
	return func() {
		for _, dir := range missing {
			_ = os.Remove(dir) // only an empty folder goes
		}
	}
}

func (a *App) connectCatalog(ctx context.Context, r *ConnectReport) {
	ctx, cancel := context.WithTimeout(ctx, connectMax)
	defer cancel()
	r.add("catalog", a.P.Catalog.Type+" catalog: make, commit to, fence and drop a table", a.probeCatalog(ctx))
}

func (a *App) probeCatalog(ctx context.Context) (err error) {
	cfg := CatalogConfig(a.P, a.opts.Logger)
	cfg.OpenDeadline = min(cfg.OpenDeadline, connectMax/2)
	cleanUp := func() {}
	if a.P.Catalog.IsSQLite() {
		if _, serr := os.Stat(cfg.URI); errors.Is(serr, fs.ErrNotExist) {
			// A catalog that is not there yet is not made: one beside it is.
			tidy := leave(filepath.Dir(cfg.URI))
			cfg.URI += ".probe-" + clock.Nonce()
			cleanUp = func() {
				for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
					_ = os.Remove(cfg.URI + suffix)
				}
				tidy()
			}
		}
	}
	defer func() { cleanUp() }()
	if !pipeline.OnS3(a.P.Warehouse) && a.P.Warehouse != "" {
		defer leave(a.P.Warehouse)()
	}
	if err := a.openStores(); err != nil {
		return err
	}
	cfg.Stores = a.stores
	c, err := lake.Open(ctx, cfg)
	if err != nil {
		return err
	}
	a.Catalog = c
	a.closers = append(a.closers, c.Close)
	if strings.Contains(cfg.URI, ".probe-") {
		a.Catalog = nil // the sinks are not asked over a catalog that goes
		defer func() { _ = c.Close() }()
		a.closers = a.closers[:len(a.closers)-1]
	}
	location, err := c.Probe(ctx, a.namespaces())
	return errors.Join(err, a.removeTree(context.WithoutCancel(ctx), location))
}

// namespaces are those that the pipeline's tables stand in.
func (a *App) namespaces() (out []table.Identifier) {
	seen := map[string]bool{}
	for _, q := range a.P.Queries {
		ident, err := lake.ParseName(q.To.Table())
		if err != nil || q.To.Iceberg == nil || seen[ident[0]] {
			continue
		}
		seen[ident[0]] = true
		out = append(out, ident[:len(ident)-1])
	}
	return out
}

// removeTree removes the files of a scratch table.
func (a *App) removeTree(ctx context.Context, location string) error {
	if location == "" {
		return nil
	}
	if local, ok := strings.CutPrefix(location, "file://"); ok || strings.HasPrefix(location, "/") {
		if !ok {
			local = location
		}
		if err := os.RemoveAll(local); err != nil {
			return failure.Wrap(failure.Config, err, "remove the files of the scratch table")
		}
		_ = os.Remove(filepath.Dir(local)) // its namespace's folder, where it is empty
		return nil
	}
	if !pipeline.OnS3(location) {
		return nil
	}
	s, err := a.openCheckpoint(ctx, location)
	if err != nil {
		return err
	}
	all, err := s.List(ctx, "")
	if err != nil {
		return err
	}
	for _, o := range all {
		if err := s.Delete(ctx, o.Key); err != nil {
			return err
		}
	}
	return nil
}

// connectSinks asks the stores outside.
func (a *App) connectSinks(ctx context.Context, r *ConnectReport) {
	for _, q := range a.P.Queries {
		if _, e := q.To.External(); e == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, connectMax)
		note, err := a.probeSink(ctx, q)
		r.add("sink", "query "+q.Name+" to "+q.To.Table(), err, note...)
		cancel()
	}
}

func (a *App) probeSink(ctx context.Context, q pipeline.Query) (note []string, err error) {
	t, err := Transform(q)
	if err != nil {
		return nil, err
	}
	if q.To.Kafka != nil && a.Kafka.BootstrapServers == nil && a.P.Kafka != nil {
		if a.P.Kafka.Embedded != nil && len(q.To.Kafka.BootstrapServers) == 0 {
			return []string{"it writes to the embedded broker, which is started with the pipeline, not now"}, nil
		}
		a.Kafka = KafkaConfig(a.P.Kafka, "")
	}
	for _, location := range sinkLocations(a.P, q) {
		defer leave(location)()
	}
	s, err := a.externalSink(ctx, q, t.Outputs()[operator.Main])
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }()
	if p, ok := s.(sink.Prober); ok {
		return probeNote(q), p.Probe(ctx)
	}
	_, err = s.Facts(ctx, q.Name)
	return []string{"connected and read; writing is not tried"}, err
}

// sinkLocations are the local folders that opening a sink makes.
func sinkLocations(p *pipeline.Pipeline, q pipeline.Query) (out []string) {
	var all []string
	switch {
	case q.To.File != nil:
		all = []string{q.To.File.Path}
	case q.To.HTTP != nil, q.To.Exec != nil:
		all = []string{DeliveriesLocation(CheckpointDir(p, q))}
	}
	for _, location := range all {
		if !pipeline.Remote(location) {
			out = append(out, location)
		}
	}
	return out
}

// probeNote says what a sink's probe leaves out, because it could not be undone.
func probeNote(q pipeline.Query) []string {
	switch {
	case q.To.Postgres != nil:
		return []string{"within a transaction that is rolled back"}
	case q.To.Kafka != nil:
		return []string{"permissions are asked for; nothing is produced"}
	case q.To.HTTP != nil:
		return []string{"connected; no request is sent"}
	case q.To.Exec != nil:
		return []string{"the program is looked for, not run"}
	}
	return nil
}
