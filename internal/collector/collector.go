// Package collector sets how much memory Go's garbage collector may let lie before
// it runs.
//
// By default the collector runs when the heap has doubled (GOGC=100). While a
// backlog is worked off that is right: cores are what is short. A stream that is
// followed live leaves the cores idle most of the time, and half of its heap would
// be garbage. So the collector runs earlier as long as it takes next to nothing of
// the machine's cores, and as usual once it takes more. Rejected: a fixed lower
// percentage (a quarter more CPU time in a backlog), a soft limit of memory (a heap
// that needs more than the limit is collected without end).
package collector

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/weirlake/weir/internal/clock"
)

const (
	// lookEvery is how often the cost of collections is looked at.
	lookEvery = 250 * time.Millisecond
	// cyclesMin is how many collections make a judgement.
	cyclesMin = 2
	// percentMax is Go's default, percentMin the least that is set.
	percentMax, percentMin = 100, 25
	// Below cheap, as a part of all cores' time, the heap may grow half as much
	// between collections, which at most doubles their cost. Above dear it may grow
	// as usual. The factor between them is more than two, so that one step never
	// asks for the step back.
	cheap, dear = 0.02, 0.06
)

// Tune adapts the collector to the process until ctx ends. It leaves a process
// alone whose user has set GOGC.
func Tune(ctx context.Context, clk clock.Clock) {
	if os.Getenv("GOGC") != "" {
		return
	}
	defer debug.SetGCPercent(percentMax)
	t := tuner{percent: percentMax, last: read()}
	for clk.Sleep(ctx, lookEvery) == nil {
		if next := t.look(read()); next != t.percent {
			t.percent = next
			debug.SetGCPercent(next)
		}
	}
}

// sample is the account of the collector since the process began.
type sample struct {
	cycles       uint64
	gcSeconds    float64 // of marking, work done while cores were idle left out
	totalSeconds float64 // of all cores, idle or not
}

func read() sample {
	s := []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"},
		{Name: "/cpu/classes/gc/mark/assist:cpu-seconds"},
		{Name: "/cpu/classes/gc/mark/dedicated:cpu-seconds"},
		{Name: "/cpu/classes/total:cpu-seconds"},
	}
	metrics.Read(s)
	return sample{
		cycles:       s[0].Value.Uint64(),
		gcSeconds:    s[1].Value.Float64() + s[2].Value.Float64(),
		totalSeconds: s[3].Value.Float64(),
	}
}

// tuner judges the collections between two samples.
type tuner struct {
	percent int
	last    sample
}

// look gives the percentage to go on with.
func (t *tuner) look(now sample) int {
	took := now.totalSeconds - t.last.totalSeconds
	if now.cycles < t.last.cycles+cyclesMin || took <= 0 {
		return t.percent
	}
	share := (now.gcSeconds - t.last.gcSeconds) / took
	t.last = now
	switch {
	case share > dear:
		return percentMax
	case share < cheap:
		return max(percentMin, t.percent/2)
	}
	return t.percent
}
