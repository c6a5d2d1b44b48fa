package pebblestate

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/operator"
)

func open(t *testing.T, dir string) (*Folder, operator.KeyStore) {
	t.Helper()
	f := New(Options{Dir: dir, Query: "q", CacheBytes: 8 << 20})
	t.Cleanup(func() { _ = f.Close() })
	return f, f.Store("sessions")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// resume gives the meta that the folder has; none is empty.
func resume(t *testing.T, s operator.KeyStore) string {
	t.Helper()
	meta, err := s.Resume()
	must(t, err)
	return string(meta)
}

func has(t *testing.T, s operator.KeyStore, key, want string) {
	t.Helper()
	if got, err := s.Get([]byte(key)); err != nil || string(got) != want {
		t.Errorf("%s is %q, not %q (%v)", key, got, want, err)
	}
}

func TestWhatWasSettledOutlastsTheProcessAndNothingElseDoes(t *testing.T) {
	dir := t.TempDir()
	f, s := open(t, dir)
	must(t, s.Set([]byte("a"), []byte("1"), 10))
	must(t, s.Settle([]byte("one")))
	must(t, s.Set([]byte("b"), []byte("2"), 10))
	must(t, f.Close())
	_, s = open(t, dir)
	if got := resume(t, s); got != "one" {
		t.Fatalf("%q was settled last", got)
	}
	has(t, s, "a", "1")
	has(t, s, "b", "")
}

func TestAStoreThatIsNotTakenUpIsEmpty(t *testing.T) {
	dir := t.TempDir()
	f, s := open(t, dir)
	other := f.Store("session")
	must(t, other.Set([]byte("s\x00ka"), []byte("another operator"), 1))
	must(t, other.Settle([]byte("other")))
	must(t, s.Set([]byte("a"), []byte("1"), 10))
	must(t, s.Settle([]byte("one")))
	s.Reset()
	has(t, s, "a", "")
	must(t, s.Set([]byte("b"), []byte("2"), 10))
	must(t, s.Settle([]byte("two")))
	has(t, s, "a", "")
	n := 0
	must(t, s.Each(func(_, _ []byte) error { n++; return nil }))
	must(t, s.Due(100, func(key, _ []byte) (int64, bool, error) {
		if string(key) != "b" {
			t.Errorf("%q is offered", key)
		}
		return 200, true, nil
	}))
	if n != 1 {
		t.Errorf("%d keys are left", n)
	}
	has(t, other, "s\x00ka", "another operator")
}

func TestALoadThatWasKilledIsNoVersion(t *testing.T) {
	dir := t.TempDir()
	f, s := open(t, dir)
	must(t, s.Set([]byte("a"), []byte("1"), 10))
	must(t, s.Settle([]byte("one")))
	s.Reset()
	value := make([]byte, 1000)
	for i := range 3 * loadBatchBytes / len(value) { // more than is written at once
		must(t, s.Set(fmt.Append(nil, i), value, 10))
	}
	must(t, f.Close())
	_, s = open(t, dir)
	if got := resume(t, s); got != "" {
		t.Fatalf("half a load is taken for %q", got)
	}
	has(t, s, "0", "")
}

func TestAFolderThatCannotBeReadIsEmptied(t *testing.T) {
	for name, hurt := range map[string]func(t *testing.T, dir string, paths []string){
		"a manifest cut": func(t *testing.T, _ string, paths []string) {
			for _, p := range paths {
				if strings.Contains(p, "MANIFEST") {
					must(t, os.Truncate(p, 10))
				}
			}
		},
		"a table removed": func(t *testing.T, _ string, paths []string) {
			for _, p := range paths {
				if strings.HasSuffix(p, ".sst") {
					must(t, os.Remove(p))
				}
			}
		},
		"rubbish": func(t *testing.T, dir string, paths []string) {
			for _, p := range paths {
				must(t, os.WriteFile(p, []byte("rubbish"), 0o600))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			f, s := open(t, dir)
			value := make([]byte, 1000)
			for i := range 8 << 10 {
				must(t, s.Set(fmt.Append(nil, i), value, 10))
			}
			must(t, s.Settle([]byte("one")))
			must(t, f.db.Flush())
			must(t, f.Close())
			var paths []string
			must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
				if err == nil && !d.IsDir() && d.Name() != "LOCK" {
					paths = append(paths, p)
				}
				return err
			}))
			hurt(t, dir, paths)
			_, s = open(t, dir)
			if got := resume(t, s); got != "" {
				t.Fatalf("%q is left", got)
			}
			must(t, s.Set([]byte("a"), []byte("1"), 10))
			must(t, s.Settle([]byte("two")))
			has(t, s, "a", "1")
		})
	}
}

