package contract

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/big"
	"math/bits"
	"slices"
	"strconv"
	"unicode/utf8"
)

const (
	// manyKeys is from when on the names of an object are kept in a map.
	manyKeys = 32
	// maxExponent and maxDigits bound the numbers that are taken as exact
	// rationals: beyond, a short text could ask for gigabytes.
	maxExponent = 400
	maxDigits   = 1000
)

// scanner is the state of one pass. Methods return false where the bytes are
// not JSON (or too deep) and nothing after that place means anything.
type scanner struct {
	b     []byte
	i     int
	depth int

	reason Reason // the first violation
	detail string
	// ambiguous is set where a name on the way to a captured value occurs
	// twice: then the value says nothing about the event.
	ambiguous bool

	captured [captures][]byte

	keys [][]byte // names of the open objects that no schema knows
	// numInt is set where the last number was written without fraction or exponent.
	numInt bool
}

func (s *scanner) reset(b []byte) {
	*s = scanner{b: b, keys: s.keys[:0]}
}

// fail records a violation. The first one counts, but what leaves the reading
// of the event in doubt outranks what the contract says about one reading.
func (s *scanner) fail(r Reason, n *node, what string) {
	if s.reason != "" && (doubtful(s.reason) || !doubtful(r)) {
		return
	}
	at := "(root)"
	if n != nil && n.path != "" {
		at = n.path
	}
	s.reason, s.detail = r, at+": "+what
}

func doubtful(r Reason) bool { return r == DuplicateKey || r == LoneSurrogate }

func (s *scanner) syntax(what string) bool {
	s.reason, s.detail = InvalidJSON, what+" at byte "+strconv.Itoa(s.i)
	return false
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return
		}
	}
}

func (s *scanner) document(root *node) bool {
	s.space()
	if !s.value(root) {
		return false
	}
	s.space()
	if s.i < len(s.b) {
		return s.syntax("more after the value")
	}
	return true
}

// free is the schema of everything that no schema describes.
var free = newNode("")

func (s *scanner) value(n *node) bool {
	if s.i >= len(s.b) {
		return s.syntax("the value is cut off")
	}
	start := s.i
	switch c := s.b[s.i]; {
	case c == '"':
		text, ok := s.str(n)
		if !ok {
			return false
		}
		s.checkString(n, text)
		s.take(n, text)
		return true
	case c == '{' || c == '[':
		return s.nested(n, c)
	case c == '-' || (c >= '0' && c <= '9'):
		if !s.number() {
			return false
		}
		s.checkNumber(n, s.b[start:s.i])
		s.take(n, s.b[start:s.i])
		return true
	case c == 't':
		return s.word("true") && s.checkWord(n, typeBoolean, n.enumT)
	case c == 'f':
		return s.word("false") && s.checkWord(n, typeBoolean, n.enumF)
	case c == 'n':
		return s.word("null") && s.checkWord(n, typeNull, n.enumMsk&typeNull != 0)
	default:
		return s.syntax("no value begins like this")
	}
}

func (s *scanner) take(n *node, v []byte) {
	for slot, want := range n.capture {
		if want {
			s.captured[slot] = v
		}
	}
}

func (s *scanner) nested(n *node, c byte) bool {
	s.depth++
	if s.depth > MaxDepth {
		s.reason, s.detail = TooDeep, "nested deeper than "+strconv.Itoa(MaxDepth)+" at byte "+strconv.Itoa(s.i)
		return false
	}
	var ok bool
	if c == '{' {
		s.want(n, typeObject, "object")
		ok = s.object(n)
	} else {
		s.want(n, typeArray, "array")
		ok = s.array(n)
	}
	s.depth--
	if n.enumed {
		s.fail(NotAllowed, n, "not one of the allowed values")
	}
	return ok
}

func (s *scanner) want(n *node, t typeMask, is string) {
	if n.types != 0 && n.types&t == 0 {
		s.fail(WrongType, n, "is "+is+", not "+n.want)
	}
}

func (s *scanner) word(w string) bool {
	if len(s.b)-s.i < len(w) || string(s.b[s.i:s.i+len(w)]) != w {
		return s.syntax("no value begins like this")
	}
	s.i += len(w)
	return true
}

