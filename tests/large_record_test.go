package tests

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/kafkatest"
)

const (
	largeBytes = 20_000_000
	largeLimit = 24 << 20
	largeTopic = "large"
)

// TestARecordOf20MBLandsInBronzeByteForByte runs a pipeline that says nothing of
// sizes: only the topic lets records of this size in.
func TestARecordOf20MBLandsInBronzeByteForByte(t *testing.T) {
	l := newLab(t, 0)
	l.landLarge(l.broker.Bootstrap())
}

func TestARecordOf20MBOfASecuredKafkaLandsInBronzeByteForByte(t *testing.T) {
	if os.Getenv("WEIR_TEST_SECURE") == "" {
		t.Skip("a record of 20 MB through a real Kafka with TLS and log-in is part of make secure: set WEIR_TEST_SECURE=1")
	}
	python(t)
	k := kafkatest.StartSecure(t, fmt.Sprintf("message.max.bytes=%d", largeLimit), fmt.Sprintf("replica.fetch.max.bytes=%d", largeLimit))
	l := newLab(t, 0)
	l.useSecure(k, kafkatest.User, k.Password)
	l.landLarge(k.Bootstrap())
}

// landLarge sends bytes that do not compress and bytes that do, between small
// records, and compares the values that PyIceberg reads.
func (l *lab) landLarge(bootstrap string) {
	t := l.t
	t.Helper()
	python(t)
	noise := make([]byte, largeBytes)
	if _, err := rand.NewChaCha8([32]byte{20}).Read(noise); err != nil {
		t.Fatal(err)
	}
	values := [][]byte{[]byte("before"), noise, []byte("between"), make([]byte, largeBytes), []byte("after")}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ProducerBatchMaxBytes(largeLimit),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MaxBufferedBytes(4*largeLimit))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	limit := fmt.Sprint(largeLimit)
	if _, err := kadm.NewClient(cl).CreateTopic(ctx, 1, 1, map[string]*string{"max.message.bytes": &limit}, largeTopic); err != nil {
		t.Fatal(err)
	}
	for i, v := range values {
		if err := cl.ProduceSync(ctx, &kgo.Record{Topic: largeTopic, Value: v}).FirstErr(); err != nil {
			t.Fatalf("record %d: %v", i, err)
		}
	}
	l.edit("topics: [edits]", "topics: ["+largeTopic+"]")
	l.edit("maxOffsetsPerTrigger: 200", "maxOffsetsPerTrigger: 2") // several batches
	l.run(exitOK)
	rows := l.dump(labBronze, "--digest", "value")
	if len(rows) != len(values) {
		t.Fatalf("%d rows of %d records", len(rows), len(values))
	}
	for _, r := range rows {
		at, err := r["offset"].(json.Number).Int64()
		if err != nil || at < 0 || at >= int64(len(values)) {
			t.Fatalf("offset %v", r["offset"])
		}
		sum := sha256.Sum256(values[at])
		want := fmt.Sprintf("map[bytes:%d sha256:%s]", len(values[at]), hex.EncodeToString(sum[:]))
		if got := fmt.Sprint(r["value"]); got != want {
			t.Errorf("offset %d: %s, want %s", at, got, want)
		}
	}
	if a := l.audit(exitOK)[labBronze]; !a.Exact || a.Rows != int64(len(values)) {
		t.Errorf("audit %+v", a)
	}
}
