package event

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special has the high bit of the first byte in w set that is a quote, a
// backslash, a control character or not ASCII. Bits above the first one may be
// set wrongly (a borrow runs upwards); only the lowest is used.
func special(w uint64) uint64 {
	q := w ^ ('"' * ones)
	b := w ^ ('\\' * ones)
	return ((w-0x20*ones)&^w | (q-ones)&^q | (b-ones)&^b | w) & highs
}

// text scans a string from after its opening quote and gives the place after
// its closing one, and whether it holds escapes.
func (s *Scanner) text(i int) (end int, escaped bool) {
	doc := s.doc
	for {
		for i+8 <= len(doc) {
			m := special(binary.LittleEndian.Uint64(doc[i:]))
			if m != 0 {
				i += bits.TrailingZeros64(m) >> 3
				break
			}
			i += 8
		}
		if i >= len(doc) {
			return s.unexpected(i, "the end of a string"), false
		}
		switch c := doc[i]; {
		case c == '"':
			return i + 1, escaped
		case c == '\\':
			escaped = true
			if i = s.escape(i); i < 0 {
				return i, false
			}
		case c < 0x20:
			return s.fail(InvalidJSON, i, fmt.Sprintf("control character 0x%02x within a string", c)), false
		case c < 0x80:
			i++ // an ordinary byte in the document's last eight
		default:
			n := multibyte(doc[i:])
			if n < 0 {
				return s.fail(InvalidUTF8, i, fmt.Sprintf("byte 0x%02x does not begin a UTF-8 character", c)), false
			}
			i += n
		}
	}
}

// multibyte is the length of the run of whole characters beyond ASCII that b
// begins with, -1 if its first one is invalid. (A later invalid one is met by
// the next call.)
func multibyte(b []byte) int {
	i := 0
	for i < len(b) && b[i] >= 0x80 {
		c := b[i]
		var n int
		lo, hi := byte(0x80), byte(0xbf)
		switch {
		case c >= 0xc2 && c <= 0xdf:
			n = 2
		case c >= 0xe0 && c <= 0xef:
			n = 3
			if c == 0xe0 {
				lo = 0xa0
			} else if c == 0xed {
				hi = 0x9f // the surrogates' range is not text
			}
		case c >= 0xf0 && c <= 0xf4:
			n = 4
			if c == 0xf0 {
				lo = 0x90
			} else if c == 0xf4 {
				hi = 0x8f
			}
		}
		if n == 0 || len(b)-i < n || b[i+1] < lo || b[i+1] > hi ||
			(n > 2 && b[i+2]&0xc0 != 0x80) || (n > 3 && b[i+3]&0xc0 != 0x80) {
			break
		}
		i += n
	}
	if i == 0 {
		return -1
	}
	return i
}

// escape checks the escape at i and gives the place after it.
func (s *Scanner) escape(i int) int {
	doc := s.doc
	if i+1 >= len(doc) {
		return s.unexpected(i+1, "an escape")
	}
	switch doc[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
	default:
		return s.fail(InvalidJSON, i, fmt.Sprintf("a backslash before %s is no escape", quoteByte(doc[i+1])))
	}
	r, ok := hex4(doc, i+2)
	if !ok {
		return s.fail(InvalidJSON, i, `\u is not followed by four hexadecimal digits`)
	}
	if !utf16.IsSurrogate(r) {
		return i + 6
	}
	if r < 0xdc00 && i+7 < len(doc) && doc[i+6] == '\\' && doc[i+7] == 'u' {
		low, ok := hex4(doc, i+8)
		if !ok {
			return s.fail(InvalidJSON, i+6, `\u is not followed by four hexadecimal digits`)
		}
		if low >= 0xdc00 && low <= 0xdfff {
			return i + 12
		}
	}
	return s.fail(LoneSurrogate, i, fmt.Sprintf(`\u%04x is half of a surrogate pair`, r))
}

// hex4 reads four hexadecimal digits.
func hex4(b []byte, i int) (rune, bool) {
	if i+4 > len(b) {
		return 0, false
	}
	var r rune
	for _, c := range b[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// unescape appends the decoded form of a string's inside that a scan has
// accepted.
func unescape(dst, b []byte) []byte {
	for i := 0; i < len(b); {
		c := b[i]
		if c != '\\' {
			j := i + 1
			for j < len(b) && b[j] != '\\' {
				j++
			}
			dst = append(dst, b[i:j]...)
			i = j
			continue
		}
		switch c = b[i+1]; c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r, _ := hex4(b, i+2)
			if utf16.IsSurrogate(r) {
				low, _ := hex4(b, i+8)
				r = utf16.DecodeRune(r, low)
				i += 6
			}
			dst = utf8.AppendRune(dst, r)
			i += 4
		default:
			dst = append(dst, c)
		}
		i += 2
	}
	return dst
}
