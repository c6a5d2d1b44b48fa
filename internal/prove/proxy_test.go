package prove

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// counted is a server that counts what it is asked to do.
func counted(t *testing.T) (target string, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		fmt.Fprintf(w, "%s done", r.Method)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, asked
}

func TestADisturbanceDoesWhatItIsNamedAfter(t *testing.T) {
	for _, c := range []struct {
		name  string
		do    func(http.ResponseWriter, *http.Request, http.Handler)
		asked int64
		want  string // of the answer, empty for none
	}{
		{"loses the answer", loseAnswer, 1, ""},
		{"answers an error after doing it", errorAfter(500, "text/plain", "failed"), 1, "500 failed"},
		{"answers in the server's place", refuse(503, "text/plain", "later"), 0, "503 later"},
		{"does it late", delayed(1), 1, "200 POST done"},
		{"claims success", claimSuccess, 1, "200 GET done"},
	} {
		t.Run(c.name, func(t *testing.T) {
			target, asked := counted(t)
			e := &Env{}
			t.Cleanup(func() {
				for _, f := range e.cleanup {
					f()
				}
			})
			d := &disturbance{do: c.do, hits: func(n int64, _ *http.Request) bool { return n == 1 }}
			at, err := e.proxy(target, d)
			if err != nil {
				t.Fatal(err)
			}
			post := func() string {
				resp, err := http.Post(at, "text/plain", strings.NewReader("x"))
				if err != nil {
					return ""
				}
				defer resp.Body.Close()
				body, _ := io.ReadAll(resp.Body)
				return fmt.Sprintf("%d %s", resp.StatusCode, body)
			}
			if got := post(); got != "200 POST done" || asked.Swap(0) != 1 {
				t.Fatalf("switched off: %q", got)
			}
			d.on.Store(true)
			if got := post(); got != c.want || asked.Load() != c.asked || d.done.Load() != 1 {
				t.Errorf("%q, the server was asked %d times; want %q, %d times", got, asked.Load(), c.want, c.asked)
			}
			if got := post(); got != "200 POST done" {
				t.Errorf("a request that is not chosen: %q", got)
			}
		})
	}
}

func TestAFrontCutsBeforeOrAfterTheServerHasGotIt(t *testing.T) {
	for _, forward := range []bool{false, true} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		got := make(chan string, 1)
		go func() {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			text, _ := io.ReadAll(c) // to the end of the client's side
			got <- string(text)
		}()
		e := &Env{}
		f := &front{needle: []byte("commit"), every: 1, forward: forward}
		f.on.Store(true)
		at, err := f.listen(e, ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		fmt.Fprint(c, "COMMIT")
		if line, err := bufio.NewReader(c).ReadString('\n'); err == nil {
			t.Errorf("the client gets %q", line)
		}
		want := ""
		if forward {
			want = "COMMIT"
		}
		if text := <-got; text != want {
			t.Errorf("forward %v: the server got %q, want %q", forward, text, want)
		}
		e.cleanup[0]()
	}
}
