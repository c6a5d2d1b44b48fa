package tests

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAUsersOwnPipelineIsProvedOnACopy: nothing is written to the user's topics
// and folders.
func TestAUsersOwnPipelineIsProvedOnACopy(t *testing.T) {
	l := newLab(t, 3000)
	args := []string{"prove", "--pipeline", l.file, "--dir", t.TempDir(), "--output", "json", "--embedded-only", "pipeline-silver"}
	stdout, stderr, code := weir(t, nil, args...)
	if code != exitOK {
		t.Fatalf("exit %d\n%s", code, tail(stderr))
	}
	var report struct {
		Scenarios []struct {
			Name, Outcome string
			Kills         int
			Observed      map[string]any
			Remarks       []string
		}
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Scenarios) != 1 {
		t.Fatalf("%d scenarios\n%s", len(report.Scenarios), stdout)
	}
	for _, s := range report.Scenarios {
		if s.Outcome != "proved" || s.Kills < 8 {
			t.Errorf("%s: %s with %d kills: %v %v", s.Name, s.Outcome, s.Kills, s.Observed, s.Remarks)
		}
	}
	topics, err := l.admin().ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range topics.Sorted() {
		if strings.HasPrefix(d.Topic, "prove-") {
			t.Errorf("the user's broker has the topic %s", d.Topic)
		}
	}
	if _, err := os.Stat(filepath.Join(l.dir, "warehouse")); err == nil {
		t.Error("the user's folders were written to")
	}
}
