package tests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// dbtPython is an interpreter with dbt and its adapter for DuckDB.
func dbtPython(t *testing.T) string {
	t.Helper()
	py := os.Getenv("WEIR_DBT_PYTHON")
	if py == "" {
		py = filepath.Join(repo(t), ".cache", "venv-dbt", "bin", "python")
	}
	if _, err := os.Stat(py); err != nil {
		t.Skipf("no dbt at %s: run scripts/venv.sh dbt (make dbt does; or set WEIR_DBT_PYTHON)", py)
	}
	return py
}

// TestRealDbtGivesTheTablesThatWeirGives runs the folder of models that init
// wrote under dbt and natively, first over an old snapshot of silver and then,
// incrementally, over a newer one.
func TestRealDbtGivesTheTablesThatWeirGives(t *testing.T) {
	weirBin(t)
	py := dbtPython(t)
	l := newLakehouse(t, 2000, 4000)
	text, err := os.ReadFile(l.file)
	if err != nil {
		t.Fatal(err)
	}
	native, other := filepath.Join(l.data, "native.duckdb"), filepath.Join(l.data, "dbt.duckdb")
	with := strings.Replace(string(text), "  schema: gold\n", "  schema: gold\n  database: "+native+"\n", 1)
	if err := os.WriteFile(l.file, []byte(with), 0o644); err != nil {
		t.Fatal(err)
	}
	var had struct {
		Snapshots []int64 `json:"snapshots"`
	}
	reader(t, &had, "gold_batch.py", "--catalog", filepath.Join(l.data, "catalog.db"), "--snapshots")
	for step, id := range []int64{had.Snapshots[0], had.Snapshots[len(had.Snapshots)-1]} {
		pin := fmt.Sprintf("silver.edits=%d", id)
		l.must("gold", "build", l.file, "--pin", pin)
		l.must("gold", "attach", l.file, "--to", other, "--pin", pin)
		cmd := exec.Command(filepath.Join(filepath.Dir(py), "dbt"), "--no-use-colors", "--no-send-anonymous-usage-stats", "build", "--profiles-dir", ".")
		cmd.Dir = filepath.Join(filepath.Dir(l.file), "gold")
		cmd.Env = append(os.Environ(), "WEIR_DUCKDB="+other)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("dbt build: %v\n%s", err, out)
		}
		if !strings.Contains(string(out), "sql incremental model gold.edits_per_minute") {
			t.Errorf("dbt ran no incremental model: %s", out)
		}
		var eq struct {
			Equal  bool `json:"equal"`
			Tables map[string]struct {
				Rows      int64 `json:"rows"`
				SameTypes bool  `json:"same_types"`
				OnlyLeft  int64 `json:"only_left"`
				OnlyRight int64 `json:"only_right"`
			} `json:"tables"`
		}
		readerOf(t, py, &eq, "equal_duckdb.py", native, other, "--right-schema", "gold",
			"--table", "edits_per_minute", "--table", "top_pages", "--table", "editor_activity", "--table", "bot_share")
		if !eq.Equal {
			t.Errorf("step %d: dbt and weir differ: %+v", step, eq.Tables)
		}
		for name, table := range eq.Tables {
			if table.Rows == 0 {
				t.Errorf("step %d: %s is empty", step, name)
			}
		}
		t.Logf("step %d: %+v", step, eq.Tables)
	}
}
