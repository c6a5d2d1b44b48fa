package contract

import (
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/weirlake/weir/internal/failure"
)

type typeMask uint8

const (
	typeNull typeMask = 1 << iota
	typeBoolean
	typeInteger // a number without a fraction, however it is written
	typeNumber
	typeString
	typeArray
	typeObject
)

var typeNames = map[string]typeMask{
	"null": typeNull, "boolean": typeBoolean, "integer": typeInteger,
	"number": typeNumber | typeInteger, "string": typeString, "array": typeArray, "object": typeObject,
}

// What is captured on the way.
const (
	captureKey = iota
	captureCanary
	captures
)

// maxProperties is the width of the set of properties that were seen.
const maxProperties = 64

// node is one compiled schema.
type node struct {
	path  string   // JSON pointer, for details
	types typeMask // 0: any
	want  string   // the types as the schema lists them

	props      []prop
	byLength   [][]int16 // property indexes by length of the name
	required   uint64    // of props, by index
	additional *node     // nil: anything
	forbid     bool      // additionalProperties: false
	items      *node
	minItems   int
	maxItems   int // negative: no limit
	minProps   int
	maxProps   int

	minLength int
	maxLength int
	pattern   *regexp.Regexp
	uuid      bool // the pattern is a UUID's: checked by hand first
	format    string
	formatOf  *jsonschema.Schema // the library's own check of the format

	enum    []string // strings only
	enumed  bool
	enumMsk typeMask // null, true and false that the enumeration allows
	enumT   bool
	enumF   bool

	lower, upper         *big.Rat
	lowerOpen, upperOpen bool
	lowerInt, upperInt   int64 // the same where they are whole, see bounds
	intBounds            bool

	capture [captures]bool
	// onPath is set for every node on the way to a capture.
	onPath bool
}

type prop struct {
	name string
	node *node
	// known is false for a property that only a capture added.
	known bool
}

// newNode allows everything.
func newNode(path string) *node {
	return &node{path: path, maxItems: -1, maxProps: -1, maxLength: -1}
}

// annotations are the keywords that assert nothing.
var annotations = map[string]bool{
	"$schema": true, "$id": true, "$comment": true, "title": true, "description": true,
	"examples": true, "default": true, "readOnly": true, "writeOnly": true, "deprecated": true,
}

// compileNode compiles a schema or says which keyword keeps it from that.
func compileNode(doc any, path string) (*node, error) {
	n := newNode(path)
	switch d := doc.(type) {
	case bool:
		if !d {
			return nil, fmt.Errorf("%s: the schema false", path)
		}
		return n, nil
	case map[string]any:
		for k, v := range d {
			if annotations[k] {
				continue
			}
			if err := n.keyword(k, v); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", path, k, err)
			}
		}
		if err := n.requiredProps(d["required"]); err != nil {
			return nil, err
		}
		n.index()
		n.bounds()
		return n, nil
	default:
		return nil, fmt.Errorf("%s: not a schema", path)
	}
}

func (n *node) keyword(k string, v any) error {
	var err error
	switch k {
	case "type":
		return n.setTypes(v)
	case "properties":
		return n.setProps(v)
	case "required": // after the properties
		return nil
	case "additionalProperties":
		if b, ok := v.(bool); ok {
			n.forbid = !b
			return nil
		}
		n.additional, err = compileNode(v, n.path+"/*")
	case "items":
		n.items, err = compileNode(v, n.path+"/*")
	case "enum":
		return n.setEnum(v)
	case "const":
		return n.setEnum([]any{v})
	case "pattern":
		return n.setPattern(v)
	case "format":
		return n.setFormat(v)
	case "minLength":
		n.minLength, err = count(v)
	case "maxLength":
		n.maxLength, err = count(v)
	case "minItems":
		n.minItems, err = count(v)
	case "maxItems":
		n.maxItems, err = count(v)
	case "minProperties":
		n.minProps, err = count(v)
	case "maxProperties":
		n.maxProps, err = count(v)
	case "minimum", "exclusiveMinimum":
		return n.setBound(v, &n.lower, &n.lowerOpen, k == "exclusiveMinimum")
	case "maximum", "exclusiveMaximum":
		return n.setBound(v, &n.upper, &n.upperOpen, k == "exclusiveMaximum")
	default:
		return fmt.Errorf("left to the generic validator")
	}
	return err
}

func (n *node) setTypes(v any) error {
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	var names []string
	for _, t := range list {
		name, _ := t.(string)
		m, ok := typeNames[name]
		if !ok {
			return fmt.Errorf("unknown type %v", t)
		}
		n.types |= m
		names = append(names, name)
	}
	n.want = strings.Join(names, " or ")
	return nil
}

func (n *node) setProps(v any) error {
	m, ok := v.(map[string]any)
	if !ok {
		return fmt.Errorf("not an object")
	}
	for name, sub := range m {
		child, err := compileNode(sub, n.path+"/"+name)
		if err != nil {
			return err
		}
		n.props = append(n.props, prop{name, child, true})
	}
	return nil
}

