package kafka

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
)

// presentTries bounds how often Initial looks again for a missing topic.
const presentTries = 10

// Initial implements source.Source.
func (s *Source) Initial(ctx context.Context) (batch.Position, error) {
	v, err := s.present(ctx)
	if err != nil {
		return batch.Position{}, err
	}
	tps := s.assigned(v)
	starts, err := s.listStart(ctx, tps)
	if err != nil {
		return batch.Position{}, err
	}
	ends, err := s.listStable(ctx, tps)
	if err != nil {
		return batch.Position{}, err
	}
	at, err := s.startingOffsets(ctx, tps, starts, ends)
	if err != nil {
		return batch.Position{}, err
	}
	pos := &batch.KafkaPosition{ClusterID: v.clusterID, Topics: map[string]batch.TopicPosition{}}
	for _, tp := range tps {
		pos.Set(tp.Topic, v.topics[tp.Topic].id, tp.Partition, fresh(at[tp]))
	}
	return batch.Position{Kafka: pos}, nil
}

// fresh is a position before the first delivered record.
func fresh(next int64) batch.PartitionPosition {
	return batch.PartitionPosition{NextOffset: next, LastOffset: -1, LeaderEpoch: -1}
}

// present is the cluster with every configured topic. A topic that was created
// a moment ago is not on every broker yet, so that a missing one is looked for
// again.
func (s *Source) present(ctx context.Context) (*clusterView, error) {
	for try := 0; ; try++ {
		v, err := s.view(ctx)
		if err != nil {
			return nil, err
		}
		if err = s.missing(v); err == nil {
			return v, nil
		}
		if try == presentTries {
			return nil, err
		}
		if err := s.clk.Sleep(ctx, recheckWait); err != nil {
			return nil, err
		}
	}
}

// missing fails where a configured topic does not exist, or where the
// partition filter leaves nothing of it.
func (s *Source) missing(v *clusterView) error {
	var absent []string
	for _, t := range s.cfg.Topics {
		if _, ok := v.topics[t]; !ok {
			absent = append(absent, t)
		}
	}
	if len(absent) > 0 {
		return failure.New(failure.Config, "topic %s does not exist in the Kafka cluster %s", strings.Join(absent, ", "), v.clusterID).
			WithHint("create it first, or correct the topic name of the source")
	}
	if len(s.cfg.Topics) > 0 && len(s.assigned(v)) == 0 {
		return failure.New(failure.Config, "the partition filter %q leaves no partition of topic %s",
			s.cfg.Partitions, strings.Join(s.cfg.Topics, ", "))
	}
	return nil
}

func (s *Source) startingOffsets(ctx context.Context, tps []batch.TopicPartition, starts, ends offsets) (offsets, error) {
	switch {
	case s.set.start == Latest:
		return ends, nil
	case s.set.offsets != nil:
		return s.exactOffsets(tps, starts, ends)
	case s.set.millis != noMillis:
		return s.offsetsByTime(ctx, same(tps, s.set.millis), ends)
	case s.set.byMillis != nil:
		if err := named(s.set.byMillis, tps, "startingOffsetsByTimestamp"); err != nil {
			return nil, err
		}
		at := map[batch.TopicPartition]int64{}
		for _, tp := range tps {
			at[tp] = s.set.byMillis[tp.Topic][tp.Partition]
		}
		return s.offsetsByTime(ctx, at, ends)
	}
	return starts, nil
}

// named checks that a JSON of offsets names exactly the assigned partitions,
// as Spark does: a forgotten one would start somewhere by accident.
func named(m partitionOffsets, tps []batch.TopicPartition, option string) error {
	var faults []string
	for _, tp := range tps {
		if _, ok := m[tp.Topic][tp.Partition]; !ok {
			faults = append(faults, fmt.Sprintf("partition %s is not named", tp))
		}
	}
	for topic, parts := range m {
		for p := range parts {
			if tp := (batch.TopicPartition{Topic: topic, Partition: p}); !slices.Contains(tps, tp) {
				faults = append(faults, fmt.Sprintf("partition %s is not read by this source", tp))
			}
		}
	}
	if len(faults) == 0 {
		return nil
	}
	slices.Sort(faults)
	return failure.New(failure.Config, "%s: %s", option, strings.Join(faults, "; ")).
		WithHint("name every partition; -2 is earliest and -1 latest in startingOffsets")
}

func (s *Source) exactOffsets(tps []batch.TopicPartition, starts, ends offsets) (offsets, error) {
	if err := named(s.set.offsets, tps, "startingOffsets"); err != nil {
		return nil, err
	}
	out := offsets{}
	var faults []string
	for _, tp := range tps {
		switch o := s.set.offsets[tp.Topic][tp.Partition]; {
		case o == offsetEarliest:
			out[tp] = starts[tp]
		case o == offsetLatest:
			out[tp] = ends[tp]
		case o < starts[tp] || o > ends[tp]:
			faults = append(faults, fmt.Sprintf("%s starts at %d, but its log holds [%d, %d)", tp, o, starts[tp], ends[tp]))
		default:
			out[tp] = o
		}
	}
	if len(faults) > 0 {
		return nil, failure.New(failure.Config, "startingOffsets: %s", strings.Join(faults, "; "))
	}
	return out, nil
}

func (s *Source) offsetsByTime(ctx context.Context, at map[batch.TopicPartition]int64, ends offsets) (offsets, error) {
	out, err := s.list(ctx, "find offsets by timestamp", 0, at)
	if err != nil {
		return nil, err
	}
	var faults []string
	for tp, o := range out {
		switch {
		case o >= 0:
			// A record of an open transaction has an offset already; the plan
			// reaches it when it is stable.
			out[tp] = min(o, ends[tp])
		case s.set.latestElse:
			out[tp] = ends[tp]
		default:
			faults = append(faults, fmt.Sprintf("%s has no record at or after %d ms", tp, at[tp]))
		}
	}
	if len(faults) > 0 {
		slices.Sort(faults)
		return nil, failure.New(failure.Config, "starting timestamp: %s", strings.Join(faults, "; ")).
			WithHint("set startingOffsetsByTimestampStrategy: latest to start such partitions at their end")
	}
	return out, nil
}
