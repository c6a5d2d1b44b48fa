package ingest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/ingest/contract"
	"github.com/weirlake/weir/internal/ingest/position"
	"github.com/weirlake/weir/internal/ingest/sse"
)

// body serves one stream and then 204.
func body(text string) http.Handler {
	var served atomic.Bool
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if served.Swap(true) {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write([]byte(text))
	})
}

// hostile are events that must end in a counted place, with the reason there.
func hostile() (names []string, data, reasons []string) {
	add := func(name, d string, r contract.Reason) {
		names, data, reasons = append(names, name), append(data, d), append(reasons, string(r))
	}
	add("invalid UTF-8", "{\"a\":\"\xff\xfe\"}", contract.InvalidUTF8)
	add("a NUL byte", "{\"a\":\"\x00\"}", contract.InvalidJSON)
	add("empty", "", contract.Empty)
	add("null", "null", contract.WrongType)
	add("lone surrogate", `{"a":"\ud800"}`, contract.LoneSurrogate)
	add("duplicate key", `{"meta":{},"meta":{}}`, contract.DuplicateKey)
	add("10,000 deep", strings.Repeat("[", 10_000)+strings.Repeat("]", 10_000), contract.TooDeep)
	add("no id", `{"meta":{"dt":"2021-08-27T13:20:14Z"}}`, contract.MissingField)
	add("namespace", strings.Replace(event(1), `"namespace":0`, `"namespace":"0"`, 1), contract.WrongType)
	add("5 MiB", strings.Replace(event(2), `"awiki"`, `"`+strings.Repeat("w", 5<<20)+`"`, 1), ReasonTooLarge)
	add("20 MiB", strings.Replace(event(3), `"awiki"`, `"`+strings.Repeat("w", 20<<20)+`"`, 1), ReasonTooLarge)
	add("longer than any event may be", strings.Repeat("q", 25<<20), ReasonTooLarge)
	return names, data, reasons
}

func TestHostileInputEndsInTheDeadLetterTopicAndTheStreamGoesOn(t *testing.T) {
	names, data, reasons := hostile()
	mib := strings.Replace(event(100), `"awiki"`, `"`+strings.Repeat("w", 1<<20)+`"`, 1)
	var text strings.Builder
	text.WriteString(":ok\n\n")
	for i, d := range data {
		fmt.Fprintf(&text, "event: message\nid: h%d\ndata: %s\n\n", i, d)
		fmt.Fprintf(&text, "id: g%d\ndata: %s\n\n", i, event(1000+i))
	}
	fmt.Fprintf(&text, "id: mib\ndata: %s\n\n", mib)
	text.WriteString("event: error\nid: err\ndata: {\"message\":\"oops\"}\n\n")
	text.WriteString("id: ext\ndata: " + strings.Replace(event(7), `"edit"`, `"external"`, 1) + "\n\n")
	for _, d := range []Delivery{AtLeastOnce, ExactlyOnce} {
		t.Run(string(d), func(t *testing.T) {
			brokers := fakeKafka(t)
			cfg := testConfig(t, serve(t, body(text.String())), brokers, d)
			cfg.MaxEventBytes = 24 << 20
			st, err := Run(context.Background(), cfg, Deps{})
			if err != nil {
				t.Fatal(err)
			}
			good := tally(consume(t, brokers, cfg.Topic))
			for i := range data {
				if good[event(1000+i)] != 1 {
					t.Errorf("the event after %q is missing", names[i])
				}
			}
			if good[mib] != 1 {
				t.Error("the event of 1 MiB is missing")
			}
			if len(good) != len(data)+2 {
				t.Errorf("%d events in the topic, want %d", len(good), len(data)+2)
			}
			dead := map[string]*kgo.Record{}
			for _, r := range consume(t, brokers, cfg.Topic+".dlq") {
				dead[header(r, HeaderSSEID)] = r
			}
			if len(dead) != len(data)+1 {
				t.Errorf("%d dead letters, want %d", len(dead), len(data)+1)
			}
			for i, want := range reasons {
				r := dead[fmt.Sprintf("h%d", i)]
				if r == nil {
					t.Errorf("%s: no dead letter", names[i])
					continue
				}
				if got := header(r, HeaderReason); got != want {
					t.Errorf("%s: reason %s (%s), want %s", names[i], got, header(r, HeaderDetail), want)
				}
				whole := string(r.Value) == data[i]
				cut := strings.HasPrefix(data[i], string(r.Value)) && len(r.Value) > 1000 && header(r, HeaderTruncated) == fmt.Sprint(len(data[i]))
				if !whole && !cut {
					t.Errorf("%s: the evidence is not the bytes that came: %d bytes of %d, truncated %q", names[i], len(r.Value), len(data[i]), header(r, HeaderTruncated))
				}
				if whole == (want == string(ReasonTooLarge)) {
					t.Errorf("%s: whole is %v", names[i], whole)
				}
				if _, err := time.Parse(time.RFC3339Nano, header(r, HeaderReceivedAt)); err != nil {
					t.Error(err)
				}
			}
			if r := dead["err"]; r == nil || header(r, HeaderReason) != string(ReasonEventType) {
				t.Error("the server's error is nowhere")
			}
			sum := int64(0)
			for _, n := range st.Violations {
				sum += n
			}
			if st.Received != st.Canaries+st.Published+st.DeadLetters || st.DeadLetters != sum || st.DeadLetters != int64(len(data)+1) || st.Stream.Oversize != 1 {
				t.Errorf("stats do not add up: %s", mustJSON(t, st))
			}
		})
	}
}

