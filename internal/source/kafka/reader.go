package kafka

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
)

const (
	// fetchBytesTotal bounds one round of fetches over all brokers, as bytes on
	// the wire. One larger batch still passes: a broker always sends the first
	// one whole.
	fetchBytesTotal        = 4 << 20
	fetchBytesPerBrokerMin = 1 << 20
	// fetchValueBytesTotal bounds the same round after decompression: the
	// limits on the wire follow the compression that is seen.
	fetchValueBytesTotal = 8 << 20
	fetchBytesLeast      = 128 << 10
	// fetchRecordsLeast is how many records a round should hold: with fewer, broker
	// and reader wait for each other more than they work.
	fetchRecordsLeast = 32
	fetchLargeFactor  = 4.0
	fetchWaitMax      = 500_000_000 // ns; how long a fetch waits at the broker for data
	// decompressBytesMax bounds one decompressed batch against a broker or
	// producer that sends a bomb.
	decompressBytesMax = 256 << 20
	// pendingBytesMax bounds the records beyond the batch's end that are kept
	// for the next one. Partitions that are at their end are paused then, while
	// others are still behind.
	pendingBytesMax = 16 << 20
	// sortBytesMax is how much of a batch is kept to be emitted in order of
	// topic and partition; a larger batch is emitted as it is fetched.
	sortBytesMax = 4 << 20
)

// partition is the reader's place in one partition.
//
//	next     the first offset that was not given to a batch yet
//	fetched  the first offset that was not fetched yet; next <= fetched
//	pending  the fetched records that were not given to a batch yet
//
// During a read next stands still; it moves to the batch's end when the whole
// batch was read, so that a failed read leaves a reader that no later read
// mistakes for one that stands at its start.
type partition struct {
	tp      batch.TopicPartition
	topicID string

	next, fetched int64
	pending       []*kgo.Record
	pendingBytes  int64
	paused        bool

	// Of the read under way.
	end       int64
	rows      int64
	last      int64 // offset of the last row, -1 before the first
	lastEpoch int32
	sameTopic bool // a fetch said that the topic has the expected id
}

func (p *partition) done() bool { return p.fetched >= p.end }

// reader is a consumer that goes on from batch to batch: fetching batch N+1
// goes on while batch N is committed. It never seeks. A read that starts
// elsewhere makes a new one, so that no fetch for another offset can be on its
// way.
type reader struct {
	cl    *kgo.Client
	parts map[batch.TopicPartition]*partition

	brokers int
	sizes   *fetchSizes
	limit   int32 // fetch limit per broker in force
}

// fetchSizes counts what fetches held, to see their compression and the size of
// records.
type fetchSizes struct{ wire, values, records atomic.Int64 }

// OnFetchBatchRead implements kgo.HookFetchBatchRead.
func (f *fetchSizes) OnFetchBatchRead(_ kgo.BrokerMetadata, _ string, _ int32, m kgo.FetchBatchMetrics) {
	f.wire.Add(int64(m.CompressedBytes))
	f.values.Add(int64(m.UncompressedBytes))
	f.records.Add(int64(m.NumRecords))
}

// adapt sets the fetch limits so that a round of fetches stays within
// fetchValueBytesTotal after decompression. Where records are large it is as many
// times larger as makes a round of fetchRecordsLeast, up to fetchLargeFactor.
func (r *reader) adapt() {
	wire, values, records := r.sizes.wire.Swap(0), r.sizes.values.Swap(0), r.sizes.records.Swap(0)
	if wire <= 0 || values <= 0 {
		return
	}
	factor := max(1, min(fetchLargeFactor, float64(fetchRecordsLeast)*float64(values)/float64(max(records, 1))/fetchValueBytesTotal))
	perBroker := factor * fetchValueBytesTotal / float64(max(r.brokers, 1)) * float64(wire) / float64(values)
	limit := int32(max(fetchBytesLeast, min(perBroker, factor*float64(perBrokerLimit(r.brokers)))))
	// Small changes are not worth a change.
	if limit > r.limit/4*5 || limit < r.limit/4*3 {
		r.limit = limit
		r.cl.UpdateFetchMaxBytes(limit, limit)
	}
}

func perBrokerLimit(brokers int) int32 {
	return int32(max(fetchBytesTotal/max(brokers, 1), fetchBytesPerBrokerMin))
}

func newReader(opts []kgo.Opt, brokers int, at map[batch.TopicPartition]*partition) (*reader, error) {
	r := &reader{parts: at, brokers: brokers, sizes: &fetchSizes{}, limit: perBrokerLimit(brokers)}
	from := map[string]map[int32]kgo.Offset{}
	for tp, p := range at {
		if from[tp.Topic] == nil {
			from[tp.Topic] = map[int32]kgo.Offset{}
		}
		// Without an epoch: the client would compare the last record's epoch
		// with the next offset, and control records between the two belong to
		// later epochs. Verify compares with the record.
		from[tp.Topic][tp.Partition] = kgo.NewOffset().At(p.fetched)
	}
	cl, err := kgo.NewClient(append(opts[:len(opts):len(opts)],
		kgo.ConsumePartitions(from),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),
		kgo.FetchMaxBytes(r.limit),
		kgo.FetchMaxPartitionBytes(r.limit),
		kgo.WithHooks(r.sizes),
		kgo.FetchMaxWait(fetchWaitMax),
		kgo.MaxDecompressBatchBytes(decompressBytesMax),
	)...)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "make a Kafka consumer")
	}
	r.cl = cl
	return r, nil
}

