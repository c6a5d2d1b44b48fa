package operator

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
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

// keyed are the open groups of a key that a batch has touched, by start. Sessions
// of a key lie further apart than the gap. They are decoded in groups, or packed;
// a key without any has neither.
type keyed struct {
	groups []group
	packed []byte
}

// groups is the memory of one aggregation.
//
// Invariants:
//   - a group depends on the set of its rows, never on their order or on how
//     batches cut them;
//   - rest holds every key with open groups as of the last settled batch, packed,
//     under a due time that is not after the least one of its groups;
//   - what a batch changes is in changed until the next one begins: that is the
//     delta, and a rollback drops it.
type groups struct {
	g *aggregate
	// watermark is the stage's own, as of the last finished batch.
	watermark int64
	sizes     groupSizes
	rest      KeyStore
	changed   map[string]*keyed
	decoded   []*keyed // of changed

	// What rollback goes back to.
	watermarkBefore int64
	sizesBefore     groupSizes

	version versions
	// broken is why the memory is of no use, until it is reset.
	broken error

	scratch, packing []byte
}

// groupSizes counts keys with open groups, their bytes, the groups and their rows.
type groupSizes struct {
	Keys     int64 `json:"keys"`
	KeyBytes int64 `json:"key_bytes"`
	Open     int64 `json:"open"`
	Rows     int64 `json:"rows"`
}

func (n *groupSizes) add(key string, list []group, sign int64) {
	if len(list) == 0 {
		return
	}
	n.Keys += sign
	n.KeyBytes += sign * int64(len(key))
	n.Open += sign * int64(len(list))
	for i := range list {
		n.Rows += sign * list[i].rows
	}
}

const (
	// decodedMax bounds the keys of a batch that are decoded at the same time.
	decodedMax = 1 << 14
	// changedKept is how many entries the map of changed keys may keep its memory for.
	changedKept = 1 << 12
)

func newGroups(g *aggregate) *groups {
	s := &groups{g: g, rest: newShelf()}
	s.Reset()
	return s
}

// begin starts a batch: earlier changes are final.
func (s *groups) begin() error { return s.settle(s.version.begin()) }

// settle moves what has changed into the store, which is then a version, or none.
// Where that fails the memory is of no use until it is reset: what the store has
// taken is not known.
func (s *groups) settle(v Version) error {
	if s.broken == nil {
		s.broken = s.moveChanged(v)
	}
	if s.broken != nil {
		return s.broken
	}
	s.forgetChanged()
	s.watermarkBefore, s.sizesBefore = s.watermark, s.sizes
	return nil
}

// settleUnnamed settles what is no version yet.
func (s *groups) settleUnnamed() error {
	s.version = versions{}
	return s.settle(Version{})
}

func (s *groups) moveChanged(v Version) error {
	s.pack()
	for key, k := range s.changed {
		due := int64(0)
		if len(k.packed) > 0 {
			due = s.packedDue(k.packed)
		}
		if err := s.rest.Set([]byte(key), k.packed, due); err != nil {
			return err
		}
	}
	meta, err := json.Marshal(groupsMeta{v, s.g.layout(), s.watermark, s.sizes})
	if err != nil {
		return fmt.Errorf("%s: encode what its memory is: %w", s.g.name, err)
	}
	return s.rest.Settle(meta)
}

// groupsMeta is what a store keeps of the operator beside its keys.
type groupsMeta struct {
	Version   Version    `json:"version"`
	Layout    string     `json:"layout"`
	Watermark int64      `json:"watermark"`
	Sizes     groupSizes `json:"sizes"`
}

// Resume implements Resumer.
func (s *groups) Resume() (Version, error) {
	s.Reset()
	b, err := s.rest.Resume()
	if err != nil || b == nil {
		return Version{}, err
	}
	var m groupsMeta
	if json.Unmarshal(b, &m) != nil || m.Layout != s.g.layout() || m.Version == (Version{}) {
		s.Reset()
		return Version{}, nil //nolint:nilerr // what cannot be read is not taken up
	}
	s.watermark, s.watermarkBefore = m.Watermark, m.Watermark
	s.sizes, s.sizesBefore = m.Sizes, m.Sizes
	s.version.settled = m.Version
	return m.Version, nil
}