func TestTheRecordKeyIsTheEventID(t *testing.T) {
	brokers := fakeKafka(t)
	_, err := Run(context.Background(), testConfig(t, serve(t, body("id: 1\ndata: "+event(5)+"\n\n")), brokers, AtLeastOnce), Deps{})
	if err != nil {
		t.Fatal(err)
	}
	rs := consume(t, brokers, "wiki.recentchange")
	if len(rs) != 1 || string(rs[0].Key) != eventID(5) {
		t.Fatalf("%v", rs)
	}
}

// smallTopic makes the topic beforehand, with a low limit.
func smallTopic(t *testing.T, brokers []string, limit string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if _, err := kadm.NewClient(cl).CreateTopic(context.Background(), 2, 1, map[string]*string{"max.message.bytes": &limit}, "wiki.recentchange"); err != nil {
		t.Fatal(err)
	}
}

func TestTheTopicsOwnLimitIsKnownBeforehand(t *testing.T) {
	for _, d := range []Delivery{AtLeastOnce, ExactlyOnce} {
		brokers := fakeKafka(t)
		smallTopic(t, brokers, "100000")
		big := strings.Replace(event(2), `"awiki"`, `"`+strings.Repeat("w", 200_000)+`"`, 1)
		var text strings.Builder
		for i := range 300 {
			fmt.Fprintf(&text, "id: %d\ndata: %s\n\n", i, event(10+i))
		}
		st, err := Run(context.Background(), testConfig(t, serve(t, body("id: 1\ndata: "+big+"\n\n"+text.String())), brokers, d), Deps{})
		if err != nil {
			t.Fatal(err)
		}
		if st.Published != 300 || st.Violations[string(ReasonTooLarge)] != 1 {
			t.Errorf("%s: %s", d, mustJSON(t, st))
		}
	}
}

// denyConfigs makes the broker refuse to describe configurations.
func denyConfigs(c *kfake.Cluster) {
	c.ControlKey(int16(kmsg.DescribeConfigs), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
		for _, r := range req.(*kmsg.DescribeConfigsRequest).Resources {
			rr := kmsg.NewDescribeConfigsResponseResource()
			rr.ErrorCode, rr.ResourceName, rr.ResourceType = kerr.TopicAuthorizationFailed.Code, r.ResourceName, r.ResourceType
			resp.Resources = append(resp.Resources, rr)
		}
		return resp, nil, true
	})
}

