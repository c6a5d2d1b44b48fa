package operator

import (
	"fmt"
	"math"
	"unicode/utf8"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"github.com/weirlake/weir/internal/event"
)

// Reasons of dead letters that are the chain's own; the others are package
// event's.
const (
	ReasonNullValue       event.Reason = "null_value"
	ReasonEmptyValue      event.Reason = "empty_value"
	ReasonMissingRequired event.Reason = "missing_required"
	ReasonFutureEvent     event.Reason = "future_event"
)

// outcome is what becomes of a row.
type outcome uint8

const (
	emitted outcome = iota // or a duplicate, which only settle can tell
	filtered
	late
	dead
)

// cellKind says how a decoded value is held.
type cellKind uint8

const (
	cellNull cellKind = iota
	// cellFixed holds the value itself: an integer, a decimal's digits, the bits of
	// a float or double, 0 or 1, microseconds, days.
	cellFixed
	// cellText, cellEscaped and cellBase64 are a place in the row's value
	// (start<<32 | length): plain, to be unescaped, to be decoded.
	cellText
	cellEscaped
	cellBase64
	// cellWide is the place of a decimal that has no room in 64 bits.
	cellWide
	// cellSource is a property of the record; bits hold its length.
	cellSource
)

// cell is one decoded value without a pointer.
type cell struct {
	bits uint64
	kind cellKind
}

func span(start, end uint32) uint64 { return uint64(start)<<32 | uint64(end-start) }
func (c cell) length() int          { return int(uint32(c.bits)) }
func (c cell) within(value []byte) []byte {
	s := c.bits >> 32
	return value[s : s+c.bits&math.MaxUint32]
}

// fault is a row that becomes a dead letter.
type fault struct {
	row    int // of the input record
	reason event.Reason
	detail string
	// eventID is the row's id where it is known.
	eventID string
	hasID   bool
}

// worker parses a run of rows of a block and later builds a record of those
// that are kept. Its memory is reused.
type worker struct {
	c    *chain
	scan *event.Scanner
	vals []event.Value

	lo, rows int
	// at is the current row, relative to lo; doc its value.
	at  int
	doc []byte

	cells    [][]cell // by column, then row
	outcomes []outcome
	keys     []rowKey
	// ids holds the ids of keys that are no UUIDs.
	ids    []byte
	faults []fault
	keep   []int32
	// deletes says of each row whether its key is deleted; only with changes.
	deletes []bool

	maxEvent  int64
	seenEvent bool
	parts     partitionTimes

	scratch, kept []byte
	built         arrow.RecordBatch
}

func newWorker(c *chain) *worker {
	return &worker{
		c: c, scan: c.k.prog.NewScanner(), vals: make([]event.Value, c.k.paths),
		cells: make([][]cell, len(c.k.columns)),
	}
}

// parse decides every row but duplicates.
func (w *worker) parse() {
	w.faults, w.ids = w.faults[:0], w.ids[:0]
	w.outcomes = resize(w.outcomes, w.rows)
	for i := range w.cells {
		w.cells[i] = resize(w.cells[i], w.rows)
	}
	if len(w.c.k.keys) > 0 {
		w.keys = resize(w.keys, w.rows)
	}
	if w.c.k.changes {
		w.deletes = resize(w.deletes, w.rows)
	}
	w.seenEvent = false
	w.parts.reset()
	for w.at = 0; w.at < w.rows; w.at++ {
		w.outcomes[w.at] = w.parseRow()
	}
	w.doc = nil
}

func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

func (w *worker) parseRow() outcome {
	k := w.c.k
	if k.paths > 0 {
		if o := w.scanRow(); o != emitted {
			return o
		}
	}
	for _, i := range k.first {
		if !w.decode(i) {
			return dead
		}
	}
	if k.filter != nil && k.filter(w) != yes {
		return filtered
	}
	for _, i := range k.rest {
		if !w.decode(i) {
			return dead
		}
	}
	if k.timeCol >= 0 {
		at := int64(w.cells[k.timeCol][w.at].bits)
		if ahead := at - w.c.env.BatchTimeMicros; ahead > k.skew {
			return w.dead(ReasonFutureEvent, fmt.Sprintf("column %s is %s ahead of the batch time", k.columns[k.timeCol].Name, micros(ahead)))
		}
		if !w.seenEvent || at > w.maxEvent {
			w.maxEvent, w.seenEvent = at, true
		}
		if k.perPartition {
			w.parts.see(w.c.in.topic.Value(w.lo+w.at), w.c.in.partition.Value(w.lo+w.at), at)
		}
		if at < w.c.env.Watermark.Micros {
			return late
		}
	}
	if len(k.keys) > 0 {
		w.makeKey()
	}
	if k.changes {
		w.deletes[w.at] = k.deletes != nil && k.deletes(w) == yes
	}
	return emitted
}

