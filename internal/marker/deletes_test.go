package marker

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/weirlake/weir/internal/batch"
)

func TestDeclaredOffsetsComeBackAsTheyWere(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	for range 200 {
		offsets := map[batch.TopicPartition][]int64{}
		for range rnd.IntN(60) {
			tp := batch.TopicPartition{Topic: []string{"a", "b"}[rnd.IntN(2)], Partition: rnd.Int32N(3)}
			offsets[tp] = append(offsets[tp], rnd.Int64N(90))
		}
		places := PlacesOf(offsets)
		declared := places.Declare("e-1")
		raw, err := json.Marshal(declared)
		if err != nil {
			t.Fatal(err)
		}
		read, err := DeclaredDeletes(map[string]string{DeclaredDeletesKey: string(raw)})
		if err != nil {
			t.Fatal(err)
		}
		if again, err := PlacesIn(read); err != nil || !reflect.DeepEqual(again, places) {
			t.Fatalf("%v became %v (%v)", places, again, err)
		}
		from, to := rnd.Int64N(90), rnd.Int64N(90)
		for tp, all := range offsets {
			want := map[int64]bool{}
			for _, o := range all {
				if !places.Has(tp, o) {
					t.Fatalf("%v lacks %d", places[tp], o)
				}
				if o >= from && o < to {
					want[o] = true
				}
			}
			least, most, err := DeclaredWithin(read, batch.Range{Topic: tp.Topic, Partition: tp.Partition, From: from, To: to})
			if err != nil || least != int64(len(want)) || most != least {
				t.Fatalf("[%d, %d) of %v: %d to %d (%v), want %d", from, to, all, least, most, err, len(want))
			}
		}
		if places.Has(batch.TopicPartition{Topic: "c"}, 1) || places.Has(batch.TopicPartition{Topic: "a"}, 90) {
			t.Fatal("places that were never named")
		}
	}
}

func TestDeletionsThatPeopleDeclareAreABoundOnly(t *testing.T) {
	byHand := []DeclaredDelete{{Topic: "a", From: 10, To: 20, Rows: 4}}
	if least, most, err := DeclaredWithin(byHand, batch.Range{Topic: "a", From: 0, To: 11}); least != 0 || most != 4 || err != nil {
		t.Fatalf("%d to %d, %v", least, most, err)
	}
	seen := func(raw string) string { return ErasuresOf(map[string]string{DeclaredDeletesKey: raw}) }
	if seen(`[{"topic":"a","rows":1}]`) != "" || seen(`[{"erasure":"x"},{"erasure":"y"}]`) != seen(`[{"topic":"a","erasure":"y"},{"erasure":"x"},{"erasure":"y"}]`) ||
		seen(`[{"erasure":"x"}]`) == seen(`[{"erasure":"y"}]`) {
		t.Fatal("the name does not tell which erasures were seen")
	}
	for _, bad := range []string{"x", "0+", "-1", "0+0", "0+11"} {
		if _, err := (DeclaredDelete{From: 0, To: 10, Offsets: bad}).Runs(); err == nil {
			t.Errorf("offsets %q were read", bad)
		}
	}
}