func TestARecordThatTheBrokerRefusesBecomesADeadLetterAndBlocksNothing(t *testing.T) {
	for _, d := range []Delivery{AtLeastOnce, ExactlyOnce} {
		t.Run(string(d), func(t *testing.T) {
			c, err := kfake.NewCluster(kfake.NumBrokers(1))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			denyConfigs(c)
			smallTopic(t, c.ListenAddrs(), "300000")
			// Random letters: what is compressible would pass.
			rng := rand.New(rand.NewPCG(5, 5))
			letters := make([]byte, 900_000)
			for i := range letters {
				letters[i] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"[rng.IntN(64)]
			}
			big := strings.Replace(event(2), `"awiki"`, `"`+string(letters)+`"`, 1)
			cfg := testConfig(t, serve(t, body("id: 1\ndata: "+event(1)+"\n\nid: 2\ndata: "+big+"\n\nid: 3\ndata: "+event(3)+"\n\n")), c.ListenAddrs(), d)
			st, err := Run(context.Background(), cfg, Deps{})
			if err != nil {
				t.Fatal(err)
			}
			good := tally(consume(t, c.ListenAddrs(), cfg.Topic))
			rs := consume(t, c.ListenAddrs(), cfg.Topic+".dlq")
			if len(good) != 2 || good[event(1)] != 1 || good[event(3)] != 1 || len(rs) != 1 {
				t.Fatalf("%d events, %d dead letters; %s", len(good), len(rs), mustJSON(t, st))
			}
			if header(rs[0], HeaderReason) != string(ReasonTooLarge) || header(rs[0], HeaderSSEID) != "2" || !strings.HasPrefix(big, string(rs[0].Value)) {
				t.Errorf("%v", rs[0].Headers)
			}
			if st.Published != 2 || st.DeadLetters != 1 {
				t.Errorf("%s", mustJSON(t, st))
			}
		})
	}
}

func TestAGracefulStopKeepsEverythingThatWasRead(t *testing.T) {
	for _, d := range []Delivery{AtLeastOnce, ExactlyOnce} {
		fs, _, _ := frames(6, 300, 5000)
		s := &stream{frames: fs, hold: true}
		brokers := fakeKafka(t)
		cfg := testConfig(t, serve(t, s), brokers, d)
		ctx, cancel := context.WithCancel(context.Background())
		st, err := Run(ctx, cfg, Deps{StopWhen: func(s Stats) bool {
			if s.Received >= 100 {
				cancel()
			}
			return false
		}})
		if err != nil || st.InFlight != 0 {
			t.Fatalf("%s: %v %s", d, err, mustJSON(t, st))
		}
		// The rest comes at the next start.
		s.mu.Lock()
		s.hold, s.cuts = false, nil
		s.mu.Unlock()
		if _, err := Run(context.Background(), cfg, Deps{}); err != nil {
			t.Fatal(err)
		}
		checkDelivery(t, fs, brokers, true)
	}
}

func TestStopWhenEndsTheRun(t *testing.T) {
	fs, _, _ := frames(6, 2000, 5000)
	brokers := fakeKafka(t)
	st, err := Run(context.Background(), testConfig(t, serve(t, &stream{frames: fs, hold: true}), brokers, AtLeastOnce),
		Deps{StopWhen: func(s Stats) bool { return s.Received >= 500 }})
	if err != nil || st.Received < 500 || st.InFlight != 0 {
		t.Fatalf("%v %s", err, mustJSON(t, st))
	}
}

