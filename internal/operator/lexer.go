package operator

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxFilterBytes bounds a filter's text, maxFilterDepth its parentheses.
const (
	maxFilterBytes = 64 << 10
	maxFilterDepth = 200
)

// FilterError says what is wrong with a filter, and where.
type FilterError struct {
	Filter string
	// Offset is the byte at which the fault begins.
	Offset int
	Detail string
}

// Error implements error. Characters are counted from one.
func (e *FilterError) Error() string {
	return fmt.Sprintf("filter, character %d: %s", utf8.RuneCountInString(e.Filter[:min(e.Offset, len(e.Filter))])+1, e.Detail)
}

type tokenKind uint8

const (
	tokEnd tokenKind = iota
	tokName
	tokQuoted // a quoted name: never a keyword
	tokText
	tokNumber
	tokSymbol
)

type token struct {
	kind tokenKind
	text string // decoded
	at   int
}

// is reports whether the token is the keyword or symbol.
func (t token) is(word string) bool {
	switch t.kind {
	case tokName:
		return strings.EqualFold(t.text, word)
	case tokSymbol:
		return t.text == word
	}
	return false
}

// show is the token for messages.
func (t token) show() string {
	switch t.kind {
	case tokEnd:
		return "the end"
	case tokText:
		return "'" + t.text + "'"
	}
	return t.text
}

// tokenize splits a filter.
func tokenize(text string) ([]token, error) {
	fail := func(at int, format string, args ...any) ([]token, error) {
		return nil, &FilterError{Filter: text, Offset: at, Detail: fmt.Sprintf(format, args...)}
	}
	if len(text) > maxFilterBytes {
		return fail(0, "%d bytes, at most %d are supported", len(text), maxFilterBytes)
	}
	if !utf8.ValidString(text) {
		return fail(0, "is not valid UTF-8")
	}
	var out []token
	for i := 0; i < len(text); {
		c := text[i]
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case unicode.IsSpace(r):
			i += size
		case c == '\'' || c == '"' || c == '`':
			inside, end, ok := quoted(text, i)
			if !ok {
				return fail(i, "the quote is not closed")
			}
			kind := tokQuoted
			if c == '\'' {
				kind = tokText
			}
			out = append(out, token{kind, inside, i})
			i = end
		case c >= '0' && c <= '9', (c == '-' || c == '.') && i+1 < len(text) && (text[i+1] >= '0' && text[i+1] <= '9' || text[i+1] == '.'):
			end := i + 1
			for end < len(text) && (isWord(text[end]) || text[end] == '.' || ((text[end] == '-' || text[end] == '+') && text[end-1]|0x20 == 'e')) {
				end++
			}
			out = append(out, token{tokNumber, text[i:end], i})
			i = end
		case r == '_' || unicode.IsLetter(r):
			end := i
			for end < len(text) {
				r, size := utf8.DecodeRuneInString(text[end:])
				if r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) {
					break
				}
				end += size
			}
			out = append(out, token{tokName, text[i:end], i})
			i = end
		default:
			n := 1
			if i+1 < len(text) && (text[i:i+2] == "!=" || text[i:i+2] == "<>" || text[i:i+2] == "<=" || text[i:i+2] == ">=" || text[i:i+2] == "==") {
				n = 2
			}
			if n == 1 && strings.IndexByte("=<>(),", c) < 0 {
				return fail(i, "%q is not understood", r)
			}
			out = append(out, token{tokSymbol, text[i : i+n], i})
			i += n
		}
	}
	return append(out, token{tokEnd, "", len(text)}), nil
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
}

// quoted reads a quoted run that begins at i; the quote itself is written
// doubled within.
func quoted(text string, i int) (inside string, end int, ok bool) {
	quote := text[i]
	var b strings.Builder
	for i++; i < len(text); i++ {
		if text[i] != quote {
			b.WriteByte(text[i])
			continue
		}
		if i+1 < len(text) && text[i+1] == quote {
			b.WriteByte(quote)
			i++
			continue
		}
		return b.String(), i + 1, true
	}
	return "", 0, false
}