// Loaded implements Resumer.
func (s *groups) Loaded(v Version) error {
	s.version = versions{settled: v}
	return s.settle(v)
}

// Saved implements Resumer.
func (s *groups) Saved(v Version) { s.version.next = v }

func (s *groups) keepIn(store KeyStore) { s.rest = store }

func (s *groups) release() error {
	if _, ok := s.rest.(*shelf); ok {
		return nil
	}
	s.Reset()
	return s.rest.Close()
}

func (s *groups) forgetChanged() {
	if len(s.changed) > changedKept {
		s.changed = map[string]*keyed{}
	}
	clear(s.changed)
	s.forgetDecoded()
}

// rollback forgets everything since begin.
func (s *groups) rollback() {
	s.forgetChanged()
	s.rest.Undo()
	s.version.rollback()
	s.watermark, s.sizes = s.watermarkBefore, s.sizesBefore
}

// touch gives the groups of a key, decoded, for the batch to change.
func (s *groups) touch(key []byte) (*keyed, error) {
	k := s.changed[string(key)] // no copy for a look-up
	if k == nil {
		packed, err := s.rest.Get(key)
		if err != nil {
			return nil, err
		}
		k = &keyed{packed: packed}
		s.changed[string(key)] = k
	}
	return k, s.decode(k)
}

func (s *groups) decode(k *keyed) (err error) {
	if k.groups != nil {
		return nil
	}
	if len(k.packed) > 0 {
		k.groups, err = s.unpack(k.packed)
		k.packed = nil
	}
	s.decoded = append(s.decoded, k)
	return err
}

// unpack decodes groups that this operator has packed, or has checked.
func (s *groups) unpack(packed []byte) ([]group, error) {
	list, rest, ok := s.readGroups(packed)
	if !ok || len(rest) > 0 || len(list) == 0 {
		return nil, failure.New(failure.Runtime, "the groups of a key of %s are unreadable in memory", s.g.name).
			WithHint("this is a defect: keep the checkpoint folder and report it")
	}
	return list, nil
}

// pack encodes the changed keys that are decoded.
func (s *groups) pack() {
	for _, k := range s.decoded {
		s.packing = s.appendGroups(s.packing[:0], k.groups)
		k.groups, k.packed = nil, bytes.Clone(s.packing)
	}
	s.forgetDecoded()
}

func (s *groups) forgetDecoded() {
	clear(s.decoded)
	s.decoded = s.decoded[:0]
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
		if len(s.decoded) >= decodedMax {
			s.pack()
		}
		s.scratch = s.appendKey(s.scratch[:0], rec, row)
		k, err := s.touch(s.scratch)
		if err != nil {
			return err
		}
		if len(k.groups) == 0 {
			s.sizes.Keys++
			s.sizes.KeyBytes += int64(len(s.scratch))
		}
		if s.g.Session != nil {
			s.addToSession(k, rec, row, at)
		} else {
			s.g.windows(at, func(start int64) { s.addToWindow(k, rec, row, at, start) })
		}
	}
	return nil
}

// packedDue is the least due time of packed groups: sessions are apart, and
// windows are of one length, so the first group's.
func (s *groups) packedDue(packed []byte) int64 {
	_, n := binary.Uvarint(packed)
	start, m := binary.Varint(packed[n:])
	length, _ := binary.Varint(packed[n+m:])
	return s.g.due(start, start+length)
}

