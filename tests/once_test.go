package tests

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
)

// onceLine is the last line of `weir run --once --output json`.
type onceLine struct {
	Completed bool   `json:"completed"`
	ExitCode  int    `json:"exit_code"`
	Failure   string `json:"failure"`
	Retry     bool   `json:"retry"`
	Queries   []struct {
		Query  string `json:"query_name"`
		Input  int64  `json:"input_rows"`
		Output int64  `json:"output_rows"`
	} `json:"queries"`
}

func lastLine(t *testing.T, out string) (last onceLine) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil {
		t.Fatalf("the last line is no JSON: %v\n%s", err, tail(out))
	}
	return last
}

// TestAnAvailableNowRunThatIsStoppedIsNoSuccessAndItsRetryIsExact stops runs
// wherever they are. An orchestrator that took the stopped run for a finished
// one would go on with half of the rows.
func TestAnAvailableNowRunThatIsStoppedIsNoSuccessAndItsRetryIsExact(t *testing.T) {
	l := newLab(t, 100)
	l.write(100) // many small batches
	l.run(exitOK)
	stopped := 0
	for try := 0; try < 20 && stopped < 2; try++ {
		l.produce(6000)
		before := newest(l.checkpoint("bronze", "commits"))
		p := start(t, nil, "run", l.file, "--once", "--output", "json")
		waitFor(t, "a batch of this run", func() bool { return newest(l.checkpoint("bronze", "commits")) > before })
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
		code := p.wait()
		last := lastLine(t, p.out.String())
		switch code {
		case 143:
			stopped++
			if last.Completed || last.Failure != "stopped" || last.ExitCode != 143 || !last.Retry {
				t.Fatalf("stopped by SIGTERM, and the last line says %+v", last)
			}
		case exitOK:
			if !last.Completed {
				t.Fatalf("exit 0, and the last line says %+v", last)
			}
		default:
			t.Fatalf("exit %d\n%s", code, tail(p.errs.String()))
		}
	}
	if stopped == 0 {
		t.Fatal("no run was stopped before it had worked everything off")
	}
	out, _ := l.run(exitOK, "--output", "json")
	if last := lastLine(t, out); !last.Completed || last.Retry || last.ExitCode != 0 {
		t.Errorf("the run that worked the rest off says %+v", last)
	}
	out, _ = l.run(exitOK, "--output", "json")
	if last := lastLine(t, out); !last.Completed || len(last.Queries) != 0 {
		t.Errorf("the run that had nothing to do says %+v", last)
	}
	l.exact()
}
