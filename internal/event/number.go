package event

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"regexp"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow/decimal128"
)

// MaxPrecision is how many digits a decimal has at most, in Spark, Iceberg, Delta
// and in the 128 bits of Arrow alike.
const MaxPrecision = 38

// DecimalType is that of exact numbers with Scale digits behind the point, of
// Precision digits in all.
type DecimalType struct{ Precision, Scale int }

var decimalForm = regexp.MustCompile(`^decimal *\( *([0-9]+) *, *([0-9]+) *\)$`)

// ParseDecimalType reads decimal(P,S). Its error says what is wrong with the text.
func ParseDecimalType(text string) (DecimalType, error) {
	m := decimalForm.FindStringSubmatch(text)
	if m == nil {
		return DecimalType{}, errors.New("is not decimal(P,S), as in decimal(18,2)")
	}
	p, err1 := strconv.Atoi(m[1])
	s, err2 := strconv.Atoi(m[2])
	switch {
	case err1 != nil || p < 1 || p > MaxPrecision:
		return DecimalType{}, fmt.Errorf("has a precision that is not between 1 and %d", MaxPrecision)
	case err2 != nil || s > p:
		return DecimalType{}, fmt.Errorf("has a scale that is not between 0 and its precision, %d", p)
	}
	return DecimalType{p, s}, nil
}

// String is the type as a pipeline file has it.
func (d DecimalType) String() string { return fmt.Sprintf("decimal(%d,%d)", d.Precision, d.Scale) }

// Sum is the type of a sum of such numbers, as Spark has it: ten digits more, as far
// as there is room.
func (d DecimalType) Sum() DecimalType {
	return DecimalType{min(d.Precision+10, MaxPrecision), d.Scale}
}

// number is a number's text taken apart: its value is digits × 10^exp, where the
// last digit is not zero unless the value is.
type number struct {
	neg bool
	// hi and lo are the digits as a number of 128 bits; they hold no more than
	// MaxPrecision of them.
	hi, lo uint64
	// digits counts them all, leading and trailing zeros aside; 0 is zero.
	digits int
	exp    int
}

// parseNumber takes a number apart that a scan has accepted. The exponent ends at
// those of 32 bits, beyond which no type has a number.
func parseNumber(b []byte) number {
	var n number
	if b[0] == '-' {
		n.neg, b = true, b[1:]
	}
	mantissa, exp := b, 0
	if e := bytes.IndexAny(b, "eE"); e >= 0 {
		mantissa, exp = b[:e], exponent(b[e+1:])
	}
	zeros, fraction := 0, false
	for _, c := range mantissa {
		if c == '.' {
			fraction = true
			continue
		}
		if fraction {
			exp--
		}
		switch {
		case c != '0':
			n.push(zeros, c-'0')
			zeros = 0
		case n.digits > 0:
			zeros++
		}
	}
	if n.digits > 0 {
		n.exp = exp + zeros
	}
	return n
}

func exponent(b []byte) int {
	n, err := strconv.Atoi(string(b))
	switch {
	case b[0] == '-' && (err != nil || n < math.MinInt32):
		return math.MinInt32
	case err != nil || n > math.MaxInt32:
		return math.MaxInt32
	}
	return n
}

// push appends zeros and a digit.
func (n *number) push(zeros int, digit byte) {
	n.digits += zeros + 1
	if n.digits > MaxPrecision {
		return
	}
	for range zeros {
		n.times10(0)
	}
	n.times10(uint64(digit))
}

// times10 is ten times the digits, plus one more.
func (n *number) times10(plus uint64) {
	carry, lo := bits.Mul64(n.lo, 10)
	var over uint64
	n.lo, over = bits.Add64(lo, plus, 0)
	n.hi = n.hi*10 + carry + over
}

// scaled is the value times 10^scale: TypeMismatch where that is no whole number,
// NumberOutOfRange where it has more than max digits.
func (n number) scaled(scale, max int) (hi, lo uint64, r Reason) {
	n.exp += scale
	switch {
	case n.digits == 0:
		return 0, 0, OK
	case n.exp < 0:
		return 0, 0, TypeMismatch
	case n.digits+n.exp > max:
		return 0, 0, NumberOutOfRange
	}
	for range n.exp {
		n.times10(0)
	}
	return n.hi, n.lo, OK
}

// maxIntDigits is how many digits an int64 has at most.
const maxIntDigits = 19

func (n number) int64() (int64, Reason) {
	_, lo, r := n.scaled(0, maxIntDigits) // 19 digits fit the lower half
	switch {
	case r != OK:
		return 0, r
	case n.neg && lo <= 1<<63:
		return -int64(lo), OK
	case !n.neg && lo <= math.MaxInt64:
		return int64(lo), OK
	}
	return 0, NumberOutOfRange
}

// Decimal decodes a number exactly to a multiple of 10^-Scale, never passing
// through a float. A string that holds a JSON number is one too: that is how
// money is often sent.
//
// A number with more digits before the point than there is room for is out of
// range, and so is one with more behind it, zeros at its end aside: it is not
// rounded.
func (v Value) Decimal(doc []byte, t DecimalType, scratch []byte) (d decimal128.Num, grown []byte, r Reason) {
	text := doc[v.Start:v.End]
	switch v.Kind {
	case Number:
	case String:
		text, scratch = v.Text(doc, scratch)
		if !isNumber(text) {
			return d, scratch, TypeMismatch
		}
	default:
		return d, scratch, TypeMismatch
	}
	n := parseNumber(text)
	hi, lo, r := n.scaled(t.Scale, t.Precision)
	if r != OK {
		return d, scratch, NumberOutOfRange
	}
	d = decimal128.New(int64(hi), lo) //nolint:gosec // 38 digits fit 127 bits
	if n.neg {
		d = d.Negate()
	}
	return d, scratch, OK
}

// isNumber reports whether a text is one JSON number.
func isNumber(b []byte) bool {
	if len(b) == 0 {
		return false
	}
	end, ok := numberEnd(b, 0)
	return ok && end == len(b)
}

// numberEnd is where the number ends that begins at i; not ok is where a digit is
// missing. Range is no matter of the grammar.
func numberEnd(doc []byte, i int) (end int, ok bool) {
	if doc[i] == '-' {
		i++
	}
	from := i
	if i < len(doc) && doc[i] == '0' {
		i++
	} else if i = digitsEnd(doc, i); i == from {
		return i, false
	}
	if i < len(doc) && doc[i] == '.' {
		from = i + 1
		if i = digitsEnd(doc, from); i == from {
			return i, false
		}
	}
	if i < len(doc) && doc[i]|0x20 == 'e' {
		if i++; i < len(doc) && (doc[i] == '+' || doc[i] == '-') {
			i++
		}
		from = i
		if i = digitsEnd(doc, from); i == from {
			return i, false
		}
	}
	return i, true
}

func digitsEnd(doc []byte, i int) int {
	for i < len(doc) && doc[i]-'0' <= 9 {
		i++
	}
	return i
}
