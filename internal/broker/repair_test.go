package broker

import (
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// sendBatch sends one idempotent batch of one record as a producer does and
// gives the offset that the broker assigned.
func sendBatch(t *testing.T, cl *kgo.Client, pid int64, sequence int32) int64 {
	t.Helper()
	b := kmsg.NewRecordBatch()
	b.Magic, b.ProducerID, b.FirstSequence, b.NumRecords = 2, pid, sequence, 1
	b.PartitionLeaderEpoch = -1
	b.Records = []byte{12, 0, 0, 0, 1, 1, 0} // one record without key, value and headers
	raw := b.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))

	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, 5000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic = "events"
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Records = raw
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := cl.Broker(0).Request(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	p := resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
		t.Fatalf("batch %d: %v", sequence, err)
	}
	return p.BaseOffset
}

func TestARetriedBatchWhoseAcknowledgementWasLostInACrashIsNotAppendedAgain(t *testing.T) {
	cfg := EmbeddedConfig{DataDir: t.TempDir(), Topics: []Topic{{"events", 1}}}
	c := spawn(t, cfg)
	byName := kversion.Stable()
	byName.SetMaxKeyVersion(int16(kmsg.Produce), 9) // later ones name topics by id
	cl := client(t, c.Bootstrap(), kgo.MaxVersions(byName))
	init := kmsg.NewPtrInitProducerIDRequest()
	init.ProducerID, init.ProducerEpoch = -1, -1
	id, err := init.RequestWith(t.Context(), cl)
	if err != nil || id.ErrorCode != 0 {
		t.Fatal(err, id)
	}
	for i := range int32(7) {
		if at := sendBatch(t, cl, id.ProducerID, i); at != int64(i) {
			t.Fatalf("batch %d is at offset %d", i, at)
		}
	}
	c.Kill9()
	c = spawn(t, cfg)
	cl = client(t, c.Bootstrap(), kgo.MaxVersions(byName))
	for _, i := range []int32{6, 5} {
		if at := sendBatch(t, cl, id.ProducerID, i); at != int64(i) {
			t.Fatalf("the retry of batch %d was appended at offset %d", i, at)
		}
	}
	if at := sendBatch(t, cl, id.ProducerID, 7); at != 7 {
		t.Fatalf("the next batch is at offset %d, want 7", at)
	}
}
