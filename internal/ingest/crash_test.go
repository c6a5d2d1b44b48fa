package ingest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
)

// childEnv holds a Config as JSON: the test binary then ingests and exits.
const childEnv = "WEIR_TEST_INGEST"

// childMayRestart is the exit of a failure after which a restart is safe.
const childMayRestart = 8

func TestMain(m *testing.M) {
	if v := os.Getenv(childEnv); v != "" {
		os.Exit(child(v))
	}
	os.Exit(m.Run())
}

func child(v string) int {
	var cfg Config
	if err := json.Unmarshal([]byte(v), &cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	st, err := Run(context.Background(), cfg, Deps{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		if failure.Is(err, failure.Runtime) || failure.Is(err, failure.Unreachable) {
			return childMayRestart
		}
		return 1
	}
	_ = json.NewEncoder(os.Stdout).Encode(st)
	return 0
}

// process runs an ingestion in a process of its own and reports whether it
// killed itself at the crash point.
func process(t *testing.T, cfg Config, crashAt string) (killed bool) {
	t.Helper()
	b, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(b), "WEIR_CRASH_AT="+crashAt)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("the process hangs: %s", out)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL {
			return true
		}
	}
	if err != nil && exit != nil && exit.ExitCode() == childMayRestart && crashAt != "" {
		// An exactly-once run stops at an error of its transaction; what counts
		// is that the next one goes on.
		t.Logf("stopped, to be started again: %s", out)
		return false
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return false
}

// finish runs an ingestion to the stream's end.
func finish(t *testing.T, cfg Config, s *stream, cuts ...int) {
	t.Helper()
	s.mu.Lock()
	s.cuts = cuts
	s.mu.Unlock()
	if process(t, cfg, "") {
		t.Fatal("killed without a crash point")
	}
}

// pointsOf are the crash points that a delivery reaches.
func pointsOf(d Delivery) []string {
	if d == ExactlyOnce {
		return []string{fault.IngestReceived, fault.IngestTxnBegin, fault.IngestProduced, fault.IngestAcked, fault.IngestTxnCommit}
	}
	return []string{fault.IngestReceived, fault.IngestProduced, fault.IngestAcked, fault.IngestSaveTemp, fault.IngestSaved}
}

// countsOf are the times of reaching a point at which to kill: early, in the
// middle, late. Some points are reached for each event, some for each batch.
func countsOf(point string) []int {
	if point == fault.IngestReceived || point == fault.IngestProduced {
		return []int{1, 37, 90}
	}
	return []int{1, 2, 3}
}

func TestAProducerKilledAtEveryCrashPointLosesNothingAndInExactlyOnceModeDoublesNothing(t *testing.T) {
	for _, d := range []Delivery{AtLeastOnce, ExactlyOnce} {
		for i, point := range pointsOf(d) {
			t.Run(string(d)+"/"+point, func(t *testing.T) {
				fs, _, _ := frames(uint64(10+i), 120, 8000)
				s := &stream{frames: fs}
				brokers := fakeKafka(t)
				cfg := testConfig(t, serve(t, s), brokers, d)
				kills := 0
				for _, n := range countsOf(point) {
					s.mu.Lock()
					// Cuts make several batches, and so several transactions and saves.
					s.cuts = []int{13, 31, 47, 60, 80, 101}
					s.mu.Unlock()
					if process(t, cfg, fmt.Sprintf("ingest/%s:%d", point, n)) {
						kills++
					}
				}
				if kills == 0 {
					t.Fatal("the crash point was never reached")
				}
				finish(t, cfg, s, 20, 40)
				extra := checkDelivery(t, fs, brokers, d == ExactlyOnce)
				t.Logf("%d kills, %d events sent again", kills, extra)
			})
		}
	}
}

func TestACrashStormEndsWithEveryEventOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("many processes: skipped under -short")
	}
	const seed = 77
	fs, _, _ := frames(seed, 400, 8000)
	s := &stream{frames: fs}
	brokers := fakeKafka(t)
	cfg := testConfig(t, serve(t, s), brokers, ExactlyOnce)
	kills := 0
	for n := range 25 {
		points := pointsOf(ExactlyOnce)
		s.mu.Lock()
		s.cuts = nil
		for c := 10; c < 400; c += 10 + n {
			s.cuts = append(s.cuts, c)
		}
		s.mu.Unlock()
		if process(t, cfg, fmt.Sprintf("%s:%d", points[n%len(points)], 1+n/2)) {
			kills++
		}
	}
	finish(t, cfg, s)
	checkDelivery(t, fs, brokers, true)
	t.Logf("seed %d: %d kills", seed, kills)
	if kills < 10 {
		t.Errorf("only %d of 25 processes were killed", kills)
	}
}
