// Package sourcetest is the conformance suite of source.Source. Every
// implementation runs it with a harness of its own.
package sourcetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/source"
)

// Upstream is what a source reads from, under the control of a test. Its
// methods fail the test on an error.
type Upstream interface {
	// Open makes a new instance of the source over this upstream, as a restart
	// does. It reads one topic and starts at the earliest offsets; its schema
	// has at least partition, offset and value. The harness closes it.
	Open(t *testing.T) source.Source
	// Produce adds n records with distinct values to a partition, readable
	// when it returns.
	Produce(t *testing.T, partition int32, n int)
	// AddPartition adds a partition and returns it.
	AddPartition(t *testing.T) int32
	// Lose makes the first n records that a partition still has unreadable,
	// without the source being told.
	Lose(t *testing.T, partition int32, n int)
	// Recreate replaces the upstream by an empty one under the same name.
	Recreate(t *testing.T)
}

// Harness makes upstreams.
type Harness struct {
	// New makes an empty upstream with the partitions 0 … partitions-1.
	New func(t *testing.T, partitions int32) Upstream
	// Overrun is how many times the limit a batch may come to, where a source
	// ends batches only at places of its upstream's; 1 where it never does.
	Overrun int64
}

// deadline bounds every single call.
const deadline = 30 * time.Second

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	for name, f := range map[string]func(*testing.T, Harness){
		"TheSameRangeGivesTheSameRowsFromAnyInstance": sameRange,
		"RangesCompose":                                     compose,
		"RowsComeInOrderOfPartitionAndOffset":               inOrder,
		"NothingNewPlansAnEmptyRange":                       nothingNew,
		"LimitedBatchesReadEveryRowOnce":                    limited,
		"AddedPartitionsJoinBothEndsOfThePlan":              addedPartition,
		"ReadingFillsInTheEnd":                              fillsEnd,
		"APositionSurvivesItsJSON":                          positionJSON,
		"PlanLeavesTheGivenPositionAlone":                   noAliasing,
		"ASoundPositionHasNoViolations":                     sound,
		"LossBetweenPlanAndReadIsSourceChanged":             lossAfterPlan,
		"AnotherUpstreamUnderTheSameNameIsAViolation":       recreated,
		"WaitEndsWhenSomethingIsThereAndWhenTheContextEnds": wait,
		"AnErrorOfEmitEndsTheRead":                          emitFails,
	} {
		t.Run(name, func(t *testing.T) { f(t, h) })
	}
}

func ctx(t *testing.T) context.Context {
	c, cancel := context.WithTimeout(t.Context(), deadline)
	t.Cleanup(cancel)
	return c
}

func initial(t *testing.T, s source.Source) batch.Position {
	t.Helper()
	p, err := s.Initial(ctx(t))
	if err != nil {
		t.Fatalf("initial position: %v", err)
	}
	return p
}

func plan(t *testing.T, s source.Source, start batch.Position, limit int64) source.Planned {
	t.Helper()
	p, err := s.Plan(ctx(t), start, limit)
	if err != nil {
		t.Fatalf("plan from %s: %v", start, err)
	}
	return p
}

// read gives the rows as "partition/offset/value" and the result.
func read(t *testing.T, s source.Source, start, end batch.Position) ([]string, source.ReadResult) {
	t.Helper()
	rows, res, err := tryRead(t, s, start, end)
	if err != nil {
		t.Fatalf("read %s to %s: %v", start, end, err)
	}
	if int64(len(rows)) != res.Rows {
		t.Fatalf("%d rows were emitted, the result says %d", len(rows), res.Rows)
	}
	return rows, res
}

func tryRead(t *testing.T, s source.Source, start, end batch.Position) ([]string, source.ReadResult, error) {
	var rows []string
	res, err := s.Read(ctx(t), start, end, source.ReadEnv{BatchTimeMicros: 1_767_225_600_000_000}, func(rec arrow.RecordBatch) error {
		defer rec.Release()
		if !rec.Schema().Equal(s.Schema()) {
			return fmt.Errorf("a record of schema %s, want %s", rec.Schema(), s.Schema())
		}
		at := func(name string) arrow.Array { return rec.Column(rec.Schema().FieldIndices(name)[0]) }
		p, o, v := at("partition").(*array.Int32), at("offset").(*array.Int64), at("value").(*array.Binary)
		for i := range int(rec.NumRows()) {
			rows = append(rows, fmt.Sprintf("%d/%012d/%s", p.Value(i), o.Value(i), v.Value(i)))
		}
		return nil
	})
	return rows, res, err
}

func fill(t *testing.T, u Upstream, rounds int) (total int) {
	for i := range rounds {
		for p := range int32(2) {
			n := 5 + 3*i + int(p)
			u.Produce(t, p, n)
			total += n
		}
	}
	return total
}

