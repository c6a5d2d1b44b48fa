package tests

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const exitChanges = 11

// planned is what this package reads of `weir plan --output json`.
type planned struct {
	Changes  bool `json:"changes"`
	ExitCode int  `json:"exit_code"`
	Queries  []struct {
		Query, Status, Outcome, Position string
		Waiting                          int64
		NextBatch                        int64 `json:"next_batch"`
		PendingBatch                     int64 `json:"pending_batch"`
		Refusal                          *struct{ Message string }
		State                            []struct{ Operator, Fate, From string }
		Tables                           []struct {
			Table   string
			Create  bool
			Columns []struct{ Kind, Column, From, To string }
		}
	}
}

// plan asks what a start would do, and checks that nothing was touched.
func (l *lab) planned(want int, args ...string) planned {
	l.t.Helper()
	before := l.contents()
	out, errs, code := weir(l.t, nil, append([]string{"plan", l.file, "--output", "json"}, args...)...)
	var p planned
	if err := json.Unmarshal([]byte(out), &p); err != nil || code != want || p.ExitCode != want {
		l.t.Fatalf("weir plan: exit %d, want %d, %v\n%s\n%s", code, want, err, out, tail(errs))
	}
	if now := l.contents(); !maps.Equal(now, before) {
		for path, sum := range now {
			if before[path] != sum {
				l.t.Errorf("a plan has changed %s", path)
			}
		}
		l.t.FailNow()
	}
	return p
}

// contents are the files of the lab but the broker's, by their hashes.
func (l *lab) contents() map[string]string {
	l.t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(l.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && d.Name() == "kafka" {
			if d != nil && d.IsDir() {
				return fs.SkipDir
			}
			return err
		}
		// The catalog is compared by its rows: SQLite moves its log about for readers too.
		if d.IsDir() || strings.HasPrefix(path, l.catalog()) {
			return nil
		}
		b, err := os.ReadFile(path)
		out[path] = fmt.Sprintf("%x", sha256.Sum256(b))
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	if _, err := os.Stat(l.catalog()); err != nil {
		return out
	}
	for _, table := range []string{labBronze, labSilver, labDead} {
		out[table] = l.pointer(table)
	}
	return out
}

func TestAPlanOfAPipelineSaysWhatItsStartThenDoes(t *testing.T) {
	l := newLab(t, 200)
	p := l.planned(exitChanges)
	for i, want := range []string{"fresh", "fresh"} {
		if q := p.Queries[i]; q.Status != "new" || q.Outcome != want || !q.Tables[0].Create {
			t.Errorf("before the first start: %+v", q)
		}
	}
	if p.Queries[0].Waiting != 200 || p.Queries[1].Waiting != -1 {
		t.Errorf("waiting: %+v", p.Queries)
	}
	l.run(exitOK)
	if p = l.planned(exitOK); p.Changes || p.Queries[1].Status != "unchanged" || p.Queries[1].State[0].Fate != "keep" {
		t.Errorf("after it: %+v", p)
	}

	l.produce(100)
	l.crash("silver/stage.done:1")
	l.edit(columnKind, columnKind+columnAdded)
	l.edit(columnAt, columnRename)
	p = l.planned(exitChanges)
	silver := p.Queries[1]
	if got := fmt.Sprint(silver.Tables[0].Columns); silver.Status != "changed" || silver.Outcome != "rerun" || silver.State[0].Fate != "keep" || silver.PendingBatch < 0 ||
		got != "[{add comment  string} {rename written_at processed_at written_at}]" {
		t.Errorf("with two columns changed and a batch begun: %+v", silver)
	}
	out, _, _ := weir(t, nil, "plan", l.file)
	for _, want := range []string{"~ silver → silver.edits: changed", "rename processed_at to written_at", "dedup is kept", "= bronze → bronze.events: unchanged", "nothing was changed"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	l.remove(l.checkpoint("silver"))
	if q := l.planned(exitChanges).Queries[1]; q.Outcome != "adopt" || q.State[0].Fate != "rebuild" || q.State[0].From != labSilver {
		t.Errorf("without the checkpoint: %+v", q)
	}
	_, errs := l.run(exitOK)
	if !strings.Contains(errs, "adopt") && !strings.Contains(errs, "the checkpoint is gone") {
		t.Errorf("the start:\n%s", tail(errs))
	}
	l.planned(exitOK)

	l.edit(columnAdded, "")
	p = l.planned(exitSchema)
	_, errs = l.run(exitSchema)
	if r := p.Queries[1].Refusal; r == nil || !strings.Contains(errs, r.Message) {
		t.Errorf("planned %+v, the start says\n%s", r, tail(errs))
	}
	l.exact()
}
