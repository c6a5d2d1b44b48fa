package status

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// Bounds of the live page.
const (
	maxWatchers  = 64
	patchEvery   = time.Second
	patchesAhead = 4                // a browser that is further behind starts anew
	patchTimeout = 10 * time.Second // to write one
)

// patch is one live update: the fragments of the page that have changed, and
// the ends of the charts' lines. A whole patch holds everything.
type patch struct {
	Whole     bool              `json:"whole,omitempty"`
	Fragments map[string]string `json:"fragments"`
	Series    map[string]Series `json:"series"`
	Now       time.Time         `json:"now"`
}

// hub renders the page once a second for all who watch it, and not at all while
// nobody does.
type hub struct {
	board *Board

	mu       sync.Mutex
	watchers map[*watcher]bool
	running  bool
	closed   chan struct{}
	loops    sync.WaitGroup
}

// watcher is one open page.
type watcher struct {
	out chan []byte
	// fresh is set until the whole page was sent; guarded by hub.mu.
	fresh bool
}

func newHub(b *Board) *hub {
	return &hub{board: b, watchers: map[*watcher]bool{}, closed: make(chan struct{})}
}

// close ends the loop and every open page.
func (h *hub) close() {
	h.mu.Lock()
	select {
	case <-h.closed:
	default:
		close(h.closed)
	}
	h.mu.Unlock()
	h.loops.Wait()
}

// join adds a watcher, and starts the loop with the first. It returns nil where
// there are too many.
func (h *hub) join() *watcher {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.closed:
		return nil
	default:
	}
	if len(h.watchers) >= maxWatchers {
		return nil
	}
	w := &watcher{out: make(chan []byte, patchesAhead), fresh: true}
	h.watchers[w] = true
	if !h.running {
		h.running = true
		h.loops.Go(h.loop)
	}
	return w
}

func (h *hub) leave(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
}

// loop sends patches until nobody watches.
func (h *hub) loop() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-h.closed:
			cancel()
		case <-ctx.Done():
		}
	}()
	last := map[string]string{}
	for {
		v := newView(h.board, ctx)
		now := fragments(v)
		h.mu.Lock()
		if len(h.watchers) == 0 || ctx.Err() != nil {
			h.running = false
			h.mu.Unlock()
			return
		}
		h.send(v, last, now)
		h.mu.Unlock()
		last = now
		if h.board.o.Clock.Sleep(ctx, patchEvery) != nil {
			continue // closed: the next round ends it
		}
	}
}

// send gives every watcher what it lacks; h.mu is held.
func (h *hub) send(v *view, last, now map[string]string) {
	var whole, partial []byte
	for w := range h.watchers {
		if w.fresh {
			if whole == nil {
				whole = encodePatch(wholePatch(v, now))
			}
		} else if partial == nil {
			partial = encodePatch(partialPatch(v, last, now))
		}
		message := partial
		if w.fresh {
			message = whole
		}
		select {
		case w.out <- message:
			w.fresh = false
		default:
			w.fresh = true // it is behind: what it misses now comes whole later
		}
	}
}

func wholePatch(v *view, now map[string]string) patch {
	p := patch{Whole: true, Fragments: now, Series: map[string]Series{}, Now: v.M.Now}
	for _, q := range v.M.Queries {
		p.Series[q.Name] = q.Series
	}
	return p
}

func partialPatch(v *view, last, now map[string]string) patch {
	p := patch{Fragments: map[string]string{}, Series: map[string]Series{}, Now: v.M.Now}
	for name, html := range now {
		if last[name] != html {
			p.Fragments[name] = html
		}
	}
	for _, q := range v.M.Queries {
		p.Series[q.Name] = q.Series.Tail()
	}
	return p
}

func encodePatch(p patch) []byte {
	b, err := json.Marshal(p)
	if err != nil {
		panic(err) // plain structs of texts and numbers
	}
	return b
}

// serve is /events.
func (h *hub) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		return
	}
	me := h.join()
	if me == nil {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many pages are open", http.StatusServiceUnavailable)
		return
	}
	defer h.leave(me)
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("X-Accel-Buffering", "no")
	rc := http.NewResponseController(w)
	event := func(name string, data []byte) bool {
		_ = rc.SetWriteDeadline(h.board.o.Clock.Now().Add(patchTimeout))
		out := make([]byte, 0, len(data)+64)
		out = append(append(append(out, "event: "...), name...), "\ndata: "...)
		out = append(append(out, data...), "\n\n"...)
		if _, err := w.Write(out); err != nil {
			return false
		}
		return rc.Flush() == nil
	}
	for {
		select {
		case message := <-me.out:
			if !event("patch", message) {
				return
			}
		case <-h.closed:
			// The last state, so that an open page shows why it ended.
			v := newView(h.board, context.Background())
			event("patch", encodePatch(wholePatch(v, fragments(v))))
			event("bye", []byte("{}"))
			return
		case <-r.Context().Done():
			return
		}
	}
}