func (s *scanner) checkWord(n *node, t typeMask, allowed bool) bool {
	is := "boolean"
	if t == typeNull {
		is = "null"
	}
	s.want(n, t, is)
	if n.enumed && !allowed {
		s.fail(NotAllowed, n, "not one of the allowed values")
	}
	return true
}

func (s *scanner) array(n *node) bool {
	items := n.items
	if items == nil {
		items = free
	}
	s.i++
	s.space()
	count := 0
	if s.i < len(s.b) && s.b[s.i] == ']' {
		s.i++
	} else {
		for {
			if !s.value(items) {
				return false
			}
			count++
			s.space()
			if s.i >= len(s.b) {
				return s.syntax("the array is cut off")
			}
			c := s.b[s.i]
			if c != ',' && c != ']' {
				return s.syntax("neither , nor ] in an array")
			}
			s.i++
			if c == ']' {
				break
			}
			s.space()
		}
	}
	if count < n.minItems || (n.maxItems >= 0 && count > n.maxItems) {
		s.fail(OutOfRange, n, strconv.Itoa(count)+" items")
	}
	return true
}

func (s *scanner) object(n *node) bool {
	s.i++
	var seen uint64
	base := len(s.keys)
	var many map[string]struct{}
	count := 0
	s.space()
	if s.i < len(s.b) && s.b[s.i] == '}' {
		s.i++
		return s.endObject(n, seen, base, 0)
	}
	for {
		if s.i >= len(s.b) || s.b[s.i] != '"' {
			return s.syntax("a property name was expected")
		}
		name, ok := s.str(n)
		if !ok {
			return false
		}
		count++
		child := free
		known := false
		twice := false
		if i := n.lookup(name); i >= 0 && i < maxProperties {
			child, known = n.props[i].node, n.props[i].known
			twice = seen&(1<<i) != 0
			seen |= 1 << i
		} else {
			twice, many = s.remember(name, base, many)
			if i >= 0 {
				child, known = n.props[i].node, n.props[i].known
			}
		}
		if twice {
			s.ambiguous = s.ambiguous || child.onPath
			s.fail(DuplicateKey, n, "the name "+strconv.Quote(clip(string(name)))+" occurs twice")
		}
		if !known {
			if n.forbid {
				s.fail(UnknownField, n, "the property "+strconv.Quote(clip(string(name)))+" is not allowed")
			}
			if n.additional != nil {
				child = n.additional
			}
		}
		s.space()
		if s.i >= len(s.b) || s.b[s.i] != ':' {
			return s.syntax("no : after a property name")
		}
		s.i++
		s.space()
		if !s.value(child) {
			return false
		}
		s.space()
		if s.i >= len(s.b) {
			return s.syntax("the object is cut off")
		}
		c := s.b[s.i]
		if c != ',' && c != '}' {
			return s.syntax("neither , nor } in an object")
		}
		s.i++
		if c == '}' {
			return s.endObject(n, seen, base, count)
		}
		s.space()
	}
}

func (s *scanner) endObject(n *node, seen uint64, base, count int) bool {
	s.keys = s.keys[:base]
	if missing := n.required &^ seen; missing != 0 {
		s.fail(MissingField, n, strconv.Quote(n.props[bits.TrailingZeros64(missing)].name)+" is required")
	}
	if count < n.minProps || (n.maxProps >= 0 && count > n.maxProps) {
		s.fail(OutOfRange, n, strconv.Itoa(count)+" properties")
	}
	return true
}

