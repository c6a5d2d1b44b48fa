package status

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxSnippetBytes is all that the page ever shows of a payload.
const maxSnippetBytes = 200

// Snippet is the beginning of a payload as text: at most maxSnippetBytes, cut
// between characters; bytes that are not UTF-8, and characters that would
// change how the text around them is read (controls, direction marks), are
// replaced. It is not escaped for HTML: the template and the script do that.
func Snippet(b []byte) string {
	truncated := len(b) > maxSnippetBytes
	if truncated {
		b = b[:maxSnippetBytes]
		for n := 0; n < utf8.UTFMax && len(b) > 0; n++ {
			if r, size := utf8.DecodeLastRune(b); r != utf8.RuneError || size > 1 {
				break
			}
			b = b[:len(b)-1]
		}
	}
	var out strings.Builder
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		b = b[size:]
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			r = ' '
		case r == utf8.RuneError || unicode.IsControl(r) || unicode.Is(unicode.Cf, r):
			r = '·'
		}
		// A replacement may be longer than what it replaces.
		if out.Len()+utf8.RuneLen(r) > maxSnippetBytes {
			truncated = true
			break
		}
		out.WriteRune(r)
	}
	if truncated {
		return strings.TrimRight(out.String(), " ") + "…"
	}
	return out.String()
}
