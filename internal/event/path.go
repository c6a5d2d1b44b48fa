package event

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits of a program.
const (
	// DefaultMaxDepth is how deep containers may nest unless Options say else.
	DefaultMaxDepth = 512
	// DepthCeiling bounds what Options may ask for: the scan recurses.
	DepthCeiling = 10_000
	// MaxPaths bounds the paths of one program.
	MaxPaths = 10_000
)

// Options of a program.
type Options struct {
	// MaxDepth is the deepest nesting of containers that is accepted;
	// 0 means DefaultMaxDepth.
	MaxDepth int
}

// Program is a compiled set of paths. It is read-only: any number of scanners
// may share it.
type Program struct {
	root     *node
	paths    int
	maxDepth int
}

// node is one step of the paths' common tree.
type node struct {
	// leaves are the outputs that end here.
	leaves []int
	keys   []child
	// slots is an open-addressing table of 1-based indexes into keys, at most
	// a quarter full, so that a key that no path names mostly meets a zero.
	slots []uint16
	shift uint
	elems []element
}

type child struct {
	sig  uint64
	key  []byte
	node *node
}

type element struct {
	index int
	node  *node
}

// PathError says what is wrong with a path, and where in it.
type PathError struct {
	Path   string
	Offset int
	Detail string
}

// Error implements error.
func (e *PathError) Error() string {
	return fmt.Sprintf("path %q, character %d: %s", e.Path, e.Offset+1, e.Detail)
}

// step is a key, or an element where key is nil.
type step struct {
	key   []byte
	index int
}

// Compile compiles paths in the common notation: $ is the document, .name and
// ['any name'] (or ["…"]) a member, [3] an element. Quotes and backslashes
// within a quoted name are escaped by a backslash. Output i of a scan is the
// value of paths[i]; a path may occur twice, and may be the prefix of another.
func Compile(paths []string, o Options) (*Program, error) {
	if o.MaxDepth == 0 {
		o.MaxDepth = DefaultMaxDepth
	}
	if o.MaxDepth < 1 || o.MaxDepth > DepthCeiling {
		return nil, fmt.Errorf("maximum depth %d is not between 1 and %d", o.MaxDepth, DepthCeiling)
	}
	if len(paths) > MaxPaths {
		return nil, fmt.Errorf("%d paths, at most %d are supported", len(paths), MaxPaths)
	}
	p := &Program{root: &node{}, paths: len(paths), maxDepth: o.MaxDepth}
	for i, text := range paths {
		steps, err := parsePath(text)
		if err != nil {
			return nil, err
		}
		n := p.root
		for _, s := range steps {
			n = n.grow(s)
		}
		n.leaves = append(n.leaves, i)
	}
	p.root.seal()
	return p, nil
}

// CheckPath reports what is wrong with a path, nil if nothing is.
func CheckPath(path string) error {
	_, err := parsePath(path)
	return err
}

// grow finds or adds the child of a step.
func (n *node) grow(s step) *node {
	if s.key == nil {
		for _, e := range n.elems {
			if e.index == s.index {
				return e.node
			}
		}
		c := &node{}
		n.elems = append(n.elems, element{s.index, c})
		return c
	}
	for _, k := range n.keys {
		if string(k.key) == string(s.key) {
			return k.node
		}
	}
	c := &node{}
	n.keys = append(n.keys, child{signature(s.key), s.key, c})
	return c
}

// seal builds the look-up tables.
func (n *node) seal() {
	if len(n.keys) > 0 {
		size := 8
		for size < 4*len(n.keys) {
			size *= 2
		}
		n.slots = make([]uint16, size)
		n.shift = uint(64 - bits.TrailingZeros(uint(size)))
		for i, k := range n.keys {
			at := int(k.sig >> n.shift)
			for n.slots[at] != 0 {
				at = (at + 1) & (size - 1)
			}
			n.slots[at] = uint16(i + 1)
		}
	}
	for _, k := range n.keys {
		k.node.seal()
	}
	for _, e := range n.elems {
		e.node.seal()
	}
}

