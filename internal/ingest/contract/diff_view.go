package contract

import (
	"encoding/json"
	"math/big"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"
)

// view is one schema, without those below it.
type view struct {
	n          *node // types and what limits strings, numbers and sizes
	props      map[string]any
	required   []string
	additional any // of properties that are not named
	items      any
	listed     []any // enum or const; nil for neither
	other      map[string]any
	never      bool // the schema false
}

// anything is the schema of every value.
var anything = any(true)

// look reads a schema; a reference within the document is followed.
func look(root, doc any) *view {
	v := &view{n: newNode(""), props: map[string]any{}, additional: anything, items: anything, other: map[string]any{}}
	doc = follow(root, doc)
	m, ok := doc.(map[string]any)
	if !ok {
		v.never = doc == false
		return v
	}
	for k, val := range m {
		if !silent(k) {
			v.keyword(k, val)
		}
	}
	return v
}

// silent are keywords that say nothing of values.
func silent(k string) bool { return annotations[k] || k == "$defs" || k == "definitions" }

func (v *view) keyword(k string, val any) {
	switch k {
	case "properties":
		if m, ok := val.(map[string]any); ok {
			v.props = m
			return
		}
	case "required":
		if list, ok := val.([]any); ok {
			for _, r := range list {
				if name, ok := r.(string); ok {
					v.required = append(v.required, name)
				}
			}
			return
		}
	case "additionalProperties":
		v.additional = val
		return
	case "items":
		v.items = val
		return
	case "enum":
		if list, ok := val.([]any); ok && v.listed == nil {
			v.listed = list
			return
		}
	case "const":
		if v.listed == nil {
			v.listed = []any{val}
			return
		}
	default:
		if v.n.keyword(k, val) == nil {
			return
		}
	}
	v.other[k] = val
}

// follow resolves a reference into the same document that stands alone.
func follow(root, doc any) any {
	for range depthCompared {
		m, ok := doc.(map[string]any)
		ref, isRef := m["$ref"].(string)
		if !ok || !isRef || !strings.HasPrefix(ref, "#") {
			return doc
		}
		for k := range m {
			if k != "$ref" && !silent(k) {
				return doc
			}
		}
		target := root
		for _, part := range strings.Split(strings.TrimPrefix(ref, "#"), "/")[1:] {
			part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
			t, ok := target.(map[string]any)
			if !ok {
				return doc
			}
			if target, ok = t[part]; !ok {
				return doc
			}
		}
		doc = target
	}
	return doc
}