func TestAnOpaqueIDIsResumedVerbatimAndOnlyAfterItsAcknowledgement(t *testing.T) {
	for _, d := range []Delivery{AtLeastOnce, ExactlyOnce} {
		var seen []string
		next := 0
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen = append(seen, r.Header.Get("Last-Event-ID"))
			if id := r.Header.Get("Last-Event-ID"); id != "" {
				if _, err := fmt.Sscanf(id, "e%d", &next); err != nil {
					t.Error(err)
				}
				next++
			}
			if next >= 50 {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			for i := next; i < min(next+7, 50); i++ {
				fmt.Fprintf(w, "id: e%d\ndata: %s\n\n", i, event(i))
			}
		})
		brokers := fakeKafka(t)
		cfg := testConfig(t, serve(t, h), brokers, d)
		if _, err := Run(context.Background(), cfg, Deps{}); err != nil {
			t.Fatal(err)
		}
		got := tally(consume(t, brokers, cfg.Topic))
		for i := range 50 {
			if got[event(i)] != 1 {
				t.Errorf("%s: event %d: %d times", d, i, got[event(i)])
			}
		}
		if last := seen[len(seen)-1]; last != "e49" {
			t.Errorf("%s: the last position was %q", d, last)
		}
	}
}

func TestAReconnectBeforeTheFirstAcknowledgementWaitsForIt(t *testing.T) {
	// With no position a server begins at its end: what it sent between the two
	// connections would be lost.
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var slow atomic.Int64
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if slow.Add(1) < 3 {
			c.SleepControl(func() { time.Sleep(100 * time.Millisecond) })
		}
		return nil, nil, false
	})
	fs, _, _ := frames(13, 60, 2000)
	s := &stream{frames: fs, cuts: []int{5}}
	if _, err := Run(context.Background(), testConfig(t, serve(t, s), c.ListenAddrs(), AtLeastOnce), Deps{}); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ids) < 2 || s.ids[0] != "" || s.ids[1] == "" {
		t.Errorf("positions sent: %q", s.ids)
	}
}

func TestAnEventThatTheServerSendsTwiceIsPublishedTwice(t *testing.T) {
	// Only what a resume repeats is dropped: the topic holds what the stream held.
	brokers := fakeKafka(t)
	text := fmt.Sprintf("id: 1\ndata: %s\n\nid: 2\ndata: %s\n\n", event(1), event(1))
	cfg := testConfig(t, serve(t, body(text)), brokers, ExactlyOnce)
	if _, err := Run(context.Background(), cfg, Deps{}); err != nil {
		t.Fatal(err)
	}
	if n := tally(consume(t, brokers, cfg.Topic))[event(1)]; n != 2 {
		t.Errorf("%d times", n)
	}
}

func TestAPositionOfAnotherStreamOrTopicIsRefused(t *testing.T) {
	for _, d := range []Delivery{AtLeastOnce, ExactlyOnce} {
		brokers := fakeKafka(t)
		cfg := testConfig(t, serve(t, body("id: 1\ndata: "+event(1)+"\n\n")), brokers, d)
		cfg.TransactionalID = "one"
		if _, err := Run(context.Background(), cfg, Deps{}); err != nil {
			t.Fatal(err)
		}
		cfg.URL = strings.Replace(cfg.URL, "recentchange", "page-create", 1)
		if _, err := Run(context.Background(), cfg, Deps{}); !failure.Is(err, failure.Checkpoint) || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("%s: %v", d, err)
		}
	}
}

