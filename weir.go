package weir

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/checkpoint"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/foreachbatch"
)

// Query is a streaming query under construction. Its methods return the query
// itself, so that they can be chained; what is wrong is said by Run and Start,
// all of it at once.
type Query struct {
	name       string
	source     Source
	parse      *Parse
	transform  *Transform
	trigger    Trigger
	checkpoint string
	deliveries string
	onLost     LostCheckpoint
	table      Table
	dead       Table
	handler    Handler
	settings   Settings
	clock      clock.Clock
	// store opens a checkpoint or a record; another one in tests.
	store  func(ctx context.Context, location string, clk clock.Clock) (objstore.Store, error)
	faults []string
}

// NewQuery begins a query. The name is its identity in tables and checkpoints: a
// renamed query is another one.
func NewQuery(name string) *Query {
	return &Query{name: name, clock: clock.System{}, store: app.OpenStore}
}

func (q *Query) once(set bool, what string) {
	if set {
		q.faults = append(q.faults, what+" is given twice")
	}
}

// From sets the source.
func (q *Query) From(s Source) *Query {
	q.once(q.source != nil, "the source")
	q.source = s
	return q
}

// Parse turns the JSON of each record's value into columns. Without it rows are
// Kafka records as they came: topic, partition, offset, timestamp,
// timestamp_type, key, value, headers, ingested_at, topic_id.
func (q *Query) Parse(p Parse) *Query {
	q.once(q.parse != nil, "Parse")
	q.parse = &p
	return q
}

// Transform applies a function to the rows, after Parse.
func (q *Query) Transform(t Transform) *Query {
	q.once(q.transform != nil, "Transform")
	q.transform = &t
	return q
}

// Trigger says when a batch is planned; the next one as soon as there is
// something new where it is not called.
func (q *Query) Trigger(t Trigger) *Query {
	q.trigger = t
	return q
}

// Checkpoint sets the query's folder, local or s3://bucket/prefix, which no
// other query may share.
func (q *Query) Checkpoint(location string) *Query {
	q.checkpoint = location
	return q
}

// Deliveries sets where a query with ForeachBatch writes down what it has handed
// over: beside the checkpoint (its location and ".deliveries") where it is not
// called. It must outlive the checkpoint, so that a lost checkpoint is noticed.
func (q *Query) Deliveries(location string) *Query {
	q.deliveries = location
	return q
}

// OnLostCheckpoint says what to do where the checkpoint is gone; Adopt where it
// is not called.
func (q *Query) OnLostCheckpoint(p LostCheckpoint) *Query {
	q.onLost = p
	return q
}

// To sets the table that rows are appended to, exactly once. It is the simpler
// way and the first choice.
func (q *Query) To(t Table) *Query {
	q.once(q.table != nil, "To")
	q.table = t
	return q
}

// DeadLetters sets the table for rows that Parse cannot use. Without it they are
// counted and not kept.
func (q *Query) DeadLetters(t Table) *Query {
	q.once(q.dead != nil, "DeadLetters")
	q.dead = t
	return q
}

// ForeachBatch hands each batch to a function, at least once: see Handler.
func (q *Query) ForeachBatch(h Handler) *Query {
	q.once(q.handler != nil, "ForeachBatch")
	q.handler = h
	return q
}

// With sets what is seldom set.
func (q *Query) With(s Settings) *Query {
	q.settings = s
	return q
}

// Settings are what is seldom set; the zero value is usable.
type Settings struct {
	// Logger is slog.Default() where nil.
	Logger *slog.Logger
	// InstanceID is stable for one deployment of the query; host and checkpoint
	// where empty.
	InstanceID string
	// TakeOver claims the query although another instance seems alive.
	TakeOver bool
	// OnProgress is called after every batch, OnAlert for what a person must see
	// (a lost checkpoint, a restart). They must not block.
	OnProgress func(Progress)
	OnAlert    func(text string)
	// HandlerTimeout bounds a batch's handler with all its tries; its context
	// ends then. 15 minutes where 0.
	HandlerTimeout time.Duration
	// HandlerTries is how often a batch is handed over while the error is marked
	// by Transient; 6 where 0. The pauses double from 200 ms to 10 s.
	HandlerTries int
	// MaxBatchBytes is how large a batch for a handler may be in memory; 1 GiB
	// where 0.
	MaxBatchBytes int64
	// State is where the ids of DropDuplicatesWithinWatermark are kept; in memory
	// where nil.
	State *PebbleState
}

