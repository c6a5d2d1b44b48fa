package delta_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/delta"
	"github.com/weirlake/weir/internal/objstore"
	sinkdelta "github.com/weirlake/weir/internal/sink/delta"
	"github.com/weirlake/weir/internal/sink/sinktest"
)

var arrowSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "ts", Type: batch.Timestamp},
	{Name: "day", Type: arrow.FixedWidthTypes.Date32},
}, nil)

// record spreads the ids over two days.
func record(ids []int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrowSchema)
	defer b.Release()
	day := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, id := range ids {
		at := day.AddDate(0, 0, int(id%2))
		b.Field(0).(*array.Int64Builder).Append(id)
		b.Field(1).(*array.TimestampBuilder).Append(arrow.Timestamp(at.UnixMicro()))
		b.Field(2).(*array.Date32Builder).Append(arrow.Date32FromTime(at))
	}
	return b.NewRecordBatch()
}

// folder is a table in a folder.
type folder struct{ dir string }

// hooked is a storage whose commits call hooks.
type hooked struct {
	delta.Storage
	mu            sync.Mutex
	before, after func() error
}

func (h *hooked) take(f *func() error) error {
	h.mu.Lock()
	g := *f
	*f = nil
	h.mu.Unlock()
	if g == nil {
		return nil
	}
	return g()
}

func (h *hooked) CreateOnce(ctx context.Context, key string, data []byte) (bool, []byte, error) {
	if !strings.HasPrefix(key, "_delta_log/") {
		return h.Storage.CreateOnce(ctx, key, data)
	}
	if err := h.take(&h.before); err != nil {
		return false, nil, err
	}
	created, existing, err := h.Storage.CreateOnce(ctx, key, data)
	if created {
		if err := h.take(&h.after); err != nil {
			return false, nil, err
		}
	}
	return created, existing, err
}

func (f folder) storage(t testing.TB) delta.Storage {
	t.Helper()
	s, err := delta.OpenLocal(f.dir, objstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (f folder) table(t testing.TB) *delta.Table { return delta.Open(f.storage(t), delta.Options{}) }

func (f folder) head(t testing.TB) (*delta.Table, *delta.Snapshot) {
	t.Helper()
	tbl := f.table(t)
	s, err := tbl.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return tbl, s
}

func (f folder) options(t testing.TB, query string, s delta.Storage) sinkdelta.Options {
	return sinkdelta.Options{Storage: s, Query: query, Arrow: arrowSchema, PartitionColumns: []string{"day"}, Clock: clock.System{},
		Warn: func(err error) { t.Error("warned:", err) }}
}

func (f folder) open(t *testing.T, query string) sinktest.Opened {
	t.Helper()
	h := &hooked{Storage: f.storage(t)}
	s, err := sinkdelta.New(f.options(t, query, h))
	if err != nil {
		t.Fatal(err)
	}
	return sinktest.Opened{
		Sink:       s,
		BeforeNext: func(g func() error) { h.mu.Lock(); h.before = g; h.mu.Unlock() },
		AfterNext:  func(g func() error) { h.mu.Lock(); h.after = g; h.mu.Unlock() },
	}
}

func (f folder) records(t testing.TB) (out []arrow.RecordBatch) {
	t.Helper()
	tbl, s := f.head(t)
	if err := tbl.Scan(context.Background(), s, delta.ScanOptions{}, func(r arrow.RecordBatch) error { out = append(out, r); return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

func (f folder) ids(t *testing.T) (out []int64) {
	for _, r := range f.records(t) {
		out = append(out, r.Column(0).(*array.Int64).Int64Values()...)
	}
	return out
}

func (f folder) foreignAppend(t *testing.T, id int64) {
	t.Helper()
	if _, err := delta.Append(context.Background(), f.table(t), []arrow.RecordBatch{record([]int64{id})}, delta.AppendOptions{}); err != nil {
		t.Fatal(err)
	}
}

// commit makes a version out of actions, as another engine would.
func (f folder) commit(t *testing.T, operation string, parameters map[string]any, actions []delta.Action) {
	t.Helper()
	if _, err := delta.Commit(context.Background(), f.table(t), func(context.Context, *delta.Snapshot) ([]delta.Action, error) { return actions, nil },
		delta.CommitOptions{Operation: operation, Parameters: parameters}); err != nil {
		t.Fatal(err)
	}
}

func removal(a *delta.Add) delta.Action {
	return delta.Action{Remove: &delta.Remove{Path: a.Path, DeletionTimestamp: time.Now().UnixMilli(), DataChange: true}}
}

func (f folder) foreignRewrite(t *testing.T) {
	t.Helper()
	rows := f.records(t)
	tbl, s := f.head(t)
	w, err := tbl.NewFiles(context.Background(), s, delta.FileOptions{Prefix: "foreign-" + clock.Nonce() + "-"})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	adds, err := w.Close(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var actions []delta.Action
	for _, a := range s.Files() {
		actions = append(actions, removal(a))
	}
	for _, a := range adds {
		actions = append(actions, delta.Action{Add: a})
	}
	f.commit(t, "WRITE", map[string]any{"mode": "Overwrite"}, actions)
}

func (f folder) restore(t *testing.T, to int64, parameter any) {
	t.Helper()
	tbl, s := f.head(t)
	old, err := tbl.SnapshotAt(context.Background(), to)
	if err != nil {
		t.Fatal(err)
	}
	var actions []delta.Action
	for _, a := range s.Files() {
		if _, ok := old.File(a.Path); !ok {
			actions = append(actions, removal(a))
		}
	}
	for _, a := range old.Files() {
		if _, ok := s.File(a.Path); !ok {
			actions = append(actions, delta.Action{Add: a})
		}
	}
	f.commit(t, "RESTORE", map[string]any{"version": parameter}, actions)
}

func (f folder) rollBack(t *testing.T, n int) {
	_, s := f.head(t)
	to := s.Version - int64(n)
	f.restore(t, to, strconv.FormatInt(to, 10))
}

func (f folder) expireAll(t *testing.T) {
	t.Helper()
	tbl, s := f.head(t)
	if err := tbl.Checkpoint(context.Background(), s); err != nil {
		t.Fatal(err)
	}
	commits, err := filepath.Glob(filepath.Join(f.dir, "_delta_log", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range commits {
		if err := os.Remove(c); err != nil {
			t.Fatal(err)
		}
	}
}

func (f folder) age(t *testing.T, by time.Duration) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(f.dir, "*.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	then := time.Now().Add(-by)
	for _, p := range files {
		if err := os.Chtimes(p, then, then); err != nil {
			t.Fatal(err)
		}
	}
}

func harness(t *testing.T) (folder, sinktest.Harness) {
	f := folder{dir: filepath.Join(t.TempDir(), "events")}
	return f, sinktest.Harness{
		Open: f.open, Record: record, IDs: f.ids,
		Files:         func(t *testing.T) int { _, s := f.head(t); return s.NumFiles() },
		ForeignAppend: f.foreignAppend, ForeignRewrite: f.foreignRewrite,
		RollBack: f.rollBack, ExpireAll: f.expireAll, Age: f.age,
		Drop: func(t *testing.T) {
			if err := os.RemoveAll(f.dir); err != nil {
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
