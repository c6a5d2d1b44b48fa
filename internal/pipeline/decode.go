package pipeline

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// pair is one key of a mapping.
type pair struct {
	key   string
	at    place
	value ast.Node
}

func (l *loader) decodeRoot(root ast.Node, p *Pipeline) {
	l.places[""] = placeOf(root)
	l.decodeStruct(root, reflect.ValueOf(p).Elem(), "", 0)
}

// child joins a key path.
func child(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}

// unwrap follows anchors, aliases and tags to the node that carries the value.
func (l *loader) unwrap(n ast.Node, key string) (out ast.Node) {
	defer func() {
		if out == nil {
			l.opaque = append(l.opaque, key)
		}
	}()
	for range depthMax {
		switch t := n.(type) {
		case *ast.AnchorNode:
			l.anchors[t.Name.GetToken().Value] = t.Value
			n = t.Value
		case *ast.AliasNode:
			name := t.Value.GetToken().Value
			target, ok := l.anchors[name]
			if !ok {
				l.fault(placeOf(t), key, "alias *%s: no anchor &%s before it", clip(name), clip(name))
				return nil
			}
			n = target
		case *ast.TagNode:
			l.fault(placeOf(t), key, "YAML tags (%s) are not used here; remove it", clip(t.GetToken().Value))
			return nil
		default:
			return n
		}
	}
	l.fault(place{1, 1}, key, "aliases nested deeper than %d", depthMax)
	return nil
}

// enter counts a visited node; aliases could otherwise multiply a small file.
func (l *loader) enter(key string, depth int) bool {
	l.nodes++
	if depth > depthMax || l.nodes > nodesMax {
		if l.nodes <= nodesMax+1 {
			l.faultKey(key, "the file is nested or repeated beyond reason (depth %d, values %d)", depthMax, nodesMax)
		}
		return false
	}
	return true
}

// mapping lists the pairs of a mapping and reports keys given twice.
func (l *loader) mapping(n ast.Node, key, what string) ([]pair, bool) {
	var values []*ast.MappingValueNode
	switch t := n.(type) {
	case *ast.MappingNode:
		values = t.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{t}
	default:
		l.opaque = append(l.opaque, key)
		l.fault(placeOf(n), key, "%s has to be a mapping (key: value), not %s", what, kindOf(n))
		return nil, false
	}
	seen := map[string]place{}
	var out []pair
	for _, v := range values {
		at := placeOf(v.Key)
		if v.Key.IsMergeKey() {
			l.fault(at, key, "merge keys (<<) are not supported; repeat the keys or use an alias for the whole value")
			continue
		}
		name := v.Key.GetToken().Value
		if first, dup := seen[name]; dup {
			l.fault(at, child(key, name), "key %q is given twice (first in line %d)", clip(name), first.line)
			continue
		}
		seen[name] = at
		out = append(out, pair{name, at, v.Value})
	}
	return out, true
}

// kindOf names a node for a message.
func kindOf(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	}
	return "a single value"
}

// decodeStruct fills v from a mapping: defaults first, then every known key.
func (l *loader) decodeStruct(n ast.Node, v reflect.Value, key string, depth int) {
	if !l.enter(key, depth) {
		return
	}
	if d, ok := v.Addr().Interface().(interface{ setDefaults() }); ok {
		d.setDefaults()
	}
	what := key
	if what == "" {
		what = "a pipeline file"
	}
	pairs, ok := l.mapping(n, key, what)
	if !ok {
		return
	}
	fields := fieldsOf(v.Type())
	given := map[string]bool{}
	for _, p := range pairs {
		var f *field
		for i := range fields {
			if fields[i].key == p.key {
				f = &fields[i]
			}
		}
		path := child(key, p.key)
		if f == nil {
			l.fault(p.at, path, "%s", unknownKey(v.Type().Name(), p.key, fields))
			continue
		}
		given[f.key] = true
		l.places[path] = p.at
		val := l.unwrap(p.value, path)
		if val == nil {
			continue
		}
		if val.Type() == ast.NullType {
			l.fault(p.at, path, "%s has no value; give one or remove the key", p.key)
			continue
		}
		l.decode(val, v.Field(f.index), path, f, depth+1, v.Type().Name())
	}
	for _, f := range fields {
		if f.rules.required && !given[f.key] {
			l.fault(l.places.nearest(key), child(key, f.key), "%smissing key %q", prefix(key), f.key)
		}
	}
}

func prefix(key string) string {
	if key == "" {
		return ""
	}
	return key + ": "
}