func (s *groups) newGroup(start, last int64) group {
	g := group{start: start, last: last, accs: make([]accumulator, len(s.g.specs))}
	for i := range s.g.specs {
		g.accs[i] = s.g.specs[i].newAccumulator()
	}
	s.sizes.Open++
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
		s.sizes.Open--
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
	s.sizes.Rows++
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
func (s *groups) close(watermark int64) ([]closed, error) {
	s.watermark = max(s.watermark, watermark)
	s.pack()
	var out []closed
	for key, k := range s.changed {
		if len(k.packed) == 0 || s.packedDue(k.packed) > s.watermark {
			continue
		}
		var err error
		if out, err = s.takeDue(out, key, k); err != nil {
			return nil, err
		}
	}
	err := s.rest.Due(s.watermark, func(key, packed []byte) (int64, bool, error) {
		if s.changed[string(key)] != nil {
			return s.watermark, true, nil
		}
		if due := s.packedDue(packed); due > s.watermark {
			return due, true, nil
		}
		k, name := &keyed{packed: packed}, string(key)
		s.changed[name] = k
		var err error
		out, err = s.takeDue(out, name, k)
		return s.watermark, true, err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b closed) int {
		return cmp.Or(cmp.Compare(s.g.end(a.start, a.last), s.g.end(b.start, b.last)),
			cmp.Compare(a.start, b.start), strings.Compare(a.key, b.key))
	})
	return out, nil
}

// takeDue takes the groups out of a key that the watermark completes.
func (s *groups) takeDue(out []closed, key string, k *keyed) ([]closed, error) {
	list, err := s.unpack(k.packed)
	if err != nil {
		return nil, err
	}
	n := 0
	for n < len(list) && s.g.due(list[n].start, list[n].last) <= s.watermark {
		n++
	}
	s.sizes.add(key, list, -1)
	s.sizes.add(key, list[n:], 1)
	for i := range list[:n] {
		out = append(out, closed{key, list[i]})
	}
	k.packed = nil
	if n < len(list) {
		k.packed = s.appendGroups(nil, list[n:])
	}
	return out, nil
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
func (s *groups) dueAt(watermark int64) (due bool) {
	for _, k := range s.changed {
		if len(k.packed) > 0 && s.packedDue(k.packed) <= watermark {
			return true
		}
	}
	// An error comes again, and is reported, when the batch is run.
	_ = s.rest.Due(watermark, func(key, packed []byte) (int64, bool, error) {
		if s.changed[string(key)] != nil {
			return watermark, true, nil
		}
		at := s.packedDue(packed)
		due = at <= watermark
		return at, !due, nil
	})
	s.rest.Undo()
	return due
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

// Name implements Stateful.
func (s *groups) Name() string { return s.g.name }

// Keys implements Stateful: the open groups.
func (s *groups) Keys() int64 { return s.sizes.Open }

// errStop ends a walk over keys early.
var errStop = errors.New("stop")

// rebuildSpanMax is how far back a rebuild goes step by step, some 500 years;
// beyond it everything is read.
const rebuildSpanMax = int64(1) << 54

// bytesPerChanged is about what a changed key takes beside its groups.
const bytesPerChanged = 128

// Bytes implements Stateful.
func (s *groups) Bytes() int64 {
	n := s.rest.Bytes() + int64(len(s.changed))*bytesPerChanged
	for key, k := range s.changed {
		n += int64(len(key) + cap(k.packed))
	}
	return n
}

// Reset implements Stateful.
func (s *groups) Reset() {
	s.watermark, s.watermarkBefore = marker.MinTime, marker.MinTime
	s.changed, s.decoded = map[string]*keyed{}, nil
	s.sizes, s.sizesBefore = groupSizes{}, groupSizes{}
	s.rest.Reset()
	s.version, s.broken = versions{}, nil
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
	further := false
	err := s.eachKey(func(_, packed []byte) error {
		list, err := s.unpack(packed)
		for i := range list {
			g := &list[i]
			if s.g.due(g.start, g.last) > w.Micros && g.start-from <= s.g.gap {
				further = true
				return errStop
			}
		}
		return err
	})
	switch {
	case further:
	case err != nil:
		s.broken = err // the first batch says so
		return from, false
	default:
		return from, false
	}
	span := w.Micros - from
	if span > rebuildSpanMax {
		return marker.MinTime, true
	}
	return w.Micros - 2*span, true
}

// Rebuild implements Stateful; it copies what it needs.
func (s *groups) Rebuild(rec arrow.RecordBatch) error {
	shaped, err := conform(rec, s.g.in, s.RebuildColumns())
	if err != nil {
		return err
	}
	defer shaped.Release()
	if err := s.add(shaped); err != nil {
		return err
	}
	return s.settleUnnamed()
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
	if _, err := s.close(w.Micros); err != nil {
		s.broken = err // the first batch says so
	}
	_ = s.settleUnnamed()
}

var _ Stateful = (*groups)(nil)