func sameRange(t *testing.T, h Harness) {
	u := h.New(t, 2)
	total := fill(t, u, 3)
	s := u.Open(t)
	start := initial(t, s)
	p := plan(t, s, start, 0)
	once, _ := read(t, s, p.Start, p.End)
	if len(once) != total {
		t.Fatalf("%d rows, want %d", len(once), total)
	}
	fill(t, u, 2) // later rows do not belong to the range
	again, _ := read(t, s, p.Start, p.End)
	other, _ := read(t, u.Open(t), p.Start, p.End)
	if !slices.Equal(once, again) || !slices.Equal(once, other) {
		t.Fatalf("%d rows, again %d, another instance %d", len(once), len(again), len(other))
	}
}

func compose(t *testing.T, h Harness) {
	u := h.New(t, 2)
	s := u.Open(t)
	start := initial(t, s)
	at := start
	var parts []string
	for range 4 {
		fill(t, u, 1)
		p := plan(t, s, at, 0)
		rows, res := read(t, s, p.Start, p.End)
		parts = append(parts, rows...)
		at = res.End
	}
	whole, _ := read(t, u.Open(t), start, at)
	slices.Sort(parts)
	sorted := slices.Sorted(slices.Values(whole))
	if len(whole) == 0 || !slices.Equal(parts, sorted) {
		t.Fatalf("%d rows in parts, %d in one piece", len(parts), len(whole))
	}
}

func inOrder(t *testing.T, h Harness) {
	u := h.New(t, 2)
	fill(t, u, 3)
	s := u.Open(t)
	p := plan(t, s, initial(t, s), 0)
	rows, _ := read(t, s, p.Start, p.End)
	if !slices.IsSorted(rows) {
		t.Fatalf("not in order: %v", rows)
	}
}

func nothingNew(t *testing.T, h Harness) {
	u := h.New(t, 2)
	s := u.Open(t)
	start := initial(t, s)
	if p := plan(t, s, start, 10); p.Start.Offsets(p.End) != 0 {
		t.Fatalf("an empty upstream plans %s to %s", p.Start, p.End)
	}
	fill(t, u, 1)
	p := plan(t, s, start, 0)
	_, res := read(t, s, p.Start, p.End)
	q := plan(t, s, res.End, 10)
	if q.Start.Offsets(q.End) != 0 || !q.End.SameOffsets(q.Start) {
		t.Fatalf("nothing new, but %s to %s is planned", q.Start, q.End)
	}
	if rows, _ := read(t, s, q.Start, q.End); len(rows) != 0 {
		t.Fatalf("%d rows in an empty range", len(rows))
	}
}

func limited(t *testing.T, h Harness) {
	const limit = 7
	u := h.New(t, 2)
	total := fill(t, u, 4)
	s := u.Open(t)
	at := initial(t, s)
	var all []string
	for range 1000 {
		p := plan(t, s, at, limit)
		n := p.Start.Offsets(p.End)
		if n == 0 {
			break
		}
		rows, res := read(t, s, p.Start, p.End)
		if int64(len(rows)) > h.Overrun*limit {
			t.Fatalf("%d rows in a batch limited to %d", len(rows), limit)
		}
		all = append(all, rows...)
		at = res.End
	}
	if got := plan(t, s, at, 0); got.Start.Offsets(got.End) != 0 {
		t.Fatalf("limited batches ended at %s, before the end %s", at, got.End)
	}
	slices.Sort(all)
	if len(all) != total || len(slices.Compact(slices.Clone(all))) != total {
		t.Fatalf("%d rows, %d distinct, want %d", len(all), len(slices.Compact(all)), total)
	}
}

func addedPartition(t *testing.T, h Harness) {
	u := h.New(t, 2)
	fill(t, u, 1)
	s := u.Open(t)
	p := plan(t, s, initial(t, s), 0)
	_, res := read(t, s, p.Start, p.End)
	added := u.AddPartition(t)
	u.Produce(t, added, 4)
	q := plan(t, s, res.End, 0)
	if len(q.Start.Ranges(q.End)) != 1 {
		t.Fatalf("planned %v, want partition %d alone", q.Start.Ranges(q.End), added)
	}
	topic := q.Start.Ranges(q.End)[0].Topic
	if sp, ok := q.Start.Vector().Get(topic, added); !ok || sp.NextOffset != 0 {
		t.Fatalf("the plan's start has partition %d at %+v (%t), want offset 0", added, sp, ok)
	}
	rows, res := read(t, s, q.Start, q.End)
	if ep, _ := res.End.Vector().Get(topic, added); len(rows) != 4 || ep.Rows != 4 {
		t.Fatalf("%d rows of the added partition, end %+v", len(rows), ep)
	}
}

