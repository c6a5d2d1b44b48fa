package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestEveryCommandHasAManualPageThatRendersWithoutAComplaint(t *testing.T) {
	dir := t.TempDir()
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"man", dir}, &out, &errs); code != 0 {
		t.Fatalf("exit %d: %s", code, errs.String())
	}
	root := newRoot(&globals{})
	for _, cmd := range root.Commands() {
		_, err := os.Stat(filepath.Join(dir, "weir-"+cmd.Name()+".1"))
		if wrong := err != nil; wrong != (cmd.Hidden || cmd.Name() == "help") {
			t.Errorf("weir %s: page there: %v, hidden: %v", cmd.Name(), err == nil, cmd.Hidden)
		}
	}
	page, err := os.ReadFile(filepath.Join(dir, "weir-run.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{".TH \"WEIR\\-RUN\" 1", `\-\-once`, `\-\-log\-level level`, "SIGTERM stops cleanly"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("weir-run.1 lacks %q", want)
		}
	}
	if _, err := exec.LookPath("groff"); err != nil {
		t.Log("groff is missing: the pages were not rendered")
		return
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil || len(pages) < 10 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	for _, p := range pages {
		cmd := exec.Command("groff", "-man", "-Tutf8", "-ww", "-z", p)
		if said, err := cmd.CombinedOutput(); err != nil || len(said) > 0 {
			t.Errorf("%s: %v\n%s", filepath.Base(p), err, said)
		}
	}
}

func TestTheExitCodesOfTheManualPageAreThoseOfTheReference(t *testing.T) {
	reference, err := os.ReadFile("../../docs/REFERENCE.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range exitCodes {
		if !strings.Contains(string(reference), "| "+e.code+" | ") {
			t.Errorf("docs/REFERENCE.md does not list exit code %s", e.code)
		}
	}
}

func TestAReleaseSaysItsVersionCommitAndDate(t *testing.T) {
	defer func(v, r, d string) { Version, Revision, Date = v, r, d }(Version, Revision, Date)
	Version, Revision, Date = "1.2.3", "0123456789abcdef", "2026-01-02T03:04:05Z"
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"version", "--output", "json"}, &out, &errs); code != 0 {
		t.Fatalf("exit %d: %s", code, errs.String())
	}
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"version": Version, "revision": Revision, "date": Date} {
		if got[key] != want {
			t.Errorf("%s is %v, want %s", key, got[key], want)
		}
	}
	out.Reset()
	run(t.Context(), []string{"version"}, &out, &errs)
	if !strings.Contains(out.String(), "weir 1.2.3 (") || !strings.Contains(out.String(), "commit "+Revision+" "+Date) {
		t.Errorf("the text does not say it all: %q", out.String())
	}
}
