package gold

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/apache/iceberg-go"

	"github.com/weirlake/weir/internal/duck"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
)

// batchOf is a query of n edits, the b-th batch, with random event times over the
// hour before.
func batchOf(r *rand.Rand, b, n int) string {
	rows := make([]string, n)
	for i := range rows {
		rows[i] = fmt.Sprintf("('e%d-%d', timestamptz '2026-05-01 12:00:00+00' + interval '%d seconds', 'edit', %s, 'p%d', 'u%d', %t, %d, %d, timestamptz '2026-05-01 13:00:00+00' + interval '%d seconds')",
			b, i, r.IntN(3600), []string{"'enwiki'", "'dewiki'", "NULL"}[r.IntN(3)], r.IntN(20), r.IntN(10), r.IntN(3) == 0, r.IntN(100), r.IntN(100), b)
	}
	names := make([]string, 0, 10)
	for _, f := range edits.Fields() {
		names = append(names, duck.Ident(f.Name))
	}
	return "SELECT * FROM (VALUES " + strings.Join(rows, ", ") + ") AS v(" + strings.Join(names, ", ") + ")"
}

func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	const seed = 20260501
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

func TestTheShippedModelsArePublishedWithTheirInputsAndSkippedUntilTheseChange(t *testing.T) {
	w, r := newWorld(t), seeded(t)
	id := w.add("silver.edits", edits, batchOf(r, 0, 200))
	g := shipped(t)
	res, got := w.run(g, func(o *Options) { o.Test = true })
	for _, name := range []string{"edits_per_minute", "top_pages", "editor_activity", "bot_share"} {
		m := got[name]
		if m.State != StatePublished || m.Mode != "full" || m.Rows == 0 {
			t.Errorf("%s: %+v", name, m)
		}
		tbl, err := w.c.LoadTable(context.Background(), ident(t, "gold."+name))
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf(`{"silver.edits":%d}`, id)
		if s := lake.SummaryValue(tbl.CurrentSnapshot(), KeyInputs); s != want {
			t.Errorf("%s: inputs in the summary %s, want %s", name, s, want)
		}
		rec, err := RecordOf(tbl, name)
		if err != nil || rec.RunID != res.RunID || rec.Inputs["silver.edits"].SnapshotID != id {
			t.Errorf("%s: record %+v, %v", name, rec, err)
		}
	}
	if len(res.Tests) == 0 {
		t.Error("no test ran")
	}
	for _, test := range res.Tests {
		if test.State != TestPassed {
			t.Errorf("test %+v", test)
		}
	}
	_, got = w.run(g, nil)
	for name, m := range got {
		if m.State != StateSkipped {
			t.Errorf("%s was not skipped: %+v", name, m)
		}
	}
	tbl, err := w.c.LoadTable(context.Background(), ident(t, "silver.edits"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.c.Commit(context.Background(), tbl, lake.Change{}); err != nil { // as a claim does
		t.Fatal(err)
	}
	if _, got = w.run(g, nil); got["top_pages"].State != StateSkipped {
		t.Errorf("a snapshot without rows is news: %+v", got["top_pages"])
	}
	w.add("silver.edits", edits, batchOf(r, 1, 50))
	_, got = w.run(g, nil)
	if m := got["edits_per_minute"]; m.State != StatePublished || m.Mode != "incremental" {
		t.Errorf("after an append: %+v", m)
	}
	if m := got["top_pages"]; m.State != StatePublished || m.Mode != "full" {
		t.Errorf("after an append: %+v", m)
	}
}

func TestAnIncrementalModelEqualsItsRebuildOverRandomAppends(t *testing.T) {
	w, r := newWorld(t), seeded(t)
	g := shipped(t)
	for b := range 6 {
		w.add("silver.edits", edits, batchOf(r, b, 1+r.IntN(120)))
		_, got := w.run(g, nil)
		want := "incremental"
		if b == 0 {
			want = "full"
		}
		if m := got["edits_per_minute"]; m.Mode != want {
			t.Fatalf("batch %d: %+v", b, m)
		}
		step := w.digest("gold.edits_per_minute")
		if _, got := w.run(g, func(o *Options) { o.FullRefresh, o.Select = true, []string{"edits_per_minute"} }); got["edits_per_minute"].Mode != "full" {
			t.Fatalf("batch %d: no rebuild: %+v", b, got)
		}
		if whole := w.digest("gold.edits_per_minute"); whole != step {
			t.Fatalf("batch %d: the incremental table\n%s\nis not the rebuilt one\n%s", b, step, whole)
		}
	}
}

func TestAnIncrementalRunRewritesOnlyTheFilesThatHoldItsKeys(t *testing.T) {
	w := newWorld(t)
	dir := project(map[string]string{"models/m.sql": `{{ config(materialized='incremental', unique_key='wiki') }}
select wiki, count(*) as n, max(processed_at) as last from {{ source('silver', 'edits') }}
{% if is_incremental() %} where processed_at > (select max(last) from {{ this }}) {% endif %} group by wiki`})
	g := compiled(t, dir, nil)
	at := func(b int, wiki string) string {
		return fmt.Sprintf("SELECT 'e%d' AS event_id, now() AS event_time, 'edit' AS type, '%s' AS wiki, '' AS title, 'u' AS \"user\", false AS bot, 0 AS length_old, 0 AS length_new, timestamptz '2026-01-01 00:00:00+00' + interval '%d minutes' AS processed_at", b, wiki, b)
	}
	w.add("silver.edits", edits, at(0, "a"))
	w.run(g, nil)
	w.add("silver.edits", edits, at(1, "b"))
	w.run(g, nil)
	tbl, err := w.c.LoadTable(context.Background(), ident(t, "gold.m"))
	if err != nil {
		t.Fatal(err)
	}
	before, _, err := lake.FilesOf(context.Background(), tbl)
	if err != nil || len(before) != 2 {
		t.Fatalf("two keys came in two runs, files: %d, %v", len(before), err)
	}
	w.add("silver.edits", edits, at(2, "b"))
	w.run(g, nil)
	if tbl, err = w.c.LoadTable(context.Background(), ident(t, "gold.m")); err != nil {
		t.Fatal(err)
	}
	after, _, err := lake.FilesOf(context.Background(), tbl)
	if err != nil || len(after) != 2 {
		t.Fatalf("%d files, %v", len(after), err)
	}
	kept := 0
	for _, a := range after {
		for _, b := range before {
			if a.FilePath() == b.FilePath() {
				kept++
			}
		}
	}
	if kept != 1 {
		t.Errorf("%d of the files stayed, want the one without the key", kept)
	}
	if d := w.digest("gold.m", "wiki", "n"); strings.Count(d, "\n") != 2 {
		t.Errorf("rows: %s", d)
	}
}

func TestAnIncrementalModelIsBuiltFromNothingWhereGoingOnWouldBeWrong(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(t *testing.T, w *world) *Graph
		why       string
	}{
		"an input lost rows": {func(t *testing.T, w *world) *Graph {
			tbl, f := w.file("silver.edits", edits, batchOf(seeded(t), 9, 5))
			old, _, err := lake.FilesOf(context.Background(), tbl)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.c.Replace(context.Background(), tbl, lake.Replacement{Remove: old, Change: lake.Change{Files: []iceberg.DataFile{f.DataFile}}}); err != nil {
				t.Fatal(err)
			}
			return shipped(t)
		}, "changed other than by appending"},
		"an input is another table": {func(t *testing.T, w *world) *Graph {
			if err := w.c.DropTable(context.Background(), ident(t, "silver.edits")); err != nil {
				t.Fatal(err)
			}
			w.add("silver.edits", edits, batchOf(seeded(t), 9, 5))
			return shipped(t)
		}, "another table"},
		"the model changed": {func(t *testing.T, w *world) *Graph {
			w.add("silver.edits", edits, batchOf(seeded(t), 9, 5))
			return compiled(t, shippedWith(t, "models/marts/edits_per_minute.sql", "count(*) as editors", "count(editor) as editors"), nil)
		}, "changed"},
		"the model upstream changed": {func(t *testing.T, w *world) *Graph {
			w.add("silver.edits", edits, batchOf(seeded(t), 9, 5))
			return compiled(t, shippedWith(t, "models/staging/stg_edits.sql", "'unknown') as wiki", "'?') as wiki"), nil)
		}, "changed"},
		"somebody wrote into the table": {func(t *testing.T, w *world) *Graph {
			tbl, err := w.c.LoadTable(context.Background(), ident(t, "gold.edits_per_minute"))
			if err != nil {
				t.Fatal(err)
			}
			old, _, err := lake.FilesOf(context.Background(), tbl)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.c.Replace(context.Background(), tbl, lake.Replacement{Remove: old}); err != nil {
				t.Fatal(err)
			}
			w.add("silver.edits", edits, batchOf(seeded(t), 9, 5))
			return shipped(t)
		}, "somebody else"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.add("silver.edits", edits, batchOf(seeded(t), 0, 50))
			w.run(shipped(t), nil)
			g := c.meanwhile(t, w)
			_, got := w.run(g, nil)
			m := got["edits_per_minute"]
			if m.Mode != "full" || !strings.Contains(m.Why, c.why) {
				t.Errorf("%+v", m)
			}
			after := w.digest("gold.edits_per_minute")
			w.run(g, func(o *Options) { o.FullRefresh = true })
			if again := w.digest("gold.edits_per_minute"); again != after {
				t.Errorf("the table is not that of a rebuild:\n%s\n%s", after, again)
			}
		})
	}
}

