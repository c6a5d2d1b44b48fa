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

// made is what the project's own script made in .cache, or what the
// environment says, or a skip that names both.
func made(t *testing.T, env, cached, script string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts another engine; not run with -short")
	}
	if v := os.Getenv(env); v != "" {
		return v
	}
	found, err := filepath.Glob(filepath.Join("..", "..", ".cache", cached))
	if err == nil && len(found) == 1 {
		if abs, err := filepath.Abs(found[0]); err == nil {
			return abs
		}
	}
	t.Skipf("not there: run %s, or set %s", script, env)
	return ""
}

// attach lets an engine count every table through the served catalog, without
// and with a token, and write.
func attach(t *testing.T, python, script string, refused int, more ...string) {
	t.Helper()
	l := newLakehouse(t)
	for _, token := range []string{"", "0123456789abcdef0123"} {
		ctx, cancel := context.WithTimeout(context.Background(), engineTimeout)
		defer cancel()
		args := append([]string{filepath.Join("testdata", script), l.serve(t, token), token}, more...)
		out, err := exec.CommandContext(ctx, python, args...).Output() //nolint:gosec // the interpreter that the tester names
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("%s: %v\n%s", script, err, exit.Stderr)
		}
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Counts  map[string]int
			Refused int
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &got); err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
		if !maps.Equal(got.Counts, l.rows) || got.Refused != refused {
			t.Errorf("%s counts %v, %d writes refused; want %v, %d", script, got.Counts, got.Refused, l.rows, refused)
		}
	}
}

func TestPyIcebergAttachesAndCountsTheSame(t *testing.T) {
	attach(t, made(t, "WEIR_PYTHON", "venv/bin/python", "scripts/venv.sh"), "attach_pyiceberg.py", 3)
}

func TestDuckDBAttachesAndCountsTheSame(t *testing.T) {
	attach(t, made(t, "WEIR_DUCKDB_PYTHON", "venv-duckdb/bin/python", "scripts/venv.sh duckdb"), "attach_duckdb.py", 1)
}

func TestSparkAttachesAndCountsTheSame(t *testing.T) {
	python := made(t, "WEIR_SPARK_PYTHON", "venv-spark/bin/python", "scripts/spark.sh")
	jar := made(t, "WEIR_SPARK_JAR", "iceberg-spark-runtime-*/*.jar", "scripts/spark.sh")
	attach(t, python, "attach_spark.py", 1, jar)
}
