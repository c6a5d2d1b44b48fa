package collector

import (
	"context"
	"runtime/debug"
	"testing"

	"github.com/weirlake/weir/internal/clock"
)

// account is an account that goes on from look to look.
type account struct{ at sample }

func (a *account) after(cycles uint64, share float64) sample {
	a.at.cycles += cycles
	a.at.totalSeconds += 10
	a.at.gcSeconds += 10 * share
	return a.at
}

func TestCollectionsThatCostNothingComeEarlierAndDearOnesAsUsual(t *testing.T) {
	var a account
	c := tuner{percent: percentMax}
	for i, step := range []struct {
		cycles uint64
		share  float64
		want   int
	}{
		{cyclesMin, 0.01, 50},
		{cyclesMin - 1, 0.5, 50}, // too few to judge by
		{1, 0.0, 100},            // counted together with those before
		{cyclesMin, 0.01, 50},
		{cyclesMin, 0.03, 50}, // what halving may have made of it
		{cyclesMin, 0.01, 25},
		{cyclesMin, 0.01, percentMin},
		{cyclesMin, 0.07, percentMax},
		{cyclesMin, 0.05, percentMax},
	} {
		c.percent = c.look(a.after(step.cycles, step.share))
		if c.percent != step.want {
			t.Fatalf("step %d: %d %%, want %d", i, c.percent, step.want)
		}
	}
}

func TestTheRuntimeKeepsTheAccountThatIsRead(t *testing.T) {
	before := read()
	debug.FreeOSMemory() // a collection
	after := read()
	if after.cycles <= before.cycles || after.totalSeconds <= before.totalSeconds {
		t.Fatalf("before %+v, after %+v", before, after)
	}
}

func TestThePercentageIsAsBeforeWhenTuningHasEnded(t *testing.T) {
	t.Setenv("GOGC", "")
	ctx, end := context.WithCancel(context.Background())
	end()
	was := debug.SetGCPercent(percentMin)
	defer debug.SetGCPercent(was)
	Tune(ctx, clock.System{})
	if now := debug.SetGCPercent(percentMin); now != percentMax {
		t.Fatalf("%d %%, want %d", now, percentMax)
	}
	t.Setenv("GOGC", "70") // the user's
	Tune(ctx, clock.System{})
	if now := debug.SetGCPercent(percentMin); now != percentMin {
		t.Fatalf("%d %%, want it left at %d", now, percentMin)
	}
}
