package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/source"
)

// verifyTries is how often a contradiction that a recovering cluster can show
// for a moment (a topic missing, a log that ends early) must be seen.
const verifyTries = 4

const (
	hintOtherCluster = "point the source back at the cluster that the query read, or start a new lineage with onLostCheckpoint: restart (rows that are in the table come again)"
	hintRecreated    = "the topic's offsets start over, so the position means nothing in it: give the query a new name and table, or start a new lineage with onLostCheckpoint: restart"
	hintRetention    = "the records are gone from the topic: restore them from elsewhere, or set failOnDataLoss: false to go on after the gap"
	hintTruncated    = "the cluster lost records that it had acknowledged (unclean leader election, or a restored disk), and offsets after that point may name other records: compare table and topic with weir audit before starting a new lineage"
)

// Verify implements source.Source. With TolerateDataLoss, losses by retention
// are logged and left out.
func (s *Source) Verify(ctx context.Context, pos batch.Position) ([]source.Violation, error) {
	if pos.Kafka == nil {
		return nil, failure.New(failure.Config, "a Kafka source cannot verify a position that is not Kafka's")
	}
	var found []source.Violation
	for try := range verifyTries {
		if try > 0 {
			if err := s.clk.Sleep(ctx, recheckWait); err != nil {
				return nil, err
			}
		}
		violations, fleeting, err := s.verify(ctx, pos.Kafka)
		if err != nil {
			return nil, err
		}
		found = violations
		if !fleeting {
			break
		}
	}
	out := found[:0]
	for _, v := range found {
		if v.Retention && s.cfg.TolerateDataLoss {
			s.log.Warn("records were lost by retention and are skipped (failOnDataLoss: false)",
				"topic", v.Topic, "partition", v.Partition, "from", v.From, "to", v.To)
			continue
		}
		out = append(out, v)
	}
	return out, nil
}

// verify compares once; fleeting is true where a violation is of a kind that a
// recovering cluster shows for a moment.
func (s *Source) verify(ctx context.Context, pos *batch.KafkaPosition) (violations []source.Violation, fleeting bool, err error) {
	v, err := s.view(ctx, topicsOf(pos)...)
	if err != nil {
		return nil, false, err
	}
	if v.clusterID != pos.ClusterID {
		return []source.Violation{{
			Partition: -1,
			Text:      fmt.Sprintf("the position is of Kafka cluster %s, but %v is cluster %s", pos.ClusterID, s.cfg.Client.BootstrapServers, v.clusterID),
			Hint:      hintOtherCluster,
		}}, false, nil
	}
	violations, present := identities(v, pos)
	fleeting = len(violations) > 0
	logs, short, err := s.verifyLogs(ctx, pos, present)
	if err != nil {
		return nil, false, err
	}
	if err := s.verifyEpochs(ctx, pos, present, &logs); err != nil {
		return nil, false, err
	}
	if len(logs) == 0 && len(violations) == 0 {
		s.mu.Lock()
		for _, tp := range present {
			s.verified[tp] = v.topics[tp.Topic].epochs[tp.Partition]
		}
		s.mu.Unlock()
	}
	return append(violations, logs...), fleeting || short, nil
}

// identities compares topics and partitions; present are those to compare further.
func identities(v *clusterView, pos *batch.KafkaPosition) (violations []source.Violation, present []batch.TopicPartition) {
	told := map[string]bool{}
	pos.Each(func(topic, id string, p int32, at batch.PartitionPosition) {
		if at.HandedTo != "" {
			return
		}
		t, ok := v.topics[topic]
		text, part := "", int32(-1)
		switch {
		case !ok:
			text = fmt.Sprintf("topic %s does not exist any more", topic)
		case id != "" && t.id != id:
			text = fmt.Sprintf("topic %s was deleted and created again: its id is %s, the position is of %s", topic, t.id, id)
		default:
			if _, ok := t.epochs[p]; ok {
				present = append(present, batch.TopicPartition{Topic: topic, Partition: p})
				return
			}
			text, part = fmt.Sprintf("partition %s-%d does not exist any more", topic, p), p
		}
		if !told[text] {
			told[text] = true
			violations = append(violations, source.Violation{Topic: topic, Partition: part, Text: text, Hint: hintRecreated})
		}
	})
	return violations, present
}

