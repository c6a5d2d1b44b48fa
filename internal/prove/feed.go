package prove

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sort"
	"strings"
	"time"

	"github.com/weirlake/weir/internal/clock"
)

// feed is a server of server-sent events that plays a list once and then keeps
// the connection open with comments, as Wikimedia's does. Positions are times
// in milliseconds, one per event, so that a client that resumes gets exactly
// the rest.
type feed struct {
	server *http.Server
	url    string
	events []event
	base   int64
	clock  clock.Clock
}

// feedHeartbeat is the pause between life signs after the last event.
const feedHeartbeat = time.Second

func serveFeed(events []event, base time.Time, c clock.Clock) (*feed, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &feed{url: "http://" + ln.Addr().String() + "/v2/stream/recentchange", events: events, base: base.UnixMilli(), clock: c}
	f.server = &http.Server{Handler: f, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = f.server.Serve(ln) }()
	return f, nil
}

func (f *feed) close() { _ = f.server.Close() }

// ServeHTTP implements http.Handler.
func (f *feed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	flush := http.NewResponseController(w)
	fmt.Fprint(w, ":ok\n\n")
	for i := f.resume(r.Header.Get("Last-Event-ID")); i < len(f.events); i++ {
		var b strings.Builder
		fmt.Fprintf(&b, "event: message\nid: [{\"topic\":\"eqiad.mediawiki.recentchange\",\"partition\":0,\"timestamp\":%d},{\"topic\":\"codfw.mediawiki.recentchange\",\"partition\":0,\"offset\":-1}]\n", f.base+int64(i)+1)
		for _, line := range strings.Split(string(f.events[i].payload), "\n") {
			fmt.Fprintf(&b, "data: %s\n", line)
		}
		if _, err := fmt.Fprintf(w, "%s\n", b.String()); err != nil {
			return
		}
	}
	for flush.Flush() == nil {
		if f.clock.Sleep(r.Context(), feedHeartbeat) != nil {
			return
		}
		fmt.Fprint(w, ":\n\n")
	}
}

// resume is the index of the event that a Last-Event-ID asks for; the id names
// the next position, not the last one.
func (f *feed) resume(id string) int {
	var positions []struct {
		Timestamp int64 `json:"timestamp"`
	}
	if json.Unmarshal([]byte(id), &positions) != nil {
		return 0
	}
	var at int64
	for _, p := range positions {
		at = max(at, p.Timestamp)
	}
	return sort.Search(len(f.events), func(i int) bool { return f.base+int64(i) >= at })
}

// ingest publishes events as the product does: a stream, weir ingest, Kafka.
// It ends when topic and dead-letter topic hold what they must.
func (e *Env) ingest(ctx context.Context, s setup, events []event, want, wantDead int64) error {
	f, err := serveFeed(events, e.o.Clock.Now(), e.o.Clock)
	if err != nil {
		return err
	}
	defer f.close()
	s.Ingest = f.url
	file := e.path(s.IngestName + ".yaml")
	if err := s.write(file); err != nil {
		return err
	}
	p, err := e.start("weir ingest", nil, "ingest", file)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%d messages and %d dead letters in Kafka", want, wantDead)
	err = e.until(ctx, p, ingestMax, what, func() (bool, error) {
		n, err := e.size(ctx, s.Topic)
		if err != nil || n < want {
			return false, err
		}
		dead, err := e.size(ctx, s.DLQ)
		return dead >= wantDead, err
	})
	if err != nil {
		return err
	}
	return p.stop(ctx)
}

// ingestMax bounds the publication of a scenario's events.
const ingestMax = 3 * time.Minute

// size is the number of offsets of a topic.
func (e *Env) size(ctx context.Context, topic string) (n int64, err error) {
	b, err := e.kafka.Bounds(ctx, topic)
	if err != nil {
		return 0, err
	}
	for _, p := range b.Partitions {
		n += p.Stable - p.LogStart
	}
	return n, nil
}