// PebbleState keeps what a query remembers in a database in a local folder, for
// state that is larger than memory. The folder is scratch: the checkpoint holds the
// state, in the same form as without it.
type PebbleState struct {
	// Folder is local; a folder in the checkpoint, or in the user's cache folder
	// where the checkpoint is in an object store, where empty. Each query has
	// a folder of its own in it.
	Folder string
	// CacheBytes bounds its memory; 256 MiB where 0.
	CacheBytes int64
}

const (
	handlerTimeout = 15 * time.Minute
	recentMax      = 100 // progress rows that a Running keeps
)

// LostCheckpoint is what to do where the checkpoint is gone, or older than what
// the sink remembers.
type LostCheckpoint string

// The policies. A query with ForeachBatch never adopts: with the checkpoint the
// plan of the batch under way is lost, and the same batch id would come with
// other rows. It stops, unless it is told to restart.
const (
	// Adopt goes on from what the table remembers: nothing is lost or repeated.
	Adopt LostCheckpoint = "adopt"
	// Fail stops.
	Fail LostCheckpoint = "fail"
	// Restart begins a new lineage at the starting offsets: rows come again,
	// under a new query id. Batch ids go on where they are known.
	Restart LostCheckpoint = "restart"
)

// Trigger says when a batch is planned.
type Trigger struct {
	kind  string
	every time.Duration
}

// ProcessingTime plans a batch every so often; 0 as soon as there is something
// new.
func ProcessingTime(every time.Duration) Trigger {
	return Trigger{kind: "processingTime", every: every}
}

// AvailableNow works off what is there at the start, in batches, and ends: the
// trigger for cron and orchestrators.
func AvailableNow() Trigger { return Trigger{kind: "availableNow"} }

// Once works off what is there at the start in one batch, and ends.
func Once() Trigger { return Trigger{kind: "once"} }

// Continuous is Spark's continuous mode. It is refused: Weir plans micro-batches.
func Continuous(interval time.Duration) Trigger {
	return Trigger{kind: "continuous", every: interval}
}

var nameShape = regexp.MustCompile(`^[A-Za-z0-9_-]([A-Za-z0-9._-]{0,126}[A-Za-z0-9_-])?$`)

// Validate says everything that is wrong with the query, without opening
// anything.
func (q *Query) Validate() error {
	faults := append([]string{}, q.faults...)
	add := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if !nameShape.MatchString(q.name) {
		add("the name %q is not a name that is also a file name: letters, digits, . _ - (at most 128), no . at either end", q.name)
	}
	if q.source == nil {
		add("From is missing")
	}
	if q.checkpoint == "" {
		add("Checkpoint is missing")
	}
	switch {
	case q.table == nil && q.handler == nil:
		add("To or ForeachBatch is missing")
	case q.table != nil && q.handler != nil:
		add("To and ForeachBatch exclude each other: a query has one sink. For several sinks run several queries over the same source, each with a checkpoint of its own")
	}
	if q.trigger.kind == "continuous" {
		if q.handler != nil {
			add("continuous mode with ForeachBatch: continuous processing has no batches, so there is no batch id that a redelivery could be known by; use ProcessingTime(0), which plans the next batch as soon as there is something new")
		} else {
			add("continuous mode is not supported: Weir plans micro-batches; use ProcessingTime(0)")
		}
	}
	if q.trigger.every < 0 {
		add("the trigger interval %s is negative", q.trigger.every)
	}
	switch q.onLost {
	case "", Adopt, Fail, Restart:
	default:
		add("OnLostCheckpoint %q is not one of adopt, fail, restart", q.onLost)
	}
	if q.deliveries != "" {
		if _, ok := q.table.(delivered); q.handler == nil && !ok {
			add("Deliveries is for queries with ForeachBatch, HTTP or Exec")
		}
		if inside(q.deliveries, q.checkpoint) {
			add("Deliveries lies inside the checkpoint, which it has to outlive")
		}
	}
	if q.dead != nil && q.parse == nil {
		add("DeadLetters without Parse: nothing can fail in rows that are taken as they are")
	}
	faults = append(faults, q.transformFaults()...)
	faults = append(faults, q.upsertFaults()...)
	if len(faults) > 0 {
		return failure.New(failure.Config, "query %s: %s", q.name, strings.Join(faults, "; "))
	}
	return nil
}

