package tests

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestScriptsCanAskWhetherAContractBreaksEvents: the exit codes and the JSON that
// a check before a release goes by.
func TestScriptsCanAskWhetherAContractBreaksEvents(t *testing.T) {
	dir := t.TempDir()
	file := func(name, body string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	v1 := file("v1.json", `{"type":"object","required":["id"],"properties":{"id":{"type":"string"},"n":{"type":["integer","null"]}}}`)
	wider := file("v2.json", `{"type":"object","required":["id"],"properties":{"id":{"type":"string"},"n":{"type":["number","null"]}}}`)
	stricter := file("v3.json", `{"type":"object","required":["id","n"],"properties":{"id":{"type":"string"},"n":{"type":"integer"}}}`)
	other := file("v4.json", `{"type":"object","required":["id"],"properties":{"id":{"type":"string"},"n":{"anyOf":[{"type":"integer"},{"type":"null"}]}}}`)
	for _, c := range []struct {
		now                           string
		code                          int
		breaking, accepted, undecided int
	}{{v1, exitOK, 0, 0, 0}, {wider, exitOK, 0, 1, 0}, {stricter, exitSchema, 2, 0, 0}, {other, 10, 0, 0, 1}} {
		out, errs, code := weir(t, nil, "contract", "diff", v1, c.now, "--output", "json")
		var d struct {
			Compatible bool
			Breaking   []struct {
				Path, Change string
				Example      map[string]any
			}
			Accepted, Undecided []struct{ Path, Change string }
		}
		if err := json.Unmarshal([]byte(out), &d); err != nil || code != c.code {
			t.Fatalf("%s: exit %d, %v\n%s\n%s", c.now, code, err, out, errs)
		}
		if len(d.Breaking) != c.breaking || len(d.Accepted) != c.accepted || len(d.Undecided) != c.undecided || d.Compatible != (c.code == exitOK) {
			t.Errorf("%s: %s", c.now, out)
		}
		for _, b := range d.Breaking {
			if _, ok := b.Example["id"]; !ok {
				t.Errorf("%s: the example of %s %s is no event of the old contract: %v", c.now, b.Path, b.Change, b.Example)
			}
		}
	}
	out, _, _ := weir(t, nil, "contract", "diff", v1, stricter)
	for _, want := range []string{"breaking: accepted by ", "/n: has to be there", "/n: null is rejected", `{"id":`} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	if _, errs, code := weir(t, nil, "contract", "diff", v1, filepath.Join(dir, "none.json")); code != exitConfig || !strings.Contains(errs, "none.json") {
		t.Errorf("a missing file: exit %d\n%s", code, errs)
	}
}
