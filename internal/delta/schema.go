package delta

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
)

// schemaJSON is a table's schema as it stands in metaData.
type schemaJSON struct {
	Type   string      `json:"type"`
	Fields []fieldJSON `json:"fields"`
}

type fieldJSON struct {
	Name     string          `json:"name"`
	Type     json.RawMessage `json:"type"`
	Nullable bool            `json:"nullable"`
	Metadata json.RawMessage `json:"metadata"`
}

type arrayJSON struct {
	Type         string          `json:"type"`
	ElementType  json.RawMessage `json:"elementType"`
	ContainsNull bool            `json:"containsNull"`
}

type mapJSON struct {
	Type              string          `json:"type"`
	KeyType           json.RawMessage `json:"keyType"`
	ValueType         json.RawMessage `json:"valueType"`
	ValueContainsNull bool            `json:"valueContainsNull"`
}

var primitives = map[string]arrow.DataType{
	"string": arrow.BinaryTypes.String, "binary": arrow.BinaryTypes.Binary, "boolean": arrow.FixedWidthTypes.Boolean,
	"byte": arrow.PrimitiveTypes.Int8, "short": arrow.PrimitiveTypes.Int16, "integer": arrow.PrimitiveTypes.Int32,
	"long": arrow.PrimitiveTypes.Int64, "float": arrow.PrimitiveTypes.Float32, "double": arrow.PrimitiveTypes.Float64,
	"date": arrow.FixedWidthTypes.Date32, "timestamp": batch.Timestamp,
}

// decimalPrecisionMax is Delta's own.
const decimalPrecisionMax = 38

// SchemaString gives the schema of a new table for rows of an arrow schema.
func SchemaString(sc *arrow.Schema) (string, error) {
	seen := map[string]bool{}
	for _, f := range sc.Fields() {
		low := strings.ToLower(f.Name)
		if seen[low] {
			return "", failure.New(failure.SchemaConflict, "two columns are called %q; Delta does not tell case apart", f.Name)
		}
		seen[low] = true
	}
	s, err := structOf(sc.Fields())
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(s)
	return string(b), err
}

func structOf(fields []arrow.Field) (schemaJSON, error) {
	out := schemaJSON{Type: "struct", Fields: []fieldJSON{}}
	for _, f := range fields {
		j, err := fieldOf(f)
		if err != nil {
			return out, err
		}
		out.Fields = append(out.Fields, j)
	}
	return out, nil
}

func fieldOf(f arrow.Field) (fieldJSON, error) {
	if f.Name == "" || strings.ContainsAny(f.Name, " ,;{}()\n\t=") {
		return fieldJSON{}, failure.New(failure.SchemaConflict, "column name %q: Delta allows none of \" ,;{}()\\n\\t=\" in names", f.Name)
	}
	t, err := typeOf(f.Type)
	if err != nil {
		return fieldJSON{}, failure.Wrap(failure.SchemaConflict, err, "column %q", f.Name)
	}
	return fieldJSON{Name: f.Name, Type: t, Nullable: f.Nullable, Metadata: json.RawMessage("{}")}, nil
}

func typeOf(t arrow.DataType) (json.RawMessage, error) {
	switch t := t.(type) {
	case *arrow.StructType:
		s, err := structOf(t.Fields())
		if err != nil {
			return nil, err
		}
		return json.Marshal(s)
	case *arrow.ListType:
		e, err := typeOf(t.Elem())
		if err != nil {
			return nil, err
		}
		return json.Marshal(arrayJSON{Type: "array", ElementType: e, ContainsNull: t.ElemField().Nullable})
	case *arrow.MapType:
		k, err := typeOf(t.KeyType())
		if err != nil {
			return nil, err
		}
		v, err := typeOf(t.ItemType())
		if err != nil {
			return nil, err
		}
		return json.Marshal(mapJSON{Type: "map", KeyType: k, ValueType: v, ValueContainsNull: t.ItemField().Nullable})
	case *arrow.Decimal128Type:
		return json.Marshal(fmt.Sprintf("decimal(%d,%d)", t.Precision, t.Scale))
	}
	for name, p := range primitives {
		if arrow.TypeEqual(t, p) {
			return json.Marshal(name)
		}
	}
	return nil, fmt.Errorf("the type %s has no counterpart in Delta", t)
}

// ArrowSchema gives the shape of a table's rows.
func ArrowSchema(schemaString string) (*arrow.Schema, error) {
	var s schemaJSON
	if err := json.Unmarshal([]byte(schemaString), &s); err != nil {
		return nil, fmt.Errorf("schema of the table: %w", err)
	}
	fields, err := arrowFields(s)
	if err != nil {
		return nil, err
	}
	return arrow.NewSchema(fields, nil), nil
}

func arrowFields(s schemaJSON) ([]arrow.Field, error) {
	out := make([]arrow.Field, 0, len(s.Fields))
	for _, f := range s.Fields {
		t, err := arrowType(f.Type)
		if err != nil {
			return nil, failure.Wrap(failure.SchemaConflict, err, "column %q", f.Name)
		}
		out = append(out, arrow.Field{Name: f.Name, Type: t, Nullable: f.Nullable})
	}
	return out, nil
}

