package tests

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weirlake/weir/internal/fault"
)

// batchOf is what gold_batch.py prints.
type batchOf struct {
	Equal bool `json:"equal"`
	Marts map[string]struct {
		Equal      bool     `json:"equal"`
		Rows       int64    `json:"rows"`
		SilverRows int64    `json:"silver_rows"`
		Extra      []string `json:"extra"`
		Missing    []string `json:"missing"`
	} `json:"marts"`
}

// lakehouse is a folder with the shipped pipeline's tables, and the file.
type lakehouse struct {
	t          *testing.T
	data, file string
	env        []string
}

// newLakehouse plays the demo's stream in steps, so that silver has a history.
func newLakehouse(t *testing.T, steps ...int) *lakehouse {
	t.Helper()
	weirBin(t)
	python(t)
	data := t.TempDir()
	for _, n := range steps {
		var s demoSummary
		mustJSON(t, &s, "demo", "--data", data, "--events", strconv.Itoa(n), "--once", "--listen", "none", "--seed", "11", "--output", "json")
	}
	l := &lakehouse{t: t, data: data, file: filepath.Join(t.TempDir(), "pipeline.yaml"), env: []string{"WEIR_DATA=" + data}}
	if _, errs, code := weir(t, nil, "init", l.file, "--example", "wikimedia"); code != 0 {
		t.Fatalf("weir init: exit %d: %s", code, errs)
	}
	return l
}

func (l *lakehouse) weir(args ...string) (stdout, stderr string, code int) {
	l.t.Helper()
	return weir(l.t, l.env, args...)
}

// must runs a command that has to end well.
func (l *lakehouse) must(args ...string) string {
	l.t.Helper()
	out, errs, code := l.weir(args...)
	if code != 0 {
		l.t.Fatalf("weir %s: exit %d: %s", strings.Join(args, " "), code, tail(errs))
	}
	return out
}

// equalsBatch compares the marts with a recomputation in Python.
func (l *lakehouse) equalsBatch(when string) batchOf {
	l.t.Helper()
	var b batchOf
	reader(l.t, &b, "gold_batch.py", "--catalog", filepath.Join(l.data, "catalog.db"))
	if !b.Equal || len(b.Marts) != 4 {
		l.t.Errorf("%s: gold is not a batch recomputation: %+v", when, b)
	}
	return b
}

func TestTheShippedLakehouseFromOutside(t *testing.T) {
	l := newLakehouse(t, 1000, 2000, 3000)
	for name, test := range map[string]func(*testing.T, *lakehouse){
		"SQL reads every table, now and then":                           sqlReads,
		"checks that fail end with four and reach the command":          checksFail,
		"a DuckDB file of gold survives a kill while it is written":     duckDBFileKilled,
		"gold killed at every point equals a batch recomputation":       goldKilled,
		"models written by init give the tables of those in the binary": ownModels,
	} {
		t.Run(name, func(t *testing.T) {
			own := *l
			own.t, own.file = t, filepath.Join(t.TempDir(), "pipeline.yaml")
			own.must("init", own.file, "--example", "wikimedia")
			test(t, &own)
		})
	}
}

func goldKilled(t *testing.T, l *lakehouse) {
	var had struct {
		Snapshots []int64 `json:"snapshots"`
	}
	reader(t, &had, "gold_batch.py", "--catalog", filepath.Join(l.data, "catalog.db"), "--snapshots")
	if len(had.Snapshots) < 3 {
		t.Fatalf("silver has %d snapshots with rows, want three", len(had.Snapshots))
	}
	pin := func(i int) string { return fmt.Sprintf("silver.edits=%d", had.Snapshots[i]) }
	for _, p := range fault.Points() {
		if p.Step != "gold" {
			continue
		}
		for n := 1; n <= 2; n++ {
			if n == 2 && p.Name != fault.GoldStaged && p.Name != fault.GoldPublished {
				continue // reached once in a run
			}
			l.must("gold", "run", l.file, "--full-refresh", "--pin", pin(0))
			env := append(slices.Clone(l.env), fmt.Sprintf("WEIR_CRASH_AT=gold/%s:%d", p.Name, n))
			_, errs, code := weir(t, env, "gold", "build", l.file, "--pin", pin(1))
			if code >= 0 && !strings.Contains(errs, "crash point gold/"+p.Name+" reached") {
				if p.Name == fault.GoldKept {
					continue // this pipeline keeps no DuckDB file: see the next test
				}
				t.Errorf("%s:%d was not reached: exit %d, %s", p.Name, n, code, tail(errs))
				continue
			}
			l.must("gold", "build", l.file, "--pin", pin(1+n%2)) // the same snapshots, or newer ones at once
			if p.Name == fault.GoldStaged || p.Name == fault.GoldPublished {
				l.equalsBatch(fmt.Sprintf("killed at %s:%d", p.Name, n))
			}
		}
	}
}

