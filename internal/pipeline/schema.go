package pipeline

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// schemaID names the published schema; editors match files to it.
const schemaID = "https://github.com/weirlake/weir/docs/pipeline.schema.json"

// Schema is the JSON Schema (2020-12) of a pipeline file, made from the same
// structs and tags that the decoder walks. docs/pipeline.schema.json is its
// published copy.
func Schema() ([]byte, error) {
	defs := map[string]any{
		// A value that holds ${…} is checked after interpolation only.
		"interpolated": map[string]any{"type": "string", "pattern": `\$\{[^}]+\}`},
	}
	root := structSchema(reflect.TypeFor[Pipeline](), defs)
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["$id"] = schemaID
	root["title"] = "Weir pipeline"
	// A rest catalog places the tables itself.
	root["anyOf"] = []any{
		map[string]any{"required": []string{"warehouse"}},
		map[string]any{"properties": map[string]any{"catalog": map[string]any{
			"properties": map[string]any{"type": map[string]any{"not": map[string]any{"const": CatalogSQL}}}, "required": []string{"type"}}}},
	}
	root["$defs"] = defs
	b, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the pipeline's schema: %w", err)
	}
	return append(b, '\n'), nil
}

// structSchema describes one struct; structs inside it become definitions.
func structSchema(t reflect.Type, defs map[string]any) map[string]any {
	props := map[string]any{}
	var required []string
	defaults := defaultsOf(t)
	for _, f := range fieldsOf(t) {
		s := fieldSchema(f, defs)
		s["description"] = descriptions[t.Name()+"."+f.key]
		if d, ok := defaults[f.key]; ok {
			s["default"] = d
		}
		props[f.key] = s
		if f.rules.required {
			required = append(required, f.key)
		}
	}
	out := map[string]any{"type": "object", "properties": props, "additionalProperties": false}
	if len(required) > 0 {
		out["required"] = required
	}
	return out
}

// fieldSchema describes one key's value.
func fieldSchema(f field, defs map[string]any) map[string]any {
	t := f.typ
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	interpolated := map[string]any{"$ref": "#/$defs/interpolated"}
	anyOf := func(options ...any) map[string]any { return map[string]any{"anyOf": append(options, interpolated)} }
	text := map[string]any{"type": "string"}
	number := map[string]any{"type": "integer"}
	offsets := map[string]any{"type": "object", "minProperties": 1, "additionalProperties": map[string]any{
		"type": "object", "propertyNames": map[string]any{"pattern": "^[0-9]+$"},
		"additionalProperties": map[string]any{"type": []string{"integer", "string"}}}}
	switch t {
	case reflect.TypeFor[time.Duration]():
		return anyOf(map[string]any{"type": "string", "pattern": `^\s*[0-9]`}, map[string]any{"const": 0})
	case reflect.TypeFor[Size]():
		return anyOf(map[string]any{"type": "string", "pattern": `^\s*[0-9_]+\s*[A-Za-z]*\s*$`}, number)
	case reflect.TypeFor[Millis]():
		return anyOf(text, number)
	case reflect.TypeFor[Partitions]():
		part := anyOf(map[string]any{"type": "string", "pattern": "^[0-9, -]+$"}, map[string]any{"type": "integer", "minimum": 0})
		return anyOf(part, map[string]any{"type": "array", "items": part})
	case reflect.TypeFor[StartingOffsets]():
		return anyOf(map[string]any{"enum": []string{Earliest, Latest}}, map[string]any{"type": "string", "pattern": `^\s*\{`}, offsets)
	case reflect.TypeFor[map[string]map[int32]int64]():
		return anyOf(map[string]any{"type": "string", "pattern": `^\s*\{`}, offsets)
	case reflect.TypeFor[map[string]string](), reflect.TypeFor[map[string]Secret]():
		return map[string]any{"type": "object", "additionalProperties": map[string]any{"type": []string{"string", "number", "boolean"}}}
	case reflect.TypeFor[[]string]():
		return anyOf(map[string]any{"type": "string", "minLength": 1}, map[string]any{"type": "array", "items": text, "minItems": 1})
	case reflect.TypeFor[Command]():
		return anyOf(map[string]any{"type": "string", "minLength": 1}, map[string]any{"type": "array", "items": text, "minItems": 1})
	case reflect.TypeFor[[]PartitionField]():
		return map[string]any{"type": "array", "items": text}
	case reflect.TypeFor[Secret]():
		return map[string]any{"type": "string", "minLength": 1}
	}
	switch t.Kind() {
	case reflect.Struct:
		return reference(t, defs)
	case reflect.Slice:
		return map[string]any{"type": "array", "items": reference(t.Elem(), defs)}
	case reflect.Bool:
		return anyOf(map[string]any{"type": "boolean"})
	case reflect.String:
		return stringSchema(f, interpolated)
	}
	return anyOf(integerSchema(f.rules))
}

func stringSchema(f field, interpolated map[string]any) map[string]any {
	switch {
	case len(f.rules.enum) > 0:
		return map[string]any{"anyOf": []any{map[string]any{"enum": f.rules.enum}, interpolated}}
	case f.rules.kind == kindColumnType:
		return map[string]any{"anyOf": []any{map[string]any{"enum": columnTypes}, map[string]any{"type": "string", "pattern": `^decimal *\(`}, interpolated}}
	case f.rules.kind == "instant":
		return map[string]any{"type": []string{"string", "integer"}}
	case f.rules.kind == "jsonpath":
		return map[string]any{"anyOf": []any{map[string]any{"type": "string", "pattern": `^\$`}, interpolated}}
	case f.rules.required:
		return map[string]any{"type": "string", "minLength": 1}
	}
	return map[string]any{"type": "string"}
}

func integerSchema(r rules) map[string]any {
	out := map[string]any{"type": "integer"}
	if n, err := strconv.ParseInt(r.min, 10, 64); err == nil {
		out["minimum"] = n
	}
	if n, err := strconv.ParseInt(r.max, 10, 64); err == nil {
		out["maximum"] = n
	}
	return out
}

// reference puts a struct into the definitions, once.
func reference(t reflect.Type, defs map[string]any) map[string]any {
	if _, ok := defs[t.Name()]; !ok {
		defs[t.Name()] = nil // a place holder against recursion
		defs[t.Name()] = structSchema(t, defs)
	}
	return map[string]any{"$ref": "#/$defs/" + t.Name()}
}

// defaultsOf gives the fixed defaults of a struct as they would be written.
func defaultsOf(t reflect.Type) map[string]any {
	v := reflect.New(t)
	out := map[string]any{}
	if d, ok := v.Interface().(interface{ setDefaults() }); ok {
		d.setDefaults()
	}
	for _, f := range fieldsOf(t) {
		x := v.Elem().Field(f.index)
		switch val := x.Interface().(type) {
		case StartingOffsets:
			if val.Mode != "" {
				out[f.key] = val.Mode
			}
			continue
		case time.Duration:
			if val != 0 {
				out[f.key] = shortDuration(val)
			}
			continue
		case Size:
			if val != 0 {
				out[f.key] = fmt.Sprintf("%dMiB", val>>20)
			}
			continue
		}
		switch x.Kind() {
		case reflect.String, reflect.Bool, reflect.Int, reflect.Int16, reflect.Int32, reflect.Int64:
			if !x.IsZero() {
				out[f.key] = x.Interface()
			}
		}
	}
	return out
}

// shortDuration is Go's form without zero parts: 1h, 10m, 1h30m.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
