package scan_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/lake/scan"
	"github.com/weirlake/weir/internal/source/iceberg/bronzetest"
)

// python is the interpreter with pyiceberg, pyarrow and duckdb.
func python(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts Python; skipped under -short")
	}
	if p := os.Getenv("WEIR_PYTHON"); p != "" {
		return p
	}
	p, err := filepath.Abs("../../../.cache/venv/bin/python")
	if err == nil {
		if _, err = os.Stat(p); err == nil {
			return p
		}
	}
	t.Skip("no Python with pyiceberg, pyarrow and duckdb: set WEIR_PYTHON")
	return ""
}

func TestOtherEnginesReadOurFilesAndWeReadTheirs(t *testing.T) {
	py := python(t)
	b := bronzetest.New(t, 2)
	all, _ := fill(b, 4)
	// One file of several row groups, each of several pages.
	big := bronzetest.Rows(0, 1000, 400, day0+9)
	for i := range big {
		big[i].Micros = (day0 + 9) * 86_400_000_000
		big[i].Value = strings.Repeat(fmt.Sprint(i%7, "abcdefgh"), 3000)
	}
	b.Commit(big...)
	all = append(all, big...)
	warehouse := "file://" + filepath.Join(b.Dir, "warehouse")
	out := t.TempDir()
	cmd := exec.CommandContext(t.Context(), py, "testdata/engines.py", filepath.Join(b.Dir, "catalog.db"), warehouse, out)
	raw, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			raw = exit.Stderr
		}
		t.Fatalf("%v\n%s", err, raw)
	}
	var got struct {
		PyIceberg, Distinct, Pruned, PyArrow, DuckDB int
		DuckDBDistinct                               int      `json:"duckdb_distinct"`
		ValueBytes                                   []int64  `json:"value_bytes"`
		Headers                                      []int64  `json:"headers"`
		Times                                        []string `json:"times"`
		ColumnIndex                                  bool     `json:"column_index"`
		RowGroups                                    int      `json:"row_groups"`
		Files, Point                                 int
	}
	if err := json.Unmarshal(bytes.TrimSpace(raw), &got); err != nil {
		t.Fatalf("%v\n%s", err, raw)
	}
	n := len(all)
	if got.PyIceberg != n || got.Distinct != n || got.PyArrow != n || got.DuckDB != n || got.DuckDBDistinct != n || got.Pruned != 10 {
		t.Errorf("%d rows were written", n)
	}
	if got.ValueBytes[0] != got.ValueBytes[1] || got.Headers[0] != got.Headers[1] || got.Headers[0] == 0 || !got.ColumnIndex {
		t.Error("the readers differ")
	}

	if got.RowGroups <= got.Files || got.Point != 1 {
		t.Errorf("%d row groups in %d files; a look-up of one offset found %d", got.RowGroups, got.Files, got.Point)
	}

	want := ranges(3, 70, 10, 90)
	exp := expect(all, want)
	copied, err := b.Cat.LoadTable(t.Context(), table.Identifier{"bronze", "copy"})
	if err != nil {
		t.Fatal(err)
	}
	rows, _ := read(t, scan.Request{Table: copied, SnapshotID: copied.CurrentSnapshot().SnapshotID, Want: want})
	// PyIceberg 0.12 writes a null list as an empty one.
	emptied := slices.Clone(exp)
	for i := range emptied {
		emptied[i] = strings.Replace(emptied[i], "|(null)|2026-01-01", "|[]|2026-01-01", 1)
	}
	if !slices.Equal(rows, emptied) {
		t.Errorf("written by PyIceberg: %d rows, want %d", len(rows), len(exp))
	}
	for _, name := range []string{"odd.parquet", "duck.parquet"} {
		rows := readForeign(t, filepath.Join(out, name))
		exp := expect(all, ranges(0, 2000, 0, 2000))
		if !slices.Equal(rows, exp) {
			t.Errorf("%s: %d rows, want %d; first:\n%v\n%v", name, len(rows), len(exp), rows[:min(1, len(rows))], exp[:1])
		}
	}
}

// readForeign replaces the table's files by one of another engine's, as a
// rewrite that keeps no field ids would, and scans it.
func readForeign(t *testing.T, path string) []string {
	t.Helper()
	sink := bronzetest.Open(t, t.TempDir())
	sink.CreateUnpartitioned()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	df, err := iceberg.NewDataFileBuilder(*iceberg.UnpartitionedSpec, iceberg.EntryContentData, "file://"+path, iceberg.ParquetFile, nil, nil, nil, 1, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	sink.AppendFiles(df.Build())
	loaded := sink.Load()
	var out []string
	_, err = scan.Range(t.Context(), scan.Request{Table: loaded, SnapshotID: loaded.CurrentSnapshot().SnapshotID, Want: ranges(0, 2000, 0, 2000)}, func(rec arrow.RecordBatch) error {
		defer rec.Release()
		out = append(out, bronzetest.Lines(rec)...)
		return nil
	})
	if err != nil {
		t.Errorf("%s: %v", filepath.Base(path), err)
	}
	return out
}