func arrowType(raw json.RawMessage) (arrow.DataType, error) {
	var name string
	if json.Unmarshal(raw, &name) == nil {
		return arrowPrimitive(name)
	}
	var head struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, err
	}
	switch head.Type {
	case "struct":
		var s schemaJSON
		if err := json.Unmarshal(raw, &s); err != nil {
			return nil, err
		}
		fields, err := arrowFields(s)
		if err != nil {
			return nil, err
		}
		return arrow.StructOf(fields...), nil
	case "array":
		var a arrayJSON
		if err := json.Unmarshal(raw, &a); err != nil {
			return nil, err
		}
		e, err := arrowType(a.ElementType)
		if err != nil {
			return nil, err
		}
		return arrow.ListOfField(arrow.Field{Name: "element", Type: e, Nullable: a.ContainsNull}), nil
	case "map":
		var m mapJSON
		if err := json.Unmarshal(raw, &m); err != nil {
			return nil, err
		}
		k, err := arrowType(m.KeyType)
		if err != nil {
			return nil, err
		}
		v, err := arrowType(m.ValueType)
		if err != nil {
			return nil, err
		}
		return arrow.MapOfFields(arrow.Field{Name: "key", Type: k}, arrow.Field{Name: "value", Type: v, Nullable: m.ValueContainsNull}), nil
	}
	return nil, fmt.Errorf("the type %s is not known", raw)
}

func arrowPrimitive(name string) (arrow.DataType, error) {
	if t, ok := primitives[name]; ok {
		return t, nil
	}
	if args, ok := strings.CutPrefix(name, "decimal("); ok {
		p, s, _ := strings.Cut(strings.TrimSuffix(args, ")"), ",")
		precision, err1 := strconv.Atoi(strings.TrimSpace(p))
		scale, err2 := strconv.Atoi(strings.TrimSpace(s))
		if err1 == nil && err2 == nil && precision >= 1 && precision <= decimalPrecisionMax {
			return &arrow.Decimal128Type{Precision: int32(precision), Scale: int32(scale)}, nil
		}
	}
	return nil, fmt.Errorf("the type %s is not known", name)
}

// addFields gives the schema string with nullable columns added at its end; a
// column that is there already must have the same type. changed is false where
// all are there.
func addFields(schemaString string, fields []arrow.Field) (out string, changed bool, err error) {
	have, err := ArrowSchema(schemaString)
	if err != nil {
		return "", false, err
	}
	// Raw fields are kept as they are, so that metadata (comments) survives.
	var s schemaJSON
	if err := json.Unmarshal([]byte(schemaString), &s); err != nil {
		return "", false, err
	}
	for _, f := range fields {
		at := slices.IndexFunc(have.Fields(), func(h arrow.Field) bool { return strings.EqualFold(h.Name, f.Name) })
		if at >= 0 {
			if h := have.Field(at); h.Name != f.Name || !sameShape(h.Type, f.Type) {
				return "", false, failure.New(failure.SchemaConflict, "column %q is %s in the table, as %q it would be %s", h.Name, h.Type, f.Name, f.Type)
			}
			continue
		}
		if !f.Nullable {
			return "", false, failure.New(failure.SchemaConflict, "column %q cannot be added to the table: it may not be null, and existing rows have no value for it", f.Name)
		}
		j, err := fieldOf(f)
		if err != nil {
			return "", false, err
		}
		s.Fields = append(s.Fields, j)
		changed = true
	}
	b, err := json.Marshal(s)
	return string(b), changed, err
}

// sameShape compares types without nested nullability and names of list
// elements.
func sameShape(a, b arrow.DataType) bool {
	x, err1 := typeOf(a)
	y, err2 := typeOf(b)
	if err1 != nil || err2 != nil {
		return false
	}
	strip := strings.NewReplacer(`"nullable":true`, "", `"nullable":false`, "", `"containsNull":true`, "", `"containsNull":false`, "",
		`"valueContainsNull":true`, "", `"valueContainsNull":false`, "")
	return strip.Replace(string(x)) == strip.Replace(string(y))
}

// checkRows makes sure that rows of src can be stored in a table of schema want
// as they are. Columns that the table lacks are returned.
func checkRows(want, src *arrow.Schema) (missing []arrow.Field, err error) {
	for _, f := range src.Fields() {
		at := want.FieldIndices(f.Name)
		if len(at) == 0 {
			missing = append(missing, f)
			continue
		}
		if w := want.Field(at[0]); !sameShape(w.Type, f.Type) {
			return nil, failure.New(failure.SchemaConflict, "column %q is %s in the rows and %s in the table", f.Name, f.Type, w.Type)
		}
	}
	for _, w := range want.Fields() {
		if !w.Nullable && len(src.FieldIndices(w.Name)) == 0 {
			return nil, failure.New(failure.SchemaConflict, "the rows lack column %q, which the table requires", w.Name)
		}
	}
	return missing, nil
}

// TypeName is a type in Delta's words; an arrow type that Delta has not, in
// arrow's.
func TypeName(t arrow.DataType) string {
	raw, err := typeOf(t)
	if err != nil {
		return t.String()
	}
	var name string
	if json.Unmarshal(raw, &name) == nil {
		return name
	}
	return string(raw)
}

// SameShape compares types as rows are stored: without nested nullability and
// names of list elements.
func SameShape(a, b arrow.DataType) bool { return sameShape(a, b) }
