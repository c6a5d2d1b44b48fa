package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/source"
)

const (
	probeBytes   = 1 << 20
	probeWaitMs  = 10
	probeTimeout = 5 * time.Second
	// probeSteps bounds how often one probe follows batches without records.
	probeSteps = 64
)

// idle looks after a read to which nothing came: it asks the broker, partition
// by partition, whether anything is left in the range, and gives up when
// nothing has come for too long.
func (rd *reading) idle(ctx context.Context) error {
	if quiet, probed := rd.quiet.Passed(), rd.probed.Passed(); quiet < probeAfter || probed < probeAfter {
		return nil
	}
	rd.probed.Reset()
	present, answered := false, false
	rd.short = false
	for _, p := range rd.r.parts {
		if p.done() {
			continue
		}
		found, err := rd.probe(ctx, p)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var classified *failure.Error
		if errors.As(err, &classified) {
			return err
		}
		if none := broker.Exhausted(err); none != nil {
			return none
		}
		if err != nil {
			rd.probeErr = err
			continue
		}
		answered = true
		present = present || found
	}
	if answered {
		rd.probeErr = nil
	}
	switch {
	case rd.complete():
		return nil
	case !present:
		rd.present = nil
	case rd.present == nil:
		rd.present = rd.s.watch()
	case rd.present.Passed() > rebuildAfter:
		rd.present.Reset()
		rd.s.log.Warn("the broker has records that the consumer does not get; consuming anew", "partitions", fmt.Sprint(rd.behind()))
		return rd.rebuild(ctx)
	}
	if rd.quiet.Passed() < rd.s.cfg.UnreachableAfter {
		return nil
	}
	return rd.giveUp()
}

func (rd *reading) behind() (out []*partition) {
	for _, p := range rd.r.parts {
		if !p.done() {
			out = append(out, p)
		}
	}
	return out
}

func (rd *reading) giveUp() error {
	p := rd.behind()[0]
	switch {
	case rd.probeErr != nil:
		return rd.s.unreachable(rd.probeErr, fmt.Sprintf("read partition %s at offset %d", p.tp, p.fetched))
	case rd.short:
		return changed([]source.Violation{{Topic: p.tp.Topic, Partition: p.tp.Partition, From: p.fetched, To: p.end, Lost: true,
			Text: fmt.Sprintf("partition %s has nothing stable at [%d, %d), which was stable when the batch was planned", p.tp, p.fetched, p.end),
			Hint: hintTruncated}})
	}
	return failure.Wrap(failure.Runtime, rd.clientErr, "partition %s gave no record at offset %d for %s, although the broker answers", p.tp, p.fetched, rd.s.cfg.UnreachableAfter).
		WithHint("starting again is safe; if it repeats, look at the broker's log for that partition")
}

// probe asks the leader for what is at the partition's place. A fetch of one
// partition always carries its next batch, however large (KIP-74); so an answer
// without any bytes, with the last stable offset at or beyond the end, proves that
// nothing is left in the range: it was compacted away, or removed with its marker.
// It returns whether there are records that the consumer still has to get.
func (rd *reading) probe(ctx context.Context, p *partition) (present bool, err error) {
	at := p.fetched
	for range probeSteps {
		rp, err := rd.s.fetchOne(ctx, p, at)
		if err != nil {
			return false, err
		}
		switch err := kerr.ErrorForCode(rp.ErrorCode); {
		case errors.Is(err, kerr.OffsetOutOfRange), errors.Is(err, kerr.UnknownTopicID),
			errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.InconsistentTopicID):
			violations, verr := rd.s.Verify(ctx, rd.place())
			if verr != nil {
				return false, verr
			}
			if len(violations) > 0 {
				return false, changed(violations)
			}
			return false, err
		case err != nil:
			return false, fmt.Errorf("probe partition %s: %w", p.tp, err)
		}
		fp, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
			Offset: at, IsolationLevel: kgo.ReadCommitted(), Topic: p.tp.Topic, Partition: p.tp.Partition,
		}, rp, kgo.DefaultDecompressor(), nil)
		switch {
		case fp.Err != nil:
			return false, fmt.Errorf("probe partition %s: %w", p.tp, fp.Err)
		case len(fp.Records) > 0 && fp.Records[0].Offset < p.end:
			return true, nil
		case len(fp.Records) == 0 && next == at && len(rp.RecordBatches) > 0:
			return true, nil // a part of a batch: what it holds is not known
		case len(fp.Records) > 0, next >= p.end, next == at && rp.LastStableOffset >= p.end:
			p.fetched = p.end
			return false, nil
		case next == at:
			rd.short = true // a recovering broker; or a truncated log
			return false, nil
		}
		at = next
	}
	return true, nil
}

// fetchOne fetches one partition from its leader.
func (s *Source) fetchOne(ctx context.Context, p *partition, at int64) (*kmsg.FetchResponseTopicPartition, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	meta, err := s.metadata(ctx, []string{p.tp.Topic})
	if err != nil {
		return nil, err
	}
	v, err := viewOf(meta)
	if err != nil {
		return nil, err
	}
	t, ok := v.topics[p.tp.Topic]
	if !ok || (p.topicID != "" && t.id != p.topicID) {
		return &kmsg.FetchResponseTopicPartition{ErrorCode: kerr.UnknownTopicID.Code}, nil
	}
	leader, ok := t.leaders[p.tp.Partition]
	if !ok || leader < 0 {
		return nil, fmt.Errorf("partition %s: %w", p.tp, kerr.LeaderNotAvailable)
	}
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes = probeWaitMs, 1, probeBytes
	req.IsolationLevel = 1
	req.SessionEpoch = -1
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID = p.tp.Topic, meta.Topics[0].TopicID
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = p.tp.Partition, at, probeBytes
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	kresp, err := s.cl.Broker(int(leader)).RetriableRequest(ctx, req)
	if err != nil {
		return nil, err
	}
	resp := kresp.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, err
	}
	for i := range resp.Topics {
		for j := range resp.Topics[i].Partitions {
			return &resp.Topics[i].Partitions[j], nil
		}
	}
	return nil, fmt.Errorf("partition %s: the broker gave no answer", p.tp)
}
