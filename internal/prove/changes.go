package prove

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/fault"
)

const (
	groupUpsert = "upsert"
	// A part of the change stream has so many changes, of so many keys.
	changesSent = 400
	changesKeys = 60
	// accountsTable and accountsFolder are the Iceberg and the Delta table.
	accountsTable  = "bank.accounts"
	accountsFolder = "bank/accounts_delta"
)

// changeQueries merge a stream of Debezium's envelopes into an Iceberg and a
// Delta table.
const changeQueries = `  - name: iceberg
    from: &changes
      kafka: {topics: [%[1]s], startingOffsets: earliest, maxOffsetsPerTrigger: %[2]d}
    trigger: {processingTime: %[3]s}
    parse: &account
      columns:
        - {name: id, path: $.id, type: long, required: true}
        - {name: row, path: $.row, type: string}
        - {name: lsn, path: $.__source.lsn, type: long, required: true}
    deadLetter: {table: bank.dead}
    to:
      iceberg: {table: bank.accounts, mode: upsert, keys: [id], orderBy: [lsn], changes: debezium}
  - name: delta
    from: *changes
    trigger: {processingTime: %[3]s}
    parse: *account
    deadLetter: {table: bank.dead_delta, format: delta}
    to:
      delta: {table: bank.accounts_delta, mode: upsert, keys: [id], orderBy: [lsn], changes: debezium}
`

// change is the last one of a key.
type change struct {
	lsn     int64
	row     string
	deleted bool
}

// changeState is a change stream, beside a plain map of what the tables have to
// hold.
type changeState struct {
	topic  string
	want   map[int64]change
	lsn    int64
	sent   int64
	missed string
	settle func()
}

// upserts makes the scenarios of a change stream that is merged by key, killed at
// every step.
func upserts() []Scenario {
	var out []Scenario
	for _, query := range []string{"iceberg", "delta"} {
		for _, p := range fault.Points() {
			switch {
			case !ofBatch(p):
			case sideFirst[p.Name]: // the dead-letter table's comes first
				out = append(out, changesKilled(query, p, 2))
			default:
				out = append(out, changesKilled(query, p, 1))
			}
		}
	}
	return out
}

func changesKilled(query string, p fault.Point, nth int) Scenario {
	const kill = "send more, run until the step is reached, and SIGKILL"
	send := func(ctx context.Context, e *Env) error { return e.state.(*changeState).send(ctx, e) }
	once := func(ctx context.Context, e *Env) error {
		defer e.state.(*changeState).settle()
		_, err := e.runOnce(ctx)
		return err
	}
	return Scenario{
		Name: "upsert-" + query + "-" + p.Name, Group: groupUpsert,
		Place: &Place{Matrix: "Changes by key", Row: p.Name, Column: query},
		Claim: fmt.Sprintf("A Debezium change stream that is merged by key into an Iceberg and a Delta table, the query of %s killed at %s (%s): both tables hold the last change of every key.", query, p.Name, p.Text),
		Steps: []Step{
			{"make the topic and the pipeline file", changesPrepare},
			{"send changes, and run to the end", both(send, once)},
			{kill, both(send, func(ctx context.Context, e *Env) error {
				return e.state.(*changeState).kill(ctx, e, query, p.Name, nth)
			})},
			{"send more, start again, and run to the end", both(send, once)},
			{"compare", changesCompare},
		},
		GuardAfter: kill, Guard: func(e *Env) string { return e.state.(*changeState).missed },
		Expect: changesExpect,
	}
}

func changesPrepare(ctx context.Context, e *Env) error {
	st := &changeState{topic: e.topic("changes"), want: map[int64]change{}, settle: func() {}}
	e.state = st
	if err := e.createTopic(ctx, "changes", workPartitions); err != nil {
		return err
	}
	return setup{Name: "upsert", Dir: e.dir, Brokers: e.broker.bootstrap, Topic: st.topic,
		Queries: fmt.Sprintf(changeQueries, quote(st.topic), crashMaxOffsets, e.o.triggerOr(0))}.write()
}

