package datafile

import (
	"fmt"
	"io"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go"
)

// discardFS throws the bytes away, so that the benchmark measures encoding.
type discardFS struct{}

type discard struct{ io.Writer }

func (discard) Close() error { return nil }

func (discardFS) Create(string) (io.WriteCloser, error) { return discard{io.Discard}, nil }

// events makes bronze rows with JSON values of about 1.15 KB that repeat
// themselves about as much as recent-change events do.
func events(n int) ([]arrow.RecordBatch, int64) {
	r := rand.New(rand.NewPCG(7, 7))
	words := make([]string, 4000)
	for i := range words {
		b := make([]byte, 3+r.IntN(9))
		for j := range b {
			b[j] = "etaoinshrdlucmfwypvbgkqjxz"[min(r.IntN(26), r.IntN(26))]
		}
		words[i] = string(b)
	}
	text := func(n int) string {
		s := ""
		for range n {
			s += words[min(r.IntN(len(words)), r.IntN(len(words)))] + " "
		}
		return s
	}
	wikis := []string{"enwiki", "dewiki", "commonswiki", "wikidatawiki", "frwiki", "zhwiki"}
	const perRecord = 5000
	var out []arrow.RecordBatch
	var bytes int64
	for at := 0; at < n; at += perRecord {
		rows := make([]row, 0, perRecord)
		for i := at; i < min(n, at+perRecord); i++ {
			wiki := wikis[r.IntN(len(wikis))]
			title := text(3)
			v := fmt.Sprintf(`{"$schema":"/mediawiki/recentchange/1.0.0","meta":{"uri":"https://%s.example.org/wiki/%s","request_id":"%08x-%04x-4%03x-a%03x-%012x","id":"%08x-%04x-4%03x-b%03x-%012x","dt":"2026-01-01T%02d:%02d:%02d.%03dZ","domain":"%s.example.org","stream":"mediawiki.recentchange","topic":"eqiad.mediawiki.recentchange","partition":0,"offset":%d},"id":%d,"type":"edit","namespace":%d,"title":"%s","title_url":"https://%s.example.org/wiki/%s","comment":"%s","timestamp":%d,"user":"%s","bot":%t,"notify_url":"https://%s.example.org/w/index.php?diff=%d&oldid=%d","minor":%t,"patrolled":true,"length":{"old":%d,"new":%d},"revision":{"old":%d,"new":%d},"server_url":"https://%s.example.org","server_name":"%s.example.org","server_script_path":"/w","wiki":"%s","parsedcomment":"%s"}`,
				wiki, title, r.Uint32(), r.IntN(65536), r.IntN(4096), r.IntN(4096), r.Uint64N(1<<48), r.Uint32(), r.IntN(65536), r.IntN(4096), r.IntN(4096), r.Uint64N(1<<48),
				r.IntN(24), r.IntN(60), r.IntN(60), r.IntN(1000), wiki, 5_000_000_000+i, r.IntN(2_000_000_000), r.IntN(16), title, wiki, title, text(r.IntN(20)), 1_767_225_600+i, text(1), r.IntN(3) == 0,
				wiki, r.IntN(1_200_000_000), r.IntN(1_200_000_000), r.IntN(2) == 0, r.IntN(100_000), r.IntN(100_000), r.IntN(1_200_000_000), r.IntN(1_200_000_000), wiki, wiki, wiki, text(r.IntN(20)))
			bytes += int64(len(v))
			rows = append(rows, row{partition: int32(i % 4), offset: int64(i), micros: 20_000*day + int64(i)*1000 + r.Int64N(900), key: fmt.Appendf(nil, "%s:%s", wiki, title), value: []byte(v), headers: []string{"sse-id"}})
		}
		out = append(out, record(rows...))
	}
	return out, bytes
}

func cpuSeconds() float64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}

// BenchmarkEncodeBronze encodes batches of 100,000 rows of 1.15 KB. Compare
// compressors with CGO_ENABLED=0.
func BenchmarkEncodeBronze(b *testing.B) {
	const n = 100_000
	recs, bytes := events(n)
	for _, parallel := range []int{1, 2} {
		b.Run(fmt.Sprintf("%s/parallel=%d", zstdLibrary, parallel), func(b *testing.B) {
			s := Spec{Schema: bronze(), PartitionSpec: byDay(), FormatVersion: 2, Location: "file:///data", FS: discardFS{}, Parallel: parallel, Properties: iceberg.Properties{}}
			b.SetBytes(bytes)
			var size int64
			cpu := cpuSeconds()
			for b.Loop() {
				w, err := NewWriter(s, "x-", nil)
				if err != nil {
					b.Fatal(err)
				}
				for _, r := range recs {
					r.Retain()
					if err := w.Write(r); err != nil {
						b.Fatal(err)
					}
				}
				files, err := w.Close(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				size = files[0].Bytes
			}
			rows := float64(b.N) * n
			b.ReportMetric((cpuSeconds()-cpu)/rows*1e6, "cpu-s/Mrow")
			b.ReportMetric(rows/b.Elapsed().Seconds(), "rows/s")
			b.ReportMetric(float64(bytes)/float64(size), "ratio")
			b.ReportMetric(float64(bytes)/n, "value-bytes")
		})
	}
}
