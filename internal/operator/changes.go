package operator

import (
	"bytes"
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/weirlake/weir/internal/event"
)

// FormatDebezium is the envelope of Debezium's connectors.
const FormatDebezium = "debezium"

// DeletedColumn is the boolean column after the declared ones that says of
// a change that its key is deleted.
const DeletedColumn = "_weir_deleted"

// Changes make the rows of a chain changes of rows by key. They then have
// DeletedColumn.
//
// With Format debezium a record's value is an envelope, {op, before, after,
// source, ts_ms}, with or without {schema, payload} around it. Paths lead into
// the row itself: after, or before where op is d; where a delete has no before,
// the record's key. Beside the row's own members stand __op, __ts_ms and
// __source, as Debezium's own flattening names them: $.__source.lsn. Records
// without a value (tombstones) are filtered: the delete came before them. A value
// that is no envelope, and op t (truncate) and m, are dead letters.
type Changes struct {
	Format string
	// DeleteWhen is a filter expression: where it is true the key is deleted.
	DeleteWhen string
	// Keys and OrderBy are columns; Keys name a row, OrderBy says which change of
	// it is the later one.
	Keys, OrderBy []string
	// RememberDeletes is how long a deleted key's order is kept, in batch time, so
	// that a late change does not bring it back; 0 does not. It needs OrderBy.
	RememberDeletes time.Duration
}

// deletedPath is where unwrap says that a row is deleted.
const deletedPath = "__deleted"

// expand adds to the columns what changes need: a hidden one of deletedPath.
func (c *Changes) expand(columns []Column) []Column {
	if c == nil || c.Format != FormatDebezium {
		return columns
	}
	return append(columns[:len(columns):len(columns)], Column{
		Name: DeletedColumn, Path: "$." + deletedPath, Type: "boolean", Required: true,
	})
}

// condition is the expression that says that a row is deleted.
func (c *Changes) condition() string {
	switch {
	case c.Format != FormatDebezium:
		return c.DeleteWhen
	case c.DeleteWhen == "":
		return DeletedColumn
	default:
		return DeletedColumn + " OR (" + c.DeleteWhen + ")"
	}
}

// compileChanges checks what the keys and the order are, and compiles the delete
// condition.
func (k *compiled) compileChanges(c *Changes) []error {
	if c == nil {
		return nil
	}
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.Format != "" && c.Format != FormatDebezium {
		fault("changes: format %q is not %s", c.Format, FormatDebezium)
	}
	if len(c.Keys) == 0 {
		fault("changes: at least one key column is needed")
	}
	for what, names := range map[string][]string{"keys": c.Keys, "orderBy": c.OrderBy} {
		for _, name := range names {
			i, ok := k.byName[name]
			switch {
			case !ok:
				fault("%s: there is no column %q", what, name)
			case k.columns[i].typ.inexact():
				fault("%s: column %s is %s, which has no exact order", what, name, k.columns[i].typ)
			case what == "keys" && !k.columns[i].Required:
				fault("keys: column %s must be required", name)
			}
		}
	}
	if c.RememberDeletes < 0 || (c.RememberDeletes > 0 && len(c.OrderBy) == 0) {
		fault("rememberDeletes: deletes are remembered by orderBy, and not for a negative time")
	}
	if text := c.condition(); text != "" {
		cond, _, err := parseFilter(text, k.columns)
		if err != nil {
			fault("deleteWhen: %w", err)
		}
		k.deletes = cond
	}
	return faults
}

// buildDeletes makes DeletedColumn of the kept rows.
func (w *worker) buildDeletes() arrow.Array {
	b := array.NewBooleanBuilder(w.c.mem)
	defer b.Release()
	b.Reserve(len(w.keep))
	for _, row := range w.keep {
		b.UnsafeAppend(w.deletes[row])
	}
	return b.NewArray()
}

// The paths that unwrap looks for: in the value itself, then in its payload.
var envelopePaths = []string{
	"$.payload",
	"$.op", "$.before", "$.after", "$.source", "$.ts_ms",
	"$.payload.op", "$.payload.before", "$.payload.after", "$.payload.source", "$.payload.ts_ms",
}

// unwrapper turns envelopes into rows.
type unwrapper struct {
	scan, keyScan *event.Scanner
	vals, keyVals []event.Value
}

func newUnwrapper(maxDepth int) (*unwrapper, error) {
	p, err := event.Compile(envelopePaths, event.Options{MaxDepth: maxDepth})
	if err != nil {
		return nil, err
	}
	kp, err := event.Compile([]string{"$.payload"}, event.Options{MaxDepth: maxDepth})
	if err != nil {
		return nil, err
	}
	return &unwrapper{scan: p.NewScanner(), keyScan: kp.NewScanner(), vals: make([]event.Value, len(envelopePaths)), keyVals: make([]event.Value, 1)}, nil
}

// all unwraps the values of a record. A value that is no envelope stays as it is:
// it has no deletedPath, so it becomes a dead letter where it is parsed.
func (u *unwrapper) all(in *input, b *array.BinaryBuilder) *array.Binary {
	b.Reserve(in.rows)
	var row []byte
	for i := range in.rows {
		if in.value.IsNull(i) {
			b.AppendNull()
			continue
		}
		doc := in.value.Value(i)
		var key []byte
		if in.key.IsValid(i) {
			key = in.key.Value(i)
		}
		out, ok := u.one(row[:0], doc, key)
		if row = out; ok {
			b.Append(out)
		} else {
			b.Append(doc)
		}
	}
	return b.NewBinaryArray()
}

// one appends the row of an envelope to dst.
func (u *unwrapper) one(dst, doc, key []byte) ([]byte, bool) {
	if len(doc) == 0 || u.scan.Scan(doc, u.vals) != nil {
		return dst, false
	}
	v := u.vals[1:6]
	if u.vals[0].Kind == event.Object {
		v = u.vals[6:11]
	}
	op, before, after, source, ts := v[0], v[1], v[2], v[3], v[4]
	if op.Kind != event.String {
		return dst, false
	}
	var image []byte
	deleted := false
	switch string(op.Raw(doc)) {
	case `"c"`, `"u"`, `"r"`:
		if after.Kind == event.Object {
			image = after.Raw(doc)
		}
	case `"d"`:
		deleted = true
		if image = u.keyOf(key); before.Kind == event.Object {
			image = before.Raw(doc)
		}
	}
	if image == nil {
		return dst, false
	}
	inside := bytes.TrimSpace(image[1 : len(image)-1])
	dst = append(dst, '{')
	if dst = append(dst, inside...); len(inside) > 0 {
		dst = append(dst, ',')
	}
	dst = fmt.Appendf(dst, `"%s":%t,"__op":%s`, deletedPath, deleted, op.Raw(doc))
	if ts.Kind != event.Missing {
		dst = append(append(dst, `,"__ts_ms":`...), ts.Raw(doc)...)
	}
	if source.Kind != event.Missing {
		dst = append(append(dst, `,"__source":`...), source.Raw(doc)...)
	}
	return append(dst, '}'), true
}

// keyOf is the key of a record as an object, nil where it is none.
func (u *unwrapper) keyOf(key []byte) []byte {
	key = bytes.TrimSpace(key)
	if len(key) == 0 || key[0] != '{' || u.keyScan.Scan(key, u.keyVals) != nil {
		return nil
	}
	if p := u.keyVals[0]; p.Kind == event.Object {
		return p.Raw(key)
	}
	return key
}
