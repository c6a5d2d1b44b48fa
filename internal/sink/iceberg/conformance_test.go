package iceberg_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	iceberggo "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/datafile"
	"github.com/weirlake/weir/internal/objstore/s3"
	"github.com/weirlake/weir/internal/s3test"
	"github.com/weirlake/weir/internal/sink/iceberg"
	"github.com/weirlake/weir/internal/sink/sinktest"
)

var (
	ident = table.Identifier{"bronze", "events"}

	arrowSchema = arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64},
		{Name: "ts", Type: batch.Timestamp},
	}, nil)

	tableSchema = iceberggo.NewSchema(0,
		iceberggo.NestedField{ID: 1, Name: "id", Type: iceberggo.PrimitiveTypes.Int64, Required: true},
		iceberggo.NestedField{ID: 2, Name: "ts", Type: iceberggo.PrimitiveTypes.TimestampTz, Required: true},
	)

	daySpec = iceberggo.NewPartitionSpec(iceberggo.PartitionField{
		SourceIDs: []int{2}, FieldID: 1000, Name: "ts_day", Transform: iceberggo.DayTransform{},
	})
)

// record spreads the ids over two days.
func record(ids []int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrowSchema)
	defer b.Release()
	day := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, id := range ids {
		b.Field(0).(*array.Int64Builder).Append(id)
		b.Field(1).(*array.TimestampBuilder).Append(arrow.Timestamp(day.AddDate(0, 0, int(id%2)).UnixMicro()))
	}
	return b.NewRecordBatch()
}

// lakeStore is a catalog in a folder, with the warehouse beside it or on S3.
type lakeStore struct {
	dir string
	// warehouse, stores and files are set for S3: the location, how to reach it,
	// and the folder in which the server keeps them.
	warehouse string
	stores    *s3.Stores
	objects   string
	// config, if set, is that of another catalog, and table the one in it.
	config *lake.Config
	table  table.Identifier
}

func (l lakeStore) ident() table.Identifier {
	if l.table != nil {
		return l.table
	}
	return ident
}

