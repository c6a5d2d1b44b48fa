package operator

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/marker"
)

// partitioned plays batches of (partition, seconds) pairs, each a minute of
// batch time after the one before.
type partitioned struct {
	*run
	mark  marker.Watermark
	n     int64
	extra int64 // minutes of batch time without a batch
}

func newPartitioned(t *testing.T, idle time.Duration) *partitioned {
	t.Helper()
	r := newRun(t, Config{
		Columns:   []Column{{Name: "at", Path: "$.at", Type: "timestamptz", TimeFormat: "epochSeconds", Required: true}},
		Watermark: &Watermark{Column: "at", Delay: 10 * time.Second, MaxFutureSkew: time.Hour, PerPartition: true, IdleTimeout: idle},
	})
	return &partitioned{run: r, mark: marker.Watermark{Micros: marker.MinTime}}
}

func (p *partitioned) play(events ...[2]int64) (Result, int64) {
	p.t.Helper()
	p.n++
	env := Env{BatchID: p.n, BatchTimeMicros: now + (p.n+p.extra)*60*second, Watermark: p.mark, Partitions: []string{"t-0", "t-1", "t-2"}}
	if err := p.tr.Begin(env); err != nil {
		p.t.Fatal(err)
	}
	var recs []record
	for _, e := range events {
		recs = append(recs, record{partition: int32(e[0]), value: fmt.Appendf(nil, `{"at":%d}`, now/second+e[1])})
	}
	if err := p.tr.Process(rows(p.mem, 0, recs), p.emit); err != nil {
		p.t.Fatal(err)
	}
	res, err := p.tr.Finish(p.emit)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mark = res.Watermark
	return res, res.Watermark.Micros/second - now/second
}

func TestTheWatermarkIsTheLeastOfThePartitionsThatAreNotIdle(t *testing.T) {
	p := newPartitioned(t, 3*time.Minute)
	if res, _ := p.play([2]int64{0, 100}, [2]int64{1, 50}); res.Watermark.Micros != marker.MinTime {
		t.Fatalf("partition 2 has delivered nothing and does not hold back: %+v", res.Watermark)
	}
	if _, w := p.play([2]int64{2, 80}); w != 40 {
		t.Fatalf("the watermark is at %d s, the least partition at 50 less 10", w)
	}
	if res, w := p.play([2]int64{0, 110}, [2]int64{2, 90}, [2]int64{1, 30}); w != 40 || res.Counters.Late != 1 {
		t.Fatalf("%d s, %+v", w, res.Counters)
	}
	p.play([2]int64{0, 120}, [2]int64{2, 100})
	p.play([2]int64{0, 130}, [2]int64{2, 105})
	if res, w := p.play([2]int64{0, 140}, [2]int64{2, 120}); w != 110 || fmt.Sprint(res.Watermark.Idle) != "[t-1]" {
		t.Fatalf("partition 1 is idle: %d s, idle %v", w, res.Watermark.Idle)
	}
	// It comes back behind: late, and it does not move the watermark back.
	if res, w := p.play([2]int64{1, 60}, [2]int64{1, 115}); w != 110 || res.Counters.Late != 1 || len(res.Watermark.Idle) != 0 {
		t.Fatalf("%d s, %+v, idle %v", w, res.Counters, res.Watermark.Idle)
	}
}

func TestWhereAllPartitionsAreIdleTheWatermarkStays(t *testing.T) {
	p := newPartitioned(t, 3*time.Minute)
	_, before := p.play([2]int64{0, 100}, [2]int64{1, 50}, [2]int64{2, 80})
	p.extra = 60
	if res, w := p.play(); w != before || len(res.Watermark.Idle) != 3 {
		t.Fatalf("%d s, it was at %d; idle %v", w, before, res.Watermark.Idle)
	}
}

func TestAPartitionThatIsNeverIdleHoldsTheWatermarkBackForEver(t *testing.T) {
	p := newPartitioned(t, 0)
	p.play([2]int64{0, 100}, [2]int64{1, 50}, [2]int64{2, 80})
	p.extra = 60 * 24
	if _, w := p.play([2]int64{0, 900}, [2]int64{2, 900}); w != 40 {
		t.Fatalf("the watermark is at %d s", w)
	}
}

func TestADroppedBatchLeavesTheWatermarkOfThePartitions(t *testing.T) {
	p := newPartitioned(t, time.Minute)
	p.play([2]int64{0, 100}, [2]int64{1, 50}, [2]int64{2, 80})
	kept, before := p.mark, fmt.Sprint(p.mark)
	p.play([2]int64{1, 500})
	p.tr.Rollback()
	if fmt.Sprint(kept) != before {
		t.Fatalf("a batch changed the watermark that it was given: %v, %s", kept, before)
	}
}
