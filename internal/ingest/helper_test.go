package ingest

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/ingest/contract"
	"github.com/weirlake/weir/internal/ingest/position"
)

// frame is one event of the test's stream as a log holds it.
type frame struct {
	topic string
	ts    int64 // of the record in its topic's log
	data  string
	typ   string
}

// stream is a server that treats positions as EventStreams does: it keeps one
// log per topic, looks for the first record at or after a time, and goes on in
// log order from there.
type stream struct {
	mu     sync.Mutex
	frames []frame
	cuts   []int // the connection is cut after so many frames, then the next number…
	hold   bool  // keep the connection open at the end instead of ending with 204
	ids    []string
	conns  int
}

func (s *stream) topics() []string {
	var out []string
	seen := map[string]bool{}
	for _, f := range s.frames {
		if !seen[f.topic] {
			seen[f.topic] = true
			out = append(out, f.topic)
		}
	}
	return out
}

// starts is, per topic, the index in frames from which on to send.
func (s *stream) starts(id string) (map[string]int, error) {
	out := map[string]int{}
	if id == "" {
		return out, nil
	}
	parts, ok := new(position.Parser).Parse([]byte(id))
	if !ok {
		return nil, fmt.Errorf("bad id %q", id)
	}
	for _, p := range parts {
		at := len(s.frames)
		for i, f := range s.frames {
			if f.topic == p.Topic && p.Timed && f.ts >= p.Value {
				at = i
				break
			}
		}
		out[p.Topic] = at
	}
	return out, nil
}

func (s *stream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := r.Header.Get("Last-Event-ID")
	s.ids = append(s.ids, id)
	s.conns++
	starts, err := s.starts(id)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var send []int
	for i, f := range s.frames {
		if i >= starts[f.topic] {
			send = append(send, i)
		}
	}
	if len(send) == 0 || (len(s.cuts) > 0 && s.cuts[0] < 0) {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	cut := len(send)
	end := len(s.cuts) == 0
	if !end {
		cut = min(cut, s.cuts[0])
		s.cuts = s.cuts[1:]
	} else {
		s.cuts = []int{-1} // next time: no more
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	last := map[string]int64{}
	var b strings.Builder
	b.WriteString(":ok\n\n")
	for _, i := range send[:cut] {
		f := s.frames[i]
		last[f.topic] = f.ts + 1
		if f.typ == "" {
			f.typ = "message"
		}
		fmt.Fprintf(&b, "event: %s\nid: %s\ndata: %s\n\n", f.typ, s.id(last), f.data)
	}
	_, _ = w.Write([]byte(b.String()))
	if s.hold && end {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

func (s *stream) id(last map[string]int64) string {
	var parts []string
	for _, t := range s.topics() {
		if ts, ok := last[t]; ok {
			parts = append(parts, fmt.Sprintf(`{"topic":%q,"partition":0,"timestamp":%d}`, t, ts))
		} else {
			parts = append(parts, fmt.Sprintf(`{"topic":%q,"partition":0,"offset":-1}`, t))
		}
	}
	return "[" + strings.Join(parts, ",") + "]"
}

const baseMillis = 1_700_000_000_000

// event is a good event with an id derived from n.
func event(n int) string {
	return fmt.Sprintf(`{"$schema":"/mediawiki/recentchange/1.0.0","meta":{"uri":"https://a.example.org/wiki/%d","id":%q,"dt":"2023-11-14T22:13:20Z","domain":"a.example.org","stream":"mediawiki.recentchange"},"id":%d,"type":"edit","namespace":0,"title":"T %d","wiki":"awiki","bot":false}`,
		n, eventID(n), n, n)
}

func eventID(n int) string {
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte(fmt.Sprint(n))).String()
}

// frames makes n events over two data centres whose times repeat and go
// backwards by up to back milliseconds, with some canaries and violations.
func frames(seed uint64, n int, back int64) (fs []frame, good, bad int) {
	rng := rand.New(rand.NewPCG(seed, 7))
	for i := range n {
		f := frame{topic: "eqiad.recentchange", ts: baseMillis + int64(i)*40}
		if rng.IntN(4) == 0 {
			f.topic = "codfw.recentchange"
		}
		f.ts -= rng.Int64N(back + 1)
		f.ts -= f.ts % 1000 // whole seconds: many share a time
		switch {
		case rng.IntN(15) == 0:
			f.data = `{"$schema":"/mediawiki/recentchange/1.0.1","meta":{"dt":"2026-01-01T00:00:00Z","stream":"mediawiki.recentchange","domain":"canary"}}`
		case rng.IntN(15) == 0:
			f.data = fmt.Sprintf(`{"meta":{"dt":"2023-11-14T22:13:20Z","domain":"a"},"n":%d}`, i)
			bad++
		default:
			f.data = event(i)
			good++
		}
		fs = append(fs, f)
	}
	return fs, good, bad
}

func serve(t testing.TB, h http.Handler) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return srv.URL + "/v2/stream/recentchange"
}

func fakeKafka(t testing.TB, opts ...kfake.Opt) []string {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c.ListenAddrs()
}

func testConfig(t testing.TB, url string, brokers []string, d Delivery) Config {
	t.Helper()
	c := Config{
		URL: url, Brokers: brokers, Topic: "wiki.recentchange", Schema: contract.Wikimedia,
		Delivery: d, Partitions: 3, ReplicationFactor: 1,
		BackoffMin: time.Millisecond, BackoffMax: 5 * time.Millisecond, Linger: time.Millisecond,
		SaveInterval: time.Millisecond, TxnInterval: 5 * time.Millisecond, Seed: 1,
		DeliveryTimeout: 30 * time.Second,
	}
	if d == AtLeastOnce {
		c.PositionPath = t.TempDir()
	}
	return c
}

// consume reads all committed records of a topic.
func consume(t testing.TB, brokers []string, topic string) []*kgo.Record {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	ends := settled(ctx, t, kadm.NewClient(cl), topic)
	left := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	var out []*kgo.Record
	for len(left) > 0 {
		fs := cl.PollFetches(ctx)
		if err := fs.Err(); err != nil {
			t.Fatal(err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
			if !r.Attrs.IsControl() {
				out = append(out, r)
			}
		})
	}
	return out
}

// settled waits until no transaction is open: a commit is acknowledged before
// its markers are in the partitions.
func settled(ctx context.Context, t testing.TB, adm *kadm.Client, topic string) kadm.ListedOffsets {
	t.Helper()
	for {
		stable, err := adm.ListCommittedOffsets(ctx, topic)
		if err != nil {
			t.Fatal(err)
		}
		ends, err := adm.ListEndOffsets(ctx, topic)
		if err != nil {
			t.Fatal(err)
		}
		same := true
		ends.Each(func(o kadm.ListedOffset) {
			s, ok := stable.Lookup(o.Topic, o.Partition)
			same = same && ok && s.Offset == o.Offset
		})
		if same {
			return ends
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func header(r *kgo.Record, key string) string {
	for _, h := range r.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

// tally counts records by value.
func tally(rs []*kgo.Record) map[string]int {
	out := map[string]int{}
	for _, r := range rs {
		out[string(r.Value)]++
	}
	return out
}

func mustJSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func contains(s, sub string) bool { return strings.Contains(s, sub) }
