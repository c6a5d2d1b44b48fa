package prove

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
)

const (
	groupOutside = "outside"
	// outsideQuery delivers into a store outside.
	outsideQuery = "out"
	outsideDead  = "out.dead_letter"
	// chunkRows is the size of a chunk of the HTTP sink: six a batch.
	chunkRows = 50
)

// The names of the stores outside, as in the pipeline file.
const (
	storePostgres  = "postgres"
	storeKafka     = "kafka"
	storeCassandra = "cassandra"
	storeFile      = "file"
	storeHTTP      = "http"
	storeExec      = "exec"
)

// outsideSteps are crash points that only some of the stores have; the others
// have all of a batch.
var outsideSteps = map[string][]string{
	fault.StageState:     nil, // the query keeps no state
	fault.StageFile:      {storeFile},
	fault.CommitPrepared: {storePostgres, storeKafka, storeCassandra},
	fault.DeliverChunk:   {storeHTTP},
	fault.PublishFile:    {storeFile},
}

// outsideNth is the reaching at which the step is the store's own: the
// dead-letter table goes through these first, and a chunk has to be in the
// middle of a batch.
var outsideNth = map[string]int{fault.CommitBefore: 2, fault.CommitMetadata: 2, fault.DeliverChunk: 3}

// outsideStore is a store that a scenario delivers into.
type outsideStore struct {
	name string
	// promise says what holds there.
	promise string
	// once says that the store has a marker: nothing is ever there twice. The
	// others get a batch again under the same ids.
	once bool
	// real asks for a real Kafka.
	real bool
	// open makes what the query needs, under a name, and gives its `to:`.
	open func(ctx context.Context, e *Env, name string) (string, error)
	// read gives every row that an independent reader finds under the name.
	read func(ctx context.Context, e *Env, name string) ([]landed, error)
}

// landed is a row in a store outside.
type landed struct {
	Partition int32  `json:"kafka_partition"`
	Offset    int64  `json:"kafka_offset"`
	ID        string `json:"event_id"`
	Title     string `json:"title"`
	// RecordKey is what recordKey adds.
	RecordKey string `json:"weir_key"`
	// batch is the id that the row was delivered under, and take says which
	// delivery of that id: only for stores without a marker.
	batch string
	take  int
}

// place is where a row comes from.
type place struct {
	partition int32
	offset    int64
}

// outsideState is what a scenario of a store outside knows.
type outsideState struct {
	*workload
	store  outsideStore
	api    *receiver
	missed string
	settle func()
}

// target is the name of the table, topic or folder that is delivered into.
const target = "edits"

// outside makes the scenarios of stores outside: killed at every step that the
// store has, and the reset trap.
func outside() []Scenario {
	var out []Scenario
	for _, s := range outsideStores() {
		for _, p := range fault.Points() {
			of, some := outsideSteps[p.Name]
			if (some && !slices.Contains(of, s.name)) || (!some && !ofBatch(p)) {
				continue
			}
			out = append(out, outsideKilled(s, p))
		}
		out = append(out, outsideReset(s))
	}
	return append(out, outsideFaults())
}

func outsideBegin(s outsideStore, faulty bool) Step {
	return Step{"make the topic, the store and the pipeline file", func(ctx context.Context, e *Env) (err error) {
		st := &outsideState{store: s, api: newReceiver(faulty), settle: func() {}}
		e.state = st
		to, err := s.open(ctx, e, target)
		if err != nil {
			return err
		}
		st.workload, err = e.newWorkload(ctx, e.outsideSetup(to))
		return err
	}}
}

// outsideSetup is a pipeline of one query with a dead-letter table.
func (e *Env) outsideSetup(to string) setup {
	return setup{Name: "outside", Queries: fmt.Sprintf(`  - name: %s
    from:
      kafka: {topics: [%s], startingOffsets: earliest, maxOffsetsPerTrigger: %d}
    trigger: {processingTime: %s}
    parse:
      columns:
        - {name: event_id, path: $.meta.id, type: string, required: true}
        - {name: event_time, path: $.meta.dt, type: timestamptz, required: true}
        - {name: title, path: $.title, type: string}
        - {name: kafka_partition, source: partition, type: int}
        - {name: kafka_offset, source: offset, type: long}
    deadLetter: {table: %s}
    to:
      %s
`, outsideQuery, quote(e.topic("events")), crashMaxOffsets, e.o.triggerOr(0), outsideDead, to)}
}