func TestASecondExactlyOnceIngestionFencesTheFirst(t *testing.T) {
	fs, _, _ := frames(8, 50, 1000)
	brokers := fakeKafka(t)
	more := make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "id: 1\ndata: %s\n\n", event(90_001))
		_ = http.NewResponseController(w).Flush()
		select {
		case <-more:
		case <-r.Context().Done():
			return
		}
		fmt.Fprintf(w, "id: 2\ndata: %s\n\n", event(90_002))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	zombie := testConfig(t, serve(t, h), brokers, ExactlyOnce)
	in, err := New(zombie, Deps{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- in.Run(context.Background()) }()
	for in.Stats().Published == 0 {
		time.Sleep(time.Millisecond)
	}
	// The second one has another stream behind the same identity.
	s := &stream{frames: fs}
	second := testConfig(t, serve(t, s), brokers, ExactlyOnce)
	srv := serve(t, s)
	second.URL = zombie.URL
	deps := Deps{HTTPClient: &http.Client{Transport: rewrite{to: strings.TrimSuffix(strings.TrimPrefix(srv, "http://"), "/v2/stream/recentchange")}}}
	if _, err := Run(context.Background(), second, deps); err != nil {
		t.Fatal(err)
	}
	close(more)
	select {
	case err := <-done:
		if !failure.Is(err, failure.Fenced) {
			t.Fatalf("the zombie ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the zombie goes on")
	}
	got := tally(consume(t, brokers, second.Topic))
	if got[event(90_002)] != 0 {
		t.Error("a fenced producer published")
	}
}

// rewrite sends every request to another host.
type rewrite struct{ to string }

func (r rewrite) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.URL.Host = r.to
	// Resume positions of the other server mean nothing to this one.
	req.Header.Del("Last-Event-ID")
	return http.DefaultTransport.RoundTrip(req)
}

func TestABrokerThatIsGoneStopsTheRunInBoundedTimeAndLosesNothing(t *testing.T) {
	for _, d := range []Delivery{AtLeastOnce, ExactlyOnce} {
		t.Run(string(d), func(t *testing.T) {
			c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(0))
			if err != nil {
				t.Fatal(err)
			}
			fs, _, _ := frames(9, 200, 3000)
			s := &stream{frames: fs, hold: true}
			cfg := testConfig(t, serve(t, s), c.ListenAddrs(), d)
			cfg.DeliveryTimeout = 400 * time.Millisecond
			var once atomic.Bool
			c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
				once.Store(true)
				go c.Close()
				return nil, fmt.Errorf("gone"), true
			})
			st, err := Run(context.Background(), cfg, Deps{})
			if !failure.Is(err, failure.Unreachable) {
				t.Fatalf("%v %s", err, mustJSON(t, st))
			}
			if !once.Load() || st.Published != 0 {
				t.Errorf("%s", mustJSON(t, st))
			}
			if d == AtLeastOnce {
				if _, err := os.Stat(filepath.Join(cfg.PositionPath, position.FileName)); err == nil {
					t.Error("a position was saved although nothing was acknowledged")
				}
			}
		})
	}
}

