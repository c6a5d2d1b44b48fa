package event

import (
	"bytes"
	"fmt"
	"math"
	"slices"
)

// Kind is what a value is.
type Kind uint8

// The kinds. Missing is a path that leads nowhere in the document.
const (
	Missing Kind = iota
	Null
	False
	True
	Number
	String
	Object
	Array
)

// String names the kind for messages.
func (k Kind) String() string {
	return [...]string{"missing", "null", "boolean", "boolean", "number", "string", "object", "array"}[k]
}

// Value is the place of a path's value in the scanned document.
type Value struct {
	Start, End uint32
	Kind       Kind
	// Escaped is set on a string that holds at least one escape.
	Escaped bool
}

// linearKeys is how many keys of one object are compared one by one; a larger
// object's keys are sorted when it closes, so that a hostile document costs
// n log n and not n².
const linearKeys = 32

// maxDocument bounds a document: places are 31 bits.
const maxDocument = math.MaxInt32

// Scanner scans documents one after the other. It belongs to one goroutine and
// keeps its scratch memory between documents.
type Scanner struct {
	prog *Program
	doc  []byte
	out  []Value
	// keys is a stack: the keys of the open objects, outermost first.
	keys []seenKey
	// arena holds the decoded form of keys that were written with escapes.
	arena []byte
	err   Error
}

// seenKey is a key of an open object: its bytes lie in the document, or in the
// arena where inArena is set. It holds no pointer, so that pushing one needs
// no write barrier.
type seenKey struct {
	sig        uint64
	start, end uint32
}

const inArena = 1 << 31

// NewScanner makes a scanner for the program.
func (p *Program) NewScanner() *Scanner { return &Scanner{prog: p} }

// Paths is the number of outputs of a scan.
func (p *Program) Paths() int { return p.paths }

// Scan checks the whole document and fills out (one value per path). On a
// document that is refused the error is an *Error, valid until the next Scan,
// and out is undefined.
func (s *Scanner) Scan(doc []byte, out []Value) error {
	clear(out)
	s.doc, s.out = doc, out
	s.keys, s.arena = s.keys[:0], s.arena[:0]
	if len(doc) > maxDocument {
		s.fail(InvalidJSON, 0, fmt.Sprintf("a document of %d bytes, at most %d are supported", len(doc), maxDocument))
		return &s.err
	}
	i := s.value(s.space(0), s.prog.root, 0)
	if i < 0 {
		return &s.err
	}
	if i = s.space(i); i < len(doc) {
		s.fail(InvalidJSON, i, "more text after the end of the document")
		return &s.err
	}
	s.doc, s.out = nil, nil
	return nil
}

// fail notes the fault and gives -1, which every scanning function passes on.
func (s *Scanner) fail(r Reason, at int, detail string) int {
	s.err = Error{Reason: r, Offset: at, Detail: detail}
	return -1
}

// unexpected is the fault of a byte that cannot stand where it does.
func (s *Scanner) unexpected(i int, want string) int {
	if i >= len(s.doc) {
		return s.fail(InvalidJSON, len(s.doc), "the document ends where "+want+" was expected")
	}
	return s.fail(InvalidJSON, i, fmt.Sprintf("%s where %s was expected", quoteByte(s.doc[i]), want))
}

func quoteByte(c byte) string {
	if c > 0x20 && c < 0x7f {
		return fmt.Sprintf("%q", rune(c))
	}
	return fmt.Sprintf("byte 0x%02x", c)
}

// space skips white space.
func (s *Scanner) space(i int) int {
	doc := s.doc
	for i < len(doc) && doc[i] <= ' ' {
		if c := doc[i]; c != ' ' && c != '\n' && c != '\r' && c != '\t' {
			break
		}
		i++
	}
	return i
}

// value scans the value at i and gives the place after it. n is the node of
// the paths that lead here, nil if none does.
func (s *Scanner) value(i int, n *node, depth int) int {
	doc := s.doc
	if i >= len(doc) {
		return s.unexpected(i, "a value")
	}
	start := i
	var kind Kind
	escaped := false
	switch c := doc[i]; {
	case c == '"':
		kind = String
		i, escaped = s.text(i + 1)
	case c == '{':
		kind = Object
		if depth >= s.prog.maxDepth {
			return s.tooDeep(i)
		}
		i = s.object(i+1, n, depth+1)
	case c == '[':
		kind = Array
		if depth >= s.prog.maxDepth {
			return s.tooDeep(i)
		}
		i = s.array(i+1, n, depth+1)
	case c == '-' || (c >= '0' && c <= '9'):
		kind = Number
		i = s.number(i)
	case c == 't' && len(doc)-i >= 4 && string(doc[i:i+4]) == "true":
		kind = True
		i += 4
	case c == 'f' && len(doc)-i >= 5 && string(doc[i:i+5]) == "false":
		kind = False
		i += 5
	case c == 'n' && len(doc)-i >= 4 && string(doc[i:i+4]) == "null":
		kind = Null
		i += 4
	default:
		return s.unexpected(i, "a value")
	}
	if i >= 0 && n != nil {
		for _, leaf := range n.leaves {
			s.out[leaf] = Value{Start: uint32(start), End: uint32(i), Kind: kind, Escaped: escaped}
		}
	}
	return i
}