func outsidePublish(ctx context.Context, e *Env) error {
	return e.state.(*outsideState).publish(ctx, e)
}

func outsideOnce(ctx context.Context, e *Env) error {
	defer e.state.(*outsideState).settle()
	_, err := e.runOnce(ctx)
	return err
}

const outsideKill = "publish more, run until the step is reached, and SIGKILL"

// outsideKilled is the scenario of one step of one store.
func outsideKilled(s outsideStore, p fault.Point) Scenario {
	out := outsideScenario(s, "outside-"+s.name+"-"+p.Name,
		fmt.Sprintf("A query that delivers into %s, killed at %s (%s): %s.", title(s.name), p.Name, p.Text, s.promise), p.Name, false)
	out.Place = &Place{Matrix: "Stores outside", Row: p.Name, Column: s.name}
	return out
}

func outsideScenario(s outsideStore, name, claim, point string, faulty bool) Scenario {
	return Scenario{
		Name: name, Group: groupOutside, Claim: claim, RealKafka: s.real,
		Steps: []Step{
			outsideBegin(s, faulty),
			{"publish, and run to the end", both(outsidePublish, outsideOnce)},
			{outsideKill, both(outsidePublish, func(ctx context.Context, e *Env) error { return e.state.(*outsideState).kill(ctx, e, point) })},
			{"start again, and run to the end", outsideOnce},
			{"count", outsideCount},
		},
		GuardAfter: outsideKill, Guard: func(e *Env) string { return e.state.(*outsideState).missed },
		Expect: func(e *Env) []Check {
			st := e.state.(*outsideState)
			if s.once {
				return st.expect()
			}
			// What was acknowledged and not yet written down comes again.
			again := faulty || point == fault.DeliverChunk || point == fault.CommitSwapped
			return append(st.expect(), Check{"delivered_again", "something was delivered again", again})
		},
	}
}

// kill holds the query at the step and kills it.
func (st *outsideState) kill(ctx context.Context, e *Env, point string) error {
	p, why, err := e.hold(ctx, outsideQuery+"/"+point, max(outsideNth[point], 1), "run", e.path(queriesFileName), "--once")
	if err != nil || p == nil {
		st.missed = "the step was never reached: " + why
		return err
	}
	if st.settle, err = e.kill(ctx, p, st.grown(e)); err != nil {
		return err
	}
	e.observed["rows_at_the_crash"], err = st.grown(e)(ctx)
	return err
}

// grown is the probe of the rows in the store.
func (st *outsideState) grown(e *Env) probe {
	return func(ctx context.Context) (int64, error) {
		rows, err := st.store.read(ctx, e, target)
		return int64(len(rows)), err
	}
}

// truth is what a read_committed reader of the topic gets, but for the records
// that cannot be parsed.
func (e *Env) truth(ctx context.Context, topic string) (rows map[place]landed, messages int64, err error) {
	rows = map[place]landed{}
	err = e.scan(ctx, topic, func(r *audit.Record) error {
		messages++
		var doc struct {
			Meta  struct{ ID string }
			Title string
		}
		if utf8.Valid(r.Value) && json.Unmarshal(r.Value, &doc) == nil {
			rows[place{r.Partition, r.Offset}] = landed{Partition: r.Partition, Offset: r.Offset, ID: doc.Meta.ID, Title: doc.Title}
		}
		return nil
	})
	return rows, messages, err
}

// outsideCount compares what is in the store with the topic.
func outsideCount(ctx context.Context, e *Env) error {
	st := e.state.(*outsideState)
	want, messages, err := e.truth(ctx, st.setup.Topic)
	if err != nil {
		return err
	}
	all, err := st.store.read(ctx, e, target)
	if err != nil {
		return err
	}
	rows := all
	if !st.store.once {
		rows = e.firstTakes(all)
	}
	got := compare(want, rows)
	e.observed["kafka_messages"] = messages
	e.observed["rows"], e.observed["distinct_offsets"] = got.rows, got.offsets
	e.observed["rows_missing"], e.observed["rows_unexpected"] = got.missing, got.unexpected
	if !st.store.once {
		e.observed["distinct_record_keys"] = got.keys
	}
	dead, err := e.rows(ctx, outsideDead)
	e.observed["dead_letter_rows"] = dead
	return err
}

