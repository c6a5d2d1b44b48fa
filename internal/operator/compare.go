package operator

import (
	"bytes"
	"cmp"
	"math"
	"unicode/utf8"
)

// verdict turns an order (-1, 0, 1) into the truth of a comparison.
type verdict [3]tri

var verdicts = map[string]verdict{
	"=":  {no, yes, no},
	"==": {no, yes, no},
	"!=": {yes, no, yes},
	"<>": {yes, no, yes},
	"<":  {yes, no, no},
	"<=": {yes, yes, no},
	">":  {no, no, yes},
	">=": {no, yes, yes},
}

// compare compiles a comparison. A null on either side is unknown. Strings are
// compared by bytes; numbers by value, exactly, whatever their types.
func (p *parser) compare(l operand, op token, r operand) (condition, error) {
	v, ok := verdicts[op.text]
	if !ok {
		return nil, p.fail(op.at, "%s is no comparison", op.text)
	}
	var err error
	if l.class.timely() {
		r, err = p.timeLiteral(r, l.class)
	} else if r.class.timely() {
		l, err = p.timeLiteral(l, r.class)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case l.class == classOpaque || r.class == classOpaque:
		o := l
		if r.class == classOpaque {
			o = r
		}
		return nil, p.fail(o.at, "%s is binary or json and can only be asked for NULL", o.show)
	case l.class == classNull || r.class == classNull:
		return func(*worker) tri { return unknown }, nil
	case l.class == classText && r.class == classText:
		return compareTexts(v, l, r), nil
	case l.class == r.class && (l.class == classInt || l.class.timely()):
		return func(w *worker) tri {
			a, ok1 := l.int(w)
			b, ok2 := r.int(w)
			if !ok1 || !ok2 {
				return unknown
			}
			return v[cmp.Compare(a, b)+1]
		}, nil
	case l.class == classDouble && r.class == classDouble:
		return func(w *worker) tri {
			a, ok1 := l.double(w)
			b, ok2 := r.double(w)
			if !ok1 || !ok2 {
				return unknown
			}
			return v[cmp.Compare(a, b)+1]
		}, nil
	case l.class.numeric() && r.class.numeric() && (l.class == classDecimal || r.class == classDecimal):
		return compareExact(v, l, r), nil
	case l.class == classInt && r.class == classDouble, l.class == classDouble && r.class == classInt:
		return compareMixed(v, l, r), nil
	case l.class == classBool && r.class == classBool:
		return func(w *worker) tri {
			a, ok1 := l.bool(w)
			b, ok2 := r.bool(w)
			if !ok1 || !ok2 {
				return unknown
			}
			return v[compareBools(a, b)+1]
		}, nil
	}
	return nil, p.fail(op.at, "%s is a %s, %s is a %s: they cannot be compared", l.show, classNames[l.class], r.show, classNames[r.class])
}

func compareTexts(v verdict, l, r operand) condition {
	return func(w *worker) tri {
		a, ok := l.text(w)
		if !ok {
			return unknown
		}
		// Both sides may decode into the worker's one scratch buffer.
		if l.col >= 0 && r.col >= 0 {
			w.kept = append(w.kept[:0], a...)
			a = w.kept
		}
		b, ok := r.text(w)
		if !ok {
			return unknown
		}
		return v[bytes.Compare(a, b)+1]
	}
}

func compareMixed(v verdict, l, r operand) condition {
	return func(w *worker) tri {
		if l.class == classInt {
			a, ok1 := l.int(w)
			b, ok2 := r.double(w)
			if !ok1 || !ok2 {
				return unknown
			}
			return v[compareIntDouble(a, b)+1]
		}
		a, ok1 := l.double(w)
		b, ok2 := r.int(w)
		if !ok1 || !ok2 {
			return unknown
		}
		return v[1-compareIntDouble(b, a)]
	}
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// compareIntDouble compares by value; turning the integer into a double would
// make 2^53+1 equal to 2^53. There is no NaN in JSON.
func compareIntDouble(a int64, b float64) int {
	switch {
	case b >= math.MaxInt64: // 2^63 as a double
		return -1
	case b < math.MinInt64:
		return 1
	}
	whole := math.Trunc(b)
	if c := cmp.Compare(a, int64(whole)); c != 0 {
		return c
	}
	return cmp.Compare(0, b-whole)
}

// like matches SQL's LIKE: % is any run, _ any one character, a backslash
// takes the next character literally. It backtracks to the last % only, so a
// hostile value costs at most length times length.
func like(s []byte, pattern string) bool {
	i, j := 0, 0
	starJ, starI := -1, 0
	for i < len(s) {
		if j < len(pattern) {
			c := pattern[j]
			if c == '%' {
				starJ, starI = j, i
				j++
				continue
			}
			if c == '_' {
				_, n := utf8.DecodeRune(s[i:])
				i += n
				j++
				continue
			}
			k := j
			if c == '\\' && j+1 < len(pattern) {
				k++
			}
			if pattern[k] == s[i] {
				i++
				j = k + 1
				continue
			}
		}
		if starJ < 0 {
			return false
		}
		_, n := utf8.DecodeRune(s[starI:])
		starI += n
		i, j = starI, starJ+1
	}
	for j < len(pattern) && pattern[j] == '%' {
		j++
	}
	return j == len(pattern)
}
