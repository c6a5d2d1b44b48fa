// Package objstoretest is the conformance suite that every implementation of
// objstore.Store runs.
package objstoretest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/weirlake/weir/internal/conformance"
	"github.com/weirlake/weir/internal/objstore"
)

// racers is how many writers race for a key.
const racers = 8

// Conformance runs the suite on the implementation that is called of; open gives
// an empty store each time.
func Conformance(t *testing.T, of string, open func() objstore.Store) {
	t.Helper()
	tests := []struct {
		name string
		run  func(t *testing.T, s objstore.Store)
	}{
		{"CreateOnceThenGetGivesTheContents", createThenGet},
		{"ASecondCreateIsGivenTheFirstContents", secondCreate},
		{"OfRacingCreatesExactlyOneWins", racingCreates},
		{"AnEmptyObjectIsAnObject", emptyObject},
		{"ALargeObjectComesBackWhole", largeObject},
		{"PutReplaces", putReplaces},
		{"CreateOnceRespectsAPut", createAfterPut},
		{"AMissingObjectIsErrNotExist", missingObject},
		{"ListGivesKeysInOrderUnderAPrefix", listOrder},
		{"ListOfNothingIsEmpty", listNothing},
		{"DeleteRemovesAndForgivesAMissingObject", deleteObject},
		{"ADeletedKeyCanBeCreatedAgain", createAfterDelete},
		{"KeysThatLeaveTheRootAreRefused", badKeys},
		{"CallersBuffersAreNotKept", buffers},
		{"ADoneContextStopsEveryCall", doneContext},
		{"TheProbeAcceptsTheStore", probe},
		{"SettleAcceptsWhatIsThere", settle},
	}
	cases := make([]conformance.Case, 0, len(tests))
	for _, tt := range tests {
		cases = append(cases, conformance.Case{Name: tt.name, Run: func(t *testing.T) { tt.run(t, open()) }})
	}
	conformance.Run(t, "objstore", of, cases)
}

func create(t *testing.T, s objstore.Store, key, data string) (bool, string) {
	t.Helper()
	created, existing, err := s.CreateOnce(t.Context(), key, []byte(data))
	if err != nil {
		t.Fatalf("CreateOnce(%s): %v", key, err)
	}
	return created, string(existing)
}

func want(t *testing.T, s objstore.Store, key, data string) {
	t.Helper()
	b, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatalf("Get(%s): %v", key, err)
	}
	if string(b) != data {
		t.Fatalf("Get(%s) = %q, want %q", key, b, data)
	}
}

func createThenGet(t *testing.T, s objstore.Store) {
	if created, _ := create(t, s, "offsets/0", "plan"); !created {
		t.Fatal("a new key was not created")
	}
	want(t, s, "offsets/0", "plan")
}

func secondCreate(t *testing.T, s objstore.Store) {
	create(t, s, "offsets/0", "first")
	if created, existing := create(t, s, "offsets/0", "second"); created || existing != "first" {
		t.Fatalf("second create = (%v, %q), want (false, first)", created, existing)
	}
	want(t, s, "offsets/0", "first")
}

