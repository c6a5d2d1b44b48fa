package registry

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/avro"
)

// avroReader reads payloads of a schema.
func avroReader(schema string, references []named) (func(dst, payload []byte) ([]byte, error), error) {
	var cache avro.SchemaCache
	for _, r := range references {
		if _, err := cache.Parse(r.schema); err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
	}
	s, err := cache.Parse(schema)
	if err != nil {
		return nil, err
	}
	root := s.Root()
	types := avroTypes{}
	types.collect(root, "")
	return func(dst, payload []byte) ([]byte, error) {
		var v any
		rest, err := s.Decode(payload, &v, avro.TaggedUnions())
		if err != nil {
			return dst, err
		}
		if len(rest) > 0 {
			return dst, fmt.Errorf("%d bytes are left over", len(rest))
		}
		return types.append(dst, root, v)
	}, nil
}

// avroTypes are the named types of a schema, by their full name. A type is
// defined before it is referred to, in the order of the text.
type avroTypes map[string]*avro.SchemaNode

func fullName(n *avro.SchemaNode) string {
	if n.Namespace == "" || n.Name == "" {
		return n.Name
	}
	return n.Namespace + "." + n.Name
}

// collect notes the named types in n, and gives references to them their full
// name: one without a dot is of the namespace that it stands in, or of none.
func (t avroTypes) collect(n *avro.SchemaNode, namespace string) {
	if n == nil {
		return
	}
	if name := fullName(n); name != "" {
		if t[name] != nil {
			return
		}
		t[name], namespace = n, n.Namespace
	} else if t[namespace+"."+n.Type] != nil {
		n.Type = namespace + "." + n.Type
	}
	for i := range n.Fields {
		t.collect(&n.Fields[i].Type, namespace)
	}
	for i := range n.Branches {
		t.collect(&n.Branches[i], namespace)
	}
	t.collect(n.Items, namespace)
	t.collect(n.Values, namespace)
}

// resolve follows a reference to a named type.
func (t avroTypes) resolve(n *avro.SchemaNode) *avro.SchemaNode {
	if named := t[n.Type]; named != nil && n.Name == "" {
		return named
	}
	return n
}

// append writes a decoded value of a type as JSON.
func (t avroTypes) append(dst []byte, n *avro.SchemaNode, v any) ([]byte, error) {
	if len(dst) > 2*maxJSON {
		return dst, fmt.Errorf("more than %d MiB as JSON", maxJSON>>20)
	}
	n = t.resolve(n)
	var err error
	switch n.Type {
	case "union":
		if v == nil {
			return append(dst, "null"...), nil
		}
		return t.appendBranch(dst, n, v)
	case "record", "error":
		fields, ok := v.(map[string]any)
		if !ok {
			return dst, fmt.Errorf("a record was read as %T", v)
		}
		dst = append(dst, '{')
		for i := range n.Fields {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendText(dst, n.Fields[i].Name), ':')
			if dst, err = t.append(dst, &n.Fields[i].Type, fields[n.Fields[i].Name]); err != nil {
				return dst, err
			}
		}
		return append(dst, '}'), nil
	case "map":
		entries, ok := v.(map[string]any)
		if !ok {
			return dst, fmt.Errorf("a map was read as %T", v)
		}
		dst = append(dst, '{')
		for i, k := range slices.Sorted(maps.Keys(entries)) {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendText(dst, k), ':')
			if dst, err = t.append(dst, n.Values, entries[k]); err != nil {
				return dst, err
			}
		}
		return append(dst, '}'), nil
	case "array":
		items, ok := v.([]any)
		if !ok {
			return dst, fmt.Errorf("an array was read as %T", v)
		}
		dst = append(dst, '[')
		for i, item := range items {
			if i > 0 {
				dst = append(dst, ',')
			}
			if dst, err = t.append(dst, n.Items, item); err != nil {
				return dst, err
			}
		}
		return append(dst, ']'), nil
	}
	return appendScalar(dst, n.LogicalType, v)
}

// appendBranch writes the value of a union, which the decoder has put under the
// name of its branch.
func (t avroTypes) appendBranch(dst []byte, n *avro.SchemaNode, v any) ([]byte, error) {
	tagged, ok := v.(map[string]any)
	if !ok || len(tagged) != 1 {
		return dst, fmt.Errorf("a union was read as %T", v)
	}
	for name, value := range tagged {
		for i := range n.Branches {
			b := t.resolve(&n.Branches[i])
			if b.Type == name || fullName(b) == name {
				return t.append(dst, b, value)
			}
		}
		return dst, fmt.Errorf("the union has no branch %s", name)
	}
	return dst, nil
}

// appendScalar writes what has no parts.
func appendScalar(dst []byte, logical string, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...), nil
	case bool:
		return strconv.AppendBool(dst, v), nil
	case int32:
		return strconv.AppendInt(dst, int64(v), 10), nil
	case int64:
		return strconv.AppendInt(dst, v, 10), nil
	case float32:
		return appendFloat(dst, float64(v), 32), nil
	case float64:
		return appendFloat(dst, v, 64), nil
	case string:
		return appendText(dst, v), nil
	case []byte:
		return appendBase64(dst, v), nil
	case [16]byte:
		return fmt.Appendf(dst, `"%x-%x-%x-%x-%x"`, v[:4], v[4:6], v[6:8], v[8:10], v[10:]), nil
	case time.Time:
		layout := time.RFC3339Nano
		switch logical {
		case "date":
			layout = time.DateOnly
		case "local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos":
			layout = "2006-01-02T15:04:05.999999999"
		}
		return appendText(dst, v.UTC().Format(layout)), nil
	case time.Duration:
		return appendText(dst, time.Unix(0, 0).UTC().Add(v).Format("15:04:05.999999999")), nil
	case *big.Rat:
		digits, _ := v.FloatPrec()
		return append(dst, v.FloatString(digits)...), nil
	case avro.Duration:
		return appendText(dst, v.String()), nil
	default:
		return dst, fmt.Errorf("a value was read as %T", v)
	}
}

// appendFloat writes the shortest number that gives the same float again.
// Infinities and NaN have no JSON.
func appendFloat(dst []byte, v float64, bits int) []byte {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return append(dst, "null"...)
	}
	return strconv.AppendFloat(dst, v, 'g', -1, bits)
}

func appendBase64(dst, v []byte) []byte {
	dst = append(dst, '"')
	return append(base64.StdEncoding.AppendEncode(dst, v), '"')
}

// appendText writes a JSON string.
func appendText(dst []byte, s string) []byte {
	b, _ := json.Marshal(s) //nolint:errchkjson // a string always has a JSON form
	return append(dst, b...)
}
