// Package opstable appends rows to the small tables that tell what the engine
// did. Rows and what is remembered beside them (table properties) go into one
// commit that asserts the head which the properties were read from: after an
// answer that was lost, the properties say whether the rows are there.
package opstable

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/datafile"
)

const (
	// triesMax bounds the tries of one append.
	triesMax = 20
	pauseMin = 5 * time.Millisecond
	pauseMax = 500 * time.Millisecond
	// keepSnapshots is the table's history: it is read by time, not by snapshot.
	keepSnapshots = 50
)

// Kind is a column's type.
type Kind int

// The kinds of columns.
const (
	Text    Kind = iota // string, "" is null
	Long                // int64
	Instant             // time.Time, zero is null
)

// Column is one column and where its value comes from.
type Column[R any] struct {
	Name  string
	Kind  Kind
	Value func(R) any
}

// Table is a table of rows R.
type Table[R any] struct {
	Catalog *lake.Catalog
	Ident   table.Identifier
	Clock   clock.Clock
	Columns []Column[R]
}

// Change is what one append does, decided on the properties as they are.
type Change[R any] struct {
	Rows       []R
	Properties map[string]string
}

// Schema is the table's schema.
func (t *Table[R]) Schema() *iceberg.Schema {
	fields := make([]iceberg.NestedField, len(t.Columns))
	for i, c := range t.Columns {
		var typ iceberg.Type = iceberg.PrimitiveTypes.String
		switch c.Kind {
		case Long:
			typ = iceberg.PrimitiveTypes.Int64
		case Instant:
			typ = iceberg.PrimitiveTypes.TimestampTz
		case Text:
		}
		fields[i] = iceberg.NestedField{ID: i + 1, Name: c.Name, Type: typ}
	}
	return iceberg.NewSchema(0, fields...)
}

// Properties are the table's properties, empty where there is no table.
func (t *Table[R]) Properties(ctx context.Context) (map[string]string, error) {
	tbl, err := t.Catalog.LoadTablePatiently(ctx, t.Ident, t.Clock)
	if errors.Is(err, lake.ErrNoTable) {
		return map[string]string{}, nil
	}
	if err != nil {
		return nil, failure.Wrap(failure.Unreachable, err, "read table %s", lake.Name(t.Ident))
	}
	return tbl.Properties(), nil
}

// Append commits what decide says, trying again from a fresh table after any
// error. decide is given the properties of the head that the commit asserts, and
// returns nil where nothing is left to do.
func (t *Table[R]) Append(ctx context.Context, decide func(props map[string]string) (*Change[R], error)) error {
	var last error
	for n := range triesMax {
		if n > 1 {
			if err := t.Clock.Sleep(ctx, min(pauseMin<<min(n, 10), pauseMax)); err != nil {
				return errors.Join(err, last)
			}
		}
		tbl, err := t.Catalog.EnsureTable(ctx, t.Ident, t.Schema(), *iceberg.UnpartitionedSpec, nil)
		if failure.Is(err, failure.SchemaConflict) {
			return err
		}
		if err != nil {
			last = err
			continue
		}
		ch, err := decide(tbl.Properties())
		if err != nil || ch == nil {
			return err
		}
		out := lake.Change{Properties: ch.Properties}
		if len(ch.Rows) > 0 {
			if out.Files, err = t.stage(ctx, tbl, ch.Rows); err != nil {
				last = err
				continue
			}
		}
		after, err := t.Catalog.Commit(ctx, tbl, out)
		if err == nil {
			if r := (lake.Retention{Keep: keepSnapshots}); r.Due(after) {
				_, _ = t.Catalog.Expire(ctx, after, r) // the next append tries again
			}
			return nil
		}
		last = err
	}
	return fmt.Errorf("append to %s: %w", lake.Name(t.Ident), last)
}

func (t *Table[R]) stage(ctx context.Context, tbl *table.Table, rows []R) ([]iceberg.DataFile, error) {
	storage, err := lake.DataFSOf(ctx, tbl)
	if err != nil {
		return nil, err
	}
	w, err := datafile.NewWriter(datafile.Spec{
		Schema: tbl.Schema(), PartitionSpec: tbl.Spec(), FormatVersion: tbl.Metadata().Version(), Properties: tbl.Properties(),
		Location: lake.DataLocation(tbl), FS: storage, Parallel: 1,
	}, t.Ident[len(t.Ident)-1]+"-"+clock.Nonce()+"-", nil)
	if err != nil {
		return nil, err
	}
	defer w.Abort()
	if err := w.Write(t.record(rows)); err != nil {
		return nil, err
	}
	files, err := w.Close(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]iceberg.DataFile, len(files))
	for i, f := range files {
		out[i] = f.DataFile
	}
	return out, nil
}

func (t *Table[R]) record(rows []R) arrow.RecordBatch {
	fields := make([]arrow.Field, len(t.Columns))
	for i, c := range t.Columns {
		fields[i] = arrow.Field{Name: c.Name, Nullable: true, Type: arrow.BinaryTypes.String}
		switch c.Kind {
		case Long:
			fields[i].Type = arrow.PrimitiveTypes.Int64
		case Instant:
			fields[i].Type = batch.Timestamp
		case Text:
		}
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	defer b.Release()
	for _, r := range rows {
		for i, c := range t.Columns {
			appendValue(b.Field(i), c.Value(r))
		}
	}
	return b.NewRecordBatch()
}

func appendValue(b array.Builder, v any) {
	switch x := v.(type) {
	case string:
		if x == "" {
			b.AppendNull()
			return
		}
		b.(*array.StringBuilder).Append(x)
	case int64:
		b.(*array.Int64Builder).Append(x)
	case time.Time:
		if x.IsZero() {
			b.AppendNull()
			return
		}
		b.(*array.TimestampBuilder).Append(arrow.Timestamp(x.UnixMicro()))
	default:
		b.AppendNull()
	}
}