func racingCreates(t *testing.T, s objstore.Store) {
	for round := range 5 {
		key := fmt.Sprintf("offsets/%d", round)
		won := make([]bool, racers)
		seen := make([]string, racers)
		errs := make([]error, racers)
		var wg sync.WaitGroup
		for i := range racers {
			wg.Go(func() {
				data := fmt.Sprintf("writer %d", i)
				created, existing, err := s.CreateOnce(t.Context(), key, []byte(data))
				won[i], seen[i], errs[i] = created, string(existing), err
				if created {
					seen[i] = data
				}
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		winners := 0
		for i := range racers {
			if won[i] {
				winners++
			}
			if seen[i] != seen[0] {
				t.Fatalf("round %d: writers saw %q and %q", round, seen[0], seen[i])
			}
		}
		if winners != 1 {
			t.Fatalf("round %d: %d writers created the key", round, winners)
		}
		want(t, s, key, seen[0])
	}
}

func emptyObject(t *testing.T, s objstore.Store) {
	create(t, s, "empty", "")
	want(t, s, "empty", "")
	if created, existing := create(t, s, "empty", "x"); created || existing != "" {
		t.Fatalf("create over an empty object = (%v, %q)", created, existing)
	}
}

func largeObject(t *testing.T, s objstore.Store) {
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	create(t, s, "state/dedup/1", string(data))
	want(t, s, "state/dedup/1", string(data))
}

func putReplaces(t *testing.T, s objstore.Store) {
	for _, data := range []string{"old", "newer and longer", "n"} {
		if err := s.Put(t.Context(), "metadata", []byte(data)); err != nil {
			t.Fatal(err)
		}
		want(t, s, "metadata", data)
	}
}

func createAfterPut(t *testing.T, s objstore.Store) {
	if err := s.Put(t.Context(), "a/b/c", []byte("put")); err != nil {
		t.Fatal(err)
	}
	if created, existing := create(t, s, "a/b/c", "x"); created || existing != "put" {
		t.Fatalf("create over a put = (%v, %q)", created, existing)
	}
}

func missingObject(t *testing.T, s objstore.Store) {
	create(t, s, "file", "x")
	for _, key := range []string{"nothing", "no/such/folder", "file/below"} {
		if _, err := s.Get(t.Context(), key); !errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("Get(%s): %v, want ErrNotExist", key, err)
		}
	}
}

func listOrder(t *testing.T, s objstore.Store) {
	keys := []string{"a/1", "a/10", "a/2", "a-b", "a/b/c", "ab", "z"}
	for _, k := range keys {
		create(t, s, k, k)
	}
	for prefix, wanted := range map[string][]string{
		"":    {"a-b", "a/1", "a/10", "a/2", "a/b/c", "ab", "z"},
		"a/":  {"a/1", "a/10", "a/2", "a/b/c"},
		"a/1": {"a/1", "a/10"},
		"a":   {"a-b", "a/1", "a/10", "a/2", "a/b/c", "ab"},
		"q/":  nil,
	} {
		infos, err := s.List(t.Context(), prefix)
		if err != nil {
			t.Fatalf("List(%q): %v", prefix, err)
		}
		var got []string
		for _, i := range infos {
			got = append(got, i.Key)
			if i.Size != int64(len(i.Key)) || i.Modified.IsZero() {
				t.Errorf("List(%q): %s has size %d, modified %v", prefix, i.Key, i.Size, i.Modified)
			}
		}
		if !slices.Equal(got, wanted) {
			t.Errorf("List(%q) = %v, want %v", prefix, got, wanted)
		}
	}
}

func listNothing(t *testing.T, s objstore.Store) {
	for _, prefix := range []string{"", "offsets/"} {
		if infos, err := s.List(t.Context(), prefix); err != nil || len(infos) != 0 {
			t.Fatalf("List(%q) of an empty store = %v, %v", prefix, infos, err)
		}
	}
}

func deleteObject(t *testing.T, s objstore.Store) {
	create(t, s, "commits/0", "x")
	for range 2 {
		if err := s.Delete(t.Context(), "commits/0"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get(t.Context(), "commits/0"); !errors.Is(err, objstore.ErrNotExist) {
			t.Fatalf("after Delete: %v", err)
		}
	}
	if err := s.Delete(t.Context(), "never/was"); err != nil {
		t.Fatal(err)
	}
}

func createAfterDelete(t *testing.T, s objstore.Store) {
	create(t, s, "k", "one")
	if err := s.Delete(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if created, _ := create(t, s, "k", "two"); !created {
		t.Fatal("a deleted key could not be created again")
	}
	want(t, s, "k", "two")
}

func badKeys(t *testing.T, s objstore.Store) {
	for _, key := range []string{"", "/abs", "../up", "a/../../b", "a//b", "a/", ".", "..", "a\x00b", `a\b`} {
		if _, _, err := s.CreateOnce(t.Context(), key, nil); !errors.Is(err, objstore.ErrBadKey) {
			t.Errorf("CreateOnce(%q): %v, want ErrBadKey", key, err)
		}
		if err := s.Put(t.Context(), key, nil); !errors.Is(err, objstore.ErrBadKey) {
			t.Errorf("Put(%q): %v, want ErrBadKey", key, err)
		}
		if _, err := s.Get(t.Context(), key); !errors.Is(err, objstore.ErrBadKey) {
			t.Errorf("Get(%q): %v, want ErrBadKey", key, err)
		}
		if err := s.Delete(t.Context(), key); !errors.Is(err, objstore.ErrBadKey) {
			t.Errorf("Delete(%q): %v, want ErrBadKey", key, err)
		}
	}
}

func buffers(t *testing.T, s objstore.Store) {
	data := []byte("kept")
	if _, _, err := s.CreateOnce(t.Context(), "k", data); err != nil {
		t.Fatal(err)
	}
	copy(data, "XXXX")
	b, err := s.Get(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	copy(b, "YYYY")
	want(t, s, "k", "kept")
}

func doneContext(t *testing.T, s objstore.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, cerr := s.CreateOnce(ctx, "k", nil)
	_, gerr := s.Get(ctx, "k")
	_, lerr := s.List(ctx, "")
	for name, err := range map[string]error{
		"CreateOnce": cerr, "Put": s.Put(ctx, "k", nil), "Get": gerr, "List": lerr, "Delete": s.Delete(ctx, "k"),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a done context: %v", name, err)
		}
	}
}

func probe(t *testing.T, s objstore.Store) {
	if err := objstore.ProbeCreateOnce(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if infos, err := s.List(t.Context(), ""); err != nil || len(infos) != 0 {
		t.Fatalf("the probe left %v, %v", infos, err)
	}
}

func settle(t *testing.T, s objstore.Store) {
	create(t, s, "offsets/0", "x")
	if err := objstore.Settle(t.Context(), s, "offsets/0"); err != nil {
		t.Fatal(err)
	}
	if _, ok := s.(objstore.Settler); !ok {
		return
	}
	if err := objstore.Settle(t.Context(), s, "offsets/1"); !errors.Is(err, objstore.ErrNotExist) {
		t.Fatalf("settling nothing: %v, want ErrNotExist", err)
	}
}
