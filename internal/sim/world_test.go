package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"golang.org/x/sync/errgroup"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/operator"
	iceberg_sink "github.com/weirlake/weir/internal/sink/iceberg"
	source_iceberg "github.com/weirlake/weir/internal/source/iceberg"
)

var (
	bronzeTable = table.Identifier{"bronze", "events"}
	silverTable = table.Identifier{"silver", "edits"}
	deadTable   = table.Identifier{"silver", "edits_dead_letter"}
)

// world is everything that outlives a process.
type world struct {
	seed  uint64
	rng   *rand.Rand
	sched *scheduler
	kafka feed
	db    *pointers
	lake  *objstore.Memory
	// checkpoints are the folders, by machine: shared, or one each.
	checkpoints map[string]*objstore.Memory
	own         bool // each machine has folders of its own
	removed     bool // somebody removed a folder: a new one may meet an older lineage
	clocks      map[string]*skewed
	limit       int64
	silver      bool // the second query runs as well
	all         []*process
	ends        map[string]int // how processes ended
	faults      map[fault]int
	powerCuts   int
}

func newWorld(seed uint64, partitions int, records int64) *world {
	w := &world{seed: seed, rng: rand.New(rand.NewPCG(seed, 0x5e1f)), sched: &scheduler{}, kafka: newKafka(partitions, records), limit: 20,
		db: &pointers{at: map[string]string{}}, lake: objstore.NewMemory(clock.System{}), checkpoints: map[string]*objstore.Memory{},
		ends: map[string]int{}, faults: map[fault]int{}, clocks: map[string]*skewed{"a": {}, "b": {}}}
	return w
}

// skewed is a machine's clock, which may be set forward and back.
type skewed struct{ offset atomic.Int64 }

func (s *skewed) Now() time.Time {
	return clock.System{}.Now().Add(time.Duration(s.offset.Load()))
}

func (s *skewed) Sleep(ctx context.Context, d time.Duration) error {
	return clock.System{}.Sleep(ctx, d)
}

// power cuts the power of the whole world: what was not fsynced is gone.
func (w *world) power(live ...*process) {
	for _, p := range live {
		p.kill()
	}
	w.sched.ready()
	torn := w.rng.Uint64()
	if w.rng.IntN(2) == 0 {
		torn = 0
	}
	w.lake.Crash(torn)
	seen := map[*objstore.Memory]bool{}
	for _, m := range slices.Sorted(maps.Keys(w.checkpoints)) {
		if d := w.checkpoints[m]; !seen[d] {
			seen[d] = true
			d.Crash(torn)
		}
	}
	w.sched.later = nil // their machines are off as well
	w.powerCuts++
	w.sched.note("power cut %v", torn != 0)
}

// start starts an instance on a machine: both queries, as long as ctx lasts
// or, with once, until everything is read.
func (w *world) start(machine string, once bool) *process {
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{name: fmt.Sprintf("%s%d", machine, len(w.all)+1), s: w.sched, ctx: ctx, cancel: cancel}
	id := fmt.Sprintf("%d/%s", w.seed, p.name)
	running.Store(id, &files{p: p, disk: w.lake.Reopen()})
	cat := lake.Over(session{p, w.db}, iceberg.Properties{"warehouse": scheme + "://lake", processProperty: id})
	w.all = append(w.all, p)
	w.sched.note("start %s", p.name)
	go func() {
		defer cancel()
		defer running.Delete(id)
		err := w.run(ctx, p, cat, machine, once)
		p.err = err
		p.ended.Store(true)
	}()
	return p
}

func (w *world) run(ctx context.Context, p *process, cat *lake.Catalog, machine string, once bool) error {
	bronze, err := w.bronze(p, cat, machine)
	if err != nil {
		return err
	}
	defer func() { _ = bronze.Source.Close() }()
	silver, err := w.silverQuery(p, cat, machine)
	if err != nil {
		return err
	}
	if once {
		bronze.Options.Trigger.AvailableNow, silver.Options.Trigger.AvailableNow = true, true
		if err := bronze.Run(ctx); err != nil || !w.silver {
			return err
		}
		return silver.Run(ctx)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return bronze.Run(gctx) })
	if w.silver {
		g.Go(func() error { return silver.Run(gctx) })
	}
	return g.Wait()
}

func (w *world) query(p *process, name, machine string) *engine.Query {
	return &engine.Query{
		Name: name, Clock: w.clocks[machine], Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Checkpoint: &store{p: p, disk: w.checkpoints[machine+"/"+name].Reopen(), name: "checkpoint/" + name},
		Options: engine.Options{InstanceID: "instance-" + machine, MaxOffsetsPerTrigger: w.limit, FailOnDataLoss: true,
			Trigger: engine.Trigger{ProcessingTime: time.Second}},
	}
}

func (w *world) bronze(p *process, cat *lake.Catalog, machine string) (*engine.Query, error) {
	q := w.query(p, "bronze", machine)
	var err error
	if q.Source, err = w.kafka.source(p, q.Clock); err != nil {
		return nil, err
	}
	q.Transform = operator.NewPassthrough(batch.KafkaSchema)
	return q, outputs(q, cat, map[string]table.Identifier{operator.Main: bronzeTable})
}