// send sends inserts, updates, deletes with and without the row that they delete,
// changes that come late, also of deleted keys, and some of them twice.
func (st *changeState) send(ctx context.Context, e *Env) error {
	var events []event
	for range changesSent {
		id := e.rng.Int64N(changesKeys)
		st.lsn++
		c := change{lsn: st.lsn, deleted: e.rng.IntN(4) == 0}
		if e.rng.IntN(5) == 0 {
			c.lsn = max(1, st.lsn-e.rng.Int64N(200))
		}
		c.row = fmt.Sprintf("%d@%d", id, c.lsn)
		row, err := json.Marshal(map[string]any{"id": id, "row": c.row})
		if err != nil {
			return err
		}
		before, after, op := "null", string(row), "u"
		if c.deleted {
			before, after, op = string(row), "null", "d"
			if e.rng.IntN(2) == 0 {
				before = fmt.Sprintf(`{"id":%d}`, id)
			}
		}
		ev := event{id: fmt.Sprintf(`{"id":%d}`, id),
			payload: fmt.Appendf(nil, `{"before":%s,"after":%s,"source":{"connector":"postgresql","lsn":%d},"op":%q,"ts_ms":1}`, before, after, c.lsn, op)}
		events = append(events, ev)
		if e.rng.IntN(10) == 0 {
			events = append(events, ev)
		}
		if had, known := st.want[id]; !known || c.lsn >= had.lsn {
			st.want[id] = c
		}
	}
	st.sent += int64(len(events))
	return e.produce(ctx, st.topic, events)
}

// kill holds the query at the step and kills it. What a restart adds first is a
// version of the table: its rows may stay as many as they are.
func (st *changeState) kill(ctx context.Context, e *Env, query, point string, nth int) error {
	p, why, err := e.hold(ctx, query+"/"+point, nth, "run", e.path(queriesFileName), "--once")
	if err != nil || p == nil {
		st.missed = "the step was never reached: " + why
		return err
	}
	st.settle, err = e.kill(ctx, p, func(ctx context.Context) (int64, error) {
		h, err := e.accounts(ctx, query)
		if err != nil {
			return 0, err
		}
		return h.Sequence, nil
	})
	return err
}

func (e *Env) accounts(ctx context.Context, query string) (*audit.Head, error) {
	if query == "delta" {
		return e.deltaHead(ctx, accountsFolder)
	}
	return e.peek(ctx, accountsTable)
}

// changesCompare compares both tables with the map. The text of a row says which
// key it has and which change made it.
func changesCompare(ctx context.Context, e *Env) (err error) {
	st := e.state.(*changeState)
	if e.observed["kafka_messages"], err = e.messages(ctx, st.topic); err != nil {
		return err
	}
	for _, t := range []struct {
		query, table string
		catalog      audit.Locator
	}{{"iceberg", accountsTable, e.catalog}, {"delta", e.path("warehouse/" + accountsFolder), audit.DeltaCatalog{}}} {
		left := map[string]bool{}
		for _, c := range st.want {
			if !c.deleted {
				left[c.row] = true
			}
		}
		var wrong int64
		err := audit.Strings(ctx, t.catalog, nil, t.table, "row", func(row string) {
			if !left[row] {
				wrong++
			}
			delete(left, row)
		})
		if err != nil {
			return err
		}
		h, err := e.accounts(ctx, t.query)
		if err != nil {
			return err
		}
		e.observed[t.query+"_rows"], e.observed[t.query+"_rows_missing"], e.observed[t.query+"_rows_wrong"] = h.Rows, int64(len(left)), wrong
	}
	return e.deltaRS(ctx, map[string]string{"delta_rows": e.path("warehouse/" + accountsFolder)})
}

func changesExpect(e *Env) []Check {
	st := e.state.(*changeState)
	var live int64
	for _, c := range st.want {
		if !c.deleted {
			live++
		}
	}
	out := []Check{{"kafka_messages", "Kafka messages", st.sent}}
	for _, t := range []string{"iceberg", "delta"} {
		out = append(out,
			Check{t + "_rows", t + ": rows, one per key that was not deleted last", live},
			Check{t + "_rows_missing", t + ": keys whose last change is not there", int64(0)},
			Check{t + "_rows_wrong", t + ": rows of an older change, of a deleted key, or twice", int64(0)})
	}
	return append(out, e.deltaRSChecks(Check{"delta_rows", "rows of the Delta table", live})...)
}