// inside reports whether path is folder or lies in it.
func inside(path, folder string) bool {
	rel, err := filepath.Rel(folder, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}

// opened is a query that is ready to run, and what it has to close.
type opened struct {
	query   *engine.Query
	closers []func() error
}

func (o *opened) close() error {
	var errs []error
	for i := len(o.closers) - 1; i >= 0; i-- {
		errs = append(errs, o.closers[i]())
	}
	return errors.Join(errs...)
}

// open makes the engine's query; stopping ends the pauses of a handler's tries.
func (q *Query) open(ctx context.Context, stopping <-chan struct{}) (o *opened, err error) {
	if err := q.Validate(); err != nil {
		return nil, err
	}
	log := q.settings.Logger
	if log == nil {
		log = slog.Default()
	}
	o = &opened{}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.close())
		}
	}()
	src, err := q.source.open(q.name, q.clock, log)
	if err != nil {
		return o, err
	}
	o.closers = append(o.closers, src.Close)
	transform, err := q.operators(src.Schema())
	if err != nil {
		return o, err
	}
	outputs, err := q.outputs(ctx, o, transform, log, stopping)
	if err != nil {
		return o, err
	}
	store, err := q.store(ctx, q.checkpoint, q.clock)
	if err != nil {
		return o, fmt.Errorf("query %s: checkpoint: %w", q.name, err)
	}
	if s := q.settings.State; s != nil {
		closeState, err := app.KeepState(transform, app.StatePlace{Query: q.name, Checkpoint: q.checkpoint, LockDir: app.LockDir(q.checkpoint), Folder: s.Folder,
			CacheBytes: s.CacheBytes, Logger: log})
		if err != nil {
			return o, err
		}
		o.closers = append(o.closers, closeState)
	}
	o.query = &engine.Query{
		Name: q.name, Source: src, Transform: transform, Outputs: outputs, Checkpoint: store, LockDir: app.LockDir(q.checkpoint),
		Clock: q.clock, Logger: log, OnAlert: q.settings.OnAlert,
		Options: engine.Options{
			Trigger:              engine.Trigger{ProcessingTime: q.trigger.every, AvailableNow: q.trigger.kind == "availableNow", Once: q.trigger.kind == "once"},
			MaxOffsetsPerTrigger: src.maxOffsets, FailOnDataLoss: src.failOnDataLoss,
			OnLostCheckpoint: checkpoint.OnLostCheckpoint(q.onLost), TakeOver: q.settings.TakeOver, InstanceID: q.settings.InstanceID,
		},
	}
	if o.query.Options.InstanceID == "" {
		o.query.Options.InstanceID = app.InstanceID(q.checkpoint, q.name)
	}
	if d, ok := q.table.(delivered); ok {
		o.query.Options.CommitDeadline = d.deadline()
	}
	if q.handler != nil {
		o.query.Options.CommitDeadline = handlerTimeout
		if q.settings.HandlerTimeout > 0 {
			o.query.Options.CommitDeadline = q.settings.HandlerTimeout
		}
	}
	return o, nil
}

// outputs makes the sinks.
func (q *Query) outputs(ctx context.Context, o *opened, t operator.Transform, log *slog.Logger, stopping <-chan struct{}) ([]engine.Output, error) {
	shapes := t.Outputs()
	var out []engine.Output
	location := q.deliveries
	if location == "" {
		location = app.DeliveriesLocation(q.checkpoint)
	}
	if q.handler != nil {
		record, err := q.store(ctx, location, q.clock)
		if err != nil {
			return nil, fmt.Errorf("query %s: record of deliveries: %w", q.name, err)
		}
		s, err := foreachbatch.New(foreachbatch.Options{
			Query: q.name, Handler: q.deliver, Record: record, Clock: q.clock, Stopping: stopping,
			Limits: foreachbatch.Limits{Tries: q.settings.HandlerTries, BatchBytes: q.settings.MaxBatchBytes},
		})
		if err != nil {
			return nil, err
		}
		out = append(out, engine.Output{Name: operator.Main, Sink: s})
	}
	shapes[operator.Rejected] = sink.RejectedSchema
	var rejected Table
	if o, ok := q.table.(outside); ok {
		rejected = o.rejected()
	}
	for _, s := range []struct {
		name  string
		table Table
	}{{operator.Main, q.table}, {operator.DeadLetter, q.dead}, {operator.Rejected, rejected}} {
		if s.table == nil {
			continue
		}
		made, closer, err := s.table.open(ctx, tableEnv{query: q.name, side: s.name != operator.Main, shape: shapes[s.name], clock: q.clock, log: log, deliveries: location, stopping: stopping, rows: q.rows()})
		if err != nil {
			return nil, err
		}
		o.closers = append(o.closers, closer)
		out = append(out, engine.Output{Name: s.name, Sink: made})
	}
	return out, nil
}