func (s *Scanner) tooDeep(i int) int {
	return s.fail(TooDeep, i, fmt.Sprintf("containers nest deeper than %d", s.prog.maxDepth))
}

// object scans the members after an opening brace.
func (s *Scanner) object(i int, n *node, depth int) int {
	doc := s.doc
	base := len(s.keys)
	var seen uint64
	if i = s.space(i); i < len(doc) && doc[i] == '}' {
		return i + 1
	}
	for {
		if i >= len(doc) || doc[i] != '"' {
			return s.unexpected(i, "a key")
		}
		start := i + 1
		end, escaped := s.text(start)
		if end < 0 {
			return end
		}
		i = end
		k := seenKey{start: uint32(start), end: uint32(end - 1)}
		if escaped {
			k.start = uint32(len(s.arena)) | inArena
			s.arena = unescape(s.arena, doc[start:end-1])
			k.end = uint32(len(s.arena))
		}
		key := s.key(k)
		k.sig = signature(key)
		// Two keys with different bits here are different, and one in 64 is
		// all that a short object makes collide.
		bit := uint64(1) << (k.sig & 63)
		if seen&bit != 0 && len(s.keys)-base <= linearKeys && s.isSeen(base, k.sig, key) {
			return s.duplicate(start-1, key)
		}
		seen |= bit
		s.keys = append(s.keys, k)

		if i < len(doc) && doc[i] <= ' ' {
			i = s.space(i)
		}
		if i >= len(doc) || doc[i] != ':' {
			return s.unexpected(i, "a colon")
		}
		if i++; i < len(doc) && doc[i] <= ' ' {
			i = s.space(i)
		}
		var c *node
		if n != nil {
			c = n.member(k.sig, key)
		}
		if i = s.value(i, c, depth); i < 0 {
			return i
		}
		if i < len(doc) && doc[i] <= ' ' {
			i = s.space(i)
		}
		if i < len(doc) && doc[i] == ',' {
			if i++; i < len(doc) && doc[i] <= ' ' {
				i = s.space(i)
			}
			continue
		}
		if i >= len(doc) || doc[i] != '}' {
			return s.unexpected(i, "a comma or a closing brace")
		}
		if len(s.keys)-base > linearKeys {
			if key, twice := s.sortedTwice(s.keys[base:]); twice {
				return s.duplicate(i, key)
			}
		}
		s.keys = s.keys[:base]
		return i + 1
	}
}

// array scans the elements after an opening bracket.
func (s *Scanner) array(i int, n *node, depth int) int {
	doc := s.doc
	if i = s.space(i); i < len(doc) && doc[i] == ']' {
		return i + 1
	}
	pick := n != nil && len(n.elems) > 0
	for index := 0; ; index++ {
		var c *node
		if pick {
			c = n.element(index)
		}
		if i = s.value(i, c, depth); i < 0 {
			return i
		}
		i = s.space(i)
		if i < len(doc) && doc[i] == ',' {
			i = s.space(i + 1)
			continue
		}
		if i >= len(doc) || doc[i] != ']' {
			return s.unexpected(i, "a comma or a closing bracket")
		}
		return i + 1
	}
}

// key is the decoded bytes of a noted key.
func (s *Scanner) key(k seenKey) []byte {
	if k.start&inArena != 0 {
		return s.arena[k.start&^inArena : k.end]
	}
	return s.doc[k.start:k.end]
}

func (s *Scanner) isSeen(base int, sig uint64, key []byte) bool {
	for _, k := range s.keys[base:] {
		if k.sig == sig && bytes.Equal(s.key(k), key) {
			return true
		}
	}
	return false
}

// sortedTwice sorts the keys of a large object and gives one that occurs twice.
// Ties of the signature are ordered by the bytes, so that crafted signatures
// cannot make it quadratic.
func (s *Scanner) sortedTwice(keys []seenKey) ([]byte, bool) {
	slices.SortFunc(keys, func(a, b seenKey) int {
		switch {
		case a.sig < b.sig:
			return -1
		case a.sig > b.sig:
			return 1
		}
		return bytes.Compare(s.key(a), s.key(b))
	})
	for i := 1; i < len(keys); i++ {
		if keys[i].sig == keys[i-1].sig && bytes.Equal(s.key(keys[i]), s.key(keys[i-1])) {
			return s.key(keys[i]), true
		}
	}
	return nil, false
}

// shownKey is how much of a key a message shows.
const shownKey = 64

func (s *Scanner) duplicate(at int, key []byte) int {
	more := ""
	if len(key) > shownKey {
		key, more = key[:shownKey], "…"
	}
	return s.fail(DuplicateKey, at, fmt.Sprintf("key %q%s occurs twice in one object", key, more))
}

// number scans a number.
func (s *Scanner) number(i int) int {
	end, ok := numberEnd(s.doc, i)
	if !ok {
		return s.unexpected(end, "a digit")
	}
	return end
}
