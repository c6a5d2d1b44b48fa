package prove

import (
	"context"
	"fmt"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/fault"
)

const (
	groupDelta = "delta"
	// The Delta tables, by their names in the catalog and in the warehouse.
	landingTable   = "landing.events"
	landingFolder  = "landing/events"
	deltaEdits     = "edits/clean"
	deltaDeadTable = "edits/dead"
)

// deltaQueries land the records as they came, and edits with state and a
// dead-letter table, all of it in Delta.
const deltaQueries = `  - name: landing
    from:
      kafka: {topics: [%[1]s], startingOffsets: earliest, maxOffsetsPerTrigger: %[2]d}
    trigger: {processingTime: %[3]s}
    to:
      delta: {table: landing.events, partitionBy: [partition]}
  - name: edits
    from:
      kafka: {topics: [%[1]s], startingOffsets: earliest, maxOffsetsPerTrigger: %[2]d}
    trigger: {processingTime: %[3]s}
    parse:
      columns:
        - {name: event_id, path: $.meta.id, type: string, required: true}
        - {name: event_time, path: $.meta.dt, type: timestamptz, required: true}
        - {name: type, path: $.type, type: string}
        - {name: title, path: $.title, type: string}
        - {name: kafka_partition, source: partition, type: int}
        - {name: kafka_offset, source: offset, type: long}
    filter: "type IN ('edit','new')"
    watermark: {column: event_time, delay: 10m, maxFutureSkew: 1h}
    dropDuplicatesWithinWatermark: [event_id]
    deadLetter: {table: edits.dead, format: delta}
    to:
      delta: {table: edits.clean}
`

// deltaState is what a scenario of Delta tables knows.
type deltaState struct {
	*workload
	missed string
	settle func()
}

// deltas makes the scenarios of queries that write Delta tables, killed at every
// step.
func deltas() []Scenario {
	var out []Scenario
	for _, query := range []string{"landing", "edits"} {
		for _, p := range fault.Points() {
			switch {
			case !ofBatch(p) || (query == "landing" && unreachable["bronze"][p.Name] != ""):
			case query == "edits" && sideFirst[p.Name]:
				out = append(out, deltaKilled(query, p, "side-", 1), deltaKilled(query, p, "", 2))
			default:
				out = append(out, deltaKilled(query, p, "", 1))
			}
		}
	}
	return out
}

func deltaKilled(query string, p fault.Point, side string, nth int) Scenario {
	const kill = "publish more, run until the step is reached, and SIGKILL"
	publish := func(ctx context.Context, e *Env) error { return e.state.(*deltaState).publish(ctx, e) }
	once := func(ctx context.Context, e *Env) error {
		defer e.state.(*deltaState).settle()
		_, err := e.runOnce(ctx)
		return err
	}
	where := p.Name
	if side != "" {
		where += " (dead-letter table)"
	}
	return Scenario{
		Name: "delta-" + query + "-" + side + p.Name, Group: groupDelta,
		Place: &Place{Matrix: "Delta tables", Row: where, Column: query},
		Claim: fmt.Sprintf("A query that writes a Delta table, killed at %s (%s), is exact after a restart.", where, p.Text),
		Steps: []Step{
			{"make the topic and the pipeline file", func(ctx context.Context, e *Env) (err error) {
				st := &deltaState{settle: func() {}}
				e.state = st
				st.workload, err = e.newWorkload(ctx, setup{Name: "delta", Queries: fmt.Sprintf(deltaQueries, quote(e.topic("events")), crashMaxOffsets, e.o.triggerOr(0))})
				return err
			}},
			{"publish, and run to the end", both(publish, once)},
			{kill, both(publish, func(ctx context.Context, e *Env) error {
				folder := landingFolder
				if query == "edits" {
					folder = deltaEdits
				}
				return e.state.(*deltaState).kill(ctx, e, query+"/"+p.Name, nth, folder)
			})},
			{"start again, and run to the end", once},
			{"count", deltaCount},
		},
		GuardAfter: kill, Guard: func(e *Env) string { return e.state.(*deltaState).missed },
		Expect: deltaExpect,
	}
}

// deltaHead reads what a Delta table of the warehouse says of itself.
func (e *Env) deltaHead(ctx context.Context, folder string) (*audit.Head, error) {
	return audit.Peek(ctx, audit.DeltaCatalog{}, nil, e.path("warehouse/"+folder))
}

func (st *deltaState) kill(ctx context.Context, e *Env, point string, nth int, folder string) error {
	p, why, err := e.hold(ctx, point, nth, "run", e.path(queriesFileName), "--once")
	if err != nil || p == nil {
		st.missed = "the step was never reached: " + why
		return err
	}
	rows := func(ctx context.Context) (int64, error) {
		h, err := e.deltaHead(ctx, folder)
		if err != nil {
			return 0, err
		}
		return h.Rows, nil
	}
	if st.settle, err = e.kill(ctx, p, rows); err != nil {
		return err
	}
	e.observed["rows_at_the_crash"], err = rows(ctx)
	return err
}

func deltaCount(ctx context.Context, e *Env) (err error) {
	st := e.state.(*deltaState)
	if e.observed["kafka_messages"], err = e.messages(ctx, st.setup.Topic); err != nil {
		return err
	}
	report, err := e.auditPipeline(ctx)
	if err != nil {
		return err
	}
	landing := report.Table(landingTable)
	if landing == nil {
		return violated("the audit does not speak of %s", landingTable)
	}
	e.observed["audit"], e.observed["landing_rows"], e.observed["landing_distinct_offsets"] = landing.Outcome, landing.Rows, landing.DistinctOffsets
	if landing.Outcome != audit.Exact {
		e.observed["audit_of_landing"] = findings(landing)
	}
	var unexpected int64
	seen := map[string]bool{}
	err = audit.Strings(ctx, audit.DeltaCatalog{}, nil, e.path("warehouse/"+deltaEdits), "event_id", func(id string) {
		if !st.expected[id] || seen[id] {
			unexpected++
		}
		seen[id] = true
	})
	if err != nil {
		return err
	}
	e.observed["edits_distinct_event_ids"], e.observed["edits_unexpected"] = int64(len(seen)), unexpected
	folders := map[string]string{}
	for key, folder := range map[string]string{"landing_rows": landingFolder, "edits_rows": deltaEdits, "dead_letter_rows": deltaDeadTable} {
		h, err := e.deltaHead(ctx, folder)
		if err != nil {
			return err
		}
		e.observed[key], folders[key] = h.Rows, e.path("warehouse/"+folder)
	}
	return e.deltaRS(ctx, folders)
}

func deltaExpect(e *Env) []Check {
	st := e.state.(*deltaState)
	rows := []Check{
		{"landing_rows", "rows of the landing table", st.sent},
		{"edits_rows", "rows of the table with state", int64(len(st.expected))},
		{"dead_letter_rows", "rows in the dead-letter table", st.broken},
	}
	out := append([]Check{
		{"kafka_messages", "Kafka messages", st.sent},
		{"landing_distinct_offsets", "distinct (partition, offset) landed", st.sent},
		{"edits_distinct_event_ids", "distinct event ids", int64(len(st.expected))},
		{"edits_unexpected", "ids that were not expected, or are there twice", int64(0)},
		{"audit", "audit of the landing table", audit.Exact},
	}, rows...)
	return append(out, e.deltaRSChecks(rows...)...)
}