// refers reports whether a schema refers to another one.
func refers(doc any) bool {
	switch d := doc.(type) {
	case map[string]any:
		for k, v := range d {
			if k == "$ref" || k == "$dynamicRef" || refers(v) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(d, refers)
	}
	return false
}

func (v *view) allows(t typeMask) bool { return v.n.types == 0 || v.n.types&t != 0 }

// property is the schema of a property.
func (v *view) property(name string) any {
	if p, ok := v.props[name]; ok {
		return p
	}
	return v.additional
}

// sample is a value that the schema accepts, as far as it can be made up.
func (v *view) sample(root any) any { return v.sampleAt(root, 0) }

func (v *view) sampleAt(root any, depth int) any {
	if len(v.listed) > 0 {
		return v.listed[0]
	}
	for _, t := range []typeMask{typeString, typeInteger, typeNumber, typeBoolean, typeNull, typeObject, typeArray} {
		if v.allows(t) {
			return v.samplesAt(root, t, depth)[0]
		}
	}
	return nil
}

// samples are values of a type that the schema accepts, as different from each
// other as can be.
func (v *view) samples(root any, t typeMask) []any { return v.samplesAt(root, t, 0) }

func (v *view) samplesAt(root any, t typeMask, depth int) []any {
	switch t {
	case typeBoolean:
		return []any{true, false}
	case typeInteger, typeNumber:
		return v.n.numbers(t == typeInteger)
	case typeString:
		return v.n.strings()
	case typeArray:
		out := []any{}
		for range v.n.minItems {
			out = append(out, look(root, v.items).deeper(root, depth))
		}
		return []any{out}
	case typeObject:
		return []any{v.objectAt(root, depth)}
	}
	return []any{nil}
}

func (v *view) deeper(root any, depth int) any {
	if depth > depthCompared {
		return nil
	}
	return v.sampleAt(root, depth+1)
}

// object is the smallest one.
func (v *view) object(root any) map[string]any { return v.objectAt(root, 0) }

func (v *view) objectAt(root any, depth int) map[string]any {
	out := map[string]any{}
	for _, name := range v.required {
		out[name] = look(root, v.property(name)).deeper(root, depth)
	}
	if len(out) < v.n.minProps {
		v.fill(out, root, v.n.minProps)
	}
	return out
}

// filled is an object of n properties.
func (v *view) filled(root any, n int) map[string]any {
	out := v.object(root)
	v.fill(out, root, n)
	return out
}

func (v *view) fill(out map[string]any, root any, n int) {
	for name, p := range v.props {
		if _, there := out[name]; !there && len(out) < n {
			out[name] = look(root, p).deeper(root, 1)
		}
	}
	for i := 0; len(out) < n && i < 1000; i++ {
		out[otherProperty+strings.Repeat("-", i)] = look(root, v.additional).deeper(root, 1)
	}
}

// numbers are within the bounds where there are any.
func (n *node) numbers(whole bool) []any {
	var out []any
	for _, at := range []*big.Rat{n.lower, n.upper} {
		if at != nil {
			out = append(out, around(at)...)
		}
	}
	out = append(out, json.Number("0"), json.Number("1"), json.Number("-1"), json.Number("1000000"), json.Number("-1000000"))
	if !whole {
		out = append([]any{json.Number("0.5"), json.Number("-0.5")}, out...)
	}
	// The first is what stands for the schema: it has to be within the bounds.
	slices.SortStableFunc(out, func(x, y any) int { return n.outside(x, whole) - n.outside(y, whole) })
	return out
}

func (n *node) outside(v any, whole bool) int {
	r, ok := new(big.Rat).SetString(v.(json.Number).String())
	if !ok || r.IsInt() != whole ||
		n.lower != nil && (r.Cmp(n.lower) < 0 || n.lowerOpen && r.Cmp(n.lower) == 0) ||
		n.upper != nil && (r.Cmp(n.upper) > 0 || n.upperOpen && r.Cmp(n.upper) == 0) {
		return 1
	}
	return 0
}

// around are a number and its neighbours on both sides.
func around(r *big.Rat) []any {
	var out []any
	for _, d := range []*big.Rat{big.NewRat(0, 1), big.NewRat(1, 1), big.NewRat(-1, 1), big.NewRat(1, 2), big.NewRat(-1, 2)} {
		s := new(big.Rat).Add(r, d).FloatString(9)
		out = append(out, json.Number(strings.TrimSuffix(strings.TrimRight(s, "0"), ".")))
	}
	return out
}

func bound(r *big.Rat, open bool) string {
	s := strings.TrimSuffix(strings.TrimRight(r.FloatString(9), "0"), ".")
	if open {
		return s + " and " + s + " itself"
	}
	return s
}

// formatSamples are values of the formats in use.
var formatSamples = map[string]string{
	"date-time": "2026-05-01T12:00:00Z", "date": "2026-05-01", "time": "12:00:00Z", "duration": "P1D", "email": "a@example.org",
	"hostname": "example.org", "ipv4": "192.0.2.1", "ipv6": "2001:db8::1", "uri": "https://example.org/a", "uri-reference": "/a", "iri": "https://example.org/a",
	"uuid": "00000000-0000-4000-8000-000000000000", "json-pointer": "/a", "regex": "a",
}

// strings are of allowed lengths, of the pattern and the format.
func (n *node) strings() []any {
	var out []any
	add := func(s string) {
		if n.fits(s) && !slices.Contains(out, any(s)) {
			out = append(out, s)
		}
	}
	if s, ok := formatSamples[n.format]; ok {
		add(s)
	}
	if n.pattern != nil {
		if re, err := syntax.Parse(n.pattern.String(), syntax.Perl); err == nil {
			add(match(re.Simplify()))
		}
	}
	add(strings.Repeat("x", n.minLength))
	for _, s := range []string{"", "x", "0", "A b", "ä", "2026-05-01T12:00:00Z", "https://example.org/a", "00000000-0000-4000-8000-000000000000"} {
		add(s)
	}
	if n.maxLength > 0 && n.maxLength <= 1<<16 {
		add(strings.Repeat("x", n.maxLength))
	}
	if len(out) == 0 {
		out = append(out, strings.Repeat("x", n.minLength))
	}
	return out
}

func (n *node) fits(s string) bool {
	length := utf8.RuneCountInString(s)
	return length >= n.minLength && (n.maxLength < 0 || length <= n.maxLength) && (n.pattern == nil || n.pattern.MatchString(s)) &&
		(n.format == "" || n.formatOf.Validate(s) == nil)
}

// match is a short text that a regular expression matches.
func match(re *syntax.Regexp) string {
	switch re.Op {
	case syntax.OpLiteral:
		return string(re.Rune)
	case syntax.OpCharClass:
		if len(re.Rune) > 0 {
			return string(re.Rune[0])
		}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return "x"
	case syntax.OpPlus, syntax.OpCapture:
		return match(re.Sub[0])
	case syntax.OpRepeat:
		return strings.Repeat(match(re.Sub[0]), re.Min)
	case syntax.OpConcat:
		var b strings.Builder
		for _, s := range re.Sub {
			b.WriteString(match(s))
		}
		return b.String()
	case syntax.OpAlternate:
		return match(re.Sub[0])
	}
	return "" // anchors, and what may be left out
}
