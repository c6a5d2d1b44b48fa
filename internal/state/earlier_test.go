package state

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
)

// The folders hold a snapshot and a delta as they were written before snapshots were
// packed: format 1, and in parts format 2.
func TestStateOfEarlierFormatsIsReadAndGoesOn(t *testing.T) {
	for name, format := range map[string]string{"whole": `{"format":1,`, "parts": `{"format":2,`} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join("testdata", "earlier", name)
			var want struct {
				Tip    marker.StateFile `json:"tip"`
				Query  string           `json:"query"`
				Keys   int              `json:"keys"`
				SHA256 string           `json:"keys_sha256"`
			}
			b, err := os.ReadFile(filepath.Join(dir, "tip.json"))
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(b, &want); err != nil {
				t.Fatal(err)
			}
			objects := objstore.NewMemory(clock.System{})
			err = filepath.WalkDir(filepath.Join(dir, "state"), func(path string, d os.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				data, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				if strings.HasSuffix(path, ".snapshot") && !strings.HasPrefix(string(data), format) {
					t.Errorf("%s is of another format: the test is none", path)
				}
				k, err := filepath.Rel(dir, path)
				if err != nil {
					return err
				}
				return objects.Put(ctx, filepath.ToSlash(k), data)
			})
			if err != nil {
				t.Fatal(err)
			}
			s, st := newStream(t, 22), NewStore(objects, Options{PartBytes: smallPart})
			if err := st.Load(ctx, want.Query, s.op(), want.Tip); err != nil {
				t.Fatal(err)
			}
			list := keys(t, s.op())
			sum := sha256.Sum256([]byte(strings.Join(list, "\n")))
			if len(list) != want.Keys || hex.EncodeToString(sum[:]) != want.SHA256 {
				t.Fatalf("%d keys are loaded, %d were saved, or others", len(list), want.Keys)
			}
			// A delta goes on it, and a snapshot of today after that.
			s.id, s.when = 2, s.when+600_000_000
			parent := &want.Tip
			for _, suffix := range []string{".delta", ".snapshot"} {
				s.batch(400)
				tip := s.save(st, parent)
				if !strings.HasSuffix(tip.Path, suffix) {
					t.Fatalf("%s is no %s", tip.Path, suffix)
				}
				op := newTransform(t).State()[0]
				if err := NewStore(objects, Options{}).Load(ctx, queryID, op, *tip); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(keys(t, op), keys(t, s.op())) {
					t.Errorf("what is loaded from %s differs", tip.Path)
				}
				parent = nil
			}
		})
	}
}

func TestTheFirstVersionAfterAStartIsADelta(t *testing.T) {
	objects := objstore.NewMemory(clock.System{})
	st, s := NewStore(objects, Options{}), newStream(t, 31)
	s.batch(4_000)
	tip := s.save(st, nil)
	for range SnapshotEvery {
		s.batch(60)
		tip = s.save(st, tip)
	}
	if !strings.HasSuffix(tip.Path, ".delta") {
		t.Fatalf("%s: the chain was to be long by now", tip.Path)
	}
	started := NewStore(objects, Options{})
	if err := started.Load(ctx, queryID, s.op(), *tip); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{".delta", ".snapshot", ".delta"} {
		s.batch(60)
		if tip = s.save(started, tip); !strings.HasSuffix(tip.Path, want) {
			t.Errorf("%s is no %s", tip.Path, want)
		}
	}
}
