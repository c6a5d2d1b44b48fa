// Package sinktest is the conformance suite of sinks: what every implementation
// must do with redelivered batches, zombies, lost answers, foreign writers and
// tables that go backwards. An implementation's tests call Run with a Harness.
//
// The suite counts with the harness's own reader, never with what the sink says
// about itself.
package sinktest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/google/uuid"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
)

// Harness is one store with one table, made anew for each test.
type Harness struct {
	// Open opens the sink as another process would: nothing is shared but the
	// store.
	Open func(t *testing.T, query string) Opened
	// Record makes a record with these ids, one row each, in the shape that the
	// sink takes.
	Record func(ids []int64) arrow.RecordBatch
	// IDs reads every row's id from the store, in order.
	IDs func(t *testing.T) []int64
	// Files counts the data files that the table refers to.
	Files func(t *testing.T) int

	// The rest is what a store may be unable to do; nil skips the tests.

	// ForeignAppend adds a row with this id as another engine would, without a
	// marker.
	ForeignAppend func(t *testing.T, id int64)
	// ForeignRewrite replaces all files by new ones with the same rows.
	ForeignRewrite func(t *testing.T)
	// RollBack takes the table back to the state before the last n commits.
	RollBack func(t *testing.T, n int)
	// ExpireAll drops the history and keeps the head.
	ExpireAll func(t *testing.T)
	// Drop takes the table away.
	Drop func(t *testing.T)
	// Age makes all staged files of the store this much older.
	Age func(t *testing.T, by time.Duration)
	// InMemory is set where staged rows live in the process that staged them, so
	// that no other can commit them.
	InMemory bool
	// Alone is set where every query has the sink to itself and sees no other.
	Alone bool
}

// Opened is a sink with handles for faults.
type Opened struct {
	Sink sink.Sink
	// BeforeNext calls f within the next commit or claim, after the sink has
	// read the table and before the store decides. An error of f is the
	// store's answer, and nothing is committed.
	BeforeNext func(f func() error)
	// AfterNext calls f when the next commit or claim is made; an error of f
	// is all that the sink hears.
	AfterNext func(f func() error)
}

// Run runs the suite; fresh makes an empty store.
func Run(t *testing.T, fresh func(t *testing.T) Harness) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, h Harness)
	}{
		{"FirstClaimCreatesTheSinkWithBatchMinusOne", firstClaim},
		{"CommittedRowsAndMarkerAppearTogether", together},
		{"RedeliveredBatchIsFoundAndNotDoubled", redelivered},
		{"RowlessBatchMovesTheMarkerWithoutADataFile", rowless},
		{"ClaimMovesTheHeadSoAZombieCommitFails", zombie},
		{"ZombieThatPreparedBeforeTheClaimIsFenced", zombieInFlight},
		{"ClaimOnAnOldHeadSaysMoved", claimMoved},
		{"ClaimWhoseAnswerWasLostIsFound", claimLostAnswer},
		{"CommitWhoseAnswerWasLostIsFound", lostAnswer},
		{"CommitThatFailedIsMadeOnce", failedOnce},
		{"ForeignAppendDuringTheCommitKeepsTheFiles", foreignAppend},
		{"ForeignRewriteDuringTheCommitKeepsTheFiles", foreignRewrite},
		{"RolledBackSinkIsRewoundInFactsAndCommit", rolledBack},
		{"ExpiredHistoryIsNotARewoundSink", expired},
		{"DroppedAndRecreatedSinkIsDetected", recreated},
		{"StagedFilesThatAreTooOldAreStagedAgain", stale},
		{"StagedFilesOfAnotherProcessAreCommitted", stagedElsewhere},
		{"OverlappingPartitionOfAnotherQueryIsRefused", overlapping},
		{"PartitionHandedOverIsAccepted", handedOver},
		{"TwoWritersRaceAndEveryRowIsThereOnce", race},
		{"AnotherLineageFences", lineage},
		{"PermitOfAnotherSinkIsRefused", foreignPermit},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, fresh(t)) })
	}
}

// writer is one run of a query: what an engine does, without the engine.
type writer struct {
	h         Harness
	o         Opened
	query     string
	partition int32
	permit    sink.Permit
	cur       *marker.Marker
}

// queryID is the lineage of a query in the suite: two queries never share one.
func queryID(query string) string {
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(query)).String()
}

