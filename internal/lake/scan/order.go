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
	topicOf := func(int) string { return r.req.Place.Fixed }
	if r.atTopic >= 0 {
		topicOf = rec.Column(r.atTopic).(*array.String).Value
	}
	partitionOf := partitions(rec.Column(r.atPartition))
	offsets := rec.Column(r.atOffset).(*array.Int64).Int64Values()
	var out []run
	var tp batch.TopicPartition
	var ranges []batch.Range
	open := false
	for i, off := range offsets {
		if i == 0 || partitionOf(i) != tp.Partition || topicOf(i) != tp.Topic {
			t := topicOf(i)
			if t != tp.Topic {
				t = string(append([]byte(nil), t...)) // the record's memory goes away
			} else {
				t = tp.Topic
			}
			tp = batch.TopicPartition{Topic: t, Partition: partitionOf(i)}
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

// partitions reads a column of partitions, which may be declared as int or long.
func partitions(a arrow.Array) func(row int) int32 {
	if wide, ok := a.(*array.Int64); ok {
		return func(row int) int32 { return int32(wide.Value(row)) }
	}
	return a.(*array.Int32).Value
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
func (r *reader) order(runs []run) []run {
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
			out = append(out, r.interleave(runs[i:j])...)
		}
		i = j
	}
	return out
}

// interleave merges runs of one partition row by row. An offset that occurs
// twice stays twice: whoever counts must see it.
func (r *reader) interleave(runs []run) []run {
	type place struct {
		off int64
		run int
		row int
	}
	var rows []place
	for i, u := range runs {
		offsets := u.rec.Column(r.atOffset).(*array.Int64).Int64Values()
		for row := u.from; row < u.to; row++ {
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
		u := runs[p.run]
		u.rec.Retain()
		out = append(out, run{tp: u.tp, first: p.off, last: p.off, rec: u.rec, from: p.row, to: p.row + 1})
	}
	for _, u := range runs {
		u.rec.Release()
	}
	return out
}

// emit hands out the runs in order and forgets them.
func (r *reader) emit(emit func(arrow.RecordBatch) error) (int64, error) {
	runs := r.order(r.runs)
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