func TestARunPinnedAtAnOldSnapshotGivesTheTableOfThen(t *testing.T) {
	w, r := newWorld(t), seeded(t)
	g := shipped(t)
	first := w.add("silver.edits", edits, batchOf(r, 0, 80))
	w.run(g, nil)
	then := w.digest("gold.top_pages") + w.digest("gold.edits_per_minute")
	w.add("silver.edits", edits, batchOf(r, 1, 80))
	w.run(g, nil)
	if w.digest("gold.top_pages")+w.digest("gold.edits_per_minute") == then {
		t.Fatal("the second batch changed nothing")
	}
	_, got := w.run(g, func(o *Options) { o.Pins = map[string]int64{"silver.edits": first} })
	if again := w.digest("gold.top_pages") + w.digest("gold.edits_per_minute"); again != then {
		t.Errorf("pinned at the first snapshot: %s, want %s (%+v)", again, then, got)
	}
}

func TestAModelThatFailsItsTestIsNotPublishedNorIsWhatIsBuiltOnIt(t *testing.T) {
	w := newWorld(t)
	w.add("silver.edits", edits, batchOf(seeded(t), 0, 20))
	dir := project(map[string]string{
		"models/bad.sql":   "{{ config(materialized='table') }} select event_id, 1 as same from {{ source('silver', 'edits') }}",
		"models/on.sql":    "{{ config(materialized='table') }} select * from {{ ref('bad') }}",
		"models/good.sql":  "{{ config(materialized='table') }} select event_id from {{ source('silver', 'edits') }}",
		"models/tests.yml": "models: [{name: bad, columns: [{name: same, data_tests: [unique]}]}, {name: good, columns: [{name: event_id, tests: [{not_null: {config: {severity: warn}}}]}]}]",
	})
	o := w.options()
	o.Test = true
	res, err := compiled(t, dir, nil).Run(context.Background(), o)
	if !failure.Is(err, failure.Mismatch) || !strings.Contains(err.Error(), "unique_bad_same") {
		t.Fatalf("the error is %v", err)
	}
	got := byName(res)
	if got["bad"].State != StateFailed || got["on"].State != StateBlocked || got["good"].State != StatePublished {
		t.Errorf("%+v", got)
	}
	for _, name := range []string{"gold.bad", "gold.on"} {
		if _, err := w.c.LoadTable(context.Background(), ident(t, name)); err == nil {
			t.Errorf("%s was published", name)
		}
	}
}

