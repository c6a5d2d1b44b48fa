package duck

import (
	"fmt"
	"strings"

	"github.com/apache/iceberg-go"
)

// TypeOf is DuckDB's name of an Iceberg type.
func TypeOf(t iceberg.Type) (string, error) {
	switch x := t.(type) {
	case iceberg.BooleanType:
		return "BOOLEAN", nil
	case iceberg.Int32Type:
		return "INTEGER", nil
	case iceberg.Int64Type:
		return "BIGINT", nil
	case iceberg.Float32Type:
		return "FLOAT", nil
	case iceberg.Float64Type:
		return "DOUBLE", nil
	case iceberg.DateType:
		return "DATE", nil
	case iceberg.TimeType:
		return "TIME", nil
	case iceberg.TimestampType:
		return "TIMESTAMP", nil
	case iceberg.TimestampTzType:
		return "TIMESTAMP WITH TIME ZONE", nil
	case iceberg.StringType:
		return "VARCHAR", nil
	case iceberg.BinaryType, iceberg.FixedType:
		return "BLOB", nil
	case iceberg.UUIDType:
		return "UUID", nil
	case iceberg.DecimalType:
		return fmt.Sprintf("DECIMAL(%d,%d)", x.Precision(), x.Scale()), nil
	case *iceberg.ListType:
		e, err := TypeOf(x.Element)
		return e + "[]", err
	case *iceberg.MapType:
		k, err := TypeOf(x.KeyType)
		if err != nil {
			return "", err
		}
		v, err := TypeOf(x.ValueType)
		return "MAP(" + k + ", " + v + ")", err
	case *iceberg.StructType:
		parts := make([]string, len(x.FieldList))
		for i, f := range x.FieldList {
			e, err := TypeOf(f.Type)
			if err != nil {
				return "", err
			}
			parts[i] = Ident(f.Name) + " " + e
		}
		return "STRUCT(" + strings.Join(parts, ", ") + ")", nil
	}
	return "", fmt.Errorf("type %s has no counterpart in DuckDB", t)
}

// Column is one column of a DuckDB relation.
type Column struct {
	Name string
	// Type is DuckDB's own.
	Type string
}

// Stored says how a column is kept in an Iceberg table: the type, and the
// DuckDB type that it is cast to first ("" for none). Field ids are given by
// next. Whatever would lose something is refused.
func Stored(duckType string, next func() int) (iceberg.Type, string, error) {
	t, rest, err := parseType(duckType, next)
	if err == nil && strings.TrimSpace(rest) != "" {
		err = fmt.Errorf("type %s is not understood", duckType)
	}
	if err != nil {
		return nil, "", err
	}
	cast, err := TypeOf(t)
	if err != nil {
		return nil, "", err
	}
	if strings.EqualFold(cast, duckType) {
		cast = ""
	}
	return t, cast, nil
}

// simple are the types without parts, by DuckDB's name. An integer type that
// Iceberg does not have becomes the next one that holds it.
var simple = map[string]iceberg.Type{
	"BOOLEAN": iceberg.PrimitiveTypes.Bool, "TINYINT": iceberg.PrimitiveTypes.Int32, "SMALLINT": iceberg.PrimitiveTypes.Int32,
	"INTEGER": iceberg.PrimitiveTypes.Int32, "UTINYINT": iceberg.PrimitiveTypes.Int32, "USMALLINT": iceberg.PrimitiveTypes.Int32,
	"BIGINT": iceberg.PrimitiveTypes.Int64, "UINTEGER": iceberg.PrimitiveTypes.Int64,
	"UBIGINT": iceberg.DecimalTypeOf(20, 0), "HUGEINT": iceberg.DecimalTypeOf(38, 0), "UHUGEINT": iceberg.DecimalTypeOf(38, 0),
	"FLOAT": iceberg.PrimitiveTypes.Float32, "DOUBLE": iceberg.PrimitiveTypes.Float64,
	"DATE": iceberg.PrimitiveTypes.Date, "TIME": iceberg.PrimitiveTypes.Time, "TIMESTAMP": iceberg.PrimitiveTypes.Timestamp,
	"TIMESTAMP_S": iceberg.PrimitiveTypes.Timestamp, "TIMESTAMP_MS": iceberg.PrimitiveTypes.Timestamp,
	"TIMESTAMP WITH TIME ZONE": iceberg.PrimitiveTypes.TimestampTz,
	"VARCHAR":                  iceberg.PrimitiveTypes.String, "JSON": iceberg.PrimitiveTypes.String,
	"BLOB": iceberg.PrimitiveTypes.Binary, "UUID": iceberg.PrimitiveTypes.UUID,
}

