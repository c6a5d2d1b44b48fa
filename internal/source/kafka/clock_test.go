package kafka

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/clock"
)

// set is a clock that somebody sets by a jump after the first few looks at it.
type set struct {
	clock.System
	looks atomic.Int64
	by    time.Duration
}

func (s *set) Now() time.Time {
	if s.looks.Add(1) > 3 {
		return s.System.Now().Add(s.by)
	}
	return s.System.Now()
}

func TestAClockThatIsSetNeitherHoldsAReadUpNorEndsIt(t *testing.T) {
	c := fake(t, 1)
	addr := c.ListenAddrs()[0]
	cl := client(t, addr, kgo.TransactionalID("t"))
	// A range that a probe must end: nothing in it counts.
	transaction(t, cl, 0, 0, 5, kgo.TryAbort)
	for _, by := range []time.Duration{-time.Hour, time.Hour} {
		clk := &set{by: by}
		s, err := New(Config{Client: broker.Config{BootstrapServers: []string{addr}}, Topics: []string{topic}}, clk, testLog(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		p := plan(t, s, initial(t, s), 0)
		clk.looks.Store(0)
		if rows, _ := mustRead(t, s, p.Start, p.End); len(rows) != 0 {
			t.Errorf("%s: %d rows of an aborted transaction", by, len(rows))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		clk.looks.Store(0)
		if err := s.Wait(ctx, p.End); err != nil {
			t.Errorf("%s: a wait for new records: %v", by, err)
		}
		cancel()
	}
}

func TestControlRecordsThatAProbeHasPassedMayComeLate(t *testing.T) {
	record := func(offset int64, control bool) *kgo.Record {
		r := &kgo.Record{Offset: offset}
		if control {
			r.Attrs = controlAttrs(t)
		}
		return r
	}
	p := &partition{fetched: 4}
	if err := p.accept([]*kgo.Record{record(3, true), record(4, false)}); err != nil || p.fetched != 5 {
		t.Fatalf("a marker before the place, and a record at it: %v, then at %d", err, p.fetched)
	}
	if err := p.accept([]*kgo.Record{record(4, false)}); err == nil {
		t.Fatal("a record was taken twice")
	}
}

// controlAttrs are those of a transaction's marker, as a client gives them.
func controlAttrs(t *testing.T) kgo.RecordAttrs {
	t.Helper()
	c := fake(t, 1)
	addr := c.ListenAddrs()[0]
	transaction(t, client(t, addr, kgo.TransactionalID("t")), 0, 0, 1, kgo.TryAbort)
	cl := client(t, addr, kgo.ConsumeTopics(topic), kgo.KeepControlRecords(), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		fs := cl.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			t.Fatal(err)
		}
		for _, r := range fs.Records() {
			if r.Attrs.IsControl() {
				return r.Attrs
			}
		}
	}
}
