package pipeline

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Reference is the key tables of docs/pipeline.md: one per mapping, in the
// order in which a file has them.
func Reference() string {
	var b strings.Builder
	writeReference(&b, reflect.TypeFor[Pipeline](), "The file", map[reflect.Type]bool{})
	return b.String()
}

// heading names a mapping by the place where it stands.
func writeReference(b *strings.Builder, t reflect.Type, heading string, seen map[reflect.Type]bool) {
	if seen[t] {
		return
	}
	seen[t] = true
	fmt.Fprintf(b, "### %s\n\n| key | value | default | meaning |\n|---|---|---|---|\n", heading)
	defaults := defaultsOf(t)
	for _, f := range fieldsOf(t) {
		def := ""
		switch d, ok := defaults[f.key]; {
		case f.rules.required:
			def = "required"
		case ok:
			def = fmt.Sprintf("`%v`", d)
		case f.typ.Kind() == reflect.Bool:
			def = "`false`"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", f.key, valueWord(f), def, strings.ReplaceAll(descriptions[t.Name()+"."+f.key], "|", `\|`))
	}
	b.WriteString("\n")
	for _, f := range fieldsOf(t) {
		e := f.typ
		path := f.key
		if e.Kind() == reflect.Slice && e != reflect.TypeFor[[]PartitionField]() && e != reflect.TypeFor[Partitions]() {
			e, path = e.Elem(), path+"[]"
		}
		if e.Kind() == reflect.Pointer {
			e = e.Elem()
		}
		if e.Kind() != reflect.Struct || e == reflect.TypeFor[Secret]() || e == reflect.TypeFor[StartingOffsets]() {
			continue
		}
		if heading != "The file" {
			path = strings.Trim(heading, "`") + "." + path
		}
		writeReference(b, e, "`"+path+"`", seen)
	}
}

// valueWord says what kind of value a key takes.
func valueWord(f field) string {
	if len(f.rules.enum) > 0 {
		return quotedList(f.rules.enum)
	}
	if f.rules.kind == kindColumnType {
		return quotedList(append(slices.Clone(columnTypes), decimalForm))
	}
	t := f.typ
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t {
	case reflect.TypeFor[time.Duration]():
		return "duration"
	case reflect.TypeFor[Size]():
		return "size"
	case reflect.TypeFor[Millis]():
		return "point in time"
	case reflect.TypeFor[Secret]():
		return "secret"
	case reflect.TypeFor[Partitions]():
		return "partitions"
	case reflect.TypeFor[StartingOffsets](), reflect.TypeFor[map[string]map[int32]int64]():
		return "offsets"
	case reflect.TypeFor[map[string]string]():
		return "mapping of texts"
	case reflect.TypeFor[map[string]Secret]():
		return "mapping of secrets"
	case reflect.TypeFor[[]string]():
		return "list of names"
	case reflect.TypeFor[Command]():
		return "text, or list of texts"
	case reflect.TypeFor[[]PartitionField]():
		return "list of terms"
	}
	switch t.Kind() {
	case reflect.Struct:
		return "mapping"
	case reflect.Slice:
		return "list of mappings"
	case reflect.Bool:
		return "`true`, `false`"
	case reflect.String:
		if kind, ok := kindWords[f.rules.kind]; ok {
			return kind
		}
		return "text"
	}
	return "whole number"
}

func quotedList(words []string) string { return "`" + strings.Join(words, "`, `") + "`" }

var kindWords = map[string]string{
	"path": "path", "location": "path or `s3://bucket/prefix`", "bucket": "bucket name", "url": "URL", "regexp": "regular expression", "instant": "point in time",
	"jsonpath": "JSON path", "table": "table name", "topic": "topic name", "column": "column name", "name": "name",
}