// comparison is how rows of a store differ from the records of the topic.
type comparison struct{ rows, offsets, keys, missing, unexpected int64 }

func compare(want map[place]landed, rows []landed) comparison {
	out := comparison{rows: int64(len(rows)), missing: int64(len(want))}
	seen, keys := map[place]bool{}, map[string]bool{}
	for _, r := range rows {
		at := place{r.Partition, r.Offset}
		switch w, known := want[at]; {
		case !known || w.ID != r.ID || w.Title != r.Title:
			out.unexpected++
		case !seen[at]:
			out.missing--
		}
		seen[at], keys[r.RecordKey] = true, true
	}
	out.offsets, out.keys = int64(len(seen)), int64(len(keys))
	return out
}

// firstTakes are the rows that a receiver keeps that keys on the ids under which
// they come. What came again under an id has to be the same rows.
func (e *Env) firstTakes(all []landed) []landed {
	type delivery struct {
		batch string
		take  int
	}
	rows := map[delivery][]landed{}
	var order []delivery
	for _, r := range all {
		d := delivery{r.batch, r.take}
		r.take = 0
		if _, known := rows[d]; !known {
			order = append(order, d)
		}
		rows[d] = append(rows[d], r)
	}
	first := map[string][]landed{}
	var out []landed
	var again, other int64
	for _, d := range order {
		had, known := first[d.batch]
		switch {
		case !known:
			first[d.batch] = rows[d]
			out = append(out, rows[d]...)
		case slices.Equal(had, rows[d]):
			again++
		default:
			again++
			other++
		}
	}
	e.observed["ids"], e.observed["ids_with_other_rows"] = int64(len(first)), other
	e.observed["deliveries_again"], e.observed["delivered_again"] = again, again > 0
	return out
}

// expect is what must have been counted.
func (st *outsideState) expect() []Check {
	want := st.sent - st.broken
	out := []Check{
		{"kafka_messages", "Kafka messages", st.sent},
		{"rows", "rows in the store", want},
		{"distinct_offsets", "distinct (partition, offset)", want},
		{"rows_missing", "records that the store lacks", int64(0)},
		{"rows_unexpected", "rows that are no record of the topic", int64(0)},
		{"dead_letter_rows", "rows in the dead-letter table", st.broken},
	}
	if !st.store.once {
		out[1].Text = "rows that a receiver keeps by their ids"
		out = append(out,
			Check{"ids_with_other_rows", "ids that came again with other rows", int64(0)},
			Check{"distinct_record_keys", "distinct record keys", want})
	}
	return out
}

// outsideFaults is an API with a bad day on top of the kill.
func outsideFaults() Scenario {
	for _, s := range outsideStores() {
		if s.name == storeHTTP {
			return outsideScenario(s, "outside-http-faults",
				"An API that applies chunks and then cuts the connection or answers 500, asks for patience, and whose sender is killed between two chunks: "+s.promise+".",
				fault.DeliverChunk, true)
		}
	}
	return Scenario{}
}

// outsideReset is the reset trap: a checkpoint of another lineage, whose batch
// ids are those of batches that the store has, and then none at all.
func outsideReset(s outsideStore) Scenario {
	claim := "The reset trap: a checkpoint of another lineage, in which batch ids mean other rows, is refused before a row is delivered (exit code 7). "
	if s.once {
		claim += fmt.Sprintf("Without any checkpoint the query goes on from the marker in %s, and says so: every row is there once.", title(s.name))
	} else {
		claim += "Without any checkpoint the query stops as well (7), because this store cannot be asked. After weir checkpoint reset the rows come again under new ids, each with its old record key."
	}
	return Scenario{
		Name: "outside-" + s.name + "-reset", Group: groupOutside, Claim: claim, RealKafka: s.real,
		Steps: []Step{
			outsideBegin(s, false),
			{"publish, and run to the end", both(outsidePublish, outsideOnce)},
			{"run another lineage of the query to the end, elsewhere", outsideElsewhere},
			{"put its checkpoint in the place of ours, publish, and start", both(outsidePublish, outsideForeign)},
			{"remove the checkpoint, and start", outsideWithout},
			{"count", outsideCount},
		},
		Expect: func(e *Env) []Check {
			out := append([]Check{
				{"exit_code_of_the_other_lineage", "exit code with the checkpoint of another lineage", int64(failure.Checkpoint)},
				{"rows_of_the_other_lineage", "rows that it delivered", int64(0)},
			}, e.state.(*outsideState).expect()...)
			if s.once {
				return append(out, Check{"alerts", "an alert says that the marker was adopted", true})
			}
			out = append(out, Check{"exit_code_without_checkpoint", "exit code without a checkpoint", int64(failure.Checkpoint)},
				Check{"rows_without_checkpoint", "rows delivered without a checkpoint", int64(0)})
			for i, c := range out {
				// What was there before comes once more, from the new lineage.
				if before, again := e.observed[c.Key+"_before"]; again {
					out[i].Want = before.(int64) + c.Want.(int64)
				}
			}
			return out
		},
	}
}

