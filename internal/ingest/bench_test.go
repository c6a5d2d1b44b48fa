package ingest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// BenchmarkIngest measures stream bytes to acknowledged records. The broker
// answers without storing, so that the ingestion is what is measured; the
// server's and the broker's share of the CPU is still in cpu-s/M.
func BenchmarkIngest(b *testing.B) {
	const block = 2000
	rng := rand.New(rand.NewPCG(1, 2))
	var words []string
	for range 3000 {
		w := make([]byte, 3+rng.IntN(8))
		for i := range w {
			w[i] = "etaoinshrdlucmfwypvbgkjqxz"[min(rng.IntN(26), rng.IntN(26))]
		}
		words = append(words, string(w))
	}
	var sb strings.Builder
	for i := range block {
		var pad strings.Builder
		for pad.Len() < 720 {
			pad.WriteString(words[rng.IntN(len(words))] + " ")
		}
		fmt.Fprintf(&sb, "event: message\nid: [{\"topic\":\"eqiad.mediawiki.recentchange\",\"partition\":0,\"timestamp\":%d},{\"topic\":\"codfw.mediawiki.recentchange\",\"partition\":0,\"offset\":-1}]\ndata: %s\n\n",
			baseMillis+i, strings.Replace(event(i), `"bot":false`, `"bot":false,"comment":"`+pad.String()+`"`, 1))
	}
	text := []byte(sb.String())
	for _, d := range []Delivery{AtLeastOnce, ExactlyOnce} {
		for _, comp := range []string{"none", "snappy", "lz4", "zstd"} {
			if d == ExactlyOnce && comp != "snappy" {
				continue
			}
			b.Run(fmt.Sprintf("%s/%s", d, comp), func(b *testing.B) {
				benchIngest(b, text, block, d, comp)
			})
		}
	}
}

func benchIngest(b *testing.B, text []byte, block int, d Delivery, comp string) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	if d == AtLeastOnce {
		c.ControlKey(int16(kmsg.Produce), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			return ackAll(kreq.(*kmsg.ProduceRequest)), nil, true
		})
	}
	blocks := (b.N + block - 1) / block
	served := false
	url := serve(b, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if served {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		served = true
		w.Header().Set("Content-Type", "text/event-stream")
		for range blocks {
			_, _ = w.Write(text)
		}
	}))
	cfg := testConfig(b, url, c.ListenAddrs(), d)
	cfg.SaveInterval, cfg.TxnInterval, cfg.Linger, cfg.Compression = time.Second, 500*time.Millisecond, 5*time.Millisecond, comp
	b.ResetTimer()
	cpu := cpuSeconds()
	st, err := Run(context.Background(), cfg, Deps{Kafka: []kgo.Opt{kgo.ClientID("bench")}})
	if err != nil {
		b.Fatal(err)
	}
	n := float64(blocks * block)
	b.ReportMetric(n/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric((cpuSeconds()-cpu)/n*1e6, "cpu-s/M")
	b.ReportMetric(0, "ns/op")
	if st.Published != int64(n) {
		b.Fatalf("%d of %v published", st.Published, n)
	}
}

// ackAll acknowledges a request without looking at its records.
func ackAll(req *kmsg.ProduceRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ProduceResponse)
	for _, t := range req.Topics {
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.Partition = p.Partition
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}