// parseType reads a type from the front of s.
func parseType(s string, next func() int) (t iceberg.Type, rest string, err error) {
	s = strings.TrimSpace(s)
	switch {
	case strings.HasPrefix(s, "STRUCT("):
		t, rest, err = parseStruct(s[len("STRUCT("):], next)
	case strings.HasPrefix(s, "MAP("):
		t, rest, err = parseMap(s[len("MAP("):], next)
	case strings.HasPrefix(s, "DECIMAL("):
		var p, sc int
		end := strings.IndexByte(s, ')')
		if _, err := fmt.Sscanf(s[:end+1], "DECIMAL(%d,%d)", &p, &sc); err != nil {
			return nil, "", fmt.Errorf("type %s is not understood", s)
		}
		t, rest = iceberg.DecimalTypeOf(p, sc), s[end+1:]
	case strings.HasPrefix(s, "ENUM("):
		t, rest = iceberg.PrimitiveTypes.String, s[enumEnd(s):]
	default:
		end := len(s)
		if i := strings.IndexAny(s, "[,)"); i >= 0 {
			end = i
		}
		var ok bool
		if t, ok = simple[strings.TrimSpace(s[:end])]; !ok {
			return nil, "", fmt.Errorf("type %s cannot be kept in an Iceberg table: cast it (to VARCHAR, TIMESTAMP, DECIMAL, …) in the model", strings.TrimSpace(s[:end]))
		}
		rest = s[end:]
	}
	for err == nil && strings.HasPrefix(rest, "[") {
		end := strings.IndexByte(rest, ']')
		t, rest = &iceberg.ListType{ElementID: next(), Element: t}, rest[end+1:]
	}
	return t, rest, err
}

// enumEnd is where the list of an enum's values ends; they are quoted strings.
func enumEnd(s string) int {
	quoted := false
	for i := range len(s) {
		switch {
		case s[i] == '\'':
			quoted = !quoted
		case s[i] == ')' && !quoted:
			return i + 1
		}
	}
	return len(s)
}

func parseStruct(s string, next func() int) (iceberg.Type, string, error) {
	st := &iceberg.StructType{}
	for {
		name, rest, err := parseName(strings.TrimSpace(s))
		if err != nil {
			return nil, "", err
		}
		id := next()
		t, rest, err := parseType(rest, next)
		if err != nil {
			return nil, "", err
		}
		st.FieldList = append(st.FieldList, iceberg.NestedField{ID: id, Name: name, Type: t})
		rest = strings.TrimSpace(rest)
		switch {
		case strings.HasPrefix(rest, ","):
			s = rest[1:]
		case strings.HasPrefix(rest, ")"):
			return st, rest[1:], nil
		default:
			return nil, "", fmt.Errorf("type STRUCT(%s is not understood", s)
		}
	}
}

func parseMap(s string, next func() int) (iceberg.Type, string, error) {
	k, v := next(), next()
	kt, rest, err := parseType(s, next)
	if err != nil {
		return nil, "", err
	}
	rest, ok := strings.CutPrefix(strings.TrimSpace(rest), ",")
	if !ok {
		return nil, "", fmt.Errorf("type MAP(%s is not understood", s)
	}
	vt, rest, err := parseType(rest, next)
	if err != nil {
		return nil, "", err
	}
	rest, ok = strings.CutPrefix(strings.TrimSpace(rest), ")")
	if !ok {
		return nil, "", fmt.Errorf("type MAP(%s is not understood", s)
	}
	return &iceberg.MapType{KeyID: k, KeyType: kt, ValueID: v, ValueType: vt}, rest, nil
}

// parseName reads a plain or quoted name.
func parseName(s string) (name, rest string, err error) {
	if !strings.HasPrefix(s, `"`) {
		name, rest, ok := strings.Cut(s, " ")
		if !ok {
			return "", "", fmt.Errorf("field %s has no type", s)
		}
		return name, rest, nil
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		if s[i] != '"' {
			b.WriteByte(s[i])
			continue
		}
		if i+1 < len(s) && s[i+1] == '"' {
			b.WriteByte('"')
			i++
			continue
		}
		return b.String(), s[i+1:], nil
	}
	return "", "", fmt.Errorf("name %s has no end", s)
}
