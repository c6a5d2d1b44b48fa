package contract

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Difference is what changes for events when one contract takes the place of
// another.
type Difference struct {
	// Breaking are events that the old contract accepts and the new one rejects.
	Breaking []Finding `json:"breaking"`
	// Accepted are events that the old one rejects and the new one accepts.
	Accepted []Finding `json:"accepted"`
	// Undecided are changes of which it is not known whether they break anything:
	// keywords that are not compared, patterns that no example was found for.
	Undecided []Finding `json:"undecided"`
}

// Compatible reports whether every event that the old contract accepts is
// accepted by the new one.
func (d *Difference) Compatible() bool { return len(d.Breaking) == 0 && len(d.Undecided) == 0 }

// Finding is one change.
type Finding struct {
	// Path is the JSON pointer of the value, * for every element or every other
	// property; empty for the event itself.
	Path   string `json:"path"`
	Change string `json:"change"`
	// Example is an event that one of the contracts accepts and the other one
	// rejects: both were asked. Undecided changes have none.
	Example json.RawMessage `json:"example,omitempty"`
}

// depthCompared bounds how deep two contracts are compared.
const depthCompared = 64

// Diff compares the contracts that two schemas stand for.
//
// Every Breaking and Accepted finding carries an example that both contracts
// were asked about, so none is claimed wrongly. What is in no list was shown to
// be no stricter, keyword by keyword; what could be shown neither way is
// Undecided.
func Diff(before, now Options) (*Difference, error) {
	a, err := openSide(before)
	if err != nil {
		return nil, err
	}
	b, err := openSide(now)
	if err != nil {
		return nil, err
	}
	stricter, wider := newComparison(a, b), newComparison(b, a)
	stricter.compare(a.doc, b.doc, place{wrap: asIs})
	wider.compare(b.doc, a.doc, place{wrap: asIs})
	return &Difference{Breaking: stricter.found, Accepted: wider.found, Undecided: stricter.open}, nil
}

// side is one of the two contracts.
type side struct {
	doc     any
	checker *Checker
}

func openSide(o Options) (*side, error) {
	raw, base, err := o.read()
	if err != nil {
		return nil, err
	}
	c, err := compileBytes(raw, base, o)
	if err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	return &side{doc: doc, checker: c.NewChecker()}, err
}

func (s *side) accepts(event []byte) bool { return s.checker.Check(event).Reason == "" }

// comparison looks for events that a accepts and b rejects.
type comparison struct {
	a, b  *side
	found []Finding
	open  []Finding
	depth int
}

func newComparison(a, b *side) *comparison {
	return &comparison{a: a, b: b, found: []Finding{}, open: []Finding{}}
}

// place is where in an event the compared values are: wrap makes a whole event
// around one, as small as a's schema lets it be.
type place struct {
	path string
	wrap func(v any) any
}

func asIs(v any) any { return v }

// witness is an event with one of the values that a accepts and b rejects.
func (c *comparison) witness(at place, values ...any) json.RawMessage {
	for _, v := range values {
		raw, err := json.Marshal(at.wrap(v))
		if err == nil && c.a.accepts(raw) && !c.b.accepts(raw) {
			return raw
		}
	}
	return nil
}

// report files a change under what is known of it.
func (c *comparison) report(at place, path, change string, values ...any) {
	f := Finding{Path: path, Change: change, Example: c.witness(at, values...)}
	list := &c.found
	if f.Example == nil {
		list = &c.open
	}
	if !slices.ContainsFunc(*list, func(g Finding) bool { return g.Path == f.Path && g.Change == f.Change }) {
		*list = append(*list, f)
	}
}

func (c *comparison) compare(docA, docB any, at place) {
	c.depth++
	defer func() { c.depth-- }()
	a, b := look(c.a.doc, docA), look(c.b.doc, docB)
	switch {
	case a.never:
		return
	case c.depth > depthCompared:
		c.report(at, at.path, fmt.Sprintf("not compared: the schemas are more than %d levels deep, or refer to themselves", depthCompared))
		return
	case b.never:
		c.report(at, at.path, "no value is accepted", a.sample(c.a.doc))
		return
	case reflect.DeepEqual(docA, docB) && (!refers(docA) || reflect.DeepEqual(c.a.doc, c.b.doc)):
		return
	}
	for _, k := range slices.Sorted(maps.Keys(b.other)) {
		if !reflect.DeepEqual(a.other[k], b.other[k]) {
			c.report(at, at.path, k+" is new or has changed, and is not compared")
		}
	}
	if a.listed != nil {
		for _, v := range a.listed {
			if raw, err := json.Marshal(at.wrap(v)); err != nil || !c.a.accepts(raw) || !c.b.accepts(raw) {
				c.report(at, at.path, "the value "+text(v)+" is rejected", v)
			}
		}
		return
	}
	for _, t := range kinds {
		if a.allows(t) {
			c.compareType(t, a, b, at)
		}
	}
}

// kinds are the types by which values are told apart: an integer is a number
// without a fraction, typeNumber here one with.
var kinds = []typeMask{typeNull, typeBoolean, typeInteger, typeNumber, typeString, typeArray, typeObject}

var kindNames = map[typeMask]string{
	typeNull: "null", typeBoolean: "a boolean", typeInteger: "an integer", typeNumber: "a number with a fraction",
	typeString: "a string", typeArray: "an array", typeObject: "an object",
}