func TestASlowBrokerHoldsTheStreamBackWithinTheBound(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	release := make(chan struct{})
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		c.SleepControl(func() { <-release })
		return nil, nil, false
	})
	const n, bound = 4000, 512 << 10
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "id: %d\ndata: %s\n\n", i, event(i))
	}
	cfg := testConfig(t, serve(t, body(text.String())), c.ListenAddrs(), AtLeastOnce)
	cfg.MaxInFlightBytes = bound
	in, err := New(cfg, Deps{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- in.Run(context.Background()) }()
	var last int64
	for still := 0; still < 20; { // until it no longer moves
		time.Sleep(5 * time.Millisecond)
		if now := in.Stats().Received; now == last && now > 0 {
			still++
		} else {
			last, still = now, 0
		}
	}
	if size := last * int64(len(event(0))); size > bound {
		t.Errorf("%d events of together %d bytes were read ahead", last, size)
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if st := in.Stats(); st.Published != n {
		t.Errorf("%s", mustJSON(t, st))
	}
}

// TestThePositionIsNeverAheadOfTheAcknowledgements acknowledges batches in a
// random order and looks at what is saved after each.
func TestThePositionIsNeverAheadOfTheAcknowledgements(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 9))
		cfg := testConfig(t, "http://127.0.0.1:1/stream", []string{"127.0.0.1:1"}, AtLeastOnce)
		in, err := New(cfg, Deps{})
		if err != nil {
			t.Fatal(err)
		}
		if in.file, err = position.Open(cfg.PositionPath); err != nil {
			t.Fatal(err)
		}
		a := newAtLeastOnce(in)
		in.Resume()
		k := in.contract.NewChecker()
		var batches []*batch
		var ends []int64
		seq := int64(0)
		for i := range 12 {
			var evs []sse.Event
			for range 1 + rng.IntN(4) {
				seq++
				data := []byte(event(int(seq)))
				id := fmt.Appendf(nil, `[{"topic":"eqiad","partition":0,"timestamp":%d}]`, baseMillis+seq)
				evs = append(evs, sse.Event{Type: "message", ID: id, Data: data, HasData: true, Size: int64(len(data))})
			}
			b := newBatch(in, evs, time.UnixMilli(baseMillis))
			if err := in.budget.Acquire(context.Background(), b.weight); err != nil {
				t.Fatal(err)
			}
			for j := range evs {
				b.out = append(b.out, in.judge(k, &evs[j]))
			}
			in.prepare(b)
			in.enqueue(b)
			batches, ends = append(batches, b), append(ends, seq)
			_ = i
		}
		acked := make([]bool, len(batches))
		for _, i := range rng.Perm(len(batches)) {
			acked[i] = true
			in.acknowledged(batches[i])
			if err := a.save(); err != nil {
				t.Fatal(err)
			}
			prefix := int64(0)
			for j := 0; j < len(acked) && acked[j]; j++ {
				prefix = ends[j]
			}
			s, err := in.file.Load()
			if err != nil {
				t.Fatal(err)
			}
			var saved int64
			w := position.NewWindow(1000)
			if s != nil {
				saved = s.Seq
				if p, _ := s.Position.Part(position.Key{Topic: "eqiad"}); p.Value != baseMillis+saved {
					t.Fatalf("seed %d: position %d at event %d", seed, p.Value-baseMillis, saved)
				}
				if err := w.Load(s.Recent); err != nil {
					t.Fatal(err)
				}
			}
			if saved != prefix {
				t.Fatalf("seed %d: saved up to %d, acknowledged up to %d", seed, saved, prefix)
			}
			if int64(w.Len()) != prefix {
				t.Fatalf("seed %d: %d events are remembered, %d acknowledged: one that is in flight would be dropped", seed, w.Len(), prefix)
			}
		}
		in.file.Close()
	}
}

func TestConfigNamesEverythingThatIsWrong(t *testing.T) {
	errs := Config{URL: "ftp://x", Since: "yesterday", Delivery: "twice", Compression: "rar", Workers: -1, TxnMaxRecords: 1 << 20}.Validate()
	all := fmt.Sprint(errs)
	for _, want := range []string{"sse.url", "sse.since", "topic", "bootstrapServers", "delivery", "compression", "workers", "transactionMaxRecords"} {
		if !strings.Contains(all, want) {
			t.Errorf("%s is not named in %s", want, all)
		}
	}
	if _, err := New(Config{}, Deps{}); !failure.Is(err, failure.Config) {
		t.Error(err)
	}
}

func TestAChangeOfDeliveryGoesOnWhereTheOtherOneStopped(t *testing.T) {
	fs, _, _ := frames(12, 100, 4000)
	s := &stream{frames: fs}
	brokers := fakeKafka(t)
	cfg := testConfig(t, serve(t, s), brokers, AtLeastOnce)
	for i, d := range []Delivery{AtLeastOnce, ExactlyOnce, AtLeastOnce, ExactlyOnce, AtLeastOnce} {
		s.mu.Lock()
		s.cuts = []int{20 * (i + 1), -1}
		s.mu.Unlock()
		cfg.Delivery = d
		if _, err := Run(context.Background(), cfg, Deps{}); err != nil {
			t.Fatal(err)
		}
	}
	s.mu.Lock()
	s.cuts = nil
	ids := strings.Join(s.ids[1:], "; ")
	s.mu.Unlock()
	if strings.Contains(ids, "; ;") || strings.HasPrefix(ids, ";") {
		t.Errorf("a start had no position: %q", ids)
	}
	cfg.Delivery = ExactlyOnce
	if _, err := Run(context.Background(), cfg, Deps{}); err != nil {
		t.Fatal(err)
	}
	checkDelivery(t, fs, brokers, true)
}
