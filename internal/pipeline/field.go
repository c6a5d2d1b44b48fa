package pipeline

import (
	"reflect"
	"strings"
)

// field is one key of a struct, with its rules.
type field struct {
	key   string
	index int
	typ   reflect.Type
	rules rules
}

// rules is a parsed weir tag.
type rules struct {
	required bool
	enum     []string
	min, max string
	// kind is path, location, bucket, url, regexp, instant, jsonpath, table, topic, column, name
	// or empty.
	kind string
}

// fieldsOf lists the keys of a struct type in their order.
func fieldsOf(t reflect.Type) []field {
	var out []field
	for i := range t.NumField() {
		f := t.Field(i)
		key := f.Tag.Get("yaml")
		if key == "" || key == "-" {
			continue
		}
		out = append(out, field{key: key, index: i, typ: f.Type, rules: parseRules(f.Tag.Get("weir"))})
	}
	return out
}

func parseRules(tag string) rules {
	var r rules
	for _, term := range strings.Split(tag, ",") {
		name, arg, _ := strings.Cut(term, "=")
		switch name {
		case "":
		case "required":
			r.required = true
		case "enum":
			r.enum = strings.Split(arg, "|")
		case "min":
			r.min = arg
		case "max":
			r.max = arg
		default:
			r.kind = name
		}
	}
	return r
}