// member is the child for a key, nil if no path goes there.
func (n *node) member(sig uint64, key []byte) *node {
	if len(n.slots) == 0 {
		return nil
	}
	for at := int(sig >> n.shift); n.slots[at] != 0; at = (at + 1) & (len(n.slots) - 1) {
		k := &n.keys[n.slots[at]-1]
		if k.sig == sig && string(k.key) == string(key) {
			return k.node
		}
	}
	return nil
}

// element is the child for an index, nil if no path goes there.
func (n *node) element(i int) *node {
	for k := range n.elems {
		if n.elems[k].index == i {
			return n.elems[k].node
		}
	}
	return nil
}

// signature mixes a key's length, first and last bytes into 64 bits. It only
// saves comparisons of bytes; it never replaces one.
func signature(k []byte) uint64 {
	n := len(k)
	var a, b uint64
	switch {
	case n >= 8:
		a = binary.LittleEndian.Uint64(k)
		b = binary.LittleEndian.Uint64(k[n-8:])
	case n >= 4:
		a = uint64(binary.LittleEndian.Uint32(k))
		b = uint64(binary.LittleEndian.Uint32(k[n-4:]))
	case n > 0:
		a = uint64(k[0]) | uint64(k[n>>1])<<8 | uint64(k[n-1])<<16
	}
	hi, lo := bits.Mul64(a^0x9e3779b97f4a7c15^uint64(n), b^0xd1b54a32d192ed03)
	return hi ^ lo
}

func parsePath(text string) ([]step, error) {
	fail := func(at int, format string, args ...any) ([]step, error) {
		return nil, &PathError{Path: text, Offset: at, Detail: fmt.Sprintf(format, args...)}
	}
	if !utf8.ValidString(text) {
		return fail(0, "is not valid UTF-8")
	}
	if !strings.HasPrefix(text, "$") {
		return fail(0, "a path starts with $, like $.meta.id")
	}
	var steps []step
	for i := 1; i < len(text); {
		switch text[i] {
		case '.':
			end := i + 1
			for end < len(text) && text[end] != '.' && text[end] != '[' {
				if strings.IndexByte("*@'\"]()?, ", text[end]) >= 0 {
					return fail(end, "%q in a plain name; write ['…'] around a name with such characters", text[end])
				}
				end++
			}
			if end == i+1 {
				return fail(i, "a name is missing after the dot")
			}
			steps = append(steps, step{key: []byte(text[i+1 : end])})
			i = end
		case '[':
			s, end, detail := parseBracket(text, i+1)
			if detail != "" {
				return fail(end, "%s", detail)
			}
			steps = append(steps, s)
			i = end
		default:
			return fail(i, "%q where a dot or a bracket was expected", text[i])
		}
	}
	return steps, nil
}

// parseBracket reads what follows an opening bracket at i and gives the
// position after the closing one, or where and what the fault is.
func parseBracket(text string, i int) (s step, end int, detail string) {
	if i < len(text) && (text[i] == '\'' || text[i] == '"') {
		quote := text[i]
		key := []byte{}
		for i++; i < len(text) && text[i] != quote; i++ {
			if text[i] == '\\' {
				i++
				if i == len(text) || (text[i] != '\\' && text[i] != '\'' && text[i] != '"') {
					return s, i - 1, "only quotes and backslashes are escaped in a quoted name"
				}
			}
			key = append(key, text[i])
		}
		if i+1 >= len(text) || text[i+1] != ']' {
			return s, min(i, len(text)-1), "a quoted name ends with its quote and a bracket"
		}
		return step{key: key}, i + 2, ""
	}
	close := strings.IndexByte(text[i:], ']')
	if close < 0 {
		return s, i - 1, "the bracket is not closed"
	}
	digits := text[i : i+close]
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 || digits[0] == '+' {
		return s, i, fmt.Sprintf("[%s] is neither a quoted name nor an element's number", digits)
	}
	return step{index: n}, i + close + 1, ""
}
