package engine_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/checkpoint"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/operator"
)

// planCase is a world as a start finds it.
type planCase struct {
	what string
	make func(t *testing.T) *world
	mods []setup
	want engine.PlanStatus
}

func ready(t *testing.T) *world {
	w := newWorld(t, 40).withDeadLetters()
	w.limit = 20
	w.must()
	w.kafka.produce(0, 30)
	return w
}

func without(w *world, gone func(key string) bool) {
	w.t.Helper()
	files, err := w.disk.Files(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	maps.DeleteFunc(files, func(k string, _ []byte) bool { return gone(k) })
	if err := w.disk.SetFiles(w.t.Context(), files); err != nil {
		w.t.Fatal(err)
	}
	w.reboot(false)
}

func planCases() []planCase {
	elsewhere := func(q *engine.Query, _ *fakeSource) {
		q.Options.InstanceID, q.Options.Lease = "there", 10*time.Second
		q.Checkpoint = objstore.NewMemory(q.Clock)
	}
	fail := func(q *engine.Query, _ *fakeSource) { q.Options.OnLostCheckpoint = checkpoint.Fail }
	restart := func(q *engine.Query, _ *fakeSource) { q.Options.OnLostCheckpoint = checkpoint.Restart }
	changed := func(w *world, cfg operator.Config, more ...operator.Column) *world {
		w.transform = func() operator.Transform { return w.parsing(cfg, more...) }
		return w
	}
	on := func(f func(w *world)) func(t *testing.T) *world {
		return func(t *testing.T) *world {
			w := ready(t)
			f(w)
			return w
		}
	}
	return []planCase{
		{"never started", func(t *testing.T) *world { return newWorld(t, 40).withDeadLetters() }, nil, engine.PlanNew},
		{"as it was", ready, nil, engine.PlanUnchanged},
		{"nothing new to read", func(t *testing.T) *world {
			w := newWorld(t, 10).withDeadLetters()
			w.must()
			return w
		}, nil, engine.PlanUnchanged},
		{"a batch planned", on(func(w *world) { w.killedAt("lake.main commit", 1) }), nil, engine.PlanUnchanged},
		{"a batch landed", on(func(w *world) { w.killedAt("link commits/~temp commits/", 1) }), nil, engine.PlanUnchanged},
		{"the checkpoint is gone", on(func(w *world) { w.disk.Wipe(); w.reboot(false) }), nil, engine.PlanChanged},
		{"the checkpoint is gone, fail", on(func(w *world) { w.disk.Wipe(); w.reboot(false) }), []setup{fail}, engine.PlanRefused},
		{"the checkpoint is gone, restart", on(func(w *world) { w.disk.Wipe(); w.reboot(false) }), []setup{restart}, engine.PlanChanged},
		{"the last commit is gone", on(func(w *world) { without(w, func(k string) bool { return strings.HasPrefix(k, "commits/3") }) }), nil, ""},
		{"a commit log that is gone alone", on(func(w *world) { without(w, func(k string) bool { return strings.HasPrefix(k, "commits/") }) }), nil, engine.PlanRefused},
		{"state is gone", on(func(w *world) { without(w, func(k string) bool { return strings.HasPrefix(k, "state/") }) }), nil, engine.PlanChanged},
		{"a column more", on(func(w *world) {
			changed(w, operator.Config{}, operator.Column{Name: "again", Path: "$.kind", Type: "string"})
		}), nil, engine.PlanChanged},
		{"a side table more", func(t *testing.T) *world {
			w := ready(t)
			w.side.drop()
			return w
		}, nil, ""},
		{"the topic is another one", on(func(w *world) { w.kafka.recreate() }), nil, engine.PlanRefused},
		{"records are gone", on(func(w *world) { w.kafka.lose(0, 45) }), nil, engine.PlanRefused},
		{"records are gone and may be", on(func(w *world) { w.kafka.lose(0, 45) }),
			[]setup{func(q *engine.Query, _ *fakeSource) { q.Options.FailOnDataLoss = false }}, engine.PlanUnchanged},
		{"the table was rolled back", on(func(w *world) { w.main.rollBack(1) }), nil, engine.PlanRefused},
		{"the table is gone", on(func(w *world) { w.main.drop() }), nil, engine.PlanRefused},
		{"another instance held it a moment ago", ready, []setup{elsewhere}, engine.PlanChanged},
		{"another name", on(func(*world) {}), []setup{func(q *engine.Query, _ *fakeSource) {
			q.Name = "edits-v2"
			q.Outputs[0].Sink = &memSink{t: q.Outputs[0].Sink.(*memSink).t, query: q.Name}
			q.Outputs[1].Sink = &memSink{t: q.Outputs[1].Sink.(*memSink).t, query: q.Name, side: true}
			q.Checkpoint = objstore.NewMemory(q.Clock)
		}}, engine.PlanRefused},
	}
}

// TestAPlanSaysWhatTheStartThenDoesAndDoesNothingItself: the same world is planned
// and then started; what the plan said is compared with what came of it.
func TestAPlanSaysWhatTheStartThenDoesAndDoesNothingItself(t *testing.T) {
	statuses := map[engine.PlanStatus]bool{}
	for _, c := range planCases() {
		t.Run(c.what, func(t *testing.T) {
			w := c.make(t)
			w.alerts, w.rows = nil, nil
			w.power.restart(-1)
			before := w.everything()
			q := w.query(c.mods...)
			p, err := q.Plan(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			// What a decision is made from is synced first; that writes nothing.
			written := slices.DeleteFunc(slices.Clone(w.power.ops), func(op string) bool { return strings.HasPrefix(op, "checkpoint sync") })
			if now := w.everything(); !reflect.DeepEqual(now, before) || len(written) > 0 || len(w.alerts) > 0 {
				t.Fatalf("the plan changed something: %q, alerts %q", w.power.ops, w.alerts)
			}
			statuses[p.Status] = true
			if c.want != "" && p.Status != c.want {
				t.Errorf("%s, want %s: %+v", p.Status, c.want, p)
			}
			var log bytes.Buffer
			err = w.run(append(c.mods, func(q *engine.Query, _ *fakeSource) {
				q.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelInfo}))
			})...)
			w.compare(p, err, log.String())
		})
	}
	for _, s := range []engine.PlanStatus{engine.PlanNew, engine.PlanChanged, engine.PlanUnchanged, engine.PlanRefused} {
		if !statuses[s] {
			t.Errorf("no case is %s", s)
		}
	}
}