func (c *comparison) compareType(t typeMask, a, b *view, at place) {
	values := a.samples(c.a.doc, t)
	switch {
	case !b.allows(t):
		c.report(at, at.path, kindNames[t]+" is rejected", values...)
	case b.listed != nil:
		if t == typeNull && slices.Contains(b.listed, nil) {
			return
		}
		if w := c.witness(at, values...); w != nil || t != typeBoolean {
			c.report(at, at.path, kindNames[t]+" is rejected that is none of "+text(b.listed), values...)
		}
	case t == typeString:
		c.compareStrings(a.n, b.n, at, values)
	case t == typeInteger, t == typeNumber:
		c.compareNumbers(a.n, b.n, at, values)
	case t == typeArray:
		c.compareArrays(a, b, at)
	case t == typeObject:
		c.compareObjects(a, b, at)
	}
}

func (c *comparison) compareStrings(a, b *node, at place, values []any) {
	if b.minLength > a.minLength {
		c.report(at, at.path, fmt.Sprintf("strings shorter than %d are rejected", b.minLength), values...)
	}
	if b.maxLength >= 0 && (a.maxLength < 0 || a.maxLength > b.maxLength) {
		long := strings.Repeat("x", b.maxLength+1)
		c.report(at, at.path, fmt.Sprintf("strings longer than %d are rejected", b.maxLength), append([]any{long}, values...)...)
	}
	if b.pattern != nil && (a.pattern == nil || a.pattern.String() != b.pattern.String()) {
		c.report(at, at.path, fmt.Sprintf("strings that do not match %s are rejected", b.pattern), values...)
	}
	if b.format != "" && a.format != b.format {
		c.report(at, at.path, fmt.Sprintf("strings that are no %s are rejected", b.format), values...)
	}
}

func (c *comparison) compareNumbers(a, b *node, at place, values []any) {
	if b.lower != nil && (a.lower == nil || a.lower.Cmp(b.lower) < 0 || a.lower.Cmp(b.lower) == 0 && b.lowerOpen && !a.lowerOpen) {
		c.report(at, at.path, "numbers below "+bound(b.lower, b.lowerOpen)+" are rejected", append(around(b.lower), values...)...)
	}
	if b.upper != nil && (a.upper == nil || a.upper.Cmp(b.upper) > 0 || a.upper.Cmp(b.upper) == 0 && b.upperOpen && !a.upperOpen) {
		c.report(at, at.path, "numbers above "+bound(b.upper, b.upperOpen)+" are rejected", append(around(b.upper), values...)...)
	}
}

func (c *comparison) compareArrays(a, b *view, at place) {
	element := look(c.a.doc, a.items).sample(c.a.doc)
	array := func(n int) []any {
		out := make([]any, n)
		for i := range out {
			out[i] = element
		}
		return out
	}
	if b.n.minItems > a.n.minItems {
		c.report(at, at.path, fmt.Sprintf("arrays of fewer than %d elements are rejected", b.n.minItems), array(a.n.minItems))
	}
	if b.n.maxItems >= 0 && (a.n.maxItems < 0 || a.n.maxItems > b.n.maxItems) {
		c.report(at, at.path, fmt.Sprintf("arrays of more than %d elements are rejected", b.n.maxItems), array(min(b.n.maxItems+1, 1000)))
	}
	if a.n.maxItems == 0 {
		return
	}
	c.compare(a.items, b.items, place{path: at.path + "/*", wrap: func(v any) any {
		out := array(max(1, a.n.minItems))
		out[0] = v
		return at.wrap(out)
	}})
}

// otherProperty stands for the properties that neither schema names.
const otherProperty = "weir-other"

func (c *comparison) compareObjects(a, b *view, at place) {
	with := func(name string, v any) map[string]any {
		out := a.object(c.a.doc)
		out[name] = v
		return out
	}
	for _, name := range b.required {
		if !slices.Contains(a.required, name) {
			c.report(at, at.path+"/"+name, "has to be there", a.object(c.a.doc))
		}
	}
	if b.n.minProps > a.n.minProps {
		c.report(at, at.path, fmt.Sprintf("objects of fewer than %d properties are rejected", b.n.minProps), a.object(c.a.doc))
	}
	if b.n.maxProps >= 0 && (a.n.maxProps < 0 || a.n.maxProps > b.n.maxProps) {
		c.report(at, at.path, fmt.Sprintf("objects of more than %d properties are rejected", b.n.maxProps), a.filled(c.a.doc, b.n.maxProps+1))
	}
	names := map[string]bool{otherProperty: true}
	for _, m := range []map[string]any{a.props, b.props} {
		for name := range m {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		sub := at.path + "/" + name
		if name == otherProperty {
			sub = at.path + "/*"
		}
		in, out := a.property(name), b.property(name)
		sa := look(c.a.doc, in)
		switch {
		case sa.never:
		case look(c.b.doc, out).never:
			c.report(at, sub, "is not allowed", with(name, sa.sample(c.a.doc)))
		default:
			c.compare(in, out, place{path: sub, wrap: func(v any) any { return at.wrap(with(name, v)) }})
		}
	}
}

// text is a value as JSON, clipped.
func text(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return clip(string(raw))
}