// micros prints a duration that may be beyond time.Duration's range.
func micros(n int64) string { return fmt.Sprintf("%d.%06ds", n/1_000_000, n%1_000_000) }

// scanRow scans the row's value.
func (w *worker) scanRow() outcome {
	in, row := &w.c.in, w.lo+w.at
	w.doc = nil
	if in.value.IsNull(row) {
		if w.c.k.changes {
			return filtered // a tombstone: the delete came before it
		}
		return w.dead(ReasonNullValue, "the record has no value")
	}
	if e := w.c.undecoded[row]; e != nil {
		return w.dead(e.Reason, e.Detail)
	}
	doc := in.value.Value(row)
	if len(doc) == 0 {
		return w.dead(ReasonEmptyValue, "the record's value is empty")
	}
	if err := w.scan.Scan(doc, w.vals); err != nil {
		e := err.(*event.Error) //nolint:errorlint // Scan gives this type itself
		return w.dead(e.Reason, fmt.Sprintf("at byte %d: %s", e.Offset, e.Detail))
	}
	w.doc = doc
	return emitted
}

// dead notes a dead letter for the current row.
func (w *worker) dead(r event.Reason, detail string) outcome {
	f := fault{row: w.lo + w.at, reason: r, detail: detail}
	if id := w.c.k.eventID; id >= 0 && w.doc != nil {
		if v := w.vals[w.c.k.columns[id].path]; v.Kind == event.String {
			f.eventID, f.hasID = string(v.AppendString(nil, w.doc)), true
		}
	}
	w.faults = append(w.faults, f)
	return dead
}

// decode fills the current row's cell of column i; false if that makes the row
// a dead letter.
func (w *worker) decode(i int) bool {
	col := &w.c.k.columns[i]
	var c cell
	var r event.Reason
	if col.origin == fromJSON {
		c, r = w.decodeJSON(col, w.vals[col.path])
	} else {
		c, r = w.decodeSource(col)
	}
	if r == event.OK && c.kind == cellNull && col.Required {
		r = ReasonMissingRequired
	}
	if r != event.OK {
		w.dead(r, w.explain(col, r))
		return false
	}
	w.cells[i][w.at] = c
	return true
}

func (w *worker) decodeJSON(col *column, v event.Value) (cell, event.Reason) {
	if v.Kind <= event.Null {
		return cell{}, event.OK
	}
	switch col.typ {
	case typeString:
		if v.Kind != event.String {
			return cell{}, event.TypeMismatch
		}
		c := cell{span(v.Start+1, v.End-1), cellText}
		if v.Escaped {
			c.kind = cellEscaped
		}
		return c, event.OK
	case typeLong:
		n, r := v.Int64(w.doc)
		return cell{uint64(n), cellFixed}, r
	case typeInt:
		n, r := v.Int32(w.doc)
		return cell{uint64(int64(n)), cellFixed}, r
	case typeFloat:
		f, r := v.Float32(w.doc)
		return cell{uint64(math.Float32bits(f)), cellFixed}, r
	case typeDecimal:
		return w.decodeDecimal(col, v)
	case typeDate:
		n, grown, r := v.Days(w.doc, w.scratch)
		w.scratch = grown
		return cell{uint64(int64(n)), cellFixed}, r //nolint:gosec // the bits
	case typeLocal:
		n, grown, r := v.LocalMicros(w.doc, w.scratch)
		w.scratch = grown
		return cell{uint64(n), cellFixed}, r //nolint:gosec // the bits
	case typeDouble:
		f, r := v.Float64(w.doc)
		return cell{math.Float64bits(f), cellFixed}, r
	case typeBool:
		b, r := v.Bool()
		c := cell{0, cellFixed}
		if b {
			c.bits = 1
		}
		return c, r
	case typeTime:
		n, grown, r := v.Micros(w.doc, col.format, w.scratch)
		w.scratch = grown
		return cell{uint64(n), cellFixed}, r
	case typeBinary:
		grown, r := v.AppendBinary(w.scratch[:0], w.doc)
		w.scratch = grown
		if r != event.OK {
			return cell{}, r
		}
		return cell{span(v.Start+1, v.End-1), cellBase64}, event.OK
	default:
		return cell{span(v.Start, v.End), cellText}, event.OK
	}
}

