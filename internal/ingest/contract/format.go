package contract

import "bytes"

func isUUID(t []byte) bool {
	if len(t) != 36 {
		return false
	}
	for i, c := range t {
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F') {
				return false
			}
		}
	}
	return true
}

// plainFormat accepts the everyday shape of a format at once. False only means
// that the library has to look.
func plainFormat(format string, t []byte) bool {
	switch format {
	case "date-time":
		return plainTime(t)
	case "uri", "uri-reference":
		return plainURI(t)
	}
	return false
}

// plainTime takes YYYY-MM-DDThh:mm:ss[.fff](Z|+00:00) with a day that every
// month has.
func plainTime(t []byte) bool {
	if len(t) < 20 || len(t) > 36 {
		return false
	}
	const shape = "0000-00-00T00:00:00"
	for i := range len(shape) {
		if shape[i] == '0' {
			if t[i] < '0' || t[i] > '9' {
				return false
			}
		} else if t[i] != shape[i] {
			return false
		}
	}
	two := func(i int) int { return int(t[i]-'0')*10 + int(t[i+1]-'0') }
	if m := two(5); m < 1 || m > 12 {
		return false
	}
	if d := two(8); d < 1 || d > 28 {
		return false
	}
	if two(11) > 23 || two(14) > 59 || two(17) > 59 {
		return false
	}
	rest := t[len(shape):]
	if rest[0] == '.' {
		i := 1
		for i < len(rest) && rest[i] >= '0' && rest[i] <= '9' {
			i++
		}
		if i == 1 {
			return false
		}
		rest = rest[i:]
	}
	return string(rest) == "Z" || string(rest) == "+00:00"
}

// plainURI takes https://host/path of unreserved characters and whole percent
// escapes.
func plainURI(t []byte) bool {
	rest, ok := bytes.CutPrefix(t, []byte("https://"))
	if !ok {
		return false
	}
	slash := bytes.IndexByte(rest, '/')
	if slash <= 0 {
		return false
	}
	for _, c := range rest[:slash] {
		if !uriPlain[c] || c == '_' || c == '~' {
			return false
		}
	}
	for i := slash + 1; i < len(rest); i++ {
		c := rest[i]
		switch {
		case uriPlain[c] || c == '/' || c == ':' || c == ',' || c == '(' || c == ')' || c == '!' || c == '\'' || c == '*' || c == '=' || c == '&' || c == ';' || c == '@':
		case c == '%':
			if i+2 >= len(rest) || !isHex(rest[i+1]) || !isHex(rest[i+2]) {
				return false
			}
			i += 2
		default:
			return false
		}
	}
	return true
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

var uriPlain = func() (t [256]bool) {
	for c := range 256 {
		t[c] = c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '-' || c == '.' || c == '_' || c == '~'
	}
	return t
}()
