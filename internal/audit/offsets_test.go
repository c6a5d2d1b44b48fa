package audit

import (
	"math/rand"
	"reflect"
	"testing"
)

func TestOffsetSetAgreesWithAPlainMapOnRandomOffsets(t *testing.T) {
	for seed := int64(1); seed <= 20; seed++ {
		r := rand.New(rand.NewSource(seed))
		a, b := NewOffsetSet(), NewOffsetSet()
		am, bm, seen := map[int64]bool{}, map[int64]bool{}, map[int64]int{}
		for range 5000 {
			v := r.Int63n(9000) - 500
			a.Add(v)
			am[v] = true
			seen[v]++
			w := r.Int63n(9000) - 500
			b.Add(w)
			bm[w] = true
		}
		if a.Len() != int64(len(am)) || a.Doubled() != 5000-int64(len(am)) {
			t.Fatalf("seed %d: len %d doubled %d, want %d and %d", seed, a.Len(), a.Doubled(), len(am), 5000-len(am))
		}
		var minus, doubled [][2]int64
		for v := int64(-400); v < 8000; v++ {
			if am[v] != a.Has(v) {
				t.Fatalf("seed %d: Has(%d) = %v", seed, v, a.Has(v))
			}
			if am[v] && !bm[v] {
				minus = appendRange(minus, v, v+1)
			}
		}
		for v := int64(-500); v < 8500; v++ {
			if seen[v] > 1 {
				doubled = appendRange(doubled, v, v+1)
			}
		}
		if got := a.Minus(-400, 8000, b); !reflect.DeepEqual(got, minus) {
			t.Fatalf("seed %d: Minus differs", seed)
		}
		if got := a.DoubledRanges(); !reflect.DeepEqual(got, doubled) {
			t.Fatalf("seed %d: DoubledRanges differs", seed)
		}
	}
}

func TestContiguousOffsetsAreOneRangeAcrossChunks(t *testing.T) {
	s := NewOffsetSet()
	for v := int64(0); v < 3*offsetChunk; v++ {
		s.Add(v)
	}
	if got := s.Ranges(10, 2*offsetChunk+5); !reflect.DeepEqual(got, [][2]int64{{10, 2*offsetChunk + 5}}) {
		t.Fatalf("got %v", got)
	}
	if s.CountIn(10, 20) != 10 {
		t.Fatalf("CountIn = %d", s.CountIn(10, 20))
	}
}
