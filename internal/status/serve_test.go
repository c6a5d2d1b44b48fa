package status

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

const testToken = "0123456789abcdef0123456789abcdef"

func TestAnAddressThatOthersReachNeedsAToken(t *testing.T) {
	b, _ := newTestBoard(t, Facts{})
	for _, c := range []struct{ listen, token, say string }{
		{"0.0.0.0:0", "", "no token is set"},
		{":0", "", "no token is set"},
		{"[::]:0", "", "no token is set"},
		{"example.org:0", "", "no token is set"},
		{"0.0.0.0:0", "short", "shorter than"},
		{"nonsense", "", "not an address"},
		{"127.0.0.1:http-alt", "", "not an address"},
		{"127.0.0.1:70000", "", "not an address"},
	} {
		s, err := Serve(b, ServeOptions{Listen: c.listen, Token: c.token})
		if err == nil {
			_ = s.Close()
			t.Fatalf("%s was opened", c.listen)
		}
		if failure.ClassOf(err) != failure.Config || !strings.Contains(err.Error(), c.say) || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("%s: %v", c.listen, err)
		}
	}
}

func TestAPortInUseIsReplacedOnlyWhereNobodyAskedForIt(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b, _ := newTestBoard(t, Facts{})
	if _, err := Serve(b, ServeOptions{Listen: l.Addr().String()}); failure.ClassOf(err) != failure.Config || !strings.Contains(err.Error(), "another program") {
		t.Errorf("a port in use: %v", err)
	}
	s, err := Serve(b, ServeOptions{Listen: l.Addr().String(), FreePort: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if strings.Contains(s.URL(), l.Addr().String()) || !strings.HasPrefix(s.URL(), "http://127.0.0.1:") {
		t.Errorf("it is at %s", s.URL())
	}
}

func TestANameThatPointsHereIsNotThisMachine(t *testing.T) {
	b, _ := newTestBoard(t, Facts{})
	h := handler(b, "", false)
	for host, want := range map[string]int{
		"localhost:8080": 200, "localhost": 200, "LOCALHOST.": 200, "127.0.0.1:8080": 200, "127.0.0.2": 200, "[::1]:8080": 200, "weir.localhost:1": 200,
		"evil.example:8080": 421, "192.168.1.7:8080": 421, "localhost.evil.example": 421, "127.0.0.1.evil.example": 421, "": 421, "0.0.0.0:8080": 421,
	} {
		if got := request(t, h, "GET", "/api/status", map[string]string{"Host": host}).StatusCode; got != want {
			t.Errorf("Host %q: %d, want %d", host, got, want)
		}
	}
}

func TestTheTokenIsAskedOfEveryReader(t *testing.T) {
	b, _ := newTestBoard(t, Facts{})
	h := handler(b, testToken, true)
	for _, path := range []string{"/", "/events", "/api/status", "/api/batches", "/metrics", "/assets/page.js", "/debug/pprof/", "/nothing"} {
		for _, header := range []map[string]string{nil, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer "}, {"Authorization": "Basic " + testToken},
			{"Cookie": "weir_status_8080=" + testToken}, {"Cookie": "weir_status_8080="}} {
			if got := request(t, h, "GET", path, header).StatusCode; got != http.StatusUnauthorized {
				t.Errorf("%s with %v: %d", path, header, got)
			}
		}
	}
	for _, header := range []map[string]string{
		{"Authorization": "Bearer " + testToken}, {"Authorization": "bearer " + testToken, "Host": "status.example.org"},
	} {
		if got := request(t, h, "GET", "/api/status", header).StatusCode; got != http.StatusOK {
			t.Errorf("with %v: %d", header, got)
		}
	}
}

func TestATokenInTheURLBecomesACookieAndVanishes(t *testing.T) {
	b, _ := newTestBoard(t, Facts{})
	h := handler(b, testToken, false)
	r := request(t, h, "GET", "/?token="+testToken+"&x=1", nil)
	cookies := r.Cookies()
	if r.StatusCode != http.StatusSeeOther || r.Header.Get("Location") != "/?x=1" || len(cookies) != 1 {
		t.Fatalf("%d to %q with %v", r.StatusCode, r.Header.Get("Location"), cookies)
	}
	c := cookies[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || strings.Contains(c.Value, testToken) {
		t.Errorf("the cookie is %v", c)
	}
	if got := request(t, h, "GET", "/", map[string]string{"Cookie": c.Name + "=" + c.Value}).StatusCode; got != http.StatusOK {
		t.Errorf("with the cookie: %d", got)
	}
	for _, path := range []string{"/?token=wrong", "/?token=", "/?token=" + testToken + "&token=x"} {
		if r := request(t, h, "GET", path, nil); r.StatusCode != http.StatusUnauthorized || len(r.Cookies()) != 0 {
			t.Errorf("%s: %d", path, r.StatusCode)
		}
	}
	for _, path := range []string{"//evil.example/?token=" + testToken, "/%5cevil.example/?token=" + testToken} {
		if to := request(t, h, "GET", path, nil).Header.Get("Location"); strings.HasPrefix(to, "//") || strings.HasPrefix(to, `/\`) || strings.Contains(to, "://") {
			t.Errorf("%s leads to %s", path, to)
		}
	}
}

func TestProbesWithoutTheTokenGiveTheCodeAndNothingElse(t *testing.T) {
	b, _ := newTestBoard(t, Facts{})
	h := handler(b, testToken, false)
	r := request(t, h, "GET", "/readyz", nil)
	if text := body(t, r); r.StatusCode != http.StatusServiceUnavailable || strings.Contains(text, "bronze") {
		t.Errorf("%d %s", r.StatusCode, text)
	}
	if r := request(t, h, "GET", "/livez", nil); r.StatusCode != http.StatusOK {
		t.Errorf("%d", r.StatusCode)
	}
	r = request(t, h, "GET", "/readyz", map[string]string{"Authorization": "Bearer " + testToken})
	if text := body(t, r); r.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, "bronze") {
		t.Errorf("with the token: %d %s", r.StatusCode, text)
	}
}

func TestNothingCanBeChangedAndEveryAnswerIsGuarded(t *testing.T) {
	b, _ := newTestBoard(t, Facts{})
	h := handler(b, "", false)
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"} {
		for _, path := range []string{"/", "/api/status", "/livez", "/metrics"} {
			if got := request(t, h, method, path, nil).StatusCode; got != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d", method, path, got)
			}
		}
	}
	for _, path := range []string{"/", "/api/status", "/metrics", "/assets/page.css", "/nothing"} {
		r := request(t, h, "GET", path, nil)
		for k, v := range securityHeaders {
			if r.Header.Get(k) != v {
				t.Errorf("%s: %s is %q", path, k, r.Header.Get(k))
			}
		}
		if r.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: other origins may read it", path)
		}
	}
	for path, want := range map[string]int{"/assets/page.html": 404, "/assets/fragments.html": 404, "/assets/..%2fboard.go": 404, "/debug/pprof/": 404, "/debug/pprof/heap": 404} {
		if got := request(t, h, "GET", path, nil).StatusCode; got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
	if got := request(t, handler(b, "", true), "GET", "/debug/pprof/heap?debug=1", nil).StatusCode; got != http.StatusOK {
		t.Errorf("profiles with the flag: %d", got)
	}
}

// outside is anything that a page would load from elsewhere or run in place.
var outside = regexp.MustCompile(`(?i)<script(?:>| (?:[^s]|s[^r]))|<style|\sstyle\s*=|\son[a-z]+\s*=\s*["']|(?:src|href)\s*=\s*["']?(?:https?:|//|data:|javascript:)|@import|url\(`)

func TestThePageIsWholeInItself(t *testing.T) {
	b, clk := newTestBoard(t, Facts{})
	commit(b, clk, "bronze", 0, 10)
	h := handler(b, "", false)
	page := body(t, request(t, h, "GET", "/", nil))
	css := body(t, request(t, h, "GET", "/assets/page.css", nil))
	if found := outside.FindString(page); found != "" {
		t.Errorf("the page has %q", found)
	}
	if found := outside.FindString(css); found != "" {
		t.Errorf("the style sheet has %q", found)
	}
	for _, m := range regexp.MustCompile(`(?:src|href)="(/[^"#]+)`).FindAllStringSubmatch(page, -1) {
		if got := request(t, h, "GET", m[1], nil).StatusCode; got != http.StatusOK && got != http.StatusServiceUnavailable {
			t.Errorf("the page points to %s, which gives %d", m[1], got)
		}
	}
}

func TestWhateverIsInARecordComesOutAsText(t *testing.T) {
	b, clk := newTestBoard(t, Facts{DeadLetters: func(context.Context, int) ([]DeadLetter, error) {
		return []DeadLetter{{
			Where: "silver.edits_dead_letter", Topic: hostile, Reason: hostile, Detail: hostile, Key: hostile,
			Snippet: hostile + strings.Repeat("payload ", 1000), At: time.Unix(1, 0),
		}}, nil
	}})
	commit(b, clk, "bronze", 0, 10)
	b.Alert("bronze", hostile)
	b.Ended("silver", failure.New(failure.Runtime, "%s", hostile))
	h := handler(b, "", false)
	page := body(t, request(t, h, "GET", "/", nil))
	patch := string(encodePatch(wholePatch(newView(b, t.Context()), fragments(newView(b, t.Context())))))
	var back struct{ Fragments map[string]string }
	if err := json.Unmarshal([]byte(patch), &back); err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{"page": page}
	for id, html := range back.Fragments {
		texts["fragment "+id] = html
	}
	for name, html := range texts {
		if strings.Contains(html, "<img") || strings.Contains(html, "<script>") || strings.Contains(html, "</pre><") {
			t.Errorf("%s has markup from a record", name)
		}
	}
	if !strings.Contains(page, "&lt;img src=x") {
		t.Error("the sample is not on the page")
	}
	if n := strings.Count(body(t, request(t, h, "GET", "/api/status", nil)), "payload"); n > maxSnippetBytes/len("payload ") {
		t.Errorf("the API gives %d words of the payload", n)
	}
}

func TestNothingIsLookedUpWhileNobodyLooksAndSeldomWhileSomebodyDoes(t *testing.T) {
	var tables, brokers, samples atomic.Int64
	b, clk := newTestBoard(t, Facts{
		Tables: func(context.Context) ([]Table, error) { tables.Add(1); return nil, nil },
		Broker: func(context.Context, map[string]json.RawMessage) (Broker, error) {
			brokers.Add(1)
			return Broker{}, nil
		},
		DeadLetters: func(context.Context, int) ([]DeadLetter, error) { samples.Add(1); return nil, nil },
	})
	h := handler(b, "", false)
	for range 100 {
		clk.move(time.Second)
		b.Idle("bronze")
	}
	if n := tables.Load() + brokers.Load() + samples.Load(); n != 0 {
		t.Fatalf("%d look-ups while nobody looks", n)
	}
	for range 60 {
		clk.move(time.Second)
		for _, path := range []string{"/", "/api/status", "/metrics", "/readyz", "/livez"} {
			request(t, h, "GET", path, nil)
		}
	}
	if n := tables.Load(); n != 12 {
		t.Errorf("the tables were looked at %d times in 60 s, want one in 5 s", n)
	}
	if n := brokers.Load(); n != 30 {
		t.Errorf("the broker was asked %d times in 60 s, want one in 2 s", n)
	}
	if n := samples.Load(); n != 1 {
		t.Errorf("samples were read %d times although no dead letter came", n)
	}
}

func TestAFactThatCannotBeHadDelaysNobodyAndIsShown(t *testing.T) {
	release := make(chan struct{})
	b, _ := newTestBoard(t, Facts{
		Broker: func(ctx context.Context, _ map[string]json.RawMessage) (Broker, error) {
			select {
			case <-ctx.Done():
			case <-release:
			}
			return Broker{}, errBroker
		},
	})
	m := b.model(t.Context(), all) // waits for lookupPatience, not for the broker
	if len(m.Errors) != 0 {
		t.Errorf("errors %v before the answer", m.Errors)
	}
	close(release)
	b.asking.Wait()
	if m = b.model(t.Context(), nothing); len(m.Errors) != 1 || m.Errors[0] != errBroker.Error() {
		t.Errorf("errors %v", m.Errors)
	}
}

// events reads server-sent events.
func events(t *testing.T, url string) (next func() (name, data string), done func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"events", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		t.Fatalf("events: %s", res.Status)
	}
	r := bufio.NewReader(res.Body)
	return func() (name, data string) {
			for {
				line, err := r.ReadString('\n')
				if err != nil {
					return "", ""
				}
				switch line = strings.TrimSuffix(line, "\n"); {
				case line == "":
					return name, data
				case strings.HasPrefix(line, "event: "):
					name = line[len("event: "):]
				case strings.HasPrefix(line, "data: "):
					data = line[len("data: "):]
				}
			}
		}, func() {
			cancel()
			_ = res.Body.Close()
		}
}

func TestAnOpenPageGetsTheWholeOnceThenChangesAndAGoodbye(t *testing.T) {
	b, clk := newTestBoard(t, Facts{})
	b.o.Clock = quickClock{}
	s, err := Serve(b, ServeOptions{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	next, done := events(t, s.URL())
	defer done()
	var first, second patch
	if name, data := next(); name != "patch" || json.Unmarshal([]byte(data), &first) != nil || !first.Whole {
		t.Fatalf("first event %s %+v", name, first)
	}
	if len(first.Fragments) != len(fragmentNames) || len(first.Series) != 2 {
		t.Errorf("the first patch has %d fragments and %d lines", len(first.Fragments), len(first.Series))
	}
	clk.move(time.Second)
	commit(b, clk, "bronze", 7, 10)
	for !strings.Contains(second.Fragments["queries"], "id-of-bronze") && !strings.Contains(second.Fragments["batches"], ">7<") {
		second = patch{}
		if name, data := next(); name != "patch" || json.Unmarshal([]byte(data), &second) != nil {
			t.Fatalf("event %s", name)
		}
	}
	if second.Whole || second.Fragments["tables"] != "" {
		t.Errorf("the second patch repeats what has not changed")
	}
	b.Ended("bronze", errBroker)
	go s.Close()
	last, end := "", ""
	for end == "" {
		name, data := next()
		switch name {
		case "patch":
			last = data
		default:
			end = name
		}
	}
	if end != "bye" || !strings.Contains(last, errBroker.Error()) {
		t.Errorf("the end is %q after %.200s", end, last)
	}
}

// quickClock is the machine's clock with short waits.
type quickClock struct{ clock.System }

func (quickClock) Sleep(ctx context.Context, d time.Duration) error {
	return clock.System{}.Sleep(ctx, d/50)
}

func TestOpenPagesAreBoundedAndTheLastOneEndsTheRendering(t *testing.T) {
	b, _ := newTestBoard(t, Facts{})
	h := newHub(b)
	defer h.close()
	var open []*watcher
	for range maxWatchers {
		open = append(open, h.join())
	}
	if h.join() != nil {
		t.Error("one page too many was let in")
	}
	for _, w := range open {
		if w == nil {
			t.Fatal("a page was refused below the bound")
		}
		h.leave(w)
	}
	h.loops.Wait() // a loop that goes on without watchers fails by the test's time-out
}

func TestAPageThatIsBehindGetsTheWholeAgain(t *testing.T) {
	b, _ := newTestBoard(t, Facts{})
	h := newHub(b)
	w := &watcher{out: make(chan []byte, patchesAhead), fresh: true}
	h.watchers[w] = true
	v := newView(b, t.Context())
	now := fragments(v)
	for range patchesAhead + 3 {
		h.send(v, now, now)
	}
	if !w.fresh {
		t.Fatal("a page that lost a patch would go on with holes")
	}
	for range patchesAhead {
		<-w.out
	}
	h.send(v, now, now)
	var p patch
	if err := json.Unmarshal(<-w.out, &p); err != nil || !p.Whole {
		t.Errorf("%v: whole %v", err, p.Whole)
	}
}
