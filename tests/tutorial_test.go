package tests

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// block is a piece of code of the tutorial. Its info string says what it is for:
// a language alone, file=NAME, append=NAME or topic=NAME.
type block struct{ language, target, text string }

var codeBlock = regexp.MustCompile("(?ms)^```(\\w+)(?: (\\S+))?\n(.*?)^```$")

func tutorialBlocks(t *testing.T) (out []block) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(repo(t), "docs", "tutorial.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range codeBlock.FindAllStringSubmatch(string(page), -1) {
		out = append(out, block{m[1], m[2], m[3]})
	}
	return out
}

// TestTheTutorialWorksFromTopToBottom writes its files, runs its commands in their
// order, and looks for what it says comes out: each line of a block of text stands
// in the output of the commands before it.
func TestTheTutorialWorksFromTopToBottom(t *testing.T) {
	if os.Getenv("WEIR_TUTORIAL") == "" {
		t.Skip("it proves a pipeline, which takes a minute or more: set WEIR_TUTORIAL=1 (make tutorial)")
	}
	dir := t.TempDir()
	bootstrap, stop := embeddedBroker(t, filepath.Join(t.TempDir(), "kafka"), "orders:1")
	t.Cleanup(stop)
	shell := newShell(t, dir, "KAFKA_BOOTSTRAP="+bootstrap)
	last, ran := "", 0
	for _, b := range tutorialBlocks(t) {
		kind, name, _ := strings.Cut(b.target, "=")
		path := filepath.Join(dir, name)
		switch {
		case kind == "topic":
			publish(t, bootstrap, name, b.text)
		case kind == "file":
			if err := os.WriteFile(path, []byte(b.text), 0o644); err != nil {
				t.Fatal(err)
			}
		case kind == "append":
			old, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, append(old, b.text...), 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		case b.language == "sh":
			last = shell(b.text)
			ran++
		case b.language == "text":
			for line := range strings.Lines(b.text) {
				if want := strings.TrimSpace(line); !strings.Contains(last, want) {
					t.Errorf("%q is not in what came out:\n%s", want, last)
				}
			}
		default:
			t.Errorf("a block of %s %s is not used", b.language, b.target)
		}
	}
	if ran < 8 {
		t.Errorf("only %d blocks of commands were run", ran)
	}
	if _, err := os.Stat(filepath.Join(dir, "data", "proof.json")); err != nil {
		t.Error(err)
	}
}

// newShell runs the lines of blocks one after the other, as a person types them:
// each must succeed.
func newShell(t *testing.T, dir string, env ...string) func(string) string {
	bin := t.TempDir()
	if err := os.Symlink(weirBin(t), filepath.Join(bin, "weir")); err != nil {
		t.Fatal(err)
	}
	return func(block string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", block)
		cmd.Dir = dir
		cmd.Env = append(append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH")), env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s\n%s", err, block, tail(string(out)))
		}
		return string(out)
	}
}

// publish writes each line as a record.
func publish(t *testing.T, bootstrap, topic, lines string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(bootstrap))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for line := range strings.Lines(lines) {
		r := &kgo.Record{Topic: topic, Value: []byte(strings.TrimSpace(line)), Partition: 0}
		if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}