// verifyLogs compares log starts and ends with the next offsets.
func (s *Source) verifyLogs(ctx context.Context, pos *batch.KafkaPosition, tps []batch.TopicPartition) (violations []source.Violation, short bool, err error) {
	starts, err := s.listStart(ctx, tps)
	if err != nil {
		return nil, false, err
	}
	ends, err := s.listEnd(ctx, tps)
	if err != nil {
		return nil, false, err
	}
	for _, tp := range tps {
		at, _ := pos.Get(tp.Topic, tp.Partition)
		if starts[tp] > at.NextOffset {
			violations = append(violations, retentionViolation(tp, at.NextOffset, starts[tp]))
		}
		if ends[tp] < at.NextOffset {
			short = true
			violations = append(violations, source.Violation{
				Topic: tp.Topic, Partition: tp.Partition, From: ends[tp], To: at.NextOffset, Lost: true,
				Text: fmt.Sprintf("partition %s ends at offset %d, but [%d, %d) was delivered already: the log was truncated", tp, ends[tp], ends[tp], at.NextOffset),
				Hint: hintTruncated,
			})
		}
	}
	return violations, short, nil
}

func retentionViolation(tp batch.TopicPartition, next, logStart int64) source.Violation {
	return source.Violation{
		Topic: tp.Topic, Partition: tp.Partition, From: next, To: logStart, Lost: true, Retention: true,
		Text: fmt.Sprintf("partition %s begins at offset %d now: [%d, %d) was removed before it was read", tp, logStart, next, logStart),
		Hint: hintRetention,
	}
}

// verifyEpochs asks where the leader epoch of the last delivered record ends.
// It must end after that record. The next offset is no measure: between it and
// the record there may be control records, which belong to other epochs.
func (s *Source) verifyEpochs(ctx context.Context, pos *batch.KafkaPosition, tps []batch.TopicPartition, violations *[]source.Violation) error {
	var req kadm.OffsetForLeaderEpochRequest
	for _, tp := range tps {
		if at, _ := pos.Get(tp.Topic, tp.Partition); at.LastOffset >= 0 && at.LeaderEpoch >= 0 {
			req.Add(tp.Topic, tp.Partition, at.LeaderEpoch)
		}
	}
	if len(req) == 0 {
		return nil
	}
	var resp kadm.OffsetsForLeaderEpochs
	unsupported := false
	err := s.retry(ctx, "compare leader epochs", func(ctx context.Context) error {
		var err error
		unsupported, err = s.epochsUnsupported(ctx)
		if err != nil || unsupported {
			return err
		}
		if resp, err = s.adm.OffsetForLeaderEpoch(ctx, req); err != nil {
			return err
		}
		for topic, parts := range req {
			for p := range parts {
				r, ok := resp[topic][p]
				if !ok {
					return fmt.Errorf("partition %s-%d: the broker gave no answer", topic, p)
				}
				if r.Err != nil {
					return fmt.Errorf("partition %s-%d: %w", topic, p, r.Err)
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if unsupported {
		s.tellUnsupported()
		return nil
	}
	for _, tp := range tps {
		r, asked := resp[tp.Topic][tp.Partition]
		at, _ := pos.Get(tp.Topic, tp.Partition)
		if v, bad := epochViolation(tp, at, r); asked && bad {
			*violations = append(*violations, v)
		}
	}
	return nil
}

// epochViolation judges one answer.
func epochViolation(tp batch.TopicPartition, at batch.PartitionPosition, r kadm.OffsetForLeaderEpoch) (source.Violation, bool) {
	v := source.Violation{Topic: tp.Topic, Partition: tp.Partition, To: at.LastOffset + 1, Lost: true, Hint: hintTruncated}
	switch {
	case r.EndOffset < 0:
		v.From = at.LastOffset
		v.Text = fmt.Sprintf("partition %s does not know leader epoch %d, which wrote the last delivered record (offset %d): the log was replaced or truncated", tp, at.LeaderEpoch, at.LastOffset)
		return v, true
	case r.EndOffset <= at.LastOffset:
		v.From = r.EndOffset
		v.Text = fmt.Sprintf("partition %s was truncated: leader epoch %d ends at offset %d, but its record at offset %d was delivered", tp, at.LeaderEpoch, r.EndOffset, at.LastOffset)
		return v, true
	}
	return v, false
}

// epochsUnsupported asks whether the brokers lack OffsetForLeaderEpoch.
func (s *Source) epochsUnsupported(ctx context.Context) (bool, error) {
	const offsetForLeaderEpochKey = 23
	versions, err := s.adm.ApiVersions(ctx)
	if err != nil {
		return false, err
	}
	for _, v := range versions.Sorted() {
		if v.Err != nil {
			if errors.Is(v.Err, kerr.UnsupportedVersion) {
				return true, nil
			}
			return false, v.Err
		}
		if _, ok := v.KeyMaxVersion(offsetForLeaderEpochKey); !ok {
			return true, nil
		}
	}
	return false, nil
}

func (s *Source) tellUnsupported() {
	s.mu.Lock()
	told := s.epochsTold
	s.epochsTold = true
	s.mu.Unlock()
	if !told {
		s.log.Warn("the Kafka brokers do not answer OffsetForLeaderEpoch: truncated logs are found only where they are shorter than the position")
	}
}
