package catalogserve_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// engineTimeout bounds one engine's run; Spark's first start is slow.
const engineTimeout = 4 * time.Minute

// found is what the project's own scripts made in .cache, or what the
// environment says; several files are separated by commas.
func found(env, cached string) string {
	if v := os.Getenv(env); v != "" {
		return v
	}
	var all []string
	for _, pattern := range strings.Split(cached, ",") {
		files, err := filepath.Glob(filepath.Join("..", "..", ".cache", pattern))
		if err != nil || len(files) != 1 {
			return ""
		}
		abs, err := filepath.Abs(files[0])
		if err != nil {
			return ""
		}
		all = append(all, abs)
	}
	return strings.Join(all, ",")
}

// engine is a reader of others: what runs its script in testdata, and what the
// script is given beside what is asked of it.
type engine struct {
	script string
	python string
	more   []string
	// missing is why it cannot be run, empty where it can.
	missing string
}

func newEngine(script, env, python, made string, more ...string) engine {
	e := engine{script: script, python: found(env, python), more: more}
	for _, s := range append([]string{e.python}, more...) {
		if s == "" {
			e.missing = "not there: run " + made
		}
	}
	return e
}

func pyIceberg() engine {
	return newEngine("attach_pyiceberg.py", "WEIR_PYTHON", "venv/bin/python", "scripts/venv.sh, or set WEIR_PYTHON")
}

func duckDB() engine {
	return newEngine("attach_duckdb.py", "WEIR_DUCKDB_PYTHON", "venv-duckdb/bin/python", "scripts/venv.sh duckdb, or set WEIR_DUCKDB_PYTHON")
}

// spark has the jars of JDBC too.
func spark() engine {
	return newEngine("attach_spark.py", "WEIR_SPARK_PYTHON", "venv-spark/bin/python", "scripts/spark.sh, or set WEIR_SPARK_PYTHON and WEIR_SPARK_JAR",
		found("WEIR_SPARK_JAR", "iceberg-spark-runtime-*/*.jar,sqlite-jdbc-*/*.jar,postgresql-*/*.jar"))
}

// wanted is what an engine is asked: the settings of catalogs, by name.
type wanted struct {
	Catalogs map[string]map[string]string `json:"catalogs"`
	Write    bool                         `json:"write"`
}

// counted is what it finds in each table of each catalog.
type counted struct {
	Counts  map[string]map[string]int
	Refused int
}

func (e engine) ask(t *testing.T, w wanted) (got counted, err error) {
	t.Helper()
	question, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), engineTimeout)
	defer cancel()
	args := append([]string{filepath.Join("testdata", e.script), string(question)}, e.more...)
	out, err := exec.CommandContext(ctx, e.python, args...).Output() //nolint:gosec // the interpreter that the tester names
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return counted{}, errors.New(e.script + ": " + err.Error() + "\n" + string(exit.Stderr))
	}
	if err != nil {
		return counted{}, err
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return got, json.Unmarshal([]byte(lines[len(lines)-1]), &got)
}

// attach lets an engine count every table through the served catalog, without
// and with a token, and write.
func attach(t *testing.T, e engine, refused int, settings func(url, token string) map[string]string) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts another engine; not run with -short")
	}
	if e.missing != "" {
		t.Skip(e.missing)
	}
	l := newLakehouse(t)
	for _, token := range []string{"", "0123456789abcdef0123"} {
		s := settings(l.serve(t, token), token)
		if token == "" {
			delete(s, "token")
		}
		got, err := e.ask(t, wanted{map[string]map[string]string{"lake": s}, true})
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(got.Counts["lake"], l.rows) || got.Refused != refused {
			t.Errorf("%s counts %v, %d writes refused; want %v, %d", e.script, got.Counts, got.Refused, l.rows, refused)
		}
	}
}

// rest are the settings of a served catalog, of all three engines alike.
func rest(url, token string) map[string]string {
	return map[string]string{"type": "rest", "uri": url, "token": token}
}

func TestPyIcebergAttachesAndCountsTheSame(t *testing.T) { attach(t, pyIceberg(), 3, rest) }
func TestDuckDBAttachesAndCountsTheSame(t *testing.T)    { attach(t, duckDB(), 1, rest) }
func TestSparkAttachesAndCountsTheSame(t *testing.T)     { attach(t, spark(), 1, rest) }
