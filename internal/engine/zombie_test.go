package engine_test

import (
	"testing"

	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
)

// TestAZombieThatWakesAfterItsEntriesWerePurgedTearsNoHoleIntoTheLog suspends
// an instance, lets another one commit so many batches that the entries after
// the zombie's last one are purged, and wakes it: create-once finds nothing in
// its way any more. What it writes must not make the log look corrupt.
func TestAZombieThatWakesAfterItsEntriesWerePurgedTearsNoHoleIntoTheLog(t *testing.T) {
	suspended := map[string]func(w *world, q *engine.Query, s *fakeSource, overtaken func()){
		"before a plan": func(w *world, _ *engine.Query, s *fakeSource, overtaken func()) {
			n := 0
			s.onPlan = func() {
				if n++; n == 3 {
					overtaken()
				}
			}
		},
		"before commits/N": func(w *world, q *engine.Query, _ *fakeSource, overtaken func()) {
			q.Outputs[0].Sink.(*memSink).after = func() error { // the claim is the first commit
				q.Outputs[0].Sink.(*memSink).after = func() error { overtaken(); return nil }
				return nil
			}
		},
	}
	for name, suspend := range suspended {
		w := newWorld(t, 10)
		w.limit = 2
		second := func() {
			for range 6 {
				w.kafka.produce(0, 50)
				w.kafka.produce(1, 50)
				if err := w.run(func(q *engine.Query, _ *fakeSource) { q.Checkpoint = w.disk.Reopen() }); err != nil {
					t.Errorf("the second instance: %v", err)
				}
			}
		}
		once := false
		err := w.run(func(q *engine.Query, s *fakeSource) {
			suspend(w, q, s, func() {
				if !once {
					once = true
					second()
				}
			})
		})
		if !once {
			t.Fatalf("%s: never suspended", name)
		}
		wantClass(t, err, failure.Fenced)
		w.exactRaw()
		w.reboot(false)
		w.kafka.produce(0, 10)
		if err := w.run(); err != nil {
			t.Fatalf("%s: the next start: %v", name, err)
		}
		w.exactRaw()
		if len(w.alerts) != 0 {
			t.Fatalf("%s: alerts %q", name, w.alerts)
		}
	}
}
