package postgres

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weirlake/weir/internal/sink/rowjson"
)

const (
	// copyBlock is how much is encoded at a time.
	copyBlock = 256 << 10
	// epoch2000 is Postgres' zero of time, in microseconds since 1970.
	epoch2000 = 946_684_800_000_000
	// epoch2000Days is the same day.
	epoch2000Days = 10_957
	// jsonbVersion precedes the text of a jsonb value.
	jsonbVersion = 1
)

// numericPlan makes the binary form of a numeric.
var numericPlan = pgtype.NumericCodec{}.PlanEncode(pgtype.NewMap(), pgtype.NumericOID, pgtype.BinaryFormatCode, pgtype.Numeric{})

var copySignature = []byte("PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00")

// copyReader is the stream of a binary COPY of the rows [from, to) that are not
// left out, encoded as it is read.
type copyReader struct {
	l        *loading
	from, to int64
	// number adds the row's place as the last column.
	number bool

	started, ended bool
	rec, at        int   // where the next row is
	row            int64 // its place in the batch
	buf            []byte
	off            int
	err            error
}

// Read implements io.Reader.
func (r *copyReader) Read(p []byte) (int, error) {
	if r.off == len(r.buf) {
		if r.ended {
			return 0, io.EOF
		}
		r.buf, r.off = r.buf[:0], 0
		if err := r.fill(); err != nil {
			r.err = err
			return 0, err
		}
	}
	n := copy(p, r.buf[r.off:])
	r.off += n
	return n, nil
}

func (r *copyReader) fill() error {
	if !r.started {
		r.started = true
		r.buf = append(r.buf, copySignature...)
		r.seek()
	}
	records := r.l.rows.Records
	for len(r.buf) < copyBlock && r.row < r.to {
		if r.at == int(records[r.rec].NumRows()) {
			r.rec, r.at = r.rec+1, 0
			continue
		}
		if !r.l.out[r.row] {
			var err error
			if r.buf, err = r.appendRow(r.buf, records[r.rec], r.at); err != nil {
				return err
			}
		}
		r.at++
		r.row++
	}
	if r.row == r.to {
		r.ended = true
		r.buf = append(r.buf, 0xff, 0xff)
	}
	return nil
}

// seek finds the first row.
func (r *copyReader) seek() {
	r.row = r.from
	left := r.from
	for left >= r.l.rows.Records[r.rec].NumRows() {
		left -= r.l.rows.Records[r.rec].NumRows()
		r.rec++
	}
	r.at = int(left)
}

func (r *copyReader) appendRow(b []byte, rec arrow.RecordBatch, i int) ([]byte, error) {
	s := r.l.s
	cols, deletes := s.cols, r.l.s.deletes(rec, i)
	fields := len(cols)
	if r.number {
		fields++
	}
	if s.deleteAt >= 0 {
		fields++
	}
	b = binary.BigEndian.AppendUint16(b, uint16(fields)) //nolint:gosec // at most 1600 columns
	for _, c := range cols {
		a := rec.Column(c.index)
		if a.IsNull(i) || (deletes && !s.identifies(c)) {
			b = append(b, 0xff, 0xff, 0xff, 0xff)
			continue
		}
		at := len(b)
		b = append(b, 0, 0, 0, 0)
		var err error
		if b, err = appendValue(b, c, a, i); err != nil {
			return nil, fmt.Errorf("column %s: %w", c.name, err)
		}
		n := len(b) - at - 4
		if n > math.MaxInt32 {
			return nil, fmt.Errorf("column %s: a value of %d bytes", c.name, n)
		}
		binary.BigEndian.PutUint32(b[at:], uint32(n)) //nolint:gosec // just compared
	}
	if r.number {
		b = binary.BigEndian.AppendUint32(b, 8)
		b = binary.BigEndian.AppendUint64(b, uint64(r.row)) //nolint:gosec // not negative
	}
	switch {
	case s.deleteAt < 0:
	case deletes:
		b = append(binary.BigEndian.AppendUint32(b, 1), 1)
	default:
		b = append(binary.BigEndian.AppendUint32(b, 1), 0)
	}
	return b, nil
}

// appendValue appends a value in the binary form of the column's natural type.
func appendValue(b []byte, c column, a arrow.Array, i int) ([]byte, error) {
	switch v := a.(type) {
	case *array.String:
		if c.natural == "jsonb" {
			b = append(b, jsonbVersion)
		}
		return append(b, v.Value(i)...), nil
	case *array.Binary:
		return append(b, v.Value(i)...), nil
	case *array.Int32:
		return binary.BigEndian.AppendUint32(b, uint32(v.Value(i))), nil //nolint:gosec // the bits
	case *array.Int64:
		return binary.BigEndian.AppendUint64(b, uint64(v.Value(i))), nil //nolint:gosec // the bits
	case *array.Float32:
		return binary.BigEndian.AppendUint32(b, math.Float32bits(v.Value(i))), nil
	case *array.Date32:
		return binary.BigEndian.AppendUint32(b, uint32(int32(v.Value(i))-epoch2000Days)), nil //nolint:gosec // the bits
	case *array.Decimal128:
		scale := v.DataType().(*arrow.Decimal128Type).Scale
		return numericPlan.Encode(pgtype.Numeric{Int: v.Value(i).BigInt(), Exp: -scale, Valid: true}, b)
	case *array.Float64:
		return binary.BigEndian.AppendUint64(b, math.Float64bits(v.Value(i))), nil
	case *array.Boolean:
		if v.Value(i) {
			return append(b, 1), nil
		}
		return append(b, 0), nil
	case *array.Timestamp:
		micros := v.Value(i).ToTime(v.DataType().(*arrow.TimestampType).Unit).UnixMicro()
		return binary.BigEndian.AppendUint64(b, uint64(micros-epoch2000)), nil //nolint:gosec // the bits
	case *array.List, *array.Struct:
		return rowjson.AppendValue(append(b, jsonbVersion), a, i), nil
	}
	return nil, fmt.Errorf("no binary form of %s", a.DataType())
}