func TestAModelThatFailsLeavesTheOthersAndItsOwnTable(t *testing.T) {
	w := newWorld(t)
	w.add("silver.edits", edits, batchOf(seeded(t), 0, 20))
	files := map[string]string{
		"models/a.sql": "{{ config(materialized='table') }} select count(*) as n from {{ source('silver', 'edits') }}",
		"models/b.sql": "{{ config(materialized='table') }} select cast(n as varchar) as n from {{ ref('a') }}",
		"models/c.sql": "{{ config(materialized='table') }} select 1 as one",
	}
	w.run(compiled(t, project(files), nil), nil)
	before := w.digest("gold.a")
	files["models/a.sql"] = "{{ config(materialized='table') }} select nothing as n from {{ source('silver', 'edits') }}"
	files["models/c.sql"] = "{{ config(materialized='table') }} select 2 as one"
	res, err := compiled(t, project(files), nil).Run(context.Background(), w.options())
	if !failure.Is(err, failure.Config) || !strings.Contains(err.Error(), "nothing") {
		t.Fatalf("the error is %v", err)
	}
	got := byName(res)
	if got["a"].State != StateFailed || got["b"].State != StateBlocked || got["c"].State != StatePublished {
		t.Errorf("%+v", got)
	}
	if after := w.digest("gold.a"); after != before {
		t.Errorf("the table of the failed model changed: %s", after)
	}
}

