package bench

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/replay"
)

const (
	// produceBuffered bounds the records that wait for their acknowledgement.
	produceBuffered = 20_000
	// slabBytes is how much memory a run of events shares.
	slabBytes = 1 << 20
	// liveLinger is how long a live record may wait for company.
	liveLinger = time.Millisecond
	// paceEvery is how often a live stream looks at the clock.
	paceEvery = 2 * time.Millisecond
)

// feed publishes generated events without specials: each is one valid event.
type feed struct {
	gen    *replay.Generator
	cursor *replay.Cursor
	client *kgo.Client
	topic  string
	parts  int64
	slab   []byte
	// write appends the value of record n: an event, where nothing else is set.
	write appendValue

	mu     sync.Mutex
	failed error
	// sent are the appends by partition and offset, where they are kept.
	sent [][]stamp
	base []int64
	keep bool
}

// appendValue appends the value of record n to dst.
type appendValue func(dst []byte, n int64) []byte

// stamp is when a record was appended, as its timestamp says, and when its
// event happened, in milliseconds.
type stamp struct{ append, event int64 }

func (b *bench) newFeed(topic, compression string, live bool, c replay.GeneratorConfig, more ...kgo.Opt) (*feed, error) {
	c.Seed = b.o.Seed
	gen, err := replay.NewGenerator(c)
	if err != nil {
		return nil, err
	}
	opts, err := broker.ClientOptions(broker.Config{BootstrapServers: b.kafka.bootstrap})
	if err != nil {
		return nil, err
	}
	codec := kgo.NoCompression()
	if compression == Zstd {
		codec = kgo.ZstdCompression()
	}
	linger := 20 * time.Millisecond
	if live {
		linger = liveLinger
	}
	opts = append(opts,
		kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codec), kgo.ProducerLinger(linger),
		kgo.MaxBufferedRecords(produceBuffered), kgo.ProducerBatchMaxBytes(900_000),
	)
	client, err := kgo.NewClient(append(opts, more...)...)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "make a Kafka producer")
	}
	cursor := gen.Cursor()
	return &feed{gen: gen, cursor: cursor, write: cursor.Append, client: client, topic: topic, parts: int64(b.o.Partitions), keep: live,
		sent: make([][]stamp, b.o.Partitions), base: make([]int64, b.o.Partitions)}, nil
}

// produce publishes record n. It may wait for earlier ones.
func (f *feed) produce(ctx context.Context, n int64) {
	if cap(f.slab)-len(f.slab) < 8<<10 {
		f.slab = make([]byte, 0, slabBytes)
	}
	at := len(f.slab)
	f.slab = f.write(f.slab, n)
	value := f.slab[at:len(f.slab):len(f.slab)]
	if cap(f.slab) > slabBytes {
		f.slab = nil // a large value has brought memory of its own
	}
	rec := &kgo.Record{Value: value, Key: eventID(value), Partition: int32(n % f.parts)}
	event := int64(0)
	if f.keep {
		event, _ = f.cursor.Position(n)
	}
	f.client.Produce(ctx, rec, func(r *kgo.Record, err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if err != nil {
			if f.failed == nil {
				f.failed = err
			}
			return
		}
		if f.keep {
			f.note(r, event)
		}
	})
}

// note keeps the record's times at its offset.
func (f *feed) note(r *kgo.Record, event int64) {
	s := f.sent[r.Partition]
	if len(s) == 0 {
		f.base[r.Partition] = r.Offset
	}
	if r.Offset != f.base[r.Partition]+int64(len(s)) {
		f.failed = fmt.Errorf("partition %d: offset %d was acknowledged after %d records from %d", r.Partition, r.Offset, len(s), f.base[r.Partition])
		return
	}
	f.sent[r.Partition] = append(s, stamp{r.Timestamp.UnixMilli(), event})
}

func (f *feed) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed != nil {
		return failure.Wrap(failure.Runtime, f.failed, "publish to topic %s", f.topic)
	}
	return nil
}

// flush waits for everything.
func (f *feed) flush(ctx context.Context) error {
	if err := f.client.Flush(ctx); err != nil {
		return failure.Wrap(failure.Unreachable, err, "publish to topic %s", f.topic)
	}
	return f.err()
}

// keyOf finds the event id as ingestion does: $.meta.id.
var metaID = []byte(`"id":"`)

func eventID(value []byte) []byte {
	_, rest, ok := bytes.Cut(value, metaID)
	if !ok {
		return nil
	}
	id, _, _ := bytes.Cut(rest, []byte{'"'})
	return id
}

// preload fills a topic with rows events.
func (b *bench) preload(ctx context.Context, topic, compression string, rows int64) error {
	return b.fill(ctx, topic, compression, 0, rows, nil)
}

// fill publishes rows records from number from on: what write gives, events where it
// is nil.
func (b *bench) fill(ctx context.Context, topic, compression string, from, rows int64, write appendValue, more ...kgo.Opt) error {
	f, err := b.newFeed(topic, compression, false, replay.GeneratorConfig{}, more...)
	if err != nil {
		return err
	}
	defer f.client.Close()
	if write != nil {
		f.write = write
	}
	began := b.o.Clock.Now()
	for n := from; n < from+rows; n++ {
		f.produce(ctx, n)
		if n%produceBuffered == 0 {
			if err := f.err(); err != nil {
				return err
			}
		}
	}
	if err := f.flush(ctx); err != nil {
		return err
	}
	b.say("  %d events preloaded (%s) in %.1f s", rows, compression, b.o.Clock.Now().Sub(began).Seconds())
	return nil
}

// play publishes events as their times come, at rate a second from now on, for
// so many seconds.
func (f *feed) play(ctx context.Context, b *bench, rate int, seconds int) error {
	total := int64(rate) * int64(seconds)
	for n := int64(0); n < total; {
		now := b.o.Clock.Now().UnixMilli()
		for n < total {
			at, _ := f.cursor.Position(n)
			if at > now {
				break
			}
			f.produce(ctx, n)
			n++
		}
		if err := f.err(); err != nil {
			return err
		}
		if err := b.o.Clock.Sleep(ctx, paceEvery); err != nil {
			return err
		}
	}
	return f.flush(ctx)
}
