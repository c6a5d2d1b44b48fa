package pipeline

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
)

// scalar is the text of a YAML scalar after interpolation. Interpolation works
// on the scalars of the parsed document, so a value can never add keys, lists
// or comments to it.
type scalar struct {
	text string
	// raw is the text as it stands in the file: what a fault may quote, because
	// text may hold what a variable or a file must not show.
	raw string
	// interpolated is true where text holds a variable's or a file's content.
	interpolated bool
	// file is true where text holds a file's content.
	file bool
	// quoted is true for "…" and '…'.
	quoted bool
}

// shown is what a fault may say of the value.
func (s scalar) shown() string {
	if s.interpolated {
		return "the value of " + s.raw
	}
	raw := s.raw
	if u, err := url.Parse(raw); err == nil && u.User != nil {
		raw = u.Redacted()
	}
	return fmt.Sprintf("%q", clip(raw))
}

// clip shortens a text for a message.
func clip(s string) string {
	const shownMax = 80
	r := []rune(s)
	if len(r) <= shownMax {
		return s
	}
	return string(r[:shownMax]) + "…"
}

// interpolate replaces ${NAME}, ${NAME:-default}, ${file:PATH} and $$. A $ that
// is followed by anything else stands for itself, so JSON paths need no
// escape. Every problem is reported, not only the first.
func (l *loader) interpolate(raw string) (scalar, []error) {
	s := scalar{raw: raw}
	var out strings.Builder
	var errs []error
	for rest := raw; ; {
		i := strings.IndexByte(rest, '$')
		if i < 0 || i == len(rest)-1 {
			out.WriteString(rest)
			break
		}
		out.WriteString(rest[:i])
		switch rest[i+1] {
		case '$':
			out.WriteByte('$')
			rest = rest[i+2:]
			continue
		case '{':
		default:
			out.WriteByte('$')
			rest = rest[i+1:]
			continue
		}
		end := strings.IndexByte(rest[i:], '}')
		if end < 0 {
			errs = append(errs, errors.New("${ without a closing }; a literal ${ is written $${"))
			break
		}
		text, fromFile, err := l.resolve(rest[i+2 : i+end])
		if err != nil {
			errs = append(errs, err)
		}
		out.WriteString(text)
		s.interpolated = true
		s.file = s.file || fromFile
		rest = rest[i+end+1:]
	}
	s.text = out.String()
	return s, errs
}

// resolve gives the text of one ${expr}.
func (l *loader) resolve(expr string) (text string, fromFile bool, err error) {
	if path, ok := strings.CutPrefix(expr, "file:"); ok {
		text, err := l.secretFile(path)
		return text, true, err
	}
	name, def, hasDef := strings.Cut(expr, ":-")
	if !isVariable(name) {
		return "", false, fmt.Errorf("${%s} is not a variable: want ${NAME}, ${NAME:-default} or ${file:PATH}", expr)
	}
	if strings.Contains(def, "${") {
		return "", false, fmt.Errorf("the default in ${%s…} holds another ${…}; defaults cannot be nested", name)
	}
	v, ok := "", false
	if l.env != nil {
		v, ok = l.env(name)
	}
	switch {
	case hasDef && v == "":
		return def, false, nil
	case !ok:
		return "", false, fmt.Errorf("variable %s is not set; set it or give a default: ${%s:-default}", name, name)
	}
	return v, false, nil
}

// secretFile reads ${file:PATH}. One line end at the very end is dropped, since
// editors and echo add it.
func (l *loader) secretFile(path string) (string, error) {
	if path == "" {
		return "", errors.New("${file:} names no file")
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(l.dir, path)
	}
	b, err := readBounded(path, secretBytesMax)
	if err != nil {
		return "", fmt.Errorf("cannot read the secret: %w", err)
	}
	s := strings.TrimSuffix(string(b), "\n")
	return strings.TrimSuffix(s, "\r"), nil
}

// isVariable reports whether s is a name that a shell could set.
func isVariable(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
