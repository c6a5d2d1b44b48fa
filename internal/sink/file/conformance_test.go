package file

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/sinktest"
)

// testClock moves by what is slept, and takes no time.
type testClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *testClock) Sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	return ctx.Err()
}

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

var shape = arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil)

func recordOf(ids []int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, shape)
	defer b.Release()
	b.Field(0).(*array.Int64Builder).AppendValues(ids, nil)
	return b.NewRecordBatch()
}

// hooked is a store with faults at the entries of the log.
type hooked struct {
	objstore.Store
	mu            sync.Mutex
	before, after func() error
}

func (h *hooked) take(f *func() error) func() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := *f
	*f = nil
	return out
}

func (h *hooked) CreateOnce(ctx context.Context, key string, data []byte) (bool, []byte, error) {
	if !strings.Contains(key, "/log/") {
		return h.Store.CreateOnce(ctx, key, data)
	}
	if f := h.take(&h.before); f != nil {
		if err := f(); err != nil {
			return false, nil, err
		}
	}
	created, existing, err := h.Store.CreateOnce(ctx, key, data)
	if f := h.take(&h.after); f != nil && err == nil {
		if err := f(); err != nil {
			return false, nil, err
		}
	}
	return created, existing, err
}

// visible reads a folder as a consumer does: the files that manifests list. It
// fails where a data file is visible and never will be listed: every file that
// is there must be in a manifest, but for those of a batch that is being made.
func visible(t *testing.T, store objstore.Store) (ids []int64, files int) {
	t.Helper()
	list, err := store.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	data := map[string]bool{}
	for _, i := range list {
		if strings.HasPrefix(i.Key, metaFolder+"/") || strings.HasSuffix(i.Key, ManifestSuffix) {
			continue
		}
		data[i.Key] = true
	}
	for _, i := range list {
		if !strings.HasSuffix(i.Key, ManifestSuffix) {
			continue
		}
		m := Manifest{}
		decode(t, store, i.Key, &m)
		for _, f := range m.Files {
			if !data[f.Name] {
				t.Fatalf("manifest %s lists %s, which is not there", i.Key, f.Name)
			}
			delete(data, f.Name)
			files++
			text, err := store.Get(t.Context(), f.Name)
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
				var row struct{ ID int64 }
				if err := json.Unmarshal([]byte(line), &row); err != nil {
					t.Fatalf("%s: %q: %v", f.Name, line, err)
				}
				ids = append(ids, row.ID)
			}
		}
	}
	if len(data) > 0 {
		t.Fatalf("visible files that no manifest lists: %v", data)
	}
	return ids, files
}

func decode(t *testing.T, store objstore.Store, key string, v any) {
	t.Helper()
	text, err := store.Get(t.Context(), key)
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func harness(store objstore.Store, clk *testClock) sinktest.External {
	h := sinktest.Harness{
		Alone: true,
		Open: func(t *testing.T, query string) sinktest.Opened {
			h := &hooked{Store: store}
			s, err := New(Options{Query: query, Store: h, Shape: shape, Clock: clk})
			if err != nil {
				t.Fatal(err)
			}
			return sinktest.Opened{Sink: s,
				BeforeNext: func(f func() error) { h.before = f },
				AfterNext:  func(f func() error) { h.after = f }}
		},
		Record: recordOf,
		IDs: func(t *testing.T) []int64 {
			ids, _ := visible(t, store)
			return ids
		},
		Files: func(t *testing.T) int {
			_, n := visible(t, store)
			return n
		},
		Drop: func(t *testing.T) {
			list, err := store.List(t.Context(), "")
			for _, i := range list {
				err = errors.Join(err, store.Delete(t.Context(), i.Key))
			}
			if err != nil {
				t.Fatal(err)
			}
		},
	}
	return sinktest.External{Harness: h, Calls: h.Files,
		OpenWith: func(t *testing.T, query string, _ sink.OnRejected) sinktest.Opened { return h.Open(t, query) }}
}

func TestConformance(t *testing.T) {
	sinktest.RunExternal(t, func(t *testing.T) sinktest.External {
		clk := &testClock{now: noon}
		return harness(objstore.NewMemory(clk), clk)
	})
}

func TestConformanceOnTheLocalDisk(t *testing.T) {
	sinktest.RunExternal(t, func(t *testing.T) sinktest.External {
		clk := &testClock{now: noon}
		store, err := objstore.OpenLocal(t.TempDir(), objstore.LocalOptions{Clock: clk})
		if err != nil {
			t.Fatal(err)
		}
		return harness(store, clk)
	})
}
