package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/replay"
)

const (
	// smallFactor: a record of smallBytes weighs about an eighth of an event, so
	// there are so many times --rows of them.
	smallFactor = 10
	smallBytes  = 142
	// idsSpan is over how much event time the ids are spread: less than the
	// watermark's delay, so that every one stays in the state.
	idsSpan = 5 * time.Minute
	// largeBytes is the size of a large record; there is one for so many --rows.
	largeBytes   = 1 << 20
	largeDivisor = 1000
	// largeShare is the part of the machine's limit that large records reach.
	largeShare = 0.6
	largeLimit = "large/limit"
	// largeVariants are how many different large records there are.
	largeVariants = 16
	idsPebble     = "ids-pebble"
)

// smallRecord is an edit with nothing but what silver needs, smallBytes long. Its
// id is a UUID that belongs to n and the seed alone.
func smallRecord(seed uint64, total int64) appendValue {
	start := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	step := idsSpan / time.Duration(max(total, 1))
	return func(dst []byte, n int64) []byte {
		at := len(dst)
		dst = append(dst, `{"meta":{"id":"`...)
		dst = replay.AppendUUID(dst, seed, n)
		dst = append(dst, `","dt":"`...)
		dst = start.Add(time.Duration(n)*step).AppendFormat(dst, "2006-01-02T15:04:05.000000Z")
		dst = append(dst, `"},"type":"edit","wiki":"enwiki","title":"P`...)
		dst = fmt.Appendf(dst, "%010d", n%10_000_000_000)
		for len(dst)-at < smallBytes-2 {
			dst = append(dst, '.')
		}
		return append(dst, `"}`...)
	}
}

// largeRecords are records of largeBytes that compress as events do: a JSON array
// of them.
func largeRecords(seed uint64) ([][]byte, error) {
	gen, err := replay.NewGenerator(replay.GeneratorConfig{Seed: seed})
	if err != nil {
		return nil, err
	}
	cursor := gen.Cursor()
	out := make([][]byte, largeVariants)
	n := int64(0)
	for i := range out {
		v := append(make([]byte, 0, largeBytes+8<<10), '[')
		for len(v) < largeBytes {
			v = append(cursor.Append(v, n), ',')
			n++
		}
		v[len(v)-1] = ']'
		out[i] = v
	}
	return out, nil
}

// small measures a backlog of small records into bronze.
func (b *bench) small(ctx context.Context) ([]Result, error) {
	rows := smallFactor * b.o.Rows
	b.say("small: a backlog of %d records of %d bytes", rows, smallBytes)
	topic, err := b.topic(ctx, Small)
	if err != nil {
		return nil, err
	}
	defer b.dropTopic(ctx, topic)
	if err := b.fill(ctx, topic, None, 0, rows, smallRecord(b.o.Seed, rows)); err != nil {
		return nil, err
	}
	return b.each(ctx, Small, func(int) ([]Result, error) { return one(b.backlog(ctx, Small, topic, rows, b.setup(topic, false))) })
}

// large measures a backlog of records of a megabyte into bronze, against what the
// machine can compress and write of the same bytes.
func (b *bench) large(ctx context.Context) ([]Result, error) {
	rows := max(b.o.Rows/largeDivisor, 100)
	b.say("large: a backlog of %d records of %d bytes", rows, largeBytes)
	values, err := largeRecords(b.o.Seed)
	if err != nil {
		return nil, err
	}
	topic, err := b.topicWith(ctx, Large, map[string]string{"max.message.bytes": fmt.Sprint(8 * largeBytes)})
	if err != nil {
		return nil, err
	}
	defer b.dropTopic(ctx, topic)
	if err := b.fill(ctx, topic, None, 0, rows, func(dst []byte, n int64) []byte {
		v := values[n%largeVariants]
		// A value of its own: what is sent must not be compressible across records.
		return append(append(dst, v...), fmt.Sprintf("%020d", n)...)
	}, kgo.ProducerBatchMaxBytes(4*largeBytes)); err != nil {
		return nil, err
	}
	return b.each(ctx, Large, func(int) ([]Result, error) {
		limit, err := b.largeLimit(values, rows)
		if err != nil {
			return nil, err
		}
		s := b.setup(topic, false)
		s.MaxOffsets = max(rows/10, 10)
		got, err := b.backlog(ctx, Large, topic, rows, s)
		if err != nil {
			return nil, err
		}
		got.Ratio = round(got.RowsPerSecond / limit.RowsPerSecond)
		return []Result{got, limit}, nil
	})
}

