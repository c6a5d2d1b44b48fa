package replay

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// event is what the tests' own SSE reader delivers.
type event struct{ id, data string }

// client reads as a browser would, with the little that the tests need.
type client struct {
	t    *testing.T
	url  string
	http *http.Client
}

func serve(t *testing.T, cfg Config) (*Server, *client) {
	t.Helper()
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ts := httptest.NewServer(s.Handler())
	t.Cleanup(ts.Close)
	// net/http logs every connection that is cut on purpose.
	ts.Config.ErrorLog = nil
	return s, &client{t, ts.URL + Path, ts.Client()}
}

// get opens a connection; lastID may be empty.
func (c *client) get(ctx context.Context, lastID string) *http.Response {
	c.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// read delivers whole events until the connection ends or limit is reached. A
// last event without its empty line is dropped, as the standard says.
func read(r io.Reader, limit int) (events []event, comments int, err error) {
	sc := bufio.NewReaderSize(r, 1<<20)
	var e event
	for len(events) < limit {
		line, err := sc.ReadString('\n')
		if err != nil {
			return events, comments, err
		}
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "" && e.data != "":
			events, e = append(events, e), event{}
		case strings.HasPrefix(line, ":"):
			comments++
		case strings.HasPrefix(line, "id: "):
			e.id = line[4:]
		case strings.HasPrefix(line, "data: "):
			e.data = line[6:]
		}
	}
	return events, comments, nil
}

// position is the part of an id that is known.
type position struct {
	Topic     string `json:"topic"`
	Partition int    `json:"partition"`
	Timestamp *int64 `json:"timestamp,omitempty"`
	Offset    *int64 `json:"offset,omitempty"`
}

