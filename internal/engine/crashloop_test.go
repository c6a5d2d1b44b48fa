package engine_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/weirlake/weir/internal/engine"
)

// TestAKillAtEveryStorageOperationEndsWithEachOffsetOnce runs three batches and
// kills the process just before each of its durable operations, on the
// checkpoint's disk and on the sinks, one kill a world: once as SIGKILL (what
// was visible stays), once as a power cut (what was not fsynced is gone). The
// next process must end with the tables and counts of an undisturbed run.
func TestAKillAtEveryStorageOperationEndsWithEachOffsetOnce(t *testing.T) {
	for name, kind := range map[string]func(*world) *world{
		"one sink":            func(w *world) *world { return w },
		"two sinks and state": (*world).withDeadLetters,
	} {
		t.Run(name, func(t *testing.T) {
			fresh := func() *world {
				w := kind(newWorld(t, 50))
				w.limit = 40
				return w
			}
			ref := fresh()
			ref.must()
			total := len(ref.power.ops)
			for k := range total {
				for _, lose := range []bool{false, true} {
					w := fresh()
					w.power.restart(k)
					err := w.run()
					if err == nil && k < total-4 {
						t.Fatalf("operation %d (%s) failed and the run ended well", k, ref.power.ops[k])
					}
					w.reboot(lose)
					if err := w.run(); err != nil {
						t.Fatalf("killed before operation %d (%s), power lost %v: %v", k, ref.power.ops[k], lose, err)
					}
					w.likeUndisturbed(ref)
					if got := w.progress.ids(); !slices.Equal(got, []int64{0, 1, 2}) {
						t.Fatalf("killed before operation %d (%s): progress rows %v", k, ref.power.ops[k], got)
					}
					if len(w.alerts) != 0 {
						t.Fatalf("killed before operation %d (%s): alerts %q", k, ref.power.ops[k], w.alerts)
					}
				}
			}
			t.Logf("%d operations, each killed twice", total)
		})
	}
}

// TestKillsOneAfterTheOtherEndWithEachOffsetOnce kills every process of a
// query after a few operations more than the one before: starts and recoveries
// are killed as well.
func TestKillsOneAfterTheOtherEndWithEachOffsetOnce(t *testing.T) {
	steps := []int{1, 2, 3, 5, 7, 11}
	if testing.Short() {
		steps = []int{1, 3, 7}
	}
	ref := newWorld(t, 50).withDeadLetters()
	ref.limit = 40
	ref.must()
	for _, step := range steps {
		w := newWorld(t, 50).withDeadLetters()
		w.limit = 40
		lives := 0
		for fuel := 0; ; fuel += step {
			lives++
			w.power.restart(fuel)
			if w.run() == nil && w.power.check() == nil {
				break
			}
			w.reboot(lives%2 == 0)
			if lives > 2000 {
				t.Fatal("the query never ends")
			}
		}
		w.likeUndisturbed(ref)
		t.Logf("step %d: %d lives", step, lives)
	}
}

// TestALostAnswerOfTheCheckpointIsAskedAgainByTheNextStart makes each call of
// the store fail after it was applied.
func TestALostAnswerOfTheCheckpointIsAskedAgainByTheNextStart(t *testing.T) {
	ref := newWorld(t, 50).withDeadLetters()
	ref.limit = 40
	ref.must()
	for k := 0; ; k++ {
		w := newWorld(t, 50).withDeadLetters()
		w.limit = 40
		calls := 0
		w.disk.Fault(func(_, _ string, applied bool) error {
			if applied {
				if calls++; calls == k+1 {
					return errPower
				}
			}
			return nil
		})
		err := w.run()
		w.disk.Fault(nil)
		if calls <= k {
			break
		}
		if err != nil {
			w.must()
		}
		w.likeUndisturbed(ref)
	}
}

// TestTheDurableWritesOfABatchComeInTheProtocolsOrder is the golden trace of
// one batch of two sinks with state, checkpoint and sinks in one sequence.
// Only what makes something visible stands here; that contents are synced
// before that is package objstore's business.
func TestTheDurableWritesOfABatchComeInTheProtocolsOrder(t *testing.T) {
	w := newWorld(t, 50).withDeadLetters()
	w.limit = 40
	var ops []string
	w.must(func(q *engine.Query, s *fakeSource) {
		n := 0
		s.onPlan = func() {
			if n++; n == 3 { // the target, batch 0, batch 1
				w.power.ops = nil
			}
			if n == 4 && ops == nil {
				ops = slices.Clone(w.power.ops)
			}
		}
	})
	var got []string
	for _, op := range ops {
		switch {
		case strings.Contains(op, "state/dedup/1-"):
			op = "checkpoint link state/dedup/1"
			if slices.Contains(got, op) {
				continue
			}
		case strings.HasPrefix(op, "lake."), strings.Contains(op, " link "), strings.Contains(op, " rename "):
			op = strings.ReplaceAll(op, "~temp ", "")
		default:
			continue
		}
		got = append(got, op)
	}
	want := []string{
		"checkpoint link offsets/offsets/1", // 1 plan
		"lake.dead stage 1",                 // 4 stage: data files, unreferenced
		"lake.main stage 1",                 //
		"checkpoint link state/dedup/1",     //   the operator's state
		"checkpoint rename staged/staged/1", //   what every sink will commit
		"lake.dead commit 1",                // 5 commit: side sinks first
		"lake.main commit 1",                //   the main sink last
		"checkpoint link commits/commits/1", // 6 done
	}
	if !slices.Equal(got, want) {
		t.Fatalf("the order of a batch's durable writes:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