func (w *world) silverQuery(p *process, cat *lake.Catalog, machine string) (*engine.Query, error) {
	q := w.query(p, "silver", machine)
	var err error
	q.Source, err = source_iceberg.New(source_iceberg.Config{Name: lake.Name(bronzeTable), StartingOffsets: source_iceberg.Earliest, Clock: w.clocks[machine],
		Load: func(ctx context.Context) (*table.Table, error) {
			return cat.LoadTablePatiently(ctx, bronzeTable, w.clocks[machine])
		},
		Pointer: func(ctx context.Context) (string, error) { return cat.MetadataLocation(ctx, bronzeTable) }})
	if err != nil {
		return nil, err
	}
	q.Transform, err = operator.New(operator.Config{
		Columns: []operator.Column{
			{Name: "event_id", Path: "$.id", Type: "string", Required: true},
			{Name: "event_time", Path: "$.dt", Type: "timestamptz", Required: true},
			{Name: "kind", Path: "$.kind", Type: "string"},
			{Name: "kafka_partition", Source: "partition", Type: "int"},
			{Name: "kafka_offset", Source: "offset", Type: "long"},
		},
		Filter: "kind = 'edit'", Dedup: []string{"event_id"}, DeadLetter: true,
		Watermark: &operator.Watermark{Column: "event_time", Delay: 10 * time.Minute, MaxFutureSkew: 24 * time.Hour},
	})
	if err != nil {
		return nil, err
	}
	return q, outputs(q, cat, map[string]table.Identifier{operator.Main: silverTable, operator.DeadLetter: deadTable})
}

func outputs(q *engine.Query, cat *lake.Catalog, tables map[string]table.Identifier) error {
	shapes := q.Transform.Outputs()
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		schema, err := table.ArrowSchemaToIcebergWithFreshIDs(shapes[name], false)
		if err != nil {
			return err
		}
		role := iceberg_sink.Main
		if name != operator.Main {
			role = iceberg_sink.Side
		}
		s, err := iceberg_sink.New(iceberg_sink.Options{Catalog: cat, Table: tables[name], Query: q.Name, Role: role, Parallel: 1,
			Arrow: shapes[name], Schema: schema, Partition: *iceberg.UnpartitionedSpec, Clock: q.Clock})
		if err != nil {
			return err
		}
		q.Outputs = append(q.Outputs, engine.Output{Name: name, Sink: s})
	}
	return nil
}

// bury waits until the goroutines of every process are gone: a dead one may
// still sleep, though nothing of it reaches the world.
func (w *world) bury() error {
	for range 10_000 {
		w.sched.ready()
		left := 0
		for _, p := range w.all {
			p.kill()
			if !p.ended.Load() {
				left++
			}
		}
		if left == 0 {
			return nil
		}
		time.Sleep(time.Second)
	}
	return errors.New("a dead process does not come to its end within hours")
}

// settle judges the end of a process: an instance may only end because it was
// killed, was overtaken, or could not reach something. Nothing that happens in
// these worlds makes the tables and checkpoints contradict each other, unless
// two deployments with folders of their own begin the same query.
func (w *world) settle(p *process) error {
	if p.dead.Load() {
		w.ends["killed"]++
		return nil
	}
	var f *failure.Error
	switch {
	case p.err == nil:
		w.ends["done"]++
		return nil
	case errors.As(p.err, &f) && slices.Contains([]failure.Class{failure.Fenced, failure.Unreachable, failure.CommitUnknown}, f.Class):
		w.ends[f.Class.String()]++
		return nil
	case (w.own || w.removed) && errors.As(p.err, &f) && f.Class == failure.Checkpoint:
		// As the hint says: move the folder away and start again.
		w.ends["two lineages"]++
		w.moveAway(p.name[:1])
		return nil
	case errors.Is(p.err, errAway), errors.Is(p.err, errLost):
		w.ends["error"]++
		return nil
	}
	return fmt.Errorf("%s ended: %w", p.name, p.err)
}

// folders are the checkpoint folders that a machine uses, by query.
func (w *world) folders(machine string) map[string]*objstore.Memory {
	return map[string]*objstore.Memory{"bronze": w.checkpoints[machine+"/bronze"], "silver": w.checkpoints[machine+"/silver"]}
}

// moveAway gives the machine, and whoever shares its folders, new and empty ones.
func (w *world) moveAway(machine string) {
	for _, old := range w.folders(machine) {
		fresh := objstore.NewMemory(clock.System{})
		for k, d := range w.checkpoints {
			if d == old {
				w.checkpoints[k] = fresh
			}
		}
	}
	w.sched.note("the folders of %s are moved away", machine)
}

// copyFolders and restoreFolders are what a backup does.
func (w *world) copyFolders(machine string) (map[string]map[string][]byte, error) {
	out := map[string]map[string][]byte{}
	for q, d := range w.folders(machine) {
		var err error
		if out[q], err = d.Files(context.Background()); err != nil {
			return nil, err
		}
	}
	w.sched.note("the folders of %s are copied", machine)
	return out, nil
}