// earlier is the id with its times set back, as ingestion resumes.
func earlier(t *testing.T, id string, by time.Duration) string {
	t.Helper()
	var parts []position
	if err := json.Unmarshal([]byte(id), &parts); err != nil {
		t.Fatalf("%v: %s", err, id)
	}
	for i := range parts {
		if parts[i].Timestamp != nil {
			ms := *parts[i].Timestamp - 1 - by.Milliseconds()
			parts[i].Timestamp = &ms
		}
	}
	b, err := json.Marshal(parts)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestAConnectionSendsEveryFrameInOrderAndEnds(t *testing.T) {
	s, c := serve(t, Config{Generator: GeneratorConfig{Seed: 1, Plan: DefaultPlan()}, Total: 5000, Retry: 10 * time.Millisecond})
	resp := c.get(t.Context(), "")
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Header.Get("Content-Type") != "text/event-stream; charset=utf-8" || !bytes.HasPrefix(body, []byte(":ok\n\nretry: 10\n\nevent: message\nid: [{")) {
		t.Errorf("the stream opens with %q", body[:100])
	}
	events, _, _ := read(bytes.NewReader(body), 1<<30)
	if int64(len(events)) != s.Frames() {
		t.Fatalf("%d of %d frames", len(events), s.Frames())
	}
	cur := s.Generator().Cursor()
	orders := map[string]bool{}
	for n, e := range events {
		if want := string(cur.Append(nil, int64(n))); e.data != want {
			t.Fatalf("frame %d is %s, want %s", n, e.data, want)
		}
		var parts []position
		if err := json.Unmarshal([]byte(e.id), &parts); err != nil {
			t.Fatalf("id %s: %v", e.id, err)
		}
		if n == len(events)-1 { // the end mark
			parts = parts[:len(parts)-1]
		}
		if len(parts) != 2 {
			t.Fatalf("frame %d of %d has the id %s", n, len(events), e.id)
		}
		orders[parts[0].Topic] = true
		for _, p := range parts {
			at, _ := cur.Position(int64(n))
			switch p.Topic {
			case "eqiad.mediawiki.recentchange":
				if n < len(events)-1 && *p.Timestamp != at+1 {
					t.Fatalf("frame %d at %d has the id %s", n, at, e.id)
				}
			default:
				if p.Offset == nil || *p.Offset != -1 {
					t.Fatalf("the other data centre is at %s", e.id)
				}
			}
		}
	}
	if len(orders) != 2 {
		t.Error("the data centres always stand in the same order")
	}
	// A server that has not sent the last frame yet plays the tail first.
	fresh, fc := serve(t, s.cfg)
	tail := earlier(t, events[len(events)-1].id, DefaultOverlap)
	if resp := fc.get(t.Context(), tail); resp.StatusCode != http.StatusOK || fresh.Frames() != s.Frames() {
		t.Errorf("after a restart of the server: %s", resp.Status)
	} else if again, _, _ := read(resp.Body, 1<<30); len(again) == 0 {
		t.Error("no tail after a restart of the server")
	}
	if resp := fc.get(t.Context(), tail); resp.StatusCode != http.StatusNoContent {
		t.Errorf("after the tail: %s", resp.Status)
	}
	// Having everything, the client is told that there is nothing more.
	if resp := c.get(t.Context(), earlier(t, events[len(events)-1].id, DefaultOverlap)); resp.StatusCode != http.StatusNoContent {
		t.Errorf("after the end: %s", resp.Status)
	}
	// One event short of it, it is not.
	if resp := c.get(t.Context(), earlier(t, events[len(events)-2].id, DefaultOverlap)); resp.StatusCode != http.StatusOK {
		t.Errorf("before the end: %s", resp.Status)
	}
}

// drain reads a stream to its end the way ingestion does: it keeps a position
// for each data centre, resumes with an overlap, drops what it has seen.
func drain(t *testing.T, c *client, overlap time.Duration) (data map[string]int, connections int) {
	t.Helper()
	data = map[string]int{}
	known := map[string]position{}
	for connections = 0; connections < 500; connections++ {
		id := ""
		if len(known) > 0 {
			var parts []position
			for _, p := range known {
				parts = append(parts, p)
			}
			b, err := json.Marshal(parts)
			if err != nil {
				t.Fatal(err)
			}
			id = earlier(t, string(b), overlap)
		}
		resp := c.get(t.Context(), id)
		switch resp.StatusCode {
		case http.StatusNoContent:
			return data, connections
		case http.StatusServiceUnavailable:
			continue
		case http.StatusOK:
		default:
			t.Fatal(resp.Status)
		}
		events, _, _ := read(resp.Body, 1<<30)
		for _, e := range events {
			data[e.data]++
			var parts []position
			if err := json.Unmarshal([]byte(e.id), &parts); err != nil {
				t.Fatal(err)
			}
			for _, p := range parts {
				if p.Timestamp != nil {
					known[p.Topic] = p
				}
			}
		}
	}
	t.Fatal("the stream does not end")
	return nil, 0
}

func TestCutsStallsAndRefusalsLoseNothing(t *testing.T) {
	for seed := range uint64(6) {
		cfg := Config{
			Generator: GeneratorConfig{Seed: seed, SwitchEvery: 700, Plan: Plan{Canaries: 9, Violations: 9, Duplicates: 9, Late: 9}},
			Total:     6000,
			Faults:    Faults{Seed: seed, CutEvery: 800, Unavailable: 2, StallEvery: 1500, StallFor: time.Millisecond},
		}
		s, c := serve(t, cfg)
		data, connections := drain(t, c, DefaultOverlap)
		cur := s.Generator().Cursor()
		want := map[string]bool{}
		for n := range s.Frames() {
			want[string(cur.Append(nil, n))] = true
		}
		for d := range want {
			if data[d] == 0 {
				t.Errorf("seed %d: an event is missing: %s", seed, d)
			}
		}
		if len(data) != len(want) {
			t.Errorf("seed %d: %d distinct frames, want %d", seed, len(data), len(want))
		}
		st := s.Report().Stats
		if st.Cuts < 3 || st.Stalls < 2 || st.Refused != 2*st.Cuts || int64(connections) < st.Cuts {
			t.Errorf("seed %d: %+v in %d connections", seed, st, connections)
		}
		if st.Frames <= s.Frames() {
			t.Errorf("seed %d: no overlap was sent again", seed)
		}
	}
}

func TestSomeCutsComeInTheMiddleOfALine(t *testing.T) {
	middle := 0
	for seed := range uint64(8) {
		_, c := serve(t, Config{Total: 400, Faults: Faults{Seed: seed, CutEvery: 100}})
		body, err := io.ReadAll(c.get(t.Context(), "").Body)
		if err == nil {
			t.Error("the connection ends as if nothing had happened")
		}
		if !bytes.HasSuffix(body, []byte("\n\n")) {
			middle++
		}
	}
	if middle == 0 || middle == 8 {
		t.Errorf("%d of 8 cuts come in the middle of a line", middle)
	}
}

func TestAServerThatWasRestartedGoesOnWhereTheClientAsks(t *testing.T) {
	cfg := Config{Generator: GeneratorConfig{Seed: 3}, Total: 3000, Rate: 1e6}
	_, c := serve(t, cfg)
	first, _, err := read(c.get(t.Context(), "").Body, 1000)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Rate = 50_000 // a fresh server whose own clock has reached nothing yet
	s, c := serve(t, cfg)
	rest, _, _ := read(c.get(t.Context(), earlier(t, first[999].id, 100*time.Millisecond)).Body, 1<<30)
	seen := map[string]bool{}
	for _, e := range append(first, rest...) {
		seen[e.data] = true
	}
	if int64(len(seen)) != s.Frames() {
		t.Errorf("%d of %d events after the restart", len(seen), s.Frames())
	}
}

func TestSinceBeginsAtATimeAndLastEventIDTakesPrecedence(t *testing.T) {
	_, c := serve(t, Config{Total: 5000, Overlap: -1})
	base := c.url
	at := DefaultStart.Add(2 * time.Second)
	for _, since := range []string{fmt.Sprint(at.UnixMilli()), at.Format(time.RFC3339)} {
		c.url = base + "?since=" + since
		events, _, err := read(c.get(t.Context(), "").Body, 1)
		if err != nil || parse(t, []byte(events[0].data)).Meta.DT < "2026-03-01T00:00:02" {
			t.Errorf("since %s begins with %v, %v", since, events, err)
		}
		id := fmt.Sprintf(`[{"topic":"eqiad.mediawiki.recentchange","partition":0,"timestamp":%d}]`, at.Add(time.Second).UnixMilli())
		events, _, err = read(c.get(t.Context(), id).Body, 1)
		if err != nil || parse(t, []byte(events[0].data)).Meta.DT < "2026-03-01T00:00:03" {
			t.Errorf("Last-Event-ID does not take precedence: %v, %v", events, err)
		}
	}
	c.url = base
	// An offset names a frame; "offset -1" alone names nothing.
	id := fmt.Sprintf(`[{"topic":"eqiad.mediawiki.recentchange","partition":0,"offset":%d}]`, offsetBases[0]+77)
	events, _, err := read(c.get(t.Context(), id).Body, 1)
	if err != nil || parse(t, []byte(events[0].data)).Meta.Offset != offsetBases[0]+77 {
		t.Errorf("by offset: %v, %v", events, err)
	}
	events, _, err = read(c.get(t.Context(), `[{"topic":"eqiad.mediawiki.recentchange","partition":0,"offset":-1}]`).Body, 1)
	if err != nil || parse(t, []byte(events[0].data)).Meta.Offset != offsetBases[0] {
		t.Errorf("by offset -1: %v, %v", events, err)
	}
	for _, bad := range []string{"?since=yesterday"} {
		c.url = base + bad
		if resp := c.get(t.Context(), ""); resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s", bad, resp.Status)
		}
	}
	c.url = base
	if resp := c.get(t.Context(), "not json"); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("a broken id: %s", resp.Status)
	}
}