// decode fills one value of any type that the structs use.
func (l *loader) decode(n ast.Node, v reflect.Value, key string, f *field, depth int, owner string) {
	if !l.enter(key, depth) {
		return
	}
	switch v.Interface().(type) {
	case StartingOffsets:
		l.decodeStarting(n, v.Addr().Interface().(*StartingOffsets), key)
		return
	case map[string]map[int32]int64:
		if m := l.offsets(n, key, true); m != nil {
			v.Set(reflect.ValueOf(m))
		}
		return
	case map[string]string:
		l.decodeText(n, v.Addr().Interface().(*map[string]string), key)
		return
	case map[string]Secret:
		l.decodeSecrets(n, v.Addr().Interface().(*map[string]Secret), key)
		return
	case Command:
		l.decodeCommand(n, v.Addr().Interface().(*Command), key)
		return
	case []string:
		l.decodeWords(n, v.Addr().Interface().(*[]string), key, f)
		return
	case Partitions:
		l.decodePartitions(n, v.Addr().Interface().(*Partitions), key)
		return
	case []PartitionField:
		l.decodePartitionBy(n, v.Addr().Interface().(*[]PartitionField), key)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		if _, ok := v.Interface().(Secret); !ok {
			l.decodeStruct(n, v, key, depth)
			return
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		l.decode(n, v.Elem(), key, f, depth, owner)
		return
	case reflect.Slice:
		l.decodeList(n, v, key, f, depth, owner)
		return
	}
	s, at, ok := l.scalar(n, key)
	if !ok {
		return
	}
	l.places[key] = at
	if _, secret := v.Interface().(Secret); s.file && !secret {
		l.fault(at, key, "%s is not a secret, so it cannot come from ${file:…}; use a variable", f.key)
		return
	}
	if err := l.assign(v, s, f, owner); err != nil {
		l.fault(at, key, "%s", err)
	}
}

// decodeList fills a slice of structs from a sequence.
func (l *loader) decodeList(n ast.Node, v reflect.Value, key string, f *field, depth int, owner string) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		l.opaque = append(l.opaque, key)
		l.fault(placeOf(n), key, "%s has to be a list (- …), not %s", key, kindOf(n))
		return
	}
	out := reflect.MakeSlice(v.Type(), len(seq.Values), len(seq.Values))
	for i, item := range seq.Values {
		path := fmt.Sprintf("%s[%d]", key, i)
		l.places[path] = placeOf(item)
		val := l.unwrap(item, path)
		if val == nil {
			continue
		}
		l.decode(val, out.Index(i), path, f, depth+1, owner)
	}
	v.Set(out)
	if f.rules.min != "" && len(seq.Values) == 0 {
		l.faultKey(key, "%s is empty", key)
	}
}

// scalar gives the interpolated text of a scalar node.
func (l *loader) scalar(n ast.Node, key string) (scalar, place, bool) {
	at := placeOf(n)
	var raw string
	quoted := false
	switch t := n.(type) {
	case *ast.StringNode:
		raw = t.Value
		k := t.GetToken().Type
		quoted = k == token.DoubleQuoteType || k == token.SingleQuoteType
	case *ast.LiteralNode:
		raw = t.Value.Value
	case ast.ScalarNode:
		if t.Type() == ast.NullType {
			l.fault(at, key, "%s has no value", key)
			return scalar{}, at, false
		}
		raw = strings.TrimSpace(t.GetToken().Value)
	default:
		joined, ok := unsplit(n)
		if !ok {
			l.fault(at, key, "%s has to be a single value, not %s", key, kindOf(n))
			return scalar{}, at, false
		}
		raw = joined
	}
	s, errs := l.interpolate(raw)
	for _, err := range errs {
		l.fault(at, key, "%s: %s", key, err)
	}
	s.quoted = quoted
	return s, at, len(errs) == 0
}

// unsplit undoes a misreading of the YAML library: in a list inside { } it
// takes host:9092 for a mapping, although only a colon with a space after it
// makes one.
func unsplit(n ast.Node) (string, bool) {
	var v *ast.MappingValueNode
	switch t := n.(type) {
	case *ast.MappingValueNode:
		v = t
	case *ast.MappingNode:
		if len(t.Values) == 1 {
			v = t.Values[0]
		}
	}
	if v == nil {
		return "", false
	}
	if _, single := v.Value.(ast.ScalarNode); !single || v.Value.Type() == ast.NullType {
		return "", false
	}
	key, val := v.Key.GetToken(), v.Value.GetToken()
	adjacent := key.Type == token.StringType && key.Position.Line == val.Position.Line &&
		val.Position.Column == key.Position.Column+len([]rune(key.Value))+1
	return key.Value + ":" + val.Value, adjacent
}

// assign parses the text by the type of v.
func (l *loader) assign(v reflect.Value, s scalar, f *field, owner string) error {
	wrong := func(err error) error {
		if err == nil {
			return nil
		}
		if v.Type() == reflect.TypeFor[Secret]() {
			return fmt.Errorf("%s %w", f.key, err)
		}
		return fmt.Errorf("%s: %s %w", f.key, s.shown(), err)
	}
	switch x := v.Addr().Interface().(type) {
	case *Secret:
		*x = NewSecret(s.text)
		if s.text == "" {
			return fmt.Errorf("%s is empty", f.key)
		}
		return nil
	case *time.Duration:
		d, err := ParseDuration(s.text)
		*x = d
		if err != nil {
			return wrong(err)
		}
		if lo, e := ParseDuration(f.rules.min); e == nil && d < lo {
			return wrong(fmt.Errorf("is less than %s", f.rules.min))
		}
		return nil
	case *Size:
		n, err := parseSize(s.text)
		*x = n
		if err != nil {
			return wrong(err)
		}
		return wrong(bounds(int64(n), f.rules))
	case *Millis:
		n, err := parseInstant(s.text)
		*x = n
		return wrong(err)
	case *bool:
		switch s.text {
		case "true", "false":
			*x = s.text == "true"
			return nil
		}
		return wrong(fmt.Errorf("is neither true nor false"))
	case *string:
		text, err := l.text(s, f, owner)
		*x = text
		return err
	}
	n, err := parseInt(s.text, v.Type().Bits())
	if err != nil {
		return wrong(err)
	}
	v.SetInt(n)
	return wrong(bounds(n, f.rules))
}

// bounds checks min and max of a number.
func bounds(n int64, r rules) error {
	if lo, err := strconv.ParseInt(r.min, 10, 64); err == nil && n < lo {
		return fmt.Errorf("is less than %d", lo)
	}
	if hi, err := strconv.ParseInt(r.max, 10, 64); err == nil && n > hi {
		return fmt.Errorf("is more than %d", hi)
	}
	return nil
}
