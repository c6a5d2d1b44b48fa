package tests

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// fakeWeir is a program that ends with FAKE_EXIT, having printed a summary, and
// counts how often it was started.
func fakeWeir(t *testing.T) (path string, starts func() int) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, "weir")
	script := fmt.Sprintf("#!/bin/sh\necho x >>%s/starts\necho '{\"completed\":false,\"queries\":[]}'\nexit $FAKE_EXIT\n", dir)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path, func() int {
		b, _ := os.ReadFile(filepath.Join(dir, "starts"))
		return strings.Count(string(b), "x")
	}
}

// retried is what the exit codes mean to every example; docs/orchestrators.md.
var retried = map[int]bool{1: true, 2: false, 3: false, 4: false, 6: true, 7: false, 8: true, 9: false, 130: true, 143: true}

func orchestratorFile(t *testing.T, parts ...string) string {
	t.Helper()
	return filepath.Join(append([]string{repo(t), "examples", "orchestrators"}, parts...)...)
}

func TestCronsScriptTriesAgainOnlyWhatMayBeTriedAgain(t *testing.T) {
	for code, again := range retried {
		fake, starts := fakeWeir(t)
		cmd := exec.Command("sh", orchestratorFile(t, "cron", "weir-once.sh"), "pipeline.yaml", "3")
		cmd.Env = append(os.Environ(), "WEIR_BIN="+fake, "FAKE_EXIT="+strconv.Itoa(code), "WEIR_RETRY_SECONDS=0")
		_ = cmd.Run()
		want := 1
		if again {
			want = 3
		}
		if cmd.ProcessState.ExitCode() != code || starts() != want {
			t.Errorf("exit %d: started %d times, want %d; the script ended with %d", code, starts(), want, cmd.ProcessState.ExitCode())
		}
	}
}