// remember keeps the name of an open object and says whether it was there.
func (s *scanner) remember(name []byte, base int, many map[string]struct{}) (bool, map[string]struct{}) {
	if many != nil {
		if _, ok := many[string(name)]; ok {
			return true, many
		}
		many[string(name)] = struct{}{}
		return false, many
	}
	for _, k := range s.keys[base:] {
		if bytes.Equal(k, name) {
			return true, nil
		}
	}
	s.keys = append(s.keys, name)
	if len(s.keys)-base < manyKeys {
		return false, nil
	}
	many = make(map[string]struct{}, 2*manyKeys)
	for _, k := range s.keys[base:] {
		many[string(k)] = struct{}{}
	}
	return false, many
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// str reads a string and returns it decoded; without escapes that is a part of
// the event itself.
func (s *scanner) str(n *node) ([]byte, bool) {
	s.i++
	start := s.i
	b := s.b
	i := s.i
	for {
		// Eight bytes at a time: the first quote, backslash or control
		// character. The lowest marked byte is exact, which is all we use.
		for i+8 <= len(b) {
			x := binary.LittleEndian.Uint64(b[i:])
			q := x ^ (ones * '"')
			e := x ^ (ones * '\\')
			m := ((q - ones) &^ q) | ((e - ones) &^ e) | ((x - ones*0x20) &^ x)
			m &= highs
			if m != 0 {
				i += bits.TrailingZeros64(m) >> 3
				break
			}
			i += 8
		}
		if i >= len(b) {
			s.i = i
			return nil, s.syntax("the string is cut off")
		}
		switch c := b[i]; {
		case c == '"':
			s.i = i + 1
			return b[start:i:i], true
		case c == '\\':
			s.i = i
			return s.escaped(n, start)
		case c < 0x20:
			s.i = i
			return nil, s.syntax("a control character in a string")
		}
		i++
	}
}

// escaped goes on from the first backslash of a string.
func (s *scanner) escaped(n *node, start int) ([]byte, bool) {
	b := s.b
	out := make([]byte, 0, len(b[start:s.i])+64)
	out = append(out, b[start:s.i]...)
	for s.i < len(b) {
		c := b[s.i]
		switch {
		case c == '"':
			s.i++
			return out, true
		case c < 0x20:
			return nil, s.syntax("a control character in a string")
		case c != '\\':
			end := s.i + 1
			for end < len(b) && b[end] != '"' && b[end] != '\\' && b[end] >= 0x20 {
				end++
			}
			out = append(out, b[s.i:end]...)
			s.i = end
		default:
			if s.i+1 >= len(b) {
				return nil, s.syntax("the string is cut off")
			}
			if b[s.i+1] == 'u' {
				r, ok := s.unicode(n)
				if !ok {
					return nil, false
				}
				out = utf8.AppendRune(out, r)
				continue
			}
			d := unescape(b[s.i+1])
			if d == 0 {
				return nil, s.syntax("an unknown escape")
			}
			out = append(out, d)
			s.i += 2
		}
	}
	return nil, s.syntax("the string is cut off")
}

func unescape(c byte) byte {
	switch c {
	case '"', '\\', '/':
		return c
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return 0
}

// unicode reads \uXXXX, or two of them where they are a pair.
func (s *scanner) unicode(n *node) (rune, bool) {
	r, ok := s.hex4(s.i + 2)
	if !ok {
		return 0, s.syntax("not four hexadecimal digits after \\u")
	}
	s.i += 6
	if r < 0xD800 || r > 0xDFFF {
		return r, true
	}
	if r < 0xDC00 && s.i+1 < len(s.b) && s.b[s.i] == '\\' && s.b[s.i+1] == 'u' {
		low, ok := s.hex4(s.i + 2)
		if ok && low >= 0xDC00 && low <= 0xDFFF {
			s.i += 6
			return 0x10000 + (r-0xD800)<<10 + (low - 0xDC00), true
		}
	}
	s.fail(LoneSurrogate, n, "half of a surrogate pair at byte "+strconv.Itoa(s.i-6))
	return utf8.RuneError, true
}

func (s *scanner) hex4(at int) (rune, bool) {
	if at+4 > len(s.b) {
		return 0, false
	}
	var r rune
	for _, c := range s.b[at : at+4] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 + rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 + rune(c-'a') + 10
		case c >= 'A' && c <= 'F':
			r = r<<4 + rune(c-'A') + 10
		default:
			return 0, false
		}
	}
	return r, true
}