func duckDBFileKilled(t *testing.T, l *lakehouse) {
	text, err := os.ReadFile(l.file)
	if err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(l.data, "gold.duckdb")
	with := strings.Replace(string(text), "  schema: gold\n", "  schema: gold\n  database: "+kept+"\n", 1)
	if err := os.WriteFile(l.file, []byte(with), 0o644); err != nil {
		t.Fatal(err)
	}
	l.must("gold", "run", l.file)
	before, err := os.ReadFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	env := append(slices.Clone(l.env), "WEIR_CRASH_AT=gold/"+fault.GoldPublished+":4")
	if _, errs, _ := weir(t, env, "gold", "run", l.file, "--full-refresh"); !strings.Contains(errs, "reached") {
		t.Fatalf("the crash point was not reached: %s", tail(errs))
	}
	after, err := os.ReadFile(kept)
	if err != nil || string(before) != string(after) {
		t.Errorf("the file changed before it was whole (%v)", err)
	}
	env[len(env)-1] = "WEIR_CRASH_AT=gold/" + fault.GoldKept + ":1"
	if _, errs, _ := weir(t, env, "gold", "run", l.file, "--full-refresh"); !strings.Contains(errs, "reached") {
		t.Fatalf("the crash point was not reached: %s", tail(errs))
	}
	l.must("gold", "run", l.file)
	if _, err := os.Stat(kept + ".new"); err == nil {
		t.Error("a half-written file stays")
	}
}

func TestAJobKilledAnywhereIsClosedAndRunAgain(t *testing.T) {
	l := newLakehouse(t)
	args := func(n int) []string {
		return []string{"demo", "--data", l.data, "--events", strconv.Itoa(n), "--once", "--listen", "none", "--seed", "11", "--output", "json"}
	}
	for i, p := range []string{fault.JobBegun, fault.JobDone, fault.JobRecorded} {
		_, errs, _ := weir(t, []string{"WEIR_CRASH_AT=jobs/" + p + ":1"}, args(1000+500*i)...)
		if !strings.Contains(errs, "crash point jobs/"+p+" reached") {
			t.Fatalf("%s was not reached: %s", p, tail(errs))
		}
	}
	const want = 2 // the third was killed with its row in the table
	var s demoSummary
	mustJSON(t, &s, args(2500)...)
	out := l.must("sql", l.file, "--format", "json", "SELECT status, count(*) AS n, count(DISTINCT run_id) AS ids FROM ops.runs GROUP BY 1 ORDER BY 1")
	if !strings.Contains(out, fmt.Sprintf(`{"status":"interrupted","n":%d,"ids":%d}`, want, want)) {
		t.Errorf("interrupted runs: %s, want %d", out, want)
	}
	if strings.Contains(out, "running") || strings.Contains(out, "failed") {
		t.Errorf("runs: %s", out)
	}
	l.equalsBatch("after jobs were killed")
}

func sqlReads(t *testing.T, l *lakehouse) {
	one := func(args ...string) map[string]any {
		t.Helper()
		var m map[string]any
		out := l.must(append([]string{"sql", l.file, "--format", "json"}, args...)...)
		if err := json.Unmarshal([]byte(out), &m); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		return m
	}
	now := one("SELECT count(*) AS n FROM silver.edits")["n"].(float64)
	var had struct {
		Snapshots []int64 `json:"snapshots"`
	}
	reader(t, &had, "gold_batch.py", "--catalog", filepath.Join(l.data, "catalog.db"), "--snapshots")
	first := had.Snapshots[0]
	then := one(fmt.Sprintf("SELECT count(*) AS n FROM silver.edits AT (VERSION => %d)", first))["n"].(float64)
	if then == 0 || then >= now {
		t.Errorf("%g rows now, %g then", now, then)
	}
	for _, args := range [][]string{
		{fmt.Sprintf("SELECT count(*) AS n FROM silver.edits FOR VERSION AS OF %d", first)},
		{"SELECT count(*) AS n FROM silver.edits", "--as-of", strconv.FormatInt(first, 10)},
	} {
		if got := one(args...)["n"].(float64); got != then {
			t.Errorf("%v: %g rows, want %g", args, got, then)
		}
	}
	if out := l.must("sql", l.file, "--format", "csv", `SELECT 1 AS a, 'x"y' AS b, NULL AS c; SELECT 2 AS d`); out != "a,b,c\n1,\"x\"\"y\",\nd\n2\n" {
		t.Errorf("csv: %q", out)
	}
	if out := l.must("sql", l.file, "SELECT wiki, edits FROM gold.bot_share ORDER BY edits DESC LIMIT 1"); !strings.Contains(out, "wiki") || !strings.Contains(out, "─") {
		t.Errorf("table: %q", out)
	}
	for statement, says := range map[string]string{
		"SELEC 1": "SELEC", "SELECT nope FROM silver.edits": "nope", "SELECT * FROM silver.nope": "there are bronze.recentchange",
		"CREATE TABLE x AS SELECT 1": "only reads", "FROM read_text('" + l.file + "')": "Permission",
		"SELECT count(*) FROM silver.edits AT (VERSION => 1)": "no snapshot 1", " ; ": "empty",
	} {
		_, errs, code := l.weir("sql", l.file, statement)
		if code != 2 || !strings.Contains(errs, says) {
			t.Errorf("%s: exit %d, %s; want 2 and %q", statement, code, errs, says)
		}
	}
}