// Run runs the query until its trigger is done, ctx ends, or something stops it.
// An end of ctx is a clean stop and gives nil. See ExitCode for the rest.
func (q *Query) Run(ctx context.Context) error {
	r, err := q.Start(ctx)
	if err != nil {
		return err
	}
	return r.Wait()
}

// Start opens the query and runs it in the background.
func (q *Query) Start(ctx context.Context) (*Running, error) {
	ctx, cancel := context.WithCancel(ctx)
	o, err := q.open(ctx, ctx.Done())
	if err != nil {
		cancel()
		return nil, err
	}
	r := &Running{cancel: cancel, done: make(chan struct{})}
	o.query.OnProgress = func(p engine.Progress) {
		row := progressOf(p)
		r.note(row)
		if q.settings.OnProgress != nil {
			q.settings.OnProgress(row)
		}
	}
	go func() {
		defer close(r.done)
		defer cancel()
		err := o.query.Run(ctx)
		r.err = errors.Join(err, o.close())
	}()
	return r, nil
}

// Running is a query that was started.
type Running struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // once done is closed

	mu     sync.Mutex
	recent []Progress
}

// Wait waits for the query's end and says why it came; nil for a clean one.
func (r *Running) Wait() error {
	<-r.done
	return r.err
}

// Stop asks for a clean end and waits for it. A batch whose commit or handler has
// begun is finished first.
func (r *Running) Stop() error {
	r.cancel()
	return r.Wait()
}

// Done is closed when the query has ended.
func (r *Running) Done() <-chan struct{} { return r.done }

func (r *Running) note(p Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recent = append(r.recent, p)
	if len(r.recent) > recentMax {
		r.recent = append([]Progress{}, r.recent[len(r.recent)-recentMax:]...)
	}
}

// Progress gives the last batches, at most 100, oldest first.
func (r *Running) Progress() []Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Progress{}, r.recent...)
}

// Progress is what became of one batch. InputRows is always the sum of the rows
// that were put out, filtered, duplicate, late and dead-lettered.
type Progress struct {
	QueryName, QueryID     string
	BatchID, Epoch         int64
	StartedAt, CommittedAt time.Time
	InputRows, OutputRows  int64
	RowsFiltered           int64
	RowsDuplicate          int64
	RowsDroppedByWatermark int64
	RowsDeadLettered       int64
	// LagOffsets is how many offsets were waiting beyond the batch.
	LagOffsets int64
	DurationMs map[string]int64
}

func progressOf(p engine.Progress) Progress {
	return Progress{
		QueryName: p.QueryName, QueryID: p.QueryID, BatchID: p.BatchID, Epoch: p.Epoch, StartedAt: p.StartedAt, CommittedAt: p.CommittedAt,
		InputRows: p.InputRows, OutputRows: p.OutputRows, RowsFiltered: p.RowsFiltered, RowsDuplicate: p.RowsDuplicate,
		RowsDroppedByWatermark: p.RowsDroppedByWatermark, RowsDeadLettered: p.RowsDeadLettered, LagOffsets: p.LagOffsets, DurationMs: p.DurationMs,
	}
}

// ExitCode is the exit code that a program which ran a query should end with, so
// that a supervisor or an orchestrator can tell "again" from "not like this":
//
//	0  done, or a clean stop
//	1  any other error; safe to run again
//	2  configuration
//	3  the source has changed, or lost records
//	4  the handler's row count does not match
//	5  another instance holds the query
//	6  the outcome of a commit is unknown; the next run finds out
//	7  checkpoint lost, incompatible or contradicted; a sink that went backwards
//	8  something was unreachable for too long; safe to run again
//	9  the rows do not fit the table
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	return int(failure.ClassOf(err))
}

// CanRetry reports whether running the query again, as it is, is the right
// answer to an error.
func CanRetry(err error) bool {
	switch failure.ClassOf(err) {
	case failure.Runtime, failure.CommitUnknown, failure.Unreachable:
		return err != nil
	}
	return false
}
