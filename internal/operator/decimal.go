package operator

import (
	"math"
	"math/big"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"github.com/weirlake/weir/internal/event"
)

// compareExact compares numbers of which one is a decimal, by value. The common
// case, a decimal and a literal, is a comparison of 128 bits.
func compareExact(v verdict, l, r operand) condition {
	if l.class == classDecimal && r.literal != nil {
		return compareLiteral(v, l, r.literal, 1)
	}
	if r.class == classDecimal && l.literal != nil {
		return compareLiteral(v, r, l.literal, -1)
	}
	return func(w *worker) tri {
		a, ok1 := l.rational(w)
		b, ok2 := r.rational(w)
		if !ok1 || !ok2 {
			return unknown
		}
		return v[a.Cmp(b)+1]
	}
}

// compareLiteral compares a decimal with a literal number, or the literal with it
// where sign is -1.
func compareLiteral(v verdict, o operand, literal *big.Rat, sign int) condition {
	floor, whole, order := scaleLiteral(literal, o.scale)
	if order != 0 {
		return func(w *worker) tri {
			if _, ok := o.decimal(w); !ok {
				return unknown
			}
			return v[order*sign+1]
		}
	}
	return func(w *worker) tri {
		d, ok := o.decimal(w)
		if !ok {
			return unknown
		}
		c := d.Cmp(floor)
		if c == 0 && !whole {
			c = -1 // the literal lies above its floor
		}
		return v[c*sign+1]
	}
}

// scaleLiteral gives the greatest multiple of 10^-scale that is not above a
// literal, and whether it is the literal. order is that of every decimal to a
// literal beyond them all, and 0 otherwise.
func scaleLiteral(literal *big.Rat, scale int) (floor decimal128.Num, whole bool, order int) {
	n := new(big.Rat).Mul(literal, new(big.Rat).SetInt(pow10(scale)))
	q, m := new(big.Int).DivMod(n.Num(), n.Denom(), new(big.Int)) // rounds down, as the denominator is positive
	if q.BitLen() > 127 {
		return floor, false, -q.Sign()
	}
	return decimal128.FromBigInt(q), m.Sign() == 0, 0
}

func pow10(n int) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }

// rational is a number of any class, exactly.
func (o *operand) rational(w *worker) (*big.Rat, bool) {
	switch {
	case o.literal != nil:
		return o.literal, true
	case o.class == classDecimal:
		d, ok := o.decimal(w)
		if !ok {
			return nil, false
		}
		return new(big.Rat).SetFrac(d.BigInt(), pow10(o.scale)), true
	case o.class == classInt:
		n, ok := o.int(w)
		return new(big.Rat).SetInt64(n), ok
	}
	f, ok := o.double(w)
	if !ok || math.IsInf(f, 0) || math.IsNaN(f) {
		return nil, false
	}
	return new(big.Rat).SetFloat64(f), true
}

// decimalSumAcc adds decimals without a bound, so that no order of rows overflows
// before another.
type decimalSumAcc struct {
	typ  event.DecimalType
	seen bool
	sum  big.Int
}

func (a *decimalSumAcc) add(v value, _ int64) {
	a.seen = true
	a.sum.Add(&a.sum, decimalOf(v).BigInt())
}

func (a *decimalSumAcc) merge(o accumulator) {
	b := o.(*decimalSumAcc)
	a.seen = a.seen || b.seen
	a.sum.Add(&a.sum, &b.sum)
}

// encode writes a tag (0 nothing, 1 a sum, 2 a negative one) and the sum's bytes.
func (a *decimalSumAcc) encode(b []byte) []byte {
	tag := byte(0)
	switch {
	case a.seen && a.sum.Sign() < 0:
		tag = 2
	case a.seen:
		tag = 1
	}
	return valBinary.appendValue(append(b, tag), value{text: a.sum.Bytes()})
}

func (a *decimalSumAcc) decode(b []byte) ([]byte, bool) {
	if len(b) == 0 || b[0] > 2 {
		return nil, false
	}
	text, rest, ok := cutText(b[1:])
	a.seen = b[0] > 0
	a.sum.SetBytes(text)
	if b[0] == 2 {
		a.sum.Neg(&a.sum)
	}
	return rest, ok
}

func (a *decimalSumAcc) result(b array.Builder) {
	if !a.seen || a.sum.CmpAbs(pow10(a.typ.Precision)) >= 0 {
		b.AppendNull()
		return
	}
	b.(*array.Decimal128Builder).Append(decimal128.FromBigInt(&a.sum))
}
