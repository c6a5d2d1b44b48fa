package sim

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/objstore"
)

// mode is what is done to the first and to the second writer of a pair.
type mode struct {
	name string
	// second comes while the first is: dead, or suspended and goes on when the
	// second is through.
	suspended bool
	// power: the kills are power cuts.
	power bool
}

var modes = []mode{
	{name: "both killed"},
	{name: "both lose power", power: true},
	{name: "the first is suspended, the second killed, the first goes on", suspended: true},
}

// pair is a world of three batches for two writers, one after the other.
func pair(seed uint64, silver bool) *world {
	w := newWorld(seed, 2, 30)
	w.limit, w.silver = 20, silver
	for _, q := range []string{"bronze", "silver"} {
		d := objstore.NewMemory(clock.System{})
		for _, m := range []string{"a", "b"} {
			w.checkpoints[m+"/"+q] = d
		}
	}
	return w
}

// drive lets p run until its next change of the world would be number until
// (from 0), or it ends. It reports whether it stands there.
func (w *world) drive(p *process, until int) bool {
	for deadline := time.Now().Add(time.Hour); time.Now().Before(deadline); {
		var mine *call
		for _, c := range w.sched.ready() {
			if c.p == p {
				mine = c
				break
			}
		}
		switch {
		case mine != nil && mine.changes && p.durable == until:
			return true
		case mine != nil:
			w.sched.let(mine, verdict{})
		case p.ended.Load():
			return false
		default:
			time.Sleep(20 * time.Millisecond)
		}
	}
	return false
}

// runPair disturbs the first writer before its change i and the second before
// its change j.
func (w *world) runPair(m mode, i, j int) error {
	first := w.start("a", true)
	w.drive(first, i)
	stop := func(p *process) {
		if m.power {
			w.power(p)
		} else {
			p.kill()
		}
	}
	if m.suspended {
		first.held = true
	} else {
		stop(first)
	}
	second := w.start("b", true)
	w.drive(second, j)
	stop(second)
	if m.suspended {
		first.held = false
		w.drive(first, -1)
		if first.ended.Load() {
			if err := w.settle(first); err != nil {
				return err
			}
		}
		first.kill()
	}
	if err := w.bury(); err != nil {
		return err
	}
	if err := w.finish(); err != nil {
		return err
	}
	return w.check()
}

// changes is how many changes of the world an undisturbed writer makes.
func changes(t *testing.T, silver bool) (n int, trace []string) {
	synctest.Test(t, func(t *testing.T) {
		w := pair(1, silver)
		p := w.start("a", true)
		w.drive(p, -1)
		if p.err != nil {
			t.Error(p.err)
		}
		n, trace = p.durable, w.sched.trace
		if err := w.bury(); err != nil {
			t.Error(err)
		}
		if err := w.check(); err != nil {
			t.Error(err)
		}
	})
	return n, trace
}

// TestTwoWritersAtEveryPairOfStepsEndWithEveryRowOnce is exhaustive within its
// bound: two writers, three batches, the first stopped before each of its
// changes of the world and the second before each of its own.
func TestTwoWritersAtEveryPairOfStepsEndWithEveryRowOnce(t *testing.T) {
	n, _ := changes(t, false)
	if n < 20 {
		t.Fatalf("an undisturbed writer changes the world %d times only", n)
	}
	stride := *pairStride
	if stride == 0 {
		if stride = 1; testing.Short() {
			stride = 7
		}
	}
	seen, runs := map[uint64]bool{}, 0
	for mi, m := range modes {
		for i := mi % stride; i <= n; i += stride {
			// The second one may do more than an undisturbed one; a stop that
			// does not land is a writer that came to its end.
			for j := (i + mi) % stride; j <= n+4; j += stride {
				runs++
				synctest.Test(t, func(t *testing.T) {
					w := pair(uint64(1_000_000*mi+1_000*i+j), false)
					err := w.runPair(m, i, j)
					if berr := w.bury(); err == nil {
						err = berr
					}
					if err != nil {
						tail := w.sched.trace[max(0, len(w.sched.trace)-traceTail):]
						t.Errorf("%s, before changes %d and %d: %v\n  %s", m.name, i, j, err, strings.Join(tail, "\n  "))
					}
					seen[w.sched.hash()] = true
				})
				if t.Failed() {
					t.FailNow()
				}
			}
		}
	}
	t.Logf("%d changes a writer, every %s: %d pairs, %d distinct schedules", n, ordinal(stride), runs, len(seen))
}

func ordinal(stride int) string {
	if stride == 1 {
		return "one"
	}
	return fmt.Sprintf("%dth", stride)
}
