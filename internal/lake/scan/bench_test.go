package scan_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/lake/scan"
	"github.com/weirlake/weir/internal/source/iceberg/bronzetest"
)

func cpuSeconds() float64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}

// BenchmarkRange reads 100,000 rows of 1.1 KB in four partitions, committed in
// ten batches, as silver does (value and metadata columns only).
func BenchmarkRange(b *testing.B) {
	const batches, rowsPerPartition = 10, 2500
	r := rand.New(rand.NewPCG(5, 5))
	words := make([]string, 2000)
	for i := range words {
		words[i] = fmt.Sprintf("%x", r.Uint32())
	}
	t := bronzetest.New(b, 4)
	since := t.Load().CurrentSnapshot().SnapshotID
	var want []batch.Range
	for i := range batches {
		var rows []bronzetest.Row
		for p := range int32(4) {
			part := bronzetest.Rows(p, int64(i*rowsPerPartition), rowsPerPartition, day0)
			for k := range part {
				var s strings.Builder
				for s.Len() < 1100 {
					s.WriteString(`"field":"`)
					s.WriteString(words[min(r.IntN(2000), r.IntN(2000))])
				}
				part[k].Value = s.String()
			}
			rows = append(rows, part...)
		}
		t.Commit(rows...)
	}
	for p := range int32(4) {
		want = append(want, batch.Range{Topic: bronzetest.Topic, Partition: p, From: 0, To: batches * rowsPerPartition})
	}
	tbl := t.Load()
	for _, parallel := range []int{1, 2} {
		b.Run(fmt.Sprintf("parallel=%d", parallel), func(b *testing.B) {
			cpu := cpuSeconds()
			var n int64
			for b.Loop() {
				res, err := scan.Range(b.Context(), scan.Request{Table: tbl, SnapshotID: tbl.CurrentSnapshot().SnapshotID, Since: since, Want: want,
					Columns: []string{"partition", "offset", "timestamp", "value"}, Parallel: parallel}, func(rec arrow.RecordBatch) error {
					rec.Release()
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
				n += res.Rows
			}
			b.ReportMetric((cpuSeconds()-cpu)/float64(n)*1e6, "cpu-s/Mrow")
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}
