package http

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	nethttp "net/http"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/sinktest"
)

func bytesReader(b []byte) io.Reader { return bytes.NewReader(b) }

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
	var e struct {
		Kind string `json:"kind"`
	}
	if json.Unmarshal(data, &e) != nil || e.Kind == "begun" { // the commit itself is the entry "done"
		return created, existing, err
	}
	if f := h.take(&h.after); f != nil && err == nil {
		if err := f(); err != nil {
			return false, nil, err
		}
	}
	return created, existing, err
}

func TestConformance(t *testing.T) {
	sinktest.RunExternal(t, func(t *testing.T) sinktest.External {
		clk := &testClock{now: noon}
		r := newReceiver(t)
		bad := map[int64]bool{}
		r.before = func(w nethttp.ResponseWriter, req request) bool {
			for _, id := range req.ids {
				if bad[id] {
					w.WriteHeader(nethttp.StatusUnprocessableEntity)
					return true
				}
			}
			return false
		}
		stores := map[string]objstore.Store{}
		var mu sync.Mutex
		open := func(t *testing.T, query string, policy sink.OnRejected) sinktest.Opened {
			mu.Lock()
			defer mu.Unlock()
			if stores[query] == nil {
				stores[query] = objstore.NewMemory(clk)
			}
			h := &hooked{Store: stores[query]}
			s, err := New(Options{Query: query, URL: r.srv.URL, Shape: shape, Record: h, Clock: clk, ChunkRows: 3, OnRejected: policy})
			if err != nil {
				t.Fatal(err)
			}
			return sinktest.Opened{Sink: s,
				BeforeNext: func(f func() error) { h.before = f },
				AfterNext:  func(f func() error) { h.after = f }}
		}
		// What a table's data files are to it, requests are to an API.
		calls := func(*testing.T) int {
			r.mu.Lock()
			defer r.mu.Unlock()
			return len(r.asked)
		}
		return sinktest.External{
			Harness: sinktest.Harness{
				InMemory: true, Alone: true,
				Open: func(t *testing.T, query string) sinktest.Opened { return open(t, query, sink.RejectFail) },
				Record: func(ids []int64) arrow.RecordBatch {
					clear(bad)
					return recordOf(ids)
				},
				IDs: func(*testing.T) []int64 {
					r.mu.Lock()
					defer r.mu.Unlock()
					return append([]int64{}, r.ids...)
				},
				Files: calls,
			},
			OpenWith: open, Calls: calls, Piecewise: true,
			Refused: func(ids, wrong []int64) arrow.RecordBatch {
				for _, id := range wrong {
					bad[id] = true
				}
				return recordOf(ids)
			},
		}
	})
}
