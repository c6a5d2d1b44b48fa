package state

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
)

const smallPart = 2_000

// inParts saves a snapshot that does not fit into one part.
func inParts(t *testing.T, objects objstore.Store) (*stream, marker.StateFile, []string) {
	t.Helper()
	s := newStream(t, 5)
	s.batch(1_500)
	f := s.save(NewStore(objects, Options{PartBytes: smallPart}), nil)
	parts := list(t, objects, partSuffix)
	if len(parts) < 5 {
		t.Fatalf("%d parts: the test needs more", len(parts))
	}
	return s, *f, parts
}

func list(t *testing.T, objects objstore.Store, suffix string) (out []string) {
	t.Helper()
	infos, err := objects.List(ctx, prefix)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range infos {
		if strings.HasSuffix(i.Key, suffix) {
			out = append(out, i.Key)
		}
	}
	return out
}

func TestASnapshotInPartsIsBoundedAndSaysSoToEarlierVersions(t *testing.T) {
	objects := objstore.NewMemory(clock.System{})
	s, f, parts := inParts(t, objects)
	total := int64(len(mustGet(t, objects, f.Path)))
	for _, p := range parts {
		n := len(mustGet(t, objects, p))
		total += int64(n)
		if n > 2*smallPart { // it is looked at between two writes
			t.Errorf("%s has %d bytes", p, n)
		}
	}
	if f.Bytes != total {
		t.Errorf("the marker is told %d bytes, the files have %d", f.Bytes, total)
	}
	if !bytes.HasPrefix(mustGet(t, objects, f.Path), []byte(`{"format":3,`)) {
		t.Error("an earlier version would not see that it cannot read this")
	}
	op := newTransform(t).State()[0]
	if err := NewStore(objects, Options{}).Load(ctx, queryID, op, f); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(keys(t, op), keys(t, s.op())) {
		t.Error("what is loaded differs")
	}
}

func TestAPartThatIsMissingOrDamagedIsToldApart(t *testing.T) {
	objects := objstore.NewMemory(clock.System{})
	_, f, parts := inParts(t, objects)
	load := func() error {
		op := newTransform(t).State()[0]
		err := NewStore(objects, Options{}).Load(ctx, queryID, op, f)
		if err != nil && op.Keys() != 0 {
			t.Errorf("%v left %d keys behind", err, op.Keys())
		}
		return err
	}
	for i, p := range parts {
		whole := mustGet(t, objects, p)
		if err := objects.Delete(ctx, p); err != nil {
			t.Fatal(err)
		}
		if err := load(); !errors.Is(err, ErrMissing) || errors.Is(err, ErrCorrupt) {
			t.Errorf("part %d missing: %v", i, err)
		}
		for name, data := range map[string][]byte{
			"empty": {}, "torn": whole[:len(whole)/2], "longer": append(bytes.Clone(whole), 0), "flipped": flip(whole, len(whole)/2),
			"another part": mustGet(t, objects, parts[(i+1)%len(parts)]),
		} {
			if err := objects.Put(ctx, p, data); err != nil {
				t.Fatal(err)
			}
			if err := load(); !errors.Is(err, ErrCorrupt) || errors.Is(err, ErrMissing) {
				t.Errorf("part %d %s: %v", i, name, err)
			}
		}
		if err := objects.Put(ctx, p, whole); err != nil {
			t.Fatal(err)
		}
	}
	for name, change := range map[string]func(*header){
		"without its last part":   func(h *header) { h.Parts = h.Parts[:len(h.Parts)-1] },
		"a part twice":            func(h *header) { h.Parts[1] = h.Parts[0] },
		"parts in another order":  func(h *header) { h.Parts[0], h.Parts[1] = h.Parts[1], h.Parts[0] },
		"no parts":                func(h *header) { h.Parts = nil },
		"parts of another format": func(h *header) { h.Format = formatWhole },
	} {
		objects := objstore.NewMemory(clock.System{})
		_, f, _ := inParts(t, objects)
		f = forge(t, objects, f, change)
		if err := NewStore(objects, Options{}).Load(ctx, queryID, newTransform(t).State()[0], f); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := load(); err != nil {
		t.Fatal(err)
	}
}

// dies is a store whose process is killed at the n-th file that it creates.
type dies struct {
	objstore.Store
	left int
}

var errKilled = errors.New("killed")

func (d *dies) CreateOnce(ctx context.Context, k string, data []byte) (bool, []byte, error) {
	if d.left--; d.left < 0 {
		return false, nil, errKilled
	}
	return d.Store.CreateOnce(ctx, k, data)
}

func TestPartsOfAnAttemptThatWasKilledAreOfNoHarmAndPurged(t *testing.T) {
	for at := range 4 {
		objects := objstore.NewMemory(clock.System{})
		s := newStream(t, 5)
		s.batch(1_500)
		if _, err := NewStore(&dies{objects, at}, Options{PartBytes: smallPart}).Save(ctx, queryID, s.op(), 1, "killed", nil); !errors.Is(err, errKilled) {
			t.Fatalf("%v", err)
		}
		st := NewStore(objects, Options{PartBytes: smallPart})
		f := s.save(st, nil)
		if left := list(t, objects, "-killed.snapshot"); len(left) > 0 {
			t.Errorf("a snapshot without all of its parts: %v", left)
		}
		if err := st.Purge(ctx, *f); err != nil {
			t.Fatal(err)
		}
		for _, k := range list(t, objects, partSuffix) {
			if strings.Contains(k, "-killed") {
				t.Errorf("%s is left", k)
			}
		}
		if err := NewStore(objects, Options{}).Load(ctx, queryID, newTransform(t).State()[0], *f); err != nil {
			t.Error(err)
		}
		// A later snapshot takes the parts of the first with it, when that is too old.
		tip := f
		for range KeepVersions + 2 {
			s.batch(400)
			next, err := NewStore(objects, Options{PartBytes: smallPart}).Save(ctx, queryID, s.op(), s.id, "a", tip)
			if err != nil {
				t.Fatal(err)
			}
			tip = &next
		}
		if err := st.Purge(ctx, *tip); err != nil {
			t.Fatal(err)
		}
		for _, k := range list(t, objects, partSuffix) {
			if strings.HasPrefix(k, "state/dedup/1-") {
				t.Errorf("%s is left", k)
			}
		}
	}
}

func TestNamesOfPartsAndTheirParsingAgree(t *testing.T) {
	snapshot := key("dedup", 42, "9f-ab", kindSnapshot)
	for _, i := range []int{0, 7, 9999, 12345} {
		if got, ok := snapshotOf(partKey(snapshot, i)); !ok || got != snapshot {
			t.Errorf("%d: %s %t", i, got, ok)
		}
	}
	for _, bad := range []string{"", "state/dedup/1-a.part", "state/dedup/1-a.1.part", "state/dedup/1-a.-001.part", "state/dedup/x-a.0001.part", "offsets/1-a.0001.part"} {
		if _, ok := snapshotOf(bad); ok {
			t.Errorf("%q is taken for a part", bad)
		}
	}
}
