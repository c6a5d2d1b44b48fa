package postgres

import (
	"context"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

// rebuildRows is the size of a record that is read back.
const rebuildRows = 4096

// RebuildScan implements sink.Sink: it reads the table itself. Rows that the
// database refused are not in it; nor are those that others have deleted, and of
// a key that was written again only the last is.
func (s *Sink) RebuildScan(ctx context.Context, _ *marker.Marker, columns []string, timeColumn string, minMicros int64, emit func(arrow.RecordBatch) error) error {
	var fields []arrow.Field
	var selects []string
	for _, name := range columns {
		at := slices.IndexFunc(s.cols, func(c column) bool { return c.name == name })
		if at < 0 {
			return failure.New(failure.Runtime, "%s: the rows have no column %q", s.who(), name)
		}
		c := s.cols[at]
		fields, selects = append(fields, s.opts.Arrow.Field(c.index)), append(selects, quote(name)+"::"+c.natural)
	}
	query := "SELECT " + strings.Join(selects, ", ") + " FROM " + s.target()
	var args []any
	if minMicros > marker.MinTime {
		query += " WHERE " + quote(timeColumn) + " >= $1"
		args = append(args, time.UnixMicro(minMicros).UTC())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
	conn, err := s.connection(ctx)
	if err == nil {
		err = scan(ctx, conn, query, args, arrow.NewSchema(fields, nil), emit)
	}
	if err != nil {
		s.drop()
		return s.explain(err, "read its rows back")
	}
	return nil
}

func scan(ctx context.Context, conn *pgx.Conn, query string, args []any, schema *arrow.Schema, emit func(arrow.RecordBatch) error) error {
	rows, err := conn.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	n := 0
	flush := func() error {
		if n == 0 {
			return nil
		}
		n = 0
		return emit(b.NewRecordBatch())
	}
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			return err
		}
		for i, v := range values {
			if err := appendTo(b.Field(i), v); err != nil {
				return fmt.Errorf("column %s: %w", schema.Field(i).Name, err)
			}
		}
		if n++; n == rebuildRows {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return flush()
}

// appendNumeric appends a number that is cast to the decimal's own scale.
func appendNumeric(b *array.Decimal128Builder, x pgtype.Numeric) error {
	zeros := x.Exp + b.Type().(*arrow.Decimal128Type).Scale
	if x.NaN || x.InfinityModifier != pgtype.Finite || zeros < 0 {
		return fmt.Errorf("no %s can be made of a numeric", b.Type())
	}
	scaled := new(big.Int).Mul(x.Int, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(zeros)), nil))
	b.Append(decimal128.FromBigInt(scaled))
	return nil
}

func appendTo(b array.Builder, v any) error {
	if v == nil {
		b.AppendNull()
		return nil
	}
	switch b := b.(type) {
	case *array.StringBuilder:
		if x, ok := v.(string); ok {
			b.Append(x)
			return nil
		}
	case *array.Int32Builder:
		if x, ok := v.(int32); ok {
			b.Append(x)
			return nil
		}
	case *array.Int64Builder:
		if x, ok := v.(int64); ok {
			b.Append(x)
			return nil
		}
	case *array.BooleanBuilder:
		if x, ok := v.(bool); ok {
			b.Append(x)
			return nil
		}
	case *array.Float32Builder:
		if x, ok := v.(float32); ok {
			b.Append(x)
			return nil
		}
	case *array.Date32Builder:
		if x, ok := v.(time.Time); ok {
			b.Append(arrow.Date32FromTime(x))
			return nil
		}
	case *array.Decimal128Builder:
		if x, ok := v.(pgtype.Numeric); ok {
			return appendNumeric(b, x)
		}
	case *array.Float64Builder:
		if x, ok := v.(float64); ok {
			b.Append(x)
			return nil
		}
	case *array.BinaryBuilder:
		if x, ok := v.([]byte); ok {
			b.Append(x)
			return nil
		}
	case *array.TimestampBuilder:
		if x, ok := v.(time.Time); ok {
			b.AppendTime(x)
			return nil
		}
	}
	return fmt.Errorf("no %s can be made of a %T", b.Type(), v)
}