func (s *scanner) number() bool {
	b := s.b
	s.numInt = true
	if b[s.i] == '-' {
		s.i++
	}
	switch {
	case s.i >= len(b) || b[s.i] < '0' || b[s.i] > '9':
		return s.syntax("a number without digits")
	case b[s.i] == '0':
		s.i++
	default:
		s.digits()
	}
	if s.i < len(b) && b[s.i] == '.' {
		s.numInt = false
		s.i++
		if s.digits() == 0 {
			return s.syntax("a number without digits after the point")
		}
	}
	if s.i < len(b) && (b[s.i] == 'e' || b[s.i] == 'E') {
		s.numInt = false
		s.i++
		if s.i < len(b) && (b[s.i] == '+' || b[s.i] == '-') {
			s.i++
		}
		if s.digits() == 0 {
			return s.syntax("a number without digits in the exponent")
		}
	}
	return true
}

func (s *scanner) digits() int {
	start := s.i
	for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i - start
}

func (s *scanner) checkNumber(n *node, text []byte) {
	if n.enumed {
		s.fail(NotAllowed, n, "not one of the allowed values")
	}
	whole := s.numInt
	switch {
	case n.types == 0 || n.types&typeNumber != 0:
	case n.types&typeInteger == 0:
		s.fail(WrongType, n, "is number, not "+n.want)
		return
	case !whole:
		r, ok := rational(text)
		if !ok || !r.IsInt() {
			s.fail(WrongType, n, "is a number with a fraction or beyond any integer, not "+n.want)
			return
		}
	}
	if n.lower == nil && n.upper == nil {
		return
	}
	if whole && n.intBounds && len(text) <= 18 {
		v, _ := strconv.ParseInt(string(text), 10, 64)
		if v < n.lowerInt || v > n.upperInt {
			s.fail(OutOfRange, n, string(text)+" is out of range")
		}
		return
	}
	r, ok := rational(text)
	if !ok || !n.within(r) {
		s.fail(OutOfRange, n, clip(string(text))+" is out of range")
	}
}

func (n *node) within(r *big.Rat) bool {
	if n.lower != nil {
		if c := r.Cmp(n.lower); c < 0 || (c == 0 && n.lowerOpen) {
			return false
		}
	}
	if n.upper != nil {
		if c := r.Cmp(n.upper); c > 0 || (c == 0 && n.upperOpen) {
			return false
		}
	}
	return true
}

// rational is the exact value of a number of sensible size.
func rational(text []byte) (*big.Rat, bool) {
	if len(text) > maxDigits {
		return nil, false
	}
	if e := bytes.IndexAny(text, "eE"); e >= 0 {
		exp, err := strconv.Atoi(string(text[e+1:]))
		if err != nil || exp > maxExponent || exp < -maxExponent {
			return nil, false
		}
	}
	return new(big.Rat).SetString(string(text))
}

func (s *scanner) checkString(n *node, text []byte) {
	if n.types != 0 && n.types&typeString == 0 {
		s.fail(WrongType, n, "is string, not "+n.want)
		return
	}
	if n.enumed && !slices.Contains(n.enum, string(text)) {
		s.fail(NotAllowed, n, quote(text)+" is not one of the allowed values")
	}
	if n.maxLength >= 0 && len(text) > n.maxLength && utf8.RuneCount(text) > n.maxLength {
		s.fail(OutOfRange, n, "longer than "+strconv.Itoa(n.maxLength)+" characters")
	}
	if n.minLength > 0 && len(text) < 4*n.minLength && utf8.RuneCount(text) < n.minLength {
		s.fail(OutOfRange, n, "shorter than "+strconv.Itoa(n.minLength)+" characters")
	}
	if n.pattern != nil && (!n.uuid || !isUUID(text)) && !n.pattern.Match(text) {
		s.fail(BadFormat, n, quote(text)+" does not match the pattern")
	}
	if n.formatOf != nil && !plainFormat(n.format, text) && n.formatOf.Validate(string(text)) != nil {
		s.fail(BadFormat, n, quote(text)+" is not a "+n.format)
	}
}

func quote(text []byte) string {
	q, err := json.Marshal(clip(string(text)))
	if err != nil {
		return "the value"
	}
	return string(q)
}
