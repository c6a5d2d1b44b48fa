package sim

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// refusals are the errors with which a broker answers for one partition, by
// request, while a cluster is moving: all of them pass by themselves.
var refusals = map[kmsg.Key][]*kerr.Error{
	kmsg.Fetch: {kerr.NotLeaderForPartition, kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.OffsetOutOfRange,
		kerr.FencedLeaderEpoch, kerr.UnknownLeaderEpoch, kerr.KafkaStorageError, kerr.OffsetNotAvailable},
	kmsg.ListOffsets:          {kerr.NotLeaderForPartition, kerr.UnknownTopicOrPartition, kerr.LeaderNotAvailable, kerr.OffsetNotAvailable},
	kmsg.Metadata:             {kerr.LeaderNotAvailable, kerr.UnknownTopicOrPartition},
	kmsg.OffsetForLeaderEpoch: {kerr.NotLeaderForPartition, kerr.UnknownTopicOrPartition, kerr.FencedLeaderEpoch},
}

// partitions are the parts of the answer that are of one partition each (of a
// topic, for metadata), in order.
func (m *message) partitions() (out []any) {
	switch r := m.resp.(type) {
	case *kmsg.FetchResponse:
		for i := range r.Topics {
			for j := range r.Topics[i].Partitions {
				out = append(out, &r.Topics[i].Partitions[j])
			}
		}
	case *kmsg.ListOffsetsResponse:
		for i := range r.Topics {
			for j := range r.Topics[i].Partitions {
				out = append(out, &r.Topics[i].Partitions[j])
			}
		}
	case *kmsg.OffsetForLeaderEpochResponse:
		for i := range r.Topics {
			for j := range r.Topics[i].Partitions {
				out = append(out, &r.Topics[i].Partitions[j])
			}
		}
	case *kmsg.MetadataResponse:
		for i := range r.Topics {
			out = append(out, &r.Topics[i])
		}
	}
	slices.SortFunc(out, func(a, b any) int { return cmp.Compare(number(a), number(b)) })
	return out
}

func number(part any) int32 {
	switch p := part.(type) {
	case *kmsg.FetchResponseTopicPartition:
		return p.Partition
	case *kmsg.ListOffsetsResponseTopicPartition:
		return p.Partition
	case *kmsg.OffsetForLeaderEpochResponseTopicPartition:
		return p.Partition
	}
	return 0
}

// tamper is the answer as the process gets it; nil where it gets none.
func (m *message) tamper(v verdict) []byte {
	parts := m.partitions()
	switch v.fault {
	case none:
		return m.raw
	case refusal:
		codes := refusals[kmsg.Key(m.key)]
		if len(parts) == 0 || len(codes) == 0 {
			return nil
		}
		m.refuse(parts[v.pick%len(parts)], codes[v.pick/len(parts)%len(codes)])
	case partial:
		if !m.shorten(parts, v.pick) {
			return m.raw
		}
	default:
		return nil
	}
	return m.encode()
}

func (m *message) refuse(part any, e *kerr.Error) {
	switch p := part.(type) {
	case *kmsg.FetchResponseTopicPartition:
		p.ErrorCode, p.RecordBatches, p.HighWatermark, p.LastStableOffset, p.LogStartOffset = e.Code, []byte{}, -1, -1, -1
		p.AbortedTransactions = nil
	case *kmsg.ListOffsetsResponseTopicPartition:
		p.ErrorCode, p.Offset, p.Timestamp = e.Code, -1, -1
	case *kmsg.OffsetForLeaderEpochResponseTopicPartition:
		p.ErrorCode, p.LeaderEpoch, p.EndOffset = e.Code, -1, -1
	case *kmsg.MetadataResponseTopic:
		if e == kerr.UnknownTopicOrPartition {
			p.ErrorCode, p.Partitions = e.Code, nil
			return
		}
		for i := range p.Partitions {
			p.Partitions[i].ErrorCode, p.Partitions[i].Leader = e.Code, -1
		}
	}
}

// shorten cuts the records of a partition as a broker does whose answer is full:
// somewhere, within a batch too.
func (m *message) shorten(parts []any, pick int) bool {
	for i := range parts {
		p, ok := parts[(pick+i)%len(parts)].(*kmsg.FetchResponseTopicPartition)
		if ok && len(p.RecordBatches) > 0 {
			p.RecordBatches = p.RecordBatches[:pick%len(p.RecordBatches)]
			return true
		}
	}
	return false
}

// records counts what is in record batches.
func records(b []byte) (n int) {
	for len(b) > 61 {
		n += int(binary.BigEndian.Uint32(b[57:]))
		size := 12 + int(binary.BigEndian.Uint32(b[8:]))
		b = b[min(size, len(b)):]
	}
	return n
}
