package sinktest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
)

func firstClaim(t *testing.T, h Harness) {
	o := h.Open(t, "q")
	w := &writer{h: h, o: o, query: "q"}
	if f := w.facts(t); f.Exists || f.Marker != nil || f.HeadID != 0 {
		t.Fatalf("facts of nothing: %+v", f)
	}
	w.claim(t)
	f := w.facts(t)
	if !f.Exists || f.Identity == "" || f.Marker == nil || f.Marker.BatchID != -1 || !f.Marker.Claim || f.Rewound != "" {
		t.Fatalf("facts after the claim: %+v", f)
	}
	if h.Files(t) != 0 {
		t.Fatal("the claim wrote a data file")
	}
	if f.Marker.Epoch != w.permit.Epoch() || !w.permit.IssuedBy(o.Sink) {
		t.Fatalf("permit %v for marker %v", w.permit.Epoch(), f.Marker.Epoch)
	}
}

func together(t *testing.T, h Harness) {
	w := start(t, h, "q", 0)
	for i := range 3 {
		c := w.commit(t, 10)
		if c.Found || c.Marker.BatchID != int64(i) {
			t.Fatalf("committed %+v", c)
		}
		f := w.facts(t)
		if f.Marker.BatchID != int64(i) || f.Marker.Attempt != c.Marker.Attempt || f.Marker.BaseSequence >= f.HeadSequence || f.Rewound != "" {
			t.Fatalf("facts %+v", f)
		}
		wantIDs(t, h, map[int32]int64{0: int64(i+1) * 10})
	}
	// The next start goes on from the marker.
	again := start(t, h, "q", 0)
	again.commit(t, 5)
	wantIDs(t, h, map[int32]int64{0: 35})
}

func redelivered(t *testing.T, h Harness) {
	w := start(t, h, "q", 0)
	staged, m := w.next(t, 10)
	if _, err := w.try(staged, m); err != nil {
		t.Fatal(err)
	}
	// The same batch once more: the same attempt, then another with new files.
	c, err := w.try(staged, m)
	if err != nil || !c.Found || c.Marker.Attempt != m.Attempt {
		t.Fatalf("%+v %v", c, err)
	}
	second, m2 := w.next(t, 10)
	c, err = w.try(second, m2)
	if err != nil || !c.Found || c.Marker.Attempt != m.Attempt {
		t.Fatalf("%+v %v", c, err)
	}
	wantIDs(t, h, map[int32]int64{0: 10})
}

func rowless(t *testing.T, h Harness) {
	w := start(t, h, "q", 0)
	before := w.facts(t)
	c := w.commit(t, 0)
	f := w.facts(t)
	if c.Marker.BatchID != 0 || f.Marker.BatchID != 0 || f.Marker.Claim || f.HeadSequence <= before.HeadSequence || h.Files(t) != 0 {
		t.Fatalf("facts %+v, %d files", f, h.Files(t))
	}
	w.commit(t, 3)
	wantIDs(t, h, map[int32]int64{0: 3})
}

func zombie(t *testing.T, h Harness) {
	old := start(t, h, "q", 0)
	old.commit(t, 10)
	staged, m := old.next(t, 10)
	young := start(t, h, "q", 0)
	_, err := old.try(staged, m)
	wantClass(t, err, failure.Fenced)
	young.commit(t, 10)
	_, err = old.try(staged, m)
	wantClass(t, err, failure.Fenced)
	wantIDs(t, h, map[int32]int64{0: 20})
}

func zombieInFlight(t *testing.T, h Harness) {
	old := start(t, h, "q", 0)
	staged, m := old.next(t, 10)
	// The zombie has read the marker, found it its own, and is overtaken.
	old.o.BeforeNext(func() error {
		start(t, h, "q", 0).commit(t, 10)
		return nil
	})
	_, err := old.try(staged, m)
	// The young run committed the same plan: the zombie sees a newer epoch.
	wantClass(t, err, failure.Fenced)
	wantIDs(t, h, map[int32]int64{0: 10})
}

