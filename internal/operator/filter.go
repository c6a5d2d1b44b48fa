package operator

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"github.com/weirlake/weir/internal/event"
)

// tri is a truth value of SQL. The order makes AND the minimum and OR the
// maximum.
type tri int8

const (
	no tri = iota
	unknown
	yes
)

func truth(b bool) tri {
	if b {
		return yes
	}
	return no
}

// condition is a compiled filter; it looks at the worker's current row.
type condition func(w *worker) tri

// class is what an operand can be compared with.
type class uint8

const (
	classNull class = iota // the literal NULL
	classText
	classInt
	classDouble
	classDecimal
	classBool
	classTime
	classDate
	classLocal
	classOpaque // only IS [NOT] NULL
)

var classNames = [...]string{"null", "string", "number", "number", "number", "boolean", "timestamptz", "date", "timestamp", "opaque"}

// timely reports whether values of the class are held as their count of
// microseconds or days.
func (c class) timely() bool { return c == classTime || c == classDate || c == classLocal }

func (c class) numeric() bool { return c == classInt || c == classDouble || c == classDecimal }

// operand is a column or a literal. Only the getter of its class is set: text for
// texts, int for integers and times, double for floats too.
type operand struct {
	at    int
	class class
	show  string
	col   int // -1 for a literal

	text   func(w *worker) ([]byte, bool)
	int    func(w *worker) (int64, bool)
	double func(w *worker) (float64, bool)
	bool   func(w *worker) (bool, bool)
	// decimal gives the digits, of which scale are behind the point.
	decimal func(w *worker) (decimal128.Num, bool)
	scale   int
	// literal is a literal number, exactly.
	literal *big.Rat
}

// parser is a recursive descent over the tokens. The first fault ends it.
type parser struct {
	filter  string
	columns []column
	tokens  []token
	pos     int
	depth   int
	used    map[int]bool
}

// parseFilter compiles a filter; used are the columns that it names, in order.
func parseFilter(text string, columns []column) (c condition, used []int, err error) {
	tokens, err := tokenize(text)
	if err != nil {
		return nil, nil, err
	}
	p := &parser{filter: text, columns: columns, tokens: tokens, used: map[int]bool{}}
	if c, err = p.or(); err != nil {
		return nil, nil, err
	}
	if t := p.peek(); t.kind != tokEnd {
		return nil, nil, p.fail(t.at, "%s where AND, OR or the end was expected", t.show())
	}
	for i := range columns {
		if p.used[i] {
			used = append(used, i)
		}
	}
	return c, used, nil
}

// FilterNames are the names in a filter that may be columns.
func FilterNames(text string) ([]string, error) {
	tokens, err := tokenize(text)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, t := range tokens {
		if t.kind == tokName || t.kind == tokQuoted {
			out = append(out, t.text)
		}
	}
	return out, nil
}

func (p *parser) peek() token { return p.tokens[p.pos] }

func (p *parser) next() token {
	t := p.tokens[p.pos]
	if t.kind != tokEnd {
		p.pos++
	}
	return t
}

// accept takes the next token if it is the word.
func (p *parser) accept(word string) bool {
	if p.peek().is(word) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) expect(word string) error {
	if t := p.peek(); !p.accept(word) {
		return p.fail(t.at, "%s where %s was expected", t.show(), word)
	}
	return nil
}

func (p *parser) fail(at int, format string, args ...any) error {
	return &FilterError{Filter: p.filter, Offset: at, Detail: fmt.Sprintf(format, args...)}
}

func (p *parser) or() (condition, error) {
	left, err := p.and()
	for err == nil && p.accept("OR") {
		var right condition
		if right, err = p.and(); err == nil {
			l, r := left, right
			left = func(w *worker) tri {
				if a := l(w); a != yes {
					return max(a, r(w))
				}
				return yes
			}
		}
	}
	return left, err
}

func (p *parser) and() (condition, error) {
	left, err := p.not()
	for err == nil && p.accept("AND") {
		var right condition
		if right, err = p.not(); err == nil {
			l, r := left, right
			left = func(w *worker) tri {
				if a := l(w); a != no {
					return min(a, r(w))
				}
				return no
			}
		}
	}
	return left, err
}

