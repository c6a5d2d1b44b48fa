package kafka

import (
	"context"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/source"
)

// A contradiction that Verify does not confirm passes by itself (a restarting
// broker shows stale metadata for a moment); Plan looks again so often.
const (
	planTries   = 5
	recheckWait = 200 * time.Millisecond
)

// Plan implements source.Source.
func (s *Source) Plan(ctx context.Context, start batch.Position, limit int64) (source.Planned, error) {
	if start.Kafka == nil {
		return source.Planned{}, failure.New(failure.Config, "a Kafka source cannot go on from a position that is not Kafka's")
	}
	for try := range planTries {
		p, ok, err := s.plan(ctx, start, limit, try > 0)
		if err != nil || ok {
			return p, err
		}
		// Something contradicts the position: Verify says what, in words.
		violations, err := s.Verify(ctx, start)
		if err != nil {
			return source.Planned{}, err
		}
		if len(violations) > 0 {
			return source.Planned{}, changed(violations)
		}
		if err := s.clk.Sleep(ctx, recheckWait); err != nil {
			return source.Planned{}, err
		}
	}
	return source.Planned{}, failure.New(failure.Unreachable, "the Kafka cluster's answers contradict the position %s and each other", start).
		WithHint("the cluster is probably recovering; starting again is safe")
}

// plan makes one try; ok is false where the cluster contradicts the position.
// confirmed says that Verify found nothing: a last stable offset below the
// position then only means that there is nothing to read yet.
func (s *Source) plan(ctx context.Context, start batch.Position, limit int64, confirmed bool) (_ source.Planned, ok bool, err error) {
	v, err := s.view(ctx, topicsOf(start.Kafka)...)
	if err != nil {
		return source.Planned{}, false, err
	}
	if !s.identical(v, start.Kafka) {
		return source.Planned{}, false, nil
	}
	tps := s.assigned(v)
	var starts, ends offsets
	errs := make(chan error, 1)
	go func() {
		var err error
		starts, err = s.listStart(ctx, tps)
		errs <- err
	}()
	ends, err = s.listStable(ctx, tps)
	if err2 := <-errs; err == nil {
		err = err2
	}
	if err != nil {
		return source.Planned{}, false, err
	}
	from := start.Clone()
	if from.Kafka.Topics == nil {
		from.Kafka.Topics = map[string]batch.TopicPosition{}
	}
	available, ok := s.available(v, tps, start.Kafka, from.Kafka, starts, ends, confirmed)
	if !ok {
		return source.Planned{}, false, nil
	}
	end, latest := from.Clone(), from.Clone()
	for i, n := range share(available, limit) {
		tp := tps[i]
		p, _ := from.Kafka.Get(tp.Topic, tp.Partition)
		if p.HandedTo != "" {
			continue
		}
		if n > 0 {
			// What the last record of the batch is, the read finds out.
			end.Kafka.Set(tp.Topic, "", tp.Partition, batch.PartitionPosition{
				NextOffset: s.readFrom(p.NextOffset, starts[tp]) + n, LastOffset: -1, LeaderEpoch: -1, Rows: -1,
			})
		}
		p.NextOffset = max(ends[tp], p.NextOffset)
		latest.Kafka.Set(tp.Topic, "", tp.Partition, p)
	}
	return source.Planned{Start: from, End: end, Latest: latest}, true, nil
}

// available adds new partitions to from and counts what each partition has to
// read; ok is false where a partition's log contradicts its position.
func (s *Source) available(v *clusterView, tps []batch.TopicPartition, start, from *batch.KafkaPosition, starts, ends offsets, confirmed bool) (available []int64, ok bool) {
	available = make([]int64, len(tps))
	for i, tp := range tps {
		p, known := start.Get(tp.Topic, tp.Partition)
		if !known {
			// In a topic that was read before, a partition cannot have records
			// that came before the query: it starts at 0. A topic that newly
			// matches starts where its log does, and the plan records it.
			next := int64(0)
			if _, knownTopic := start.Topics[tp.Topic]; !knownTopic {
				next = starts[tp]
			}
			p = fresh(next)
			from.Set(tp.Topic, v.topics[tp.Topic].id, tp.Partition, p)
		}
		if p.HandedTo != "" {
			continue
		}
		if starts[tp] > p.NextOffset && !s.cfg.TolerateDataLoss {
			return nil, false
		}
		if known && s.epochMoved(tp, v.topics[tp.Topic].epochs[tp.Partition]) {
			return nil, false // a new leader may have a shorter log: Verify compares
		}
		if ends[tp] < p.NextOffset && !confirmed {
			return nil, false
		}
		available[i] = max(0, ends[tp]-s.readFrom(p.NextOffset, starts[tp]))
	}
	return available, true
}