func TestASlowerDataCentresEventIsNotSkipped(t *testing.T) {
	s, c := serve(t, Config{Generator: GeneratorConfig{Seed: 2, SwitchEvery: 100}, Total: 1000})
	cur := s.Generator().Cursor()
	eqiad, _ := cur.Position(50)
	codfw, _ := cur.Position(150)
	id := fmt.Sprintf(`[{"topic":"codfw.mediawiki.recentchange","partition":0,"timestamp":%d},{"topic":"eqiad.mediawiki.recentchange","partition":0,"timestamp":%d}]`, codfw, eqiad)
	events, _, _ := read(c.get(t.Context(), id).Body, 1<<30)
	got := map[string]bool{}
	for _, e := range events {
		got[e.data] = true
	}
	for n := range int64(1000) {
		at, centre := cur.Position(n)
		if centre == 0 && n >= 60 && at >= eqiad || centre == 1 && n >= 160 && at >= codfw {
			if !got[string(cur.Append(nil, n))] {
				t.Fatalf("frame %d is skipped", n)
			}
		}
		if centre == 1 && at < codfw-1000 && got[string(cur.Append(nil, n))] {
			t.Fatalf("frame %d of the other data centre is sent again", n)
		}
	}
}

func TestAFileIsPlayedLineByLineWhateverItHolds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	lines := []string{
		`{"meta":{"id":"1","dt":"2026-03-01T00:00:01Z","topic":"codfw.mediawiki.recentchange"}}`,
		`{"meta":{"id":"2","dt":"2026-03-01T00:00:03Z","topic":"eqiad.mediawiki.recentchange"}}`,
		`{"meta":{"id":"3","dt":"2026-03-01T00:00:02Z"}}`,
		`not JSON at all`,
		`{"meta":{"id":"5","dt":"2026-03-01T00:00:30Z"}}`,
	}
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, c := serve(t, Config{File: path, Overlap: -1})
	events, _, _ := read(c.get(t.Context(), "").Body, 1<<30)
	if len(events) != len(lines) {
		t.Fatalf("%d events", len(events))
	}
	for i, e := range events {
		if e.data != lines[i] {
			t.Errorf("line %d is %s", i, e.data)
		}
	}
	rest, _, _ := read(c.get(t.Context(), earlier(t, events[1].id, 0)).Body, 1<<30)
	if len(rest) != 4 {
		t.Errorf("resumed at the second line: %v", rest)
	}
	if resp := c.get(t.Context(), earlier(t, events[4].id, 0)); resp.StatusCode != http.StatusNoContent {
		t.Errorf("after the last line: %s", resp.Status)
	}
	for _, bad := range []Config{{File: path + ".none"}, {File: path, Total: 3}, {Rate: -1, Faults: Faults{Unavailable: 1, CutEvery: -1}}} {
		if _, err := NewServer(bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

// A recording's times may go back by minutes. A client learns that and resumes
// so much earlier; by its times alone it would be sent the tail for ever.
func TestAClientThatHasTheLastFrameIsDoneHoweverMuchEarlierItResumes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	lines := []string{
		`{"meta":{"id":"1","dt":"2026-03-01T00:00:00Z"}}`,
		`{"meta":{"id":"2","dt":"2026-03-01T00:09:00Z"}}`,
		`{"meta":{"id":"3","dt":"2026-03-01T00:01:00Z"}}`,
		`{"meta":{"id":"4","dt":"2026-03-01T00:10:00Z"}}`,
	}
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	_, c := serve(t, Config{File: path})
	events, _, _ := read(c.get(t.Context(), "").Body, 1<<30)
	if len(events) != len(lines) {
		t.Fatalf("%d events", len(events))
	}
	last := len(events) - 1
	if resp := c.get(t.Context(), earlier(t, events[last].id, 8*time.Minute)); resp.StatusCode != http.StatusNoContent {
		t.Errorf("with the last frame: %s", resp.Status)
	}
	if resp := c.get(t.Context(), events[last].id); resp.StatusCode != http.StatusNoContent {
		t.Errorf("with the last id as it came: %s", resp.Status)
	}
	rest, _, _ := read(c.get(t.Context(), earlier(t, events[last-1].id, 8*time.Minute)).Body, 1<<30)
	if len(rest) == 0 || rest[len(rest)-1].data != lines[last] {
		t.Errorf("without the last frame: %v", rest)
	}
	// The file has grown: the mark is not its end any more.
	if err := os.WriteFile(path, []byte(strings.Join(append(lines, `{"meta":{"id":"5","dt":"2026-03-01T00:11:00Z"}}`), "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	_, c = serve(t, Config{File: path})
	rest, _, _ = read(c.get(t.Context(), earlier(t, events[last].id, 0)).Body, 1<<30)
	if len(rest) == 0 || !strings.Contains(rest[len(rest)-1].data, `"id":"5"`) {
		t.Errorf("after the file has grown: %v", rest)
	}
}

func TestALimitHoldsTheStreamUntilItIsRaised(t *testing.T) {
	s, c := serve(t, Config{Total: 300, Heartbeat: 5 * time.Millisecond})
	s.SetLimit(100)
	body := bufio.NewReaderSize(c.get(t.Context(), "").Body, 1<<20)
	events, _, err := read(body, 100)
	if err != nil || len(events) != 100 {
		t.Fatal(len(events), err)
	}
	// What comes next is a comment, the sign of life.
	if line, err := body.ReadString('\n'); err != nil || line != ":\n" {
		t.Errorf("%q, %v", line, err)
	}
	s.SetLimit(300)
	rest, _, _ := read(body, 1<<30)
	if len(rest) != 200 {
		t.Errorf("%d events after the limit was raised", len(rest))
	}
}

func TestARateLetsNoMoreThroughThanItSays(t *testing.T) {
	clk := &handClock{now: DefaultStart}
	s, _ := serve(t, Config{Rate: 100, Clock: clk})
	for _, step := range []struct {
		add  time.Duration
		want int64
	}{{0, 0}, {time.Second, 100}, {10 * time.Millisecond, 101}, {time.Minute, 6101}} {
		clk.now = clk.now.Add(step.add)
		if got := s.available(); got != step.want {
			t.Errorf("after %s: %d frames", step.add, got)
		}
	}
	s.reach(10_000)
	if got := s.available(); got != 10_000 {
		t.Errorf("after a client asks for frame 10,000: %d", got)
	}
	s.reach(5)
	clk.now = clk.now.Add(time.Second)
	if got := s.available(); got != 10_100 {
		t.Errorf("a client that is behind sets the stream back to %d", got)
	}
}

// handClock stands still until it is moved.
type handClock struct{ now time.Time }

func (c *handClock) Now() time.Time { return c.now }

func (c *handClock) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

func TestASlowClientSlowsTheStreamAndNothingPilesUp(t *testing.T) {
	s, c := serve(t, Config{Generator: GeneratorConfig{Seed: 1}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	body := c.get(ctx, "").Body
	if _, _, err := read(body, 10); err != nil {
		t.Fatal(err)
	}
	// The client stops reading: the server gets stuck in a write as soon as the
	// buffers of the kernel are full, however long we wait.
	stuck := func() int64 {
		last, same := int64(-1), 0
		for same < 20 {
			time.Sleep(5 * time.Millisecond)
			if h := s.stats.highest.Load(); h == last {
				same++
			} else {
				last, same = h, 0
			}
		}
		return last
	}
	if at := stuck(); at > 100_000 {
		t.Errorf("%d frames were taken from the generator for a client that read 10", at)
	}
}

func TestAConnectionIsClosedWhenItIsOldEnough(t *testing.T) {
	_, c := serve(t, Config{CutAfter: 30 * time.Millisecond, Rate: 1000})
	events, _, err := read(c.get(t.Context(), "").Body, 1<<30)
	if err != io.EOF || len(events) == 0 { //nolint:errorlint // a clean end, not a broken connection
		t.Errorf("%d events, %v", len(events), err)
	}
}

func TestPlainJSONHasNoFramesAndTheCountsAreServed(t *testing.T) {
	s, c := serve(t, Config{Generator: GeneratorConfig{Plan: DefaultPlan()}, Total: 500})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || int64(bytes.Count(body, []byte("\n"))) != s.Frames() || body[0] != '{' {
		t.Errorf("%d lines, %v", bytes.Count(body, []byte("\n")), err)
	}
	c.url = strings.TrimSuffix(c.url, Path) + CountsPath
	var r Report
	if err := json.NewDecoder(c.get(t.Context(), "").Body).Decode(&r); err != nil || r.Counts == nil || r.Counts.Events != 500 || r.Stats.Highest != s.Frames() {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestListenServesUntilItIsTold(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, err := Listen(ctx, Config{Total: 10}, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t, r.URL, http.DefaultClient}
	if events, _, _ := read(c.get(t.Context(), "").Body, 1<<30); len(events) != 10 {
		t.Errorf("%d events", len(events))
	}
	cancel()
	if err := r.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := Listen(t.Context(), Config{}, "127.0.0.1:notaport"); err == nil {
		t.Error("an address that is none is accepted")
	}
}

func BenchmarkServer(b *testing.B) {
	s, err := NewServer(Config{Generator: GeneratorConfig{Seed: 1, Plan: DefaultPlan()}})
	if err != nil {
		b.Fatal(err)
	}
	ts := httptest.NewServer(s.Handler())
	defer ts.Close()
	resp, err := http.Get(ts.URL) //nolint:noctx // the server of this very benchmark
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	buf := make([]byte, 1<<20)
	var events, size int64
	for b.Loop() {
		n, err := resp.Body.Read(buf)
		if err != nil {
			b.Fatal(err)
		}
		size += int64(n)
		events += int64(bytes.Count(buf[:n], []byte("\nid: ")))
	}
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(size)/b.Elapsed().Seconds()/1e6, "MB/s")
}