// everything is what a plan must leave as it is.
func (w *world) everything() map[string]string {
	w.t.Helper()
	out := map[string]string{"main": fmt.Sprint(w.main.log, w.main.uuid), "side": fmt.Sprint(w.side.log, w.side.uuid), "progress": fmt.Sprint(w.progress.ids())}
	files, err := w.disk.Files(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for k, b := range files {
		out["file "+k] = string(b)
	}
	return out
}

// compare holds a plan against the start that followed it.
func (w *world) compare(p *engine.Plan, err error, log string) {
	w.t.Helper()
	if p.Refusal != nil || err != nil {
		if p.Refusal == nil || err == nil || p.Refusal.ExitCode != int(failure.ClassOf(err)) || p.Refusal.Message != err.Error() {
			w.t.Fatalf("planned %+v\nthe start: %v", p.Refusal, err)
		}
		return
	}
	if !strings.Contains(log, "outcome="+p.Outcome) {
		w.t.Errorf("planned %s, the start:\n%s", p.Outcome, log)
	}
	first := p.NextBatch
	if p.PendingBatch >= 0 {
		first = p.PendingBatch
	}
	var read int64
	for _, row := range w.rows {
		read += row.InputRows
	}
	if p.Waiting != read || len(w.rows) > 0 && w.rows[0].BatchID != first || len(w.rows) == 0 && p.PendingBatch >= 0 {
		w.t.Errorf("planned: batch %d first, %d offsets; the start read %d in %d batches, from %+v", first, p.Waiting, read, len(w.rows), w.rows)
	}
	rebuilds := slices.ContainsFunc(p.State, func(f engine.StateFate) bool { return f.Fate == engine.StateRebuilt })
	if rebuilt := strings.Contains(log, "state rebuilt from the table"); rebuilt != rebuilds {
		w.t.Errorf("planned %+v, the start:\n%s", p.State, log)
	}
	if waits := strings.Contains(log, "waiting for its lease"); waits != (p.WaitSeconds > 0) {
		w.t.Errorf("planned to wait %g s, the start:\n%s", p.WaitSeconds, log)
	}
}

// A pipeline that runs is planned as if it had stopped: people look at a changed
// file before they stop it.
func TestAPlanBesideARunningInstanceNamesItAndGoesOn(t *testing.T) {
	if _, err := os.Stat("/proc/locks"); err != nil {
		t.Skip("no /proc/locks: who holds a lock cannot be told")
	}
	w := ready(t)
	dir := t.TempDir()
	l, err := checkpoint.Acquire(dir, "here", false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Release() }()
	q := w.query(func(q *engine.Query, _ *fakeSource) { q.LockDir = dir })
	p, err := q.Plan(t.Context(), "")
	if err != nil || p.Status != engine.PlanUnchanged || !strings.Contains(p.Running, fmt.Sprintf("process %d on ", os.Getpid())) {
		t.Fatalf("%+v %v", p, err)
	}
	wantClass(t, q.Run(t.Context()), failure.Fenced)
}