func fillsEnd(t *testing.T, h Harness) {
	u := h.New(t, 2)
	u.Produce(t, 0, 6)
	s := u.Open(t)
	p := plan(t, s, initial(t, s), 0)
	_, res := read(t, s, p.Start, p.End)
	if !res.End.SameOffsets(p.End) {
		t.Fatalf("the read ended at %s, planned was %s", res.End, p.End)
	}
	if res.MaxTimestampMicros <= 0 {
		t.Errorf("greatest timestamp %d", res.MaxTimestampMicros)
	}
	topic := p.Start.Ranges(p.End)[0].Topic
	if got, _ := res.End.Vector().Get(topic, 0); got.Rows != 6 || got.LastOffset != 5 {
		t.Errorf("partition 0 ends at %+v, want 6 rows and last offset 5", got)
	}
	if got, _ := res.End.Vector().Get(topic, 1); got.Rows != 0 || got.LastOffset != -1 {
		t.Errorf("partition 1 ends at %+v, want no rows", got)
	}
	u.Produce(t, 0, 3)
	q := plan(t, s, res.End, 0)
	_, res = read(t, s, q.Start, q.End)
	if got, _ := res.End.Vector().Get(topic, 0); got.Rows != 9 || got.LastOffset != 8 {
		t.Errorf("partition 0 ends at %+v, want 9 rows in all", got)
	}
}

func positionJSON(t *testing.T, h Harness) {
	u := h.New(t, 2)
	fill(t, u, 2)
	s := u.Open(t)
	p := plan(t, s, initial(t, s), 0)
	want, _ := read(t, s, p.Start, p.End)
	raw, err := json.Marshal([2]batch.Position{p.Start, p.End})
	if err != nil {
		t.Fatal(err)
	}
	var back [2]batch.Position
	if err := json.Unmarshal(raw, &back); err != nil {
		t.Fatal(err)
	}
	if got, _ := read(t, u.Open(t), back[0], back[1]); !slices.Equal(got, want) {
		t.Fatalf("%d rows after the round trip, %d before", len(got), len(want))
	}
}

func noAliasing(t *testing.T, h Harness) {
	u := h.New(t, 2)
	fill(t, u, 1)
	s := u.Open(t)
	start := initial(t, s)
	before, _ := json.Marshal(start)
	u.AddPartition(t)
	p := plan(t, s, start, 0)
	planned, _ := json.Marshal([]batch.Position{p.Start, p.End})
	read(t, s, p.Start, p.End)
	after, _ := json.Marshal(start)
	still, _ := json.Marshal([]batch.Position{p.Start, p.End})
	if string(before) != string(after) || string(planned) != string(still) {
		t.Fatal("a position was changed in the caller's hands")
	}
}

func sound(t *testing.T, h Harness) {
	u := h.New(t, 2)
	fill(t, u, 2)
	s := u.Open(t)
	start := initial(t, s)
	p := plan(t, s, start, 0)
	_, res := read(t, s, p.Start, p.End)
	fill(t, u, 1)
	for _, pos := range []batch.Position{start, res.End} {
		vs, err := u.Open(t).Verify(ctx(t), pos)
		if err != nil || len(vs) != 0 {
			t.Fatalf("%s: %v %v", pos, vs, err)
		}
	}
}

func lossAfterPlan(t *testing.T, h Harness) {
	u := h.New(t, 2)
	fill(t, u, 2)
	s := u.Open(t)
	p := plan(t, s, initial(t, s), 0)
	u.Lose(t, 1, 2)
	_, _, err := tryRead(t, s, p.Start, p.End)
	if !failure.Is(err, failure.SourceChanged) {
		t.Fatalf("rows of the plan are gone, the read says %v", err)
	}
}

func recreated(t *testing.T, h Harness) {
	u := h.New(t, 2)
	fill(t, u, 1)
	s := u.Open(t)
	p := plan(t, s, initial(t, s), 0)
	_, res := read(t, s, p.Start, p.End)
	u.Recreate(t)
	s = u.Open(t)
	vs, err := s.Verify(ctx(t), res.End)
	if err != nil || len(vs) == 0 {
		t.Fatalf("violations %v, %v; want at least one", vs, err)
	}
	if vs[0].Text == "" {
		t.Error("the violation says nothing")
	}
	if _, err := s.Plan(ctx(t), res.End, 0); !failure.Is(err, failure.SourceChanged) {
		t.Errorf("planning in another upstream says %v", err)
	}
}

func wait(t *testing.T, h Harness) {
	u := h.New(t, 2)
	s := u.Open(t)
	start := initial(t, s)
	u.Produce(t, 0, 1)
	if err := s.Wait(ctx(t), start); err != nil {
		t.Fatalf("something is there, wait says %v", err)
	}
	p := plan(t, s, start, 0)
	c, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Wait(c, p.End); !errors.Is(err, context.Canceled) {
		t.Fatalf("the context has ended, wait says %v", err)
	}
}

func emitFails(t *testing.T, h Harness) {
	u := h.New(t, 2)
	fill(t, u, 2)
	s := u.Open(t)
	p := plan(t, s, initial(t, s), 0)
	boom := errors.New("boom")
	_, err := s.Read(ctx(t), p.Start, p.End, source.ReadEnv{}, func(rec arrow.RecordBatch) error {
		rec.Release()
		return boom
	})
	if !errors.Is(err, boom) {
		t.Fatalf("got %v", err)
	}
}