// TestTheTableOfExitCodesIsTheOneThatTheExamplesFollow keeps documents, units,
// chart and examples together.
func TestTheTableOfExitCodesIsTheOneThatTheExamplesFollow(t *testing.T) {
	read := func(parts ...string) string {
		b, err := os.ReadFile(filepath.Join(append([]string{repo(t)}, parts...)...))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	table := read("docs", "orchestrators.md")
	for code, again := range retried {
		word := "no"
		if again {
			word = "yes"
		}
		if !strings.Contains(table, fmt.Sprintf("| %d | %s |", code, word)) {
			t.Errorf("docs/orchestrators.md does not say %q of exit code %d", word, code)
		}
	}
	for _, unit := range []string{"weir@.service", "weir-once@.service"} {
		if !strings.Contains(read("deploy", "systemd", unit), "\nRestartPreventExitStatus=2 3 4 5 7 9 10\n") {
			t.Errorf("%s restarts on other codes", unit)
		}
	}
	if !strings.Contains(read("deploy", "helm", "weir", "templates", "groups.yaml"), "values: [2, 3, 4, 5, 7, 9]") {
		t.Error("the chart's jobs stop on other codes")
	}
	for _, example := range []string{"airflow/weir_dag.py", "dagster/weir_assets.py"} {
		if !strings.Contains(read("examples", "orchestrators", example), "RETRY = {1, 6, 8, 130, 143}") {
			t.Errorf("%s tries again on other codes", example)
		}
	}
}

// orchestrator is the Python of one, which make orchestrators installs.
func orchestrator(t *testing.T, env string) string {
	t.Helper()
	py := os.Getenv(env)
	if py == "" {
		t.Skipf("needs %s, a Python with it: make orchestrators", env)
	}
	return py
}

// orchestrate runs a driver and reads the last line that it prints.
func orchestrate(t *testing.T, python, driver, file string, env []string, into any) {
	t.Helper()
	cmd := exec.Command(python, filepath.Join(repo(t), "tests", "readers", driver), file)
	cmd.Env = append(os.Environ(), env...)
	cmd.Dir = t.TempDir()
	var errs lockedBuffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err != nil || json.Unmarshal([]byte(lines[len(lines)-1]), into) != nil {
		t.Fatalf("%s: %v\n%s\n%s", driver, err, tail(string(out)), tail(errs.String()))
	}
}

func TestDagsterShowsTheRowsAndChecksOfEachQueryAndTriesAgainWhatItMay(t *testing.T) {
	py := orchestrator(t, "WEIR_DAGSTER_PYTHON")
	l := newLab(t, 500)
	file := orchestratorFile(t, "dagster", "weir_assets.py")
	env := []string{"WEIR_BIN=" + weirBin(t), "WEIR_PIPELINE=" + l.file, "DAGSTER_DISABLE_TELEMETRY=yes", "WEIR_RETRY_SECONDS=0"}
	type seen struct {
		Success  bool
		Rows     map[string]map[string]any
		Checks   map[string]bool
		Restarts int
	}
	var first, second seen
	orchestrate(t, py, "run_dagster.py", file, env, &first)
	if !first.Success || first.Rows["bronze"]["input_rows"] != 500. || first.Rows["bronze"]["dagster/row_count"] != 500. ||
		first.Rows["silver"]["input_rows"] != 500. {
		t.Errorf("the first run: %+v", first)
	}
	for _, check := range []string{"bronze/rows_add_up", "bronze/exact", "silver/rows_add_up", "silver/exact"} {
		if !first.Checks[check] {
			t.Errorf("check %s: %v", check, first.Checks)
		}
	}
	orchestrate(t, py, "run_dagster.py", file, env, &second)
	if !second.Success || len(second.Rows) != 0 || len(second.Checks) != 4 {
		t.Errorf("a run with nothing new: %+v", second)
	}
	for code, again := range map[int]bool{2: false, 8: true, 143: true} { // each costs seconds
		fake, starts := fakeWeir(t)
		var got seen
		orchestrate(t, py, "run_dagster.py", file, append(env, "WEIR_BIN="+fake, "FAKE_EXIT="+strconv.Itoa(code)), &got)
		if want := map[bool]int{true: 4, false: 1}[again]; got.Success || starts() != want {
			t.Errorf("exit %d: success %v, started %d times, want %d", code, got.Success, starts(), want)
		}
	}
	l.exact()
}

func TestAirflowRunsThePipelineAndTakesEachExitCodeAsItIsMeant(t *testing.T) {
	py := orchestrator(t, "WEIR_AIRFLOW_PYTHON")
	l := newLab(t, 500)
	file := orchestratorFile(t, "airflow", "weir_dag.py")
	env := []string{"WEIR_BIN=" + weirBin(t), "WEIR_PIPELINE=" + l.file, "AIRFLOW_HOME=" + t.TempDir()}
	var got struct {
		Errors  []string       `json:"import_errors"`
		Retries map[string]int `json:"retries"`
		State   string         `json:"state"`
		Summary onceLine       `json:"summary"`
		Audit   map[string]int `json:"audit"`
	}
	orchestrate(t, py, "run_airflow.py", file, env, &got)
	if len(got.Errors) > 0 || !strings.HasSuffix(got.State, "success") || got.Retries["run_once"] != 3 {
		t.Fatalf("%+v", got)
	}
	if !got.Summary.Completed || len(got.Summary.Queries) != 2 || got.Audit[labBronze] != 500 {
		t.Errorf("the task's results: %+v", got)
	}
	fake, _ := fakeWeir(t)
	want, codes := map[string]string{"0": "success", "5": "skip"}, []string{"0", "5"}
	for code, again := range retried {
		codes = append(codes, strconv.Itoa(code))
		want[strconv.Itoa(code)] = map[bool]string{true: "retry", false: "fail"}[again]
	}
	var taken struct{ Taken map[string]string }
	orchestrate(t, py, "run_airflow.py", file, append(env, "WEIR_BIN="+fake, "FAKE_EXITS="+strings.Join(codes, ",")), &taken)
	if !maps.Equal(taken.Taken, want) {
		t.Errorf("the exit codes are taken for %v, want %v", taken.Taken, want)
	}
	l.exact()
}
