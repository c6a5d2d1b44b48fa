package sinktest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/sink"
)

// Change is a change of one row, and a row of the table.
type Change struct {
	ID, Seq int64
	Value   string
	Delete  bool
}

// MergeHarness is one store with one table that is merged into by id, ordered by
// seq, made anew for each test.
type MergeHarness struct {
	// Open opens the sink as another process would.
	Open func(t *testing.T, query string) Opened
	// Record makes a record of changes in the shape that the sink takes.
	Record func(changes []Change) arrow.RecordBatch
	// Rows reads the table.
	Rows func(t *testing.T) []Change
	// ForeignAppend adds a row as another engine would, without a marker.
	ForeignAppend func(t *testing.T, c Change)
	// ForeignRewrite replaces all files by new ones with the same rows.
	ForeignRewrite func(t *testing.T)
}

// model is the table as a map.
type model map[int64]Change

// apply merges a batch: the last change of each key by seq, then by place, and
// not before the row that is there.
func (m model) apply(batch []Change) {
	last := map[int64]Change{}
	for _, c := range batch {
		if had, ok := last[c.ID]; !ok || c.Seq >= had.Seq {
			last[c.ID] = c
		}
	}
	for id, c := range last {
		switch had, ok := m[id]; {
		case ok && had.Seq > c.Seq:
		case c.Delete:
			delete(m, id)
		default:
			m[id] = c
		}
	}
}

// RunMerge runs random streams of changes against a plain map: with answers that
// are lost, crashes before and after the commit, commits by another process than
// the one that staged, and other writers within the commit.
func RunMerge(t *testing.T, seeds int, fresh func(t *testing.T) MergeHarness) {
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			s := &merges{h: fresh(t), rng: rand.New(rand.NewPCG(uint64(seed), 7)), want: model{}}
			s.w = &writer{query: "changes", partition: 0}
			s.restart(t)
			for range 14 {
				s.batch(t)
			}
		})
	}
}

// merges is one random stream under way.
type merges struct {
	h     MergeHarness
	rng   *rand.Rand
	w     *writer
	want  model
	seq   int64
	extra int64
}

// restart is another process that takes the query over.
func (s *merges) restart(t *testing.T) {
	t.Helper()
	s.w.o = s.h.Open(t, s.w.query)
	s.w.claim(t)
}

// changes makes a batch: new keys, updates, deletes, late and repeated ones.
func (s *merges) changes() []Change {
	out := make([]Change, s.rng.IntN(12))
	for i := range out {
		s.seq++
		c := Change{ID: s.rng.Int64N(25), Seq: s.seq, Delete: s.rng.IntN(4) == 0}
		switch s.rng.IntN(6) {
		case 0:
			c.Seq = max(1, s.seq-s.rng.Int64N(30)) // late
		case 1:
			if i > 0 {
				c.Seq = out[i-1].Seq // equal: the place decides
			}
		}
		c.Value = fmt.Sprintf("%d@%d/%d", c.ID, c.Seq, s.seq)
		out[i] = c
	}
	return out
}

func (s *merges) batch(t *testing.T) {
	t.Helper()
	ctx := context.Background()
	batch := s.changes()
	s.w.h = Harness{Record: func([]int64) arrow.RecordBatch { return s.h.Record(batch) }}
	staged, m := s.w.next(t, len(batch))
	before := s.w.cur
	switch s.rng.IntN(7) {
	case 0: // the answer is lost
		s.w.o.AfterNext(func() error { return errors.New("the connection was reset") })
	case 1: // somebody else changes the table within the commit
		s.w.o.BeforeNext(func() error {
			c := Change{ID: 1000 + s.extra, Seq: 1, Value: "foreign"}
			s.extra++
			s.want[c.ID] = c
			s.h.ForeignAppend(t, c)
			return nil
		})
	case 2: // and adds a row of a key that is being merged
		if len(batch) > 0 {
			c := Change{ID: batch[0].ID, Seq: 0, Value: "foreign"}
			if _, ok := s.want[c.ID]; !ok {
				s.w.o.BeforeNext(func() error { s.want[c.ID] = c; s.h.ForeignAppend(t, c); return nil })
			}
		}
	case 3: // all files are written again within the commit
		if len(s.want) > 0 {
			s.w.o.BeforeNext(func() error { s.h.ForeignRewrite(t); return nil })
		}
	case 4: // killed before the commit: the same batch again
		s.restart(t)
		staged, m = s.w.next(t, len(batch))
	case 5: // another process commits what this one has staged
		s.restart(t)
		staged.Handle = nil
		again := *m
		again.Epoch = s.w.permit.Epoch()
		m = &again
	}
	c, err := s.w.o.Sink.Commit(ctx, s.w.permit, s.w.cur, staged, m)
	if err != nil {
		t.Fatal(err)
	}
	s.w.cur = c.Marker
	s.want.apply(batch)
	s.check(t)
	if s.rng.IntN(4) == 0 { // killed after the commit: it is found
		s.restart(t)
		if s.w.cur.BatchID != m.BatchID {
			t.Fatalf("batch %d was committed, the marker says %d", m.BatchID, s.w.cur.BatchID)
		}
		redelivered := *m
		redelivered.Epoch = s.w.permit.Epoch()
		c, err := s.w.o.Sink.Commit(ctx, s.w.permit, before, sink.Staged{Attempt: m.Attempt}, &redelivered)
		if err != nil || !c.Found {
			t.Fatalf("the batch was not found: %+v %v", c, err)
		}
		s.check(t)
	}
}

func (s *merges) check(t *testing.T) {
	t.Helper()
	got := model{}
	for _, c := range s.h.Rows(t) {
		if had, twice := got[c.ID]; twice {
			t.Fatalf("key %d is there twice: %+v and %+v", c.ID, had, c)
		}
		got[c.ID] = c
	}
	if !maps.Equal(got, s.want) {
		for id, c := range s.want {
			if got[id] != c {
				t.Errorf("key %d: %+v, want %+v", id, got[id], c)
			}
		}
		for id, c := range got {
			if _, ok := s.want[id]; !ok {
				t.Errorf("key %d: %+v should not be there", id, c)
			}
		}
		t.FailNow()
	}
}

// MergeOnce commits one batch of changes.
func MergeOnce(t *testing.T, h MergeHarness, batch []Change) {
	t.Helper()
	w := &writer{query: "changes", o: h.Open(t, "changes")}
	w.claim(t)
	w.h = Harness{Record: func([]int64) arrow.RecordBatch { return h.Record(batch) }}
	w.commit(t, len(batch))
}