func TestAFolderInUseIsRefusedByNameWithTheWayOut(t *testing.T) {
	dir := t.TempDir()
	_, s := open(t, dir)
	must(t, s.Settle([]byte("one")))
	_, second := open(t, dir)
	_, err := second.Resume()
	if !failure.Is(err, failure.Fenced) || !strings.Contains(err.Error(), dir) {
		t.Fatalf("%v", err)
	}
}

func TestAFolderThatCannotBeMadeIsAFaultOfTheConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	_, s := open(t, filepath.Join(file, "folder"))
	if err := s.Settle(nil); !failure.Is(err, failure.Config) {
		t.Fatalf("%v", err)
	}
}

func TestOnlyWhatIsDueIsLookedAt(t *testing.T) {
	_, s := open(t, t.TempDir())
	seed := uint64(time.Now().UnixNano()) //nolint:forbidigo // printed
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	left := map[string]int64{}
	for round := range int64(60) {
		now := 100 * round
		for range 50 {
			key := fmt.Sprint("key ", rng.IntN(2000))
			if _, there := left[key]; there {
				continue
			}
			left[key] = now + 1 + rng.Int64N(500) - 250*(round%2) // now and then before what was looked at
			must(t, s.Set([]byte(key), []byte("v"), left[key]))
		}
		must(t, s.Settle(nil))
		if round%5 == 4 {
			must(t, s.Due(now, func([]byte, []byte) (int64, bool, error) { return now, true, nil }))
			s.Undo()
		}
		looked := 0
		var due []string
		must(t, s.Due(now, func(key, _ []byte) (int64, bool, error) {
			looked++
			due = append(due, string(key))
			return now, true, nil
		}))
		for _, key := range due {
			if left[key] > now || left[key] == 0 {
				t.Fatalf("%s is due at %d and was offered at %d", key, left[key], now)
			}
			delete(left, key)
			must(t, s.Set([]byte(key), nil, 0))
		}
		must(t, s.Settle(nil))
		for key, at := range left {
			if at <= now {
				t.Fatalf("%s is due at %d and was not offered at %d", key, at, now)
			}
		}
	}
	if len(left) == 0 {
		t.Error("nothing is left: the test is empty")
	}
}

func TestMemoryDoesNotGrowWithTheState(t *testing.T) {
	const cache, keys = 8 << 20, 150_000
	f := New(Options{Dir: t.TempDir(), Query: "q", CacheBytes: cache})
	t.Cleanup(func() { _ = f.Close() })
	s := f.Store("dedup")
	rng := rand.New(rand.NewPCG(1, 1))
	value := make([]byte, 200) // 30 MB in all, which does not compress
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for i := range keys {
		for j := range value {
			value[j] = byte(rng.Uint32())
		}
		must(t, s.Set(fmt.Appendf(nil, "key %d", i), value, int64(i)))
	}
	must(t, s.Settle(nil))
	for range 20_000 {
		if _, err := s.Get(fmt.Appendf(nil, "key %d", rng.IntN(keys))); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	must(t, s.Each(func(_, _ []byte) error { n++; return nil }))
	if n != keys {
		t.Errorf("%d keys", n)
	}
	if b := s.Bytes(); b > cache+cache/4 {
		t.Errorf("%d bytes of memory with a cache of %d", b, cache)
	}
	if grown := heap() - before; grown > cache {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	size := int64(0)
	must(t, filepath.WalkDir(f.opts.Dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if info, err := d.Info(); err == nil {
			size += info.Size()
		}
		return nil
	}))
	if size < 2*cache {
		t.Errorf("the folder has %d bytes: the state is no larger than the cache", size)
	}
}