func checksFail(t *testing.T, l *lakehouse) {
	told := filepath.Join(l.data, "told.json")
	text, err := os.ReadFile(l.file)
	if err != nil {
		t.Fatal(err)
	}
	more := "checks:\n  - {name: impossible, table: silver.edits, rowCount: {min: 1000000}}\n"
	with := strings.Replace(string(text), "checks:\n", more, 1) + "\nalerts:\n  command: cat >> " + told + "\n"
	if err := os.WriteFile(l.file, []byte(with), 0o644); err != nil {
		t.Fatal(err)
	}
	out, errs, code := l.weir("checks", "run", l.file, "impossible", "edits_once", "--output", "json")
	if code != 4 || !strings.Contains(errs, "impossible") {
		t.Fatalf("exit %d: %s", code, errs)
	}
	var doc struct {
		Checks []struct{ Check, Status, Observed string }
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil || len(doc.Checks) != 2 || doc.Checks[0].Status != "failed" || doc.Checks[1].Status != "passed" {
		t.Errorf("%s, %v", out, err)
	}
	alert, err := os.ReadFile(told)
	if err != nil || !strings.Contains(string(alert), `"kind":"checks-failed"`) || !strings.Contains(string(alert), "impossible") {
		t.Errorf("the command was told %s, %v", alert, err)
	}
	if rows := l.must("sql", l.file, "--format", "csv", "SELECT status FROM ops.checks WHERE check_name = 'impossible'"); rows != "status\nfailed\n" {
		t.Errorf("ops.checks: %q", rows)
	}
	if out := l.must("checks", "run", l.file, "bronze_is_complete"); !strings.Contains(out, "passed") {
		t.Errorf("against the broker: %s", out)
	}
}

// ownModels runs the folder that init wrote, changed.
func ownModels(t *testing.T, l *lakehouse) {
	l.must("gold", "run", l.file)
	folder := filepath.Join(filepath.Dir(l.file), "gold")
	model := filepath.Join(folder, "models", "marts", "top_pages.sql")
	if _, err := os.Stat(model); err != nil {
		t.Fatalf("init wrote no models: %v", err)
	}
	if out := l.must("gold", "run", l.file); strings.Contains(out, "published") {
		t.Errorf("the same models are others: %s", out)
	}
	if err := os.WriteFile(model, []byte("{{ config(materialized='table') }}\nselect wiki, count(*) as edits from {{ ref('stg_edits') }} group by wiki\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "models", "marts", "mine.sql"), []byte("select sum(edits) as edits from {{ ref('top_pages') }}"), 0o644); err != nil {
		t.Fatal(err)
	}
	l.must("gold", "build", l.file)
	out := l.must("sql", l.file, "--format", "csv", "SELECT (SELECT sum(edits) FROM gold.mine) - (SELECT count(*) FROM silver.edits) AS diff")
	if out != "diff\n0\n" {
		t.Errorf("a model of one's own: %q", out)
	}
	if err := os.WriteFile(model, []byte("select {{ ref('nobody') }}"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, errs, code := l.weir("gold", "run", l.file)
	if code != 2 || !strings.Contains(errs, "top_pages.sql") || !strings.Contains(errs, "nobody") {
		t.Errorf("exit %d: %s", code, errs)
	}
}
