package maintain

import (
	"cmp"
	"context"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/failure"
)

// sortedRows is how many rows an ordered record has.
const sortedRows = 16 << 10

// sorter holds the rows of one group and gives them in order; nulls come first.
type sorter struct {
	by   []string
	recs []arrow.RecordBatch
}

func (s *sorter) take(rec arrow.RecordBatch) error {
	s.recs = append(s.recs, rec)
	return nil
}

func (s *sorter) release() {
	for _, r := range s.recs {
		r.Release()
	}
	s.recs = nil
}

// drain emits the rows in order.
func (s *sorter) drain(ctx context.Context, emit func(arrow.RecordBatch) error) error {
	if len(s.recs) == 0 {
		return nil
	}
	sc := s.recs[0].Schema()
	cols := make([]arrow.Array, sc.NumFields())
	defer func() {
		for _, c := range cols {
			if c != nil {
				c.Release()
			}
		}
	}()
	for i := range cols {
		chunks := make([]arrow.Array, len(s.recs))
		for j, r := range s.recs {
			chunks[j] = r.Column(i)
		}
		var err error
		if cols[i], err = array.Concatenate(chunks, memory.DefaultAllocator); err != nil {
			return err
		}
	}
	s.release()
	var compare []func(a, b int) int
	for _, name := range s.by {
		at := sc.FieldIndices(name)
		if len(at) != 1 {
			return failure.New(failure.Config, "rows cannot be sorted by %q: there is no such column", name)
		}
		f := comparer(cols[at[0]])
		if f == nil {
			return failure.New(failure.Config, "rows cannot be sorted by %q: it is %s", name, cols[at[0]].DataType()).
				WithHint("sort by numbers, times, dates or strings")
		}
		compare = append(compare, f)
	}
	rows := make([]int64, cols[0].Len())
	for i := range rows {
		rows[i] = int64(i)
	}
	slices.SortStableFunc(rows, func(a, b int64) int {
		for _, f := range compare {
			if c := f(int(a), int(b)); c != 0 {
				return c
			}
		}
		return 0
	})
	for len(rows) > 0 {
		n := min(len(rows), sortedRows)
		if err := pick(ctx, sc, cols, rows[:n], emit); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// pick emits the given rows.
func pick(ctx context.Context, sc *arrow.Schema, cols []arrow.Array, rows []int64, emit func(arrow.RecordBatch) error) error {
	b := array.NewInt64Builder(memory.DefaultAllocator)
	defer b.Release()
	b.AppendValues(rows, nil)
	idx := b.NewInt64Array()
	defer idx.Release()
	out := make([]arrow.Array, len(cols))
	defer func() {
		for _, c := range out {
			if c != nil {
				c.Release()
			}
		}
	}()
	for i, c := range cols {
		var err error
		if out[i], err = compute.TakeArray(ctx, c, idx); err != nil {
			return err
		}
	}
	return emit(array.NewRecordBatch(sc, out, int64(len(rows))))
}

// comparer orders the rows of a column, nil where its type has no order here.
func comparer(a arrow.Array) func(i, j int) int {
	var f func(i, j int) int
	switch x := a.(type) {
	case *array.Int32:
		f = func(i, j int) int { return cmp.Compare(x.Value(i), x.Value(j)) }
	case *array.Int64:
		f = func(i, j int) int { return cmp.Compare(x.Value(i), x.Value(j)) }
	case *array.Float32:
		f = func(i, j int) int { return cmp.Compare(x.Value(i), x.Value(j)) }
	case *array.Float64:
		f = func(i, j int) int { return cmp.Compare(x.Value(i), x.Value(j)) }
	case *array.Decimal128:
		f = func(i, j int) int { return x.Value(i).Cmp(x.Value(j)) }
	case *array.Timestamp:
		f = func(i, j int) int { return cmp.Compare(x.Value(i), x.Value(j)) }
	case *array.Date32:
		f = func(i, j int) int { return cmp.Compare(x.Value(i), x.Value(j)) }
	case *array.String:
		f = func(i, j int) int { return cmp.Compare(x.Value(i), x.Value(j)) }
	case *array.LargeString:
		f = func(i, j int) int { return cmp.Compare(x.Value(i), x.Value(j)) }
	default:
		return nil
	}
	return func(i, j int) int {
		switch ni, nj := a.IsNull(i), a.IsNull(j); {
		case ni && nj:
			return 0
		case ni:
			return -1
		case nj:
			return 1
		}
		return f(i, j)
	}
}
