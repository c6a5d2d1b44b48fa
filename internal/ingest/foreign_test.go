package ingest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// samplesDir is the folder of recorded events.
func samplesDir(t testing.TB) string {
	t.Helper()
	dir := filepath.Join("..", "..", "..", "shared", "samples")
	if v := os.Getenv("WEIR_SAMPLES"); v != "" {
		dir = v
	}
	if _, err := os.Stat(filepath.Join(dir, "sse-frames.txt")); err != nil {
		t.Skipf("the recorded frames are not at hand (WEIR_SAMPLES names their folder): %v", err)
	}
	return dir
}

// python starts the foreign server and returns its address.
func python(t *testing.T, frames string) string {
	t.Helper()
	exe, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is missing: the server that is not ours cannot run")
	}
	port := filepath.Join(t.TempDir(), "port")
	cmd := exec.Command(exe, filepath.Join("testdata", "replay.py"), frames, port)
	var out bytes.Buffer
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for range 2000 {
		if b, err := os.ReadFile(port); err == nil {
			return "http://127.0.0.1:" + string(b) + "/v2/stream/recentchange"
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("the server does not start: %s", out.String())
	return ""
}

func TestAServerThatIsNotOursPlaysRecordedFrames(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a python3 server: skipped under -short")
	}
	frames := filepath.Join(samplesDir(t), "sse-frames.txt")
	for _, d := range []Delivery{AtLeastOnce, ExactlyOnce} {
		t.Run(string(d), func(t *testing.T) {
			brokers := fakeKafka(t)
			st, err := Run(context.Background(), testConfig(t, python(t, frames), brokers, d), Deps{})
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]int{}
			f, err := os.Open(frames)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			sc := bufio.NewScanner(f)
			sc.Buffer(nil, 1<<20)
			for sc.Scan() {
				if data, ok := strings.CutPrefix(sc.Text(), "data: "); ok {
					want[data]++
				}
			}
			recorded := len(want)
			got := tally(consume(t, brokers, "wiki.recentchange"))
			for v := range want {
				if got[v] != 1 {
					t.Errorf("%d times in the topic: %.200s", got[v], v)
				}
			}
			external := 0
			for v := range got {
				if strings.Contains(v, `"external"`) {
					external++
				}
			}
			if external != 1 || len(got) != recorded+1 {
				t.Errorf("%d events, %d external, %d recorded", len(got), external, recorded)
			}
			if st.Canaries != 2 || st.Received != int64(recorded)+5 || fmt.Sprint(st.Violations) != "map[wrong_type:2]" {
				t.Errorf("%s", mustJSON(t, st))
			}
		})
	}
}

func TestEveryRecordedEventPassesUnchanged(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(samplesDir(t), "recentchange.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	var text strings.Builder
	for i, l := range lines {
		fmt.Fprintf(&text, "id: %d\r\ndata: %s\r\n\r\n", i, l)
	}
	brokers := fakeKafka(t)
	if _, err := Run(context.Background(), testConfig(t, serve(t, body(text.String())), brokers, AtLeastOnce), Deps{}); err != nil {
		t.Fatal(err)
	}
	got := tally(consume(t, brokers, "wiki.recentchange"))
	for _, l := range lines {
		if got[l] != 1 {
			t.Errorf("%d times: %.200s", got[l], l)
		}
	}
	if len(got) != len(lines) {
		t.Errorf("%d events for %d lines", len(got), len(lines))
	}
}
