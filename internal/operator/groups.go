package operator

import (
	"cmp"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

// group is one open session or window of a key.
type group struct {
	start, last int64 // of its events; start is the window's own for a window
	rows        int64
	accs        []accumulator
}

// keyed are the open groups of a key, by start. Sessions of a key lie further
// apart than the gap.
type keyed struct {
	groups []group
	// queued is the least due time under which the key stands in the queue.
	queued int64
}

// groups is the memory of one aggregation.
//
// Invariants:
//   - a group depends on the set of its rows, never on their order or on how
//     batches cut them;
//   - every key with open groups stands in the queue under a due time that is
//     not after the least one of its groups; entries that are no longer the
//     key's own are passed over, so nothing is ever searched in the queue;
//   - before a batch first changes a key, its state is kept in before: that is
//     the rollback, and its keys are the delta.
type groups struct {
	g *aggregate
	// watermark is the stage's own, as of the last finished batch.
	watermark int64
	keys      map[string]*keyed
	queue     []queued // a heap by due
	open      int64
	rows      int64 // in open groups
	before    map[string][]byte
	// watermarkBefore is the watermark that rollback goes back to.
	watermarkBefore int64
	keyBytes        int64
	scratch         []byte
}

type queued struct {
	due int64
	key string
}

func newGroups(g *aggregate) *groups {
	s := &groups{g: g}
	s.Reset()
	return s
}

// begin starts a batch: earlier changes are final.
func (s *groups) begin() {
	clear(s.before)
	s.watermarkBefore = s.watermark
}

// touch keeps the state of a key as it was before the batch.
func (s *groups) touch(key string, k *keyed) {
	if _, ok := s.before[key]; ok {
		return
	}
	if k == nil {
		s.before[key] = nil
		return
	}
	s.before[key] = s.appendGroups(nil, k.groups)
}

// rollback forgets everything since begin.
func (s *groups) rollback() {
	for key, state := range s.before {
		s.set(key, state)
	}
	s.watermark = s.watermarkBefore
	clear(s.before)
}

// set makes an encoded state the key's; nil removes the key. The state was
// encoded by this operator or has been checked by decodeGroups.
func (s *groups) set(key string, state []byte) {
	s.drop(key)
	if state == nil {
		return
	}
	list, _, ok := s.readGroups(state)
	if !ok || len(list) == 0 {
		return
	}
	s.put(key, list)
}

func (s *groups) put(key string, list []group) {
	k := &keyed{groups: list}
	s.keys[key] = k
	s.keyBytes += int64(len(key))
	for i := range list {
		s.open++
		s.rows += list[i].rows
	}
	s.enqueue(key, k)
}

func (s *groups) drop(key string) {
	k := s.keys[key]
	if k == nil {
		return
	}
	for i := range k.groups {
		s.open--
		s.rows -= k.groups[i].rows
	}
	s.keyBytes -= int64(len(key))
	delete(s.keys, key)
}

// enqueue puts the key into the queue under its least due time.
func (s *groups) enqueue(key string, k *keyed) {
	k.queued = s.leastDue(k)
	s.push(queued{k.queued, key})
}

// add takes the rows of a record in. None of them may be before the watermark.
func (s *groups) add(rec arrow.RecordBatch) error {
	times, ok := rec.Column(s.g.timeCol).(*array.Timestamp)
	if !ok {
		return failure.New(failure.Runtime, "%s was given a record of another shape: %s", s.g.name, rec.Schema())
	}
	for row := range times.Len() {
		if times.IsNull(row) {
			return failure.New(failure.SchemaConflict, "a row has no event time in column %s", s.g.in.Field(s.g.timeCol).Name)
		}
		at := int64(times.Value(row)) - s.g.shift
		if at < s.watermark {
			return failure.New(failure.Runtime, "%s was given a row that is %s behind its watermark", s.g.name, micros(s.watermark-at)).
				WithHint("this is a defect: keep the checkpoint folder and report it")
		}
		s.scratch = s.appendKey(s.scratch[:0], rec, row)
		k := s.keys[string(s.scratch)] // no copy for a look-up
		key := ""
		if k == nil {
			key = string(s.scratch)
			s.touch(key, nil)
			k = &keyed{}
			s.keys[key] = k
			s.keyBytes += int64(len(key))
		} else if _, ok := s.before[string(s.scratch)]; !ok {
			s.touch(string(s.scratch), k)
		}
		if s.g.Session != nil {
			s.addToSession(k, rec, row, at)
		} else {
			s.g.windows(at, func(start int64) { s.addToWindow(k, rec, row, at, start) })
		}
		switch {
		case key != "":
			s.enqueue(key, k)
		case s.leastDue(k) < k.queued:
			s.enqueue(string(s.scratch), k)
		}
	}
	return nil
}

func (s *groups) leastDue(k *keyed) int64 {
	// Sessions are apart, and windows are of one length: the first is the least.
	return s.g.due(k.groups[0].start, k.groups[0].last)
}

func (s *groups) newGroup(start, last int64) group {
	g := group{start: start, last: last, accs: make([]accumulator, len(s.g.specs))}
	for i := range s.g.specs {
		g.accs[i] = s.g.specs[i].newAccumulator()
	}
	s.open++
	return g
}

// addToSession puts the row into the session that it touches; a row that
// touches two makes one of them.
func (s *groups) addToSession(k *keyed, rec arrow.RecordBatch, row int, at int64) {
	// i is the first session that begins after the row.
	i, _ := slices.BinarySearchFunc(k.groups, at, func(g group, at int64) int {
		if g.start <= at {
			return -1
		}
		return 1
	})
	joinsLeft := i > 0 && at-k.groups[i-1].last <= s.g.gap
	joinsRight := i < len(k.groups) && k.groups[i].start-at <= s.g.gap
	switch {
	case joinsLeft && joinsRight:
		left, right := &k.groups[i-1], &k.groups[i]
		left.last = max(left.last, right.last)
		left.rows += right.rows
		for j, a := range left.accs {
			a.merge(right.accs[j])
		}
		k.groups = slices.Delete(k.groups, i, i+1)
		s.open--
		i--
	case joinsLeft:
		i--
	case joinsRight:
	default:
		k.groups = slices.Insert(k.groups, i, s.newGroup(at, at))
	}
	g := &k.groups[i]
	g.start, g.last = min(g.start, at), max(g.last, at)
	s.accumulate(g, rec, row, at)
}

func (s *groups) addToWindow(k *keyed, rec arrow.RecordBatch, row int, at, start int64) {
	i, found := slices.BinarySearchFunc(k.groups, start, func(g group, start int64) int { return cmp.Compare(g.start, start) })
	if !found {
		k.groups = slices.Insert(k.groups, i, s.newGroup(start, at))
	}
	g := &k.groups[i]
	g.last = max(g.last, at)
	s.accumulate(g, rec, row, at)
}

func (s *groups) accumulate(g *group, rec arrow.RecordBatch, row int, at int64) {
	g.rows++
	s.rows++
	for i := range s.g.specs {
		spec := &s.g.specs[i]
		if spec.col < 0 {
			g.accs[i].add(value{}, at)
			continue
		}
		if v, ok := valueOf(rec.Column(spec.col), row); ok {
			g.accs[i].add(v, at)
		}
	}
}

// closed is a group that the watermark has passed.
type closed struct {
	key string
	group
}

// close moves the watermark and takes out the groups that it completes, in the
// order of end, start and key.
func (s *groups) close(watermark int64) []closed {
	s.watermark = max(s.watermark, watermark)
	var out []closed
	for len(s.queue) > 0 && s.queue[0].due <= s.watermark {
		q := s.pop()
		k := s.keys[q.key]
		if k == nil || k.queued != q.due {
			continue // it stands there again, under another time
		}
		n := 0
		for n < len(k.groups) && s.g.due(k.groups[n].start, k.groups[n].last) <= s.watermark {
			n++
		}
		if n == 0 {
			s.enqueue(q.key, k)
			continue
		}
		s.touch(q.key, k)
		for i := range k.groups[:n] {
			out = append(out, closed{q.key, k.groups[i]})
			s.open--
			s.rows -= k.groups[i].rows
		}
		if k.groups = slices.Clone(k.groups[n:]); len(k.groups) == 0 {
			s.keyBytes -= int64(len(q.key))
			delete(s.keys, q.key)
			continue
		}
		s.enqueue(q.key, k)
	}
	slices.SortFunc(out, func(a, b closed) int {
		return cmp.Or(cmp.Compare(s.g.end(a.start, a.last), s.g.end(b.start, b.last)),
			cmp.Compare(a.start, b.start), strings.Compare(a.key, b.key))
	})
	return out
}

// records makes the emitted records of closed groups.
func (s *groups) records(mem memory.Allocator, list []closed, emit func(arrow.RecordBatch) error) error {
	b := array.NewRecordBuilder(mem, s.g.out)
	defer b.Release()
	for len(list) > 0 {
		n := min(len(list), blockRows)
		for i := range list[:n] {
			s.appendClosed(b, &list[i])
		}
		list = list[n:]
		if err := emit(b.NewRecordBatch()); err != nil {
			return err
		}
	}
	return nil
}

func (s *groups) appendClosed(b *array.RecordBuilder, c *closed) {
	rest, col := []byte(c.key), 0
	for _, k := range s.g.keys {
		typ, _ := valueTypeOf(s.g.in.Field(k).Type)
		v, after, ok := readKeyPart(typ, rest)
		rest = after
		appendResult(b.Field(col), v, ok)
		col++
	}
	b.Field(col).(*array.TimestampBuilder).Append(arrow.Timestamp(c.start))
	b.Field(col + 1).(*array.TimestampBuilder).Append(arrow.Timestamp(s.g.end(c.start, c.last)))
	for i, a := range c.accs {
		a.result(b.Field(col + 2 + i))
	}
}

// dueAt reports whether a watermark would complete a group.
func (s *groups) dueAt(watermark int64) bool {
	for len(s.queue) > 0 {
		q := s.queue[0]
		if k := s.keys[q.key]; k != nil && k.queued == q.due {
			return s.leastDue(k) <= watermark
		}
		s.pop()
	}
	return false
}

// appendKey encodes the row's key. Null is a key of its own, as in GROUP BY.
func (s *groups) appendKey(b []byte, rec arrow.RecordBatch, row int) []byte {
	for _, c := range s.g.keys {
		v, ok := valueOf(rec.Column(c), row)
		if !ok {
			b = append(b, 0)
			continue
		}
		typ, _ := valueTypeOf(s.g.in.Field(c).Type)
		b = typ.appendValue(append(b, 1), v)
	}
	return b
}

// readKeyPart is appendKey's inverse for one column; false is null.
func readKeyPart(t valueType, b []byte) (value, []byte, bool) {
	if len(b) == 0 || b[0] == 0 {
		return value{}, b[min(1, len(b)):], false
	}
	v, rest, ok := t.readValue(b[1:])
	return v, rest, ok
}

// push and pop keep the queue a heap.
func (s *groups) push(q queued) {
	s.queue = append(s.queue, q)
	for i := len(s.queue) - 1; i > 0; {
		up := (i - 1) / 2
		if s.queue[up].due <= s.queue[i].due {
			break
		}
		s.queue[up], s.queue[i] = s.queue[i], s.queue[up]
		i = up
	}
}

func (s *groups) pop() queued {
	top := s.queue[0]
	last := len(s.queue) - 1
	s.queue[0] = s.queue[last]
	s.queue[last] = queued{}
	s.queue = s.queue[:last]
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < last; c++ {
			if s.queue[c].due < s.queue[least].due {
				least = c
			}
		}
		if least == i {
			return top
		}
		s.queue[least], s.queue[i] = s.queue[i], s.queue[least]
		i = least
	}
}

