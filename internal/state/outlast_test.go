package state

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/state/pebblestate"
)

// onPebble moves the stream's memory into a folder.
func (s *stream) onPebble(dir string) {
	s.t.Helper()
	operator.KeepIn(s.tr, pebblestate.New(pebblestate.Options{Dir: dir, Query: "q", CacheBytes: 8 << 20}).Store)
	tr := s.tr
	s.t.Cleanup(func() {
		if err := operator.Release(tr); err != nil {
			s.t.Error(err)
		}
	})
}

// copyOf is what a killed process leaves: the files as they are, nobody has closed
// them.
func copyOf(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// counted counts what is applied to an operator.
type counted struct {
	operator.Stateful
	operator.Resumer
	snapshots, deltas int
}

func (c *counted) LoadSnapshot(b []byte) error { c.snapshots++; return c.Stateful.LoadSnapshot(b) }
func (c *counted) ApplyDelta(b []byte) error   { c.deltas++; return c.Stateful.ApplyDelta(b) }

func TestAKilledQueryGoesOnFromItsFolderWhateverHasBecomeOfIt(t *testing.T) {
	objects := objstore.NewMemory(clock.System{})
	st, s := NewStore(objects, Options{PartBytes: 5_000}), newStream(t, 11)
	dir := t.TempDir()
	s.onPebble(dir)
	var tip *marker.StateFile
	var old string
	for i := range 8 {
		s.batch(200)
		tip = s.save(st, tip)
		if i == 3 {
			old = copyOf(t, dir)
		}
	}
	want := keys(t, s.op())
	empty := filepath.Join(t.TempDir(), "new")
	// An attempt that came to nothing was saved, and its process killed.
	s.batch(200)
	if _, err := st.Save(ctx, queryID, s.op(), s.id, "lost", tip); err != nil {
		t.Fatal(err)
	}
	kept := copyOf(t, dir)
	// Another query's life in the same folder, and one that the chain knows no more of.
	foreign := copyOf(t, dir)
	stranger := newStream(t, 12)
	stranger.onPebble(foreign)
	stranger.batch(100)
	stranger.save(NewStore(objstore.NewMemory(clock.System{}), Options{}), nil)
	stranger.batch(100)
	if err := operator.Release(stranger.tr); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		dir               string
		snapshots, deltas int
	}{
		// The folder holds the version before the batch under way: the tip.
		"kept": {kept, 0, 0},
		// Its version is three before the one of the copy, in front of the tip's chain.
		"an old copy": {old, 0, 5},
		"deleted":     {empty, 1, 7},
		"a stranger":  {foreign, 1, 7},
	} {
		t.Run(name, func(t *testing.T) {
			next := newStream(t, 1)
			next.onPebble(c.dir)
			op := &counted{Stateful: next.op(), Resumer: next.op().(operator.Resumer)}
			loader := NewStore(objects, Options{PartBytes: 5_000})
			if err := loader.Load(ctx, queryID, op, *tip); err != nil {
				t.Fatal(err)
			}
			if op.snapshots != c.snapshots || op.deltas != c.deltas {
				t.Errorf("%d snapshots and %d deltas were read, not %d and %d", op.snapshots, op.deltas, c.snapshots, c.deltas)
			}
			if got := keys(t, next.op()); !slices.Equal(got, want) {
				t.Errorf("%d keys, %d were there", len(got), len(want))
			}
			if next.op().Keys() != tip.Keys {
				t.Errorf("%d keys are counted, %d were there", next.op().Keys(), tip.Keys)
			}
			// And it goes on: the next version is a delta, and equals what another
			// process loads.
			next.id, next.when, next.mark = 8, s.when, s.mark
			next.batch(100)
			f, err := loader.Save(ctx, queryID, next.op(), next.id, "next "+name, tip)
			if err != nil {
				t.Fatal(err)
			}
			fresh := newTransform(t).State()[0]
			if err := NewStore(objects, Options{}).Load(ctx, queryID, fresh, f); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(keys(t, fresh), keys(t, next.op())) {
				t.Error("the version that follows differs")
			}
		})
	}
}
