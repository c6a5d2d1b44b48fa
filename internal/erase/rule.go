package erase

import (
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

// Columns name where in a table's rows their place in Kafka stands. Without a
// topic column every row is of the topic Fixed; without the others the rows have
// no place.
type Columns struct {
	Topic     string `json:"topic,omitempty"`
	Partition string `json:"partition,omitempty"`
	Offset    string `json:"offset,omitempty"`
	Fixed     string `json:"fixed,omitempty"`
}

// Placed reports whether the rows have a place.
func (c Columns) Placed() bool { return c.Partition != "" && c.Offset != "" }

func (c Columns) names() (out []string) {
	for _, n := range []string{c.Topic, c.Partition, c.Offset} {
		if n != "" {
			out = append(out, n)
		}
	}
	return out
}

// Rule says which rows of a table go.
type Rule struct {
	// Columns are those of the rows' places. What goes is declared by them.
	Columns Columns
	// Places go; the rule is Match where they are nil.
	Places marker.Places
	// Match tells of the rows of a record which ones go. Needs are the columns
	// that it looks at.
	Match func(rec arrow.RecordBatch) ([]bool, error)
	Needs []string
}

// columns are those to be read to find the rows.
func (r Rule) columns() []string {
	out := r.Columns.names()
	if r.Places != nil {
		return out
	}
	for _, n := range r.Needs {
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// filter drops files by their statistics; nil keeps all.
func (r Rule) filter() iceberg.BooleanExpression {
	if r.Places == nil {
		return nil
	}
	lo, hi, found := int64(0), int64(0), false
	for _, runs := range r.Places {
		if len(runs) == 0 {
			continue
		}
		if from := runs[0].From; !found || from < lo {
			lo = from
		}
		hi, found = max(hi, runs[len(runs)-1].To), true
	}
	if !found {
		return iceberg.AlwaysFalse{}
	}
	ref := iceberg.Reference(r.Columns.Offset)
	return iceberg.NewAnd(iceberg.GreaterThanEqual(ref, lo), iceberg.LessThan(ref, hi))
}

// hits tells which rows of a record go, and where they came from.
func (r Rule) hits(rec arrow.RecordBatch) (gone []bool, placeOf func(row int) (batch.TopicPartition, int64), err error) {
	if r.Columns.Placed() {
		if placeOf, err = r.Columns.of(rec); err != nil {
			return nil, nil, err
		}
	}
	if r.Places == nil {
		gone, err = r.Match(rec)
		return gone, placeOf, err
	}
	gone = make([]bool, rec.NumRows())
	for i := range gone {
		tp, offset := placeOf(i)
		gone[i] = r.Places.Has(tp, offset)
	}
	return gone, placeOf, nil
}

// of reads the places of a record's rows; a row without one has partition -1.
func (c Columns) of(rec arrow.RecordBatch) (func(row int) (batch.TopicPartition, int64), error) {
	column := func(name string) (arrow.Array, error) {
		at := rec.Schema().FieldIndices(name)
		if len(at) != 1 {
			return nil, failure.New(failure.SchemaConflict, "the table has no column %q", name)
		}
		return rec.Column(at[0]), nil
	}
	topic := func(int) string { return c.Fixed }
	if c.Topic != "" {
		a, err := column(c.Topic)
		if err != nil {
			return nil, err
		}
		texts, ok := a.(*array.String)
		if !ok {
			return nil, failure.New(failure.SchemaConflict, "column %q is %s, not a topic", c.Topic, a.DataType())
		}
		topic = texts.Value
	}
	partitions, err := column(c.Partition)
	if err != nil {
		return nil, err
	}
	offsets, err := column(c.Offset)
	if err != nil {
		return nil, err
	}
	var partitionOf func(int) int32
	switch p := partitions.(type) {
	case *array.Int32:
		partitionOf = p.Value
	case *array.Int64:
		partitionOf = func(i int) int32 { return int32(p.Value(i)) }
	default:
		return nil, failure.New(failure.SchemaConflict, "column %q is %s, not a partition", c.Partition, partitions.DataType())
	}
	at, ok := offsets.(*array.Int64)
	if !ok {
		return nil, failure.New(failure.SchemaConflict, "column %q is %s, not an offset", c.Offset, offsets.DataType())
	}
	return func(i int) (batch.TopicPartition, int64) {
		if partitions.IsNull(i) || at.IsNull(i) {
			return batch.TopicPartition{Partition: -1}, -1
		}
		return batch.TopicPartition{Topic: topic(i), Partition: partitionOf(i)}, at.Value(i)
	}, nil
}
