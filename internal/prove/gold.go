package prove

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/fault"
)

const (
	groupGold = "gold"
	// goldFileName is the pipeline file with gold in it.
	goldFileName = "gold.yaml"
	goldIDs      = "gold.ids"
	goldPerWiki  = "gold.per_wiki"
)

// goldProject are models that are easy to count by other means: the ids of
// silver, kept incrementally, and a line per wiki, made anew each time.
var goldProject = map[string]string{
	"dbt_project.yml": "name: prove\n",
	"models/sources.yml": `sources: [{name: silver, tables: [{name: edits}]}]
models: [{name: ids, columns: [{name: event_id, data_tests: [unique, not_null]}]}]
`,
	"models/ids.sql": `{{ config(materialized='incremental', unique_key='event_id') }}
select event_id, processed_at from {{ source('silver', 'edits') }}
{% if is_incremental() %} where processed_at >= (select max(processed_at) - interval '1 hour' from {{ this }}) {% endif %}
`,
	"models/per_wiki.sql": `{{ config(materialized='table') }}
select coalesce(wiki, '') || ' ' || count(*) as line from {{ source('silver', 'edits') }} group by wiki
`,
}

// goldState is what one scenario of gold knows.
type goldState struct {
	*workload
	point  string
	nth    int
	missed string
	killed bool
	settle func()
}

// golds makes a scenario for every step of a gold run.
func golds() []Scenario {
	var out []Scenario
	for _, p := range fault.Points() {
		if p.Step != "gold" {
			continue
		}
		out = append(out, goldKilledAt(p, 1))
		if p.Name == fault.GoldStaged || p.Name == fault.GoldPublished {
			out = append(out, goldKilledAt(p, 2)) // between the tables of one run
		}
	}
	return out
}

func goldKilledAt(p fault.Point, nth int) Scenario {
	name, where := p.Name, p.Name
	if nth > 1 {
		name += "-again"
		where += fmt.Sprintf(" (table %d)", nth)
	}
	const kill = "run gold until the step is reached, and SIGKILL"
	s := Scenario{
		Name: name, Group: groupGold,
		Place: &Place{Matrix: "Steps of a gold run", Row: where, Column: "killed"},
		Claim: fmt.Sprintf("gold killed at %s (%s) equals a count over silver after the next run, and silver's rows are untouched.", where, p.Text),
		Steps: []Step{
			{"make the topic, the pipeline file and the models", func(ctx context.Context, e *Env) (err error) {
				st := &goldState{point: p.Name, nth: nth}
				e.state = st
				if st.workload, err = e.newWorkload(ctx, setup{Name: "gold", MaxOffsets: crashMaxOffsets}); err != nil {
					return err
				}
				return st.writeProject(e)
			}},
			{"publish, run the pipeline, run gold", goldRound},
			{"publish more, run the pipeline", goldMore},
			{kill, goldKill},
			{"run gold again", func(ctx context.Context, e *Env) error {
				if settle := e.state.(*goldState).settle; settle != nil {
					defer settle()
				}
				return goldRun(ctx, e)
			}},
			{"count", func(ctx context.Context, e *Env) error { return e.state.(*goldState).compare(ctx, e) }},
		},
		GuardAfter: kill,
	}
	s.Guard = func(e *Env) string {
		if st := e.state.(*goldState); !st.killed {
			return fmt.Sprintf("gold never reached %s: %s", p.Name, st.missed)
		}
		return ""
	}
	s.Expect = func(e *Env) []Check {
		st := e.state.(*goldState)
		return []Check{
			{"silver_rows", "silver rows", int64(len(st.expected))},
			{"gold_rows", "rows of the incremental table", int64(len(st.expected))},
			{"gold_ids_missing", "ids of silver that gold lacks", int64(0)},
			{"gold_ids_unexpected", "ids of gold that silver does not have", int64(0)},
			{"gold_ids_twice", "ids that gold has twice", int64(0)},
			{"wikis_wrong", "wikis whose count is not silver's", int64(0)},
		}
	}
	return s
}

// writeProject writes the models, and the pipeline file with gold in it.
func (st *goldState) writeProject(e *Env) error {
	for name, text := range goldProject {
		path := filepath.Join(e.path("models-of-gold"), filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	text, err := os.ReadFile(e.path(queriesFileName))
	if err != nil {
		return err
	}
	more := "gold: {project: " + quote(e.path("models-of-gold")) + ", database: " + quote(e.path("gold.duckdb")) + "}\n"
	return os.WriteFile(e.path(goldFileName), append(text, more...), 0o644)
}

// goldRun runs gold to its end, which must be a good one.
func goldRun(ctx context.Context, e *Env) error {
	p, err := e.start("weir gold build", nil, "gold", "build", e.path(goldFileName))
	if err != nil {
		return err
	}
	return p.wait(ctx, runOnceMax)
}

func goldMore(ctx context.Context, e *Env) error {
	if err := e.state.(*goldState).publish(ctx, e); err != nil {
		return err
	}
	_, err := e.runOnce(ctx)
	return err
}

func goldRound(ctx context.Context, e *Env) error {
	if err := goldMore(ctx, e); err != nil {
		return err
	}
	return goldRun(ctx, e)
}

func goldKill(ctx context.Context, e *Env) error {
	st := e.state.(*goldState)
	p, why, err := e.hold(ctx, "gold/"+st.point, st.nth, "gold", "build", e.path(goldFileName))
	if err != nil || p == nil {
		st.missed = why // the guard says so
		return err
	}
	if st.settle, err = e.kill(ctx, p, e.tableRows(goldPerWiki)); err != nil {
		return err
	}
	st.killed = true
	return nil
}

// compare counts gold against silver, both read by the audit's own reader.
func (st *goldState) compare(ctx context.Context, e *Env) error {
	wikis, want, have := map[string]int64{}, map[string]int64{}, map[string]int64{}
	var lines []string
	for _, c := range []struct {
		table, column string
		f             func(string)
	}{
		{silverTable, "event_id", func(v string) { want[v]++ }},
		{silverTable, "wiki", func(v string) { wikis[v]++ }},
		{goldIDs, "event_id", func(v string) { have[v]++ }},
		{goldPerWiki, "line", func(v string) { lines = append(lines, v) }},
	} {
		if err := audit.Strings(ctx, e.catalog, nil, c.table, c.column, c.f); err != nil {
			return err
		}
	}
	var rows, missing, unexpected, twice int64
	for id, n := range have {
		rows += n
		if n > 1 {
			twice++
		}
		if want[id] == 0 {
			unexpected++
		}
	}
	for id := range want {
		if have[id] == 0 {
			missing++
		}
	}
	var counted []string
	for _, w := range slices.Sorted(maps.Keys(wikis)) {
		counted = append(counted, w+" "+strconv.FormatInt(wikis[w], 10))
	}
	slices.Sort(lines)
	slices.Sort(counted)
	wrong := int64(0)
	for _, l := range append(slices.Clone(lines), counted...) {
		if !slices.Contains(lines, l) || !slices.Contains(counted, l) {
			wrong++
		}
	}
	if len(lines) != len(slices.Compact(slices.Clone(lines))) {
		wrong++
	}
	e.observed["silver_rows"], e.observed["gold_rows"] = int64(len(want)), rows
	e.observed["gold_ids_missing"], e.observed["gold_ids_unexpected"], e.observed["gold_ids_twice"] = missing, unexpected, twice
	e.observed["wikis_wrong"] = wrong
	return nil
}