// Name implements Stateful.
func (s *groups) Name() string { return s.g.name }

// Keys implements Stateful: the open groups.
func (s *groups) Keys() int64 { return s.open }

// rebuildSpanMax is how far back a rebuild goes step by step, some 500 years;
// beyond it everything is read.
const rebuildSpanMax = int64(1) << 54

// Estimates of memory, in bytes, beyond what keys and values take.
const (
	bytesPerKey   = 160 // map entry, keyed, queue entry
	bytesPerGroup = 48
	bytesPerAcc   = 64
)

// Bytes implements Stateful.
func (s *groups) Bytes() int64 {
	return 2*s.keyBytes + int64(len(s.keys))*bytesPerKey + s.open*(bytesPerGroup+int64(len(s.g.specs))*bytesPerAcc)
}

// Reset implements Stateful.
func (s *groups) Reset() {
	s.watermark, s.watermarkBefore = marker.MinTime, marker.MinTime
	s.keys, s.before, s.queue = map[string]*keyed{}, map[string][]byte{}, nil
	s.open, s.rows, s.keyBytes = 0, 0, 0
}

// RebuildColumns implements Stateful: the columns of the input.
func (s *groups) RebuildColumns() []string {
	out := []string{s.g.in.Field(s.g.timeCol).Name}
	add := func(i int) {
		if n := s.g.in.Field(i).Name; !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	for _, k := range s.g.keys {
		add(k)
	}
	for _, a := range s.g.specs {
		if a.col >= 0 {
			add(a.col)
		}
	}
	return out
}

// RebuildFrom implements Stateful: the earliest event time that an open group
// can begin at, as far as its own length tells. A session can be longer; see
// RebuildFurther.
func (s *groups) RebuildFrom(w marker.Watermark) int64 {
	if w.Micros == marker.MinTime {
		return marker.MinTime
	}
	if s.g.Session != nil {
		return w.Micros - 2*s.g.gap - 1
	}
	return w.Micros - s.g.duration
}

// RebuildFurther says that the rows from a time on were not all that the open
// groups consist of: one of them begins so close to it that it may have begun
// before. The time to read from instead is further back each time.
func (s *groups) RebuildFurther(from int64, w marker.Watermark) (int64, bool) {
	if s.g.Session == nil || from == marker.MinTime {
		return from, false
	}
	for _, k := range s.keys {
		for i := range k.groups {
			g := &k.groups[i]
			if s.g.due(g.start, g.last) > w.Micros && g.start-from <= s.g.gap {
				span := w.Micros - from
				if span > rebuildSpanMax {
					return marker.MinTime, true
				}
				return w.Micros - 2*span, true
			}
		}
	}
	return from, false
}

// Rebuild implements Stateful; it copies what it needs.
func (s *groups) Rebuild(rec arrow.RecordBatch) error {
	shaped, err := conform(rec, s.g.in, s.RebuildColumns())
	if err != nil {
		return err
	}
	defer shaped.Release()
	err = s.add(shaped)
	clear(s.before)
	return err
}

// conform gives the columns their places in a schema; the others are null.
func conform(rec arrow.RecordBatch, to *arrow.Schema, want []string) (arrow.RecordBatch, error) {
	cols := make([]arrow.Array, to.NumFields())
	defer func() {
		for _, c := range cols {
			if c != nil {
				c.Release()
			}
		}
	}()
	for i, f := range to.Fields() {
		if !slices.Contains(want, f.Name) {
			cols[i] = array.MakeArrayOfNull(memory.DefaultAllocator, f.Type, int(rec.NumRows()))
			continue
		}
		at := rec.Schema().FieldIndices(f.Name)
		if len(at) != 1 || !arrow.TypeEqual(rec.Column(at[0]).DataType(), f.Type) {
			return nil, failure.New(failure.SchemaConflict, "rebuild of state: the rows have no column %s of the type %s", f.Name, f.Type)
		}
		cols[i] = rec.Column(at[0])
		cols[i].Retain()
	}
	return array.NewRecordBatch(to, cols, rec.NumRows()), nil
}

// FinishRebuild implements Stateful.
func (s *groups) FinishRebuild(w marker.Watermark) {
	s.close(w.Micros)
	s.begin()
}

var _ Stateful = (*groups)(nil)
