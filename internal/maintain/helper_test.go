package maintain_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/datafile"
	"github.com/weirlake/weir/internal/maintain"
)

var (
	ident = table.Identifier{"bronze", "events"}

	rowSchema = arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64},
		{Name: "ts", Type: batch.Timestamp},
		{Name: "title", Type: arrow.BinaryTypes.String, Nullable: true},
	}, nil)
	tableSchema = iceberg.NewSchema(0,
		iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64, Required: true},
		iceberg.NestedField{ID: 2, Name: "ts", Type: iceberg.PrimitiveTypes.TimestampTz, Required: true},
		iceberg.NestedField{ID: 3, Name: "title", Type: iceberg.PrimitiveTypes.String},
	)
	hourSpec = iceberg.NewPartitionSpec(iceberg.PartitionField{
		SourceIDs: []int{2}, FieldID: 1000, Name: "ts_hour", Transform: iceberg.HourTransform{},
	})
)

// ticks is a clock that only moves when it is told to.
type ticks struct {
	mu  sync.Mutex
	now time.Time
}

func (c *ticks) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *ticks) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

func (c *ticks) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// fixture is a table in a folder.
type fixture struct {
	t     *testing.T
	dir   string
	c     *lake.Catalog
	clock *ticks
	next  int64
}

func open(t *testing.T, dir string) *fixture {
	t.Helper()
	c, err := lake.Open(context.Background(), lake.Config{URI: filepath.Join(dir, "catalog.db"), Warehouse: filepath.Join(dir, "warehouse")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.EnsureTable(context.Background(), ident, tableSchema, hourSpec, nil); err != nil {
		t.Fatal(err)
	}
	return &fixture{t: t, dir: dir, c: c, clock: &ticks{now: clock.System{}.Now()}}
}

func (f *fixture) load() *table.Table {
	f.t.Helper()
	t, err := f.c.LoadTable(context.Background(), ident)
	if err != nil {
		f.t.Fatal(err)
	}
	return t
}

func record(from, n int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, rowSchema)
	defer b.Release()
	hour := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for id := from; id < from+n; id++ {
		b.Field(0).(*array.Int64Builder).Append(id)
		b.Field(1).(*array.TimestampBuilder).Append(arrow.Timestamp(hour.Add(time.Duration(id) * time.Second).UnixMicro()))
		if id%7 == 0 {
			b.Field(2).(*array.StringBuilder).AppendNull()
		} else {
			b.Field(2).(*array.StringBuilder).Append(strings.Repeat("a", int(id%13)))
		}
	}
	return b.NewRecordBatch()
}

// stage writes a file of n rows that no snapshot refers to.
func (f *fixture) stage(n int64) []iceberg.DataFile {
	f.t.Helper()
	files, err := stageRows(f.load(), f.next, n)
	if err != nil {
		f.t.Fatal(err)
	}
	f.next += n
	return files
}

func stageRows(t *table.Table, from, n int64) ([]iceberg.DataFile, error) {
	storage, err := lake.DataFSOf(context.Background(), t)
	if err != nil {
		return nil, err
	}
	w, err := datafile.NewWriter(datafile.Spec{Schema: t.Schema(), PartitionSpec: t.Spec(), FormatVersion: 2, Properties: t.Properties(),
		Location: lake.DataLocation(t), FS: storage, Parallel: 1}, "f-"+clock.Nonce()+"-", nil)
	if err != nil {
		return nil, err
	}
	if err := w.Write(record(from, n)); err != nil {
		return nil, err
	}
	done, err := w.Close(context.Background())
	if err != nil {
		return nil, err
	}
	out := make([]iceberg.DataFile, len(done))
	for i, d := range done {
		out[i] = d.DataFile
	}
	return out, nil
}

func (f *fixture) commit(files []iceberg.DataFile) {
	f.t.Helper()
	if _, err := f.c.Commit(context.Background(), f.load(), lake.Change{Files: files}); err != nil {
		f.t.Fatal(err)
	}
}

// append commits n snapshots of one row, a second of the clock apart.
func (f *fixture) append(n int) {
	f.t.Helper()
	for range n {
		f.commit(f.stage(1))
		f.clock.pass(time.Second)
	}
}

// ids reads the table, or one of its snapshots, with the library's own scan.
func (f *fixture) ids(opts ...table.ScanOption) []int64 {
	f.t.Helper()
	rows, err := f.load().Scan(opts...).ToArrowTable(context.Background())
	if err != nil {
		f.t.Fatal(err)
	}
	defer rows.Release()
	var out []int64
	if rows.NumRows() > 0 {
		for _, c := range rows.Column(0).Data().Chunks() {
			out = append(out, c.(*array.Int64).Int64Values()...)
		}
	}
	slices.Sort(out)
	return out
}

// exact demands that the table holds the ids from 0 to below n, each once.
func (f *fixture) exact(n int64, opts ...table.ScanOption) {
	f.t.Helper()
	got := f.ids(opts...)
	if int64(len(got)) != n {
		f.t.Fatalf("the table has %d rows, want %d", len(got), n)
	}
	for i, id := range got {
		if id != int64(i) {
			f.t.Fatalf("row %d has the id %d", i, id)
		}
	}
}

// files counts the files below the warehouse whose name ends so.
func (f *fixture) files(suffix string) []string {
	f.t.Helper()
	var out []string
	err := filepath.WalkDir(filepath.Join(f.dir, "warehouse"), func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(p, suffix) {
			out = append(out, p)
		}
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

// age makes files look as if they were written long ago.
func age(t *testing.T, d time.Duration, paths ...string) {
	t.Helper()
	at := clock.System{}.Now().Add(-d)
	for _, p := range paths {
		if err := os.Chtimes(p, at, at); err != nil {
			t.Fatal(err)
		}
	}
}

func (f *fixture) settings(s maintain.Settings) maintain.Settings {
	s.Clock = f.clock
	return s
}

func step(t *testing.T, c *maintain.Care) {
	t.Helper()
	if err := c.Step(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func local(t *testing.T, location string) string {
	t.Helper()
	p, err := lake.LocalPath(location)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func tableAt(snapshot int64) table.ScanOption { return table.WithSnapshotID(snapshot) }