// decodeDecimal keeps the digits, or the place where they stand.
func (w *worker) decodeDecimal(col *column, v event.Value) (cell, event.Reason) {
	d, grown, r := v.Decimal(w.doc, col.decimal, w.scratch)
	w.scratch = grown
	if d.HighBits() == int64(d.LowBits())>>63 { //nolint:gosec // the bits
		return cell{d.LowBits(), cellFixed}, r
	}
	return cell{span(v.Start, v.End), cellWide}, r
}

// decimal is the value of a cell that is not null; doc is the row's.
func (w *worker) decimal(col *column, c cell, doc []byte) decimal128.Num {
	if c.kind == cellFixed {
		return decimal128.FromI64(int64(c.bits)) //nolint:gosec // the bits
	}
	at := uint32(c.bits >> 32) //nolint:gosec // span
	v := event.Value{Kind: event.Number, Start: at, End: at + uint32(c.length())}
	if doc[at] == '"' {
		v.Kind, v.Escaped = event.String, true
	}
	d, grown, _ := v.Decimal(doc, col.decimal, w.scratch) // decode has accepted it
	w.scratch = grown
	return d
}

// decimalOf is the current row's value of a decimal column.
func (w *worker) decimalOf(i int) (decimal128.Num, bool) {
	c := w.cells[i][w.at]
	if c.kind == cellNull {
		return decimal128.Num{}, false
	}
	return w.decimal(&w.c.k.columns[i], c, w.doc), true
}

func (w *worker) decodeSource(col *column) (cell, event.Reason) {
	if !col.typ.variable() {
		return cell{w.c.in.fixed(col.origin, w.lo+w.at, w.c.env.BatchTimeMicros), cellFixed}, event.OK
	}
	b, ok := w.c.in.bytes(col.origin, w.lo+w.at)
	if !ok {
		return cell{}, event.OK
	}
	if col.typ == typeString && !utf8.Valid(b) {
		return cell{}, event.InvalidUTF8
	}
	return cell{uint64(len(b)), cellSource}, event.OK
}

// explain says what is wrong with a column of the current row.
func (w *worker) explain(col *column, r event.Reason) string {
	from := col.Path
	if from == "" {
		from = col.Source
	}
	what := "the value is missing or null"
	switch {
	case r == event.InvalidUTF8:
		what = "the bytes are not valid UTF-8"
	case r != ReasonMissingRequired && col.origin == fromJSON:
		v := w.vals[col.path]
		what = fmt.Sprintf("%s %s where a %s was expected", v.Kind, shorten(v.Raw(w.doc)), col.Type)
	}
	return fmt.Sprintf("column %s (%s): %s", col.Name, from, what)
}

// shownValue is how much of a value a message shows.
const shownValue = 64

// shorten shows the beginning of a value, as valid UTF-8.
func shorten(b []byte) string {
	if len(b) <= shownValue {
		return string(b)
	}
	n := shownValue
	for n > 0 && !utf8.RuneStart(b[n]) {
		n--
	}
	return string(b[:n]) + "…"
}

// textOf is the current row's text of a string column; it may lie in the
// worker's scratch and is valid until the next call.
func (w *worker) textOf(i int) ([]byte, bool) {
	c := w.cells[i][w.at]
	switch c.kind {
	case cellNull:
		return nil, false
	case cellText:
		return c.within(w.doc), true
	case cellEscaped:
		w.scratch = event.AppendUnescaped(w.scratch[:0], c.within(w.doc))
		return w.scratch, true
	case cellBase64:
		w.kept = decodeBase64(w.kept[:0], w.unescaped(c, w.doc))
		return w.kept, true
	}
	return w.c.in.bytes(w.c.k.columns[i].origin, w.lo+w.at)
}

// doubleOf is the current row's value of a float or double column.
func (w *worker) doubleOf(i int) (float64, bool) {
	c := w.cells[i][w.at]
	if w.c.k.columns[i].typ == typeFloat {
		return float64(math.Float32frombits(uint32(c.bits))), c.kind != cellNull //nolint:gosec // the bits
	}
	return math.Float64frombits(c.bits), c.kind != cellNull
}

// stringBytes is a string's bytes without a copy; they are not to be changed.
func stringBytes(a *array.String, row int) []byte {
	s := a.Value(row)
	return unsafe.Slice(unsafe.StringData(s), len(s))
}

// drop releases a record that is not wanted any more.
func (w *worker) drop() {
	if w.built != nil {
		w.built.Release()
		w.built = nil
	}
}