func (p *parser) not() (condition, error) {
	t := p.peek()
	if !p.accept("NOT") {
		return p.predicate()
	}
	if p.depth++; p.depth > maxFilterDepth {
		return nil, p.fail(t.at, "nested deeper than %d", maxFilterDepth)
	}
	defer func() { p.depth-- }()
	c, err := p.not()
	return negate(c), err
}

func negate(c condition) condition { return func(w *worker) tri { return yes - c(w) } }

func (p *parser) predicate() (condition, error) {
	if t := p.peek(); p.accept("(") {
		if p.depth++; p.depth > maxFilterDepth {
			return nil, p.fail(t.at, "nested deeper than %d", maxFilterDepth)
		}
		defer func() { p.depth-- }()
		c, err := p.or()
		if err != nil {
			return nil, err
		}
		return c, p.expect(")")
	}
	left, err := p.operand()
	if err != nil {
		return nil, err
	}
	t := p.peek()
	switch {
	case t.kind == tokSymbol && t.text != "(" && t.text != ")" && t.text != ",":
		p.next()
		right, err := p.operand()
		if err != nil {
			return nil, err
		}
		return p.compare(left, t, right)
	case p.accept("IS"):
		negated := p.accept("NOT")
		if err := p.expect("NULL"); err != nil {
			return nil, err
		}
		return isNull(left, negated), nil
	case t.is("NOT") || t.is("IN") || t.is("LIKE"):
		negated := p.accept("NOT")
		c, err := p.list(left)
		if err == nil && negated {
			c = negate(c)
		}
		return c, err
	}
	switch left.class {
	case classBool:
		get := left.bool
		return func(w *worker) tri {
			v, ok := get(w)
			if !ok {
				return unknown
			}
			return truth(v)
		}, nil
	case classNull:
		return func(*worker) tri { return unknown }, nil
	}
	return nil, p.fail(left.at, "%s is a %s and no condition; compare it with something", left.show, classNames[left.class])
}

// list parses what follows an operand (and NOT): IN (…) or LIKE '…'.
func (p *parser) list(left operand) (condition, error) {
	t := p.peek()
	if p.accept("LIKE") {
		pattern := p.next()
		if pattern.kind != tokText {
			return nil, p.fail(pattern.at, "LIKE wants a pattern in single quotes, not %s", pattern.show())
		}
		if left.class != classText {
			return nil, p.fail(t.at, "LIKE is for strings, %s is a %s", left.show, classNames[left.class])
		}
		get := left.text
		return func(w *worker) tri {
			v, ok := get(w)
			if !ok {
				return unknown
			}
			return truth(like(v, pattern.text))
		}, nil
	}
	if err := p.expect("IN"); err != nil {
		return nil, err
	}
	if err := p.expect("("); err != nil {
		return nil, err
	}
	var any condition
	for {
		right, err := p.operand()
		if err != nil {
			return nil, err
		}
		if right.col >= 0 {
			return nil, p.fail(right.at, "IN wants literals, %s is a column", right.show)
		}
		one, err := p.compare(left, token{tokSymbol, "=", right.at}, right)
		if err != nil {
			return nil, err
		}
		if prev := any; prev == nil {
			any = one
		} else {
			any = func(w *worker) tri {
				if a := prev(w); a != yes {
					return max(a, one(w))
				}
				return yes
			}
		}
		if !p.accept(",") {
			return any, p.expect(")")
		}
	}
}

