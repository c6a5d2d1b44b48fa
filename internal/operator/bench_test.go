package operator

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/uuid"

	"github.com/weirlake/weir/internal/marker"
)

// benchEvents are invented events in the stream's shape, about 1.1 KB, two in
// three of them edits, one in fifty a duplicate.
func benchEvents(n int) []record {
	rng := rand.New(rand.NewPCG(3, 9))
	out := make([]record, 0, n)
	for i := range n {
		if i > 100 && i%50 == 0 {
			out = append(out, out[i-99])
			continue
		}
		var b [16]byte
		binary.BigEndian.PutUint64(b[:], rng.Uint64())
		binary.BigEndian.PutUint64(b[8:], rng.Uint64())
		typ, more := "edit", `,"minor":false,"patrolled":true,"length":{"old":52012,"new":52344},"revision":{"old":1234567880,"new":1234567890}`
		if i%3 == 2 {
			typ, more = "categorize", ""
		}
		out = append(out, record{value: fmt.Appendf(nil, `{"$schema":"/mediawiki/recentchange/1.0.0","meta":{"uri":"https://en.wikipedia.org/wiki/Talk:An_invented_page_of_some_length","request_id":"7d2f3a52-4d6c-4c3b-9a3e-0c4f2b1d6e11","id":"%s","dt":"%s","domain":"en.wikipedia.org","stream":"mediawiki.recentchange","topic":"eqiad.mediawiki.recentchange","partition":0,"offset":%d},"id":%d,"type":"%s","namespace":1,"title":"Talk:An invented page of some length","title_url":"https://en.wikipedia.org/wiki/Talk:An_invented_page_of_some_length","comment":"/* A section */ Reply with \"quotes\" — and a dash","timestamp":1777889472,"user":"Someone Ünüsual","bot":false,"notify_url":"https://en.wikipedia.org/w/index.php?diff=1234567890&oldid=1234567880&rcid=1987654321","server_url":"https://en.wikipedia.org","server_name":"en.wikipedia.org","server_script_path":"/w","wiki":"enwiki","parsedcomment":"<span class=\"autocomment\"><a href=\"/wiki/Talk:X#A_section\">→A section</a></span> Reply with quotes"%s}`,
			uuid.UUID(b), at(now-int64(n-i)*1000), 6123456789+i, 1987654321+i, typ, more)})
	}
	return out
}

// BenchmarkSilver is the whole chain of silver.edits, records of 8,192 rows:
// divide ns/op by 8.192 for ns a row. "wall" uses two goroutines.
func BenchmarkSilver(b *testing.B) {
	for name, parallelism := range map[string]int{"cpu": 1, "wall": 2} {
		b.Run(name, func(b *testing.B) {
			recs := benchEvents(blockRows)
			rec := rows(memory.DefaultAllocator, 0, recs)
			defer rec.Release()
			cfg := edits()
			cfg.Parallelism = parallelism
			tr, err := New(cfg)
			if err != nil {
				b.Fatal(err)
			}
			emit := func(_ string, rec arrow.RecordBatch) error { rec.Release(); return nil }
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				if err := tr.Begin(Env{BatchTimeMicros: now, Watermark: marker.Watermark{Micros: marker.MinTime}}); err != nil {
					b.Fatal(err)
				}
				rec.Retain()
				if err := tr.Process(rec, emit); err != nil {
					b.Fatal(err)
				}
				res, err := tr.Finish(emit)
				if err != nil || res.Counters.Emitted < 5000 {
					b.Fatal(res, err)
				}
				tr.Rollback() // the same events are new again
				n += len(recs)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(n), "s/M-rows")
		})
	}
}