func claimMoved(t *testing.T, h Harness) {
	w := start(t, h, "q", 0)
	other := &writer{h: h, o: h.Open(t, "q"), query: "q"}
	f := other.facts(t)
	w.commit(t, 10)
	m := other.claimMarker(f)
	_, moved, err := other.o.Sink.Claim(context.Background(), f, m)
	if err != nil || !moved {
		t.Fatalf("claim on an old head: moved %v, %v", moved, err)
	}
	if got := other.facts(t).Marker; got.Attempt == m.Attempt || got.BatchID != 0 {
		t.Fatalf("marker %+v", got)
	}
	// Also the very first claim, of a sink that somebody else makes meanwhile.
	other.claim(t)
	other.commit(t, 10)
	wantIDs(t, h, map[int32]int64{0: 20})
}

func claimLostAnswer(t *testing.T, h Harness) {
	w := &writer{h: h, o: h.Open(t, "q"), query: "q"}
	w.o.AfterNext(func() error { return errors.New("connection lost") })
	f := w.facts(t)
	m := w.claimMarker(f)
	p, moved, err := w.o.Sink.Claim(context.Background(), f, m)
	if err != nil || moved {
		t.Fatalf("moved %v, %v", moved, err)
	}
	w.permit, w.cur = p, m
	w.commit(t, 4)
	wantIDs(t, h, map[int32]int64{0: 4})
}

func lostAnswer(t *testing.T, h Harness) {
	w := start(t, h, "q", 0)
	w.o.AfterNext(func() error { return errors.New("connection lost") })
	c := w.commit(t, 10)
	if !c.Found {
		t.Fatalf("committed %+v", c)
	}
	w.commit(t, 10)
	wantIDs(t, h, map[int32]int64{0: 20})
}

func failedOnce(t *testing.T, h Harness) {
	w := start(t, h, "q", 0)
	calls := 0
	w.o.BeforeNext(func() error { calls++; return errors.New("the store is away") })
	c := w.commit(t, 10)
	if c.Found || calls != 1 {
		t.Fatalf("committed %+v after %d failures", c, calls)
	}
	wantIDs(t, h, map[int32]int64{0: 10})
}

func foreignAppend(t *testing.T, h Harness) {
	appendRow := need(t, h.ForeignAppend, h.ForeignAppend == nil, "be written by others")
	w := start(t, h, "q", 0)
	w.commit(t, 10)
	staged, m := w.next(t, 10)
	w.o.BeforeNext(func() error { appendRow(t, 777_000_000); return nil })
	c, err := w.try(staged, m)
	if err != nil || c.Found || c.Conflicts != 1 {
		t.Fatalf("%+v %v", c, err)
	}
	w.cur = c.Marker
	if f := w.facts(t); f.Rewound != "" || f.Marker.BatchID != 1 {
		t.Fatalf("facts %+v", f)
	}
	w.commit(t, 1)
	wantIDs(t, h, map[int32]int64{0: 21}, 777_000_000)
}

func foreignRewrite(t *testing.T, h Harness) {
	rewrite := need(t, h.ForeignRewrite, h.ForeignRewrite == nil, "be rewritten by others")
	w := start(t, h, "q", 0)
	w.commit(t, 10)
	staged, m := w.next(t, 10)
	w.o.BeforeNext(func() error { rewrite(t); return nil })
	c, err := w.try(staged, m)
	if err != nil || c.Found || c.Conflicts != 1 {
		t.Fatalf("%+v %v", c, err)
	}
	w.cur = c.Marker
	rewrite(t)
	if f := w.facts(t); f.Rewound != "" || f.Marker.BatchID != 1 {
		t.Fatalf("facts after a rewrite on the head: %+v", f)
	}
	w.commit(t, 10)
	wantIDs(t, h, map[int32]int64{0: 30})
}

