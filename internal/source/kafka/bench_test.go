package kafka

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/source"
)

// cpuSeconds is what this process has used.
func cpuSeconds() float64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}

// event is about 1.1 KB that compresses about as JSON events do.
func event(rnd *rand.Rand, i int) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `{"id":%d,"meta":{"id":"%016x%016x"`, i, rnd.Uint64(), rnd.Uint64())
	for f := 0; b.Len() < 1080; f++ {
		fmt.Fprintf(&b, `,"field_%02d":{"title":"Page number %d","user":"User%x","bot":false}`, f, rnd.IntN(1e6), rnd.Uint32())
	}
	b.WriteString("}}")
	return []byte(b.String())
}

// BenchmarkRead measures consuming alone: fetch, decompress, append to Arrow.
// The embedded broker runs in this process and its CPU is counted too, unless
// WEIR_BENCH_KAFKA names a broker of its own.
//
//	go test -run '^$' -bench Read -benchtime 1x ./internal/source/kafka
func BenchmarkRead(b *testing.B) {
	for _, codec := range []struct {
		name string
		c    kgo.CompressionCodec
	}{{"none", kgo.NoCompression()}, {"zstd", kgo.ZstdCompression()}} {
		b.Run(codec.name, func(b *testing.B) { benchmarkRead(b, codec.c) })
	}
}

func benchmarkRead(b *testing.B, codec kgo.CompressionCodec) {
	const rows, partitions, limit = 400_000, 4, 100_000
	addr := os.Getenv("WEIR_BENCH_KAFKA")
	if addr == "" {
		addr = fake(b, partitions).ListenAddrs()[0]
	} else {
		recreateForBench(b, addr, partitions)
	}
	cl := client(b, addr, kgo.ProducerBatchCompression(codec), kgo.ProducerBatchMaxBytes(1<<20), kgo.MaxBufferedRecords(50_000))
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range rows {
		cl.Produce(b.Context(), &kgo.Record{Topic: topic, Partition: int32(i % partitions), Value: event(rnd, i)}, func(_ *kgo.Record, err error) {
			if err != nil {
				b.Error(err)
			}
		})
	}
	if err := cl.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	cl.Close()
	for b.Loop() {
		s := newSource(b, addr)
		pos := initial(b, s)
		cpu, begun := cpuSeconds(), clock.System{}.Now()
		var n int64
		for {
			p := plan(b, s, pos, limit)
			if p.Start.Offsets(p.End) == 0 {
				break
			}
			res, err := s.Read(b.Context(), p.Start, p.End, source.ReadEnv{}, func(rec arrow.RecordBatch) error {
				n += rec.NumRows()
				rec.Release()
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
			pos = batch.Position{Kafka: res.End.Kafka}
		}
		elapsed := clock.System{}.Now().Sub(begun).Seconds()
		if n != rows {
			b.Fatalf("%d rows, want %d", n, rows)
		}
		b.ReportMetric(float64(n)/elapsed, "rows/s")
		b.ReportMetric((cpuSeconds()-cpu)/float64(n)*1e6, "cpu-s/Mrows")
		b.ReportMetric(peakRSS(), "peak-MB")
		_ = s.Close()
	}
}

func recreateForBench(b *testing.B, addr string, partitions int32) {
	cl := client(b, addr)
	defer cl.Close()
	recreate(b, cl, partitions)
}

// peakRSS is the peak of this process in MB.
func peakRSS() float64 {
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(raw), "VmHWM:")
	kb, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	return kb / 1024
}