func TestAModelMayChangeItsColumns(t *testing.T) {
	w := newWorld(t)
	w.add("silver.edits", edits, batchOf(seeded(t), 0, 20))
	for i, sql := range []string{
		"select 1 as a, 'x' as b", "select 'now text' as a, 'x' as b", "select 2.5 as c, 'x' as b, [1, 2] as d", "select 'y' as b",
	} {
		g := compiled(t, project(map[string]string{"models/m.sql": "{{ config(materialized='table') }} " + sql}), nil)
		if _, got := w.run(g, nil); got["m"].Rows != 1 {
			t.Fatalf("%d: %+v", i, got)
		}
		want := []string{`{"a":1,"b":"x"}`, `{"b":"x","a":"now text"}`, `{"b":"x","c":2.5,"d":[1,2]}`, `{"b":"y"}`}[i]
		if got := strings.TrimSpace(w.digest("gold.m")); got != want {
			t.Errorf("%d: %s, want %s", i, got, want)
		}
	}
}

func TestEveryTypeThatAModelMayHaveComesBackAsItWent(t *testing.T) {
	w := newWorld(t)
	w.add("silver.edits", edits, batchOf(seeded(t), 0, 1))
	g := compiled(t, project(map[string]string{"models/m.sql": `{{ config(materialized='table') }}
select true as b, 1::tinyint as t, 2::integer as i, 3::bigint as l, 18446744073709551615::ubigint as ul, sum(5) as h, 1.5::float as f, 2.5::double as d,
  12.34::decimal(9,2) as dec, 'text' as s, '\xAA'::blob as bl, date '2026-01-02' as dt, timestamp '2026-01-02 03:04:05.678901' as ts,
  timestamptz '2026-01-02 03:04:05+00' as tz, uuid '00112233-4455-6677-8899-aabbccddeeff' as u, [1, 2] as li, {'x': 1, 'y': 'z'} as st,
  map {'k': 1} as m, [{'n': [1.5]}] as deep, null::varchar as nothing`}), nil)
	if _, got := w.run(g, nil); got["m"].State != StatePublished {
		t.Fatalf("%+v", got)
	}
	want := `{"b":true,"t":1,"i":2,"l":3,"ul":18446744073709551615,"h":5,"f":1.5,"d":2.5,"dec":12.34,"s":"text","bl":"\\xAA","dt":"2026-01-02","ts":"2026-01-02 03:04:05.678901","tz":"2026-01-02 03:04:05+00","u":"00112233-4455-6677-8899-aabbccddeeff","li":[1,2],"st":{"x":1,"y":"z"},"m":{"k":1},"deep":[{"n":[1.5]}],"nothing":null}`
	if got := strings.TrimSpace(w.digest("gold.m")); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	bad := compiled(t, project(map[string]string{"models/m.sql": "{{ config(materialized='table') }} select interval '1 day' as i"}), nil)
	if _, err := bad.Run(context.Background(), w.options()); err == nil || !strings.Contains(err.Error(), "column i") {
		t.Errorf("an interval was taken: %v", err)
	}
}