func rolledBack(t *testing.T, h Harness) {
	roll := need(t, h.RollBack, h.RollBack == nil, "be rolled back")
	w := start(t, h, "q", 0)
	w.commit(t, 10)
	w.commit(t, 10)
	staged, m := w.next(t, 10)
	roll(t, 1)
	_, err := w.try(staged, m)
	wantClass(t, err, failure.Checkpoint)
	if f := w.facts(t); f.Rewound == "" {
		t.Fatalf("facts %+v", f)
	}
	// The batch that was rolled away is not "found" either.
	if h.ForeignAppend != nil {
		h.ForeignAppend(t, 777_000_000)
		h.ForeignAppend(t, 777_000_001)
		if f := w.facts(t); f.Rewound == "" {
			t.Fatalf("facts after others wrote on the old head: %+v", f)
		}
	}
	wantIDsAtLeastGone(t, h, 10)
}

// wantIDsAtLeastGone checks that nothing of ours was written after a roll-back.
func wantIDsAtLeastGone(t *testing.T, h Harness, n int) {
	t.Helper()
	ours := 0
	for _, id := range h.IDs(t) {
		if id < 777_000_000 {
			ours++
		}
	}
	if ours != n {
		t.Fatalf("%d rows of the query, want %d", ours, n)
	}
}

func expired(t *testing.T, h Harness) {
	expire := need(t, h.ExpireAll, h.ExpireAll == nil, "forget its history")
	w := start(t, h, "q", 0)
	w.commit(t, 10)
	if h.ForeignRewrite != nil {
		h.ForeignRewrite(t)
	}
	expire(t)
	f := w.facts(t)
	if f.Rewound != "" || f.Marker == nil || f.Marker.BatchID != 0 {
		t.Fatalf("facts %+v", f)
	}
	w.commit(t, 10)
	expire(t)
	start(t, h, "q", 0).commit(t, 10)
	wantIDs(t, h, map[int32]int64{0: 30})
}

func recreated(t *testing.T, h Harness) {
	drop := need(t, h.Drop, h.Drop == nil, "be dropped")
	w := start(t, h, "q", 0)
	w.commit(t, 10)
	before := w.facts(t)
	staged, m := w.next(t, 10)
	drop(t)
	_, err := w.try(staged, m)
	wantClass(t, err, failure.Checkpoint)
	if f := w.facts(t); f.Exists {
		t.Fatalf("facts of a dropped table: %+v", f)
	}
	start(t, h, "other", 1)
	_, err = w.try(staged, m)
	wantClass(t, err, failure.Checkpoint)
	f := w.facts(t)
	if !f.Exists || f.Identity == before.Identity || f.Marker != nil {
		t.Fatalf("facts of the new table: %+v", f)
	}
	wantIDs(t, h, nil)
}

func stale(t *testing.T, h Harness) {
	age := need(t, h.Age, h.Age == nil, "age its files")
	w := start(t, h, "q", 0)
	staged, m := w.next(t, 10)
	age(t, 4*24*time.Hour)
	if _, err := w.try(staged, m); !errors.Is(err, sink.ErrStale) {
		t.Fatalf("commit of old files: %v", err)
	}
	w.commit(t, 10)
	wantIDs(t, h, map[int32]int64{0: 10})
}

func stagedElsewhere(t *testing.T, h Harness) {
	w := start(t, h, "q", 0)
	staged, m := w.next(t, 10)
	// What survives a crash is the staged manifest: no handle.
	staged.Handle = nil
	again := start(t, h, "q", 0)
	m.Epoch = again.permit.Epoch()
	if h.InMemory {
		// It must ask for the rows again, never take their absence for a batch.
		if _, err := again.try(staged, m); !errors.Is(err, sink.ErrStale) {
			t.Fatalf("commit of rows that another process held: %v", err)
		}
		wantIDs(t, h, nil)
		return
	}
	if _, err := again.try(staged, m); err != nil {
		t.Fatal(err)
	}
	wantIDs(t, h, map[int32]int64{0: 10})
}