func position(partition int32, next int64) batch.Position {
	k := &batch.KafkaPosition{ClusterID: "cluster-1", Topics: map[string]batch.TopicPosition{}}
	k.Set("events", "topic-id-1", partition, batch.PartitionPosition{NextOffset: next, LastOffset: next - 1, LeaderEpoch: 3, Rows: next})
	return batch.Position{Kafka: k}
}

// start opens and claims, as a process start does.
func start(t *testing.T, h Harness, query string, partition int32) *writer {
	t.Helper()
	w := &writer{h: h, o: h.Open(t, query), query: query, partition: partition}
	w.claim(t)
	return w
}

func (w *writer) facts(t *testing.T) sink.Facts {
	t.Helper()
	f, err := w.o.Sink.Facts(context.Background(), w.query)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// claimMarker is what a start would claim on these facts.
func (w *writer) claimMarker(f sink.Facts) *marker.Marker {
	m := &marker.Marker{Format: marker.Format, Kind: marker.KindStream, QueryName: w.query, QueryID: queryID(w.query), BatchID: -1,
		Position: position(w.partition, 0), Watermark: marker.Watermark{Micros: marker.MinTime}, Instance: "test"}
	if f.Marker != nil {
		c := *f.Marker
		m = &c
	}
	m.Claim = true
	m.Attempt = clock.Nonce()
	m.Epoch = marker.Epoch{Number: m.Epoch.Number + 1, Nonce: clock.Nonce()}
	return m
}

func (w *writer) claim(t *testing.T) {
	t.Helper()
	for range 100 {
		f := w.facts(t)
		m := w.claimMarker(f)
		p, moved, err := w.o.Sink.Claim(context.Background(), f, m)
		if err != nil {
			t.Fatal(err)
		}
		if !moved {
			w.permit, w.cur = p, m
			return
		}
	}
	t.Fatal("the head moved under 100 claims")
}

// next is the batch with n rows after the current one, staged. Ids are
// partition × 1,000,000 + offset.
func (w *writer) next(t *testing.T, n int) (sink.Staged, *marker.Marker) {
	t.Helper()
	m := *w.cur
	m.Claim = false
	m.BatchID++
	m.Epoch = w.permit.Epoch()
	m.Attempt = clock.Nonce()
	from := w.cur.Position.Kafka.Topics["events"].Partitions[w.partition].NextOffset
	m.Position = position(w.partition, from+int64(n))
	m.PlanHash = marker.Hash(fmt.Appendf(nil, "%d %s", m.BatchID, m.Position))
	m.Counters = marker.Counters{Read: int64(n), Emitted: int64(n)}
	st, err := w.o.Sink.Stage(context.Background(), m.BatchID, m.Attempt)
	if err != nil {
		t.Fatal(err)
	}
	if n > 0 {
		ids := make([]int64, n)
		for i := range ids {
			ids[i] = int64(w.partition)*1_000_000 + from + int64(i)
		}
		if err := st.Write(w.h.Record(ids)); err != nil {
			t.Fatal(err)
		}
	}
	staged, err := st.Close(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if staged.Rows != int64(n) {
		t.Fatalf("staged %d of %d rows", staged.Rows, n)
	}
	return staged, &m
}

func (w *writer) try(staged sink.Staged, m *marker.Marker) (sink.Committed, error) {
	return w.o.Sink.Commit(context.Background(), w.permit, w.cur, staged, m)
}

// commit commits a batch of n rows and goes on from it.
func (w *writer) commit(t *testing.T, n int) sink.Committed {
	t.Helper()
	staged, m := w.next(t, n)
	c, err := w.try(staged, m)
	if err != nil {
		t.Fatal(err)
	}
	w.cur = c.Marker
	return c
}

// wantIDs checks the store: [0, n) of each writer's partition and the extra ids.
func wantIDs(t *testing.T, h Harness, rows map[int32]int64, extra ...int64) {
	t.Helper()
	var want []int64
	for p, n := range rows {
		for i := range n {
			want = append(want, int64(p)*1_000_000+i)
		}
	}
	want = append(want, extra...)
	slices.Sort(want)
	got := h.IDs(t)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Fatalf("%d rows in the store, want %d\n got %v\nwant %v", len(got), len(want), clip(got), clip(want))
	}
}

func clip(ids []int64) []int64 { return ids[:min(len(ids), 40)] }

func wantClass(t *testing.T, err error, c failure.Class) {
	t.Helper()
	if !failure.Is(err, c) {
		t.Fatalf("want a failure of class %s, got %v", c, err)
	}
}

func need[T any](t *testing.T, f T, missing bool, what string) T {
	t.Helper()
	if missing {
		t.Skip("this store cannot " + what)
	}
	return f
}
