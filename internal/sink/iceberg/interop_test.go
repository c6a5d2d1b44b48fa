package iceberg_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	iceberggo "github.com/apache/iceberg-go"

	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/sink/iceberg"
)

// python is an interpreter with pyiceberg and duckdb: WEIR_PYTHON, or the one
// that the project's scripts set up.
func python(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Python; not run with -short")
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
	t.Skip("needs Python with pyiceberg and duckdb: set WEIR_PYTHON")
	return ""
}

const script = `
import json, sys, duckdb
from pyiceberg.catalog.sql import SqlCatalog
db, warehouse, action = sys.argv[1:4]
cat = SqlCatalog("weir", uri="sqlite:///" + db, warehouse="file://" + warehouse)
t = cat.load_table("bronze.events")
if action == "compact":
    t.overwrite(t.scan().to_arrow())
    t.refresh()
    head = t.current_snapshot().snapshot_id
    t.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in t.metadata.snapshots if s.snapshot_id != head]).commit()
    t = cat.load_table("bronze.events")
files = [f.file.file_path for f in t.scan().plan_files()]
out = {
    "rows": t.scan().count(),
    "ids": len(set(t.scan().to_arrow()["id"].to_pylist())),
    "first_day": t.scan(row_filter="ts < '2026-03-02T00:00:00+00:00'").count(),
    "partitions": sorted(str(p["partition"]["ts_day"]) for p in t.inspect.partitions().to_pylist()) if t.spec().fields else [],
    "snapshots": len(t.metadata.snapshots),
    "batch": json.loads(t.properties["weir.query.q"])["batch_id"],
    "summary_batch": t.current_snapshot().summary.additional_properties.get("weir.batch-id", ""),
    "total_records": t.current_snapshot().summary.additional_properties.get("total-records", ""),
    "format": t.metadata.format_version,
    "files": len(files),
    "duckdb_rows": duckdb.connect().execute("select count(distinct id) from read_parquet(%s)" % json.dumps([f.removeprefix("file://") for f in files]).replace('"', "'")).fetchall()[0][0] if files else 0,
}
print(json.dumps(out))
`

type seen struct {
	Rows         int      `json:"rows"`
	IDs          int      `json:"ids"`
	FirstDay     int      `json:"first_day"`
	Partitions   []string `json:"partitions"`
	Snapshots    int      `json:"snapshots"`
	Batch        int      `json:"batch"`
	SummaryBatch string   `json:"summary_batch"`
	TotalRecords string   `json:"total_records"`
	Format       int      `json:"format"`
	Files        int      `json:"files"`
	DuckDB       int      `json:"duckdb_rows"`
}

func (l lakeStore) see(t *testing.T, py, action string) seen {
	t.Helper()
	cmd := exec.Command(py, "-W", "ignore", "-c", script, filepath.Join(l.dir, "catalog.db"), filepath.Join(l.dir, "warehouse"), action)
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	if err != nil {
		t.Fatalf("python: %v\n%s", err, b)
	}
	var s seen
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	t.Logf("%s: %+v", action, s)
	return s
}

// commits commits n batches of one row, with table care between them.
func (r *run) commits(t *testing.T, n int) {
	t.Helper()
	for range n {
		staged, m := r.next(t)
		done, err := r.s.Commit(context.Background(), r.permit, r.cur, staged, m)
		if err != nil {
			t.Fatal(err)
		}
		r.cur = done.Marker
		if err := errors.Join(r.s.Maintain(context.Background()), r.s.Settle(context.Background(), true)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPyIcebergAndDuckDBReadWhatIsWritten(t *testing.T) {
	py := python(t)
	l, _ := harness(t)
	r := claimedIn(t, l, lake.CommitHooks{}, iceberg.Options{Partition: daySpec, Retention: lake.Retention{Keep: 50}})
	r.commits(t, 130) // more than the 100 manifests at which they are merged
	got := l.see(t, py, "read")
	if got.Rows != 130 || got.IDs != 130 || got.FirstDay != 65 || got.DuckDB != 130 || len(got.Partitions) != 2 ||
		got.Batch != 129 || got.SummaryBatch != "129" || got.TotalRecords != "130" || got.Format != 2 {
		t.Fatalf("read: %+v", got)
	}
}

// PyIceberg needs another package to write partitioned tables, so this table
// has no partitions.
func TestCompactionAndExpiryByPyIcebergKeepTheMarkerAndTheRows(t *testing.T) {
	py := python(t)
	l, _ := harness(t)
	r := claimedIn(t, l, lake.CommitHooks{}, iceberg.Options{Partition: *iceberggo.UnpartitionedSpec})
	r.commits(t, 20)
	staged, m := r.next(t) // staged before, committed after
	got := l.see(t, py, "compact")
	if got.Rows != 20 || got.IDs != 20 || got.Batch != 19 || got.SummaryBatch != "" || got.Snapshots != 1 || got.Files != 1 {
		t.Fatalf("after their compaction: %+v", got)
	}
	done, err := r.s.Commit(context.Background(), r.permit, r.cur, staged, m)
	if err != nil || done.Found {
		t.Fatalf("%+v %v", done, err)
	}
	r.cur = done.Marker
	r.commits(t, 4)
	got = l.see(t, py, "read")
	if got.Rows != 25 || got.IDs != 25 || got.DuckDB != 25 || got.Batch != 24 || got.TotalRecords != "25" {
		t.Fatalf("after going on: %+v", got)
	}
	f, err := r.s.Facts(context.Background(), "q")
	if err != nil || f.Rewound != "" {
		t.Fatalf("%+v %v", f, err)
	}
}