func overlapping(t *testing.T, h Harness) {
	if h.Alone {
		t.Skip("every query has this sink to itself")
	}
	start(t, h, "first", 0)
	second := &writer{h: h, o: h.Open(t, "second"), query: "second"}
	f := second.facts(t)
	if len(f.Others) != 1 || f.Others["first"] == nil {
		t.Fatalf("others %v", f.Others)
	}
	_, _, err := second.o.Sink.Claim(context.Background(), f, second.claimMarker(f))
	wantClass(t, err, failure.Config)
	// A partition that a later plan adds is checked on the head too.
	third := start(t, h, "third", 1)
	staged, m := third.next(t, 0)
	m.Position.Kafka.Set("events", "topic-id-1", 0, batch.PartitionPosition{NextOffset: 5, LastOffset: 4})
	_, err = third.try(staged, m)
	wantClass(t, err, failure.Config)
	// A topic is known by its id: another name does not hide it.
	fourth := &writer{h: h, o: h.Open(t, "fourth"), query: "fourth"}
	f = fourth.facts(t)
	m = fourth.claimMarker(f)
	m.Position = batch.Position{Kafka: &batch.KafkaPosition{ClusterID: "cluster-1"}}
	m.Position.Kafka.Set("other", "topic-id-1", 0, batch.PartitionPosition{})
	_, _, err = fourth.o.Sink.Claim(context.Background(), f, m)
	wantClass(t, err, failure.Config)
}

func handedOver(t *testing.T, h Harness) {
	if h.Alone {
		t.Skip("every query has this sink to itself")
	}
	old := start(t, h, "old", 0)
	old.commit(t, 10)
	staged, m := old.next(t, 0)
	m.Position.Kafka.Set("events", "topic-id-1", 0, batch.PartitionPosition{NextOffset: 10, LastOffset: 9, HandedTo: "new"})
	if _, err := old.try(staged, m); err != nil {
		t.Fatal(err)
	}
	heir := &writer{h: h, o: h.Open(t, "new"), query: "new"}
	f := heir.facts(t)
	c := heir.claimMarker(f)
	c.Position = position(0, 10)
	p, moved, err := heir.o.Sink.Claim(context.Background(), f, c)
	if err != nil || moved {
		t.Fatalf("%v %v", moved, err)
	}
	heir.permit, heir.cur = p, c
	heir.commit(t, 10)
	stranger := &writer{h: h, o: h.Open(t, "stranger"), query: "stranger"}
	f = stranger.facts(t)
	_, _, err = stranger.o.Sink.Claim(context.Background(), f, stranger.claimMarker(f))
	wantClass(t, err, failure.Config)
	wantIDs(t, h, map[int32]int64{0: 20})
}

func race(t *testing.T, h Harness) {
	commits := 50
	if testing.Short() {
		commits = 10
	}
	var wg sync.WaitGroup
	for p := range int32(2) {
		w := start(t, h, []string{"left", "right"}[p], p)
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range commits {
				w.commit(t, 4)
			}
		}()
	}
	wg.Wait()
	n := int64(commits) * 4
	wantIDs(t, h, map[int32]int64{0: n, 1: n})
}

func lineage(t *testing.T, h Harness) {
	w := start(t, h, "q", 0)
	staged, m := w.next(t, 10)
	other := &writer{h: h, o: h.Open(t, "q"), query: "q"}
	f := other.facts(t)
	c := other.claimMarker(f)
	c.Predecessor, c.QueryID = c.QueryID, "11111111-7c0e-4d0a-9f55-2f2d0c7a1b11"
	if _, moved, err := other.o.Sink.Claim(context.Background(), f, c); err != nil || moved {
		t.Fatalf("%v %v", moved, err)
	}
	_, err := w.try(staged, m)
	wantClass(t, err, failure.Fenced)
	wantIDs(t, h, nil)
}

func foreignPermit(t *testing.T, h Harness) {
	w := start(t, h, "q", 0)
	staged, m := w.next(t, 1)
	other := h.Open(t, "q").Sink
	if _, err := other.Commit(context.Background(), w.permit, w.cur, staged, m); err == nil {
		t.Fatal("a commit without a claim was made")
	}
	if _, err := w.o.Sink.Commit(context.Background(), sink.Permit{}, w.cur, staged, m); err == nil {
		t.Fatal("a commit without a permit was made")
	}
	var none marker.Epoch
	if w.permit.Epoch() == none {
		t.Fatal("the permit has no epoch")
	}
	wantIDs(t, h, nil)
}