func TestAnOptionalSourceIsEmptyUntilThereIsATable(t *testing.T) {
	w := newWorld(t)
	w.add("silver.edits", edits, batchOf(seeded(t), 0, 30))
	g := shipped(t)
	w.run(g, nil)
	if d := w.digest("gold.editor_activity", "sessions"); strings.Contains(d, `"sessions":1`) {
		t.Fatalf("sessions out of nothing: %s", d)
	}
	sc := iceberg.NewSchema(0, iceberg.NestedField{ID: 1, Name: "user", Type: iceberg.PrimitiveTypes.String})
	w.add("silver.editor_sessions", sc, `SELECT 'u1' AS "user"`)
	if _, got := w.run(g, nil); got["editor_activity"].State != StatePublished || got["top_pages"].State != StateSkipped {
		t.Errorf("%+v", got)
	}
	if d := w.digest("gold.editor_activity", "sessions"); !strings.Contains(d, `"sessions":1`) {
		t.Errorf("no session: %s", d)
	}
}

func TestASourceThatDoesNotExistSaysSo(t *testing.T) {
	w := newWorld(t)
	_, err := shipped(t).Run(context.Background(), w.options())
	if !failure.Is(err, failure.Config) || !strings.Contains(err.Error(), "silver.edits") {
		t.Errorf("the error is %v", err)
	}
}

func TestRunsAtTheSameTimeLeaveTheTableOfOneOfThem(t *testing.T) {
	w, r := newWorld(t), seeded(t)
	g := shipped(t)
	w.add("silver.edits", edits, batchOf(r, 0, 50))
	w.run(g, nil)
	w.add("silver.edits", edits, batchOf(r, 1, 50))
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if _, err := shipped(t).Run(context.Background(), w.options()); err != nil && !strings.Contains(err.Error(), "another run of gold") {
				t.Errorf("run: %v", err)
			}
		})
	}
	wg.Wait()
	w.run(g, nil) // whatever one of them left to do
	after := w.digest("gold.edits_per_minute")
	w.run(g, func(o *Options) { o.FullRefresh = true })
	if again := w.digest("gold.edits_per_minute"); again != after {
		t.Errorf("the table is not that of a rebuild:\n%s\n%s", after, again)
	}
}

func TestTheDuckDBFileHoldsThePublishedTables(t *testing.T) {
	w := newWorld(t)
	w.add("silver.edits", edits, batchOf(seeded(t), 0, 50))
	path := filepath.Join(w.dir, "gold.duckdb")
	for range 2 {
		w.run(shipped(t), func(o *Options) { o.Keep, o.FullRefresh = path, true })
	}
	s, err := duck.Open(context.Background(), duck.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if n, err := s.Count(context.Background(), "SELECT sum(edits)::bigint FROM gold.editor_activity"); err != nil || n != 50 {
		t.Errorf("%d edits in the file, %v", n, err)
	}
}

func TestPublishedTablesAreTestedAtTheSnapshotsThatTheyWereMadeFrom(t *testing.T) {
	w, r := newWorld(t), seeded(t)
	g := shipped(t)
	w.add("silver.edits", edits, batchOf(r, 0, 50))
	w.run(g, nil)
	w.add("silver.edits", edits, batchOf(r, 1, 50)) // gold is behind now, and not wrong
	rep, err := g.Test(context.Background(), w.options())
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, res := range rep.Tests {
		found = found || res.Name == "gold_counts_what_silver_has"
	}
	if !found {
		t.Errorf("no reconciliation among %+v", rep.Tests)
	}
	tbl, err := w.c.LoadTable(context.Background(), ident(t, "gold.edits_per_minute"))
	if err != nil {
		t.Fatal(err)
	}
	old, _, err := lake.FilesOf(context.Background(), tbl)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.c.Replace(context.Background(), tbl, lake.Replacement{Remove: old}); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Test(context.Background(), w.options()); !failure.Is(err, failure.Mismatch) || !strings.Contains(err.Error(), "gold_counts_what_silver_has") {
		t.Errorf("an emptied table passes: %v", err)
	}
}

func TestTheListSaysWhatIsStale(t *testing.T) {
	w, r := newWorld(t), seeded(t)
	g := shipped(t)
	w.add("silver.edits", edits, batchOf(r, 0, 10))
	state := func() string {
		ls, err := g.List(context.Background(), w.options())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range ls {
			if l.Name == "bot_share" {
				return l.State
			}
		}
		return ""
	}
	for _, want := range []string{"missing", "current", "stale"} {
		if got := state(); got != want {
			t.Errorf("bot_share is %s, want %s", got, want)
		}
		if want == "missing" {
			w.run(g, nil)
		} else {
			w.add("silver.edits", edits, batchOf(r, 1, 10))
		}
	}
}