var reserved = []string{"AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "TRUE", "FALSE"}

func (p *parser) operand() (operand, error) {
	t := p.next()
	o := operand{at: t.at, show: t.show(), col: -1}
	switch t.kind {
	case tokText:
		text := []byte(t.text)
		o.class = classText
		o.text = func(*worker) ([]byte, bool) { return text, true }
		return o, nil
	case tokNumber:
		if n, err := strconv.ParseInt(t.text, 10, 64); err == nil {
			o.class, o.literal = classInt, new(big.Rat).SetInt64(n)
			o.int = func(*worker) (int64, bool) { return n, true }
			return o, nil
		}
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil || strings.ContainsAny(t.text, "xX_pP") {
			return o, p.fail(t.at, "%s is no number in range", t.text)
		}
		if !strings.ContainsAny(t.text, ".eE") {
			return o, p.fail(t.at, "%s is beyond 64 bits", t.text)
		}
		o.class = classDouble
		if o.literal, _ = new(big.Rat).SetString(t.text); o.literal == nil {
			o.literal = new(big.Rat).SetFloat64(f) // too small to write down
		}
		o.double = func(*worker) (float64, bool) { return f, true }
		return o, nil
	case tokName:
		switch {
		case t.is("TRUE"), t.is("FALSE"):
			b := t.is("TRUE")
			o.class = classBool
			o.bool = func(*worker) (bool, bool) { return b, true }
			return o, nil
		case t.is("NULL"):
			o.class = classNull
			return o, nil
		case slices.ContainsFunc(reserved, t.is):
			return o, p.fail(t.at, "%s where a column or a literal was expected", t.show())
		}
		return p.columnOperand(o, t)
	case tokQuoted:
		return p.columnOperand(o, t)
	}
	return o, p.fail(t.at, "%s where a column or a literal was expected", t.show())
}

func (p *parser) columnOperand(o operand, t token) (operand, error) {
	i := slices.IndexFunc(p.columns, func(c column) bool { return c.Name == t.text })
	if i < 0 {
		return o, p.fail(t.at, "there is no column %q", t.text)
	}
	o.col = i
	p.used[i] = true
	switch p.columns[i].typ {
	case typeString:
		o.class = classText
		o.text = func(w *worker) ([]byte, bool) { return w.textOf(i) }
	case typeInt, typeLong, typeTime, typeDate, typeLocal:
		switch p.columns[i].typ {
		case typeTime:
			o.class = classTime
		case typeDate:
			o.class = classDate
		case typeLocal:
			o.class = classLocal
		default:
			o.class = classInt
		}
		o.int = func(w *worker) (int64, bool) {
			c := w.cells[i][w.at]
			return int64(c.bits), c.kind != cellNull
		}
	case typeDecimal:
		o.class, o.scale = classDecimal, p.columns[i].decimal.Scale
		o.decimal = func(w *worker) (decimal128.Num, bool) { return w.decimalOf(i) }
	case typeFloat, typeDouble:
		o.class = classDouble
		o.double = func(w *worker) (float64, bool) { return w.doubleOf(i) }
	case typeBool:
		o.class = classBool
		o.bool = func(w *worker) (bool, bool) {
			c := w.cells[i][w.at]
			return c.bits != 0, c.kind != cellNull
		}
	default:
		o.class = classOpaque
	}
	return o, nil
}

// isNull is IS [NOT] NULL: never unknown.
func isNull(o operand, negated bool) condition {
	if o.col < 0 {
		result := truth((o.class == classNull) != negated)
		return func(*worker) tri { return result }
	}
	return func(w *worker) tri { return truth((w.cells[o.col][w.at].kind == cellNull) != negated) }
}

// timeLiteral turns a text literal into a time, or a date, where the other side is
// one of class c.
func (p *parser) timeLiteral(o operand, c class) (operand, error) {
	if o.class != classText || o.col >= 0 {
		return o, nil
	}
	text, _ := o.text(nil)
	var n int64
	var ok bool
	var want string
	switch c {
	case classTime:
		want = "time in RFC 3339, like '2026-01-31T12:00:00Z'"
		n, ok = event.ParseRFC3339(text)
	case classLocal:
		want = "time without a zone, like '2026-01-31T12:00:00'"
		n, ok = event.ParseLocalTime(text)
	default:
		want = "date, like '2026-01-31'"
		var days int32
		days, ok = event.ParseDate(text)
		n = int64(days)
	}
	if !ok {
		return o, p.fail(o.at, "%s is no %s", o.show, want)
	}
	o.class = c
	o.int = func(*worker) (int64, bool) { return n, true }
	return o, nil
}