func (n *node) requiredProps(v any) error {
	if v == nil {
		return nil
	}
	list, ok := v.([]any)
	if !ok {
		return fmt.Errorf("%s: required: not a list", n.path)
	}
	for _, r := range list {
		name, _ := r.(string)
		i := n.find(name)
		if i < 0 {
			// A required property without a schema of its own. It is covered by
			// additionalProperties, which then must not be in use.
			if n.forbid || n.additional != nil {
				return fmt.Errorf("%s: required: %q has no schema: left to the generic validator", n.path, name)
			}
			n.props = append(n.props, prop{name, newNode(n.path + "/" + name), true})
			i = len(n.props) - 1
		}
		if i >= maxProperties {
			return fmt.Errorf("%s: more than %d properties: left to the generic validator", n.path, maxProperties)
		}
		n.required |= 1 << i
	}
	return nil
}

func (n *node) find(name string) int {
	for i := range n.props {
		if n.props[i].name == name {
			return i
		}
	}
	return -1
}

// index sorts the properties by the length of their names. Objects with more
// properties than the set of seen ones has room for are not compiled.
func (n *node) index() {
	n.byLength = nil
	for i, p := range n.props {
		for len(n.byLength) <= len(p.name) {
			n.byLength = append(n.byLength, nil)
		}
		n.byLength[len(p.name)] = append(n.byLength[len(p.name)], int16(i))
	}
}

// lookup is the index of a property, or -1.
func (n *node) lookup(name []byte) int {
	if len(name) >= len(n.byLength) {
		return -1
	}
	for _, i := range n.byLength[len(name)] {
		if n.props[i].name == string(name) {
			return int(i)
		}
	}
	return -1
}

func (n *node) setEnum(v any) error {
	list, ok := v.([]any)
	if !ok {
		return fmt.Errorf("not a list")
	}
	if n.enumed {
		return fmt.Errorf("enum and const together: left to the generic validator")
	}
	n.enumed = true
	for _, e := range list {
		switch e := e.(type) {
		case string:
			n.enum = append(n.enum, e)
		case nil:
			n.enumMsk |= typeNull
		case bool:
			n.enumT, n.enumF = n.enumT || e, n.enumF || !e
		default:
			return fmt.Errorf("a value that is no string: left to the generic validator")
		}
	}
	return nil
}

// uuidPattern is how schemas commonly spell a UUID.
const uuidPattern = `^[a-fA-F0-9]{8}(-[a-fA-F0-9]{4}){3}-[a-fA-F0-9]{12}$`

func (n *node) setPattern(v any) error {
	p, ok := v.(string)
	if !ok {
		return fmt.Errorf("not a string")
	}
	re, err := regexp.Compile(p)
	if err != nil {
		return err
	}
	n.pattern, n.uuid = re, p == uuidPattern
	return nil
}

func (n *node) setFormat(v any) error {
	name, ok := v.(string)
	if !ok {
		return fmt.Errorf("not a string")
	}
	lib := jsonschema.NewCompiler()
	lib.AssertFormat()
	const url = "weir:///format.json"
	if err := lib.AddResource(url, map[string]any{"format": name}); err != nil {
		return err
	}
	sch, err := lib.Compile(url)
	if err != nil {
		return err
	}
	n.format, n.formatOf = name, sch
	return nil
}

func (n *node) setBound(v any, at **big.Rat, open *bool, exclusive bool) error {
	if *at != nil {
		return fmt.Errorf("two bounds on one side: left to the generic validator")
	}
	r, ok := new(big.Rat).SetString(fmt.Sprint(v))
	if !ok {
		return fmt.Errorf("not a number")
	}
	*at, *open = r, exclusive
	return nil
}

// bounds prepares the comparison of plain integers without big numbers.
func (n *node) bounds() {
	if n.lower == nil && n.upper == nil {
		return
	}
	n.intBounds = true
	n.lowerInt, n.upperInt = -1<<63, 1<<63-1
	if n.lower != nil {
		if !n.lower.IsInt() || !n.lower.Num().IsInt64() || n.lowerOpen {
			n.intBounds = false
			return
		}
		n.lowerInt = n.lower.Num().Int64()
	}
	if n.upper != nil {
		if !n.upper.IsInt() || !n.upper.Num().IsInt64() || n.upperOpen {
			n.intBounds = false
			return
		}
		n.upperInt = n.upper.Num().Int64()
	}
}

func count(v any) (int, error) {
	num, ok := v.(json.Number)
	if !ok {
		return 0, fmt.Errorf("not a number")
	}
	i, err := strconv.Atoi(num.String())
	if err != nil {
		return 0, fmt.Errorf("%s: left to the generic validator", num)
	}
	return i, nil
}

// capture marks the node at a path, adding nodes where the schema has none.
func capture(root *node, path string, slot int) error {
	names := strings.Split(strings.TrimPrefix(path, "$."), ".")
	n := root
	for _, name := range names {
		if name == "" || strings.ContainsAny(name, "[]*'\"$") {
			return failure.New(failure.Config, "the path %q is not understood", path).
				WithHint("write property names joined by dots, as in meta.id")
		}
		i := n.find(name)
		if i < 0 {
			child := newNode(n.path + "/" + name)
			if len(n.props) >= maxProperties {
				return failure.New(failure.Config, "the path %q lies in an object of more than %d properties", path, maxProperties)
			}
			n.props = append(n.props, prop{name, child, false})
			n.index()
			i = len(n.props) - 1
		}
		n = n.props[i].node
		n.onPath = true
	}
	n.capture[slot] = true
	return nil
}
