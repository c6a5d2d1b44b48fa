package operator

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"
)

// shelfModel is what a KeyStore must come to, in the plainest way.
type shelfModel struct {
	values map[string]string
	due    map[string]int64
}

func (m *shelfModel) check(t *testing.T, s KeyStore) {
	t.Helper()
	got := map[string]string{}
	_ = s.Each(func(key, value []byte) error {
		if _, twice := got[string(key)]; twice {
			t.Fatalf("key %q is there twice", key)
		}
		got[string(key)] = string(value)
		return nil
	})
	if !maps.Equal(got, m.values) {
		t.Fatalf("%d keys, %d were expected", len(got), len(m.values))
	}
	for key, want := range m.values {
		if value, err := s.Get([]byte(key)); err != nil || string(value) != want {
			t.Fatalf("key %q has %q, %q was set (%v)", key, value, want, err)
		}
	}
}

// offered are the keys that the store offers at a watermark, each with the time
// that the model has for it.
func (m *shelfModel) offered(t *testing.T, s KeyStore, watermark int64) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	err := s.Due(watermark, func(key, value []byte) (int64, bool, error) {
		if m.values[string(key)] != string(value) {
			t.Fatalf("key %q was offered with %q", key, value)
		}
		out[string(key)] = true
		return m.due[string(key)], true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for key := range m.values {
		if m.due[key] <= watermark && !out[key] {
			t.Fatalf("key %q is due at %d and was not offered at %d", key, m.due[key], watermark)
		}
	}
	return out
}

func TestAKeyStoreHoldsWhatWasSetAndOffersWhatIsDue(t *testing.T) {
	seed := uint64(time.Now().UnixNano()) //nolint:forbidigo // printed
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	s, m := newShelf(), &shelfModel{map[string]string{}, map[string]int64{}}
	watermark := int64(0)
	for range 400 {
		for range rng.IntN(200) {
			key := fmt.Sprint("key ", rng.IntN(3000))
			value := string(bytes.Repeat([]byte{byte('a' + rng.IntN(26))}, rng.IntN(40)))
			due := watermark + 1 + rng.Int64N(1000)
			if err := s.Set([]byte(key), []byte(value), due); err != nil {
				t.Fatal(err)
			}
			if m.values[key], m.due[key] = value, due; value == "" {
				delete(m.values, key)
				delete(m.due, key)
			}
		}
		if err := s.Settle(nil); err != nil {
			t.Fatal(err)
		}
		watermark += rng.Int64N(100)
		before := m.offered(t, s, watermark)
		if rng.IntN(3) == 0 { // the batch is run again
			s.Undo()
			again := m.offered(t, s, watermark)
			for key := range before {
				if m.due[key] <= watermark && !again[key] {
					t.Fatalf("key %q is no longer offered after undo", key)
				}
			}
		}
		for key, due := range m.due {
			if due <= watermark {
				delete(m.values, key)
				delete(m.due, key)
				if err := s.Set([]byte(key), nil, 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := s.Settle(nil); err != nil {
			t.Fatal(err)
		}
	}
	m.check(t, s)
	for key := range m.values {
		_ = s.Set([]byte(key), nil, 0)
	}
	m.values = map[string]string{}
	m.check(t, s)
}

func TestTheQueueOfAShelfDoesNotGrowWithChangesNorWithBatchesThatAreRunAgain(t *testing.T) {
	s := newShelf()
	const keys = 2000
	for round := range int64(200) {
		for i := range keys {
			// Each earlier than before: the key is put into the queue again.
			if err := s.Set(fmt.Append(nil, i), fmt.Append(nil, round), 1_000_000-round); err != nil {
				t.Fatal(err)
			}
		}
		s.Undo()
		if err := s.Settle(nil); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.queue); n > 3*keys+staleSpare {
		t.Errorf("%d entries for %d keys", n, keys)
	}
	if n := s.Bytes(); n > 400_000 {
		t.Errorf("%d keys of a few bytes take %d bytes", keys, n)
	}
}

// The files of testdata were written by the version before groups were packed.
func TestStateOfEarlierVersionsIsRead(t *testing.T) {
	r := newRunner(t, newAggregated(t, sessionStage(30*time.Second)))
	r.commit(10, []edit{{at: 100, wiki: "w", user: "u", title: "t", size: 5}, {at: 190, wiki: "w", user: "u", size: -7}, {at: 120, wiki: "v", title: "ü"}})
	loaded := newAggregated(t, sessionStage(30*time.Second)).stages[0]
	read := func(name string) []byte {
		b, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if err := loaded.LoadSnapshot(read("sessions.snapshot")); err != nil {
		t.Fatal(err)
	}
	sameState(t, loaded, r.a.stages[0])
	r.commit(152, []edit{{at: 95, wiki: "w", user: "u", title: "s"}, {at: 300, wiki: "x", user: "y", title: "z"}})
	if err := loaded.ApplyDelta(read("sessions.delta")); err != nil {
		t.Fatal(err)
	}
	sameState(t, loaded, r.a.stages[0])
	if b, err := r.a.stages[0].Delta(); err != nil || !slices.Equal(b, read("sessions.delta")) {
		t.Errorf("the delta is written in another way (%v)", err)
	}
}