// standsAt reports whether every assigned partition of pos continues here.
func (r *reader) standsAt(pos *batch.KafkaPosition) bool {
	same, n := true, 0
	pos.Each(func(topic, id string, part int32, at batch.PartitionPosition) {
		if at.HandedTo != "" {
			return
		}
		n++
		p := r.parts[batch.TopicPartition{Topic: topic, Partition: part}]
		if p == nil || p.next != at.NextOffset || p.topicID != id {
			same = false
		}
	})
	return same && n == len(r.parts)
}

// continues reports whether a read of want can go on with this reader, and
// adds the partitions that are new to it.
func (r *reader) continues(want map[batch.TopicPartition]*partition) bool {
	for tp, p := range r.parts {
		w, ok := want[tp]
		if !ok || w.next != p.next || w.topicID != p.topicID {
			return false
		}
	}
	added := map[string]map[int32]kgo.Offset{}
	for tp, w := range want {
		if r.parts[tp] != nil {
			continue
		}
		r.parts[tp] = w
		if added[tp.Topic] == nil {
			added[tp.Topic] = map[int32]kgo.Offset{}
		}
		added[tp.Topic][tp.Partition] = kgo.NewOffset().At(w.fetched)
	}
	if len(added) > 0 {
		r.cl.AddConsumePartitions(added)
	}
	return true
}

func (r *reader) hasPending() bool {
	for _, p := range r.parts {
		if len(p.pending) > 0 {
			return true
		}
	}
	return false
}

// resume fetches everything again that the last read paused.
func (r *reader) resume() {
	paused := map[string][]int32{}
	for tp, p := range r.parts {
		if p.paused {
			p.paused = false
			paused[tp.Topic] = append(paused[tp.Topic], tp.Partition)
		}
	}
	if len(paused) > 0 {
		r.cl.ResumeFetchPartitions(paused)
	}
}

// bound pauses finished partitions where too much is kept for the next batch.
// What the client fetched for them meanwhile is dropped and fetched again.
func (r *reader) bound() {
	var kept int64
	for _, p := range r.parts {
		kept += p.pendingBytes
	}
	if kept <= pendingBytesMax {
		return
	}
	pause := map[string][]int32{}
	for tp, p := range r.parts {
		if p.done() && !p.paused {
			p.paused = true
			pause[tp.Topic] = append(pause[tp.Topic], tp.Partition)
		}
	}
	if len(pause) > 0 {
		r.cl.PauseFetchPartitions(pause)
	}
}

// sorted are the partitions in order.
func (r *reader) sorted() []*partition {
	return slices.SortedFunc(maps.Values(r.parts), func(a, b *partition) int {
		return cmp.Or(cmp.Compare(a.tp.Topic, b.tp.Topic), cmp.Compare(a.tp.Partition, b.tp.Partition))
	})
}

// take moves the pending records below the batch's end to w.
func (p *partition) take(w *rowWriter) error {
	records := p.pending
	p.pending, p.pendingBytes = nil, 0
	return p.give(records, w)
}

// accept notes a fetch of the partition: in order, nothing twice. Control
// records may come late: a probe that found no record in the range has passed
// them already.
func (p *partition) accept(records []*kgo.Record) error {
	for _, r := range records {
		if r.Offset < p.fetched && r.Attrs.IsControl() {
			continue
		}
		if r.Offset < p.fetched {
			return failure.New(failure.Runtime, "partition %s: the broker sent offset %d after %d: out of order or twice",
				p.tp, r.Offset, p.fetched-1).
				WithHint("nothing of the batch was committed; starting again reads it once more")
		}
		p.fetched = r.Offset + 1
	}
	p.keep(records)
	return nil
}

// give writes the records before the batch's end and keeps the rest.
func (p *partition) give(records []*kgo.Record, w *rowWriter) error {
	for i, r := range records {
		if r.Offset >= p.end {
			p.keep(slices.Clone(records[i:])) // the rest of the array may go
			return nil
		}
		if r.Attrs.IsControl() {
			continue
		}
		if err := w.append(p, r); err != nil {
			return err
		}
		p.rows++
		p.last, p.lastEpoch = r.Offset, r.LeaderEpoch
	}
	return nil
}

func (p *partition) keep(records []*kgo.Record) {
	if p.pending == nil {
		p.pending = records
	} else {
		p.pending = append(p.pending, records...)
	}
	for _, r := range records {
		p.pendingBytes += int64(len(r.Key) + len(r.Value))
	}
}

// begin sets a partition up for a read.
func (p *partition) begin(end int64) {
	p.end, p.rows, p.last, p.lastEpoch, p.sameTopic = end, 0, -1, -1, false
}

// String names the partition in logs.
func (p *partition) String() string { return fmt.Sprintf("%s[%d,%d)", p.tp, p.next, p.end) }
