package foreachbatch

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/objstore"
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

// receiver is an external system that knows (query id, batch id): what B6 of
// the mission asks of a handler.
type receiver struct {
	mu    sync.Mutex
	seen  map[string]bool
	ids   []int64
	calls int
}

func (r *receiver) handle(_ context.Context, d Delivery) (int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	key := fmt.Sprintf("%s/%d", d.QueryID, d.BatchID)
	if !r.seen[key] {
		r.seen[key] = true
		r.ids = append(r.ids, idsOf(d.Records)...)
	}
	return d.Rows, nil
}

func idsOf(records []arrow.RecordBatch) (out []int64) {
	for _, rec := range records {
		out = append(out, rec.Column(0).(*array.Int64).Int64Values()...)
	}
	return out
}

func recordOf(ids []int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil))
	defer b.Release()
	b.Field(0).(*array.Int64Builder).AppendValues(ids, nil)
	return b.NewRecordBatch()
}

// hooked is a record's store with faults.
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
	if f := h.take(&h.before); f != nil {
		if err := f(); err != nil {
			return false, nil, err
		}
	}
	created, existing, err := h.Store.CreateOnce(ctx, key, data)
	var e entry
	if json.Unmarshal(data, &e) != nil || e.Kind == kindBegun { // the commit itself is the entry "done"
		return created, existing, err
	}
	if f := h.take(&h.after); f != nil && err == nil {
		if err := f(); err != nil {
			return false, nil, err
		}
	}
	return created, existing, err
}

func harness(t *testing.T) sinktest.Harness {
	clk := &testClock{now: noon}
	r := &receiver{seen: map[string]bool{}}
	stores := map[string]objstore.Store{}
	var mu sync.Mutex
	return sinktest.Harness{
		InMemory: true, Alone: true,
		Open: func(t *testing.T, query string) sinktest.Opened {
			mu.Lock()
			defer mu.Unlock()
			if stores[query] == nil {
				stores[query] = objstore.NewMemory(clk)
			}
			h := &hooked{Store: stores[query]}
			s, err := New(Options{Query: query, Handler: r.handle, Record: h, Clock: clk})
			if err != nil {
				t.Fatal(err)
			}
			return sinktest.Opened{Sink: s,
				BeforeNext: func(f func() error) { h.before = f },
				AfterNext:  func(f func() error) { h.after = f }}
		},
		Record: recordOf,
		IDs: func(*testing.T) []int64 {
			r.mu.Lock()
			defer r.mu.Unlock()
			return append([]int64{}, r.ids...)
		},
		// What a table's data files are to it, calls are to a function.
		Files: func(*testing.T) int {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.calls
		},
	}
}

func TestConformance(t *testing.T) { sinktest.Run(t, harness) }
