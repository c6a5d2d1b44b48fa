package objstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/objstore/objstoretest"
)

// still is a clock that stands.
type still time.Time

func (s still) Now() time.Time                                 { return time.Time(s) }
func (still) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

var noon = still(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC))

func newLocal(t *testing.T) *objstore.Local {
	t.Helper()
	s, err := objstore.OpenLocal(filepath.Join(t.TempDir(), "deep", "checkpoint"), objstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestLocalConforms(t *testing.T) {
	objstoretest.Conformance(t, "local disk", func() objstore.Store { return newLocal(t) })
}

func TestMemoryConforms(t *testing.T) {
	objstoretest.Conformance(t, "crashable memory", func() objstore.Store { return objstore.NewMemory(noon) })
}

func record(m *objstore.Memory) *[]string {
	var ops []string
	m.Trace(func(op string) error {
		ops = append(ops, op)
		return nil
	})
	return &ops
}

func wantOps(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("operations:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestCreateOnceNamesOnlyDurableContentsAndSyncsTheName(t *testing.T) {
	m := objstore.NewMemory(noon)
	ops := record(m)
	if _, _, err := m.CreateOnce(t.Context(), "state/dedup/0", []byte("x")); err != nil {
		t.Fatal(err)
	}
	wantOps(t, *ops,
		"mkdir state", "syncdir .", "mkdir state/dedup", "syncdir state",
		"create state/dedup/~temp", "write state/dedup/~temp", "sync state/dedup/~temp",
		"link state/dedup/~temp state/dedup/0", "syncdir state/dedup", "remove state/dedup/~temp")
}

func TestAlreadyThereIsAnsweredOnlyOnceItIsDurable(t *testing.T) {
	m := objstore.NewMemory(noon)
	// The first writer is killed (not the machine) between link and fsync of
	// the directory: mkdir, syncdir, create, write, sync, link.
	m.CrashAfter(6)
	if _, _, err := m.CreateOnce(t.Context(), "offsets/0", []byte("first")); !errors.Is(err, objstore.ErrCrashed) {
		t.Fatal(err)
	}
	m.CrashAfter(-1)
	next := m.Reopen()
	created, existing, err := next.CreateOnce(t.Context(), "offsets/0", []byte("second"))
	if err != nil || created || string(existing) != "first" {
		t.Fatalf("create = (%v, %q, %v), want the first contents", created, existing, err)
	}
	m.Crash(0)
	if b, err := m.Get(t.Context(), "offsets/0"); err != nil || string(b) != "first" {
		t.Fatalf("after the power failed: %q, %v; it was answered as being there", b, err)
	}
}

func TestSettleKeepsWhatAKilledProcessLeftVisible(t *testing.T) {
	for _, settle := range []bool{false, true} {
		m := objstore.NewMemory(noon)
		m.CrashAfter(6)
		_, _, _ = m.CreateOnce(t.Context(), "offsets/0", []byte("first"))
		m.CrashAfter(-1)
		next := m.Reopen()
		if settle {
			if err := next.Settle(t.Context(), "offsets/0"); err != nil {
				t.Fatal(err)
			}
		}
		m.Crash(0)
		_, err := m.Get(t.Context(), "offsets/0")
		if kept := err == nil; kept != settle {
			t.Fatalf("settled %v, kept %v (%v): the memory store must lose what nobody synced", settle, kept, err)
		}
	}
}

func TestPutReplacesByRenameOfDurableContents(t *testing.T) {
	m := objstore.NewMemory(noon)
	ops := record(m)
	if err := m.Put(t.Context(), "metadata", []byte("x")); err != nil {
		t.Fatal(err)
	}
	wantOps(t, *ops, "create ~temp", "write ~temp", "sync ~temp", "rename ~temp metadata", "syncdir .")
}

// operations counts the changing operations of f.
func operations(t *testing.T, setup func(*objstore.Memory), f func(*objstore.Memory) error) int {
	t.Helper()
	m := objstore.NewMemory(noon)
	setup(m)
	ops := record(m)
	if err := f(m); err != nil {
		t.Fatal(err)
	}
	return len(*ops)
}

// TestPowerLossAtAnyOperationLeavesWholeObjectsOrNone cuts the power after
// each operation of create-once, with every kind of torn remains.
func TestPowerLossAtAnyOperationLeavesWholeObjectsOrNone(t *testing.T) {
	const key = "offsets/7"
	data := strings.Repeat("a plan that is longer than a sector. ", 40)
	do := func(m *objstore.Memory) error {
		_, _, err := m.CreateOnce(t.Context(), key, []byte(data))
		return err
	}
	total := operations(t, func(*objstore.Memory) {}, do)
	if total < 8 {
		t.Fatalf("create-once took %d operations, the test expects a fresh directory", total)
	}
	for cut := 0; cut <= total; cut++ {
		for seed := range uint64(64) {
			m := objstore.NewMemory(noon)
			m.CrashAfter(cut)
			err := do(m)
			m.Crash(seed)
			b, gerr := m.Get(t.Context(), key)
			switch {
			case gerr == nil && string(b) != data:
				t.Fatalf("cut %d, seed %d: torn object of %d bytes\n%s", cut, seed, len(b), m)
			case gerr != nil && !errors.Is(gerr, objstore.ErrNotExist):
				t.Fatalf("cut %d, seed %d: %v", cut, seed, gerr)
			case err == nil && gerr != nil:
				t.Fatalf("cut %d, seed %d: created, then lost\n%s", cut, seed, m)
			}
			// Whatever is there, the next try ends with one whole object.
			created, existing, err := m.CreateOnce(t.Context(), key, []byte(data))
			if err != nil || (!created && string(existing) != data) {
				t.Fatalf("cut %d, seed %d: second try = (%v, %d bytes, %v)", cut, seed, created, len(existing), err)
			}
		}
	}
}

func TestPowerLossDuringPutLeavesTheOldContentsOrTheNew(t *testing.T) {
	const key = "metadata"
	before, after := strings.Repeat("old", 300), strings.Repeat("new!", 500)
	setup := func(m *objstore.Memory) {
		if err := m.Put(t.Context(), key, []byte(before)); err != nil {
			t.Fatal(err)
		}
	}
	do := func(m *objstore.Memory) error { return m.Put(t.Context(), key, []byte(after)) }
	total := operations(t, setup, do)
	for cut := 0; cut <= total; cut++ {
		for seed := range uint64(64) {
			m := objstore.NewMemory(noon)
			setup(m)
			m.CrashAfter(cut)
			err := do(m)
			m.Crash(seed)
			b, gerr := m.Get(t.Context(), key)
			if gerr != nil || (string(b) != before && string(b) != after) {
				t.Fatalf("cut %d, seed %d: %d bytes, %v\n%s", cut, seed, len(b), gerr, m)
			}
			if err == nil && string(b) != after {
				t.Fatalf("cut %d, seed %d: replaced, then the old contents came back", cut, seed)
			}
		}
	}
}

func TestAnAnswerThatGotLostIsOursOnTheSecondTry(t *testing.T) {
	m := objstore.NewMemory(noon)
	lost := errors.New("connection reset")
	m.Fault(func(method, _ string, applied bool) error {
		if method == "CreateOnce" && applied {
			return lost
		}
		return nil
	})
	if _, _, err := m.CreateOnce(t.Context(), "offsets/0", []byte("mine")); !errors.Is(err, lost) {
		t.Fatal(err)
	}
	m.Fault(nil)
	created, existing, err := m.CreateOnce(t.Context(), "offsets/0", []byte("mine"))
	if err != nil || created || string(existing) != "mine" {
		t.Fatalf("second try = (%v, %q, %v)", created, existing, err)
	}
}

func TestAFullDiskIsUnreachableAndLeavesNothing(t *testing.T) {
	for _, verb := range []string{"create", "write", "sync", "link"} {
		m := objstore.NewMemory(noon)
		m.Trace(func(op string) error {
			if strings.HasPrefix(op, verb+" ") {
				return syscall.ENOSPC
			}
			return nil
		})
		_, _, err := m.CreateOnce(t.Context(), "offsets/0", []byte("x"))
		if !errors.Is(err, objstore.ErrFull) || !failure.Is(err, failure.Unreachable) {
			t.Fatalf("%s: %v", verb, err)
		}
		m.Trace(nil)
		if _, err := m.Get(t.Context(), "offsets/0"); !errors.Is(err, objstore.ErrNotExist) {
			t.Fatalf("%s: something is visible: %v", verb, err)
		}
		if s := m.String(); strings.Contains(s, "tmp") {
			t.Fatalf("%s: a temporary file stayed:\n%s", verb, s)
		}
	}
}

func TestAReadOnlyStoreIsAConfigurationError(t *testing.T) {
	for _, errno := range []error{syscall.EROFS, syscall.EACCES} {
		m := objstore.NewMemory(noon)
		m.Trace(func(string) error { return errno })
		err := m.Put(t.Context(), "metadata", []byte("x"))
		if !errors.Is(err, objstore.ErrReadOnly) || !failure.Is(err, failure.Config) {
			t.Fatalf("%v: %v", errno, err)
		}
	}
}

func TestAFolderThatVanishedIsNeverMadeAgain(t *testing.T) {
	s := newLocal(t)
	if err := s.Put(t.Context(), "offsets/0", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(s.Location()); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"offsets/1", "commits/0", "metadata"} {
		_, _, err := s.CreateOnce(t.Context(), key, []byte("x"))
		if !errors.Is(err, objstore.ErrVanished) || !failure.Is(err, failure.Checkpoint) {
			t.Errorf("CreateOnce(%s): %v, want ErrVanished", key, err)
		}
		if err := s.Put(t.Context(), key, []byte("x")); !errors.Is(err, objstore.ErrVanished) {
			t.Errorf("Put(%s): %v, want ErrVanished", key, err)
		}
	}
	if _, err := os.Stat(s.Location()); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("the folder is there again")
	}
}

func TestASubfolderThatVanishedIsMadeAgain(t *testing.T) {
	s := newLocal(t)
	for _, key := range []string{"offsets/0", "offsets/1"} {
		if _, _, err := s.CreateOnce(t.Context(), key, []byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(s.Location(), "offsets")); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOpeningAndReadingMakeNoFolder(t *testing.T) {
	s := newLocal(t)
	if _, err := s.List(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), "metadata"); !errors.Is(err, objstore.ErrNotExist) {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.Location()); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("reading made the folder")
	}
}

func TestOldTemporaryFilesAreSweptAndYoungOnesLeft(t *testing.T) {
	s := newLocal(t)
	if err := s.Put(t.Context(), "offsets/0", []byte("x")); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(s.Location(), "offsets")
	old, young := filepath.Join(dir, ".weir-tmp-old"), filepath.Join(dir, ".weir-tmp-young")
	for _, p := range []string{old, young} {
		if err := os.WriteFile(p, []byte("torn"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(old, past, past); err != nil {
		t.Fatal(err)
	}
	next, err := objstore.OpenLocal(s.Location(), objstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Put(t.Context(), "offsets/1", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Error("the old temporary file is still there")
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("the young temporary file, which may be another process's: %v", err)
	}
	infos, err := next.List(t.Context(), "")
	if err != nil || len(infos) != 2 {
		t.Fatalf("List = %v, %v: temporary files must not show", infos, err)
	}
}

func TestATemporaryFileSweptUnderAWriterOnlyMakesItTryAgain(t *testing.T) {
	s := newLocal(t)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			temps, _ := filepath.Glob(filepath.Join(s.Location(), "offsets", ".weir-tmp-*"))
			for _, p := range temps {
				_ = os.Remove(p)
				time.Sleep(time.Millisecond)
			}
		}
	}()
	for i := range 30 {
		key, data := fmt.Sprintf("offsets/%d", i), fmt.Sprint(i)
		if _, _, err := s.CreateOnce(t.Context(), key, []byte(data)); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if b, err := s.Get(t.Context(), key); err == nil && string(b) != data {
			t.Fatalf("%s = %q", key, b)
		}
	}
	close(stop)
	<-done
}

func TestAFileInThePlaceOfTheFolderIsRefused(t *testing.T) {
	p := filepath.Join(t.TempDir(), "checkpoint")
	if err := os.WriteFile(p, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := objstore.OpenLocal(p, objstore.LocalOptions{}); !failure.Is(err, failure.Config) {
		t.Fatalf("%v", err)
	}
}

// heedless is a store whose gateway drops the condition of a conditional write.
type heedless struct{ *objstore.Memory }

func (h heedless) CreateOnce(ctx context.Context, key string, data []byte) (bool, []byte, error) {
	return true, nil, h.Put(ctx, key, data)
}

// forgetful refuses a second create but answers with the caller's own data.
type forgetful struct{ *objstore.Memory }

func (f forgetful) CreateOnce(ctx context.Context, key string, data []byte) (bool, []byte, error) {
	created, _, err := f.Memory.CreateOnce(ctx, key, data)
	return created, data, err
}

func TestAStoreThatIgnoresTheConditionIsRefused(t *testing.T) {
	for name, s := range map[string]objstore.Store{
		"heedless":  heedless{objstore.NewMemory(noon)},
		"forgetful": forgetful{objstore.NewMemory(noon)},
	} {
		if err := objstore.ProbeCreateOnce(t.Context(), s); !failure.Is(err, failure.Config) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
