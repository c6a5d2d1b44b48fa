package duck

import "strings"

// tokenKind says what a piece of SQL is.
type tokenKind int

const (
	word   tokenKind = iota // a name or keyword, not quoted
	quoted                  // a name in double quotes, without them
	text                    // a string, without the quotes
	number
	space // white space and comments
	sign  // anything else, one character
)

// token is one piece of a statement: src[from:to].
type token struct {
	kind     tokenKind
	val      string
	from, to int
}

// is reports whether the token is the keyword.
func (t token) is(keyword string) bool { return t.kind == word && strings.EqualFold(t.val, keyword) }

// lex cuts SQL into pieces; together they are the whole text. Something that is
// not closed runs to the end: the parser will say so.
func lex(src string) []token {
	var out []token
	for i := 0; i < len(src); {
		t := next(src, i)
		out = append(out, t)
		i = t.to
	}
	return out
}

func next(src string, i int) token {
	c := src[i]
	rest := src[i:]
	switch {
	case strings.HasPrefix(rest, "--"):
		end := strings.IndexByte(rest, '\n')
		if end < 0 {
			end = len(rest)
		}
		return token{space, "", i, i + end}
	case strings.HasPrefix(rest, "/*"):
		return token{space, "", i, commentEnd(src, i)}
	case c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v':
		return token{space, "", i, i + 1}
	case c == '\'':
		val, to := quotedBy(src, i, '\'')
		return token{text, val, i, to}
	case c == '"':
		val, to := quotedBy(src, i, '"')
		return token{quoted, val, i, to}
	case c == '$':
		if to := dollarEnd(src, i); to > 0 {
			return token{text, "", i, to}
		}
		return token{sign, "$", i, i + 1}
	case isDigit(c):
		j := i
		for j < len(src) && (isLetter(src[j]) || isDigit(src[j]) || src[j] == '.') {
			j++
		}
		return token{number, src[i:j], i, j}
	case isLetter(c):
		j := i
		for j < len(src) && (isLetter(src[j]) || isDigit(src[j])) {
			j++
		}
		return token{word, src[i:j], i, j}
	}
	return token{sign, string(c), i, i + 1}
}

// commentEnd is where a comment ends; comments nest.
func commentEnd(src string, i int) int {
	depth := 0
	for j := i; j < len(src); {
		switch {
		case strings.HasPrefix(src[j:], "/*"):
			depth++
			j += 2
		case strings.HasPrefix(src[j:], "*/"):
			depth--
			j += 2
			if depth == 0 {
				return j
			}
		default:
			j++
		}
	}
	return len(src)
}

func quotedBy(src string, i int, q byte) (string, int) {
	var b strings.Builder
	for j := i + 1; j < len(src); j++ {
		if src[j] != q {
			b.WriteByte(src[j])
			continue
		}
		if j+1 < len(src) && src[j+1] == q {
			b.WriteByte(q)
			j++
			continue
		}
		return b.String(), j + 1
	}
	return b.String(), len(src)
}

// dollarEnd is the end of a string in dollar quotes, 0 where there is none.
func dollarEnd(src string, i int) int {
	j := i + 1
	for j < len(src) && (isLetter(src[j]) || (j > i+1 && isDigit(src[j]))) {
		j++
	}
	if j >= len(src) || src[j] != '$' {
		return 0
	}
	tag := src[i : j+1]
	end := strings.Index(src[j+1:], tag)
	if end < 0 {
		return len(src)
	}
	return j + 1 + end + len(tag)
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isLetter(c byte) bool {
	return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= 0x80
}

// Statements cuts a script at its semicolons, empty statements left out.
func Statements(script string) []string {
	var out []string
	from := 0
	add := func(to int) {
		if s := strings.TrimSpace(script[from:to]); s != "" && Keyword(s) != "" {
			out = append(out, s)
		}
	}
	for _, t := range lex(script) {
		if t.kind == sign && t.val == ";" {
			add(t.from)
			from = t.to
		}
	}
	add(len(script))
	return out
}

// Complete reports whether the script ends with a semicolon, outside of strings
// and comments.
func Complete(script string) bool {
	last := token{}
	for _, t := range lex(script) {
		if t.kind != space {
			last = t
		}
	}
	return last.kind == sign && last.val == ";"
}

// Keyword is the first word of a statement in upper case; "(" where it begins
// with one, "" where it says nothing.
func Keyword(statement string) string {
	for _, t := range lex(statement) {
		switch t.kind {
		case space:
			continue
		case word:
			return strings.ToUpper(t.val)
		default:
			return statement[t.from:t.to]
		}
	}
	return ""
}

// mentions are the names in a statement, in lower case.
func mentions(statement string) map[string]bool {
	out := map[string]bool{}
	for _, t := range lex(statement) {
		if t.kind == word || t.kind == quoted {
			out[strings.ToLower(t.val)] = true
		}
	}
	return out
}
