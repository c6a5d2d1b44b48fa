package upsert

import (
	"bytes"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/decimal128"
)

func TestTheBytesOfADecimalAreInItsOrder(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	some := func() decimal128.Num {
		n := new(big.Int).SetUint64(r.Uint64() >> r.IntN(64))
		n.Lsh(n, uint(r.IntN(62)))
		if r.IntN(2) == 0 {
			n.Neg(n)
		}
		return decimal128.FromBigInt(n)
	}
	for range 10_000 {
		a, b := some(), some()
		if got, want := bytes.Compare(ordered(a), ordered(b)), a.Cmp(b); got != want {
			t.Fatalf("seed %d: %s and %s are compared as %d, want %d", seed, a.BigInt(), b.BigInt(), got, want)
		}
	}
}
