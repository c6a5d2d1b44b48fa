package bench

import (
	"context"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// quietShare is how much of the cores others may use for the machine to
	// count as quiet, and quietSample how long that is looked at.
	quietShare  = 0.1
	quietSample = 400 * time.Millisecond
)

// tick is the kernel's unit of CPU time in /proc.
const tick = 10 * time.Millisecond

// machineBusy is the CPU time that the whole machine has spent working, time
// taken by the hypervisor included; 0 where it cannot be read.
func machineBusy() time.Duration {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	words := strings.Fields(line)
	if len(words) < 9 || words[0] != "cpu" {
		return 0
	}
	var busy int64
	for i, w := range words[1:9] { // user nice system idle iowait irq softirq steal
		if i == 3 || i == 4 {
			continue
		}
		n, err := strconv.ParseInt(w, 10, 64)
		if err != nil {
			return 0
		}
		busy += n
	}
	return time.Duration(busy) * tick
}

// ownCPU is the CPU time of the benchmark itself.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// meter accounts for the CPU time of a measurement: the broker's, and the cores
// that everybody else took meanwhile.
type meter struct {
	b                 *bench
	at                time.Time
	busy, own, broker time.Duration
}

func (b *bench) meter() meter {
	return meter{b, b.o.Clock.Now(), machineBusy(), ownCPU(), cpuOf(b.kafka.pid)}
}

// read gives the broker's CPU time since, and how many cores others have used
// on average, given what the measured processes used.
func (m meter) read(measured time.Duration) (broker time.Duration, others float64) {
	now := m.b.meter()
	broker = now.broker - m.broker
	if m.b.kafka.pid == 0 || now.busy == 0 {
		return broker, 0
	}
	rest := now.busy - m.busy - (now.own - m.own) - broker - measured
	return broker, round(max(0, rest.Seconds()) / now.at.Sub(m.at).Seconds())
}

// quiet waits until others leave the machine alone, as long as it may. The
// broker of this run is idle between measurements and may be counted in.
func (b *bench) quiet(ctx context.Context, cores int) error {
	if b.o.QuietWait <= 0 || machineBusy() == 0 {
		return nil
	}
	until := b.o.Clock.Now().Add(b.o.QuietWait)
	for {
		from, busy := b.o.Clock.Now(), machineBusy()
		if err := b.o.Clock.Sleep(ctx, quietSample); err != nil {
			return err
		}
		now := b.o.Clock.Now()
		share := (machineBusy() - busy).Seconds() / now.Sub(from).Seconds() / float64(cores)
		if share <= quietShare {
			return nil
		}
		if now.After(until) {
			b.say("  the machine did not become quiet within %s: others use %.0f %% of it", b.o.QuietWait, 100*share)
			return nil
		}
	}
}
