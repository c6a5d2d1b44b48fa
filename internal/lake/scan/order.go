package scan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/batch"
)

const (
	// shortRun is the run length below which neighbouring runs are copied
	// together: emitting a record of a few rows costs more than copying them.
	shortRun = 256
	// joinedRows and joinedBytes bound such a copy.
	joinedRows  = 4096
	joinedBytes = 16 << 20
)

// run is wanted rows of one partition that lie together in one record, with
// ascending offsets. It holds a reference to its record.
type run struct {
	tp          batch.TopicPartition
	first, last int64
	rec         arrow.RecordBatch
	from, to    int
}

// cut finds the wanted runs of a record of r.sc.
func (r *reader) cut(rec arrow.RecordBatch) []run {
	topics := rec.Column(r.atTopic).(*array.String)
	partitions := rec.Column(r.atPartition).(*array.Int32).Int32Values()
	offsets := rec.Column(r.atOffset).(*array.Int64).Int64Values()
	var out []run
	var tp batch.TopicPartition
	var ranges []batch.Range
	open := false
	for i, off := range offsets {
		if i == 0 || partitions[i] != tp.Partition || topics.Value(i) != tp.Topic {
			t := topics.Value(i)
			if t != tp.Topic {
				t = string(append([]byte(nil), t...)) // the record's memory goes away
			} else {
				t = tp.Topic
			}
			tp = batch.TopicPartition{Topic: t, Partition: partitions[i]}
			ranges, open = r.want[tp], false
		}
		if !within(ranges, off) {
			open = false
			continue
		}
		if open {
			if last := &out[len(out)-1]; off > last.last {
				last.last, last.to = off, i+1
				continue
			}
		}
		rec.Retain()
		out = append(out, run{tp: tp, first: off, last: off, rec: rec, from: i, to: i + 1})
		open = true
	}
	return out
}

func within(ranges []batch.Range, off int64) bool {
	for _, r := range ranges {
		if off >= r.From && off < r.To {
			return true
		}
	}
	return false
}

func compareRuns(a, b run) int {
	return cmp.Or(cmp.Compare(a.tp.Topic, b.tp.Topic), cmp.Compare(a.tp.Partition, b.tp.Partition), cmp.Compare(a.first, b.first))
}

// order sorts the runs by topic, partition and offset and interleaves those
// whose offsets overlap.
func order(runs []run) []run {
	slices.SortStableFunc(runs, compareRuns)
	var out []run
	for i := 0; i < len(runs); {
		j, last := i+1, runs[i].last
		for j < len(runs) && runs[j].tp == runs[i].tp && runs[j].first <= last {
			last = max(last, runs[j].last)
			j++
		}
		if j == i+1 {
			out = append(out, runs[i])
		} else {
			out = append(out, interleave(runs[i:j])...)
		}
		i = j
	}
	return out
}

// interleave merges runs of one partition row by row. An offset that occurs
// twice stays twice: whoever counts must see it.
func interleave(runs []run) []run {
	type place struct {
		off int64
		run int
		row int
	}
	var rows []place
	for i, r := range runs {
		offsets := r.rec.Column(offsetColumn(r.rec)).(*array.Int64).Int64Values()
		for row := r.from; row < r.to; row++ {
			rows = append(rows, place{offsets[row], i, row})
		}
	}
	slices.SortStableFunc(rows, func(a, b place) int { return cmp.Compare(a.off, b.off) })
	var out []run
	for i, p := range rows {
		if i > 0 && rows[i-1].run == p.run && rows[i-1].row+1 == p.row {
			last := &out[len(out)-1]
			last.to, last.last = p.row+1, p.off
			continue
		}
		r := runs[p.run]
		r.rec.Retain()
		out = append(out, run{tp: r.tp, first: p.off, last: p.off, rec: r.rec, from: p.row, to: p.row + 1})
	}
	for _, r := range runs {
		r.rec.Release()
	}
	return out
}

func offsetColumn(rec arrow.RecordBatch) int { return rec.Schema().FieldIndices("offset")[0] }

// emit hands out the runs in order and forgets them.
func (r *reader) emit(emit func(arrow.RecordBatch) error) (int64, error) {
	runs := order(r.runs)
	r.runs = runs
	var rows int64
	for i := 0; i < len(runs); {
		j := i + joinable(runs[i:])
		rec, err := r.join(runs[i:j])
		if err != nil {
			return rows, err
		}
		for k := i; k < j; k++ {
			runs[k].rec.Release()
			runs[k].rec = nil
		}
		i = j
		rows += rec.NumRows()
		if err := emit(rec); err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// joinable is how many of the first runs are to be copied into one record: one
// where the first is long enough to go out as it is.
func joinable(runs []run) int {
	rows, size := 0, int64(0)
	for i, u := range runs {
		n := u.to - u.from
		if n >= shortRun {
			return max(i, 1)
		}
		rows, size = rows+n, size+u.bytes()
		if i > 0 && (rows > joinedRows || size > joinedBytes) {
			return i
		}
	}
	return len(runs)
}

// bytes is about the memory of the run's values of variable length.
func (u run) bytes() int64 {
	var n int64
	for _, c := range u.rec.Columns() {
		if a, ok := c.(interface{ ValueOffsets() []int32 }); ok {
			if o := a.ValueOffsets(); len(o) > u.to {
				n += int64(o[u.to] - o[u.from])
			}
		}
	}
	return n
}

// join makes one record of the emitted columns out of neighbouring runs.
func (r *reader) join(runs []run) (arrow.RecordBatch, error) {
	cols := make([]arrow.Array, len(r.picks))
	defer func() {
		for _, c := range cols {
			if c != nil {
				c.Release()
			}
		}
	}()
	rows := 0
	for _, u := range runs {
		rows += u.to - u.from
	}
	for i, pick := range r.picks {
		parts := make([]arrow.Array, 0, len(runs))
		for _, u := range runs {
			parts = append(parts, array.NewSlice(u.rec.Column(pick), int64(u.from), int64(u.to)))
		}
		if len(parts) == 1 {
			cols[i] = parts[0]
			continue
		}
		joined, err := array.Concatenate(parts, memory.DefaultAllocator)
		releaseArrays(parts)
		if err != nil {
			return nil, fmt.Errorf("join rows of column %q: %w", r.out.Field(i).Name, err)
		}
		cols[i] = joined
	}
	return array.NewRecordBatch(r.out, cols, int64(rows)), nil
}

// reset forgets everything read so far.
func (r *reader) reset() {
	r.release()
	r.runs, r.files, r.groups, r.skipped = nil, 0, 0, 0
}

func (r *reader) release() {
	for i := range r.runs {
		if r.runs[i].rec != nil {
			r.runs[i].rec.Release()
			r.runs[i].rec = nil
		}
	}
	r.runs = nil
}
