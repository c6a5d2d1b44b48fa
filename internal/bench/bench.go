package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/weirlake/weir/internal/failure"
)

// bench is one run of some benchmarks.
type bench struct {
	o        Options
	dir      string
	kafka    *kafka
	limit    float64 // CPU seconds to compress a million of the events
	children int
	setups   int
	closers  []func()
	recorded records
	digest   string
}

// Run measures what the options ask for.
func Run(ctx context.Context, o Options) (_ *Report, err error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	dir, err := o.workDir()
	if err != nil {
		return nil, err
	}
	b := &bench{o: o, dir: dir}
	defer b.close()
	rep := &Report{Machine: machineOf(), Repeat: o.Repeat}
	b.say("%s", rep.Machine)
	if err := b.disk(); err != nil {
		return nil, err
	}
	if o.Profile != "" {
		if err := os.MkdirAll(o.Profile, 0o755); err != nil {
			return nil, failure.Wrap(failure.Config, err, "the folder of the profiles")
		}
		if b.o.Profile, err = filepath.Abs(o.Profile); err != nil {
			return nil, failure.Wrap(failure.Config, err, "the folder of the profiles")
		}
	}
	if err := b.readRecords(); err != nil {
		return nil, err
	}
	if err := b.openKafka(ctx); err != nil {
		return nil, err
	}
	rep.Broker = b.kafka.kind
	if b.limit, err = b.compressionLimit(); err != nil {
		return nil, err
	}
	rep.Machine.CompressionCPU = b.limit
	b.say("limit on this machine now: zstd level 1 of a million of these events takes %.2f CPU seconds on one core", b.limit)
	measured := map[string]func(context.Context) ([]Result, error){
		Bronze: b.bronze, Silver: b.silver, Ingest: b.ingest, Freshness: b.freshness, Startup: b.startup, Recovery: b.recovery, Sinks: b.sinks, Gold: b.gold,
		Small: b.small, Large: b.large, IDs: b.ids, History: b.history,
	}
	var all []Result
	for _, name := range b.o.Names {
		got := b.recorded.complete(name, b.o.Repeat)
		if got == nil {
			if got, err = measured[name](ctx); err != nil {
				return nil, fmt.Errorf("benchmark %s: %w", name, err)
			}
		}
		all = append(all, got...)
	}
	rep.Benchmarks, rep.History = medians(all), historyOf(all)
	return rep, nil
}

// close ends what still runs and removes the work folder.
func (b *bench) close() {
	for i := len(b.closers) - 1; i >= 0; i-- {
		b.closers[i]()
	}
	if b.o.Keep {
		b.say("kept: %s", b.dir)
		return
	}
	_ = os.RemoveAll(b.dir)
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.o.Progress, format+"\n", args...)
}

// each measures f as often as is asked for, and records every result. What stands
// in the record under the name and the number of the run is not measured again.
func (b *bench) each(ctx context.Context, name string, f func(run int) ([]Result, error)) ([]Result, error) {
	var out []Result
	for run := 1; run <= b.o.Repeat; run++ {
		if got := b.recorded[measurement{name, run}]; got != nil {
			out = append(out, got...)
			continue
		}
		if err := b.quiet(ctx, runtime.NumCPU()); err != nil {
			return nil, err
		}
		got, err := f(run)
		if err != nil {
			return nil, err
		}
		for i := range got {
			got[i].Broker, got[i].CompressionCPU = b.kafka.kind, round(b.limit)
			got[i].judge()
			b.say("  %s", got[i])
		}
		if err := b.record(measurement{name, run}, got); err != nil {
			return nil, err
		}
		out = append(out, got...)
	}
	return out, nil
}

// one is the result of a measurement that has only one.
func one(r Result, err error) ([]Result, error) { return []Result{r}, err }

// Sizes that the disk estimate is made of.
const (
	eventBytes  = 1250 // an event with its key, uncompressed
	parquetRows = 450  // bytes a row in both tables
	freeSpare   = 1 << 30
)

// disk says what is needed and refuses where there is not that much.
func (b *bench) disk() error {
	need := int64(0)
	for _, n := range b.o.Names {
		switch n {
		case Bronze, Silver, Recovery, Sinks:
			need = max(need, b.o.Rows*int64(len(b.o.compressions()))*eventBytes+2*b.o.Rows*parquetRows)
		case Small, IDs:
			need = max(need, smallFactor*b.o.Rows*smallBytes*3)
		case History:
			sizes, _ := b.historySizes()
			need = max(need, b.o.Rows*(2*eventBytes+sizes[len(sizes)-1]*parquetRows))
		case Ingest:
			need = max(need, b.o.Rows*eventBytes)
		case Freshness:
			var events int64
			for _, r := range b.o.Rates {
				events = max(events, int64(r)*int64(b.o.Seconds))
			}
			need = max(need, events*(eventBytes+parquetRows))
		}
	}
	free, err := freeBytes(b.dir)
	if err != nil {
		return nil //nolint:nilerr // not every system tells; the run itself will
	}
	b.say("disk: about %.1f GB in %s (%.1f GB free)", float64(need)/1e9, b.dir, float64(free)/1e9)
	if free < need+freeSpare {
		return failure.New(failure.Config, "the benchmark needs about %.1f GB, %s has %.1f GB free", float64(need)/1e9, b.dir, float64(free)/1e9).
			WithHint("give --dir on a larger disk, or fewer --rows")
	}
	return nil
}

// waitMax bounds one wait for rows to become visible.
const waitMax = 10 * time.Minute