const elsewhereFile = "elsewhere.yaml"

// outsideElsewhere runs the same query with a checkpoint of its own into another
// place.
func outsideElsewhere(ctx context.Context, e *Env) error {
	st := e.state.(*outsideState)
	to, err := st.store.open(ctx, e, "elsewhere")
	if err != nil {
		return err
	}
	s := e.outsideSetup(to)
	s.Queries = strings.ReplaceAll(s.Queries, outsideDead, "elsewhere.dead_letter")
	s.Dir, s.Brokers, s.Topic, s.File = st.setup.Dir, st.setup.Brokers, st.setup.Topic, elsewhereFile
	s.MaxOffsets, s.Checkpoints = st.setup.MaxOffsets, e.path("checkpoints-elsewhere")
	if err := s.write(); err != nil {
		return err
	}
	p, err := e.start("weir run --once, elsewhere", nil, "run", e.path(elsewhereFile), "--once")
	if err != nil {
		return err
	}
	return p.wait(ctx, runOnceMax)
}

// stops starts the query, which has to end with an exit code, and gives
// how many rows it delivered.
func (st *outsideState) stops(ctx context.Context, e *Env, code string) (delivered int64, err error) {
	before, err := st.grown(e)(ctx)
	if err != nil {
		return 0, err
	}
	p, err := e.start("weir run --once", nil, "run", e.path(queriesFileName), "--once")
	if err != nil {
		return 0, err
	}
	if e.observed[code], err = p.endsBy(ctx, runOnceMax); err != nil {
		return 0, err
	}
	after, err := st.grown(e)(ctx)
	return after - before, err
}

func outsideForeign(ctx context.Context, e *Env) (err error) {
	st := e.state.(*outsideState)
	if e.observed["rows_before"], err = st.grown(e)(ctx); err != nil {
		return err
	}
	if e.observed["dead_letter_rows_before"], err = e.rows(ctx, outsideDead); err != nil {
		return err
	}
	// The record of deliveries beside the checkpoint stays: it is the memory of a
	// store that has none.
	ours := filepath.Join(e.checkpointDir(), outsideQuery)
	if err := os.RemoveAll(ours); err != nil {
		return err
	}
	if err := os.CopyFS(ours, os.DirFS(filepath.Join(e.path("checkpoints-elsewhere"), outsideQuery))); err != nil {
		return err
	}
	e.observed["rows_of_the_other_lineage"], err = st.stops(ctx, e, "exit_code_of_the_other_lineage")
	return err
}

func outsideWithout(ctx context.Context, e *Env) (err error) {
	st := e.state.(*outsideState)
	if err := os.RemoveAll(filepath.Join(e.checkpointDir(), outsideQuery)); err != nil {
		return err
	}
	if st.store.once {
		p, err := e.runOnce(ctx)
		if err != nil {
			return err
		}
		e.observed["alerts"] = strings.Contains(strings.Join(p.alerts(outsideQuery), "\n"), alertAdopted)
		return nil
	}
	if e.observed["rows_without_checkpoint"], err = st.stops(ctx, e, "exit_code_without_checkpoint"); err != nil {
		return err
	}
	p, err := e.start("weir checkpoint reset", nil, "checkpoint", "reset", e.path(queriesFileName), outsideQuery, "--yes")
	if err != nil {
		return err
	}
	if err := p.wait(ctx, runOnceMax); err != nil {
		return err
	}
	return outsideOnce(ctx, e)
}