// readFrom is where reading begins: after what retention removed, where that
// is forgiven.
func (s *Source) readFrom(next, logStart int64) int64 {
	if s.cfg.TolerateDataLoss {
		return max(next, logStart)
	}
	return next
}

// epochMoved reports whether a partition's leader changed since Verify last
// compared its log. The first sight of a partition only records the epoch: a
// start verifies its position before it plans.
func (s *Source) epochMoved(tp batch.TopicPartition, epoch int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.verified[tp]
	if !ok {
		s.verified[tp] = epoch
		return false
	}
	return known != epoch
}

// identical compares identities only: cluster, topic ids, partitions.
func (s *Source) identical(v *clusterView, pos *batch.KafkaPosition) bool {
	if pos.ClusterID != v.clusterID {
		return false
	}
	same := true
	pos.Each(func(topic, id string, p int32, at batch.PartitionPosition) {
		if at.HandedTo != "" {
			return
		}
		t, ok := v.topics[topic]
		if !ok || (id != "" && t.id != id) {
			same = false
			return
		}
		if _, ok := t.epochs[p]; !ok {
			same = false
		}
	})
	return same
}

// topicsOf are the topics of a position that this query still reads.
func topicsOf(pos *batch.KafkaPosition) []string {
	var out []string
	pos.Each(func(topic, _ string, _ int32, at batch.PartitionPosition) {
		if at.HandedTo == "" && !slices.Contains(out, topic) {
			out = append(out, topic)
		}
	})
	return out
}

// share splits limit over the partitions in proportion to what each has, as
// Spark's rate limit does, but never exceeds it: shares are rounded down, and
// what is left over goes one offset each, first to those that would get
// nothing, then to the largest remainders. limit 0 or less means no limit.
func share(available []int64, limit int64) []int64 {
	var total uint64
	for _, n := range available {
		total += uint64(n)
	}
	out := make([]int64, len(available))
	if limit <= 0 || total <= uint64(limit) {
		copy(out, available)
		return out
	}
	type leftover struct {
		i         int
		starved   bool
		remainder uint64
	}
	var rest []leftover
	left := limit
	for i, n := range available {
		hi, lo := bits.Mul64(uint64(n), uint64(limit))
		q, r := bits.Div64(hi, lo, total) // n <= total, so the quotient fits
		out[i] = int64(q)
		left -= int64(q)
		if out[i] < n {
			rest = append(rest, leftover{i, q == 0, r})
		}
	}
	slices.SortStableFunc(rest, func(a, b leftover) int {
		switch {
		case a.starved != b.starved:
			if a.starved {
				return -1
			}
			return 1
		case a.remainder > b.remainder:
			return -1
		case a.remainder < b.remainder:
			return 1
		}
		return 0
	})
	for _, l := range rest {
		if left == 0 {
			break
		}
		out[l.i]++
		left--
	}
	return out
}

// changed is the error of a source that contradicts a position.
func changed(violations []source.Violation) error {
	texts := make([]string, 0, len(violations))
	var hints []string
	for _, v := range violations {
		texts = append(texts, v.Text)
		if v.Hint != "" && !slices.Contains(hints, v.Hint) {
			hints = append(hints, v.Hint)
		}
	}
	return failure.New(failure.SourceChanged, "%s", strings.Join(texts, "; ")).WithHint("%s", strings.Join(hints, "; "))
}