func (l lakeStore) catalog(t *testing.T) *lake.Catalog {
	t.Helper()
	cfg := lake.Config{URI: filepath.Join(l.dir, "catalog.db"), Warehouse: cmp.Or(l.warehouse, filepath.Join(l.dir, "warehouse")), Stores: l.stores}
	if l.config != nil {
		cfg = *l.config
	}
	c, err := lake.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func (l lakeStore) load(t *testing.T, c *lake.Catalog) *table.Table {
	t.Helper()
	tbl, err := c.LoadTable(context.Background(), l.ident())
	if err != nil {
		t.Fatal(err)
	}
	return tbl
}

func (l lakeStore) open(t *testing.T, query string) sinktest.Opened {
	t.Helper()
	var (
		mu            sync.Mutex
		before, after func() error
	)
	take := func(f *func() error) error {
		mu.Lock()
		g := *f
		*f = nil
		mu.Unlock()
		if g == nil {
			return nil
		}
		return g()
	}
	c := l.catalog(t).WithHooks(lake.CommitHooks{
		Before: func(context.Context, table.Identifier) error { return take(&before) },
		After:  func(context.Context, table.Identifier) error { return take(&after) },
	})
	s, err := iceberg.New(iceberg.Options{Catalog: c, Table: l.ident(), Query: query, Arrow: arrowSchema,
		Schema: tableSchema, Partition: daySpec, Clock: clock.System{}})
	if err != nil {
		t.Fatal(err)
	}
	return sinktest.Opened{
		Sink:       s,
		BeforeNext: func(f func() error) { mu.Lock(); before = f; mu.Unlock() },
		AfterNext:  func(f func() error) { mu.Lock(); after = f; mu.Unlock() },
	}
}

// rows reads the table with the library's own scan.
func (l lakeStore) rows(t *testing.T) arrow.Table {
	t.Helper()
	tbl := l.load(t, l.catalog(t))
	out, err := tbl.Scan().ToArrowTable(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (l lakeStore) ids(t *testing.T) []int64 {
	rows := l.rows(t)
	defer rows.Release()
	var out []int64
	if rows.NumRows() == 0 {
		return nil
	}
	for _, c := range rows.Column(0).Data().Chunks() {
		out = append(out, c.(*array.Int64).Int64Values()...)
	}
	return out
}

func (l lakeStore) files(t *testing.T) int {
	tbl := l.load(t, l.catalog(t))
	tasks, err := tbl.Scan().PlanFiles(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return len(tasks)
}

func (l lakeStore) foreignAppend(t *testing.T, id int64) {
	t.Helper()
	c := l.catalog(t)
	tbl := l.load(t, c)
	storage, err := lake.DataFSOf(context.Background(), tbl)
	if err != nil {
		t.Fatal(err)
	}
	w, err := datafile.NewWriter(datafile.Spec{Schema: tbl.Schema(), PartitionSpec: tbl.Spec(), FormatVersion: 2,
		Properties: tbl.Properties(), Location: lake.DataLocation(tbl), FS: storage}, "foreign-"+clock.Nonce()+"-", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(record([]int64{id})); err != nil {
		t.Fatal(err)
	}
	files, err := w.Close(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	ch := lake.Change{}
	for _, f := range files {
		ch.Files = append(ch.Files, f.DataFile)
	}
	if _, err := c.Commit(context.Background(), tbl, ch); err != nil {
		t.Fatal(err)
	}
}

func (l lakeStore) foreignRewrite(t *testing.T) {
	t.Helper()
	rows := l.rows(t)
	defer rows.Release()
	tbl := l.load(t, l.catalog(t))
	if _, err := tbl.OverwriteTable(context.Background(), rows, 1<<20, nil); err != nil {
		t.Fatal(err)
	}
}

func (l lakeStore) rollBack(t *testing.T, n int) {
	t.Helper()
	tbl := l.load(t, l.catalog(t))
	s := tbl.CurrentSnapshot()
	for range n {
		s = tbl.SnapshotByID(*s.ParentSnapshotID)
	}
	txn := tbl.NewTransaction()
	if err := txn.RollbackToSnapshot(s.SnapshotID); err != nil {
		t.Fatal(err)
	}
	if _, err := txn.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func (l lakeStore) expireAll(t *testing.T) {
	t.Helper()
	tbl := l.load(t, l.catalog(t))
	txn := tbl.NewTransaction()
	if err := txn.ExpireSnapshots(table.WithOlderThan(0), table.WithRetainLast(1), table.WithPostCommit(true)); err != nil {
		t.Fatal(err)
	}
	if _, err := txn.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := len(l.load(t, l.catalog(t)).Metadata().Snapshots()); n != 1 {
		t.Fatalf("%d snapshots after an expiry that keeps one", n)
	}
}

func (l lakeStore) age(t *testing.T, by time.Duration) {
	t.Helper()
	err := filepath.WalkDir(cmp.Or(l.objects, filepath.Join(l.dir, "warehouse")), func(p string, d os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(p, ".parquet") {
			return err
		}
		then := time.Now().Add(-by)
		return os.Chtimes(p, then, then)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func harness(t *testing.T) (lakeStore, sinktest.Harness) {
	l := lakeStore{dir: t.TempDir()}
	return l, l.harness()
}

func (l lakeStore) harness() sinktest.Harness {
	return sinktest.Harness{
		Open: l.open, Record: record, IDs: l.ids, Files: l.files,
		ForeignAppend: l.foreignAppend, ForeignRewrite: l.foreignRewrite,
		RollBack: l.rollBack, ExpireAll: l.expireAll, Age: l.age,
		Drop: func(t *testing.T) {
			if err := l.catalog(t).DropTable(context.Background(), l.ident()); err != nil {
				t.Fatal(err)
			}
		},
	}
}

func TestConformance(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) sinktest.Harness {
		_, h := harness(t)
		return h
	})
}

func TestConformanceOnS3(t *testing.T) {
	srv := s3test.Start(t)
	bucket := srv.Bucket("lake")
	stores, err := s3.NewStores(s3.Config{
		Endpoint: srv.Endpoint(), Region: s3test.Region, PathStyle: true,
		Credentials: s3.Credentials{AccessKeyID: s3test.AccessKeyID, SecretAccessKey: s3test.SecretAccessKey},
	})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	sinktest.Run(t, func(t *testing.T) sinktest.Harness {
		n++
		key := fmt.Sprintf("warehouse-%d", n)
		l := lakeStore{dir: t.TempDir(), warehouse: "s3://" + bucket + "/" + key, stores: stores, objects: srv.ObjectPath(bucket, key)}
		return l.harness()
	})
}

func counting(rows *int) func(arrow.RecordBatch) error {
	return func(rec arrow.RecordBatch) error {
		*rows += int(rec.NumRows())
		rec.Release()
		return nil
	}
}