// largeLimit is how many of the records a second the machine compresses on all its
// cores and writes to the disk, synced, at the same time: no writer is faster.
func (b *bench) largeLimit(values [][]byte, rows int64) (Result, error) {
	codec, err := compress.GetCodec(compress.Codecs.Zstd)
	if err != nil {
		return Result{}, failure.Wrap(failure.Runtime, err, "the compressor")
	}
	path := filepath.Join(b.dir, "limit")
	f, err := os.Create(path)
	if err != nil {
		return Result{}, failure.Wrap(failure.Config, err, "the folder of the benchmark")
	}
	defer os.Remove(path)
	defer f.Close()
	began := b.o.Clock.Now()
	var mu sync.Mutex
	var failed error
	var wg sync.WaitGroup
	cores := runtime.NumCPU()
	for core := range cores {
		wg.Go(func() {
			var out []byte
			for n := int64(core); n < rows; n += int64(cores) {
				out = codec.EncodeLevel(out[:0], values[n%largeVariants], 1)
				mu.Lock()
				if _, err := f.Write(out); err != nil {
					failed = err
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if failed == nil {
		failed = f.Sync()
	}
	if failed != nil {
		return Result{}, failure.Wrap(failure.Runtime, failed, "write the limit's file")
	}
	took := b.o.Clock.Now().Sub(began).Seconds()
	return Result{Name: largeLimit, Rows: rows, RowsPerSecond: round(float64(rows) / took), Seconds: round(took)}, nil
}

// ids measures the state of dedup, in memory and on Pebble: --rows times ten ids
// that all stay in it, and what a process that is killed with them needs to the next
// commit.
func (b *bench) ids(ctx context.Context) ([]Result, error) {
	inMemory, err := b.idsIn(ctx, IDs, pipeline.StateMemory)
	if err != nil {
		return nil, err
	}
	onPebble, err := b.idsIn(ctx, idsPebble, pipeline.StatePebble)
	return append(inMemory, onPebble...), err
}

func (b *bench) idsIn(ctx context.Context, name, store string) ([]Result, error) {
	state := smallFactor * b.o.Rows
	// What is left after the state is complete: some batches for each kill, since
	// bronze goes on with its backlog while silver's state is read.
	batches := 8
	if store == pipeline.StatePebble {
		batches = 15
	}
	rest := int64(2+batches*b.o.Kills) * b.o.MaxOffsets
	b.say("%s: %d ids into bronze and silver, %d more for %d kills", name, state, rest, b.o.Kills)
	return b.each(ctx, IDs+"/"+store, func(run int) ([]Result, error) {
		topic, err := b.topic(ctx, IDs)
		if err != nil {
			return nil, err
		}
		defer b.dropTopic(ctx, topic)
		value := smallRecord(b.o.Seed, state+rest)
		if err := b.fill(ctx, topic, None, 0, state, value); err != nil {
			return nil, err
		}
		s := b.setup(topic, true)
		s.Store = store
		defer b.discard(s)
		worked, err := b.work(ctx, name, s, state, map[string]int64{bronzeTable: state, silverTable: state})
		if err != nil {
			return nil, err
		}
		if err := b.fill(ctx, topic, None, state, rest, value); err != nil {
			return nil, err
		}
		k := kills{topic: topic, rows: state + rest, rng: rand.New(rand.NewPCG(b.o.Seed, uint64(run)))}
		if err := b.killAndRecover(ctx, s, &k, [2]int64{state + 1, state + 1}); err != nil {
			return nil, err
		}
		if len(k.took[0]) == 0 {
			return nil, errBacklogGone
		}
		return append([]Result{worked}, timings(name+"/"+Recovery, k.took, k.peak)...), nil
	})
}
