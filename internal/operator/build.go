package operator

import (
	"encoding/base64"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/event"
)

// build makes the record of the kept rows. Every size is known, so the buffers
// are filled directly: Arrow's builders would ask for room value by value.
func (w *worker) build() {
	if len(w.keep) == 0 {
		return
	}
	cols := make([]arrow.Array, 0, len(w.c.k.columns)+1)
	for i := range w.c.k.columns {
		switch {
		case w.c.k.columns[i].hidden():
		case w.c.k.columns[i].typ.variable():
			cols = append(cols, w.buildVariable(i))
		default:
			cols = append(cols, w.buildFixed(i))
		}
	}
	if w.c.k.changes {
		cols = append(cols, w.buildDeletes())
	}
	w.built = array.NewRecordBatch(w.c.k.main, cols, int64(len(w.keep)))
	for _, c := range cols {
		c.Release()
	}
	w.doc = nil
}

func (w *worker) buffer(bytes int) *memory.Buffer {
	b := memory.NewResizableBuffer(w.c.mem)
	b.Resize(bytes)
	return b
}

// validity is the null bitmap of a column's kept rows, nil without nulls.
func (w *worker) validity(i int) (*memory.Buffer, int) {
	cells, nulls := w.cells[i], 0
	for _, row := range w.keep {
		if cells[row].kind == cellNull {
			nulls++
		}
	}
	if nulls == 0 {
		return nil, 0
	}
	b := w.buffer(int(bitutil.BytesForBits(int64(len(w.keep)))))
	bits := b.Bytes()
	clear(bits)
	for n, row := range w.keep {
		if cells[row].kind != cellNull {
			bitutil.SetBit(bits, n)
		}
	}
	return b, nulls
}

// array makes the array of buffers that it takes over.
func (w *worker) array(i, nulls int, buffers ...*memory.Buffer) arrow.Array {
	data := array.NewData(w.c.k.columns[i].arrow, len(w.keep), buffers, nil, nulls, 0)
	defer data.Release()
	for _, b := range buffers {
		if b != nil {
			b.Release()
		}
	}
	return array.MakeFromData(data)
}

func (w *worker) buildFixed(i int) arrow.Array {
	valid, nulls := w.validity(i)
	cells := w.cells[i]
	var b *memory.Buffer
	switch w.c.k.columns[i].typ {
	case typeBool:
		b = w.buffer(int(bitutil.BytesForBits(int64(len(w.keep)))))
		bits := b.Bytes()
		clear(bits)
		for n, row := range w.keep {
			if c := cells[row]; c.kind != cellNull && c.bits != 0 {
				bitutil.SetBit(bits, n)
			}
		}
	case typeInt, typeFloat, typeDate:
		b = w.buffer(arrow.Int32Traits.BytesRequired(len(w.keep)))
		out := arrow.Int32Traits.CastFromBytes(b.Bytes())
		for n, row := range w.keep {
			out[n] = int32(cells[row].bits) // null cells are zero
		}
	case typeDecimal:
		b = w.buffer(arrow.Decimal128Traits.BytesRequired(len(w.keep)))
		w.fillDecimals(i, arrow.Decimal128Traits.CastFromBytes(b.Bytes()))
	default:
		// long, double and times are their 64 bits.
		b = w.buffer(arrow.Uint64Traits.BytesRequired(len(w.keep)))
		out := arrow.Uint64Traits.CastFromBytes(b.Bytes())
		for n, row := range w.keep {
			out[n] = cells[row].bits
		}
	}
	return w.array(i, nulls, valid, b)
}

func (w *worker) fillDecimals(i int, out []decimal128.Num) {
	col, value := &w.c.k.columns[i], w.c.in.value
	for n, row := range w.keep {
		out[n] = decimal128.Num{}
		if c := w.cells[i][row]; c.kind != cellNull {
			out[n] = w.decimal(col, c, value.Value(w.lo+int(row)))
		}
	}
}

// buildVariable fills offsets and bytes. The bytes of one block's column are
// never more than those of the input's, which fit 31 bits.
func (w *worker) buildVariable(i int) arrow.Array {
	valid, nulls := w.validity(i)
	cells := w.cells[i]
	total := 0
	for _, row := range w.keep {
		total += cells[row].length() // decoding only shortens
	}
	offsets := w.buffer(arrow.Int32Traits.BytesRequired(len(w.keep) + 1))
	ends := arrow.Int32Traits.CastFromBytes(offsets.Bytes())
	data := w.buffer(total)
	out := data.Bytes()
	value, origin := w.c.in.value, w.c.k.columns[i].origin
	pos := 0
	ends[0] = 0
	for n, row := range w.keep {
		switch c := cells[row]; c.kind {
		case cellNull:
		case cellText:
			pos += copy(out[pos:], c.within(value.Value(w.lo+int(row))))
		case cellEscaped:
			pos = len(event.AppendUnescaped(out[:pos], c.within(value.Value(w.lo+int(row)))))
		case cellBase64:
			pos = len(decodeBase64(out[:pos], w.unescaped(c, value.Value(w.lo+int(row)))))
		case cellSource:
			b, _ := w.c.in.bytes(origin, w.lo+int(row))
			pos += copy(out[pos:], b)
		}
		ends[n+1] = int32(pos)
	}
	data.Resize(pos)
	return w.array(i, nulls, valid, offsets, data)
}

// unescaped is the text of a base64 cell: JSON may escape its slashes.
func (w *worker) unescaped(c cell, value []byte) []byte {
	w.scratch = event.AppendUnescaped(w.scratch[:0], c.within(value))
	return w.scratch
}

// decodeBase64 appends what text decodes to; decode has checked it.
func decodeBase64(dst, text []byte) []byte {
	out, err := base64.StdEncoding.AppendDecode(dst, text)
	if err != nil {
		return dst // not reached: the text was decoded once already
	}
	return out
}