func (w *world) restoreFolders(machine string, backup map[string]map[string][]byte) error {
	for q, d := range w.folders(machine) {
		if err := d.SetFiles(context.Background(), backup[q]); err != nil {
			return err
		}
	}
	w.sched.note("an old copy of the folders of %s is put back", machine)
	return nil
}

// finish lets an undisturbed instance read everything, on the first machine.
func (w *world) finish() error {
	for _, f := range w.sched.later {
		f()
	}
	w.sched.later = nil
	w.sched.note("the last instance")
	w.limit *= 8
	err := w.undisturbed()
	var f *failure.Error
	if (w.own || w.removed) && errors.As(err, &f) && f.Class == failure.Checkpoint {
		w.moveAway("a")
		err = w.undisturbed()
	}
	if err != nil {
		return fmt.Errorf("the last, undisturbed instance: %w", err)
	}
	return nil
}

func (w *world) undisturbed() error {
	p := w.start("a", true)
	deadline := time.Now().Add(time.Hour)
	for {
		ready := w.sched.ready()
		switch {
		case len(ready) > 0:
			w.sched.let(ready[0], verdict{})
		case p.ended.Load():
			return p.err
		case time.Now().After(deadline):
			return errors.New("it does not come to an end")
		default:
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// check counts the tables after a last power cut: what was acknowledged must
// have been durable.
func (w *world) check() error {
	w.power()
	ctx := context.Background()
	id := fmt.Sprintf("%d/reader", w.seed)
	running.Store(id, &files{disk: w.lake.Reopen()})
	defer running.Delete(id)
	free := lake.Over(reader{w.db}, iceberg.Properties{"warehouse": scheme + "://lake", processProperty: id})
	wantBronze, wantSilver, wantDead := map[string]int{}, map[string]int{}, map[string]int{}
	for part, offsets := range w.kafka.committed() {
		for _, off := range offsets {
			place := fmt.Sprintf("%d/%d", part, off)
			wantBronze[place] = 1
			switch _, id, kind := event(int32(part), off); kind {
			case "edit":
				wantSilver[id] = 1
			case "dead":
				wantDead[place] = 1
			}
		}
	}
	if err := compare(ctx, free, bronzeTable, wantBronze, "partition", "offset"); err != nil || !w.silver {
		return err
	}
	if err := compare(ctx, free, silverTable, wantSilver, "event_id"); err != nil {
		return err
	}
	return compare(ctx, free, deadTable, wantDead, "kafka_partition", "kafka_offset")
}

// reader looks the pointers up without a gate.
type reader struct{ db *pointers }

func (r reader) Location(_ context.Context, ident table.Identifier) (string, error) {
	if loc := r.db.get(lake.Name(ident)); loc != "" {
		return loc, nil
	}
	return "", lake.ErrNoTable
}

func (r reader) Swap(context.Context, table.Identifier, string, string) error {
	return errors.New("a reader changes nothing")
}

// compare counts the rows of a table by key, and its files.
func compare(ctx context.Context, cat *lake.Catalog, ident table.Identifier, want map[string]int, columns ...string) error {
	tbl, err := cat.LoadTable(ctx, ident)
	if err != nil {
		return fmt.Errorf("%s: %w", lake.Name(ident), err)
	}
	tasks, err := tbl.Scan().PlanFiles(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", lake.Name(ident), err)
	}
	live := map[string]bool{}
	for _, t := range tasks {
		if live[t.File.FilePath()] {
			return fmt.Errorf("%s: the file %s is live twice", lake.Name(ident), t.File.FilePath())
		}
		live[t.File.FilePath()] = true
	}
	got := map[string]int{}
	_, records, err := tbl.Scan(table.WithSelectedFields(columns...)).ToArrowRecords(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", lake.Name(ident), err)
	}
	for rec, err := range records {
		if err != nil {
			return fmt.Errorf("%s: %w", lake.Name(ident), err)
		}
		for i := range int(rec.NumRows()) {
			got[keyOf(rec, i)]++
		}
		rec.Release()
	}
	var missing, extra []string
	for k, n := range want {
		if got[k] < n {
			missing = append(missing, k)
		}
	}
	for k, n := range got {
		if n > want[k] {
			extra = append(extra, fmt.Sprintf("%s×%d", k, n))
		}
	}
	if len(missing)+len(extra) == 0 {
		return nil
	}
	slices.Sort(missing)
	slices.Sort(extra)
	return fmt.Errorf("%s: %d rows missing %v, %d too many %v", lake.Name(ident), len(missing), clip(missing), len(extra), clip(extra))
}

func clip(s []string) []string { return s[:min(len(s), 12)] }

func keyOf(rec arrow.RecordBatch, row int) string {
	out := ""
	for i := range int(rec.NumCols()) {
		if i > 0 {
			out += "/"
		}
		out += rec.Column(i).ValueStr(row)
	}
	return out
}
