package pipeline

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weirlake/weir/internal/event"
)

// kindColumnType is the kind of a key that holds a column's type.
const kindColumnType = "columntype"

// decimalForm is how the types of decimals are shown.
const decimalForm = "decimal(P,S)"

// columnTypes are the types that a column can be declared with, decimals aside.
var columnTypes = []string{TypeString, TypeInt, TypeLong, TypeFloat, TypeDouble, TypeBoolean, TypeDate, TypeTimestamp, TypeTimestamptz, TypeBinary, TypeJSON}

// IsDecimal reports whether a column's type is decimal(P,S).
func IsDecimal(t string) bool { return strings.HasPrefix(t, "decimal(") }

// inexact reports whether equal values of a type need not be the same value.
func inexact(t string) bool { return t == TypeFloat || t == TypeDouble || t == TypeJSON }

// typeHints say of types that users of Iceberg or Spark know what to take here.
var typeHints = map[string]string{
	"decimal":        "needs its digits: " + decimalForm + ", as in decimal(18,2)",
	"bigint":         "is called long here",
	"integer":        "is called int here",
	"real":           "is called float here",
	"timestamp_ntz":  "is called timestamp here",
	"timestamp_ltz":  "is called timestamptz here",
	"uuid":           "cannot be declared; string keeps the id as it was sent",
	"time":           "cannot be declared; string keeps the time as it was sent",
	"fixed":          "cannot be declared; binary takes bytes of any length",
	"timestamp_ns":   "cannot be declared; timestamp has microseconds",
	"timestamptz_ns": "cannot be declared; timestamptz has microseconds",
}

// columnType checks the type of a column and gives it in its one spelling.
func (l *loader) columnType(s scalar, f *field, owner string) (string, error) {
	if slices.Contains(columnTypes, s.text) {
		return s.text, nil
	}
	if name, _, sized := strings.Cut(s.text, "("); sized && strings.TrimSpace(name) == "decimal" {
		d, err := event.ParseDecimalType(s.text)
		if err != nil {
			return s.text, fmt.Errorf("%s: %s %w", f.key, s.shown(), err)
		}
		return d.String(), nil
	}
	if why, ok := typeHints[strings.ToLower(s.text)]; ok {
		return s.text, fmt.Errorf("%s: %s %s", f.key, s.shown(), why)
	}
	return s.text, errors.New(notOneOf(owner, f.key, s, append(slices.Clone(columnTypes), decimalForm)))
}

// checkSinkTypes refuses what a sink has no type for.
func (l *loader) checkSinkTypes(q *Query, key string) {
	var why string
	switch {
	case q.To.Delta != nil:
		why = "a Delta table of the protocol that every reader knows (1, 2) has no time without a zone"
	case q.To.Cassandra != nil:
		why = "Cassandra has no time without a zone"
	default:
		return
	}
	for _, c := range q.Columns() {
		if c.Type != TypeTimestamp {
			continue
		}
		at := key + ".to"
		if q.Parse != nil {
			if i := slices.IndexFunc(q.Parse.Columns, func(p Column) bool { return p.Name == c.Name }); i >= 0 {
				at = fmt.Sprintf("%s.parse.columns[%d].type", key, i)
			}
		}
		l.faultKey(at, "column %q is a timestamp: %s; declare it timestamptz where the times have an offset, or string", c.Name, why)
	}
}
