package cli

import (
	"bytes"
	"context"
	"strings"
	"syscall"
	"testing"
)

func TestWrongCommandLinesEndWithTwoAndSayHowToGoOn(t *testing.T) {
	for line, want := range map[string]string{
		"nosuch":              `unknown command "nosuch"`,
		"runn x":              "Did you mean this?",
		"run":                 "usage: weir run FILE",
		"run a b":             "accepts 1 arg(s)",
		"run --nosuch x":      "unknown flag: --nosuch",
		"demo --events x":     `invalid argument "x" for "--events"`,
		"demo --events -1":    "--events -1: want 0 or more",
		"demo --once":         "add --events N",
		"checkpoint shwo x":   "did you mean show?",
		"completion nosuch":   `unknown command "nosuch" for "weir completion"`,
		"version --output":    "flag needs an argument",
		"version --output x":  "want text or json",
		"run none.yaml":       "there is no such file",
		"checkpoint reset":    "usage: weir checkpoint reset FILE",
		"audit --table a.b":   "needs --topic and --kafka",
		"init --example x no": "there are [minimal wikimedia]",
	} {
		var out, errs bytes.Buffer
		if code := run(context.Background(), strings.Fields(line), &out, &errs); code != 2 {
			t.Errorf("weir %s: exit %d", line, code)
		}
		if !strings.Contains(errs.String(), want) || out.Len() > 0 {
			t.Errorf("weir %s: want %q on standard error only\n%s%s", line, want, out.String(), errs.String())
		}
	}
}

func TestASignalIsACleanStopOnlyForWhatGoesOnUntilStopped(t *testing.T) {
	root := newRoot(&globals{})
	for line, want := range map[string]int{"run": 0, "ingest": 0, "demo": 0, "replay-sse": 0, "catalog serve": 0, "audit": 143, "status": 143} {
		cmd, _, err := root.Find(strings.Fields(line))
		if err != nil {
			t.Fatal(err)
		}
		if got := signalled(syscall.SIGTERM).exitCode(cmd); got != want {
			t.Errorf("weir %s: exit %d after SIGTERM, not %d", line, got, want)
		}
	}
}
